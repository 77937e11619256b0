"""The parts that a search is composed of, as SCOPE (`scope.py`) sees them.

| part | its job | in the paper's SCOPE | in scope_joint |
| --- | --- | --- | --- |
| `Surrogate` | takes in observations | `QuerySurrogate` | `JointSurrogate` |
| `Posterior` | bounds on Theta | `GridPosterior`, ... | `GridPosterior`, ... |
| `Candidate` | bounds at theta_cand | `QueryCandidate` | `JointCandidate` |
| `ConfidenceBounds` | beta | `TunedBounds`, `TheoryBounds` | `CredibleBounds`, `TheoryBounds` |
| `Choice` | picks theta_cand | `LeastCost` | `MostPromising` |
| `Certificate` | says that theta_cand is feasible | `ByBounds` | `BySequence` |
| `Stopping` | skips iterations, ends the search | `Stopping` | `Stopping` |
| `Payoff` | says whether searching on pays | none | `ExpectedReturn` |

`scope_torch.methods` composes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from scope_torch.allowed import Allowed
from scope_torch.bounds.base import Beta
from scope_torch.observation import Observation
from scope_torch.space_search.minima import Moments


class Surrogate(Protocol):
    """What was observed."""

    def observe(
        self, theta: tuple[int, ...], query: int, y_c: float, y_g: float, *others: float
    ) -> None:
        """Adds one observation: `y_c` in USD, `y_g` = s_0 - quality, g of further constraints."""
        ...

    def num_observed(self, theta: tuple[int, ...]) -> int:
        """Number of queries on which `theta` was observed."""
        ...

    def information(self) -> list[float]:
        """Information in the observations, in nats; see `ConfidenceBounds.beta`."""
        ...

    def refit(self, now: bool = False) -> bool:
        """Fits the hyperparameters if that is due, or `now`; whether anything was fitted."""
        ...

    def settings(self) -> dict[str, Any]:
        """The arguments, JSON-serialisable."""
        ...

    def report(self) -> dict[str, Any]:
        """What belongs into a result, JSON-serialisable."""
        ...


class Minima(Protocol):
    """Minima of the lower confidence bounds over Theta.

    Attributes:
        beta: Which L_c and L_g were made with.
        u_out: Upper bound on c(theta_out) in USD.
        least_c: min{L_c : L_g <= 0} in USD, or less where that could not be proven; +inf if no
            configuration has L_g <= 0.
        least_g: min{L_g : L_c <= u_out} in units of quality; +inf if there is none.
        is_exact: Whether `least_g` is proven.
    """

    beta: Beta
    u_out: float
    least_c: float
    least_g: float
    is_exact: bool

    @property
    def whole(self) -> Whole | None:
        """What is known of all of Theta; None if it is too large to look at all of it."""
        ...

    def argmin_c(self, most_g: float, scale: float, seed: int) -> int:
        """Flat index of the least L_c subject to L_g <= `most_g`; see `LowerBounds.argmin_c`."""
        ...

    def most_promising(self, margin: float, least_price: float, seed: int) -> int:
        """Flat index of the most promising; see `LowerBounds.most_promising`."""
        ...


class Whole(Protocol):
    """Minima that can also look for the largest value of a function of the moments."""

    def value(self, function: Callable[[Moments], Tensor], index: int) -> float:
        """Its exact value at a flat index."""
        ...

    def largest(self, function: Callable[[Moments], Tensor]) -> tuple[float, int]:
        """Its largest value on Theta, exactly, and the flat index of a configuration with it.

        Args:
            function: Never falls if L_c and L_g do, and is never below 0.
        """
        ...


M = TypeVar("M", bound=Minima)
M_co = TypeVar("M_co", bound=Minima, covariant=True)
M_contra = TypeVar("M_contra", bound=Minima, contravariant=True)


class Posterior(Protocol[M_co]):
    """Mean and variance of the averages on all of Theta (eq:scope-mean-variance)."""

    def update(self) -> None:
        """Takes in all that the surrogate was told."""
        ...

    def least_slope(self) -> float:
        """Min over Theta of (mu_bar_g + 1) / sigma_bar."""
        ...

    def lower_bounds(self, beta: Beta, u_out: float, theta_out: int | None) -> M_co:
        """L_c and L_g on all of Theta but `theta_out`; see `GridPosterior.lower_bounds`."""
        ...

    def restrict(self, allowed: Allowed) -> None:
        """From now on minima are over these configurations; only asked for in grids with holes."""
        ...

    def settings(self) -> dict[str, Any]:
        """The arguments that decide a choice, JSON-serialisable."""
        ...

    def report(self) -> dict[str, Any]:
        """Whether all minima were exact, JSON-serialisable; see `BranchedPosterior.report`."""
        ...


class Candidate(Protocol):
    """Confidence bounds of one configuration, kept up to date observation by observation.

    Attributes:
        information: See `Surrogate.information`; also counts the candidate's own observations.
    """

    information: list[float]

    @property
    def mean_c(self) -> float:
        """Mean of its cost in USD."""
        ...

    def next_queries(self, number: int) -> list[int]:
        """The next queries to observe, each once; fewer if none are left."""
        ...

    def update(self, query: int, y_c: float, y_g: float, *others: float) -> None:
        """Takes in an observation, in the order of `next_queries`; see `Surrogate.observe`."""
        ...

    def lower_c(self, beta: Beta) -> float:
        """L_c(theta_cand) in USD."""
        ...

    def upper_c(self, beta: Beta) -> float:
        """U_c(theta_cand) in USD."""
        ...

    def lower_g(self, beta: Beta) -> float:
        """L_g(theta_cand) in units of quality; with several constraints that of the worst."""
        ...

    def upper_g(self, beta: Beta) -> float:
        """U_g(theta_cand), likewise."""
        ...


class MakeCandidate(Protocol):
    """Makes the `Candidate` of a configuration."""

    def __call__(
        self, theta: tuple[int, ...], query_order: Sequence[int], in_order: bool = False
    ) -> Candidate:
        """See above.

        Args:
            theta: Codes of the configuration.
            query_order: All queries, in the order in which ties are broken.
            in_order: Whether queries are observed in just that order.
        """
        ...


class Choice(Protocol[M_contra]):
    """Picks theta_cand (line alg:scope-main:select)."""

    def next_iteration(self, i: int, least_g: float) -> int | None:
        """The first iteration from `i` on with an eligible configuration; None if there is none.

        Args:
            i: The paper's i, at least 1.
            least_g: `Minima.least_g`.
        """
        ...

    def select(self, i: int, minima: M_contra, scale: float, seed: int) -> int:
        """Flat index of theta_cand.

        Args:
            i: An iteration with an eligible configuration.
            minima: Of the bounds now.
            scale: Cost in USD below 1e-9 of which a difference is rounding.
            seed: Decides ties.
        """
        ...

    def settings(self) -> dict[str, Any]:
        """The arguments, JSON-serialisable."""
        ...


class Test(Protocol):
    """Whether one candidate is certified to be feasible.

    Attributes:
        order: The order in which its queries must be observed; None for any.
    """

    order: list[int] | None

    @property
    def refuted(self) -> bool:
        """Whether it is infeasible for sure, by its own answers."""
        ...

    @property
    def margin(self) -> float:
        """What g must be below 0 by, in units of quality, if it is to be certified.

        SCOPE gives up a candidate that cannot reach it.
        """
        ...

    def update(self, grades: Sequence[float], upper_g: float) -> bool:
        """Whether it is certified now.

        Args:
            grades: Of the newest observation, in [0, 1], one for each constraint; the first is its
                quality.
            upper_g: min{U_{g,t}, U_{g,t-1}} of the candidate.
        """
        ...

    def again(self) -> bool:
        """Whether it wants all queries asked once more; most never do."""
        ...

    def end(self) -> None:
        """Takes in that its candidate is asked nothing more."""
        ...


class Certificate(Protocol):
    """What certifies theta_cand (line alg:scope-main:update).

    Attributes:
        by_answers: Whether only answers of theta_cand itself certify it: their average must then be
            at the threshold or above.
    """

    by_answers: bool

    def next_margin(self) -> float:
        """What g of the next candidate must be below 0 by, in units of quality; often 0."""
        ...

    def begin(self, k: int, generator: torch.Generator) -> Test:
        """The test of the `k`-th candidate, k >= 1; draws what is random from `generator`."""
        ...

    def settings(self) -> dict[str, Any]:
        """The arguments, JSON-serialisable."""
        ...

    def report(self) -> dict[str, Any]:
        """Its kind, and delta if it has one, JSON-serialisable."""
        ...


@runtime_checkable
class FollowsSearch(Protocol):
    """A `Certificate` that is told more than `Test.update` says; most are not.

    Attributes:
        query_pool: How many queries Calibrate looks at, if the queries are a pool to draw from;
            the search then ends the j-loop once the candidate is theta_out. None for all of them.
    """

    query_pool: int | None

    def record(self, observation: Observation) -> None:
        """Takes in any observation, before the test of its candidate does."""
        ...

    def select(self, theta: tuple[int, ...]) -> None:
        """Takes in theta_cand, before `begin`."""
        ...


class Payoff(Protocol):
    """Whether searching on pays."""

    def goes_on(self, candidate: Any, minima: Any) -> bool:
        """Whether some configuration is expected to save more than finding out costs.

        Args:
            candidate: theta_cand, before its first query; the `Candidate` that the payoff knows.
            minima: The `Minima` at which it was chosen, likewise.
        """
        ...

    def settings(self) -> dict[str, Any]:
        """The arguments that nothing else says, JSON-serialisable."""
        ...

    def report(self) -> dict[str, Any]:
        """What belongs into a result, JSON-serialisable."""
        ...


def interval(candidate: Candidate, beta: Beta) -> dict[str, float]:
    """The bounds of a candidate as columns of `TraceRow`."""
    return {
        "lower_c_usd": candidate.lower_c(beta),
        "upper_c_usd": candidate.upper_c(beta),
        "lower_g": candidate.lower_g(beta),
        "upper_g": candidate.upper_g(beta),
    }
