"""The accelerator of `per_query.py`: factors of all queries, kept up to date.

| symbol | here | shape |
| --- | --- | --- |
| A_q = (K_q + lam C_q^-1)^-1 = W_q^T W_q | `groups[group_of[q]]` | `J_q x J_q` |
| A_q y_q, on D | `solved` | `(1 + K) x Q x n` |
| T_zeta = sum_q P_q^T A_q y_q | `total` | `(1 + K) x n` |
| S = sum_q P_q^T A_q P_q | `sum_of_inverses` | `n x n` |

sigma_hat depends on where a query was observed, not on what was seen there. So queries with equal
histories form a group with one factor, and an observation borders the factors of the groups it
moves (`factor.py`). A new row u of W_q, on D, changes S by u u^T and A_q y_q by u (u^T y_q's
residual); both are returned to whoever keeps a sum over Theta up to date. Everything equals the
definition up to rounding. A step took 10 ms; padded batches of all groups took 36.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scope_torch.model.data import Added, Data, wider
from scope_torch.model.factor import Array, QueryGroup, times

UPDATES_KEPT = 16


class LowRankUpdate(NamedTuple):
    """m new rows of factors: S grows by u^T diag(weight) u, T_zeta by total_zeta u.

    Args:
        u: The rows, on D: `m x n`.
        weight: For how many queries each was added: `m`.
        total: Of cost and constraints: `(1 + K) x m`.
    """

    u: Array
    weight: Array
    total: Array


class UpdateLog:
    """The last low-rank updates, numbered; a mark is the number of the next one.

    Args:
        num_outputs: 1 + K.
    """

    def __init__(self, num_outputs: int) -> None:
        self._num_outputs = num_outputs
        self._updates: list[LowRankUpdate] = []
        self._first = 0

    def append(self, update: LowRankUpdate) -> None:
        """Adds an update; of more than 32 the older half is forgotten."""
        self._updates.append(update)
        if len(self._updates) > 2 * UPDATES_KEPT:
            del self._updates[:UPDATES_KEPT]
            self._first += UPDATES_KEPT

    def forget(self) -> None:
        """S changed by more than rows: no mark given out before is known any more."""
        self._first += len(self._updates) + 1
        self._updates.clear()

    def since(self, mark: int, n: int) -> tuple[LowRankUpdate | None, int]:
        """All updates since `mark` as one on `n` configurations, None if unknown; the new mark."""
        now = self._first + len(self._updates)
        if mark < self._first:
            return None, now
        known = self._updates[mark - self._first :]
        if len(known) == 1:
            return known[0]._replace(u=_widened(known[0].u, n)), now
        u = np.concatenate([np.zeros((0, n)), *(_widened(one.u, n) for one in known)])
        weight = np.concatenate([np.zeros(0), *(one.weight for one in known)])
        none = np.zeros((self._num_outputs, 0))
        total = np.concatenate([none, *(one.total for one in known)], axis=1)
        return LowRankUpdate(u, weight, total), now


class Prediction(NamedTuple):
    """One configuration, as all groups see it.

    Args:
        theta: Its codes.
        k: Kernel with D: `n`.
        whitened: W_q k_q of every group.
    """

    theta: tuple[int, ...]
    k: Array
    whitened: list[Array]

    def variance(self) -> Array:
        """sigma_hat^2 = 1 - k_q^T A_q k_q of every group."""
        return np.array([1 - float(w.dot(w)) for w in self.whitened])


class _Move(NamedTuple):
    """A change of history, the same for all queries that make it.

    Args:
        group: Where they were.
        configs: What they observed, as sorted positions in D.
        is_new: Whether that is one configuration, new to them and observed once.
    """

    group: int
    configs: tuple[int, ...]
    is_new: bool


class Factors:
    """Factors of all queries.

    The factorisations are many and small, so they are numpy's, on the CPU and in one thread: the
    same with any number of threads and on any device.

    Args:
        num_queries: Q.
        lam: lambda.
        num_constraints: K.

    Attributes:
        groups: One factor for each history.
        group_of: The group of every query.
        solved: A_q y_q: `(1 + K) x Q x room`.
        total: Its sum over queries: `(1 + K) x room`.
        log: What S and T changed by.
    """

    def __init__(self, num_queries: int, lam: float, num_constraints: int = 1) -> None:
        self._lam = lam
        self.groups = [QueryGroup.of_none()]
        self.group_of = [0] * num_queries
        self.solved: Array = np.zeros((1 + num_constraints, num_queries, 0))
        self.total: Array = np.zeros((1 + num_constraints, 0))
        self.log = UpdateLog(1 + num_constraints)

    def at(self, theta: tuple[int, ...], data: Data) -> Prediction:
        """One configuration, as all groups see it."""
        k = data.kernel_with(theta)
        return Prediction(theta, k, [group.whitened(k) for group in self.groups])

    def update(self, data: Data, added: Added, last: Prediction | None) -> None:
        """Brings all factors up to date.

        Args:
            data: With the new observations.
            added: The new observations.
            last: Made by `at` since the last update, if anything was: what was asked for is likely
                to be what was observed.
        """
        more = (0, data.room - self.total.shape[1])
        if more[1]:
            self.solved = wider(self.solved, data.room, data.is_asked)
            self.total = np.pad(self.total, ((0, 0), more))
        moves: dict[_Move, list[int]] = {}
        for q, configs in added.configs.items():
            is_new = len(configs) == 1 and q not in added.repeated
            move = _Move(self.group_of[q], tuple(sorted(configs)), is_new)
            moves.setdefault(move, []).append(q)
        self._move(moves, data, last)

    def sum_of_inverses(self, n: int) -> Array:
        """S = sum_q P_q^T A_q P_q on D, made anew: `n x n`."""
        matrix = np.zeros((n, n))
        for position, num_queries in Counter(self.group_of).items():
            group = self.groups[position]
            W = torch.from_numpy(group.W)  # numpy's threads would spin beside torch's
            matrix[group.ids[:, None], group.ids] += num_queries * (W.T @ W).numpy()
        return matrix

    def operations_of_sum(self) -> int:
        """About how many operations `sum_of_inverses` takes."""
        return sum(len(group.ids) ** 3 for group in self.groups)

    def _move(self, moves: dict[_Move, list[int]], data: Data, last: Prediction | None) -> None:
        """Puts queries into the groups of their new histories."""
        self.group_of = list(self.group_of)  # somebody may have the old one
        left = Counter(self.group_of)
        bordered = [queries for move, queries in moves.items() if move.is_new]
        u = np.zeros((len(bordered), data.n))
        rows, added = iter(u), list[int]()
        for move, queries in moves.items():
            if move.is_new:
                group = self._bordered(move.group, move.configs[0], data, last)
                next(rows)[group.ids] = group.W[-1]
                added.append(move.configs[0])
            else:
                group = self._anew(np.array(queries), data)
            left[move.group] -= len(queries)
            if left[move.group] == 0:
                self.groups[move.group] = group
                continue
            for q in queries:
                self.group_of[q] = len(self.groups)
            self.groups.append(group)
        if bordered:
            self._solve_bordered(bordered, added, u, data)

    def _bordered(
        self, position: int, config: int, data: Data, last: Prediction | None
    ) -> QueryGroup:
        """A group with one more configuration."""
        group = self.groups[position]
        if last is not None and data.id_of(last.theta) == config:
            whitened = last.whitened[position]
        else:
            whitened = group.whitened(data.gram[config])
        return group.extended(config, whitened, self._lam)

    def _solve_bordered(
        self, bordered: list[list[int]], configs: list[int], u: Array, data: Data
    ) -> None:
        """Changes A_q y_q by the new row times its product with the residuals.

        Args:
            bordered: The queries of each row.
            configs: What they observed.
            u: The rows, on D.
            data: With the new observations.
        """
        n = data.n
        number = np.array([len(queries) for queries in bordered])
        which = np.repeat(np.arange(len(number)), number)
        queries = np.array(list(chain.from_iterable(bordered)))
        config = np.array(configs)[which]
        solved = self.solved[:, queries, :n]
        predicted = times(solved, data.gram[config, :n])
        scaled = u[which, config] * (data.sums[:, queries, config] - predicted)
        solved += scaled[..., None] * u[which]
        self.solved[:, queries, :n] = solved
        total = np.add.reduceat(scaled, number.cumsum() - number, axis=1)
        self.total[:, :n] += np.einsum("zk,kn->zn", total, u)
        self.log.append(LowRankUpdate(u, number.astype(float), total))

    def _anew(self, queries: NDArray[np.int64], data: Data) -> QueryGroup:
        """The group of queries with equal observed configurations and counts, factorised anew."""
        count = data.count[queries[0]]
        (ids,) = count.nonzero()
        group = QueryGroup.of(data.gram, ids, count[ids], self._lam)
        at = queries[:, None], ids
        whitened = np.einsum("zqi,ji->zqj", data.sums[:, *at] / data.count[at], group.W)
        solved = np.einsum("zqj,ji->zqi", whitened, group.W)
        self.total[:, ids] += (solved - self.solved[:, *at]).sum(1)
        self.solved[:, *at] = solved
        self.log.forget()
        return group


def _widened(rows: Array, n: int) -> Array:
    """`m x n`, with zeros where there were fewer columns."""
    return np.pad(rows, ((0, 0), (0, n - rows.shape[1]))) if rows.shape[1] < n else rows
