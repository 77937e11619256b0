"""The joint posterior of the averages on all of Theta."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scope_torch.bounds import Beta
from scope_torch.cost_scale import LEAST_MEAN
from scope_torch.grid_posterior import GridPosterior
from scope_torch.hamming_grid import DirectGrid, HammingGrid
from scope_torch.joint_surrogate import JointSurrogate


class JointGridPosterior(GridPosterior):
    """As `GridPosterior`, with a variance for each output, costs relative to the cost scale.

    Args:
        surrogate: The joint surrogate; fitted anew by `update` when that is due.
        grid: Sums of its kernel over Theta.

    Attributes:
        upper_variance_g: `|Theta|` upper bounds on the variance of gbar; `upper_variance` are those
            of the variance of cbar / a, or of cbar in USD if costs are not relative.
    """

    def __init__(self, surrogate: JointSurrogate, grid: HammingGrid | DirectGrid) -> None:
        self._joint = surrogate
        super().__init__(surrogate.queries, grid)
        self.upper_variance_g = self.upper_variance.clone()
        self._a = torch.ones_like(self.mean_c)
        self._relative = torch.empty_like(self.mean_c)  # mean of c / a - 1; else of c in USD
        self._fitted: object = None  # the hyperparameters that the variances belong to

    def update(self) -> None:
        """See base."""
        self._joint.refit()
        if self._fitted is not self._joint.hyperparameters:
            self._fitted = self._joint.hyperparameters
            if self._joint.relative_cost:
                self._a = self._joint.scale.everywhere().to(self._a.device)
            for variance in self._variances:  # they may have grown
                variance.fill_(math.inf)
        self._aggregates = self._joint.aggregates()
        codes, (w_c, w_g) = self._aggregates[0].codes, self._aggregates[0].weights
        self._grid.weighted_sum(codes, w_c, out=self._relative)
        self._grid.weighted_sum(codes, w_g, out=self.mean_g)
        if self._joint.relative_cost:
            torch.mul(self._a, self._relative + 1, out=self.mean_c)
        else:
            self.mean_c.copy_(self._relative)
        for variance, posterior in zip(self._variances, self._aggregates, strict=True):
            variance.clamp_(max=posterior.constant)
        self._is_exact.zero_()
        self._num_operations = 0.0

    def fill_lower(self, at: slice | Tensor, beta: Beta, c: Tensor, g: Tensor) -> None:
        """See base."""
        torch.sqrt(self.upper_variance_g[at], out=g)
        torch.sub(self.mean_g[at], g, alpha=beta.g, out=g)
        if not self._joint.relative_cost:
            torch.sqrt(self.upper_variance[at], out=c)
            torch.sub(self.mean_c[at], c, alpha=beta.c, out=c)
            return
        mean = (self._relative[at] + 1).clamp_min_(LEAST_MEAN)
        v = torch.div(self.upper_variance[at], mean.square(), out=c).log1p_()
        mean *= self._a[at]
        torch.mul(mean, torch.exp(v.sqrt().mul_(-beta.c) - v / 2), out=c)

    @property
    def _variances(self) -> tuple[Tensor, Tensor]:
        return self.upper_variance, self.upper_variance_g
