"""The posterior of the averages on all of Theta, kept up to date (eq:scope-mean-variance)."""

from __future__ import annotations

from torch import Tensor

from scope_torch.hamming_grid import DirectGrid, HammingGrid
from scope_torch.surrogate import LowRankChange, QuerySurrogate

_REFRESH = 64  # updates after which the variance is made anew, so that rounding cannot accumulate
_ENTRIES = 1 << 22  # of the sums held at a time


class GridPosterior:
    """mu_bar_c, mu_bar_g and sigma_bar of every configuration.

    The means are made anew each time. The variance only falls, by one squared sum of kernels for
    every factorisation that changed; it is updated or made anew, whichever counts fewer operations.

    Args:
        surrogate: The per-query surrogates. Nothing else may call its `take_change`.
        grid: Sums of their kernel over Theta.
    """

    def __init__(self, surrogate: QuerySurrogate, grid: HammingGrid | DirectGrid) -> None:
        self._surrogate, self._grid = surrogate, grid
        self._variance: Tensor | None = None
        self._num_updates = 0

    def __call__(self) -> tuple[Tensor, Tensor, Tensor]:
        """The posterior after all observations told to the surrogate.

        Returns:
            mu_bar_c (USD), mu_bar_g and sigma_bar: three new `|Theta|` float64 tensors.
        """
        codes = self._surrogate.observed()
        mean_c, mean_g = (self._grid.weighted_sum(codes, w) for w in self._surrogate.weights())
        return mean_c, mean_g, self._current_variance(codes).sqrt()

    def _current_variance(self, codes: Tensor) -> Tensor:
        change = self._surrogate.take_change()
        self._num_updates += 1
        if change is not None and self._variance is not None and self._is_cheaper(change):
            self._update(self._variance, codes, change)
        else:
            self._num_updates = 0
            posterior = self._surrogate.aggregate()
            form = self._grid.quadratic_form(posterior.codes, posterior.matrix)
            self._variance = form.neg_().add_(posterior.constant)
        return self._variance

    def _is_cheaper(self, change: LowRankChange) -> bool:
        n, rank = change.columns.shape
        update = rank * self._grid.sum_operations(n)
        anew = change.operations + self._grid.form_operations(n)
        return self._num_updates < _REFRESH and update < anew

    def _update(self, variance: Tensor, codes: Tensor, change: LowRankChange) -> None:
        at_a_time = max(1, _ENTRIES // self._grid.space.size)
        for columns, weight in zip(
            change.columns.split(at_a_time, dim=1), change.weight.split(at_a_time), strict=True
        ):
            sums = self._grid.weighted_sum(codes, columns)
            variance -= sums.square_() @ weight
