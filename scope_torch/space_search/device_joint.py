"""The averages of the joint surrogate on all of Theta, and their minima, on a device.

| symbol | here | shape | unit |
| --- | --- | --- | --- |
| mean of cbar / a - 1, or of cbar; of gbar | `_means` | `|Theta|` | 1 or USD; quality |
| their variances | `_variances` | `2 x |Theta|` | |
| L_c, mean of gbar, L_g | `FewMinima.c`, `mean_g`, `g` | few | USD, quality |

Few configurations can improve on theta_out: L_c <= u_out and L_g <= 0 held for 1 in 50 to 1 in 1000
of them (LOG.md). So they are collected, and brought to the CPU unless there are a million.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scope_torch.bounds.base import Beta
from scope_torch.model.cost_scale import LEAST_MEAN
from scope_torch.model.device_sums import DeviceSums
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.kernels import HammingKernel
from scope_torch.model.tensor_joint import TensorJointSurrogate
from scope_torch.space import first_tied, tie_width
from scope_torch.space_search.joint_grid import JointGridPosterior
from scope_torch.space_search.minima import Objective

_FEW = 1 << 20


class DeviceJointPosterior:
    """As `JointGridPosterior`, on a device, with variances that are all exact.

    Args:
        surrogate: The joint surrogate; `update` fits it anew when that is due.
        sums: Sums of its kernel over Theta.
    """

    def __init__(self, surrogate: TensorJointSurrogate, sums: DeviceSums) -> None:
        self._surrogate, self._sums = surrogate, sums
        self._means = self._variances = torch.empty(0)
        self._a = torch.ones(1, dtype=torch.float64, device=sums.device)
        self._fitted: object = None  # the hyperparameters that `_a` belongs to

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

    def settings(self) -> dict[str, Any]:
        """The arguments that decide a choice: none."""
        return {}

    def report(self) -> dict[str, Any]:
        """Every minimum over Theta is exact; see `BranchedPosterior.report`."""
        return {"space_search": "grid", "exact": True, "gap_usd": 0.0}

    def least_slope(self) -> float:
        """min{(mean of gbar + 1) / sigma of gbar} over Theta."""
        return float(((self.mean_g + 1) / self._variances[1].sqrt()).min())

    def lower_bounds(self, beta: Beta, u_out: float, theta_out: int | None) -> FewMinima:
        """What can improve on theta_out, with its L_c and L_g; arguments as in `LowerBounds`."""
        sigma = self._variances.sqrt()
        g = torch.sub(self._means[1], sigma[1], alpha=beta.g)
        c = self._lower_c(sigma[0], beta.c)
        if theta_out is not None:
            c[theta_out].fill_(math.inf)
        index = ((c <= u_out) & (g <= 0)).nonzero()[:, 0]
        few = [values.index_select(0, index) for values in (c, self._means[1], g)]
        return FewMinima(few, index, beta, u_out)

    def _lower_c(self, sigma: Tensor, b: float) -> Tensor:
        """L_c in USD, that of a lognormal distribution if costs are relative (`lognormal_bound`)."""
        if not self._surrogate.relative_cost:
            return torch.sub(self._means[0], sigma, alpha=b)
        mean = self._means[0].clamp(min=LEAST_MEAN - 1).add_(1)
        v = sigma.div_(mean).square_().log1p_()
        exponent = v.sqrt().mul_(-b).sub_(v, alpha=0.5)
        return mean.mul_(exponent.exp_()).mul_(self._a)


class FewMinima:
    """As `LowerBounds`, of the configurations that can improve on theta_out.

    Args:
        few: L_c (USD), the mean of gbar, and L_g of each.
        index: Their flat indices, ascending; each has L_c <= u_out and L_g <= 0.
        beta: beta_c in USD and beta_g.
        u_out: Upper bound on c(theta_out) in USD.

    Attributes:
        c: L_c in USD.
        g: L_g.
        least_c: min{L_c : L_g <= 0, L_c <= u_out} in USD; +inf if nothing can improve.
        least_g: min{L_g : L_c <= u_out}, if that is at most 0; otherwise +inf.
        is_exact: True.
        chunks: All of them, as one slice.
        chunk_least_c: `least_c`.
    """

    is_exact = True

    def __init__(self, few: list[Tensor], index: Tensor, beta: Beta, u_out: float) -> None:
        self.beta, self.u_out = beta, u_out
        if len(index) <= _FEW:  # one copy; the bits of whole numbers pass through
            *few, index = torch.cat([*few, index.view(torch.float64)]).cpu().chunk(4)
            index = index.view(torch.int64)
        (self.c, self._mean_g, self.g), self._index = few, index
        self.least_c = self.least_g = math.inf
        if len(index):
            self.least_c, self.least_g = torch.stack([self.c.min(), self.g.min()]).tolist()
        self.chunks, self.chunk_least_c = [slice(None)], [self.least_c]

    def mean_g(self, at: slice | Tensor) -> Tensor:
        """Means of gbar."""
        return self._mean_g[at]

    def argmin_c(self, most_g: float, scale: float, seed: int) -> int:
        """Flat index of the least L_c subject to L_g <= `most_g` <= 0; see `LowerBounds`."""
        return self.argmin(self.c.__getitem__, self.chunk_least_c, scale, seed, most_g)

    def argmin(
        self,
        objective: Objective,
        chunk_least: Sequence[float],  # noqa: ARG002
        scale: float,
        seed: int,
        most_g: float = 0.0,
    ) -> int:
        """Flat index of the least objective subject to L_g <= `most_g`; see `LowerBounds`."""
        values = torch.where(self.g <= most_g, objective(slice(None)), math.inf)
        best = float(values.min())
        tied = (values <= best + tie_width(best, scale)).nonzero()[:, 0]
        return first_tied(self._index[tied], seed)


def make_joint_posterior(surrogate: JointSurrogate) -> JointGridPosterior | DeviceJointPosterior:
    """The posterior on Theta: on the device if the surrogate is there."""
    space, kernel, device = surrogate.space, surrogate.kernel, surrogate.device
    if isinstance(surrogate, TensorJointSurrogate) and isinstance(kernel, HammingKernel):
        return DeviceJointPosterior(surrogate, DeviceSums(space, kernel, device))
    return JointGridPosterior(surrogate, make_grid(space, kernel, device))
