"""The averages of the joint surrogate on a Theta too large to enumerate (docs/joint.md).

Answers the same questions as `JointGridPosterior` (joint_grid.py), without a value for every
configuration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scope_torch.allowed import Allowed
from scope_torch.bounds.base import Beta
from scope_torch.errors import InputError
from scope_torch.model.aggregate import AggregatePosterior
from scope_torch.model.direct_sums import MAX_ENUMERATED
from scope_torch.model.joint import JointSurrogate
from scope_torch.space import tie_width
from scope_torch.space_search.branch_and_bound import Form, Minimum
from scope_torch.space_search.branched import Branched, first_of_class
from scope_torch.space_search.device_joint import DeviceJointPosterior, make_joint_posterior
from scope_torch.space_search.joint_grid import JointGridPosterior
from scope_torch.space_search.linear import Bounded, LognormalCost
from scope_torch.space_search.prefixes import Classes
from scope_torch.space_search.promise import Promise, PromiseSearch

MAX_NODES = 20_000


class JointBranchedPosterior(Branched):
    """As `JointGridPosterior`, by branch and bound.

    Args:
        surrogate: The joint surrogate; `update` fits it anew when that is due.
        max_nodes: Prefixes that one search expands at most; then it returns the best it has found.
        margin: The search for the least L_g ends once it has found less than -margin, which is
            all that the choice asks for; None to find the least.
        allowed: See `Branched`.

    Raises:
        InputError: See `Branched`.
    """

    def __init__(
        self,
        surrogate: JointSurrogate,
        max_nodes: int = MAX_NODES,
        margin: Callable[[], float] | None = None,
        allowed: Allowed | None = None,
    ) -> None:
        of_space = surrogate.space, surrogate.kernel
        super().__init__(*of_space, max_nodes, surrogate.num_constraints, allowed)
        self._surrogate, self._margin = surrogate, margin
        self._promise_gap = 0.0

    def update(self) -> None:
        """Takes in all that the surrogate was told, after fitting it if due."""
        self._surrogate.refit()
        super().update()

    def lower_bounds(self, beta: Beta, u_out: float, theta_out: int | None) -> JointBranchedBounds:
        """Minima of L_c and L_g; arguments as in `LowerBounds`."""
        enough = -math.inf if self._margin is None else -self._margin()
        return JointBranchedBounds(self, beta, u_out, theta_out, enough)

    def report(self) -> dict[str, Any]:
        """See `Branched.report`.

        `promise_gap`: how much more promising, at most, another configuration was than a chosen
        theta_cand, relative to it.
        """
        return {**super().report(), "promise_gap": self._promise_gap}

    def note_promise(self, found: Minimum) -> None:
        """Takes in a search for the most promising configuration; see `report`."""
        if found.bound < found.value:
            gap = found.bound / found.value - 1 if found.value < 0 else math.inf
            self._promise_gap = max(self._promise_gap, gap)

    def cost(self, classes: Classes, b: float) -> Bounded:
        """L_c, `b` standard deviations below the mean."""
        weights = self.weights[0]
        if not self._surrogate.relative_cost:
            return Form(weights, b)
        scale = self._surrogate.scale
        # LLMs that share a label were not observed, so their terms are the same median.
        terms = tuple(of[first] for of, first in zip(scale.terms, classes.firsts, strict=True))
        return LognormalCost(weights, b, terms, scale.least)

    def _make_aggregates(self) -> Sequence[AggregatePosterior]:
        of_c, of_g = self._surrogate.aggregates()
        return of_c, of_g


class JointBranchedBounds:
    """The minima of `LowerBounds`, and the most promising configuration, by branch and bound.

    Args:
        posterior: Up to date.
        beta: Standard deviations.
        u_out: See `LowerBounds`.
        theta_out: See `LowerBounds`.
        enough: The search for `least_g` ends below that.

    Attributes:
        beta: As given.
        u_out: As given.
        least_c: min{L_c : L_g <= 0}, or a lower bound on it that could be proven; +inf if nothing
            is feasible.
        least_g: The least L_g found with L_c <= u_out; +inf if there is none.
        is_exact: Whether less than `least_g` cannot exist, or it is below `enough`.
    """

    def __init__(
        self,
        posterior: JointBranchedPosterior,
        beta: Beta,
        u_out: float,
        theta_out: int | None,
        enough: float = -math.inf,
    ) -> None:
        self._posterior, self._labelled = posterior, posterior.labelled(theta_out)
        self.beta, self.u_out = beta, u_out
        self._c = posterior.cost(self._labelled.classes, beta.c)
        self._g = Form(posterior.weights[1], beta.g, 1)
        self._excluded = None if theta_out is None else self._labelled.apart[0]
        self._starts = self._labelled.starts
        self._allowed = posterior.allowed_classes(self._labelled)
        of_c = self._minimise(self._c, self._g, 0.0)
        of_g = self._minimise(self._g, self._c, u_out, enough=enough)
        self.least_c, self.least_g = of_c.bound, of_g.value
        self.is_exact = of_g.complete or of_g.value < enough
        self._starts = torch.cat([self._starts, of_c.labels, of_g.labels])

    def argmin_c(self, most_g: float, scale: float, seed: int) -> int:
        """Flat index of the least L_c found subject to L_g <= `most_g`; see `BranchedBounds`."""
        found = self._minimise(self._c, self._g, most_g, width=lambda best: tie_width(best, scale))
        self._posterior.note_gap(found.value - found.bound)
        return first_of_class(self._labelled.classes, found.labels, seed, self._allowed)

    def most_promising(self, margin: float, least_price: float, seed: int) -> int:
        """Flat index of the most promising configuration found; see `MostPromising`.

        Args:
            margin: L_g must be at most -margin.
            least_price: What L_c counts as at least, in USD.
            seed: Decides ties.
        """
        promise = Promise(self._c, self._g.weights, 1, self.beta.g, margin, self.u_out, least_price)
        search = PromiseSearch(
            self._labelled,
            promise,
            starts=self._starts,
            max_nodes=self._posterior.max_nodes,
            excluded=self._excluded,
            allowed=self._allowed,
            width=lambda best: tie_width(best, 0.0),
        )
        found = self._posterior.ran(search)
        self._posterior.note_promise(found)
        return first_of_class(self._labelled.classes, found.labels, seed, self._allowed)

    def _minimise(
        self,
        objective: Bounded,
        constraint: Bounded,
        limit: float,
        **how: Any,
    ) -> Minimum:
        return self._posterior.minimise(
            self._labelled,
            objective,
            constraint,
            limit,
            starts=self._starts,
            excluded=self._excluded,
            allowed=self._allowed,
            **how,
        )


def make_joint_search(
    surrogate: JointSurrogate,
    *,
    space_search: str,
    max_nodes: int,
    margin: Callable[[], float],
    allowed: Allowed | None = None,
) -> JointGridPosterior | DeviceJointPosterior | JointBranchedPosterior:
    """The posterior on Theta, by `grid` or `branch_and_bound`; `auto`: by grid up to 2e8.

    Args:
        surrogate: The joint surrogate.
        space_search: As above.
        max_nodes: Prefixes that one search expands at most; then it returns the best it has found.
        margin: How far below 0 the choice asks L_g to be, in units of quality.
        allowed: Which configurations may be chosen; None for all.

    Raises:
        InputError: If `space_search` is neither, or cannot search this space.
    """
    if space_search not in ("auto", "grid", "branch_and_bound"):
        raise InputError(f"space_search={space_search!r} must be auto, grid or branch_and_bound")
    fits = surrogate.space.size <= MAX_ENUMERATED
    if space_search == "grid" or (space_search == "auto" and fits):
        return make_joint_posterior(surrogate, margin() > 0, allowed)
    return JointBranchedPosterior(surrogate, max_nodes, margin, allowed)
