"""Any Python callable as a compound AI system."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import math
import reprlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from itertools import starmap
from pathlib import Path
from typing import Any, Literal, SupportsFloat

from scope_torch.errors import InputError
from scope_torch.evaluators.application import Application, Item
from scope_torch.evaluators.event_loop import result_of
from scope_torch.evaluators.window import in_window
from scope_torch.llm.billing import Usage
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo, choose_llms
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.runs.content import Unknowable, digest_of, text_of
from scope_torch.runs.evaluator import GRADED, keys_of

logger = logging.getLogger(__name__)

Tokens = Mapping[str, tuple[int, int] | Usage]
Graded = tuple[float, float | Tokens] | Mapping[str, Any]
System = Callable[[dict[str, str], Any], Graded | Awaitable[Graded]]
OnError = Literal["raise", "retry", "zero"]

# And perhaps outcomes.
_KEYS = {"quality", "cost_usd"}, {"quality", "tokens"}, {"quality", "module_cost_usd", "tokens"}


class FunctionEvaluator:
    """Evaluates your own function, `system(assignment, query) -> (quality, cost_usd)`.

    Args:
        problem: Names of modules and LLMs.
        system: Runs the system on one query. `assignment` maps module names to LLM names. It
            returns the quality in [0, 1] and the cost in USD, or the quality and the tokens used:
            `{module: (prompt_tokens, completion_tokens)}`; as a pair, or as a dictionary with the
            keys `quality` and `cost_usd`, or `quality` and `tokens`. The tokens of a module may be
            a `Usage`, which knows cached ones. With `module_cost_usd`, in USD by module, `tokens`
            are recorded, not priced. A dictionary may also have `outcomes`: other finite numbers
            by name, such as {"seconds": 1.2}. May be `async def`: all its calls run on one event
            loop, so they must not block it; see `event_loop`.
        queries: The Q queries; each is passed to `system` as it is.
        concurrency: Calls in flight at a time, each in a thread. Only batches of requests can run
            concurrently: Calibrate's rounds, and the j-loop if `batch_size` is above 1.
        name: Identifies the system; None for the name of the function. A journal is only resumed
            with the same name, queries and metric (of an `Application`), so change the name when
            you change the function.
        prices: The price list, for a system that returns tokens: a `PriceList`, or LLMs by name as
            `load_llms` reads them.
        deterministic: Whether the system answers the same query under the same configuration the
            same way. Each pair is then asked once, also by a search that was resumed, and a repeat
            (see `calibrate`) gets the quality and the cost of the first answer without a call.
        on_error: What to do if the system raises. `raise`: the search stops after the calls in
            flight. `retry`: call it up to `max_retries` times more, then raise. `zero`: the
            observation has quality 0 and costs `failed_cost_usd`; a warning names every such call.
        max_retries: See `on_error`.
        retry_wait_s: Seconds before the first retry; twice as many before each further one.
        failed_cost_usd: USD charged for a call that raised, with `on_error="zero"`. An exception
            with an attribute `cost_usd` says itself what it cost, also before a retry.

    Attributes:
        num_failed: Number of calls so far that gave quality 0 because they raised.

    Raises:
        InputError: If the number of queries is not the problem's, an LLM has no price, or a value
            is outside its range.

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
    ) -> None:
        if len(queries) != problem.num_queries:
            raise InputError(f"{len(queries)} queries given, the problem has {problem.num_queries}")
        if concurrency < 1:
            raise InputError(f"concurrency={concurrency} must be at least 1")
        if on_error not in ("raise", "retry", "zero"):
            raise InputError(f"on_error={on_error!r} must be raise, retry or zero")
        numbers = {"max_retries": max_retries, "retry_wait_s": retry_wait_s}
        for key, value in {**numbers, "failed_cost_usd": failed_cost_usd}.items():
            if not 0 <= value < math.inf:
                raise InputError(f"{key}={value} must be a number >= 0")
        if isinstance(prices, Mapping):
            for llms in problem.llms:
                choose_llms(dict(prices), llms)
            prices = PriceList(prices)
        self.problem, self.system, self.queries = problem, system, queries
        self.concurrency = concurrency
        self.name = name if name is not None else getattr(system, "__qualname__", "system")
        self.deterministic, self.on_error, self.num_failed = deterministic, on_error, 0
        self._graded = f"{GRADED}{system.grading}" if isinstance(system, Application) else ""
        self._prices, self._max_retries, self._retry_wait_s = prices, max_retries, retry_wait_s
        self._failed_cost_usd = failed_cost_usd
        self._changed = threading.Condition()  # guards the three that follow
        self._answers: dict[tuple[tuple[int, ...], int], Observation] = {}
        self._asking: set[tuple[tuple[int, ...], int]] = set()
        self._paid: set[tuple[tuple[int, ...], int]] = set()

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        """Calls the function for every request; see `Evaluator` and `in_window`.

        Raises:
            InputError: If the function returns something else than a quality and a cost.
        """
        observe = self._observe_once if self.deterministic else self._observe
        pool = ThreadPoolExecutor(self.concurrency)
        try:
            yield from in_window(
                lambda request: pool.submit(observe, request), requests, self.concurrency
            )
        finally:
            pool.shutdown(wait=False)

    def remember(self, observations: Iterable[Observation]) -> None:
        """Takes in answers that are known; with `deterministic`, their pairs are not asked again.

        `run` calls it with the journal of a search that it resumes.

        Args:
            observations: Those of an earlier process. Failed calls among them are no answers.
        """
        if self.deterministic:
            for known in filter(self.is_answer, observations):
                self._answers.setdefault((known.theta, known.query), known)

    def paid(self, observations: Iterable[Observation]) -> None:
        """Takes in answers that were paid for before the run; see `remember`.

        An observation of the run that asks for one of their pairs is a repeat.

        Args:
            observations: Those of a measurement by this evaluator, or by one like it.
        """
        self.remember(known := list(observations))
        self._paid = {(o.theta, o.query) for o in filter(self.is_answer, known)}

    def repeats(self, observations: Iterable[Observation]) -> list[Observation]:
        """The observations that repeat an earlier answer; with `deterministic`, no call made them.

        Args:
            observations: The observations of a run, in the asked order.
        """
        answered = set(self._paid)
        repeated: list[Observation] = []
        for observation in observations:
            pair = observation.theta, observation.query
            if pair in answered:
                repeated.append(observation)
            elif self.is_answer(observation):
                answered.add(pair)
        return repeated

    def is_answer(self, observation: Observation) -> bool:
        """False for a call that may have raised: its pair is asked again."""
        values = observation.quality, observation.cost_usd
        return self.on_error != "zero" or values != (0.0, self._failed_cost_usd)

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
        try:
            answer = self._answer(request)
        except Exception as error:
            if self.on_error != "zero":
                error.add_note(f"raised by the system for {self._named(request)}")
                if usd := getattr(error, "cost_usd", 0.0):
                    error.add_note(f"this run cost {usd:.3g} USD, which are in no observation")
                raise
            return self._failed(request, error)
        answer, lost_usd = answer
        try:
            observation = self._observation(request, answer)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"the system returned {reprlib.repr(answer)} for {self._named(request)}: {error}"
            ) from error
        if lost_usd:
            observation = replace(observation, cost_usd=observation.cost_usd + lost_usd)
        if self.deterministic:
            self._answers[request.theta, request.query] = observation
        return observation

    def _answer(self, request: Request) -> tuple[Any, float]:
        """What the system returns, and the USD of attempts that failed.

        Asks again if it raises and may be asked again.
        """
        attempt, lost_usd = 0, 0.0
        while True:
            try:
                assignment = self.problem.names(request.theta)
                answer = self.system(assignment, self.queries[request.query])
                return (result_of(answer) if inspect.isawaitable(answer) else answer), lost_usd
            except Exception as error:
                lost_usd += getattr(error, "cost_usd", 0.0)
                if self.on_error != "retry" or attempt >= self._max_retries:
                    raise
                wait_s = self._retry_wait_s * 2**attempt
                named = self._named(request)
                logger.warning("the system raised %r for %s; retry in %g s", error, named, wait_s)
            time.sleep(wait_s)
            attempt += 1

    def _failed(self, request: Request, error: Exception) -> Observation:
        with self._changed:
            self.num_failed += 1
        logger.warning(
            "the system raised %r for %s; quality 0 at %g USD (failed call %d)",
            error,
            self._named(request),
            usd := getattr(error, "cost_usd", self._failed_cost_usd),
            self.num_failed,
        )
        theta, query, replicate = request
        return Observation(theta, query, usd, 0.0, replicate)

    def _named(self, request: Request) -> str:
        query = reprlib.repr(self.queries[request.query])
        return f"query {request.query}, {query}, under {self.problem.names(request.theta)}"

    def _observation(self, request: Request, answer: Any) -> Observation:
        quality, cost, tokens = _parts(answer)
        outcomes = answer.get("outcomes") if isinstance(answer, Mapping) else None
        theta, query, replicate = request
        costs = used = None
        if isinstance(tokens, Mapping):
            used = [self._usage(tokens, module) for module in self.problem.modules]
        if isinstance(cost, Mapping):
            self._check_modules(cost)
            costs = tuple(_number(cost.get(module, 0.0)) for module in self.problem.modules)
        elif cost is None and used is not None:
            llms = self.problem.names(theta).values()
            costs = tuple(starmap(self._priced, zip(llms, used, strict=True)))
        return Observation(
            theta,
            query,
            _number(cost) if costs is None else sum(costs),
            _number(quality),
            replicate,
            module_cost_usd=costs,
            module_tokens=None if used is None else tuple(u[:2] for u in used),
            outcomes=outcomes,
        )

    def _usage(self, tokens: Tokens, module: str) -> Usage:
        self._check_modules(tokens)
        used = tokens.get(module, (0, 0))
        prompt, completion = used[:2] if isinstance(used, Usage) else used
        if prompt < 0 or completion < 0:
            raise InputError(
                f"the system used {tokens[module]} tokens in {module!r}; both numbers must be at "
                "least 0"
            )
        return used if isinstance(used, Usage) else Usage(int(prompt), int(completion))

    def _check_modules(self, values: Mapping[str, Any]) -> None:
        if unknown := set(values) - set(self.problem.modules):
            raise InputError(
                f"the system used tokens in {sorted(unknown)}; the modules are "
                f"{list(self.problem.modules)}"
            )

    def _priced(self, llm: str, usage: Usage) -> float:
        if self._prices is None:
            raise InputError(
                "the system returns tokens; give FunctionEvaluator prices=load_llms(), or a "
                "PriceList"
            )
        return self._prices.cost_usd(llm, usage)

    def query_keys(self) -> list[str]:
        """See `HasQueryKeys`; an element of a data set is known by its content alone."""
        return list(self._keys)

    @cached_property
    def _keys(self) -> list[str]:
        return keys_of(one.content if isinstance(one, Item) else one for one in self.queries)

    def outputs_of(self, run_dir: Path) -> Mapping[tuple[tuple[str, ...], int], Any]:
        """See `Regrades`; a system that keeps no outputs has none."""
        return self.system.outputs_of(run_dir) if isinstance(self.system, Application) else {}

    def regraded(self, query: int, output: Any) -> float | None:
        """See `Regrades`; with `on_error="zero"`, None also if the metric raises."""
        app = self.system if isinstance(self.system, Application) else None
        try:
            return None if app is None else app.regraded(self.queries[query], output)
        except Exception as error:
            error.add_note(f"raised by the metric for the kept output of query {query}")
            if self.on_error != "zero":
                raise
            return None

    def adopt(self, llms: Sequence[str], query: int, output: Any) -> None:
        """See `Regrades`."""
        if isinstance(self.system, Application):
            self.system.adopt(llms, self.queries[query], output)

    def describe_prices(self) -> dict[str, Any] | None:
        """See `HasPrices`; None without a price list, or if it lacks an LLM: costs are given."""
        names = dict.fromkeys(llm for llms in self.problem.llms for llm in llms)
        try:
            return None if self._prices is None else self._prices.describe(names)
        except InputError:
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
        """See `HasPast`; they knew no metric, and of queries that are no plain data the number."""
        text = str(len(self.queries))
        with contextlib.suppress(TypeError, ValueError):
            text = json.dumps(list(self.queries), sort_keys=True)
        return [f"{self.name}-{digest_of(text)}"]


def _parts(answer: Any) -> tuple[Any, Any, Any]:
    """The quality, the cost, and the tokens by module, or None; nothing is checked."""
    if isinstance(answer, Mapping) and set(answer) - {"outcomes"} in _KEYS:
        cost = answer.get("cost_usd", answer.get("module_cost_usd"))
        return answer["quality"], cost, answer.get("tokens")
    if not isinstance(answer, Mapping | Set | str | bytes):
        with contextlib.suppress(TypeError, ValueError):  # not two values
            quality, cost = answer
            return (quality, None, cost) if isinstance(cost, Mapping) else (quality, cost, None)
    raise InputError(
        "it must return (quality, cost_usd), or a dictionary with just the keys quality and "
        "cost_usd, or quality and tokens, and perhaps outcomes"
    )


def _number(value: Any) -> float:
    """Returns a number of any kind as a float; refuses text and None."""
    if not isinstance(value, SupportsFloat):
        raise InputError(f"{value!r} is not a number")
    return float(value)
