"""The dataset-level GPs as a BoTorch model of all of Theta, and BoTorch's search on it."""

from __future__ import annotations

from functools import cached_property

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.optim import optimize_acqf_discrete
from gpytorch.kernels import Kernel
from torch import Tensor

from baselines.reduced_space import ReducedSpace
from scope_torch.model.aggregate import AggregatePosterior
from scope_torch.model.botorch import AggregateModel
from scope_torch.model.hamming_sums import DirectGrid, HammingGrid, make_grid

BY_KERNEL = 1 << 14  # classes; from here on sums over all of Theta take less time (LOG.md)
BATCH = 1 << 13  # points at a time, about what the cache holds


class DatasetModel(AggregateModel):
    """Outputs c and g in units of amp, on codes of Theta; both have the same variance.

    Where Theta is large, single points are looked up in sums over all of Theta: equal to rounding,
    and faster than the kernel of every batch. Joint posteriors always come from the kernel.

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
        if X.shape[-2] > 1 or self.reduced.space.size <= BY_KERNEL:
            return super().moments(X)
        index = self.reduced.rank(X.long())
        return self.means[:, index].movedim(0, -1), self.variance[index].unsqueeze(-1)

    @cached_property
    def means(self) -> Tensor:
        """Posterior means of c and g by flat index of `reduced`: `2 x size` (float64)."""
        return self._grid.weighted_sums(self._codes, self._aggregate.weights)

    @cached_property
    def variance(self) -> Tensor:
        """Posterior variance of either, without noise, by flat index of `reduced` (float64)."""
        form = self._grid.quadratic_form(self._codes, self._aggregate.matrix)
        return form.neg_().add_(self._aggregate.constant)

    @property
    def _codes(self) -> Tensor:
        return self.reduced.relabel(self._aggregate.codes)

    @property
    def _grid(self) -> HammingGrid | DirectGrid:
        return make_grid(self.reduced.space, self._kernel, self._aggregate.codes.device)


def mean_and_sigma(model: Model, X: Tensor) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of a BoTorch model at `b x 1 x N` points: `b x m` each."""
    posterior = model.posterior(X)
    return posterior.mean.squeeze(-2), posterior.variance.squeeze(-2).sqrt()


def maximum(
    acquisition: AcquisitionFunction, reduced: ReducedSpace, among: Tensor
) -> tuple[float, Tensor]:
    """The largest value of an acquisition on classes of Theta, by BoTorch's discrete search.

    BoTorch returns one maximiser. The values of all classes show which others tie with it.

    Args:
        acquisition: Takes `b x 1 x num_modules` codes.
        reduced: Theta, with the interchangeable configurations merged.
        among: Flat indices of the classes to search, in `reduced` (int64); at least one.

    Returns:
        The largest value, and the values by flat index of `reduced` (float64; -inf elsewhere).
    """
    kept: list[Tensor] = []
    hook = acquisition.register_forward_hook(lambda *args: kept.append(args[-1]))
    best = [
        optimize_acqf_discrete(acquisition, 1, reduced.codes(index).double(), BATCH)[1]
        for index in among.split(64 * BATCH)  # bounds the memory
    ]
    hook.remove()
    values = best[0].new_full((reduced.space.size,), -torch.inf)
    return float(torch.stack(best).max()), values.index_copy_(0, among, torch.cat(kept))
