"""The posterior of the averages on all of Theta, kept up to date (eq:scope-mean-variance)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scope_torch.bounds import Beta
from scope_torch.hamming_grid import DirectGrid, HammingGrid
from scope_torch.space import first_tied, tie_width
from scope_torch.surrogate import LowRankChange, QuerySurrogate

_REFRESH = 64  # updates after which the variance is made anew, so that rounding cannot accumulate
_ENTRIES = 1 << 22  # of the sums held at a time
_CHUNK = 1 << 14  # configurations whose values stay in the cache


class LowerBounds(NamedTuple):
    """Lower confidence bounds on all of Theta, and their least values.

    Args:
        c: `|Theta|` values of L_c in USD (float64), written over by the next update.
        g: `|Theta|` values of L_g.
        least_c: min{L_c : L_g <= 0}, the least that c(theta_star) can be; +inf if nothing is
            feasible.
        least_g: min{L_g : L_c <= u_out}, of what can still improve on theta_out; +inf if nothing
            can.
        min_g: min L_g.
        chunk_min_c: min L_c of every chunk of Theta.
    """

    c: Tensor
    g: Tensor
    least_c: float
    least_g: float
    min_g: float
    chunk_min_c: Sequence[float]

    def argmin_c(self, most_g: float, scale: float, seed: int) -> int:
        """Flat index of the least L_c subject to L_g <= `most_g`; ties as in `argmin_tied`.

        Chunks in which nothing has an L_c as low are not looked at.
        """
        chunks = list(zip(self.c.split(_chunk(self.c)), self.g.split(_chunk(self.c)), strict=True))
        best, near = math.inf, []
        for k in sorted(range(len(chunks)), key=lambda k: self.chunk_min_c[k]):
            if self.chunk_min_c[k] > best + tie_width(best, scale):
                break
            c, g = chunks[k]
            eligible_c = torch.where(g <= most_g, c, math.inf)
            best = min(best, float(eligible_c.min()))
            near.append((k * _chunk(self.c), eligible_c))
        tied = [
            start + (c <= best + tie_width(best, scale)).nonzero().squeeze(-1) for start, c in near
        ]
        return first_tied(torch.cat(tied), seed)


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

    def lower_bounds(self, beta: Beta, u_out: float, theta_out: int | None) -> LowerBounds:
        """L_c and L_g, and what they say about the iteration.

        Args:
            beta: beta_c in USD and beta_g.
            u_out: Upper bound on c(theta_out) in USD.
            theta_out: Flat index of theta_out, which cannot improve on itself: L_c is +inf there;
                None for no exception.
        """
        exceptions = [] if theta_out is None else [theta_out]
        means = self.mean_c[exceptions]
        self.mean_c[exceptions] = math.inf
        chunk = _chunk(self.variance)
        sigma = torch.empty_like(self.variance[:chunk])
        tensors = (self.mean_c, self.mean_g, self.variance, self._lower_c, self._lower_g)
        least_c = least_g = min_g = math.inf
        chunk_min_c = []
        for mean_c, mean_g, variance, c, g in zip(*(t.split(chunk) for t in tensors), strict=True):
            torch.sqrt(variance, out=sigma[: len(variance)])
            torch.sub(mean_c, sigma[: len(variance)], alpha=beta.c, out=c)
            torch.sub(mean_g, sigma[: len(variance)], alpha=beta.g, out=g)
            chunk_min_c.append(float(c.min()))
            chunk_min_g = float(g.min())
            min_g = min(min_g, chunk_min_g)
            if chunk_min_c[-1] < least_c:
                least_c = min(least_c, float(torch.where(g <= 0, c, math.inf).min()))
            if chunk_min_g < least_g:
                least_g = min(least_g, float(torch.where(c <= u_out, g, math.inf).min()))
        self.mean_c[exceptions] = means
        return LowerBounds(self._lower_c, self._lower_g, least_c, least_g, min_g, chunk_min_c)

    def _is_cheaper(self, change: LowRankChange) -> bool:
        n, rank = change.columns.shape
        update = rank * self._grid.sum_operations(n)
        return self._num_updates < _REFRESH and update < self._grid.form_operations(n)

    def _apply(self, codes: Tensor, change: LowRankChange) -> None:
        at_a_time = max(1, _ENTRIES // self._grid.space.size)
        for columns, weight in zip(
            change.columns.split(at_a_time, dim=1), change.weight.split(at_a_time), strict=True
        ):
            sums = self._grid.weighted_sum(codes, columns)
            self.variance -= sums.square_() @ weight


def _chunk(values: Tensor) -> int:
    """How many configurations to treat at a time: what the cache holds, on a GPU all."""
    return _CHUNK if values.device.type == "cpu" else len(values)
