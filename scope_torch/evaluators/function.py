"""Any Python callable as a compound AI system."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import reprlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from scope_torch.errors import InputError
from scope_torch.evaluators.application import Application, Item
from scope_torch.evaluators.booked import booked, told_usd
from scope_torch.evaluators.calling import called
from scope_torch.evaluators.elsewhere import PAUSE_S, Elsewhere, WorkerLost, asked_again, timed
from scope_torch.evaluators.frames import by_position
from scope_torch.evaluators.retired import retired_in
from scope_torch.evaluators.returned import System, ends_all, number, usd_of
from scope_torch.evaluators.window import GivenUp, ending, in_threads_of, in_window
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo, choose_llms
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.runs.asked import Unasked
from scope_torch.runs.content import Unknowable, digest_of
from scope_torch.runs.evaluator import GRADED, keys_of
from scope_torch.runs.identity import text_of

logger = logging.getLogger(__name__)
OnError = Literal["raise", "retry", "zero"]


class FunctionEvaluator:
    """Evaluates your own function, `system(assignment, query) -> (quality, cost_usd)`.

    Args:
        problem: Names of modules and LLMs.
        system: Runs the system on one query. `assignment` maps module names to LLM names. It
            returns the quality in [0, 1] and the cost in USD, or the quality and the tokens used:
            `{module: (prompt_tokens, completion_tokens)}`; as a pair, or as a dictionary with the
            keys `quality` and `cost_usd`, or `quality` and `tokens`. The tokens of a module may be
            the usage of its reply, which knows cached ones, see `tokens_of`; `seconds` by module
            may stand beside them, for LLMs that cost `gpu_hour_usd`. With
            `module_cost_usd`, in USD by module, `tokens` are recorded, not priced; `calls` by
            module may stand beside them. A dictionary may also have `outcomes`: other finite
            numbers by name, such as {"seconds": 1.2}; and `judge_usd`, what grading has cost. May
            be `async def`: all its calls run on one event loop, so they must not block it; see
            `event_loop`. An `Application` has its metric called when its own cost is booked.
        queries: The Q queries; each is passed to `system` as it is.
        concurrency: Calls in flight at a time, each in a thread, where a search asks for several.
        name: Identifies the system; None for the name of the function. A journal is only resumed
            with the same name, queries and metric (of an `Application`), so change the name when
            you change the function.
        prices: The price list, for a system that returns tokens: a `PriceList`, or LLMs by name as
            `load_llms` reads them.
        deterministic: Whether the system answers the same query under the same configuration the
            same way. Each pair is then asked once, also by a search that was resumed, and a repeat
            (see `calibrate`) gets the quality and the cost of the first answer without a call.
        on_error: What to do if the system raises, or the metric of an `Application`. `raise`: the
            search stops after the calls in flight. `retry`: call that one up to `max_retries` times
            more, then raise. `zero`: the answer has quality 0. If the system raised, it costs
            `failed_cost_usd`; else what the system has cost. A warning names the first such call of
            each configuration. An `InputError`, a wrong key or no credit always stops it.
        max_retries: See `on_error`.
        retry_wait_s: Seconds before the first retry; twice as many before each further one.
        failed_cost_usd: USD charged for a call that raised, with `on_error="zero"`. An exception
            with an attribute `cost_usd` says itself what it cost, also before a retry. If it ends
            the search, these USD are in the journal all the same, see `Observation.lost`.
        elsewhere: Where the system runs; None: here, or where an `Application` says.
        optional_modules: Those that may use no tokens. A run without any, on a query on which
            theta_0 used some, ends the search: a cache has answered in its place.

    Attributes:
        num_failed: Number of calls so far that gave quality 0 because they raised.
        most_usd: The most that an answer has cost in USD, of those in `paid`, with its grading.
        retired: LLMs that are retired, because of which a call failed, see `evaluators.retired`.

    Raises:
        InputError: If the number of queries is not the problem's, an LLM has no price, or a value
            is outside its range; or if `queries` is a frame of pandas or a dict.

    Examples:
        >>> problem = SelectionProblem(
        ...     "sums", ("add",), (("nano", "pro"),), 2, theta_ref=(1,), reference_quality=1.0,
        ...     reference_cost_usd=0.01, epsilon=0.1,
        ... )
        >>> def system(assignment, query):
        ...     answer = sum(query) if assignment["add"] == "pro" else 0  # here: call the LLM
        ...     return float(answer == sum(query)), 0.01 if assignment["add"] == "pro" else 0.001
        >>> evaluator = FunctionEvaluator(problem, system, queries=[(1, 2), (3, 4)])
        >>> for observation in evaluator.evaluate([Request((0,), 0), Request((1,), 0)]):
        ...     print(observation.theta, observation.quality, observation.cost_usd)
        (0,) 0.0 0.001
        (1,) 1.0 0.01
    """

    def __init__(
        self,
        problem: SelectionProblem,
        system: System,
        queries: Sequence[Any],
        concurrency: int = 1,
        name: str | None = None,
        prices: PriceList | Mapping[str, LLMInfo] | None = None,
        *,
        deterministic: bool = False,
        on_error: OnError = "raise",
        max_retries: int = 3,
        retry_wait_s: float = 1.0,
        failed_cost_usd: float = 0.0,
        elsewhere: Elsewhere | None = None,
        optional_modules: Iterable[str] = (),
    ) -> None:
        if len(queries) != problem.num_queries:
            raise InputError(f"{len(queries)} queries given, the problem has {problem.num_queries}")
        if concurrency < 1:
            raise InputError(f"concurrency={concurrency} must be at least 1")
        if on_error not in ("raise", "retry", "zero"):
            raise InputError(f"on_error={on_error!r} must be raise, retry or zero")
        self._max_retries, self._retry_wait_s = max_retries, retry_wait_s
        self._failed_cost_usd = failed_cost_usd
        for key in ("max_retries", "retry_wait_s", "failed_cost_usd"):
            if not 0 <= (value := getattr(self, f"_{key}")) < math.inf:
                raise InputError(f"{key}={value} must be a number >= 0")
        if isinstance(prices, Mapping):
            own, prices = dict(prices), PriceList(prices)
            choose_llms(own, [n for llms in problem.llms for n in llms if not prices.listed(n)])
        self.problem, self.system, self.queries = problem, system, by_position(queries)
        self.concurrency = concurrency
        self.name = name if name is not None else getattr(system, "__qualname__", "system")
        self.deterministic, self.on_error, self.num_failed = deterministic, on_error, 0
        self._graded = f"{GRADED}{system.grading}" if isinstance(system, Application) else ""
        self._prices, self._unasked = prices, Unasked(problem, optional_modules)
        self._sent = None if elsewhere is None else elsewhere.function("system", system)
        self._elsewhere = system.elsewhere if isinstance(system, Application) else elsewhere
        self._changed = threading.Condition()  # guards the three that follow
        self._answers = dict[tuple[tuple[int, ...], int], Observation]()
        self._asking = set[tuple[tuple[int, ...], int]]()
        self._paid: set[tuple[tuple[int, ...], int, str | None]] = set()
        self.most_usd, self._stopped = 0.0, threading.Event()  # then no further call may start
        self.retired, self._warned_of = dict[str, str](), set[tuple[str | None, tuple[int, ...]]]()

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        """Calls the function for every request; see `Evaluator` and `in_window`.

        Raises:
            InputError: If the function returns something else than a quality and a cost.
        """
        observe = self._observe_once if self.deterministic else self._observe
        pool, self._stopped = ThreadPoolExecutor(self.concurrency), threading.Event()
        try:
            start = in_threads_of(pool, observe)
            yield from in_window(start, requests, self.concurrency, self._stopped)
        finally:
            pool.shutdown(wait=False)

    def remember(self, observations: Iterable[Observation]) -> None:
        """Takes in answers that are known; with `deterministic`, their pairs are not asked again.

        `run` calls it with the journal of a search that it resumes.

        Args:
            observations: Those of an earlier process; see `is_answer`.
        """
        answers = list(filter(self.is_answer, observations))
        self._unasked.add(one for one in answers if one.failed is None)
        if self.deterministic:
            for known in answers:
                self._answers.setdefault((known.theta, known.query), known)

    def paid(self, observations: Iterable[Observation]) -> None:
        """Takes in answers that were paid for before the run; see `remember`.

        An observation of the run that asks for one of their pairs is a repeat.

        Args:
            observations: Those of a measurement by this evaluator, or by one like it.
        """
        self.remember(known := list(observations))
        self._paid = {(one.theta, one.query, one.failed) for one in known}
        self.most_usd = max((one.paid_usd for one in known), default=0.0)

    def take_lost(self) -> list[Observation]:
        """See `LosesCalls`."""
        return [] if self._elsewhere is None else self._elsewhere.take_lost()

    def repeats(self, observations: Iterable[Observation]) -> list[Observation]:
        """Those of a run, in the asked order, that repeat an earlier answer; see `KeepsAnswers`."""
        answered = set(self._paid)
        repeated: list[Observation] = []
        for observation in observations:
            theta, query, failed = observation.theta, observation.query, observation.failed
            # A failure was kept when failures were answers, whatever they are today.
            if {(theta, query, None), (theta, query, failed)} & answered:
                repeated.append(observation)
            answered.add((theta, query, failed))
        return repeated

    def is_answer(self, observation: Observation) -> bool:
        """Whether it stands: a failure that counts as 0 is not asked again until it succeeds."""
        return observation.failed is None or self.on_error == "zero"

    def _observe_once(self, request: Request) -> Observation:
        """The kept answer of the pair, or its first; a repeat waits for a first in flight."""
        pair = request.theta, request.query
        with self._changed:
            self._changed.wait_for(lambda: pair not in self._asking)
            known = self._answers.get(pair)
            if known is None:
                self._asking.add(pair)
        if known is not None:
            return replace(known, replicate=request.replicate)
        try:
            return self._observe(request)
        finally:
            with self._changed:
                self._asking.remove(pair)
                self._changed.notify_all()

    def _observe(self, request: Request) -> Observation:
        """Runs the system, books its cost, and then has the answer graded."""
        answer, usd, failure = self._tried(partial(self._ask, request), "system", request)
        paid = Observation(*request[:2], usd, 0.0, request.replicate, failed="app")
        if failure is not None:
            return self._failed(paid, failure)
        who = "system"
        try:
            quality, paid = booked(self.problem, self._prices, request, answer, usd)
            self._unasked.check(paid)
            if callable(quality):
                who, grade = "metric", partial(called, quality)
                graded, usd, failure = self._tried(grade, who, request)
                quality, judge_usd = (0.0, 0.0) if graded is None else graded
                answer = quality
                paid = replace(paid, judge_usd=usd + judge_usd)
            observation = replace(paid, quality=number(quality), failed=None)
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(answer, Mapping):  # the function that grades it says nothing
                answer = {key: value for key, value in answer.items() if not callable(value)}
            wrong = InputError(
                f"the {who} returned {reprlib.repr(answer)} for {self._named(request)}: {error}"
            )
            wrong.__cause__ = error
            if paid.failed == "app":
                usd += told_usd(self.problem, self._prices, request, answer)
                paid = replace(paid, cost_usd=usd)
            raise ending(wrong, paid) from error
        if failure is not None:
            return self._failed(paid, failure)
        self._unasked.add([observation])
        if self.deterministic:
            self._answers[request[:2]] = observation
        return observation

    def _ask(self, request: Request) -> Any:
        run = self._sent or timed(getattr(self.system, "ungraded", self.system))
        return run(self.problem.names(request.theta), self.queries[request.query])[0]

    def _tried(
        self, call: Callable[[], Any], who: str, request: Request
    ) -> tuple[Any, float, BaseException | None]:
        """What a call returns, or None; the USD of its attempts that failed; and its last error.

        Calls again if it raises and may be called again; not after an error that the user can mend,
        nor after an interrupt.
        """
        attempt, lost_usd = 0, 0.0
        while True:
            try:
                return asked_again(call, partial(self._lose, who, request)), lost_usd, None
            except BaseException as error:  # an interrupt of the system itself was paid for too
                refused = getattr(error, "refused_answer", None)
                lost_usd += usd_of(error) + told_usd(self.problem, self._prices, request, refused)
                if self.on_error != "retry" or ends_all(error) or attempt >= self._max_retries:
                    return None, lost_usd, error
                wait_s, named = self._retry_wait_s * 2**attempt, self._named(request)
                logger.warning("the %s raised %r for %s; retry in %g s", who, error, named, wait_s)
            if self._stopped.wait(wait_s):
                return None, lost_usd, GivenUp()
            attempt += 1

    def _lose(self, who: str, request: Request, error: WorkerLost) -> None:
        """Notes a call whose worker was lost; nobody but an endpoint knows what it has cost."""
        assert self._elsewhere is not None
        logger.warning("a worker was lost with the %s: %s (%s)", who, self._named(request), error)
        lost, usd = Observation(*request[:2], 0.0, 0.0, request.replicate, lost=0), usd_of(error)
        part, failed = ("cost_usd", "app") if who == "system" else ("judge_usd", "metric")
        self._elsewhere.lost.append(replace(lost, failed=failed, **{part: usd}))
        if self._stopped.wait(PAUSE_S):  # a signal to all processes ends the workers first
            raise GivenUp

    def _failed(self, paid: Observation, error: BaseException) -> Observation:
        """An observation of quality 0; or the end of the search.

        Args:
            paid: What was paid, with quality 0.
            error: What the system or the metric raised.
        """
        who = "metric" if paid.failed == "metric" else "system"
        named = self._named(paid.request)
        self.retired |= retired_in(error)
        if self.on_error != "zero" or ends_all(error):
            error.add_note(f"raised by the {who} for {named}")
            if usd := paid.paid_usd:
                error.add_note(f"this run cost {usd:.3g} USD, which are in no observation")
            raise ending(error, paid)
        if paid.failed == "app" and not hasattr(error, "cost_usd"):
            paid = replace(paid, cost_usd=self._failed_cost_usd)
        with self._changed:
            self.num_failed += 1
            is_first = (paid.failed, paid.theta) not in self._warned_of
            self._warned_of.add((paid.failed, paid.theta))
        if is_first:
            logger.warning(
                "the %s raised %r for %s; quality 0 at %g USD; further failures of this "
                "configuration are only counted",
                *(who, error, named, paid.paid_usd),
            )
        if self.deterministic:
            self._answers[paid.theta, paid.query] = paid
        return paid

    def _named(self, request: Request) -> str:
        query = reprlib.repr(self.queries[request.query])
        return f"query {request.query}, {query}, under {self.problem.names(request.theta)}"

    def query_keys(self) -> list[str]:
        """See `HasQueryKeys`; an element of a data set is known by its content alone."""
        return list(self._keys)

    @cached_property
    def _keys(self) -> list[str]:
        return keys_of(one.content if isinstance(one, Item) else one for one in self.queries)

    def outputs_of(self, run_dir: Path) -> Mapping[tuple[tuple[str, ...], int], Any]:
        """See `Regrades`; a system that keeps no outputs has none."""
        return self.system.outputs_of(run_dir) if isinstance(self.system, Application) else {}

    def regraded(self, request: Request, output: Any) -> tuple[float | None, float]:
        """See `Regrades`; with `on_error="zero"`, there is no grade also if the metric raises."""
        app = self.system
        if not isinstance(app, Application) or not app.has_metric:
            return None, 0.0
        call = partial(app.regraded, self.queries[request.query], output)
        graded, usd, failure = self._tried(call, "metric", request)
        if failure is None:
            quality, judge_usd = graded
            try:
                return number(quality), usd + judge_usd
            except (TypeError, ValueError, OverflowError) as error:
                failure = InputError(f"the metric returned {reprlib.repr(quality)}: {error}")
        if self.on_error == "zero" and not ends_all(failure):
            return None, usd
        failure.add_note(f"raised by the metric for the kept output of {self._named(request)}")
        with contextlib.suppress(AttributeError):  # it may be frozen
            failure.cost_usd = usd  # type: ignore[attr-defined]
        raise failure

    def adopt(self, llms: Sequence[str], query: int, output: Any) -> None:
        """See `Regrades`."""
        if isinstance(self.system, Application):
            self.system.adopt(llms, self.queries[query], output)

    def describe_prices(self) -> dict[str, Any] | None:
        """See `HasPrices`; None without a price list, or if it lacks an LLM: costs are given."""
        names = dict.fromkeys(llm for llms in self.problem.llms for llm in llms)
        with contextlib.suppress(InputError):
            return None if self._prices is None else self._prices.describe(names)
        return None

    def fingerprint(self) -> str:
        """The name with a hash of the queries, and what tells the metric from others."""
        return f"{self.name}-{self._hash}{self._graded}"

    @cached_property
    def _hash(self) -> str:
        """Of the queries; files are read once."""
        with contextlib.suppress(Unknowable):  # then no directory is opened, see `query_keys`
            return digest_of(text_of(list(self.queries)))
        return digest_of(str(len(self.queries)))

    def earlier_fingerprints(self) -> list[str]:
        """See `HasPast`; early ones knew no metric, and of queries that are no data the number."""
        text = str(len(self.queries))
        with contextlib.suppress(TypeError, ValueError):
            text = json.dumps(list(self.queries), sort_keys=True)
        known = self.system.gradings_before if isinstance(self.system, Application) else []
        graded = [f"{self.name}-{self._hash}{GRADED}{grading}" for grading in known]
        return [f"{self.name}-{digest_of(text)}", *graded]
