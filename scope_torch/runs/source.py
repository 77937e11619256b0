"""Where a run's observations come from: its journal first, then the evaluator."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Generator, Iterator, Sequence

from scope_torch.errors import InputError
from scope_torch.evaluators import Evaluator
from scope_torch.observation import History, Observation, Request
from scope_torch.runs.journal import Journal

_Pair = tuple[tuple[int, ...], int, int]  # a request, or equal to one


class ObservationSource:
    """Observations from the journal where it has them, from the evaluator where not."""

    def __init__(self, evaluator: Evaluator, journal: Journal | None) -> None:
        self.replayed = 0
        self.seconds = 0.0  # that the evaluator took
        self._evaluator = evaluator
        self._journal = journal
        recorded = journal.recorded if journal is not None else []
        # None: asked for, and not there yet
        self._recorded: dict[_Pair, Observation | None] = {o.request: o for o in recorded}
        self._unused = set(self._recorded)
        self._num_asked: dict[Request, int] = {}

    def fulfil(self, requests: Sequence[Request]) -> Generator[Observation, None, None]:
        """Observations of `requests` in the asked order.

        What is not recorded is fed to the evaluator as it has room. Whoever stops early must close
        the iterator: nothing more is fed then, and what is in flight is paid for and kept.
        """
        recorded = self._recorded
        numbered = [self._numbered(request) for request in requests]
        missing = [request for request in numbered if request not in recorded]
        recorded.update(dict.fromkeys(missing))
        if missing and self._unused:
            self._check_replay(numbered)
        # Iterators end as soon as their list is empty, in whichever thread they are.
        stream = iter(self._evaluator.evaluate(iter(missing))) if missing else iter(())
        arrived = None
        try:
            for request in numbered:
                while (observation := recorded.get(request)) is None:
                    arrived = self._next(stream, request)
                    self._keep(arrived)
                if self._unused and request in self._unused:
                    self._unused.discard(request)
                    self.replayed += 1
                yield observation
            for extra in stream:  # at its end it raises an interrupt that had to wait
                self._keep(extra)
        except BaseException as stop:
            missing.clear()
            # The error that ends a run must not be hidden by a second one.
            hidden = () if isinstance(stop, GeneratorExit) else (Exception,)
            with contextlib.suppress(*hidden):
                for late in itertools.chain([arrived] if arrived else [], stream):
                    if recorded.get(late.request) is None:
                        self._keep(late)
            raise

    def flush(self) -> None:
        """Writes what the journal has not written yet, which is nothing that was paid for.

        Raises:
            InputError: If the disk takes no more.
        """
        if self._journal is not None:
            self._journal.flush()

    def _check_replay(self, asked: Sequence[Request]) -> None:
        """Before paying: all that is recorded must have been asked for by now.

        Else the search has taken another way than the recorded one (a journal edited by hand,
        another version, arithmetic that differs in the last digit) and would pay once more.
        """
        strange = self._unused.difference(asked)
        if strange and self._journal is not None:
            raise InputError(
                f"{self._journal.path} has {len(strange)} observations that this search does not "
                f"ask for, such as {min(strange)}; choose another output_dir to search anew"
            )

    def surplus_usd(self, history: History) -> float:
        """Cost of what was observed but lies beyond the end of the search, in USD."""
        if len(history) == len(self._recorded):
            return 0.0
        used = {observation.request for observation in history}
        extra = (o for r, o in self._recorded.items() if o is not None and r not in used)
        return math.fsum(o.cost_usd for o in extra)

    def _numbered(self, request: Request) -> Request:
        first = Request(request.theta, request.query) if request.replicate else request
        replicate = self._num_asked.get(first, 0)
        self._num_asked[first] = replicate + 1
        return Request(request.theta, request.query, replicate) if replicate else first

    def _next(self, stream: Iterator[Observation], request: Request) -> Observation:
        began = time.perf_counter()
        observation = next(stream, None)
        self.seconds += time.perf_counter() - began
        if observation is None:
            raise InputError(f"the evaluator returned no observation for {request}")
        return observation

    def _keep(self, observation: Observation) -> None:
        # equal to its request, and faster to make
        request = observation.theta, observation.query, observation.replicate
        if self._recorded.get(request, observation) is not None:
            raise InputError(
                f"the evaluator returned {observation.request}, which it was not asked"
            )
        if self._journal is not None:
            self._journal.append([observation])
        self._recorded[request] = observation
