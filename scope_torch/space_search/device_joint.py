"""The averages of the joint surrogate on all of Theta, and their minima, on a device.

| symbol | here | shape | unit |
| --- | --- | --- | --- |
| mean of cbar / a - 1, or of cbar; of the worst gbar | `_means` | `|Theta|` | 1 or USD; quality |
| their variances | `_variances` | `2 x |Theta|` | |
| L_c of those that can improve on theta_out | `FewMinima.c` | `|Theta|` | USD |

What is chosen is found on the device; the few best are brought to the CPU, which decides ties.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from scope_torch.allowed import Allowed
from scope_torch.bounds.base import Beta
from scope_torch.model.cost_scale import LEAST_MEAN
from scope_torch.model.device_sums import DeviceSums
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.kernels import HammingKernel
from scope_torch.model.tensor_joint import OnDevice, TensorJointSurrogate
from scope_torch.space import first_tied, tie_width
from scope_torch.space_search.box import BoxedPosterior, boxed
from scope_torch.space_search.device_grid import Ties, WholeOnDevice, with_worst
from scope_torch.space_search.grid import Enumerated, GridPosterior, forbidden, least_allowed
from scope_torch.space_search.minima import INELIGIBLE, Moments, negative_promise

_FEW = 512  # configurations that are brought: 16 KB
LEAST_WIDTH = 1e-12  # of L_g below the mean, so that it divides


class DeviceJointPosterior(Enumerated):
    """As `GridPosterior`, on a device, with variances that are all exact.

    Args:
        surrogate: The joint surrogate; `update` fits it anew when that is due.
        sums: Sums of its kernel over Theta.
        has_margin: See `FewMinima`.
        allowed: Which configurations may be chosen; None for all.
    """

    _state: OnDevice

    def __init__(
        self,
        surrogate: TensorJointSurrogate,
        sums: DeviceSums,
        has_margin: bool = False,
        allowed: Allowed | None = None,
    ) -> None:
        self._forbidden = forbidden(allowed, sums.device)
        self._surrogate, self._sums, self._has_margin = surrogate, sums, has_margin
        self._means = torch.empty(0)
        self._variances: Tensor | None = None  # of `_state`, made when somebody asks
        self._a = torch.ones(1, dtype=torch.float64, device=sums.device)
        self._ties = Ties(sums)
        self._fitted: object = None  # the hyperparameters that `_a` belongs to

    def update(self) -> None:
        """Brings everything up to the last observation, after fitting the surrogate if due."""
        surrogate = self._surrogate
        surrogate.refit()
        if self._fitted is not surrogate.hyperparameters and surrogate.relative_cost:
            self._a = surrogate.scale.everywhere(self._sums.device)
        self._fitted = surrogate.hyperparameters
        self._sums.add_configurations(surrogate.queries.codes())
        self._state, self._variances = surrogate.on_device(), None
        rows = self._sums.sums(self._state.weights)
        self._means = with_worst(rows, surrogate.num_constraints, surrogate.units())

    @property
    def mean_c(self) -> Tensor:
        """`|Theta|` means of cbar in USD (float64)."""
        return self._mean_c(slice(None))

    @property
    def mean_g(self) -> Tensor:
        """`|Theta|` means of gbar in units of quality (float64), of the worst of several."""
        return self._means[1]

    @property
    def variance(self) -> Tensor:
        """`2 x |Theta|` variances, of cbar / a (of cbar if costs are not relative) and of gbar."""
        if self._variances is None:
            forms = self._sums.forms(self._state.forms, self._state.constants, -1.0)
            self._variances = forms.clamp_(min=0.0)
        return self._variances

    def least_slope(self) -> float:
        """min{(mean of gbar + 1) / sigma of gbar} over Theta."""
        return least_allowed((self.mean_g + 1) / self.variance[1].sqrt(), self._forbidden)

    def lower_bounds(self, beta: Beta, u_out: float, theta_out: int | None) -> FewMinima:
        """L_c and L_g, and their minima; arguments as in `LowerBounds`."""
        self._look_beside(theta_out)
        sigma = self.variance.sqrt()
        g = torch.sub(self._means[1], sigma[1], alpha=beta.g)
        c = self._lower_c(sigma[0], beta.c)
        if self._forbidden is not None:
            c.masked_fill_(self._forbidden, math.inf)
            g.masked_fill_(self._forbidden, math.inf)
        values = [torch.where(g <= 0, c, self._ties.inf), self._means[1], g]
        moments = partial(self._moments, c, g)
        return FewMinima(values, beta, u_out, theta_out, moments, self._ties, self._has_margin)

    def _look_beside(self, theta_out: int | None) -> None:
        beside = None if theta_out is None else self._surrogate.space.theta_at(theta_out)
        self._surrogate.queries.look_beside(beside)

    def _moments(self, c: Tensor, g: Tensor, at: slice | int) -> Moments:
        """At one flat index, or on all of Theta, from L_c and L_g there."""
        return Moments(self._mean_c(at), c[at], self._means[1][at], g[at])

    def _mean_c(self, at: slice | int) -> Tensor:
        """As that of a candidate."""
        mean_c = self._means[0][at]
        if self._surrogate.relative_cost:
            a = self._a[at]
            mean_c = a.addcmul(mean_c.clamp(min=LEAST_MEAN - 1), a)  # a + mean a, in one launch
        return mean_c

    def _lower_c(self, sigma: Tensor, b: float) -> Tensor:
        """L_c in USD; see `lognormal_bound` if costs are relative."""
        if not self._surrogate.relative_cost:
            return torch.sub(self._means[0], sigma, alpha=b)
        mean = self._means[0].clamp(min=LEAST_MEAN - 1).add_(1)
        v = sigma.div_(mean).square_().log1p_()
        v.add_(v.sqrt(), alpha=2 * b)
        return mean.mul_(torch.pow(math.exp(-0.5), v)).mul_(self._a)  # exp(-b sqrt(v) - v / 2)


class FewMinima(WholeOnDevice):
    """As `LowerBounds`: the device finds the few best configurations, and the CPU decides.

    Values on both differ by rounding, which is far less than the width of a tie. So all that tie on
    the CPU are among those within twice the width on the device.

    Args:
        values: L_c in USD, +inf where L_g > 0, and written over; the mean of gbar; L_g: `|Theta|`
            each.
        beta: beta_c in USD and beta_g.
        u_out: Upper bound on c(theta_out) in USD.
        theta_out: Flat index of theta_out, which cannot improve on itself; None for no exception.
        moments: On the device, at one flat index or on all of Theta; asked for when needed.
        ties: Constants of Theta.
        has_margin: Whether the choice asks for L_g below a margin. Else the sign of the least L_g
            is enough, and saves a pass over Theta.

    Attributes:
        c: `|Theta|` values of L_c in USD, +inf where L_g > 0 and at theta_out.
        least_c: min{L_c : L_g <= 0} in USD; +inf if nothing can improve on theta_out.
        least_g: Least L_g of those that can, or -1 in its place without a margin; +inf if nothing
            can.
        is_exact: True.

    Raises:
        RuntimeError: If a mean is no number.
    """

    is_exact = True

    def __init__(
        self,
        values: list[Tensor],
        beta: Beta,
        u_out: float,
        theta_out: int | None,
        moments: Callable[[slice | int], Moments],
        ties: Ties,
        has_margin: bool = True,
    ) -> None:
        self._all_moments, self._ties = moments, ties
        self.c, self._mean_g, self._g = values
        self.beta, self.u_out, self._theta_out = beta, u_out, theta_out
        least = self._least()
        if has_margin:
            least.append(torch.where(self.c <= u_out, self._g, ties.inf).amin())
        least_c, number, *of_g = torch.stack(least).tolist()
        if math.isnan(number):
            raise RuntimeError("the covariance of the observations is not positive definite")
        self.least_c = least_c if least_c <= min(u_out, INELIGIBLE) else math.inf
        least_g = of_g[0] if has_margin else -1.0
        self.least_g = least_g if self.least_c < math.inf else math.inf

    def _least(self) -> list[Tensor]:
        """The least L_c without theta_out, and what is no number if any mean is none."""
        if self._theta_out is not None:
            self.c[self._theta_out].fill_(math.inf)
        return [self.c.amin(), self._mean_g.amin()]

    def _moments(self, at: slice | int) -> Moments:
        return self._all_moments(at)

    def argmin_c(self, most_g: float, scale: float, seed: int) -> int:
        """Flat index of the least L_c subject to L_g <= `most_g` <= 0; see `LowerBounds`."""
        return self._argmin(self.c, lambda _mean_g, _g, c: c, scale, seed, most_g)

    def most_promising(self, margin: float, least_price: float, seed: int) -> int:
        """Flat index of the most promising configuration; see `LowerBounds.most_promising`."""

        def negative(mean_g: Tensor, g: Tensor, c: Tensor) -> Tensor:
            moments = mean_g, g, c
            return negative_promise(*moments, self.beta.g, margin, self.u_out, least_price)

        values, index = self._negative_promises(margin, least_price)
        return self._argmin(values, negative, 0.0, seed, -margin, index)

    def _negative_promises(self, margin: float, least_price: float) -> tuple[Tensor, Tensor | None]:
        """Twice the negative promise in few passes over Theta, and the few least if known."""
        half = (self._mean_g - self._g).clamp_min_(LEAST_WIDTH).mul_(math.sqrt(2) / self.beta.g)
        x = (self._mean_g + margin if margin else self._mean_g).clamp_min(0.0).div_(half)
        P, price = x.erfc_(), self.c.clamp_min(least_price).reciprocal_()
        return torch.addcmul(P, P, price, value=-self.u_out), None

    def _argmin(
        self,
        values: Tensor,
        objective: Callable[..., Tensor],
        scale: float,
        seed: int,
        most_g: float,
        index: Tensor | None = None,
    ) -> int:
        """Flat index of the least objective subject to L_g <= `most_g`; see `LowerBounds`.

        Args:
            values: The objective on the device, or a multiple of it; not the least where L_g > 0.
            objective: Of the mean of gbar, L_g and L_c.
            scale: See `tie_width`.
            seed: See `first_tied`.
            most_g: At least one configuration must be eligible.
            index: The few least of `values`, eligible ones before others; None to find them.
        """
        if most_g < 0:
            values = torch.where(self._g <= most_g, values, self._ties.inf)
        if index is None:
            index = values.topk(min(_FEW, len(values)), largest=False).indices
        few, most = len(index), values[index[:1]]
        index, found = self._brought(index, objective, most_g)
        best = float(found.min())
        width = tie_width(best, scale)
        if few < len(values) and float(found.max()) <= best + 2 * width:  # more may tie
            tied = values <= most + 2 * tie_width(1.0, 0.0) * most.abs().clamp_min(scale)
            rank = torch.where(tied, self._ties.rank(seed), self._ties.last)
            found = torch.empty(0)
            while not (found <= best + width).any():  # the first in the order of ties, most often
                index = rank.topk(few, largest=False).indices
                index, found = self._brought(index, objective, most_g)
                few = min(2 * few, len(values))
        return first_tied(index[found <= best + width], seed)

    def _brought(
        self, index: Tensor, objective: Callable[..., Tensor], most_g: float
    ) -> tuple[Tensor, Tensor]:
        """Some configurations on the CPU, and their objective as the CPU has it; one wait."""
        of = self._mean_g[index], self._g[index], self.c[index], index.view(torch.float64)
        *moments, index = torch.cat(of).cpu().chunk(4)  # the bits of the index pass through
        values = torch.where(moments[1] <= most_g, objective(*moments), math.inf)
        return index.view(torch.int64), values


def joint_posterior_class(device: torch.device, num_modules: int) -> type[DeviceJointPosterior]:
    """With Triton's kernels on CUDA, where they can be made."""
    if device.type == "cuda" and num_modules > 1 and find_spec("triton"):
        fused = import_module("scope_torch.space_search.fused")  # needs Triton
        if fused.works_on(device):
            return fused.FusedJointPosterior
    return DeviceJointPosterior


def make_joint_posterior(
    surrogate: JointSurrogate,
    has_margin: bool = False,
    allowed: Allowed | None = None,
    settings: dict[str, Any] | None = None,
    index: Tensor | None = None,
) -> GridPosterior | BoxedPosterior | DeviceJointPosterior:
    """The posterior on Theta: on the device if the surrogate is there, and Theta is no list.

    Args:
        surrogate: The joint surrogate.
        has_margin: See `FewMinima`.
        allowed: Which configurations may be chosen; None for all.
        settings: See `GridPosterior`.
        index: See `make_grid`.
    """
    space, kernel, device = surrogate.space, surrogate.kernel, surrogate.device
    grid = make_grid(space, kernel, device, index)
    if (
        isinstance(surrogate, TensorJointSurrogate)
        and isinstance(kernel, HammingKernel)
        and grid.index is None
    ):
        made = joint_posterior_class(device, space.num_modules)
        return made(surrogate, DeviceSums(space, kernel, device), has_margin, allowed)
    return boxed(GridPosterior(surrogate, grid, allowed, settings), surrogate, grid, allowed)
