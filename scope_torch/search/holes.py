"""What a search leaves out: configurations about which nothing more can be found out.

Some configurations cannot be observed on every query. A candidate is observed on its own queries.
What it means that the others are missing:

- The surrogate knows nothing of them, so its bounds on the average over all Q queries stay wide.
- A certificate by answers (`sequence`, `population`) counts each of them as a query that is
  answered with the worst grade, 0. So it is about all Q queries, and never says too much.
- A candidate that was observed on all of its queries is not chosen again: nothing more can be
  found out about it. One that can never be certified is not chosen at all.

An LLM whose calls keep failing is dropped, see `scope_torch.search.failing`: no configuration with
it is chosen.

A candidate that has answered all queries, and cost no less there than theta_0 or a theta_out that
has answered them too, is left out if answers do not vary: prices by call make such ties.

A candidate at the threshold, or as dear as theta_out, is neither certified nor given up, and while
it costs next to nothing no budget ends that. It is left out once it has answered every query
`REPEATS` times and its bounds are narrow. It still counts for the optimality gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from scope_torch.allowed import Allowed
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.search.failing import FailingLLMs
from scope_torch.search.parts import Certificate
from scope_torch.search.stopping import LEAST_GAIN

REPEATS = 10  # answers to each query of a candidate
_ROUNDING = 1e-12  # of an average


class Holes:
    """Which configurations a search leaves out.

    Args:
        problem: Says who can be observed on which queries.
        posterior: Told to leave them out, by `Posterior.restrict`, once it knows anything.

    Attributes:
        left: What may be chosen still.
        failing: The LLMs that are dropped.
    """

    def __init__(self, problem: SelectionProblem, posterior: Any) -> None:
        self._problem, self._posterior = problem, posterior
        self.left = problem.rule or Allowed(problem.modules, problem.llms, None)
        self.failing = FailingLLMs(problem)
        self._has_begun = False
        self._answers: Counter[tuple[int, ...]] = Counter()

    def begin(self, certificate: Certificate) -> None:
        """Leaves out what can never be certified.

        Args:
            certificate: Of the search. One by bounds may certify everything. One by answers needs
                an average grade at the threshold or above, even if all answers had grade 1.
        """
        self._has_begun = True
        if self.failing.dropped:
            self._posterior.restrict(self.left)
        if not certificate.by_answers:
            return
        problem = self._problem
        most = max(limit.threshold for limit in problem.limits)
        least = (most - _ROUNDING) * problem.num_queries  # as certificates, which allow for it
        offered = problem.offered or {}
        self.leave_out([theta for theta, queries in offered.items() if len(queries) < least])

    def record(self, observation: Observation, is_earlier: bool = False) -> None:
        """Counts an answer, because of which LLMs may be dropped.

        Args:
            observation: The answer.
            is_earlier: Whether an earlier search has it. It says nothing of which LLMs work today.
        """
        self._answers[observation.theta] += 1
        if not is_earlier and self.failing.record(observation):
            self.left = self.left.without_llms(self.failing.dropped)
            if self._has_begun:
                self._posterior.restrict(self.left)

    def is_dropped(self, theta: tuple[int, ...]) -> bool:
        """Whether a configuration uses an LLM that was dropped."""
        return self.failing.is_dropped(theta)

    def observed(self, theta: tuple[int, ...], num_queries: int) -> None:
        """Leaves out a candidate that was observed on so many queries, if these are all it has."""
        if theta in (self._problem.offered or {}) and self.is_all(theta, num_queries):
            self.leave_out([theta])

    def is_repeated(self, theta: tuple[int, ...]) -> bool:
        """Whether a candidate has `REPEATS` answers for each of its queries."""
        return self._answers[theta] >= REPEATS * len(self._problem.queries_of(theta))

    def is_narrow(self, bounds: Mapping[str, float]) -> bool:
        """Whether bounds, as `interval` gives them, leave nothing to find out that matters."""
        width_c = (bounds["upper_c_usd"] - bounds["lower_c_usd"]) / self._problem.scale
        return max(width_c, bounds["upper_g"] - bounds["lower_g"]) <= LEAST_GAIN

    def leave_out(self, thetas: Sequence[tuple[int, ...]]) -> None:
        """From now on these are not chosen."""
        if thetas:
            self.left = self.left.without(thetas)
            self._posterior.restrict(self.left)

    def is_all(self, theta: tuple[int, ...], num_queries: int) -> bool:
        """Whether a configuration has no more than so many queries."""
        return num_queries == len(self._problem.queries_of(theta))
