"""Where a run's observations come from: first the journal, then the evaluator."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace

from scope_torch.errors import ANOTHER_RUN_DIR, InputError
from scope_torch.observation import History, Observation, Request
from scope_torch.runs.deadline import Deadline
from scope_torch.runs.evaluator import Evaluator, LosesCalls, kept_answers
from scope_torch.runs.journal import Journal
from scope_torch.runs.opening import BEGUN

_RequestKey = tuple[tuple[int, ...], int, int]  # a Request, or a plain tuple equal to one


class ObservationSource:
    """Observations from the journal where it has them, else from the evaluator.

    Args:
        evaluator: Makes the observations that are not recorded.
        journal: Takes every new observation; None keeps nothing.
        most_usd: The most that an observation is expected to cost, in USD; larger costs raise it.
            None: not known; with a budget one call is then made alone, before all others.
        known: Of earlier runs: a pair among them was asked before, and its next answer is another.
        deadline: When no further call starts.

    Attributes:
        is_cut: Whether a call did not start because the time was over.
        replayed: Observations taken from the journal so far.
        seconds: Time spent waiting for the evaluator so far.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        journal: Journal | None,
        most_usd: float | None = None,
        known: Iterable[Observation] = (),
        deadline: Deadline | None = None,
    ) -> None:
        self.replayed, self.is_cut = 0, False
        self.seconds = 0.0
        self._evaluator = evaluator
        self._journal, self._deadline = journal, deadline
        recorded = journal.recorded if journal is not None else []
        told = [] if most_usd is None else [most_usd]
        self._most_usd = max(told + [one.paid_usd for one in recorded], default=math.inf)
        # None: requested from the evaluator, but not observed yet
        self._recorded: dict[_RequestKey, Observation | None] = {o.request: o for o in recorded}
        self._unused = set(self._recorded)
        self._num_asked = Counter(Request(one.theta, one.query) for one in known)
        self._lost_since = evaluator.take_lost if isinstance(evaluator, LosesCalls) else list
        self._raised: list[Observation] = []  # as the evaluator said it
        self._lost: list[Observation] = []  # as the journal has it
        self._num_told = 0

    def observe(
        self, requests: Sequence[Request], left_usd: float = math.inf
    ) -> Generator[Observation, None, None]:
        """Observations of `requests` in the asked order.

        The evaluator takes the requests that are not recorded one by one, when it has room. A
        caller that stops early must close the generator: the evaluator then gets no further
        request, and the observations in flight are waited for and kept, because they are paid for.

        Args:
            requests: What to observe.
            left_usd: What is left of the budget. No more calls are in flight than it pays for, if
                each costs as much as the dearest so far.
        """
        parts, left = iter([requests]), left_usd
        observations = self.pipeline(lambda: next(parts, ()), 1, lambda: left)
        with contextlib.closing(observations):
            for observation in observations:
                left -= observation.paid_usd
                yield observation

    def pipeline(
        self,
        ask: Callable[[], Sequence[Request]],
        lag: int,
        left_usd: Callable[[], float] = lambda: math.inf,
    ) -> Generator[Observation, None, None]:
        """Observations in the asked order, of requests that are made while others are in flight.

        They end early if a call that is needed may not start any more, see `is_cut`.

        What is asked depends only on what was told: `ask` is called while fewer than `lag` requests
        have no answer that was told, never because a call was fast. A caller that stops early must
        close the generator, see `observe`.

        Args:
            ask: Gives the next requests; none if it waits for an answer, or has finished.
            lag: At most so many requests have no answer that was told, unless `ask` gives more.
            left_usd: What is left of the budget, with all that was told. No more calls are in
                flight than it pays for, see `observe`.
        """
        recorded = self._recorded
        window = deque[Request]()  # asked, and not told
        waiting, given = deque[Request](), _Given(self._deadline)  # not given yet; given
        in_flight, arrived, is_checked = 0, None, False
        untold_usd, stream = 0.0, iter(list[Observation]())  # of what has arrived; what arrives
        try:
            while True:
                while len(window) < lag and (requests := ask()):
                    numbered = [self._numbered(request) for request in requests]
                    window.extend(numbered)
                    missing = [request for request in numbered if request not in recorded]
                    untold_usd += math.fsum(
                        known.paid_usd for one in numbered if (known := recorded.get(one))
                    )
                    recorded.update(dict.fromkeys(missing))
                    waiting.extend(missing)
                    is_checked = False
                if not window:
                    break
                while (observation := recorded.get(window[0])) is None:
                    if not is_checked:
                        self._check_used(window)
                        is_checked = True
                    left = left_usd() - untold_usd
                    while waiting and (not in_flight or (in_flight + 1) * self._most_usd <= left):
                        given.append(waiting.popleft())
                        in_flight += 1
                    began = time.perf_counter()
                    # Not `next`, which an interrupt may leave before the result has a name.
                    for arrived in stream:  # noqa: B007 - it is used below
                        break
                    else:  # an evaluator may end when no request is left for it
                        if _is_over(self._deadline):
                            self.is_cut = True
                            return
                        if not given:
                            raise _missing(window[0])
                        stream = iter(self._evaluator.evaluate(given))
                        continue
                    self.seconds += time.perf_counter() - began
                    self._keep(arrived)
                    if arrived.lost is None:  # a lost call is made again
                        in_flight -= 1
                        untold_usd += arrived.paid_usd
                    self._raise_most(arrived)
                request = window.popleft()
                self.replayed += request in self._unused
                self._unused.discard(request)
                self._num_told += 1
                untold_usd -= observation.paid_usd
                yield observation
            for arrived in stream:  # an evaluator raises a postponed interrupt at the end
                self._keep(arrived)
        except BaseException as stop:
            given.clear()  # in whichever thread the evaluator reads it
            # The error that ends a run must not be hidden by a second one.
            hidden = () if isinstance(stop, GeneratorExit) else (Exception,)
            with contextlib.suppress(*hidden):
                self._keep_late(itertools.chain([arrived] if arrived else [], stream))
            raise

    @property
    def is_late(self) -> bool:
        """Whether no further call may start; what the journal knows is taken in first."""
        return self.is_cut or (not self._unused and _is_over(self._deadline))

    @property
    def paid(self) -> list[Observation]:
        """All observations that there are, asked for or not."""
        return [one for one in self._recorded.values() if one is not None]

    def lost_usd(self, num_observations: int) -> float:
        """USD lost in earlier processes, when the search had taken in so many observations at most.

        So a search that is replayed ends for its budget at the same observation, and one that is
        started again and again ends.
        """
        lost = [entry for entry in self.lost if (entry.lost or 0) <= num_observations]
        return math.fsum(entry.paid_usd for entry in lost)

    @property
    def lost(self) -> list[Observation]:
        """What was paid for calls that are no observations, see `Observation.lost`."""
        return [*(self._journal.lost if self._journal is not None else ()), *self._lost]

    def flush(self) -> None:
        """Writes the observations that the journal still holds in memory; all of them were free.

        Raises:
            InputError: If the disk is full or cannot be written.
        """
        if self._journal is not None:
            self._journal.flush()

    def surplus(self, history: History) -> list[Observation]:
        """The observations that were made but are not part of the search."""
        if len(history) == len(self._recorded):
            return []
        used = {observation.request for observation in history}
        return [o for r, o in self._recorded.items() if o is not None and r not in used]

    def surplus_usd(self, history: History) -> float:
        """USD paid for them."""
        extra = self.surplus(history)
        kept = kept_answers(self._evaluator, [*history, *extra]) or [] if extra else []
        free = {observation.request for observation in kept}
        return math.fsum(o.paid_usd for o in extra if o.request not in free)

    def _numbered(self, request: Request) -> Request:
        """The request with its replicate: how often its pair was requested before."""
        first = Request(request.theta, request.query) if request.replicate else request
        replicate = self._num_asked[first]
        self._num_asked[first] += 1
        return Request(request.theta, request.query, replicate) if replicate else first

    def _check_used(self, asked: Iterable[Request]) -> None:
        """Before anything is paid for, checks that the search has asked for all that is recorded.

        If not, the search differs from the recorded one (a journal edited by hand, another version,
        arithmetic that differs in the last digit, or a larger budget, at which more candidates pay
        while others are in flight), and its observations would be paid for again.
        """
        unexpected = self._unused.difference(asked)
        if unexpected and self._journal is not None:
            path = self._journal.path
            # What a selection measures lies in its directory, which alone can be continued from.
            root = next((one for one in path.parents if (one / BEGUN).exists()), path.parent)
            raise InputError(
                f"{path} has {len(unexpected)} observations that this search does not ask for, "
                f"such as {min(unexpected)}; choose {ANOTHER_RUN_DIR} to search anew. With "
                f"continue_from={str(root)!r} select, scope and scope_joint know them, and "
                "pay for none of them twice"
            )

    def _raise_most(self, arrived: Observation) -> None:
        """What a call costs is known after one; a failure may have cost nothing."""
        if arrived.paid_usd or (arrived.failed is None and arrived.lost is None):
            most_usd = 0.0 if math.isinf(self._most_usd) else self._most_usd
            self._most_usd = max(most_usd, arrived.paid_usd)

    def _keep(self, observation: Observation) -> None:
        self._take_lost()
        if observation.lost is not None:
            self._keep_lost(observation)
            return
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

    def _keep_lost(self, paid: Observation) -> None:
        """Keeps what was paid for a call that raised or was lost with its worker, once."""
        if not any(paid is one for one in self._raised):
            self._raised.append(paid)
            self._lost.append(replace(paid, lost=self._num_told))
            if self._journal is not None:
                self._journal.append(self._lost[-1:])

    def _take_lost(self) -> None:
        """Keeps the calls whose workers were lost."""
        for paid in self._lost_since():
            self._keep_lost(paid)

    def _keep_late(self, observations: Iterable[Observation]) -> None:
        """Keeps observations that arrive after the search has ended; skips those kept before.

        Takes all of them even if the journal is full: the calls in flight then end, and a store of
        replies keeps them.

        Raises:
            InputError: If an observation could not be kept.
        """
        failure = None
        try:
            for observation in observations:
                if self._journal is not None and observation is self._journal.last:
                    # An interrupt came after it was appended.
                    self._recorded[observation.request] = observation
                if self._recorded.get(observation.request) is None:
                    try:
                        self._keep(observation)
                    except InputError as error:
                        failure = failure or error
        finally:
            self._take_lost()
        if failure is not None:
            raise failure


class _Given(deque[Request]):
    """Requests that an evaluator takes when it has room, and time; there may be more later."""

    def __init__(self, deadline: Deadline | None) -> None:
        super().__init__()
        self._deadline = deadline

    def __iter__(self) -> Iterator[Request]:
        return self

    @property
    def is_over(self) -> bool:
        """Whether no further call may start, also none that is made again."""
        return _is_over(self._deadline)

    def __next__(self) -> Request:
        if self.is_over:
            raise StopIteration
        try:
            return self.popleft()
        except IndexError:
            raise StopIteration from None


def _is_over(deadline: Deadline | None) -> bool:
    return deadline is not None and deadline.is_over


def _missing(request: Request) -> InputError:
    return InputError(
        f"the evaluator returned no observation for {request}; its evaluate() must yield one for "
        "every request"
    )
