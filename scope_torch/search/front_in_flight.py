"""scope_front with many calls in flight: several candidates are open at once.

1. A candidate that is open asks its next query, in its order, while fewer of its queries are in
   flight than it has answers in this turn. It may have `FIRST` in flight in any case.
2. If no open candidate may ask, the next one is chosen among all that are not open. b is widened
   only if none is open.
3. A candidate is left as in `ScopeFront`: once it returns less than the best of those that are not
   open did at the last choice, or as soon as an LLM of it is dropped. What is still in flight then
   does not reopen it.

With one call in flight `ScopeFront` itself runs.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import Tensor

from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.front_search import NOTHING_LEFT, ScopeFront
from scope_torch.search.joint_candidate import JointCandidate
from scope_torch.search.optimizer import Steps
from scope_torch.search.pipeline import Pipelined

FIRST = 8  # queries of a new candidate


class _Open:
    """An open candidate, and what of it is in flight."""

    def __init__(self, theta: tuple[int, ...], order: list[int], candidate: JointCandidate) -> None:
        self.theta, self.candidate, self.num_left = theta, candidate, len(order)
        self.in_flight = self.num_answered = 0
        self.ended = False

    @property
    def may_ask(self) -> bool:
        """Whether it may have one more query in flight."""
        most = min(self.num_left, max(FIRST, self.num_answered))
        return not self.ended and self.in_flight < most


class FrontInFlight(ScopeFront, Pipelined):
    """`ScopeFront` with several candidates open at once; see `make_scope_front`.

    Args:
        problem: What to search.
        in_flight: Calls at a time that the search is made for, above 1.
        parts: See `ScopeFront`.

    Raises:
        InputError: If a value is outside its range.
    """

    def __init__(self, problem: SelectionProblem, *, in_flight: int, **parts: Any) -> None:
        self._set_in_flight(in_flight, parts["batch_size"])
        self._open: list[_Open] = []
        self._asked_of: deque[_Open] = deque()
        self._is_stuck = False  # no candidate can be chosen now
        self._second = 0.0  # the second largest return at the last choice
        super().__init__(problem, **parts)

    def _search(self) -> Steps:
        yield from self._calibrate()
        self._look()
        self._trace("calibrated")
        while True:
            request = self._next_request()
            if request is None and not self._asked_of:
                return self._stop(NOTHING_LEFT)
            for answer in (yield [] if request is None else [request]):
                self._take(answer)

    def _next_request(self) -> Request | None:
        while True:
            for one in self._open:
                if one.may_ask:
                    one.in_flight += 1
                    self._asked_of.append(one)
                    (query,) = one.candidate.next_queries(1)
                    return Request(one.theta, query)
            if self._is_stuck or not self._begin():
                return None

    def _begin(self) -> bool:
        """Opens the next candidate; returns whether there is one."""
        self._look()
        theta, self._second = self._choose() or (None, 0.0)
        self._is_stuck = theta is None
        if theta is None:
            return False
        self._candidates += 1
        self._trace("selected", iteration=self._candidates, theta_cand=theta, num_queries=0)
        self._open.append(_Open(theta, *self._candidate(theta)))
        return True

    def _allowed_returns(self) -> Tensor:
        returns = super()._allowed_returns()
        for one in self._open:
            returns[self._at(one.theta)] = -1.0
        return returns

    def _may_widen(self) -> bool:
        return not self._open and super()._may_widen()

    def _take(self, answer: Observation) -> None:
        """Takes in the answer to the oldest request."""
        one = self._asked_of.popleft()
        one.in_flight, one.num_left = one.in_flight - 1, one.num_left - 1
        one.num_answered += 1
        self._record(answer)
        if not one.ended:
            self._update(one.candidate, answer)
            if not self._goes_on(one.candidate, one.theta, self._second):
                self._end(one)
        still_open = [other for other in self._open if other.in_flight or not other.ended]
        if len(still_open) < len(self._open):
            self._open = still_open
            self._is_stuck = False
            self._look()

    def _end(self, one: _Open) -> None:
        one.ended = True
        self._trace_end(one.theta, one.num_answered)

    def _drop(self) -> None:
        super()._drop()
        for one in self._open:
            if not one.ended and self._failing.is_dropped(one.theta):
                self._end(one)

    def settings(self) -> dict[str, Any]:
        """See `Optimizer`."""
        return {**super().settings(), "in_flight": self.in_flight}
