"""Q exact Gaussian processes, one per query, and their aggregate over queries."""

from __future__ import annotations

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


class _Groups(NamedTuple):
    """Queries with equal observed configurations and repeat counts share a factorisation.

    The G groups are padded to the longest, J configurations: padded entries of `ids` are n, those
    of `inverse` zero.
    """

    of_query: Tensor  # `num_queries`: the group of each query
    size: Tensor  # `G`: number of queries
    ids: Tensor  # `G x J`: observed configurations, as positions in D
    inverse: Tensor  # `G x J x J`: (K_q + lam C_q^-1)^-1


_Key = tuple[tuple[int, ...], tuple[int, ...]]


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
        self._count = torch.zeros(num_queries, 0, dtype=torch.int64)
        self._sum = torch.zeros(2, num_queries, 0, dtype=torch.float64)
        self._codes = torch.zeros(0, space.num_modules, dtype=torch.int64, device=self.device)
        self._gram = torch.zeros(0, 0, dtype=torch.float64, device=self.device)
        self._mean = torch.zeros(2, num_queries, 0, dtype=torch.float64, device=self.device)
        self._keys: list[_Key] = [((), ())] * num_queries
        self._inverses: dict[_Key, Tensor] = {}
        self._groups = self._regroup()

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

    def aggregate(self) -> AggregatePosterior:
        """The collapsed form of mu_bar and sigma_bar (eq:scope-mean-variance)."""
        self._update()
        _, size, ids, inverse = self._groups
        n = len(self._codes)
        matrix = torch.zeros(n + 1, n + 1, dtype=torch.float64, device=self.device)
        at = (ids[:, :, None].expand_as(inverse), ids[:, None, :].expand_as(inverse))
        matrix.index_put_(at, size[:, None, None] * inverse, accumulate=True)
        weights = torch.zeros(2, n + 1, dtype=torch.float64, device=self.device)
        weights.index_add_(1, ids.flatten(), self._solved_sum().flatten(1))
        q = self.num_queries
        return AggregatePosterior(self._codes, weights[:, :n] / q, matrix[:n, :n] / q**2, 1 / q)

    def at(self, theta: Sequence[int]) -> QueryPosterior:
        """mu_hat_q and sigma_hat_q^2 of every query at one configuration (equ:gp-regression)."""
        self._update()
        of_query, _, ids, inverse = self._groups
        k_all = self._kernel(torch.tensor([theta], device=self.device), self._codes)[0]
        k = pad(k_all, (0, 1))[ids]
        solved = (inverse @ k.unsqueeze(-1)).squeeze(-1)
        by_config = torch.zeros(len(ids), len(k_all) + 1, dtype=torch.float64, device=self.device)
        by_config.scatter_add_(1, ids, solved)
        mean = (self._mean * by_config[of_query, :-1]).sum(-1).cpu()
        variance = (1 - (k * solved).sum(-1))[of_query].cpu()
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
        of_query, size, ids, inverse = self._groups
        n = len(self._codes)
        observed = ids < n
        diagonal = torch.where(observed, inverse.diagonal(dim1=1, dim2=2), 1.0)
        residual = torch.where(observed, self._solved_sum() / diagonal, 0.0)
        member = torch.zeros(len(size), dtype=torch.int64)
        member[of_query.cpu()] = torch.arange(self.num_queries)
        count = pad(self._count, (0, 1))[member].to(self.device).gather(1, ids).clamp_min(1)
        variance = torch.where(observed, 1 / diagonal - self.lam / count, 0.0)
        per_group = torch.stack([*residual, size[:, None] * variance, size[:, None] * observed])
        total = torch.zeros(4, n + 1, dtype=torch.float64, device=self.device)
        total.index_add_(1, ids.flatten(), per_group.flatten(1))
        residual_c, residual_g, variance, num_queries = total[:, :n].cpu()
        enough = num_queries >= min_queries
        mean_residual = torch.stack([residual_c, residual_g])[:, enough] / num_queries[enough]
        return mean_residual.abs() / (variance[enough] / num_queries[enough]).sqrt()

    def _solved_sum(self) -> Tensor:
        """(K_q + lam C_q^-1)^-1 y_q summed over the queries of each group: `2 x G x J`."""
        of_query, size, ids, inverse = self._groups
        y = torch.zeros(2, len(size), len(self._codes), dtype=torch.float64, device=self.device)
        y.index_add_(1, of_query, self._mean)
        y = pad(y, (0, 1)).gather(2, ids.expand(2, *ids.shape))
        return (inverse @ y.unsqueeze(-1)).squeeze(-1)

    def as_botorch_model(self) -> AggregateModel:
        """The aggregate as a BoTorch model with outputs c (USD) and g (quality)."""
        from scope_torch.botorch_model import AggregateModel  # importing botorch takes seconds

        return AggregateModel(self.aggregate(), self.kernel)

    def _kernel(self, x1: Tensor, x2: Tensor) -> Tensor:
        return self.kernel(x1.double(), x2.double()).to_dense()

    def _update(self) -> None:
        """Brings counts, means, Gram matrix and factorisations up to the last observation."""
        if not self._pending:
            return
        query, config, y_c, y_g = zip(*self._pending, strict=True)
        self._pending.clear()
        self._grow()
        at = (torch.tensor(query), torch.tensor(config))
        self._count.index_put_(at, torch.ones(len(query), dtype=torch.int64), accumulate=True)
        for row, y in zip(self._sum, (y_c, y_g), strict=True):
            row.index_put_(at, torch.tensor(y, dtype=torch.float64), accumulate=True)
        self._mean = (self._sum / self._count.clamp_min(1)).to(self.device)
        for q in set(query):
            ids = self._count[q].nonzero().squeeze(-1)
            self._keys[q] = (tuple(ids.tolist()), tuple(self._count[q, ids].tolist()))
        self._groups = self._regroup()

    def _grow(self) -> None:
        new = list(self._id_of)[len(self._codes) :]
        if not new:
            return
        self._count = pad(self._count, (0, len(new)))
        self._sum = pad(self._sum, (0, len(new)))
        self._codes = torch.cat([self._codes, torch.tensor(new, device=self.device)])
        cross = self._kernel(self._codes, self._codes[-len(new) :])
        old = len(self._gram)
        self._gram = torch.cat([torch.cat([self._gram, cross[:old].T]), cross], dim=1)

    def _regroup(self) -> _Groups:
        group_of = {key: group for group, key in enumerate(dict.fromkeys(self._keys))}
        self._factorise([key for key in group_of if key not in self._inverses])
        self._inverses = {key: self._inverses[key] for key in group_of}
        of_query = torch.tensor([group_of[key] for key in self._keys], device=self.device)
        longest = max(len(ids) for ids, _ in group_of)
        n = len(self._codes)
        ids = torch.tensor([[*ids, *[n] * (longest - len(ids))] for ids, _ in group_of])
        inverse = torch.zeros(
            len(group_of), longest, longest, dtype=torch.float64, device=self.device
        )
        for padded, exact in zip(inverse, self._inverses.values(), strict=True):
            padded[: len(exact), : len(exact)] = exact
        size = of_query.bincount(minlength=len(group_of))
        return _Groups(of_query, size, ids.long().to(self.device), inverse)

    def _factorise(self, keys: list[_Key]) -> None:
        """Inverts K_q + lam C_q^-1 of new groups in one batch, padded with unit diagonal."""
        if not keys:
            return
        longest = max(len(ids) for ids, _ in keys)
        padded = torch.eye(longest, dtype=torch.float64, device=self.device).repeat(len(keys), 1, 1)
        for matrix, (ids, counts) in zip(padded, keys, strict=True):
            j, index = len(ids), torch.tensor(ids, dtype=torch.int64, device=self.device)
            noise = self.lam / torch.tensor(counts, dtype=torch.float64, device=self.device)
            matrix[:j, :j] = self._gram[index[:, None], index] + noise.diag()
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(padded))
        for key, matrix in zip(keys, inverse, strict=True):
            j = len(key[0])
            self._inverses[key] = matrix[:j, :j].clone()
