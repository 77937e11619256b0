"""The Gaussian processes of all queries as one GPyTorch model (def:gp).

| symbol | here | shape | unit |
| --- | --- | --- | --- |
| D, distinct configurations observed | `train_inputs` | `Q x n x N` | |
| y_q, the mean observed there | `train_targets` | `m x Q x n` | USD; grades |
| lam C_q^-1, C_q how often it was observed | `noise` | `Q x n` | |
| A_q = (K_q + lam C_q^-1)^-1 = W_q^T W_q | `F[..., m:]` | `Q x rows x n` | |
| z_q = W_q y_q, so that mu_hat_q = (W_q k)^T z_q | `F[..., :m]` | `Q x rows x m` | USD; grades |
| S = sum_q A_q, w = 1/Q sum_q A_q y_q | `S`, `w` | `n x n`, `m x n` | USD; grades |

The batch shape is (Q). All queries have the inputs D; where a query observed nothing, its noise is
infinite, so W_q is 0 there. All m outputs, the cost and each constraint, share their covariance.

`condition` makes W_q by one batched Cholesky decomposition. `append` adds an observation of one
configuration on any queries as one more row of every W_q: with v_q = sigma_hat_q^2 + lam,

    row_q = (e - A_q k) / sqrt(v_q),   z_q grows by (y - mu_hat_q) / sqrt(v_q),

e the unit vector of the configuration. A repeat has the same row: the covariance of k(x) with the
answer is k_x^T (e - A_q k) in both cases. Queries that were not observed get a row of zeros.

Tensors have room for more rows and columns than there are, filled with 0, so that an observation
moves no memory. Everything is float64, and nothing adds jitter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.models import GP
from linear_operator import to_linear_operator
from torch import Tensor
from torch.nn.functional import pad

from scope_torch.model.aggregate import AggregatePosterior
from scope_torch.model.data import Data
from scope_torch.model.factor import Array
from scope_torch.model.kernels import kernel_matrix

_ROOM = 64  # rows and columns are made so many at a time


def with_room(n: int) -> int:
    """The number of rows or columns for which there is memory if `n` are used."""
    return max(1, math.ceil(n / _ROOM)) * _ROOM


class Beside(NamedTuple):
    """Another configuration, as all queries see it (numpy).

    Args:
        theta: Its codes.
        mean: mu_hat_c in USD and each mu_hat_g: `m x Q`.
        variance: sigma_hat^2: `Q`.
        covariance: With the first configuration: `Q`.
    """

    theta: tuple[int, ...]
    mean: Array
    variance: Array
    covariance: Array


class Predicted(NamedTuple):
    """One configuration, as all queries see it.

    Args:
        theta: Its codes.
        k: Kernel with D: `n` (numpy).
        solved: mu_hat_c, each mu_hat_g, and A_q k: `Q x m + columns`, on the device.
        mean: mu_hat_c in USD and each mu_hat_g: `m x Q` (numpy).
        variance: sigma_hat^2: `Q` (numpy).
        beside: A configuration that was asked for at the same time.
    """

    theta: tuple[int, ...]
    k: Array
    solved: Tensor
    mean: Array
    variance: Array
    beside: Beside | None = None


class QueryGPs(GP):
    """Zero-mean exact GP regression of cost and constraints for every query.

    Args:
        kernel: k with k(theta, theta) = 1, float64 on codes.
        data: What was observed; on the CPU.
        lam: lambda.
        device: Where the tensors are.

    Attributes:
        num_outputs: m.
        F: `Q x rows x m + columns`, z_q and W_q.
        S: `columns x columns`.
        w: `m x columns`.
        rows: Number of rows of F in use.
        information: I_q = 1/2 log det(I + K_q / lam) of every query, in nats.
    """

    def __init__(
        self, kernel: Kernel, data: Data, lam: float, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        self.covar_module, self.lam, self.device = kernel, lam, torch.device(device)
        self._data, self.num_outputs = data, len(data.sums)
        self.batch_shape = torch.Size([len(data.count)])
        self.condition()

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """D for every query: `Q x n x num_modules` codes."""
        codes = self._data.codes.to(self.device)
        return (codes.expand(*self.batch_shape, *codes.shape),)

    @property
    def train_targets(self) -> Tensor:
        """Means of the answers of every query: `m x Q x n`; 0 where there are none."""
        return self._to_device(self._data.mean())

    @property
    def noise(self) -> Tensor:
        """The noise lam / C_q: `Q x n`; infinite where a query observed nothing."""
        n = self._data.n
        return self.lam / self._to_device(self._data.count[:, :n].astype(float))

    def condition(self) -> None:
        """Makes everything anew from the data, by one batched Cholesky decomposition."""
        (num_queries,), n, m = self.batch_shape, self._data.n, self.num_outputs
        columns = with_room(n)
        zeros = partial(torch.zeros, dtype=torch.float64, device=self.device)
        self.F = zeros(num_queries, columns, m + columns)
        self.rows = n
        W, self.information = self._decomposed()
        self.F[:, :n, m : m + n] = W
        self.F[:, :n, :m] = W @ self.train_targets.permute(1, 2, 0)
        rows = self.F.flatten(0, 1)
        self.S = rows[:, m:].T @ rows[:, m:]
        self.w = rows[:, :m].T @ rows[:, m:] / num_queries

    def _decomposed(self) -> tuple[Tensor, Array]:
        """W_q, with rows of 0 where nothing was observed: `Q x n x n`; and I_q."""
        noise, n = self.noise, self._data.n
        seen = noise.isfinite()
        K = self._to_device(self._data.gram[:n, :n]) * (seen[:, None] & seen[..., None])
        K.diagonal(dim1=-2, dim2=-1).add_(torch.where(seen, noise, 1.0))  # 1 where K_q is 0
        L = torch.linalg.cholesky(K)
        eye = torch.eye(n, dtype=K.dtype, device=self.device)
        W = torch.linalg.solve_triangular(L, eye, upper=False) * seen[..., None]
        log_noise = torch.where(seen, noise, 1.0).log()
        information = L.diagonal(dim1=-2, dim2=-1).log().sum(-1) - 0.5 * log_noise.sum(-1)
        return W, information.cpu().numpy()

    def predict(self, theta: tuple[int, ...], beside: tuple[int, ...] | None = None) -> Predicted:
        """The posterior of all queries at one configuration, or two; one wait for the device."""
        k, _, whitened, solved = self.solve(theta, beside)
        square = torch.bmm(whitened.mT, whitened)  # 1 minus it: (co)variances
        m = self.num_outputs
        known = torch.cat([solved[..., :m], square], -1).cpu().numpy()
        mean, variance = known[..., :m].T, 1 - known[:, 0, m]
        other = None
        if beside is not None:
            covariance = self.kernel_of(theta, beside) - known[:, 0, m + 1]
            other = Beside(beside, mean[:, 1], 1 - known[:, 1, m + 1], covariance)
        return Predicted(theta, k, solved[:, 0], mean[:, 0], variance, other)

    def solve(
        self, theta: tuple[int, ...], beside: tuple[int, ...] | None = None
    ) -> tuple[Array, Tensor, Tensor, Tensor]:
        """What `predict` is made of, without a wait; p is 2 with `beside`, else 1.

        Returns:
            k_D(theta), `n` (numpy); the k of all p after m zeros, `p x m + columns`, W_q k,
            `Q x rows x p`, and F_q^T W_q k, which is mu_hat_c, each mu_hat_g and A_q k,
            `Q x p x m + columns`, on the device.
        """
        k, m = self._data.kernel_with(theta), self.num_outputs
        padded = np.zeros((1 if beside is None else 2, self.F.shape[-1]))
        padded[0, m : m + len(k)] = k
        if beside is not None:
            padded[1, m : m + len(k)] = self._data.kernel_with(beside)
        on_device = self._to_device(padded)
        whitened = (self.F.flatten(0, 1) @ on_device.T).view(*self.F.shape[:2], -1)
        return k, on_device, whitened, torch.bmm(whitened.mT, self.F)

    def kernel_of(self, one: tuple[int, ...], other: tuple[int, ...]) -> float:
        """k(theta, theta') of two configurations."""
        codes = torch.tensor([one, other])
        return float(kernel_matrix(self.covar_module, codes[:1], codes[1:]))

    def append(self, at: Predicted, queries: Sequence[int], y: Array) -> None:
        """Takes in one new answer of each of some queries.

        Args:
            at: Made by `predict` before the data had the answers; the data have them now.
            queries: Indices, each once.
            y: The answers: `m x len(queries)` (USD; grades).
        """
        slot, chosen, m = self._data.id_of(at.theta), list(queries), self.num_outputs
        assert slot is not None
        self._make_room()
        step = np.zeros((len(at.variance), 2 + m))  # -scale A k, and scale times (y, e)
        scale = 1 / np.sqrt(at.variance[chosen] + self.lam)
        step[chosen] = np.stack([-scale, *(y * scale), scale], 1)
        self.information[chosen] += 0.5 * np.log1p(at.variance[chosen] / self.lam)
        on_device = self._to_device(step)
        row = self.F[:, self.rows]
        row[:, : at.solved.shape[1]].addcmul_(at.solved, on_device[:, :1])  # it was 0
        row[:, :m].add_(on_device[:, 1 : 1 + m])
        row[:, m + slot].add_(on_device[:, 1 + m])
        self.S.addmm_(row[:, m:].T, row[:, m:])
        self.w.addmm_(row[:, :m].T, row[:, m:], alpha=1 / len(row))
        self.rows += 1

    def _make_room(self) -> None:
        """Room for one more row, and for the columns of the data."""
        _, rows, width = self.F.shape
        more = with_room(self._data.n) + self.num_outputs - width
        more_rows = with_room(self.rows + 1) - rows
        if more or more_rows:
            self.F = pad(self.F, (0, more, 0, more_rows))
            self.S, self.w = pad(self.S, (0, more, 0, more)), pad(self.w, (0, more))

    def aggregate(self) -> AggregatePosterior:
        """mu_bar and sigma_bar, collapsed onto D (eq:scope-mean-variance)."""
        (num_queries,), n = self.batch_shape, self._data.n
        V = self.S[:n, :n] / num_queries**2
        codes = self._data.codes.to(self.device)
        return AggregatePosterior(codes, self.w[:, :n], V, 1 / num_queries)

    def forward(self, X: Tensor) -> MultivariateNormal:
        """The prior of one output at X, `... x m x num_modules` codes."""
        zero = torch.zeros(X.shape[:-1], dtype=torch.float64, device=X.device)
        return MultivariateNormal(zero, self.covar_module(X.double()))

    def __call__(self, X: Tensor, noise: float = 0.0) -> MultitaskMultivariateNormal:
        """The posterior of every query, of all outputs.

        Args:
            X: `batch x points x num_modules` codes, on the device; the batch broadcasts with (Q).
            noise: Variance that is added to each value: lambda for that of one answer.

        Returns:
            Joint distribution of `batch x points x m` values (USD; grades).
        """
        n, m, X = self._data.n, self.num_outputs, X.double()
        k = self.covar_module(X, self.train_inputs[0][0].double()).to_dense()
        z, W = self.F[..., :m], self.F[..., m : m + n]
        whitened = W @ k.transpose(-1, -2)
        mean = whitened.transpose(-1, -2) @ z
        prior = self.covar_module(X).to_dense()
        covariance = prior - whitened.transpose(-1, -2) @ whitened
        covariance.diagonal(dim1=-2, dim2=-1).add_(noise)
        # As an operator, so that nothing is factorised: points of a batch may coincide.
        normals = [
            MultivariateNormal(one, to_linear_operator(covariance)) for one in mean.unbind(-1)
        ]
        return MultitaskMultivariateNormal.from_independent_mvns(normals)

    def _to_device(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device)
