"""theta_cand during the j-loop (lines alg:scope-main:sort to alg:scope-main:break)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from scope_torch.bounds.base import Beta
from scope_torch.model.per_query import QuerySurrogate


class QueryCandidate:
    """Bounds under the per-query surrogate, updated in closed form; a `Candidate`.

    With m and v the posterior mean and variance of query q before an observation y,
    m' = m + v / (v + lam) (y - m) and v' = lam v / (v + lam): nothing is solved. With several
    constraints, the bounds on g are of the worst: the largest g over its unit, see `Beta`.

    Args:
        surrogate: With all observations before the j-loop.
        theta: theta_cand.
        query_order: All queries, in the order in which ties of phi are broken.
        in_order: Whether queries are observed in just that order.
    """

    def __init__(
        self,
        surrogate: QuerySurrogate,
        theta: tuple[int, ...],
        query_order: Sequence[int],
        in_order: bool = False,
    ) -> None:
        (mean_c, *mean_g), variance = surrogate.moments(theta)
        self._mean_c, self._mean_g = mean_c.tolist(), [mean.tolist() for mean in mean_g]
        self._variance = variance.tolist()
        self._sum_c, self._sum_g = math.fsum(self._mean_c), [math.fsum(m) for m in self._mean_g]
        self._sum_variance = math.fsum(self._variance)
        self._lam, self._query_order = surrogate.lam, query_order
        self._order: Iterator[int] | None = iter(query_order) if in_order else None
        self.information = surrogate.information()

    def next_queries(self, number: int) -> list[int]:
        """Queries by decreasing phi (eq:uncertainty-score), before the j-loop; ties in order.

        sigma^2 is rounded to 1e-9, since equal scores differ by rounding.
        """
        if self._order is None:
            order = np.array(self._query_order, dtype=np.intp)
            rounded = np.rint(np.array(self._variance)[order] * 1e9)
            self._order = iter(order[(-rounded).argsort(kind="stable")].tolist())
        return list(islice(self._order, number))

    def update(self, query: int, y_c: float, y_g: float, *others: float) -> None:
        """Takes in an observation (USD, quality), in the order of `next_queries`."""
        q, lam = query, self._lam
        v = self._variance[q]
        step_c = v / (v + lam) * (y_c - self._mean_c[q])
        self._mean_c[q] += step_c
        for k, (mean, y) in enumerate(zip(self._mean_g, (y_g, *others), strict=True)):
            step_g = v / (v + lam) * (y - mean[q])
            mean[q] += step_g
            self._sum_g[k] += step_g
        self._variance[q] = lam * v / (v + lam)
        self.information[q] += 0.5 * math.log1p(v / lam)
        self._sum_c += step_c
        self._sum_variance += self._variance[q] - v

    @property
    def mean_c(self) -> float:
        """mu_bar_c(theta_cand) in USD."""
        return self._sum_c / len(self._variance)

    @property
    def _sigma(self) -> float:
        return math.sqrt(self._sum_variance) / len(self._variance)

    def lower_c(self, beta: Beta) -> float:
        """L_c(theta_cand) in USD."""
        return self.mean_c - beta.c * self._sigma

    def upper_c(self, beta: Beta) -> float:
        """U_c(theta_cand) in USD."""
        return self.mean_c + beta.c * self._sigma

    def lower_g(self, beta: Beta) -> float:
        """L_g(theta_cand) in units of quality."""
        return self._worst_g(beta) - beta.g * self._sigma

    def upper_g(self, beta: Beta) -> float:
        """U_g(theta_cand) in units of quality."""
        return self._worst_g(beta) + beta.g * self._sigma

    def _worst_g(self, beta: Beta) -> float:
        """The largest mean of g over its unit."""
        if len(self._sum_g) == 1:
            return self._sum_g[0] / len(self._variance)
        units = beta.units or (1.0,) * len(self._sum_g)
        return max(s / u for s, u in zip(self._sum_g, units, strict=True)) / len(self._variance)
