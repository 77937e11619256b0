"""Where a run's observations come from: first the journal, then the evaluator."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Generator, Iterable, Sequence

from scope_torch.errors import InputError
from scope_torch.observation import History, Observation, Request
from scope_torch.runs.evaluator import Evaluator
from scope_torch.runs.journal import Journal

_RequestKey = tuple[tuple[int, ...], int, int]  # a Request, or a plain tuple equal to one


class ObservationSource:
    """Observations from the journal where it has them, else from the evaluator.

    Args:
        evaluator: Makes the observations that are not recorded.
        journal: Takes every new observation; None keeps nothing.

    Attributes:
        replayed: Observations taken from the journal so far.
        seconds: Time spent waiting for the evaluator so far.
    """

    def __init__(self, evaluator: Evaluator, journal: Journal | None) -> None:
        self.replayed = 0
        self.seconds = 0.0
        self._evaluator = evaluator
        self._journal = journal
        recorded = journal.recorded if journal is not None else []
        # None: requested from the evaluator, but not observed yet
        self._recorded: dict[_RequestKey, Observation | None] = {o.request: o for o in recorded}
        self._unused = set(self._recorded)
        self._num_asked: dict[Request, int] = {}

    def observe(self, requests: Sequence[Request]) -> Generator[Observation, None, None]:
        """Observations of `requests` in the asked order.

        The evaluator takes the requests that are not recorded one by one, when it has room. A
        caller that stops early must close the generator: the evaluator then gets no further
        request, and the observations in flight are waited for and kept, because they are paid for.
        """
        recorded = self._recorded
        numbered = [self._numbered(request) for request in requests]
        missing = [request for request in numbered if request not in recorded]
        recorded.update(dict.fromkeys(missing))
        if missing and self._unused:
            self._check_replay(numbered)
        # Clearing `missing` ends this iterator, in whichever thread the evaluator reads it.
        stream = iter(self._evaluator.evaluate(iter(missing))) if missing else iter(())
        arrived = None
        try:
            for request in numbered:
                while (observation := recorded.get(request)) is None:
                    began = time.perf_counter()
                    # Not `next`, which an interrupt may leave before the result has a name.
                    for arrived in stream:  # noqa: B007 - it is used below
                        break
                    else:
                        raise _missing(request)
                    self.seconds += time.perf_counter() - began
                    self._keep(arrived)
                if self._unused and request in self._unused:
                    self._unused.discard(request)
                    self.replayed += 1
                yield observation
            for arrived in stream:  # an evaluator raises a postponed interrupt at the end
                self._keep(arrived)
        except BaseException as stop:
            missing.clear()
            # The error that ends a run must not be hidden by a second one.
            hidden = () if isinstance(stop, GeneratorExit) else (Exception,)
            with contextlib.suppress(*hidden):
                self._keep_late(itertools.chain([arrived] if arrived else [], stream))
            raise

    def flush(self) -> None:
        """Writes the observations that the journal still holds in memory; all of them were free.

        Raises:
            InputError: If the disk is full or cannot be written.
        """
        if self._journal is not None:
            self._journal.flush()

    def surplus_usd(self, history: History) -> float:
        """Cost in USD of the observations that were made but are not part of the search."""
        if len(history) == len(self._recorded):
            return 0.0
        used = {observation.request for observation in history}
        extra = (o for r, o in self._recorded.items() if o is not None and r not in used)
        return math.fsum(o.cost_usd for o in extra)

    def _numbered(self, request: Request) -> Request:
        """The request with its replicate: how often its pair was requested before."""
        first = Request(request.theta, request.query) if request.replicate else request
        replicate = self._num_asked.get(first, 0)
        self._num_asked[first] = replicate + 1
        return Request(request.theta, request.query, replicate) if replicate else first

    def _check_replay(self, asked: Sequence[Request]) -> None:
        """Before anything is paid for, checks that the search has requested all that is recorded.

        If not, the search differs from the recorded one (a journal edited by hand, another version,
        arithmetic that differs in the last digit), and its observations would be paid for again.
        """
        unexpected = self._unused.difference(asked)
        if unexpected and self._journal is not None:
            raise InputError(
                f"{self._journal.path} has {len(unexpected)} observations that this search does "
                f"not ask for, such as {min(unexpected)}; choose another output_dir to search anew"
            )

    def _keep(self, observation: Observation) -> None:
        # A tuple equals the request, and is faster to make.
        request = observation.theta, observation.query, observation.replicate
        if self._recorded.get(request, observation) is not None:
            raise InputError(
                f"the evaluator returned {observation.request}, which was not requested; its "
                "evaluate() must yield one observation for every request"
            )
        if self._journal is not None:
            self._journal.append([observation])
        self._recorded[request] = observation

    def _keep_late(self, observations: Iterable[Observation]) -> None:
        """Keeps observations that arrive after the search has ended; skips those kept before.

        Takes all of them even if the journal is full: the calls in flight then end, and a store of
        replies keeps them.

        Raises:
            InputError: If an observation could not be kept.
        """
        failure = None
        for observation in observations:
            if self._journal is not None and observation is self._journal.last:
                # An interrupt came after it was appended.
                self._recorded[observation.request] = observation
            if self._recorded.get(observation.request) is None:
                try:
                    self._keep(observation)
                except InputError as error:
                    failure = failure or error
        if failure is not None:
            raise failure


def _missing(request: Request) -> InputError:
    return InputError(
        f"the evaluator returned no observation for {request}; its evaluate() must yield one for "
        "every request"
    )
