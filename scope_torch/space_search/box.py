"""The minima over Theta from a box of it, once most LLMs can improve nothing.

| symbol | here | shape | unit |
| --- | --- | --- | --- |
| flat indices of the box | `BoxGrid.index` | size of the box | |
| least mean of cbar, or of cbar / a - 1, with L_c > u_out | `_least_means` | `|Theta|` | USD or 1 |

Minima are over L_c <= u_out. After the first certificate that is often a few percent of Theta,
with few LLMs in each module: the box holds all configurations of those LLMs. A step looks at the
box, and makes one sum over Theta: the means of the cost. Variances only fall until the next fit,
and L_c rises as they do. So a configuration outside has L_c > u_out as long as its mean has not
fallen to `GridPosterior.least_means`. If one has, all of Theta is looked at again, and a new box
is cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from scope_torch.allowed import Allowed
from scope_torch.bounds.base import Beta
from scope_torch.model.aggregate import Averaging
from scope_torch.model.hamming_sums import BoxGrid, DirectGrid, HammingGrid
from scope_torch.model.kernels import HammingKernel
from scope_torch.model.list_sums import ListGrid
from scope_torch.space_search.grid import Enumerated, GridPosterior, forbidden
from scope_torch.space_search.minima import LowerBounds, Moments

_LEAST_SIZE = 1 << 18  # configurations; below that a step is overhead
_SMALLER = 4  # times that a box is smaller than Theta
_ROOM = 0.25  # of u_out: the box also holds what is dearer by so much
_SHORT, _WAIT = 4, 16  # after none, or one for fewer steps than 4, so many looks go without


class BoxedPosterior(Enumerated):
    """As `GridPosterior`, and chooses as it does; made by `boxed`.

    Args:
        whole: All of Theta.
        surrogate: That of `whole`.
        grid: That of `whole`.
        allowed: That of `whole`; what may not be chosen now never may.
    """

    def __init__(
        self,
        whole: GridPosterior,
        surrogate: Averaging,
        grid: HammingGrid,
        allowed: Allowed | None = None,
    ) -> None:
        self._whole, self._surrogate, self._grid = whole, surrogate, grid
        self._never = self._forbidden = forbidden(allowed, grid.device)
        self._box: GridPosterior | None = None
        self._one: GridPosterior | None = None  # the last that `at` made
        self._fitted: object = None
        self._num_steps = self._wait = 0
        self._beta_c = self._u_out = 0.0  # for which `_least_means` was made
        self._least_means = torch.empty(0, dtype=torch.float64)

    def update(self) -> None:
        """See `GridPosterior`."""
        self._surrogate.refit()
        if self._box is not None and self._fitted is self._surrogate.hyperparameters:
            self._box.follow()
            self._num_steps += 1
        else:
            self.look()

    def look(self) -> GridPosterior:
        """All of Theta, up to the last observation; the box is forgotten."""
        if self._box is not None and self._num_steps < _SHORT:
            self._wait = _WAIT
        self._box, self._fitted = None, self._surrogate.hyperparameters
        self._whole.follow()
        return self._whole

    @property
    def mean_c(self) -> Tensor:
        """See `GridPosterior`."""
        return self.look().mean_c

    @property
    def mean_g(self) -> Tensor:
        """See `GridPosterior`."""
        return self.look().mean_g

    @property
    def variance(self) -> Tensor:
        """See `GridPosterior`."""
        return self.look().variance

    def least_slope(self) -> float:
        """See `GridPosterior`."""
        return self.look().least_slope()

    def lower_bounds(self, beta: Beta, u_out: float, theta_out: int | None) -> LowerBounds:
        """L_c and L_g, and their minima; arguments as in `LowerBounds`."""
        if self._box is not None:
            if self._holds(beta, u_out):
                bounds = self._box.lower_bounds(beta, u_out, theta_out)
                if bounds.least_c <= u_out:  # else the least may be outside
                    bounds.beyond = _Beyond(self, bounds, theta_out, self._forbidden)
                    return bounds
            self.look()
        bounds = self._whole.lower_bounds(beta, u_out, theta_out)
        self._cut(bounds, theta_out)
        return bounds

    def restrict(self, allowed: Allowed) -> None:
        """See `Enumerated`."""
        self.forbid(forbidden(allowed, self._grid.device))

    def forbid(self, mask: Tensor | None) -> None:
        """See `Enumerated`."""
        self._forbidden = mask
        self._whole.forbid(mask)
        if self._box is not None:
            self._box.forbid(None if mask is None else mask[self._box.listed])

    def settings(self) -> dict[str, Any]:
        """See `Enumerated`."""
        return self._whole.settings()

    def at(self, index: int, mask: Tensor | None) -> GridPosterior:
        """Up to date, at one flat index; see `forbid` for the mask."""
        of_one, posterior = torch.tensor([index], device=self._grid.device), self._one
        if posterior is None or posterior.listed != of_one:  # else its variance is still exact
            one = ListGrid(self._grid.space, self._grid.kernel, of_one, self._grid.device)
            posterior = self._one = GridPosterior(self._surrogate, one)
        posterior.forbid(None if mask is None else mask[of_one])
        posterior.follow()
        return posterior

    @contextmanager
    def everywhere(self, mask: Tensor | None) -> Generator[GridPosterior]:
        """All of Theta, up to date; for now what is in the mask may not be chosen."""
        whole = self.look()
        whole.forbid(mask)
        try:
            yield whole
        finally:
            whole.forbid(self._forbidden)

    def _holds(self, beta: Beta, u_out: float) -> bool:
        """Whether L_c > u_out is sure outside the box."""
        if u_out > self._u_out or beta.c > self._beta_c:
            return False
        if self._fitted is not self._surrogate.hyperparameters:  # variances may have grown
            return False
        of_cost = self._surrogate.observed(), self._surrogate.weights()[0]
        return self._grid.is_above(*of_cost, self._least_means)

    def _cut(self, bounds: LowerBounds, theta_out: int | None) -> None:
        """Cuts a box, if it is much smaller than Theta; looks for one now and then.

        Args:
            bounds: On all of Theta.
            theta_out: Not among them, but it may be another one soon.
        """
        self._wait = max(0, self._wait - 1)
        if self._wait or not bounds.u_out < math.inf:
            return
        llms, kernel = self._llms(bounds, theta_out), self._grid.kernel
        if math.prod(map(len, llms)) * _SMALLER > self._grid.size:
            self._wait = _WAIT
            return
        assert isinstance(kernel, HammingKernel)
        grid = BoxGrid(self._grid.space, kernel, llms, self._grid.device)
        self._least_means = self._whole.least_means(bounds)
        self._least_means[grid.index] = -math.inf
        self._beta_c, self._u_out = bounds.beta.c, bounds.u_out
        self._box, self._num_steps = self._whole.cut(grid), 0
        self._box.follow()

    def _llms(self, bounds: LowerBounds, theta_out: int | None) -> list[Tensor]:
        """Codes of the LLMs that can matter soon, for each module."""
        matters = bounds.c <= (1 + _ROOM) * bounds.u_out
        if self._forbidden is not None:  # for now, or for ever
            now = self._forbidden if self._never is None else self._forbidden & ~self._never
            matters |= now
        if theta_out is not None:
            matters[theta_out] = True
        grid, modules = matters.view(self._grid.space.sizes), range(self._grid.space.num_modules)
        others = [[k for k in modules if k != i] for i in modules]
        return [(grid.any(k) if k else grid).nonzero().squeeze(-1) for k in others]


class _Beyond:
    """What is asked of all of Theta, in a step that looked at the box; see `Whole`.

    Args:
        posterior: The box and all of Theta.
        bounds: On the box.
        theta_out: See `LowerBounds`.
        mask: What may not be chosen in this step.
    """

    def __init__(
        self,
        posterior: BoxedPosterior,
        bounds: LowerBounds,
        theta_out: int | None,
        mask: Tensor | None,
    ) -> None:
        self._posterior, self._mask = posterior, mask
        self._of = bounds.beta, bounds.u_out, theta_out

    def value(self, function: Callable[[Moments], Tensor], index: int) -> float:
        """See `LowerBounds`."""
        posterior = self._posterior.at(index, self._mask)
        return posterior.lower_bounds(*self._of).value(function, index)

    def largest(self, function: Callable[[Moments], Tensor]) -> tuple[float, int]:
        """See `LowerBounds`."""
        with self._posterior.everywhere(self._mask) as posterior:
            return posterior.lower_bounds(*self._of).largest(function)


def boxed(
    posterior: GridPosterior,
    surrogate: Averaging,
    grid: HammingGrid | DirectGrid,
    allowed: Allowed | None = None,
) -> GridPosterior | BoxedPosterior:
    """With boxes where Theta is large, and sums of the kernel over a box are fast."""
    if type(grid) is HammingGrid and grid.size >= _LEAST_SIZE and grid.device.type == "cpu":
        return BoxedPosterior(posterior, surrogate, grid, allowed)
    return posterior
