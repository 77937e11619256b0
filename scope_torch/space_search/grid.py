"""The averages of a surrogate on all of Theta (eq:scope-mean-variance).

| symbol | here | unit |
| --- | --- | --- |
| a(theta), the scale of costs, if there is one | `_a` | USD |
| mean of cbar / a - 1, or of cbar | `_relative` | 1, or USD |
| mu_bar_c, mu_bar_g | `mean_c`, `mean_g` | USD, quality |
| sigma_bar^2, of cost and constraint or shared by both | `upper_variance`, `upper_variance_g` | |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scope_torch.allowed import Allowed
from scope_torch.bounds.base import Beta
from scope_torch.errors import InputError
from scope_torch.model.aggregate import AggregatePosterior, Averaging, LowRank
from scope_torch.model.cost_scale import LEAST_MEAN
from scope_torch.model.direct_sums import MAX_ENUMERATED
from scope_torch.model.hamming_sums import BoxGrid, DirectGrid, HammingGrid
from scope_torch.space import ConfigSpace
from scope_torch.space_search.minima import LowerBounds
from scope_torch.space_search.variances import Variances


class GridMoments:
    """Means of cost and constraints, their variances, and memory for lower bounds, on Theta.

    Args:
        grid: Sums of the kernel over Theta.
        num_variances: One that all outputs share, or one for each.
        num_constraints: K.

    Attributes:
        means: `(1 + K) x |Theta|` (float64), of cost and constraints; written over by `renew`.
        lower: `2 x |Theta|`, memory for lower bounds; written over by `renew`.
        variances: Of the outputs.
    """

    def __init__(
        self, grid: HammingGrid | DirectGrid, num_variances: int, num_constraints: int
    ) -> None:
        self._grid = grid
        # Memory is kept: fresh pages for millions of configurations cost more than the sums.
        size, rows = grid.size, num_constraints + 3
        self._values = torch.empty(rows, size, dtype=torch.float64, device=grid.device)
        self.means, self.lower = self._values[:-2], self._values[-2:]
        self._worst = self.means[1]
        self._units: Sequence[float] | None = None  # of `_worst`
        self.variances = Variances(grid, num_variances)

    def renew(self, codes: Tensor, weights: Tensor, changes: Sequence[LowRank]) -> None:
        """Makes the means anew, and lowers the variances.

        Args:
            codes: D, `n x num_modules`.
            weights: `(1 + K) x n`, of the means.
            changes: See `Variances.plan`.
        """
        plan = self.variances.plan(codes, changes)
        rows = torch.stack([*weights, *plan.sums])
        self._grid.weighted_sums(codes, rows, out=self._values[: len(rows)])
        self.variances.apply(plan, codes, self.lower)
        self._units = None

    def worst(self, units: Sequence[float]) -> Tensor:
        """`|Theta|`, see `worst_of`; made when the units or the means have changed."""
        if len(self.means) > 2 and self._units != units:
            self._worst = worst_of(self.means[1:], units)
            self._units = units
        return self._worst


def worst_of(means: Tensor, units: Sequence[float]) -> Tensor:
    """`|Theta|`, the largest of the means of the constraints, each over its unit.

    All constraints have the same standard deviation in these units. So L_g of the worst is at most
    0 exactly where that of every constraint is.

    Args:
        means: `K x |Theta|`.
        units: Of each constraint, 1 for the first; none for 1 everywhere.
    """
    worst = means[0]
    for mean, unit in zip(means[1:], units[1:] or [1.0] * (len(means) - 1), strict=True):
        worst = torch.maximum(worst, mean / unit)
    return worst


def forbidden(
    allowed: Allowed | None, device: torch.device | str, listed: Tensor | None = None
) -> Tensor | None:
    """The configurations that may not be chosen, `|Theta|` booleans; None for none.

    Args:
        allowed: Which may; None for all.
        device: Where to put the result.
        listed: Flat indices that are enumerated in place of Theta; None for all of it.
    """
    if allowed is None:
        return None
    if listed is not None:
        assert allowed.index is not None
        out = ~torch.isin(listed, allowed.index.to(device), assume_unique=True)
        return out if out.any() else None
    assert allowed.mask is not None  # a Theta that is enumerated has one
    return ~allowed.mask.to(device)


def least_allowed(values: Tensor, forbidden: Tensor | None) -> float:
    """The least of `|Theta|` values where a configuration may be chosen."""
    return float((values if forbidden is None else values[~forbidden]).min())


class Enumerated:
    """What all posteriors on an enumerated Theta have in common."""

    _forbidden: Tensor | None
    listed: Tensor | None = None

    def restrict(self, allowed: Allowed) -> None:
        """From now on minima are over these configurations; call it after the first `update`."""
        posterior: Any = self  # an attribute of one, a property of the others
        self.forbid(forbidden(allowed, posterior.mean_g.device, self.listed))

    def forbid(self, mask: Tensor | None) -> None:
        """From now on these may not be chosen: a boolean for each with a value; None for none."""
        self._forbidden = mask

    def settings(self) -> dict[str, Any]:
        """The arguments that decide a choice: none."""
        return {}

    def report(self) -> dict[str, Any]:
        """Every minimum over Theta is exact; see `BranchedPosterior.report`."""
        how = "grid" if self.listed is None else "list"
        return {"space_search": how, "exact": True, "gap_usd": 0.0}


class GridPosterior(Enumerated):
    """mu_bar_c, mu_bar_g and sigma_bar of every configuration.

    Args:
        surrogate: `update` fits it anew when that is due.
        grid: Sums of its kernel over Theta, or over a list: then everything that is said of
            `|Theta|` values is of its length, see `listed`.
        allowed: Which configurations may be chosen; None for all.
        settings: What `settings` returns; None: nothing.

    Attributes:
        listed: Flat indices, rising, of the configurations with a value; None for all of Theta.
        mean_c: `|Theta|` values of mu_bar_c in USD (float64), written over by the next update.
        upper_variance: `|Theta|` upper bounds on sigma_bar^2 of cbar (of cbar / a, if there is a
            scale of costs; float64), some of them exact.
        upper_variance_g: The same of gbar; the same memory if the outputs share a variance.
    """

    def __init__(
        self,
        surrogate: Averaging,
        grid: HammingGrid | DirectGrid,
        allowed: Allowed | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self._surrogate, self._grid, self.listed = surrogate, grid, grid.index
        self._forbidden = forbidden(allowed, grid.device, grid.index)
        self._settings = settings or {}
        num_variances = len(surrogate.prior_variances())
        self._moments = GridMoments(grid, num_variances, surrogate.num_constraints)
        self._relative, self._units = self._moments.means[0], surrogate.units()
        upper = self._moments.variances.upper
        self.upper_variance, self.upper_variance_g = upper[0], upper[-1]
        self.mean_c, self._a = self._relative, torch.empty(0)
        if surrogate.cost_scale is not None:
            self.mean_c, self._a = torch.empty_like(self._relative), torch.ones_like(self._relative)
        self._aggregates: Sequence[AggregatePosterior] | None = None  # made when needed
        self._fitted: object = None  # the hyperparameters that the variances belong to
        self._seen: Any = None  # the mark of the low-rank updates that exact variances know

    def update(self) -> None:
        """Brings the means up to the last observation, after fitting the surrogate if due."""
        self._surrogate.refit()
        self.follow()

    def follow(self) -> None:
        """Brings the means up to the last observation."""
        surrogate, self._aggregates = self._surrogate, None
        scale = surrogate.cost_scale
        if self._fitted is not surrogate.hyperparameters:
            self._fitted = surrogate.hyperparameters
            if scale is not None:
                of_list = None if self.listed is None else self._grid.space.unrank(self.listed)
                self._a.copy_(scale.everywhere() if of_list is None else scale.of(of_list.cpu()))
            self._moments.variances.reset(surrogate.prior_variances())  # they may have grown
        changes, self._seen = surrogate.growth_since(self._seen)
        self._moments.renew(surrogate.observed(), surrogate.weights(), changes)
        self._units = surrogate.units()
        if scale is not None:
            torch.add(self._relative, 1.0, out=self.mean_c)  # no fresh memory
            self.mean_c.clamp_min_(LEAST_MEAN).mul_(self._a)  # as that of a candidate

    @property
    def mean_g(self) -> Tensor:
        """`|Theta|` values of mu_bar_g (float64), written over by the next update.

        Of the worst constraint, see `worst_of`, in the units of the last bounds.
        """
        return self._moments.worst(self._units)

    def settings(self) -> dict[str, Any]:
        """See `Enumerated`."""
        return self._settings

    @property
    def variance(self) -> Tensor:
        """`upper_variance`, all exact; written over by an update."""
        self._moments.variances.make_all_exact(self._posteriors())
        return self.upper_variance

    def least_slope(self) -> float:
        """min{(mu_bar_g + 1) / sigma_bar}: the least beta_g for which some L_g is at most -1."""
        self._units = self._surrogate.units()
        self._moments.variances.make_all_exact(self._posteriors())
        return least_allowed((self.mean_g + 1) / self.upper_variance_g.sqrt(), self._forbidden)

    def lower_bounds(self, beta: Beta, u_out: float, theta_out: int | None) -> LowerBounds:
        """L_c and L_g on all of Theta, and their minima; arguments as in `LowerBounds`."""
        self._units = beta.units or self._surrogate.units()
        of = beta, u_out, theta_out, self._forbidden, self.listed
        return LowerBounds(self, self._moments.lower, *of)

    def cut(self, grid: BoxGrid) -> GridPosterior:
        """The same on a box of Theta, as of the last update."""
        index, box = grid.index, GridPosterior(self._surrogate, grid)
        assert index is not None
        box._forbidden = None if self._forbidden is None else self._forbidden[index]
        box._a = self._a[index] if len(self._a) else self._a
        box._fitted, box._seen = self._fitted, self._seen
        box._moments.variances.begin_as(self._moments.variances, index)
        return box

    def least_means(self, bounds: LowerBounds) -> Tensor:
        """What keeps L_c above u_out until the next fit: a mean of the cost of at least this.

        Variances only fall. Without a scale L_c = m - b sigma. With one, s^2 = log(1 + sigma^2 /
        m^2), and d log L_c / d log m = 1 + (b + s) (1 - exp(-s^2)) / s is at most p = 2 + 0.64 b,
        because (1 - exp(-x)) / sqrt(x) is at most 0.6382. So L_c falls at most by (m' / m)^p.

        Args:
            bounds: At the last update.

        Returns:
            `|Theta|` values in USD, or of cbar / a - 1 if there is a scale; -inf where L_c is +inf.
        """
        u_out = bounds.u_out * (1 + 1e-9)  # rounding
        if self._surrogate.cost_scale is None:
            return (self.mean_c - bounds.c).add_(u_out)
        mean = (self._relative + 1).clamp_min_(LEAST_MEAN)
        least = (u_out / bounds.c).pow_(1 / (2 + 0.64 * bounds.beta.c)).mul_(mean).sub_(1)
        return least.masked_fill_(bounds.c == math.inf, -math.inf)

    def make_exact(self, index: Tensor) -> bool:
        """Makes variances exact at some configurations; see `Variances.make_exact`."""
        codes = self._surrogate.observed()
        return self._moments.variances.make_exact(index, codes, self._posteriors)

    def is_exact(self, index: Tensor) -> Tensor:
        """Where variances are exact: `len(index)` booleans."""
        return self._moments.variances.is_exact(index)

    def fill_lower(self, at: slice | Tensor, beta: Beta, c: Tensor, g: Tensor) -> None:
        """L_c (USD) and L_g at some configurations, from variances that may be too large.

        L_c is that of a lognormal distribution, see `lognormal_bound`, if there is a scale of
        costs.

        Args:
            at: Which configurations.
            beta: beta_c (in USD; if there is a scale, 1) and beta_g.
            c: Where to put L_c.
            g: Where to put L_g.
        """
        variance = self.upper_variance[at]
        sigma = torch.clamp(self.upper_variance_g[at], min=0.0, out=g).sqrt_()  # rounding
        if self._surrogate.cost_scale is not None:
            mean = (self._relative[at] + 1).clamp_min_(LEAST_MEAN)
            v = torch.clamp(variance, min=0.0, out=c).div_(mean.square()).log1p_()
            mean *= self._a[at]
            torch.mul(mean, torch.exp(v.sqrt().mul_(-beta.c) - v / 2), out=c)
        else:
            if len(self._moments.variances.upper) > 1:
                sigma = torch.clamp(variance, min=0.0, out=c).sqrt_()
            torch.sub(self.mean_c[at], sigma, alpha=beta.c, out=c)
        torch.sub(self.mean_g[at], g, alpha=beta.g, out=g)

    def _posteriors(self) -> Sequence[AggregatePosterior]:
        if self._aggregates is None:
            self._aggregates = self._surrogate.aggregates()
        return self._aggregates


def enumerates(space: ConfigSpace, how: str, index: Tensor | None) -> bool:
    """Whether Theta, or the list of what may be chosen, is enumerated.

    Args:
        space: Theta.
        how: `grid`: it is; `branch_and_bound`: it is not; `auto`: up to 2e8, or if there is a list.
        index: The list, see `listed`; None if there is none.

    Raises:
        InputError: If `how` is neither.
    """
    if how not in ("auto", "grid", "branch_and_bound"):
        raise InputError(f"space_search={how!r} must be auto, grid or branch_and_bound")
    fits = space.size <= MAX_ENUMERATED or index is not None
    return how == "grid" or (how == "auto" and fits)


def settings_of(space: ConfigSpace, how: str, max_nodes: int) -> dict[str, Any]:
    """What an enumeration says of itself in the settings of a search.

    Lists in a Theta above 2e8 were searched by branch and bound once. The choices are the same, and
    the journals of those searches are to be continued.
    """
    if how == "grid" or space.size <= MAX_ENUMERATED:
        return {}
    return {"space_search": "branch_and_bound", "max_nodes": max_nodes}
