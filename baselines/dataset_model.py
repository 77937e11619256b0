"""The dataset-level GPs as a BoTorch model of all of Theta, and BoTorch's search on it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.optim import optimize_acqf_discrete
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.baselines.reduced_space import ReducedSpace
from scope_torch.model.aggregate import AggregatePosterior
from scope_torch.model.botorch import AggregateModel
from scope_torch.model.hamming_sums import make_grid

BY_KERNEL = 1 << 17  # kernel values; for more, sums over all of Theta take less time
BATCH = 1 << 15  # points at a time: 32 ms for 203,280 classes; 4,096 56 ms, 262,144 40 ms


class DatasetModel(AggregateModel):
    """Outputs c and g (of each constraint) in units of amp, on codes of Theta; of equal variance.

    Where Theta is large, single points are looked up in sums over all of Theta: equal to rounding,
    and faster than the kernel of every batch. Joint posteriors always come from the kernel. After
    40 data of 23^4 configurations, sums and look-ups took 14 ms, the kernel 140 ms.

    Args:
        aggregate: The average over one query, the data set, in units of amp.
        kernel: k with k(theta, theta) = 1.
        reduced: Theta, with the interchangeable configurations merged; every configuration of the
            data has a class of its own.
    """

    def __init__(
        self, aggregate: AggregatePosterior, kernel: Kernel, reduced: ReducedSpace
    ) -> None:
        super().__init__(aggregate, kernel)
        self.reduced = reduced

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """See `AggregateModel.moments`; single points must be configurations of Theta."""
        if X.shape[-2] > 1 or self._is_small:
            return super().moments(X)
        index = self.reduced.rank(X.long())
        return self.means[:, index].movedim(0, -1), self.variance[index].unsqueeze(-1)

    @property
    def means(self) -> Tensor:
        """Posterior means of c and g by flat index of `reduced`: `(1 + K) x size` (float64)."""
        return self._everywhere[0]

    @property
    def variance(self) -> Tensor:
        """Posterior variance of each, without noise, by flat index of `reduced` (float64)."""
        return self._everywhere[1]

    @cached_property
    def _everywhere(self) -> tuple[Tensor, Tensor]:
        if self._is_small:
            mean, covariance = super().moments(self.reduced.codes.unsqueeze(-2))
            return mean.squeeze(-2).T.contiguous(), covariance.flatten().clamp_(min=0.0)
        data, space = self._aggregate, self.reduced.space
        grid = make_grid(space, self._kernel, data.codes.device)
        codes = self.reduced.relabel(data.codes)
        form = grid.quadratic_form(codes, data.matrix)
        variance = form.neg_().add_(data.constant).clamp_(min=0.0)  # rounding
        return grid.weighted_sums(codes, data.weights), variance

    @property
    def _is_small(self) -> bool:
        return self.reduced.space.size * len(self._aggregate.codes) <= BY_KERNEL


def mean_and_sigma(model: Model, X: Tensor) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of a BoTorch model at single points: `b x m` each.

    Args:
        model: Any BoTorch model with m outputs.
        X: `b x 1 x num_modules` codes (float64).

    Raises:
        ValueError: If X has more than one point in a batch.
    """
    if X.shape[-2] != 1:
        raise ValueError(f"X of shape {tuple(X.shape)} must hold one point a batch: b x 1 x d")
    posterior: Any = model.posterior(X)
    return posterior.mean.squeeze(-2), posterior.variance.squeeze(-2).sqrt()


def maximum(
    acquisition: AcquisitionFunction, reduced: ReducedSpace, among: Tensor | None = None
) -> tuple[float, Tensor]:
    """The largest value of an acquisition on classes of Theta, by BoTorch's discrete search.

    BoTorch returns one maximiser. The values of all classes show which others tie with it.

    Args:
        acquisition: Takes `b x 1 x num_modules` codes.
        reduced: Theta, with the interchangeable configurations merged.
        among: Flat indices in `reduced` of the classes to search, at least one; None for all.

    Returns:
        The largest value, and the values by flat index of `reduced` (float64; -inf elsewhere).
    """
    kept: list[Tensor] = []
    hook = acquisition.register_forward_hook(lambda *call: kept.append(call[-1]))
    choices = reduced.codes if among is None else reduced.codes.index_select(0, among)
    best = [
        optimize_acqf_discrete(acquisition, 1, part.double(), BATCH)[1]
        for part in choices.split(BATCH)
    ]
    hook.remove()
    values = torch.cat(kept)
    if among is not None:
        values = values.new_full((reduced.space.size,), -torch.inf).index_copy_(0, among, values)
    return float(torch.stack(best).max()), values
