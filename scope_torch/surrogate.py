"""Q exact Gaussian processes, one per query, and their aggregate over queries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.nn.functional import pad

from scope_torch.errors import InputError
from scope_torch.space import ConfigSpace

if TYPE_CHECKING:
    from scope_torch.botorch_model import AggregateModel

MIN_LAM = 1e-9
_MAX_COLUMNS = 4096


@dataclass(frozen=True)
class AggregatePosterior:
    """The average over queries of the surrogates, written on the observed configurations D.

    mean_zeta(theta) = k_D(theta)^T w_zeta and
    cov(theta, theta') = constant k(theta, theta') - k_D(theta)^T V k_D(theta').
    Any surrogate of this form can be evaluated on the grid.

    Args:
        codes: `n x num_modules` distinct configurations D (int64).
        weights: `2 x n`; row 0 is w_c in USD, row 1 is w_g in units of quality.
        matrix: `n x n` symmetric V.
        constant: Prior variance of the average: 1/Q for independent queries.
    """

    codes: Tensor
    weights: Tensor
    matrix: Tensor
    constant: float


class QueryPosterior(NamedTuple):
    """Posterior of all queries at one configuration: `num_queries` tensors, float64, CPU."""

    mean_c: Tensor
    mean_g: Tensor
    variance: Tensor


class GroupPosterior(NamedTuple):
    """Posterior at one configuration of the groups of queries with equal histories.

    Args:
        k: `n` values of the kernel with D.
        coefficients: `groups x n`; P_q^T (K_q + lam C_q^-1)^-1 k_q(theta).
        variance: `groups` values of sigma_hat^2.
        mean: `2 x num_queries` values of mu_hat.
        group_of: The group of every query.
    """

    k: Tensor
    coefficients: Tensor
    variance: Tensor
    mean: Tensor
    group_of: list[int]


class _Group(NamedTuple):
    """A factorisation, shared by the queries with equal histories of observed configurations."""

    ids: Tensor  # `J`: observed configurations, as positions in D
    inverse: Tensor  # `J x J`: (K_q + lam C_q^-1)^-1
    information: float  # 1/2 log det(I + K / lam) of all its observations, repeats counted


class _Column(NamedTuple):
    """A rank-one change weight u u^T of the sum of all inverses."""

    ids: Tensor  # `J`: where u is not zero
    u: Tensor  # `J`
    weight: float


class QuerySurrogate:
    """Zero-mean GP regression of l_zeta(., q) for every query q (def:gp, eq:scope-mean-variance).

    Repeats of a (theta, query) pair are merged exactly: n observations with mean y act as one with
    noise lam / n. K_q is then a Gram matrix of distinct configurations, well conditioned for
    Hamming kernels, and is factorised without jitter. sigma_hat depends on where was observed, not
    on what, so cost and constraint share it, and so do all queries with the same observed set.

    Args:
        space: Theta.
        kernel: k with k(theta, theta) = 1, float64 on codes.
        num_queries: Q.
        lam: The regularisation lambda, at least 1e-9 (the paper's floor).
        device: Where the algebra runs. Always float64.

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
        # Columns are configurations; there are more of them than configurations so far.
        self._count = torch.zeros(num_queries, 0, dtype=torch.int64)
        self._sum = torch.zeros(2, num_queries, 0, dtype=torch.float64)
        self._solved = torch.zeros(2, num_queries, 0, dtype=torch.float64, device=self.device)
        self._total = torch.zeros(2, 0, dtype=torch.float64, device=self.device)  # of _solved
        self._groups = [self._factorise(torch.zeros(0, dtype=torch.int64), self._count[:1])]
        self._group_of = [0] * num_queries
        self._matrix = torch.zeros(0, 0, dtype=torch.float64, device=self.device)
        self._since_matrix: list[_Column] | None = []  # None: the sum must be made anew

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
        return self._count.sum(-1)

    def information(self) -> list[float]:
        """I_q = 1/2 log det(I + K_q / lam) of every query, in nats (lem:kernel-self-normalized)."""
        self._update()
        return [self._groups[group].information for group in self._group_of]

    def observed(self) -> Tensor:
        """D, the distinct observed configurations: `n x num_modules` codes."""
        self._update()
        return self._codes

    def weights(self) -> Tensor:
        """w_c (USD) and w_g (quality) of `AggregatePosterior`: `2 x n`."""
        self._update()
        return self._total[:, : len(self._codes)] / self.num_queries

    def aggregate(self) -> AggregatePosterior:
        """The collapsed form of mu_bar and sigma_bar (eq:scope-mean-variance)."""
        matrix = self.sum_of_inverses() / self.num_queries**2
        return AggregatePosterior(self._codes, self.weights(), matrix, 1 / self.num_queries)

    def sum_of_inverses(self) -> Tensor:
        """sum_q P_q^T (K_q + lam C_q^-1)^-1 P_q on D: `n x n`, written over by an update."""
        self._update()
        self._sum_inverses()
        return self._matrix

    def sufficient_statistics(self) -> tuple[Tensor, Tensor, int]:
        """What the marginal likelihood depends on; with A_q = (K_q + lam C_q^-1)^-1, y_q the means.

        Returns:
            sum_q P_q^T A_q y_q of cost and constraint, `2 x n`; sum_q y_q^T A_q y_q of both (2);
            the number of (theta, query) pairs observed.
        """
        self._update()
        n = len(self._codes)
        count = self._count[:, :n]
        mean = (self._sum[..., :n] / count.clamp_min(1)).to(self.device)
        square = (mean * self._solved[..., :n]).sum((1, 2))
        return self._total[:, :n], square, int((count > 0).sum())

    def by_group(self, theta: Sequence[int]) -> GroupPosterior:
        """The posterior at one configuration, with the coefficients that give it."""
        self._update()
        k = self._kernel(torch.tensor([theta], device=self.device), self._codes)[0]
        rows = k.new_zeros(len(self._groups), len(k))
        for row, (ids, inverse, _) in zip(rows, self._groups, strict=True):
            row[ids] = inverse @ k[ids]
        mean = self._solved[..., : len(k)] @ k
        return GroupPosterior(k, rows, 1 - rows @ k, mean, self._group_of)

    def at(self, theta: Sequence[int]) -> QueryPosterior:
        """mu_hat_q and sigma_hat_q^2 of every query at one configuration (equ:gp-regression)."""
        groups = self.by_group(theta)
        mean, variance = groups.mean.cpu(), groups.variance.cpu()[groups.group_of]
        return QueryPosterior(mean[0], mean[1], variance)

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
        diagonal = torch.ones(count.shape, dtype=torch.float64, device=self.device)
        for q, group in enumerate(self._group_of):
            ids, inverse, _ = self._groups[group]
            diagonal[q, ids] = inverse.diagonal()
        residual = (self._solved[..., :n] / diagonal).cpu()
        observed = count > 0
        latent = 1 / diagonal.cpu() - self.lam / count.clamp_min(1)
        num_queries = observed.sum(0)
        enough = num_queries >= min_queries
        mean_residual = residual.sum(1)[:, enough] / num_queries[enough]
        mean_square = (latent * observed).sum(0)[enough] / num_queries[enough]
        return mean_residual.abs() / mean_square.sqrt()

    def as_botorch_model(self) -> AggregateModel:
        """The aggregate as a BoTorch model with outputs c (USD) and g (quality)."""
        from scope_torch.botorch_model import AggregateModel  # importing botorch takes seconds

        return AggregateModel(self.aggregate(), self.kernel)

    def _kernel(self, x1: Tensor, x2: Tensor) -> Tensor:
        return self.kernel(x1.double(), x2.double()).to_dense()

    def _update(self) -> None:
        """Brings everything up to the last observation."""
        if not self._pending:
            return
        query, config, y_c, y_g = zip(*self._pending, strict=True)
        self._pending.clear()
        self._grow()
        at = (torch.tensor(query), torch.tensor(config))
        first_time = (self._count[at] == 0).tolist()
        self._count.index_put_(at, torch.ones(len(query), dtype=torch.int64), accumulate=True)
        for row, y in zip(self._sum, (y_c, y_g), strict=True):
            row.index_put_(at, torch.tensor(y, dtype=torch.float64), accumulate=True)
        added: dict[int, list[int]] = {}
        for q, c in zip(query, config, strict=True):
            added.setdefault(q, []).append(c)
        repeated = {q for q, first in zip(query, first_time, strict=True) if not first}
        moves: dict[tuple[int, tuple[int, ...], bool], list[int]] = {}
        for q, configs in added.items():
            extends = len(configs) == 1 and q not in repeated
            move = (self._group_of[q], tuple(sorted(configs)), extends)
            moves.setdefault(move, []).append(q)
        row_of = {c: self._kernel(self._codes[c : c + 1], self._codes)[0] for c in set(config)}
        for (old, configs, extends), queries in moves.items():
            if extends:
                self._extend(old, configs[0], row_of[configs[0]], torch.tensor(queries))
            else:
                self._solve_anew(torch.tensor(queries))
            for q in queries:
                self._group_of[q] = len(self._groups) - 1
        self._drop_unused_groups()

    def _extend(self, old: int, config: int, k: Tensor, queries: Tensor) -> None:
        """One more configuration, observed once, for queries of the group `old`.

        Bordering: with A the old inverse and u = (-A k, 1), the new one is A (padded by zeros)
        plus u u^T / (1 + lam - k^T A k).

        Args:
            old: Position of the group.
            config: The configuration, as a position in D.
            k: Its kernel with D.
            queries: Which queries observed it.
        """
        ids, inverse, information = self._groups[old]
        near = k[ids]
        u = torch.cat([-(inverse @ near), k.new_ones(1)])
        weight = 1 / (1 + self.lam + float(near @ u[:-1]))
        ids = torch.cat([ids, ids.new_tensor([config])])
        bordered = pad(inverse, (0, 1, 0, 1)).addr_(u, u, alpha=weight)
        information -= 0.5 * math.log(weight * self.lam)
        self._groups.append(_Group(ids, bordered, information))
        rows = queries.to(self.device)
        mean = (self._sum[:, queries, config]).to(self.device)
        residual = mean - self._solved[:, rows, : len(k)] @ k
        change = (weight * residual)[..., None] * u
        self._solved[:, rows[:, None], ids] += change
        self._total[:, ids] += change.sum(1)
        self._note(_Column(ids, u, len(queries) * weight))

    def _solve_anew(self, queries: Tensor) -> None:
        """A new group for queries with equal observed configurations and counts."""
        count = self._count[queries[0]]
        ids = count.nonzero().squeeze(-1)
        group = self._factorise(ids, count[None, ids])
        self._groups.append(group)
        at = queries[:, None], ids
        solved = (self._sum[:, *at] / self._count[at]).to(self.device) @ group.inverse
        rows = queries.to(self.device)[:, None]
        self._total[:, group.ids] += (solved - self._solved[:, rows, group.ids]).sum(1)
        self._solved[:, rows, group.ids] = solved
        self._since_matrix = None

    def _drop_unused_groups(self) -> None:
        used = sorted(set(self._group_of))
        position = {group: i for i, group in enumerate(used)}
        self._groups = [self._groups[group] for group in used]
        self._group_of = [position[group] for group in self._group_of]

    def _dense(self, columns: Sequence[_Column]) -> tuple[Tensor, Tensor]:
        """The vectors u as rows, `r x n`, and their `r` weights."""
        rows = torch.zeros(len(columns), len(self._codes), dtype=torch.float64, device=self.device)
        for row, (ids, u, _) in zip(rows, columns, strict=True):
            row[ids] = u
        weight = torch.tensor([c.weight for c in columns], dtype=torch.float64, device=self.device)
        return rows, weight

    def _note(self, column: _Column) -> None:
        """Keeps a change of the sum of inverses until the sum is needed."""
        if self._since_matrix is None or len(self._since_matrix) == _MAX_COLUMNS:
            self._since_matrix = None
        else:
            self._since_matrix.append(column)

    def _sum_inverses(self) -> None:
        """Brings sum_q P_q^T (K_q + lam C_q^-1)^-1 P_q up to date, by whatever is less work.

        Summing anew, done at least whenever more has changed than there is, also keeps rounding
        from accumulating.
        """
        n = len(self._codes)
        columns, self._since_matrix = self._since_matrix, []
        if columns is not None and len(columns) <= len(self._groups):
            self._matrix = pad(self._matrix, (0, n - len(self._matrix)) * 2)
            rows, weight = self._dense(columns)
            self._matrix.addmm_(rows.T * weight, rows)
            return
        self._matrix = torch.zeros(n, n, dtype=torch.float64, device=self.device)
        for group, num_queries in Counter(self._group_of).items():
            ids, inverse, _ = self._groups[group]
            self._matrix[ids[:, None], ids] += num_queries * inverse

    def _grow(self) -> None:
        new = list(self._id_of)[len(self._codes) :]
        if not new:
            return
        self._codes = torch.cat([self._codes, torch.tensor(new, device=self.device)])
        lacking = len(self._codes) - self._count.shape[1]
        if lacking > 0:
            more = (0, max(lacking, self._count.shape[1]))
            self._count, self._sum = pad(self._count, more), pad(self._sum, more)
            self._solved, self._total = pad(self._solved, more), pad(self._total, more)

    def _factorise(self, ids: Tensor, count: Tensor) -> _Group:
        """Args: `J` positions in D and `1 x J` numbers of observations there, on the CPU."""
        ids = ids.to(self.device)
        codes = self._codes[ids]
        noise = self.lam / count[0].double().to(self.device)
        L = torch.linalg.cholesky(self._kernel(codes, codes) + noise.diag())
        information = float(L.diagonal().log().sum() - 0.5 * noise.log().sum())
        return _Group(ids, torch.cholesky_inverse(L), information)
