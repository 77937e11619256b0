"""theta_cand during the j-loop, under the joint surrogate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scope_torch.bounds.base import Beta
from scope_torch.model.cost_scale import lognormal_bound
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.joint_groups import outputs_at


class JointCandidate:
    """Bounds of c and g at one configuration, query by query; a `Candidate`.

    Args:
        surrogate: Up to date.
        theta: theta_cand.
        query_order: All queries, in the order in which ties are broken.
        in_order: Whether queries are observed in just that order.
    """

    def __init__(
        self,
        surrogate: JointSurrogate,
        theta: tuple[int, ...],
        query_order: Sequence[int],
        in_order: bool = False,
    ) -> None:
        self._surrogate = surrogate
        self.information = surrogate.information()
        self._in_order = iter(query_order) if in_order else None
        self._theta, self._a = theta, surrogate.scale.at(theta)
        self._cost, self._constraint = outputs_at(surrogate, theta)
        self._waiting: list[list[int]] = [[] for _ in self._cost.d]
        for query in reversed(query_order):
            self._waiting[self._cost.group_of[query]].append(query)
        self._open = np.array([bool(queries) for queries in self._waiting])

    def next_queries(self, number: int) -> list[int]:
        """The next queries: each lowers the variance of g(theta_cand) most; see `Candidate`."""
        chosen = []
        for _ in range(number):
            query = self._next_query() if self._in_order is None else next(self._in_order, None)
            if query is None:
                break
            chosen.append(query)
            self._cost.plan(query)
            self._constraint.plan(query)
        return chosen

    def _next_query(self) -> int | None:
        if not self._open.any():
            return None
        reduction = np.where(self._open, self._constraint.reduction(), -math.inf)
        # Reductions that differ by rounding are equal: then the first group.
        best = int((reduction >= reduction.max() * (1 - 1e-9)).argmax())
        query = self._waiting[best].pop()
        self._open[best] = bool(self._waiting[best])
        return query

    def update(self, query: int, y_c: float, y_g: float) -> None:
        """Takes in an observation (USD, quality), in the order of `next_queries`."""
        self._cost.update(query, self._surrogate.relative(self._theta, y_c))
        self.information[0] += self._constraint.update(query, y_g)

    def lower_c(self, beta: Beta) -> float:
        """L_c(theta_cand) in USD."""
        return self._bound_c(-beta.c)

    def upper_c(self, beta: Beta) -> float:
        """U_c(theta_cand) in USD."""
        return self._bound_c(beta.c)

    def lower_g(self, beta: Beta) -> float:
        """L_g(theta_cand) in units of quality."""
        return self._constraint.mean - beta.g * self._constraint.sigma

    def upper_g(self, beta: Beta) -> float:
        """U_g(theta_cand) in units of quality."""
        b = beta.g if beta.certify is None else beta.certify
        return self._constraint.mean + b * self._constraint.sigma

    def _bound_c(self, b: float) -> float:
        mean, sigma = self._cost.mean, self._cost.sigma
        if not self._surrogate.relative_cost:
            return mean + b * sigma
        return self._a * lognormal_bound(mean, sigma, b)
