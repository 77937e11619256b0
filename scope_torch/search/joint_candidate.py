"""theta_cand during the j-loop, under the joint surrogate."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from scope_torch.bounds.base import Beta
from scope_torch.model.cost_scale import LEAST_MEAN, lognormal_bound
from scope_torch.model.joint import JointSurrogate

_FIRST = 2  # queries whose groups are opened at first; later as many as groups are open


class JointCandidate:
    """Bounds of c and g at one configuration, query by query; a `Candidate`.

    With several constraints, those on g are of the worst: the largest g over its unit, see
    `JointSurrogate.units`.

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
        self._surrogate, self._a = surrogate, surrogate.scale.at(theta)
        first = query_order[:_FIRST] if in_order else ()
        self._posterior = surrogate.at(theta, first)
        self.information = surrogate.information()
        self._cost, self._units = self._posterior.cost, surrogate.units()
        self._constraint, *self._others = self._posterior.constraints
        self._order, self._in_order, self._num_asked = query_order, in_order, 0
        self._waiting: dict[int, deque[int]] = {}  # queries of each group, if not in order

    def next_queries(self, number: int) -> list[int]:
        """The next queries: each lowers the variance of g(theta_cand) most; see `Candidate`."""
        chosen = []
        for _ in range(number):
            if self._num_asked == len(self._order):
                break
            query = self._next_in_order() if self._in_order else self._most_informative()
            self._num_asked += 1
            self._posterior.plan(query)
            chosen.append(query)
        return chosen

    def _next_in_order(self) -> int:
        query = self._order[self._num_asked]
        if not self._posterior.is_open(query):
            more = max(_FIRST, self._posterior.num_open)
            self._posterior.open(self._order[self._num_asked : self._num_asked + more])
        return query

    def _most_informative(self) -> int:
        if not self._waiting:
            self._posterior.open(self._order)
            for query in self._order:
                self._waiting.setdefault(self._posterior.place_of(query), deque()).append(query)
        reduction = self._constraint.reduction()[[*self._waiting]]
        reduction[[not queries for queries in self._waiting.values()]] = -math.inf
        # Reductions that differ by rounding are equal: then the first group by `query_order`.
        best = int((reduction >= reduction.max() * (1 - 1e-9)).argmax())
        return [*self._waiting.values()][best].popleft()

    def update(self, query: int, y_c: float, y_g: float, *others: float) -> None:
        """Takes in an observation (USD, quality), in the order of `next_queries`."""
        self._cost.update(query, y_c / self._a - 1 if self._surrogate.relative_cost else y_c)
        self.information[0] += self._constraint.update(query, y_g)
        for constraint, y in zip(self._others, others, strict=True):
            constraint.update(query, y)

    @property
    def mean_c(self) -> float:
        """Mean of cbar(theta_cand) in USD."""
        mean = self._cost.mean
        return self._a * max(1 + mean, LEAST_MEAN) if self._surrogate.relative_cost else mean

    @property
    def mean_g(self) -> float:
        """Mean of gbar(theta_cand) in units of quality."""
        means = [self._constraint.mean, *(one.mean for one in self._others)]
        return max(mean / unit for mean, unit in zip(means, self._units, strict=True))

    def lower_c(self, beta: Beta) -> float:
        """L_c(theta_cand) in USD."""
        return self._bound_c(-beta.c)

    def upper_c(self, beta: Beta) -> float:
        """U_c(theta_cand) in USD."""
        return self._bound_c(beta.c)

    def lower_g(self, beta: Beta) -> float:
        """L_g(theta_cand) in units of quality."""
        return self.mean_g - beta.g * self._constraint.sigma

    def upper_g(self, beta: Beta) -> float:
        """U_g(theta_cand) in units of quality."""
        b = beta.g if beta.certify is None else beta.certify
        return self.mean_g + b * self._constraint.sigma

    def _bound_c(self, b: float) -> float:
        mean, sigma = self._cost.mean, self._cost.sigma
        if not self._surrogate.relative_cost:
            return mean + b * sigma
        return self._a * lognormal_bound(mean, sigma, b)
