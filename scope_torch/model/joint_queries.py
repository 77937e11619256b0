"""The queries' own processes, as the joint surrogate needs them.

| symbol | here | shape |
| --- | --- | --- |
| A_q, for the queries of a group | `QueryGroup` | `J x J` |
| c_a = A_a k_D(theta) | `coefficients` | `groups x n` |
| sigma_hat_a^2 = 1 - k_D(theta)^T c_a | `coefficients` | `groups` |
| o_q = k_D(theta)^T A_q y_q = mu_hat_q(theta) | `mean` | 1 + K |

**Repeats.** Where a pair is observed once more, the noise of its mean falls by d = lam / count -
lam / (count + 1), and A_q^-1 by d e e^T, e the unit vector of the configuration. So with u = A_q e

    A_q + d / (1 - d u_e) u u^T    and    A_q y_q + (residual) / (1 - d u_e) u

are the new ones: one row, as for a configuration that is new to the query. Without it S was made
anew after every repeat, and B with it: two thirds of the time of a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scope_torch.model.data import Added, Data
from scope_torch.model.factor import Array, QueryGroup, times
from scope_torch.model.incremental import Factors, LowRankUpdate, Prediction
from scope_torch.model.per_query import QuerySurrogate

_DENSE = 3  # to copy a row of K_D takes as long as to multiply so many


class QueriesAt(NamedTuple):
    """One configuration theta, as the queries see it.

    It stays as it is while more is observed: with many calls in flight, others answer meanwhile.

    Args:
        k: Kernel with D: `n`.
        gram: `n x n`, K_D.
        groups: One factor for each history.
        group_of: The group of every query.
        means: mu_hat_q of cost and constraints: `(1 + K) x Q`.
    """

    k: Array
    gram: Array
    groups: Sequence[QueryGroup]
    group_of: list[int]
    means: Array

    def coefficients(self, groups: Sequence[int]) -> tuple[Array, Array]:
        """c_a, `m x n`, and sigma_hat_a^2, `m`, of `m` groups."""
        coefficients = np.zeros((len(groups), len(self.k)))
        variance = np.empty(len(groups))
        for row, a in enumerate(groups):
            group = self.groups[a]
            whitened = group.whitened(self.k)
            coefficients[row, group.ids] = group.solved(whitened)
            variance[row] = 1 - float(whitened.dot(whitened))
        return coefficients, variance

    def mean(self, query: int) -> list[float]:
        """mu_hat_q of cost and constraints."""
        return self.means[:, query].tolist()


def times_gram(rows: Array, gram: Array) -> Tensor:
    """Multiplies rows with K_D: `m x n` (CPU). A row is 0 wherever its query was not observed."""
    some = np.flatnonzero(rows.any(0))
    if len(some) < len(gram) / _DENSE:
        rows, gram = rows[:, some], gram[some]
    # torch's product: numpy's threads would spin beside torch's
    return torch.from_numpy(rows) @ torch.from_numpy(gram)


class JointFactors(Factors):
    """`Factors` that take in a repeated observation by a row, and not by forgetting."""

    def update(self, data: Data, added: Added, last: Prediction | None) -> None:
        """See `Factors.update`."""
        self._configs = added.configs
        self._repeats: list[tuple[Array, int, float, Array]] = []
        super().update(data, added, last)
        if self._repeats:
            u, number, weight, total = zip(*self._repeats, strict=True)
            weights = np.array(weight) * np.array(number)
            self.log.append(LowRankUpdate(np.stack(u), weights, np.stack(total, axis=1)))

    def _anew(self, queries: NDArray[np.int64], data: Data) -> QueryGroup:
        """The group of queries with equal histories, one of whose configurations was repeated."""
        first = int(queries[0])
        old, (config, *others) = self.groups[self.group_of[first]], self._configs[first]
        (at,) = (old.ids == config).nonzero()
        if set(others) - {config} or not len(at):
            return super()._anew(queries, data)
        n, count = data.n, data.count[first]
        before, after = self._lam / (count[config] - len(others) - 1), self._lam / count[config]
        u = np.zeros(n)
        u[old.ids] = old.solved(old.W[:, at[0]])
        share = 1 - (before - after) * u[config]
        solved = self.solved[:, queries, :n]
        predicted = times(solved, data.gram[config, :n]) + after * solved[..., config]
        scaled = (data.sums[:, queries, config] / count[config] - predicted) / share
        self.solved[:, queries, :n] = solved + scaled[..., None] * u
        total = scaled.sum(1)
        self.total[:, :n] += total[:, None] * u
        self._repeats.append((u, len(queries), (before - after) / share, total))
        return QueryGroup.of(data.gram, old.ids, count[old.ids], self._lam)


class JointQueries(QuerySurrogate):
    """`QuerySurrogate` whose S and T change by rows whatever is observed. Arguments as there."""

    _make_factors = JointFactors
    _factors: JointFactors

    def seen_at(self, theta: tuple[int, ...]) -> QueriesAt:
        """One configuration, as the queries see it now."""
        self._update()
        data, factors = self._data, self._factors
        n, groups = data.n, tuple(factors.groups)
        k, some = data.kernel_with(theta), data.is_asked
        means = np.zeros(factors.solved.shape[:2])  # `solved` is written over
        means[:, some] = times(factors.solved[:, some, :n], k)
        return QueriesAt(k, data.gram[:n, :n], groups, factors.group_of, means)
