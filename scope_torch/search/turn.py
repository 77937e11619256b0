"""The turn of one candidate: its bounds and its test, query by query (the j-loop)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from scope_torch.bounds.base import Beta
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.belief import Belief
from scope_torch.search.known import Trial
from scope_torch.search.parts import interval


class Turn:
    """theta_cand from its first query to its last.

    Args:
        i: The paper's i.
        theta: theta_cand.
        trial: Its test.
        belief: Gives its bounds.
        problem: Gives its queries.

    Attributes:
        certified: Whether its test says that it is feasible.
        is_repeat: Whether it had been observed on all of its queries before.
        ended: Whether its j-loop has ended; what is still in flight belongs to the model alone.
    """

    def __init__(
        self,
        i: int,
        theta: tuple[int, ...],
        trial: Trial,
        belief: Belief,
        problem: SelectionProblem,
    ) -> None:
        self.theta, self.trial = theta, trial
        self.candidate = belief.at(theta, trial.order, trial.in_order)
        self._belief, self._problem = belief, problem
        self._num_queries = len(problem.queries_of(theta))
        self.about: dict[str, Any] = {"iteration": i, "theta_cand": theta}
        self.ended = self.certified = self.is_repeat = False
        self._waiting_for = 0  # fresh answers

    @property
    def is_known(self) -> bool:
        """Whether nothing is left to ask."""
        return not self.trial.order

    def begin(self) -> None:
        """Takes in what is known of the candidate."""
        self._upper_g = self.candidate.upper_g(self.beta())
        known = len(self.trial.order) < self._problem.num_queries
        self.certified = known and self.trial.begin(self._upper_g)
        self._num_seen = self._num_queries - len(self.trial.order)
        if self.is_known:
            self.about["num_queries"] = self._num_queries

    def batches(self, size: int | None) -> Iterator[list[Request]]:
        """Its queries, so many at a time, until it has ended; None for all at a time.

        All queries follow once more as often as its test wants fresh answers.
        """
        size = size or self._num_queries
        for start in range(self._num_queries - len(self.trial.order), self._num_queries, size):
            if self.ended:
                return
            queries = self.candidate.next_queries(min(size, self._num_queries - start))
            yield [Request(self.theta, query) for query in queries]
        self.about["num_queries"] = self._num_queries
        while not self.ended and self.trial.again():
            self._waiting_for = len(self.trial.order)
            for start in range(0, len(self.trial.order), size):
                queries = self.trial.order[start : start + size]
                yield [Request(self.theta, query) for query in queries]

    def update(self, observation: Observation) -> bool:
        """Takes in an answer: the bounds move, then the test looks.

        Returns:
            Whether there is something to judge. An answer after the end belongs to the model alone,
            and fresh answers count once there is one to every query.
        """
        if self.ended:
            return False
        grades = self._problem.grades(observation)
        if self._waiting_for:
            self._waiting_for -= 1
            self.certified = self.trial.update(grades, math.inf)
            if not self._waiting_for:
                self.candidate = self._belief.at(self.theta, self.trial.order)
            return not self._waiting_for
        loss, y_g = self._belief.values(observation)
        self.candidate.update(observation.query, loss, *y_g)
        previous, self._upper_g = self._upper_g, self.candidate.upper_g(self.beta())
        self.certified = self.trial.update(grades, min(self._upper_g, previous))
        self._num_seen += 1
        self.about["num_queries"] = self._num_seen
        return True

    @property
    def margin(self) -> float:
        """What its g must be below 0 by, see `Test`."""
        return self.trial.margin

    def beta(self) -> Beta:
        """beta_t with what it has answered."""
        return self._belief.beta(self.candidate)

    def row(self) -> dict[str, Any]:
        """Columns of `TraceRow`."""
        return {**self.about, **interval(self.candidate, self.beta())}
