"""The posterior of the averages on all of Theta, kept up to date (eq:scope-mean-variance)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scope_torch.hamming_grid import DirectGrid, HammingGrid
from scope_torch.surrogate import LowRankChange, QuerySurrogate

_REFRESH = 64  # updates after which the variance is made anew, so that rounding cannot accumulate
_ENTRIES = 1 << 22  # of the sums held at a time
_CHUNK = 1 << 16  # configurations whose values stay in the cache


class GridPosterior:
    """mu_bar_c, mu_bar_g and sigma_bar of every configuration, and the lower bounds made of them.

    The means are made anew each time. The variance only falls, by one squared sum of kernels for
    every factorisation that changed; it is updated or made anew, whichever counts fewer operations.
    All tensors are written over by the next update, because fresh memory for a few million values
    costs as much as computing them.

    Args:
        surrogate: The per-query surrogates. Nothing else may call its `take_change`.
        grid: Sums of their kernel over Theta.

    Attributes:
        mean_c: `|Theta|` values of mu_bar_c in USD (float64).
        mean_g: `|Theta|` values of mu_bar_g (float64).
        variance: `|Theta|` values of sigma_bar^2 (float64).
    """

    def __init__(self, surrogate: QuerySurrogate, grid: HammingGrid | DirectGrid) -> None:
        self._surrogate, self._grid = surrogate, grid
        self._num_updates = _REFRESH
        size = grid.space.size
        self.mean_c, self.mean_g, self.variance, self._lower_c, self._lower_g = (
            torch.empty(size, dtype=torch.float64, device=grid.device) for _ in range(5)
        )

    def update(self) -> None:
        """Brings means and variance up to the last observation told to the surrogate."""
        codes, (w_c, w_g) = self._surrogate.observed(), self._surrogate.weights()
        self._grid.weighted_sum(codes, w_c, out=self.mean_c)
        self._grid.weighted_sum(codes, w_g, out=self.mean_g)
        change = self._surrogate.take_change()
        if change is not None and self._is_cheaper(change):
            self._num_updates += 1
            self._apply(codes, change)
        else:
            self._num_updates = 0
            posterior = self._surrogate.aggregate()
            self._grid.quadratic_form(posterior.codes, posterior.matrix, out=self.variance)
            self.variance.neg_().add_(posterior.constant)

    def lower_c(self, beta: float) -> Tensor:
        """mu_bar_c - beta sigma_bar in USD."""
        return self._lower(self.mean_c, beta, self._lower_c)

    def lower_g(self, beta: float) -> Tensor:
        """mu_bar_g - beta sigma_bar."""
        return self._lower(self.mean_g, beta, self._lower_g)

    def _lower(self, mean: Tensor, beta: float, out: Tensor) -> Tensor:
        parts = zip(mean.split(_CHUNK), self.variance.split(_CHUNK), out.split(_CHUNK), strict=True)
        for m, v, lower in parts:
            torch.sub(m, v.sqrt(), alpha=beta, out=lower)
        return out

    def _is_cheaper(self, change: LowRankChange) -> bool:
        n, rank = change.columns.shape
        update = rank * self._grid.sum_operations(n)
        anew = change.operations + self._grid.form_operations(n)
        return self._num_updates < _REFRESH and update < anew

    def _apply(self, codes: Tensor, change: LowRankChange) -> None:
        at_a_time = max(1, _ENTRIES // self._grid.space.size)
        for columns, weight in zip(
            change.columns.split(at_a_time, dim=1), change.weight.split(at_a_time), strict=True
        ):
            sums = self._grid.weighted_sum(codes, columns)
            self.variance -= sums.square_() @ weight


def least_feasible(lower_c: Tensor, lower_g: Tensor) -> float:
    """min{L_c : L_g <= 0}, the least that c(theta_star) can be; +inf if nothing is feasible."""
    return least_where(lower_c, lower_g, 0.0)


def least_where(values: Tensor, other: Tensor, most: float) -> float:
    """min{values : other <= most}; +inf if there is none."""
    parts = zip(values.split(_CHUNK), other.split(_CHUNK), strict=True)
    return float(torch.stack([torch.where(o <= most, v, math.inf).min() for v, o in parts]).min())
