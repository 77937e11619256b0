"""What a search believes: bounds on the averages of every configuration, from all observations.

| symbol | here | |
| --- | --- | --- |
| L_zeta,t, U_zeta,t at theta | `at(theta)`, a `Candidate`, with `beta()` | eq:lcb-ours |
| their minima over Theta | `lower_bounds` | |
| beta_zeta,t | `beta` | eq:beta-def, or what takes its place |
| J_max | `_j_max` | how often the query observed most often has been observed |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scope_torch.bounds.base import Beta, ConfidenceBounds
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.search.calibrate import minus_quality
from scope_torch.search.front import Estimates, estimates_of
from scope_torch.search.parts import (
    Candidate,
    MakeCandidate,
    Minima,
    Posterior,
    Surrogate,
    interval,
)


class Belief:
    """A surrogate, its averages on Theta, and the half-widths of its bounds.

    Args:
        problem: Turns observations into losses and constraint values.
        surrogate: Takes in the observations.
        posterior: Its averages on all of Theta.
        make_candidate: Its bounds at one configuration.
        bounds: beta.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        surrogate: Surrogate,
        posterior: Posterior[Any],
        make_candidate: MakeCandidate,
        bounds: ConfidenceBounds,
    ) -> None:
        self.surrogate, self.posterior, self.bounds = surrogate, posterior, bounds
        self._problem, self.at = problem, make_candidate
        self._j = [0] * problem.num_queries
        self._j_max = 0

    def learn(self, observation: Observation) -> None:
        """Takes in an observation."""
        loss, y_g = self.values(observation)
        self.surrogate.observe(observation.theta, observation.query, loss, *y_g)
        self._j[observation.query] += 1
        self._j_max = max(self._j_max, self._j[observation.query])

    def values(self, observation: Observation) -> tuple[float, tuple[float, ...]]:
        """The loss (USD, or 1 - quality), and g of every constraint."""
        problem = self._problem
        loss = problem.loss(observation.cost_usd, observation.quality)
        return loss, problem.violations(problem.grades(observation))

    @property
    def g_of(self) -> Callable[[Observation], tuple[float, ...]]:
        """The constraints as Calibrate compares them, see `calibrate`."""
        if self._problem.num_constraints == 1 or self._problem.objective == "quality":
            return minus_quality
        return lambda observation: self.values(observation)[1]

    def fit(self) -> None:
        """Fixes the half-widths."""
        self.bounds.fit(self.surrogate, self.posterior.least_slope)

    def beta(self, candidate: Candidate | None = None) -> Beta:
        """beta_t; `candidate` knows of its own observations since the last selection."""
        if self.bounds.gain is None:  # no information is asked for, which may wait for a device
            return self.bounds.beta(self._j_max)
        information = self.surrogate.information() if candidate is None else candidate.information
        return self.bounds.beta(self._j_max, information)

    def lower_bounds(self, most_c: float, excluded: int | None) -> Minima:
        """See `Posterior.lower_bounds`."""
        return self.posterior.lower_bounds(self.beta(), most_c, excluded)

    def estimates(self, order: Sequence[int]) -> Estimates:
        """All averages; bounds are two standard deviations if credible, else as they are."""

        def bounds(theta: tuple[int, ...]) -> dict[str, float]:
            candidate = self.at(theta, order)
            credible = self.bounds.mode == "credible"
            return interval(candidate, Beta(2.0, 2.0) if credible else self.beta(candidate))

        return estimates_of(self.posterior, bounds)

    def refit(self) -> None:
        """Fits the hyperparameters again, whether or not that is due."""
        self.surrogate.refit(now=True)
        self.posterior.update()
        self.fit()

    def settings(self) -> dict[str, Any]:
        """Of surrogate and posterior."""
        return {**self.surrogate.settings(), **self.posterior.settings()}
