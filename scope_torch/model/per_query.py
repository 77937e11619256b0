"""One exact Gaussian process for each query, and their average (def:gp, eq:scope-mean-variance).

| symbol | here | shape | unit |
| --- | --- | --- | --- |
| D, distinct configurations observed | `observed` | `n x N` | |
| K_D, K_q: kernel matrix of D, of the part that query q observed | `gram` | `n x n` | |
| C_q, how often; y_q, the mean observed there | | `J_q` | USD; quality |
| A_q = (K_q + lam C_q^-1)^-1 | `incremental.py` | `J_q x J_q` | |
| mu_hat_q = k_q^T A_q y_q (equ:gp-regression) | `at` | `Q` | USD; quality |
| sigma_hat_q^2 = 1 - k_q^T A_q k_q | `at` | `Q` | 1 |
| mu_bar = 1/Q sum_q mu_hat_q, sigma_bar^2 = 1/Q^2 sum_q sigma_hat_q^2 | `aggregate` | `|Theta|` | |

J observations of the same pair with mean y act as one with noise lam / J, exactly. So K_q is the
Gram matrix of distinct configurations, well conditioned for Hamming kernels, and is factorised
without jitter. With P_q the rows of query q among those of D, the average collapses onto D:

    mu_bar(theta) = k_D(theta)^T w,  w = 1/Q sum_q P_q^T A_q y_q = T / Q,
    sigma_bar^2(theta) = 1/Q - k_D(theta)^T V k_D(theta),  V = 1/Q^2 sum_q P_q^T A_q P_q = S / Q^2.

Algebra of the size of a query's history is numpy's, on the CPU; `aggregate` moves w and V to the
device, where sums over Theta are made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.nn.functional import pad

from scope_torch.errors import InputError
from scope_torch.model.aggregate import AggregatePosterior, LowRank, QueryPosterior
from scope_torch.model.data import Data
from scope_torch.model.factor import Array, times
from scope_torch.model.incremental import Factors, LowRankUpdate, Prediction
from scope_torch.model.kernels import describe_kernel
from scope_torch.space import ConfigSpace

if TYPE_CHECKING:
    from scope_torch.model.botorch import AggregateModel

MIN_LAM = 1e-9


class QuerySurrogate:
    """Zero-mean GP regression of l_zeta(., q) for every query q, zeta = c, g_1, ..., g_K.

    All outputs have the same variance. Where an array has `1 + K` rows, the first is of the cost.

    Args:
        space: Theta.
        kernel: k with k(theta, theta) = 1, float64 on codes.
        num_queries: Q.
        lam: The regularisation lambda, at least 1e-9 (the paper's floor).
        device: Where `aggregate` and the other tensors are; None for the CPU. Always float64.
        num_constraints: K.

    Raises:
        InputError: If `lam` is below 1e-9, or not finite.

    Examples:
        >>> from scope_torch.model.kernels import HammingMatern52Kernel
        >>> surrogate = QuerySurrogate(ConfigSpace((2, 2)), HammingMatern52Kernel(), 3, lam=1e-6)
        >>> surrogate.observe((0, 1), query=0, y_c=0.002, y_g=-0.1)
        >>> surrogate.at((0, 1)).mean_c
        tensor([0.0020, 0.0000, 0.0000], dtype=torch.float64)
    """

    cost_scale = None
    hyperparameters = ()

    _make_factors: type[Factors] = Factors

    def __init__(
        self,
        space: ConfigSpace,
        kernel: Kernel,
        num_queries: int,
        lam: float,
        device: torch.device | str | None = None,
        num_constraints: int = 1,
    ) -> None:
        if not MIN_LAM <= lam < math.inf:
            raise InputError(f"lam={lam} must be at least {MIN_LAM}, as in the paper, and finite")
        self.space = space
        self.kernel = kernel
        self.num_queries = num_queries
        self.lam = lam
        self.num_constraints = num_constraints
        self.device = torch.device(device) if device is not None else torch.device("cpu")
        self._pending: list[tuple[tuple[int, ...], int, tuple[float, ...]]] = []
        self._data = Data(space, kernel, num_queries, self.device, num_constraints)
        self._factors = self._make_factors(num_queries, lam, num_constraints)
        self._last: Prediction | None = None  # what is asked for is likely to be observed next
        self._S = torch.zeros(0, 0, dtype=torch.float64, device=self.device)
        self._seen = 0  # the mark of the low-rank updates that _S knows

    def observe(
        self, theta: tuple[int, ...], query: int, y_c: float, y_g: float, *others: float
    ) -> None:
        """Adds one observation.

        Args:
            theta: Codes of the configuration.
            query: Index of the query.
            y_c: Observed cost in USD.
            y_g: Observed constraint value s_0 - y_s, in units of quality.
            others: Observed values of the further constraints, threshold minus grade.
        """
        self._pending.append((theta, query, (y_c, y_g, *others)))

    def num_observed(self, theta: tuple[int, ...]) -> int:
        """Number of queries on which `theta` was observed at least once."""
        self._update()
        config = self._data.id_of(theta)
        return 0 if config is None else int((self._data.count[:, config] > 0).sum())

    def num_observations(self) -> Tensor:
        """J_{q,t}, repeats counted, of every query: `num_queries` (int64, CPU)."""
        self._update()
        return torch.from_numpy(self._data.count.sum(-1))

    def information(self) -> list[float]:
        """I_q = 1/2 log det(I + K_q / lam) of every query, in nats (lem:kernel-self-normalized)."""
        self._update()
        groups = self._factors.groups
        return [groups[group].information for group in self._factors.group_of]

    def observed(self) -> Tensor:
        """D, the distinct observed configurations: `n x num_modules` codes."""
        self._update()
        return self._data.codes

    def at(self, theta: Sequence[int]) -> QueryPosterior:
        """mu_hat_q and sigma_hat_q^2 of every query at one configuration (equ:gp-regression)."""
        mean, variance = self.moments(theta)
        mean_c, mean_g, *_ = torch.from_numpy(mean)
        return QueryPosterior(mean_c, mean_g, torch.from_numpy(variance))

    def moments(self, theta: Sequence[int]) -> tuple[Array, Array]:
        """As `at`, in numpy: the means, `(1 + K) x Q`, and the variance, `Q`."""
        prediction = self._predict(theta)
        variance = prediction.variance()[self._factors.group_of]
        return self._mean(prediction.k), variance

    def aggregate(self) -> AggregatePosterior:
        """mu_bar and sigma_bar, collapsed onto D (eq:scope-mean-variance)."""
        V = self._follow_S() / self.num_queries**2
        return AggregatePosterior(self._data.codes, self.weights(), V, 1 / self.num_queries)

    def aggregates(self) -> tuple[AggregatePosterior, ...]:
        """`aggregate`, whose variance all outputs share."""
        return (self.aggregate(),)

    def weights(self) -> Tensor:
        """w_c (USD) and w_g of `aggregate`: `(1 + K) x n`."""
        return self.to_device(self.total() / self.num_queries)

    def total(self) -> Array:
        """T = sum_q P_q^T A_q y_q of every output: `(1 + K) x n`."""
        self._update()
        return self._factors.total[:, : self._data.n]

    def gram(self) -> Array:
        """K_D: `n x n`."""
        self._update()
        n = self._data.n
        return self._data.gram[:n, :n]

    def sum_of_inverses(self) -> Array:
        """S = sum_q P_q^T A_q P_q, made anew: `n x n`."""
        self._update()
        return self._factors.sum_of_inverses(self._data.n)

    def sum_of_squares(self) -> tuple[Array, int]:
        """sum_q y_q^T A_q y_q of every output (1 + K), and the number of (theta, query) pairs."""
        solved, some = self._solved(), self._data.is_asked
        products = self._data.mean()
        products[:, some] *= solved[:, some]
        return products.sum((1, 2)), int((self._data.count > 0).sum())

    def updates_since(self, mark: int) -> tuple[LowRankUpdate | None, int]:
        """Low-rank updates of S and T since `mark`; None if S must be rebuilt.

        Args:
            mark: What this returned before; 0 for no observation.

        Returns:
            The updates as one, and the mark of now.
        """
        self._update()
        return self._factors.log.since(mark, self._data.n)

    def growth_since(self, mark: int | None) -> tuple[Sequence[LowRank], int]:
        """What V has grown by since `mark`; see `Averaging`."""
        update, now = self.updates_since(mark or 0)
        if update is None:
            return (), now
        rows, weights = self.to_device(update.u), self.to_device(update.weight)
        return [LowRank(rows, weights / self.num_queries**2)], now

    def prior_variances(self) -> tuple[float, ...]:
        """1/Q."""
        return (1 / self.num_queries,)

    def units(self) -> tuple[float, ...]:
        """None: all constraints have the same variance."""
        return ()

    def refit(self, now: bool = False) -> bool:  # noqa: ARG002
        """False: nothing is fitted."""
        return False

    def leave_one_out(self, min_queries: int = 6) -> Tensor:
        """How far off the surrogate without a configuration is at that configuration.

        For each configuration with at least `min_queries` observed queries: |mean residual| over
        the root mean square of the predicted sigma, both over its observed queries, of the
        surrogate that has not seen it. Closed form: with A the inverse of K_q + lam C_q^-1, the
        residual is (A y)_d / A_dd and the latent variance 1 / A_dd - lam / n_d.

        Returns:
            `(1 + K) x m` ratios (USD; grades) of the m configurations, float64, CPU.
        """
        solved, diagonal = self._solved(), self._diagonal()
        count = self._data.count[:, : self._data.n]
        residual = solved / diagonal
        observed = count > 0
        latent = 1 / diagonal - self.lam / count.clip(min=1)
        num_queries = observed.sum(0)
        enough = num_queries >= min_queries
        mean_residual = residual.sum(1)[:, enough] / num_queries[enough]
        mean_square = (latent * observed).sum(0)[enough] / num_queries[enough]
        return torch.from_numpy(np.abs(mean_residual) / np.sqrt(mean_square))

    def as_botorch_model(self) -> AggregateModel:
        """The aggregate as a BoTorch model with outputs c (USD) and g of every constraint."""
        from scope_torch.model.botorch import AggregateModel  # importing botorch takes seconds

        return AggregateModel(self.aggregate(), self.kernel)

    def to_device(self, array: Array) -> Tensor:
        """An array as a tensor on the device."""
        return torch.from_numpy(array).to(self.device)

    def settings(self) -> dict[str, Any]:
        """Lambda and the kernel, JSON-serialisable."""
        return {"lam": self.lam, "kernel": describe_kernel(self.kernel, self.space.num_modules)}

    def report(self) -> dict[str, Any]:
        """Nothing: there are no fitted values."""
        return {}

    def _solved(self) -> Array:
        """A_q y_q: `(1 + K) x Q x n`."""
        self._update()
        return self._factors.solved[..., : self._data.n]

    def _diagonal(self) -> Array:
        """The diagonal of A_q: `Q x n`; 1 where q did not observe."""
        self._update()
        n, factors = self._data.n, self._factors
        diagonal = np.ones((self.num_queries, n))
        of_group = [np.square(group.W).sum(0) for group in factors.groups]
        for q, group in enumerate(factors.group_of):
            diagonal[q, factors.groups[group].ids] = of_group[group]
        return diagonal

    def _predict(self, theta: Sequence[int]) -> Prediction:
        self._update()
        self._last = self._factors.at(tuple(theta), self._data)
        return self._last

    def _mean(self, k: Array) -> Array:
        """mu_hat = k^T A_q y_q where the kernel with D is `k`: `(1 + K) x num_queries`."""
        return times(self._factors.solved[..., : len(k)], k)

    def _update(self) -> None:
        """Brings everything up to the last observation."""
        if not self._pending:
            return
        known = None if self._last is None else (self._last.theta, self._last.k)
        added = self._data.add(self._pending, known)
        self._pending.clear()
        self._factors.update(self._data, added, self._last)
        self._last = None

    def _follow_S(self) -> Tensor:
        """S on the device, by low-rank updates or anew, whatever is less work."""
        update, self._seen = self.updates_since(self._seen)
        n = self._data.n
        if update is None or len(update.weight) * n**2 > self._factors.operations_of_sum():
            self._S = self.to_device(self.sum_of_inverses())
            return self._S
        self._S = pad(self._S, (0, n - len(self._S)) * 2)
        u, weight = self.to_device(update.u), self.to_device(update.weight)
        return self._S.addmm_(u.T * weight, u)
