"""The averages of the joint surrogate on all of Theta, and their minima, on a device.

| symbol | here | shape | unit |
| --- | --- | --- | --- |
| mean of cbar / a - 1, or of cbar; of gbar | `_means` | `|Theta|` | 1 or USD; quality |
| their variances | `_variances` | `2 x |Theta|` | |
| L_c, mean of gbar, L_g of some | `FewMinima.c`, `mean_g`, `g` | few | USD, quality |

A candidate that saves much for its price is among the cheapest of those with L_g <= 0. So some
cheapest are brought to the CPU, and the others only if one of them could be the better choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from scope_torch.model.tensor_joint import TensorJointSurrogate
from scope_torch.space import first_tied, tie_width
from scope_torch.space_search.device_grid import WholeOnDevice
from scope_torch.space_search.grid import Enumerated, GridPosterior, forbidden, least_allowed
from scope_torch.space_search.minima import INELIGIBLE, Moments, negative_promise

_FEW = 1 << 16  # configurations that are brought at least: 2 MB
_CHUNK = 1 << 10  # of them, in the first chunk; each other chunk has as many as all before it


class DeviceJointPosterior(Enumerated):
    """As `GridPosterior`, on a device, with variances that are all exact.

    Args:
        surrogate: The joint surrogate; `update` fits it anew when that is due.
        sums: Sums of its kernel over Theta.
        has_margin: Whether the choice asks for L_g below a margin. Then the least L_g is that of
            all configurations, and takes one more wait; else its sign is enough.
        allowed: Which configurations may be chosen; None for all.
    """

    def __init__(
        self,
        surrogate: TensorJointSurrogate,
        sums: DeviceSums,
        has_margin: bool = False,
        allowed: Allowed | None = None,
    ) -> None:
        self._forbidden = forbidden(allowed, sums.device)
        self._surrogate, self._sums, self._has_margin = surrogate, sums, has_margin
        self._means = self._variances = torch.empty(0)
        self._a = torch.ones(1, dtype=torch.float64, device=sums.device)
        self._inf = torch.full_like(self._a, math.inf)
        self._fitted: object = None  # the hyperparameters that `_a` belongs to
        self._last: FewMinima | None = None

    def update(self) -> None:
        """Brings everything up to the last observation, after fitting the surrogate if due."""
        surrogate = self._surrogate
        surrogate.refit()
        if self._fitted is not surrogate.hyperparameters and surrogate.relative_cost:
            self._a = surrogate.scale.everywhere().to(self._sums.device)
        self._fitted = surrogate.hyperparameters
        self._sums.add_configurations(surrogate.queries.codes())
        state = surrogate.on_device()
        self._means = self._sums.sums(state.weights)
        self._variances = self._sums.forms(state.forms, state.constants, -1.0).clamp_(min=0.0)

    @property
    def mean_c(self) -> Tensor:
        """`|Theta|` means of cbar in USD (float64)."""
        return (self._means[0] + 1) * self._a if self._surrogate.relative_cost else self._means[0]

    @property
    def mean_g(self) -> Tensor:
        """`|Theta|` means of gbar in units of quality (float64)."""
        return self._means[1]

    @property
    def variance(self) -> Tensor:
        """`2 x |Theta|` variances, of cbar / a (of cbar if costs are not relative) and of gbar."""
        return self._variances

    def least_slope(self) -> float:
        """min{(mean of gbar + 1) / sigma of gbar} over Theta."""
        return least_allowed((self.mean_g + 1) / self._variances[1].sqrt(), self._forbidden)

    def lower_bounds(self, beta: Beta, u_out: float, theta_out: int | None) -> FewMinima:
        """L_c and L_g, and their minima; arguments as in `LowerBounds`."""
        beside = None if theta_out is None else self._surrogate.space.theta_at(theta_out)
        self._surrogate.queries.look_beside(beside)
        sigma = self._variances.sqrt()
        g = torch.sub(self._means[1], sigma[1], alpha=beta.g)
        c = self._lower_c(sigma[0], beta.c)
        if self._forbidden is not None:
            c.masked_fill_(self._forbidden, math.inf)
            g.masked_fill_(self._forbidden, math.inf)
        eligible = torch.where(g <= 0, c, self._inf)
        few = self._last.next_few if self._last else _FEW
        values = [eligible, self._means[1], g]

        def moments(at: slice | int) -> Moments:
            mean_c = self._means[0][at]
            if self._surrogate.relative_cost:
                mean_c = (mean_c + 1) * self._a[at]
            return Moments(mean_c, c[at], self._means[1][at], g[at])

        self._last = minima = FewMinima(values, beta, u_out, theta_out, few, moments)
        if self._has_margin and len(minima.c):
            if theta_out is not None:
                eligible[theta_out].fill_(math.inf)
            minima.least_g = float(torch.where(eligible <= u_out, g, self._inf).min())
        return minima

    def _lower_c(self, sigma: Tensor, b: float) -> Tensor:
        """L_c in USD; see `lognormal_bound` if costs are relative."""
        if not self._surrogate.relative_cost:
            return torch.sub(self._means[0], sigma, alpha=b)
        mean = self._means[0].clamp(min=LEAST_MEAN - 1).add_(1)
        v = sigma.div_(mean).square_().log1p_()
        v.add_(v.sqrt(), alpha=2 * b)
        return mean.mul_(torch.pow(math.exp(-0.5), v)).mul_(self._a)  # exp(-b sqrt(v) - v / 2)


class FewMinima(WholeOnDevice):
    """As `LowerBounds`, of the cheapest configurations with L_g <= 0, brought to the CPU.

    Args:
        values: L_c in USD, +inf where L_g > 0; the mean of gbar; L_g: `|Theta|` each.
        beta: beta_c in USD and beta_g.
        u_out: Upper bound on c(theta_out) in USD.
        theta_out: Flat index of theta_out, which cannot improve on itself; None for no exception.
        few: How many to bring.
        moments: On the device, at one flat index or on all of Theta; asked for when needed.

    Attributes:
        c: L_c in USD of those with L_c <= u_out, but for theta_out.
        g: Their L_g.
        least_c: min{L_c : L_g <= 0} in USD; +inf if nothing can improve on theta_out.
        least_g: Least L_g of those that are here; +inf if nothing can improve on theta_out.
        is_exact: True.
        next_few: How many to bring next time: twice as many as could be the best now, or more.
    """

    is_exact = True

    def __init__(
        self,
        values: list[Tensor],
        beta: Beta,
        u_out: float,
        theta_out: int | None,
        few: int,
        moments: Callable[[slice | int], Moments],
    ) -> None:
        self._all_moments = moments
        self._values, self.beta, self.u_out, self._theta_out = values, beta, u_out, theta_out
        self.next_few = few
        self._bring(few)
        if not len(self.c) and self._chunk_least_c[-1] < math.inf:
            self._bring(len(values[0]))

    def _bring(self, most: int) -> None:
        """Brings the cheapest `most` configurations to the CPU, with one wait."""
        c, mean_g, g = self._values
        most = min(most, len(c))
        cheapest, index = c.topk(most, largest=False)
        parts = cheapest, mean_g[index], g[index], index.view(torch.float64)  # bits pass through
        c, mean_g, g, index = torch.cat(parts).cpu().chunk(4)
        index = index.view(torch.int64)
        if mean_g.isnan().any():
            raise RuntimeError("the covariance of the observations is not positive definite")
        starts = [0, *(_CHUNK << i for i in range(most.bit_length()) if _CHUNK << i < most)]
        least = [*c[starts].tolist(), float(c[-1]) if most < len(self._values[0]) else math.inf]
        # Lower bounds on L_c in chunks of those that are here, the cheapest first, and at last of
        # those that are not here; +inf above u_out.
        self._chunk_least_c = [one if one <= self.u_out else math.inf for one in least]
        use = c <= min(self.u_out, INELIGIBLE)
        if self._theta_out is not None:
            use &= index != self._theta_out
        self.c, self._mean_g, self.g, self._index = c[use], mean_g[use], g[use], index[use]
        self.least_c = float(self.c.min()) if len(self.c) else math.inf
        self.least_g = float(self.g.min()) if len(self.c) else math.inf

    def _moments(self, at: slice | int) -> Moments:
        return self._all_moments(at)

    def argmin_c(self, most_g: float, scale: float, seed: int) -> int:
        """Flat index of the least L_c subject to L_g <= `most_g` <= 0; see `LowerBounds`."""
        return self._argmin(lambda: self.c, self._chunk_least_c, scale, seed, most_g)

    def most_promising(self, margin: float, least_price: float, seed: int) -> int:
        """Flat index of the most promising configuration; see `LowerBounds.most_promising`."""

        def negative() -> Tensor:
            moments = self._mean_g, self.g, self.c
            return negative_promise(*moments, self.beta.g, margin, self.u_out, least_price)

        # In each chunk the least possible value: probability and price at their best at once.
        least = [(1 - self.u_out / max(c, least_price)) / 2 for c in self._chunk_least_c]
        return self._argmin(negative, least, 0.0, seed, -margin)

    def _argmin(
        self,
        objective: Callable[[], Tensor],
        chunk_least: Sequence[float],
        scale: float,
        seed: int,
        most_g: float,
    ) -> int:
        """Flat index of the least objective subject to L_g <= `most_g`; see `LowerBounds`.

        If a configuration that is not here could be as good, all are brought.
        """
        values = torch.where(self.g <= most_g, objective(), math.inf)
        best = float(values.min())
        needed = sum(least <= best for least in chunk_least[:-1])  # chunks
        self.next_few = max(_FEW, _CHUNK << needed)
        if chunk_least[-1] <= best + tie_width(best, scale):
            self._bring(len(self._values[0]))
            self.next_few *= 2  # more are needed, but not known how many
            values = torch.where(self.g <= most_g, objective(), math.inf)
            best = float(values.min())
        tied = (values <= best + tie_width(best, scale)).nonzero()[:, 0]
        return first_tied(self._index[tied], seed)


def make_joint_posterior(
    surrogate: JointSurrogate,
    has_margin: bool = False,
    allowed: Allowed | None = None,
    settings: dict[str, Any] | None = None,
    index: Tensor | None = None,
) -> GridPosterior | DeviceJointPosterior:
    """The posterior on Theta: on the device if the surrogate is there, and Theta is no list.

    Args:
        surrogate: The joint surrogate.
        has_margin: See `DeviceJointPosterior`.
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
        sums = DeviceSums(space, kernel, device)
        return DeviceJointPosterior(surrogate, sums, has_margin, allowed)
    return GridPosterior(surrogate, grid, allowed, settings)
