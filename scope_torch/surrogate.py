"""Q exact Gaussian processes, one per query, and their aggregate over queries."""

from __future__ import annotations

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
_REFRESH = 64


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


class _Group(NamedTuple):
    """A factorisation, shared by the queries with equal observed configurations and counts."""

    ids: Tensor  # `J`: observed configurations, as positions in D
    inverse: Tensor  # `J x J`: (K_q + lam C_q^-1)^-1


_Key = tuple[tuple[int, ...], tuple[int, ...]]  # observed configurations, and repeat counts


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
        self._solved = torch.zeros_like(self._mean)
        self._matrix = torch.zeros_like(self._gram)
        self._keys: list[_Key] = [((), ())] * num_queries
        self._num_updates = 0
        self._groups: dict[_Key, _Group] = {((), ()): self._factorise(((), ()))}

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
        q = self.num_queries
        weights, matrix = self._solved.sum(1) / q, self._matrix / q**2
        return AggregatePosterior(self._codes, weights, matrix, 1 / q)

    def at(self, theta: Sequence[int]) -> QueryPosterior:
        """mu_hat_q and sigma_hat_q^2 of every query at one configuration (equ:gp-regression)."""
        self._update()
        k = self._kernel(torch.tensor([theta], device=self.device), self._codes)[0]
        mean = (self._solved @ k).cpu()
        reduction = {key: k[ids] @ inverse @ k[ids] for key, (ids, inverse) in self._groups.items()}
        variance = 1 - torch.stack([reduction[key] for key in self._keys]).cpu()
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
        diagonal = torch.ones(self._count.shape, dtype=torch.float64, device=self.device)
        for q, key in enumerate(self._keys):
            ids, inverse = self._groups[key]
            diagonal[q, ids] = inverse.diagonal()
        residual = (self._solved / diagonal).cpu()
        observed = self._count > 0
        latent = 1 / diagonal.cpu() - self.lam / self._count.clamp_min(1)
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
        change: Counter[_Key] = Counter()
        members: dict[_Key, list[int]] = {}
        for q in sorted(set(query)):
            ids = self._count[q].nonzero().squeeze(-1)
            key = (tuple(ids.tolist()), tuple(self._count[q, ids].tolist()))
            change.update({key: 1})
            change.subtract({self._keys[q]: 1})
            self._keys[q] = key
            members.setdefault(key, []).append(q)
        for key, queries in members.items():
            ids, inverse = self._groups.get(key) or self._factorise(key)
            rows = torch.tensor(queries, device=self.device)[:, None]
            self._solved[:, rows, ids] = self._mean[:, rows, ids] @ inverse
            self._groups[key] = _Group(ids, inverse)
        self._sum_inverses(change)
        self._groups = {key: self._groups[key] for key in dict.fromkeys(self._keys)}

    def _sum_inverses(self, change: Counter[_Key]) -> None:
        """Updates sum_q P_q^T (K_q + lam C_q^-1)^-1 P_q for the groups whose size changed.

        Now and then it is summed anew, so that rounding does not accumulate.
        """
        self._num_updates += 1
        if self._num_updates % _REFRESH == 0:
            self._matrix.zero_()
            change = Counter(self._keys)
        for key, difference in change.items():
            if difference:
                ids, inverse = self._groups[key]
                self._matrix[ids[:, None], ids] += difference * inverse

    def _grow(self) -> None:
        new = list(self._id_of)[len(self._codes) :]
        if not new:
            return
        self._count, self._sum, self._solved = (
            pad(tensor, (0, len(new))) for tensor in (self._count, self._sum, self._solved)
        )
        self._matrix = pad(self._matrix, (0, len(new), 0, len(new)))
        self._codes = torch.cat([self._codes, torch.tensor(new, device=self.device)])
        cross = self._kernel(self._codes, self._codes[-len(new) :])
        old = len(self._gram)
        self._gram = torch.cat([torch.cat([self._gram, cross[:old].T]), cross], dim=1)

    def _factorise(self, key: _Key) -> _Group:
        ids = torch.tensor(key[0], dtype=torch.int64, device=self.device)
        count = torch.tensor(key[1], dtype=torch.float64, device=self.device)
        matrix = self._gram[ids[:, None], ids] + (self.lam / count).diag()
        return _Group(ids, torch.cholesky_inverse(torch.linalg.cholesky(matrix)))
