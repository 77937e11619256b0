"""The averages on a Theta too large to enumerate: minima by branch and bound.

Answers the same questions as `GridPosterior` (grid.py), without a value for every configuration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from scope_torch.allowed import Allowed
from scope_torch.bounds import Beta
from scope_torch.errors import InputError, whole_number
from scope_torch.model.aggregate import AggregatePosterior, Averaging
from scope_torch.model.device_sums import DeviceSums
from scope_torch.model.direct_sums import MAX_ENUMERATED
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.kernels import HammingKernel
from scope_torch.model.list_sums import listed
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.model.tensor_surrogate import TensorSurrogate
from scope_torch.space import ConfigSpace, first_tied, tie_width
from scope_torch.space_search.allowed_classes import AllowedClasses
from scope_torch.space_search.branch_and_bound import BestFirst, ConstrainedSearch, Form, Minimum
from scope_torch.space_search.device_grid import DevicePosterior
from scope_torch.space_search.grid import GridPosterior, enumerates, settings_of
from scope_torch.space_search.linear import Bounded, LognormalCost
from scope_torch.space_search.prefixes import Classes, LabelledPosterior
from scope_torch.space_search.promise import Promise, PromiseSearch

MAX_MODULES = 12
MAX_NODES = 100_000
_DRAWN = 1 << 18


class BranchedPosterior:
    """Minima of the bounds over Theta, by branch and bound.

    Args:
        surrogate: With one constraint; `update` fits it anew when that is due.
        space: Theta.
        kernel: Its kernel, a function of the Hamming distance.
        max_nodes: Prefixes that one search expands at most. A search that would need more returns
            the best it has found, and a bound on how much better anything else can be.
        margin: The search for the least L_g ends once it has found less than -margin, which may be
            all that the choice asks for; None to find the least.
        allowed: Which configurations may be chosen; None for all.

    Raises:
        InputError: If the kernel does not depend on the Hamming distance alone, Theta has more
            than 12 modules or 9.2e18 configurations, or there are several constraints.
    """

    def __init__(
        self,
        surrogate: Averaging,
        space: ConfigSpace,
        kernel: Kernel,
        max_nodes: int = MAX_NODES,
        margin: Callable[[], float] | None = None,
        allowed: Allowed | None = None,
    ) -> None:
        if not isinstance(kernel, HammingKernel):
            raise InputError(
                f"kernel={type(kernel).__name__}: branch and bound needs a kernel of the Hamming "
                f"distance; with another, {MAX_ENUMERATED:.0e} configurations can be searched"
            )
        if space.num_modules > MAX_MODULES or space.size >= 2**63:
            raise InputError(
                f"{space.num_modules} modules, {space.size:.3g} configurations: branch and bound "
                f"takes {MAX_MODULES} modules and 9.2e18 configurations at most"
            )
        if surrogate.num_constraints > 1:
            raise InputError(
                f"{surrogate.num_constraints} constraints: branch and bound takes one; with "
                f"several, {MAX_ENUMERATED:.0e} configurations can be searched, by grid"
            )
        self._surrogate, self._space, self._kernel = surrogate, space, kernel
        self._margin, self._allowed = margin, allowed
        self._made_allowed: tuple[LabelledPosterior, AllowedClasses] | None = None
        self.max_nodes = whole_number("max_nodes", max_nodes, 1)
        self._made: Sequence[AggregatePosterior] = ()
        self._labelled: tuple[int | None, LabelledPosterior] | None = None
        self._searches = self._incomplete = self._most_nodes = 0
        self._gap_usd = 0.0
        self._promise_gap: float | None = None

    def update(self) -> None:
        """Takes in all that the surrogate was told, after fitting it if due."""
        self._surrogate.refit()
        self._made, self._labelled = (), None

    def least_slope(self) -> float:
        """min{(mu_bar_g + 1) / sigma_bar_g} over Theta, by Dinkelbach's method.

        Let r be the ratio of some configuration. The minimiser of mu_bar_g + 1 - r sigma_bar has a
        smaller ratio, unless r is the least. Descent comes near the least; then one proof may do.
        """
        posterior, weights = self.labelled(None), self.weights
        output = len(posterior.variances) - 1
        allowed = self.allowed_classes(posterior)
        labels, slope, prove = posterior.starts, math.inf, False
        if allowed is not None:
            labels = allowed.starts(labels)
        while True:
            k, sigma = posterior.at(labels, output)
            ratio = float(((weights[1] @ k + 1) / sigma).min())
            if prove and ratio >= slope:
                return slope
            if ratio <= 0:  # the least does not matter, and -r sigma is no longer concave
                return ratio
            prove, slope = prove or ratio >= slope, min(ratio, slope)
            objective, free = Form(weights[1], slope, output), Form(weights[0], 0.0)
            how: dict[str, Any] = {"starts": labels, "allowed": allowed}
            if prove:
                found = self.minimise(posterior, objective, free, math.inf, **how)
            else:
                found = ConstrainedSearch(
                    posterior, objective, free, math.inf, max_nodes=1, **how
                ).run()
            labels = found.labels

    def lower_bounds(self, beta: Beta, u_out: float, theta_out: int | None) -> BranchedBounds:
        """Minima of L_c and L_g; arguments as in `LowerBounds`."""
        enough = -math.inf if self._margin is None else -self._margin()
        return BranchedBounds(self, beta, u_out, theta_out, enough)

    def settings(self) -> dict[str, Any]:
        """The arguments that decide a choice, JSON-serialisable."""
        return {"space_search": "branch_and_bound", "max_nodes": self.max_nodes}

    def report(self) -> dict[str, Any]:
        """Statistics of all searches so far, JSON-serialisable.

        `exact`: whether every search ended with a proof. `gap_usd`: by how much, at most, the L_c
        of a chosen theta_cand exceeds the least L_c of an eligible configuration. `promise_gap`, if
        the most promising was chosen: how much more promising, at most, another configuration was
        than a chosen theta_cand, relative to it.
        """
        promise = {} if self._promise_gap is None else {"promise_gap": self._promise_gap}
        return {
            "space_search": "branch_and_bound",
            "exact": self._incomplete == 0,
            "gap_usd": self._gap_usd,
            "searches": self._searches,
            "incomplete_searches": self._incomplete,
            "most_nodes": self._most_nodes,
            **promise,
        }

    def ran(self, search: BestFirst) -> Minimum:
        """Runs a search and keeps count."""
        found = search.run()
        self._searches += 1
        self._incomplete += not search.is_decided
        self._most_nodes = max(self._most_nodes, search.num_nodes)
        return found

    def note_gap(self, gap_usd: float) -> None:
        """Takes in the gap of a chosen theta_cand; see `report`."""
        self._gap_usd = max(self._gap_usd, gap_usd)

    def note_promise(self, found: Minimum) -> None:
        """Takes in a search for the most promising configuration; see `report`."""
        gap = 0.0
        if found.bound < found.value:
            gap = found.bound / found.value - 1 if found.value < 0 else math.inf
        self._promise_gap = max(self._promise_gap or 0.0, gap)

    def cost(self, classes: Classes, b: float) -> Bounded:
        """L_c, `b` standard deviations below the mean."""
        weights, scale = self.weights[0], self._surrogate.cost_scale
        if scale is None:
            return Form(weights, b)
        # LLMs that share a label have the same term, see `Classes`.
        terms = tuple(of[first] for of, first in zip(scale.terms, classes.firsts, strict=True))
        return LognormalCost(weights, b, terms, scale.least)

    def minimise(
        self,
        posterior: LabelledPosterior,
        objective: Bounded,
        constraint: Bounded,
        limit: float,
        **how: Any,
    ) -> Minimum:
        """Runs a `ConstrainedSearch` and keeps count."""
        return self.ran(
            ConstrainedSearch(
                posterior, objective, constraint, limit, max_nodes=self.max_nodes, **how
            )
        )

    @property
    def weights(self) -> Tensor:
        """w_c and w_g of the aggregate: `2 x n`."""
        return self._aggregates()[0].weights.cpu()

    def _aggregates(self) -> Sequence[AggregatePosterior]:
        if not self._made:
            self._made = self._surrogate.aggregates()
        return self._made

    def restrict(self, allowed: Allowed) -> None:
        """From now on minima are over these configurations."""
        self._allowed, self._made_allowed = allowed, None

    def allowed_classes(self, labelled: LabelledPosterior) -> AllowedClasses | None:
        """Which classes of the posterior in labels have a member that may be chosen."""
        if self._allowed is None:
            return None
        if self._made_allowed is None or self._made_allowed[0] is not labelled:
            self._made_allowed = labelled, AllowedClasses(self._allowed, labelled.classes)
        return self._made_allowed[1]

    def labelled(self, apart: int | None) -> LabelledPosterior:
        """The posterior in labels; a configuration, by flat index, has labels of its own."""
        if self._labelled is None or self._labelled[0] != apart:
            index = torch.tensor([] if apart is None else [apart], dtype=torch.int64)
            codes = self._space.unrank(index)
            of_c, *of_g = self._aggregates()
            scale = self._surrogate.cost_scale
            made = LabelledPosterior(
                *(of_c, self._kernel, self._space, codes),
                of_g=of_g[0] if of_g else None,
                terms=None if scale is None else scale.terms,
            )
            self._labelled = apart, made
        return self._labelled[1]


class BranchedBounds:
    """The minima of `LowerBounds`, and the most promising configuration, by branch and bound.

    Args:
        posterior: Up to date.
        beta: beta_c and beta_g.
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
        whole: None: nobody looks at all of Theta.
    """

    whole = None

    def __init__(
        self,
        posterior: BranchedPosterior,
        beta: Beta,
        u_out: float,
        theta_out: int | None,
        enough: float = -math.inf,
    ) -> None:
        self._posterior, self._labelled = posterior, posterior.labelled(theta_out)
        self.beta, self.u_out = beta, u_out
        self._c = posterior.cost(self._labelled.classes, beta.c)
        self._g = Form(posterior.weights[1], beta.g, len(self._labelled.variances) - 1)
        self._excluded = None if theta_out is None else self._labelled.apart[0]
        self._starts = self._labelled.starts
        self._allowed = posterior.allowed_classes(self._labelled)
        of_c = self._minimise(self._c, self._g, 0.0)
        of_g = self._minimise(self._g, self._c, u_out, enough=enough)
        self.least_c, self.least_g = of_c.bound, of_g.value
        self.is_exact = of_g.complete or of_g.value < enough
        self._starts = torch.cat([self._starts, of_c.labels, of_g.labels])

    def argmin_c(self, most_g: float, scale: float, seed: int) -> int:
        """Flat index of the least L_c found subject to L_g <= `most_g`.

        Ties as in `LowerBounds.argmin_c`; among more than 2e8 tied configurations, the first of
        2^18 drawn at random.
        """
        found = self._minimise(self._c, self._g, most_g, width=lambda best: tie_width(best, scale))
        self._posterior.note_gap(found.value - found.bound)
        return first_of_class(self._labelled.classes, found.labels, seed, self._allowed)

    def most_promising(self, margin: float, least_price: float, seed: int) -> int:
        """Flat index of the most promising found; see `LowerBounds.most_promising`."""
        g = self._g
        promise = Promise(self._c, g.weights, g.output, g.beta, margin, self.u_out, least_price)
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
        self, objective: Bounded, constraint: Bounded, limit: float, **how: Any
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


def first_of_class(
    classes: Classes, labels: Tensor, seed: int, allowed: AllowedClasses | None = None
) -> int:
    """The first in the order of `tie_rank`, by flat index, of the configurations with `labels`.

    Args:
        classes: The classes.
        labels: `r x num_modules` labels.
        seed: See `tie_rank`.
        allowed: Which of them count; None for all.
    """
    rows = labels.tolist()
    counts = [classes.count(row) for row in rows]
    if sum(counts) <= MAX_ENUMERATED:
        blocks = ((row, block) for row in rows for block in classes.members(row))
    else:
        generator = torch.Generator().manual_seed(seed)
        weights = torch.tensor(counts, dtype=torch.float64)
        drawn = weights.multinomial(_DRAWN, replacement=True, generator=generator)
        shares = zip(rows, drawn.bincount(minlength=len(rows)).tolist(), strict=True)
        blocks = ((row, classes.draw(row, count, generator)) for row, count in shares if count)
    if allowed is None:
        firsts = [first_tied(block, seed) for _, block in blocks]
    else:
        found = (allowed.first(tuple(row), iter([block]), seed) for row, block in blocks)
        firsts = [index for index in found if index is not None]
    return first_tied(torch.tensor(firsts), seed)


def make_posterior(
    surrogate: QuerySurrogate,
    space: ConfigSpace,
    kernel: Kernel,
    *,
    space_search: str,
    max_nodes: int,
    device: torch.device | str | None,
    allowed: Allowed | None = None,
) -> GridPosterior | DevicePosterior | BranchedPosterior:
    """The posterior on Theta, by `grid` or `branch_and_bound`; `auto`: see `enumerates`.

    A grid of a `TensorSurrogate` with a kernel of the Hamming distance is a `DevicePosterior`.

    Raises:
        InputError: If `space_search` is neither, or cannot search this space.
    """
    index = listed(allowed, kernel)
    if enumerates(space, space_search, index):
        grid = make_grid(space, kernel, device, index)
        if (
            isinstance(surrogate, TensorSurrogate)
            and isinstance(kernel, HammingKernel)
            and grid.index is None
        ):
            sums = DeviceSums(space, kernel, surrogate.device)
            return DevicePosterior(surrogate, sums, allowed)
        return GridPosterior(surrogate, grid, allowed, settings_of(space, space_search, max_nodes))
    return BranchedPosterior(surrogate, space, kernel, max_nodes, allowed=allowed)
