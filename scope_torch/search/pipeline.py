"""Searches that ask for more while answers are missing, so that many calls are in flight.

Answers are taken in in the order asked, whatever the order of their arrival. So what is asked
depends on the seed and the answers alone, not on how long calls take, and a run resumes from its
journal. A slow call keeps later answers waiting, so `lag` is `LAG` times the calls in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from scope_torch.errors import InputError
from scope_torch.observation import Observation, Request
from scope_torch.search.optimizer import Observing, SequentialOptimizer

LAG = 4  # requests without an answer, for each call in flight

T = TypeVar("T")


class Pipelined(SequentialOptimizer):
    """A search for many calls at a time; put it last among the bases, after the search for one.

    `tell` takes the answers to the oldest requests; `ask` may be called again while the answers to
    up to `lag` requests are missing, and returns nothing if the search waits for them.

    Attributes:
        in_flight: Calls at a time that the search is made for, above 1.
        lag: Most requests without an answer.
    """

    def __init__(self) -> None:
        self._unanswered: deque[Request] = deque()
        self._has_begun = False
        super().__init__()

    def _set_in_flight(self, in_flight: int, batch_size: int | None) -> None:
        """Sets the attributes, before anything else.

        Raises:
            InputError: If a batch size is given too.
        """
        if batch_size != 1:
            raise InputError(
                f"in_flight={in_flight} and batch_size={batch_size}: give one of them; "
                "in_flight also opens several candidates at once"
            )
        self.in_flight, self.lag = in_flight, LAG * in_flight

    def _observe(self, requests: Sequence[Request]) -> Observing:
        """Asks, and waits for all answers."""
        told: list[Observation] = []
        asked: Sequence[Request] = requests
        while len(told) < len(requests):
            answers = yield asked
            for observation in answers:
                self._record(observation)
            told += answers
            asked = []
        return told

    def ask(self) -> Sequence[Request]:
        """See `Optimizer.ask`, and above."""
        while self._next is None and not self._finished:
            self._advance([] if self._has_begun else None)
            self._has_begun = True
        asked, self._next = self._next or [], None
        self._unanswered.extend(asked)
        return asked

    def tell(self, observations: Sequence[Observation]) -> None:
        """See `Optimizer.tell`, and above.

        Raises:
            InputError: If these are not the answers to the oldest requests, or if there are
                requests that nobody has asked for.
        """
        oldest = [self._unanswered.popleft() for _ in observations if self._unanswered]
        if self._next or [(one.theta, one.query) for one in observations] != [
            (one.theta, one.query) for one in oldest
        ]:
            raise InputError(f"told {observations[:3]}..., but waiting for {oldest[:3]}...")
        self._advance(observations)


def made_for(
    in_flight: int, sequential: Callable[..., T], pipelined: Callable[..., T]
) -> Callable[..., T]:
    """What makes a search for so many calls at a time: `sequential` for one.

    Raises:
        InputError: If it is not a whole number of at least 1.
    """
    if not (in_flight >= 1 and in_flight % 1 == 0):
        raise InputError(f"in_flight={in_flight} must be a whole number >= 1")
    return sequential if in_flight == 1 else partial(pipelined, in_flight=int(in_flight))
