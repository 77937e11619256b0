"""The averages of the per-query surrogate on all of Theta (eq:scope-mean-variance)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scope_torch.allowed import Allowed
from scope_torch.bounds.base import Beta
from scope_torch.model.aggregate import AggregatePosterior
from scope_torch.model.hamming_sums import DirectGrid, HammingGrid
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.space_search.minima import LowerBounds
from scope_torch.space_search.variances import LowRank, Variances


class GridMoments:
    """Means of cost and constraints, their variances, and memory for lower bounds, on Theta.

    Args:
        grid: Sums of the kernel over Theta.
        prior: The variance of each output before any observation; one if they share it.
        num_constraints: K.

    Attributes:
        means: `(1 + K) x |Theta|` (float64), of cost and constraints; written over by `renew`.
        worst: `|Theta|`, means of the worst constraint, see `combine`.
        lower: `2 x |Theta|`, memory for lower bounds; written over by `renew`.
        variances: Of the outputs.
    """

    def __init__(
        self, grid: HammingGrid | DirectGrid, prior: Sequence[float], num_constraints: int
    ) -> None:
        self._grid = grid
        # Memory is kept: fresh pages for millions of configurations cost more than the sums.
        size, rows = grid.space.size, num_constraints + 3
        self._values = torch.empty(rows, size, dtype=torch.float64, device=grid.device)
        self.means, self.lower = self._values[:-2], self._values[-2:]
        self.worst = self.means[1] if num_constraints == 1 else torch.empty_like(self.means[1])
        self.variances = Variances(grid, prior)

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

    def combine(self, units: Sequence[float]) -> None:
        """Makes `worst`, the largest of the means of the constraints, each over its unit.

        All constraints have the same standard deviation in these units. So L_g of the worst is at
        most 0 exactly where that of every constraint is.

        Args:
            units: Of each constraint, 1 for the first; none for 1 everywhere.
        """
        if len(self.means) == 2:
            return
        self.worst.copy_(self.means[1])
        for mean, unit in zip(self.means[2:], units[1:] or [1.0] * len(self.means), strict=False):
            torch.maximum(self.worst, mean / unit, out=self.worst)


def forbidden(allowed: Allowed | None, device: torch.device | str) -> Tensor | None:
    """The configurations that may not be chosen, `|Theta|` booleans; None for none."""
    if allowed is None:
        return None
    assert allowed.mask is not None  # a Theta that is enumerated has one
    return ~allowed.mask.to(device)


def least_allowed(values: Tensor, forbidden: Tensor | None) -> float:
    """The least of `|Theta|` values where a configuration may be chosen."""
    return float((values if forbidden is None else values[~forbidden]).min())


class Enumerated:
    """What all posteriors on an enumerated Theta have in common."""

    _forbidden: Tensor | None

    def restrict(self, allowed: Allowed) -> None:
        """From now on minima are over these configurations; call it after the first `update`."""
        posterior: Any = self  # an attribute of one, a property of the others
        self._forbidden = forbidden(allowed, posterior.mean_g.device)

    def settings(self) -> dict[str, Any]:
        """The arguments that decide a choice: none."""
        return {}

    def report(self) -> dict[str, Any]:
        """Every minimum over Theta is exact; see `BranchedPosterior.report`."""
        return {"space_search": "grid", "exact": True, "gap_usd": 0.0}


class GridPosterior(Enumerated):
    """mu_bar_c, mu_bar_g and sigma_bar of every configuration.

    Args:
        surrogate: The per-query surrogate.
        grid: Sums of its kernel over Theta.
        allowed: Which configurations may be chosen; None for all.

    Attributes:
        mean_c: `|Theta|` values of mu_bar_c in USD (float64), written over by the next update.
        mean_g: `|Theta|` values of mu_bar_g (float64), likewise; of the worst constraint in the
            units of the last bounds, see `GridMoments.combine`.
        upper_variance: `|Theta|` upper bounds on sigma_bar^2 (float64), some of them exact.
    """

    def __init__(
        self,
        surrogate: QuerySurrogate,
        grid: HammingGrid | DirectGrid,
        allowed: Allowed | None = None,
    ) -> None:
        self._surrogate, self._forbidden = surrogate, forbidden(allowed, grid.device)
        self._moments = GridMoments(grid, [1 / surrogate.num_queries], surrogate.num_constraints)
        self.mean_c, self.mean_g = self._moments.means[0], self._moments.worst
        (self.upper_variance,) = self._moments.variances.upper
        self._aggregate: AggregatePosterior | None = None  # of the last update, made when needed
        self._seen = 0  # the mark of the low-rank updates that exact variances know

    def update(self) -> None:
        """Brings the means up to the last observation told to the surrogate."""
        self._aggregate = None
        surrogate = self._surrogate
        update, self._seen = surrogate.updates_since(self._seen)
        changes: list[LowRank] = []
        if update is not None:
            rows, weights = (surrogate.to_device(part) for part in (update.u, update.weight))
            changes.append(LowRank(rows, weights / surrogate.num_queries**2))
        self._moments.renew(surrogate.observed(), surrogate.weights(), changes)

    @property
    def variance(self) -> Tensor:
        """`|Theta|` values of sigma_bar^2 (float64), all exact; written over by an update."""
        self._moments.variances.make_all_exact(self._posteriors())
        return self.upper_variance

    def least_slope(self) -> float:
        """min{(mu_bar_g + 1) / sigma_bar}: the least beta_g for which some L_g is at most -1."""
        self._moments.combine(())
        return least_allowed((self.mean_g + 1) / self.variance.sqrt(), self._forbidden)

    def lower_bounds(self, beta: Beta, u_out: float, theta_out: int | None) -> LowerBounds:
        """L_c and L_g on all of Theta, and their minima; arguments as in `LowerBounds`."""
        self._moments.combine(beta.units)
        return LowerBounds(self, self._moments.lower, beta, u_out, theta_out, self._forbidden)

    def make_exact(self, index: Tensor) -> bool:
        """Makes the variance exact at the flat indices `index`; see `Variances.make_exact`."""
        codes = self._surrogate.observed()
        return self._moments.variances.make_exact(index, codes, self._posteriors)

    def fill_lower(self, at: slice | Tensor, beta: Beta, c: Tensor, g: Tensor) -> None:
        """L_c (USD) and L_g at some configurations, from variances that may be too large.

        Args:
            at: Which configurations.
            beta: beta_c in USD and beta_g.
            c: Where to put L_c.
            g: Where to put L_g.
        """
        sigma = torch.clamp(self.upper_variance[at], min=0.0, out=g).sqrt_()  # rounding
        torch.sub(self.mean_c[at], sigma, alpha=beta.c, out=c)
        torch.sub(self.mean_g[at], sigma, alpha=beta.g, out=g)

    def is_exact(self, index: Tensor) -> Tensor:
        """Where the variance is exact: `len(index)` booleans."""
        return self._moments.variances.is_exact(index)

    def _posteriors(self) -> Sequence[AggregatePosterior]:
        if self._aggregate is None:
            self._aggregate = self._surrogate.aggregate()
        return (self._aggregate,)
