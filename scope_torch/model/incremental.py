"""Q exact Gaussian processes, one per query, and their aggregate over queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from scope_torch.errors import InputError
from scope_torch.model.aggregate import AggregatePosterior, GroupPosterior, QueryPosterior
from scope_torch.model.factor import Array, QueryGroup, times
from scope_torch.model.kernels import kernel_matrix
from scope_torch.space import ConfigSpace

if TYPE_CHECKING:
    from scope_torch.model.botorch import AggregateModel

MIN_LAM = 1e-9
_COLUMNS_KEPT = 16  # updates


class Columns(NamedTuple):
    """What m more rows of the W_q do to S = sum_q P_q^T W_q^T W_q P_q: add u^T diag(weight) u.

    T_zeta = sum_q P_q^T W_q^T W_q y_q grows by total_zeta u.
    """

    u: Array  # the rows, on D: `m x n`
    weight: Array  # for how many queries each was added: `m`
    total: Array  # of cost and constraint: `2 x m`


# A group, what its queries observed as positions in D, and whether that is one configuration that
# is new to them, observed once.
_Move = tuple[int, tuple[int, ...], bool]


class _At(NamedTuple):
    """What the groups say of one configuration."""

    theta: tuple[int, ...]
    k: Array  # kernel with D: `n`
    halves: list[Array]  # W_q k_q of every group

    def variance(self) -> Array:
        """sigma_hat^2 of every group."""
        return np.array([1 - float(half.dot(half)) for half in self.halves])


class QuerySurrogate:
    """Zero-mean GP regression of l_zeta(., q) for every query q (def:gp, eq:scope-mean-variance).

    Repeats of a (theta, query) pair are merged exactly: n observations with mean y act as one with
    noise lam / n. K_q is then a Gram matrix of distinct configurations, well conditioned for
    Hamming kernels, and is factorised without jitter. sigma_hat depends on where was observed, not
    on what, so cost and constraint share it, and so do all queries with the same observed set.

    The factorisations are many and small, so they are numpy's, on the CPU and in one thread, the
    same with any number of threads and any device; what is as large as D x D is torch's.

    Args:
        space: Theta.
        kernel: k with k(theta, theta) = 1, float64 on codes.
        num_queries: Q.
        lam: The regularisation lambda, at least 1e-9 (the paper's floor).
        device: Where `aggregate` and the other tensors are; None for the CPU. Always float64.

    Raises:
        InputError: If `lam` is below 1e-9.
    """

    def __init__(
        self,
        space: ConfigSpace,
        kernel: Kernel,
        num_queries: int,
        lam: float,
        device: torch.device | str | None = None,
    ) -> None:
        if not lam >= MIN_LAM:
            raise InputError(f"lam={lam} must be at least {MIN_LAM}, as in the paper")
        self.space = space
        self.kernel = kernel
        self.num_queries = num_queries
        self.lam = lam
        self.device = torch.device(device) if device is not None else torch.device("cpu")
        self._id_of: dict[tuple[int, ...], int] = {}
        self._pending: list[tuple[int, int, float, float]] = []
        self._codes = torch.zeros(0, space.num_modules, dtype=torch.int64, device=self.device)
        # Columns, and rows of the Gram matrix, are configurations; there are more than so far.
        self._gram = np.zeros((0, 0))
        self._count = np.zeros((num_queries, 0), dtype=np.int64)
        self._sum = np.zeros((2, num_queries, 0))
        self._solved = np.zeros((2, num_queries, 0))
        self._total = np.zeros((2, 0))  # of _solved
        self._groups = [QueryGroup.of_none()]
        self._group_of = [0] * num_queries
        self._matrix = torch.zeros(0, 0, dtype=torch.float64, device=self.device)
        self._columns: list[Columns] = []  # the last ones, numbered from _first on
        self._first = 0
        self._mark = 0  # what _matrix knows
        self._last_at: _At | None = None  # what was asked for is what is observed next

    def observe(self, theta: tuple[int, ...], query: int, y_c: float, y_g: float) -> None:
        """Adds one observation.

        Args:
            theta: Codes of the configuration.
            query: Index of the query.
            y_c: Observed cost in USD.
            y_g: Observed constraint value s_0 - y_s, in units of quality.
        """
        config = self._id_of.setdefault(theta, len(self._id_of))
        self._pending.append((query, config, y_c, y_g))

    def num_observed(self, theta: tuple[int, ...]) -> int:
        """Number of queries on which `theta` was observed at least once."""
        self._update()
        config = self._id_of.get(theta)
        return 0 if config is None else int((self._count[:, config] > 0).sum())

    def num_observations(self) -> Tensor:
        """J_{q,t}, repeats counted, of every query: `num_queries` (int64, CPU)."""
        self._update()
        return torch.from_numpy(self._count.sum(-1))

    def information(self) -> list[float]:
        """I_q = 1/2 log det(I + K_q / lam) of every query, in nats (lem:kernel-self-normalized)."""
        self._update()
        return [self._groups[group].information for group in self._group_of]

    def observed(self) -> Tensor:
        """D, the distinct observed configurations: `n x num_modules` codes."""
        self._update()
        return self._codes

    def gram(self) -> Tensor:
        """K_D: `n x n`."""
        self._update()
        n = len(self._codes)
        return self._to_device(self._gram[:n, :n])

    def weights(self) -> Tensor:
        """w_c (USD) and w_g (quality) of `AggregatePosterior`: `2 x n`."""
        self._update()
        return self._to_device(self._total[:, : len(self._codes)] / self.num_queries)

    def aggregate(self) -> AggregatePosterior:
        """The collapsed form of mu_bar and sigma_bar (eq:scope-mean-variance)."""
        matrix = self._follow() / self.num_queries**2
        return AggregatePosterior(self._codes, self.weights(), matrix, 1 / self.num_queries)

    def columns_since(self, mark: int) -> tuple[Columns | None, int]:
        """What changed the sum of inverses since `mark`; None: more than columns.

        Args:
            mark: What this returned before; 0 for the sum of none.

        Returns:
            The columns, and the mark of now.
        """
        self._update()
        n, now = len(self._codes), self._first + len(self._columns)
        if mark < self._first:
            return None, now
        known = self._columns[mark - self._first :]
        if len(known) == 1:
            return known[0]._replace(u=_widened(known[0].u, n)), now
        u = np.concatenate([np.zeros((0, n)), *(_widened(one.u, n) for one in known)])
        weight = np.concatenate([np.zeros(0), *(one.weight for one in known)])
        total = np.concatenate([np.zeros((2, 0)), *(one.total for one in known)], axis=1)
        return Columns(u, weight, total), now

    def sum_of_inverses(self) -> Tensor:
        """S = sum_q P_q^T (K_q + lam C_q^-1)^-1 P_q on D, made anew: `n x n`."""
        self._update()
        n = len(self._codes)
        matrix = np.zeros((n, n))
        for position, num_queries in Counter(self._group_of).items():
            group = self._groups[position]
            W = torch.from_numpy(group.W)  # numpy's threads would spin beside torch's
            matrix[group.ids[:, None], group.ids] += num_queries * (W.T @ W).numpy()
        return self._to_device(matrix)

    def sufficient_statistics(self) -> tuple[Tensor, Tensor, int]:
        """What the marginal likelihood depends on; with A_q = (K_q + lam C_q^-1)^-1, y_q the means.

        Returns:
            sum_q P_q^T A_q y_q of cost and constraint, `2 x n`; sum_q y_q^T A_q y_q of both (2);
            the number of (theta, query) pairs observed.
        """
        self._update()
        n = len(self._codes)
        count = self._count[:, :n]
        mean = self._sum[..., :n] / count.clip(min=1)
        square = (mean * self._solved[..., :n]).sum((1, 2))
        total = self._to_device(self._total[:, :n].copy())
        return total, self._to_device(square), int((count > 0).sum())

    def by_group(self, theta: Sequence[int]) -> GroupPosterior:
        """The posterior at one configuration, with the coefficients that give it."""
        at = self._at(theta)
        rows = np.zeros((len(self._groups), len(at.k)))
        for row, group, half in zip(rows, self._groups, at.halves, strict=True):
            row[group.ids] = group.solved(half)
        parts = at.k, rows, at.variance(), self._predicted(at.k)
        k, coefficients, variance, mean = (self._to_device(part) for part in parts)
        return GroupPosterior(k, coefficients, variance, mean, self._group_of)

    def at(self, theta: Sequence[int]) -> QueryPosterior:
        """mu_hat_q and sigma_hat_q^2 of every query at one configuration (equ:gp-regression)."""
        at = self._at(theta)
        mean_c, mean_g = torch.from_numpy(self._predicted(at.k))
        variance = torch.from_numpy(at.variance()[self._group_of])
        return QueryPosterior(mean_c, mean_g, variance)

    def leave_one_out(self, min_queries: int = 6) -> Tensor:
        """How far off the surrogate without a configuration is at that configuration.

        For each configuration with at least `min_queries` observed queries: |mean residual| over
        the root mean square of the predicted sigma, both over its observed queries, of the
        surrogate that has not seen it. Closed form: with A the inverse of K_q + lam C_q^-1, the
        residual is (A y)_d / A_dd and the latent variance 1 / A_dd - lam / n_d.

        Returns:
            `2 x m` ratios (USD; units of quality) of the m configurations, float64, CPU.
        """
        self._update()
        n = len(self._codes)
        count = self._count[:, :n]
        diagonal = np.ones(count.shape)
        of_group = [np.square(group.W).sum(0) for group in self._groups]
        for q, group in enumerate(self._group_of):
            diagonal[q, self._groups[group].ids] = of_group[group]
        residual = self._solved[..., :n] / diagonal
        observed = count > 0
        latent = 1 / diagonal - self.lam / count.clip(min=1)
        num_queries = observed.sum(0)
        enough = num_queries >= min_queries
        mean_residual = residual.sum(1)[:, enough] / num_queries[enough]
        mean_square = (latent * observed).sum(0)[enough] / num_queries[enough]
        return torch.from_numpy(np.abs(mean_residual) / np.sqrt(mean_square))

    def as_botorch_model(self) -> AggregateModel:
        """The aggregate as a BoTorch model with outputs c (USD) and g (quality)."""
        from scope_torch.model.botorch import AggregateModel  # importing botorch takes seconds

        return AggregateModel(self.aggregate(), self.kernel)

    def _to_device(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _at(self, theta: Sequence[int]) -> _At:
        self._update()
        n, config = len(self._codes), self._id_of.get(tuple(theta))
        if config is not None:
            k = self._gram[config, :n]
        else:
            at = torch.tensor([theta], device=self.device)
            k = kernel_matrix(self.kernel, at, self._codes)[0].cpu().numpy()
        halves = [group.half(k) for group in self._groups]
        self._last_at = _At(tuple(theta), k, halves)
        return self._last_at

    def _predicted(self, k: Array) -> Array:
        """mu_hat where the kernel with D is `k`: `2 x num_queries`."""
        return times(self._solved[..., : len(k)], k)

    def _update(self) -> None:
        """Brings everything up to the last observation."""
        if not self._pending:
            return
        query, config, y_c, y_g = zip(*self._pending, strict=True)
        self._pending.clear()
        self._grow()
        at = (np.array(query), np.array(config))
        repeated = set(at[0][self._count[at] > 0].tolist())
        np.add.at(self._count, at, 1)
        for row, y in zip(self._sum, (y_c, y_g), strict=True):
            np.add.at(row, at, y)
        added: dict[int, list[int]] = {}
        for q, c in zip(query, config, strict=True):
            added.setdefault(q, []).append(c)
        moves: dict[_Move, list[int]] = {}
        for q, configs in added.items():
            extends = len(configs) == 1 and q not in repeated
            move = (self._group_of[q], tuple(sorted(configs)), extends)
            moves.setdefault(move, []).append(q)
        self._move(moves)
        self._last_at = None

    def _move(self, moves: dict[_Move, list[int]]) -> None:
        """Puts queries into the groups of their new histories."""
        self._group_of = list(self._group_of)  # a GroupPosterior may have the old one
        left = Counter(self._group_of)
        extended = [queries for (_, _, extends), queries in moves.items() if extends]
        u = np.zeros((len(extended), len(self._codes)))
        rows, added = iter(u), list[int]()
        for (old, configs, extends), queries in moves.items():
            if extends:
                group = self._extended(old, configs[0])
                next(rows)[group.ids] = group.W[-1]
                added.append(configs[0])
            else:
                group = self._solve_anew(np.array(queries))
            left[old] -= len(queries)
            if left[old] == 0:
                self._groups[old] = group
                continue
            for q in queries:
                self._group_of[q] = len(self._groups)
            self._groups.append(group)
        if extended:
            self._solve_extended(extended, added, u)

    def _extended(self, old: int, config: int) -> QueryGroup:
        """A group with one more configuration; if that was asked for last, its half is known."""
        group, at = self._groups[old], self._last_at
        if at is not None and self._id_of.get(at.theta) == config:
            half = at.halves[old]
        else:
            half = group.half(self._gram[config])
        return group.extended(config, half, self.lam)

    def _solve_extended(self, extended: list[list[int]], configs: list[int], u: Array) -> None:
        """Changes A_q y_q by what the rows that were added make of the residuals.

        Args:
            extended: The queries of each row.
            configs: What they observed.
            u: The rows, on D.
        """
        n = len(self._codes)
        number = np.array([len(queries) for queries in extended])
        which = np.repeat(np.arange(len(number)), number)
        queries = np.array(list(chain.from_iterable(extended)))
        config = np.array(configs)[which]
        solved = self._solved[:, queries, :n]
        predicted = times(solved, self._gram[config, :n])
        scaled = u[which, config] * (self._sum[:, queries, config] - predicted)
        solved += scaled[..., None] * u[which]
        self._solved[:, queries, :n] = solved
        total = np.add.reduceat(scaled, number.cumsum() - number, axis=1)
        self._total[:, :n] += np.einsum("zk,kn->zn", total, u)
        self._columns.append(Columns(u, number.astype(float), total))
        if len(self._columns) > 2 * _COLUMNS_KEPT:
            del self._columns[:_COLUMNS_KEPT]
            self._first += _COLUMNS_KEPT

    def _solve_anew(self, queries: NDArray[np.int64]) -> QueryGroup:
        """The group of queries with equal observed configurations and counts."""
        count = self._count[queries[0]]
        (ids,) = count.nonzero()
        group = QueryGroup.of(self._gram, ids, count[ids], self.lam)
        at = queries[:, None], ids
        half = np.einsum("zqi,ji->zqj", self._sum[:, *at] / self._count[at], group.W)
        solved = np.einsum("zqj,ji->zqi", half, group.W)
        self._total[:, ids] += (solved - self._solved[:, *at]).sum(1)
        self._solved[:, *at] = solved
        self._first += len(self._columns) + 1  # no mark is known any more
        self._columns.clear()
        return group

    def _follow(self) -> Tensor:
        """The sum of inverses, kept up to date by whatever is less work, columns or groups."""
        n = len(self.observed())
        columns, self._mark = self.columns_since(self._mark)
        operations = sum(len(group.ids) ** 3 for group in self._groups)
        if columns is None or len(columns.weight) * n**2 > operations:
            self._matrix = self.sum_of_inverses()
            return self._matrix
        self._matrix = pad(self._matrix, (0, n - len(self._matrix)) * 2)
        u, weight = self._to_device(columns.u), self._to_device(columns.weight)
        return self._matrix.addmm_(u.T * weight, u)

    def _grow(self) -> None:
        old = len(self._codes)
        new = list(islice(self._id_of, old, None))
        if not new:
            return
        self._codes = torch.cat([self._codes, torch.tensor(new, device=self.device)])
        n = len(self._codes)
        if n > self._count.shape[1]:
            more = (0, max(n, 2 * self._count.shape[1]) - self._count.shape[1])
            self._count = np.pad(self._count, ((0, 0), more))
            self._sum, self._solved = (
                np.pad(part, ((0, 0), (0, 0), more)) for part in (self._sum, self._solved)
            )
            self._total = np.pad(self._total, ((0, 0), more))
            self._gram = np.pad(self._gram, (more, more))
        if self._last_at is not None and new == [self._last_at.theta]:
            rows = np.append(self._last_at.k, 1.0)[None]
        else:
            rows = kernel_matrix(self.kernel, self._codes[old:], self._codes).cpu().numpy()
        self._gram[old:n, :n] = rows
        self._gram[:n, old:n] = rows.T


def _widened(rows: Array, n: int) -> Array:
    """`m x n`, with zeros where there were fewer columns."""
    return np.pad(rows, ((0, 0), (0, n - rows.shape[1]))) if rows.shape[1] < n else rows
