"""All observations of an output of the joint surrogate, collapsed onto D (docs/joint.md)."""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from scope_torch.model.aggregate import AggregatePosterior

_PENDING = 64  # rows


class Hyperparameters(NamedTuple):
    """Of the process of one output.

    `rho`: share of the variance that all queries have in common, in [0, 1).
    `amplitude`: prior standard deviation of l(theta, q), in units of the output.
    """

    rho: float
    amplitude: float

    @property
    def r(self) -> float:
        """Variance of u relative to that of w_q: rho / (1 - rho)."""
        return self.rho / (1 - self.rho)

    def of_average(self, num_queries: int) -> tuple[float, float, float]:
        """The average has mean a k_D^T t and variance b - c k_D^T B k_D, see `Collapsed`.

        Returns:
            a, b and c; b and c in units of the output squared.
        """
        a, own = self.r + 1 / num_queries, self.amplitude**2 * (1 - self.rho)
        return a, own * a, own * a**2


class Collapsed:
    """All observations of outputs with the same rho, collapsed onto D: B = G S and t = G T.

    Mean and variance of the average follow from `Hyperparameters.of_average`.

    Args:
        r: At least 0.
        K: `n x n`, K_D (float64).
        T: `m x n`, for `m` outputs.
        L: `n x n`, lower triangular, S = L L^T.
        LKL: `n x n`, L^T K_D L.

    Attributes:
        t: `m x n`.
        log_det: log det(I + r S K_D).
        rows: B has grown by x x^T for each x in it, since it was made; appended to only.
    """

    def __init__(self, r: float, K: Tensor, T: Tensor, L: Tensor, LKL: Tensor) -> None:
        self.r = r
        inner = r * LKL
        inner.diagonal().add_(1.0)
        root = torch.linalg.cholesky(inner)
        X = torch.linalg.solve_triangular(root, L.T, upper=False)
        self._base, self._pending = X.T @ X, X[:0]  # B, but for x x^T of the rows x pending
        self.t = torch.stack([one - r * (self._base @ (K @ one)) for one in T])
        self.log_det = 2 * float(root.diagonal().log().sum())
        self.rows: list[Tensor] = []

    @property
    def B(self) -> Tensor:
        """`n x n`; never written over."""
        if len(self._pending):
            X = self._pending
            more = X.shape[1] - len(self._base)
            self._base = torch.addmm(pad(self._base, (0, more, 0, more)), X.T, X)
            self._pending = X[:0]
        return self._base

    def times(self, rows: Tensor) -> Tensor:
        """Rows B, `m x n`, without writing B out."""
        old = len(self._base)
        product = (rows @ self._pending.T) @ self._pending
        product[:, :old] += rows[:, :old] @ self._base
        return product

    def copy(self) -> Collapsed:
        """As it is now; shares all memory, because `add` writes over none."""
        return copy(self)

    def add(self, U: Tensor, KU: Tensor, weight: Tensor, total: Tensor) -> None:
        """Takes in a low-rank update: S grows by U^T diag(weight) U, T by U^T total.

        B grows by X^T X. Up to `_PENDING` rows of X are kept aside, because to write B takes longer
        than a product with a few rows.

        Args:
            U: `m x n`, the rows u of the update; n may have grown.
            KU: `m x n`, the rows K_D u.
            weight: `m`.
            total: Of every output: `m` each.
        """
        n = U.shape[1]
        more = (0, n - self.t.shape[1])
        t, self._pending = pad(self.t, more), pad(self._pending, more)
        V = U - self.r * self.times(KU)
        root = torch.linalg.cholesky(torch.diag(1 / weight) + self.r * (KU @ V.T))
        changes = [of / weight - self.r * (KU @ one) for of, one in zip(total, t, strict=True)]
        right = torch.cat([V, torch.stack(changes, 1)], 1)
        solved = torch.linalg.solve_triangular(root, right, upper=False)
        X, changed = solved[:, :n], solved[:, n:].T
        self.t = torch.stack([one + X.T @ change for one, change in zip(t, changed, strict=True)])
        self._pending = torch.cat([self._pending, X])
        self.rows.extend(X)
        self.log_det += 2 * float(root.diagonal().log().sum()) + float(weight.log().sum())
        if len(self._pending) > _PENDING:
            _ = self.B


class CollapsedPosterior(AggregatePosterior):
    """The average of outputs that share a B: V = c B, which is written out only where it is read.

    Args:
        codes: See `AggregatePosterior`.
        weights: Likewise.
        collapsed: Has B.
        c: See `Hyperparameters.of_average`.
        constant: b, likewise.
    """

    def __init__(
        self, codes: Tensor, weights: Tensor, collapsed: Collapsed, c: float, constant: float
    ) -> None:
        self.codes, self.weights, self.constant = codes, weights, constant
        self._collapsed, self._c = collapsed.copy(), c

    @property
    def matrix(self) -> Tensor:
        """V."""
        return self._c * self._collapsed.B

    def times(self, rows: Tensor) -> Tensor:
        """Rows V: `m x n`."""
        return self._c * self._collapsed.times(rows)
