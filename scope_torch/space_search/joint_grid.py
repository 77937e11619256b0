"""The averages of the joint surrogate on all of Theta (docs/joint.md).

| symbol | here | unit |
| --- | --- | --- |
| a(theta), the scale of costs | `_a` | USD |
| mean of cbar / a - 1, or of cbar if costs are not relative | `_relative` | 1, or USD |
| mean of cbar | `mean_c` | USD |
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from scope_torch.allowed import Allowed
from scope_torch.bounds.base import Beta
from scope_torch.model.aggregate import AggregatePosterior
from scope_torch.model.cost_scale import LEAST_MEAN
from scope_torch.model.hamming_sums import DirectGrid, HammingGrid
from scope_torch.model.joint import JointSurrogate
from scope_torch.space_search.grid import Enumerated, GridMoments, forbidden, least_allowed
from scope_torch.space_search.minima import LowerBounds
from scope_torch.space_search.variances import LowRank


class JointGridPosterior(Enumerated):
    """As `GridPosterior`, with a variance for each output and costs relative to the cost scale.

    Args:
        surrogate: The joint surrogate; `update` fits it anew when that is due.
        grid: Sums of its kernel over Theta.
        allowed: Which configurations may be chosen; None for all.

    Attributes:
        mean_c: `|Theta|` means of cbar in USD (float64), written over by the next update.
        mean_g: `|Theta|` means of gbar in units of quality (float64), likewise; of the worst
            constraint in the units of `JointSurrogate.units`.
        upper_variance: `|Theta|` upper bounds on the variance of cbar / a, or of cbar in USD if
            costs are not relative.
        upper_variance_g: `|Theta|` upper bounds on the variance of gbar.
    """

    def __init__(
        self,
        surrogate: JointSurrogate,
        grid: HammingGrid | DirectGrid,
        allowed: Allowed | None = None,
    ) -> None:
        self._surrogate, self._forbidden = surrogate, forbidden(allowed, grid.device)
        prior = [1 / surrogate.num_queries] * 2
        self._moments = GridMoments(grid, prior, surrogate.num_constraints)
        self._relative, self.mean_g = self._moments.means[0], self._moments.worst
        self.upper_variance, self.upper_variance_g = self._moments.variances.upper
        self._a = torch.ones_like(self._relative)
        self.mean_c = torch.empty_like(self._relative)
        self._aggregates: tuple[AggregatePosterior, ...] | None = None  # made when needed
        self._fitted: object = None  # the hyperparameters that the variances belong to
        self._seen = (0, 0)  # the mark of the low-rank updates that exact variances know

    def update(self) -> None:
        """Brings the means up to the last observation, after fitting the surrogate if due."""
        surrogate = self._surrogate
        surrogate.refit()
        if self._fitted is not surrogate.hyperparameters:
            self._fitted = surrogate.hyperparameters
            if surrogate.relative_cost:
                self._a = surrogate.scale.everywhere().to(self._a.device)
            self._moments.variances.upper.fill_(math.inf)  # they may have grown
        self._aggregates = None
        for variance, prior in zip(
            self._moments.variances.upper, surrogate.prior_variances(), strict=True
        ):
            variance.clamp_(max=prior)
        self._moments.renew(surrogate.observed(), surrogate.weights(), self._changes())
        self._moments.combine(surrogate.units())
        if surrogate.relative_cost:
            torch.add(self._relative, 1.0, out=self.mean_c).mul_(self._a)  # no fresh memory
        else:
            self.mean_c.copy_(self._relative)

    def _changes(self) -> Sequence[LowRank]:
        """What the V of both outputs have grown by since the last update; empty if unknown."""
        updates, self._seen = self._surrogate.updates_since(self._seen)
        if updates is None:
            return ()
        changes = []
        of_c, of_g, *_ = self._surrogate.hyperparameters
        for rows, hyperparameters in zip(updates, (of_c, of_g), strict=True):
            _, _, factor = hyperparameters.of_average(self._surrogate.num_queries)
            changes.append(LowRank(rows, rows.new_full((len(rows),), factor)))
        return changes

    @property
    def variance(self) -> Tensor:
        """`|Theta|` exact variances of cbar / a, or of cbar in USD if costs are not relative."""
        self._moments.variances.make_all_exact(self._posteriors())
        return self.upper_variance

    def least_slope(self) -> float:
        """min{(mean of gbar + 1) / sigma of gbar} over Theta."""
        self._moments.variances.make_all_exact(self._posteriors())
        return least_allowed((self.mean_g + 1) / self.upper_variance_g.sqrt(), self._forbidden)

    def lower_bounds(self, beta: Beta, u_out: float, theta_out: int | None) -> LowerBounds:
        """L_c and L_g on all of Theta, and their minima; arguments as in `LowerBounds`."""
        return LowerBounds(self, self._moments.lower, beta, u_out, theta_out, self._forbidden)

    def make_exact(self, index: Tensor) -> bool:
        """Makes both variances exact at the flat indices `index`; see `Variances.make_exact`."""
        codes = self._surrogate.observed()
        return self._moments.variances.make_exact(index, codes, self._posteriors)

    def is_exact(self, index: Tensor) -> Tensor:
        """Where both variances are exact: `len(index)` booleans."""
        return self._moments.variances.is_exact(index)

    def fill_lower(self, at: slice | Tensor, beta: Beta, c: Tensor, g: Tensor) -> None:
        """L_c (USD) and L_g; see `GridPosterior.fill_lower`.

        L_c is that of a lognormal distribution, see `lognormal_bound`, if costs are relative.
        """
        torch.clamp(self.upper_variance_g[at], min=0.0, out=g).sqrt_()  # rounding
        torch.sub(self.mean_g[at], g, alpha=beta.g, out=g)
        if not self._surrogate.relative_cost:
            torch.clamp(self.upper_variance[at], min=0.0, out=c).sqrt_()
            torch.sub(self.mean_c[at], c, alpha=beta.c, out=c)
            return
        mean = (self._relative[at] + 1).clamp_min_(LEAST_MEAN)
        v = torch.clamp(self.upper_variance[at], min=0.0, out=c).div_(mean.square()).log1p_()
        mean *= self._a[at]
        torch.mul(mean, torch.exp(v.sqrt().mul_(-beta.c) - v / 2), out=c)

    def _posteriors(self) -> tuple[AggregatePosterior, ...]:
        if self._aggregates is None:
            self._aggregates = self._surrogate.aggregates()
        return self._aggregates
