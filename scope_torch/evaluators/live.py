"""Observations of a compound system that calls LLMs, which costs money."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

from scope_torch.errors import InputError
from scope_torch.evaluators.window import in_window
from scope_torch.llm.chat import ChatClient, LLMError
from scope_torch.llm.choices import llm_of
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.observation import Observation, Request
from scope_torch.runs.content import Unknowable, digest_of
from scope_torch.runs.evaluator import GRADED, keys_of
from scope_torch.runs.identity import identities_of, text_of
from scope_torch.systems.graph import CompoundSystem, SystemRun
from scope_torch.tasks.dataset import Metric, Query

logger = logging.getLogger(__name__)

_LATER_PRICES = "cache_write_usd_per_mtok", "cache_write_1h_usd_per_mtok", "search_usd"
_LATER_PRICES += "audio_input_usd_per_mtok", "audio_output_usd_per_mtok"  # after version 0.1.0


class LiveEvaluator:
    """Runs a compound system on queries, many at a time, on an event loop of its own.

    A reply that cannot be used lowers the quality and does not end the run. Where a call gave no
    reply, the quality is 0 and the metric is not asked, see `Observation.failed`. Some errors would
    meet every further call too: no key, an unknown model, too many failures in a row. They end the
    run after the calls in flight; the same command resumes it from the journal.

    Args:
        modules: Names of the modules of the problem, the same as those of `system`.
        llms: For each module, the names of its candidate LLMs.
        system: The compound system.
        queries: The Q queries.
        metric: Grades the output; called in a thread, because it may take long.
        prices: The LLMs by name.
        client: Sends the calls. Usually a `ResponseStore`: several configurations may share a call,
            and it pays for each call only once.
        concurrency: Queries in flight at a time.
        outcomes: Whether observations carry the named outcomes `latency_s`, the seconds that the
            system took, and `input_tokens` and `output_tokens`, sums over the modules.

    Attributes:
        num_failed: Number of calls so far that gave no reply, after retries.

    Raises:
        InputError: If the modules are not those of the system, or an LLM has no price.

    Examples:
        >>> from scope_torch.llm.chat import Completion
        >>> from scope_torch.llm.prices import load_llms
        >>> from scope_torch.systems.unidm import entity_resolution
        >>> from scope_torch.tasks.grading import yes_or_no
        >>> class SaysYes:  # in place of ResponseStore("replies.sqlite", OpenAIClient(...))
        ...     async def complete(self, call):
        ...         return Completion("Yes.", 100, 2, 0, 0.0001, 0.0, 0.5)
        >>> pairs = [Query({"entity_a": {"name": "Bob"}, "entity_b": {"name": "Robert"}}, gold=1)]
        >>> system, llm = entity_resolution(), ["GPT-5.2"]
        >>> modules = [module.name for module in system.modules]
        >>> evaluator = LiveEvaluator(
        ...     modules, [llm, llm, llm], system, pairs, yes_or_no, load_llms(), SaysYes()
        ... )
        >>> (observation,) = evaluator.evaluate([Request((0, 0, 0), 0)])
        >>> observation.quality, round(observation.cost_usd, 6)
        (1.0, 0.0003)
        >>> evaluator.close()
    """

    def __init__(
        self,
        modules: Sequence[str],
        llms: Sequence[Sequence[str]],
        system: CompoundSystem,
        queries: Sequence[Query],
        metric: Metric,
        prices: Mapping[str, LLMInfo],
        client: ChatClient,
        concurrency: int = 8,
        *,
        outcomes: bool = False,
    ) -> None:
        names = [module.name for module in system.modules]
        if list(modules) != names:
            raise InputError(
                f"modules={list(modules)}: {system.name} has {names}; name them in this order"
            )
        if concurrency < 1:
            raise InputError(f"concurrency={concurrency} must be at least 1")
        self._candidates = [[llm_of(prices, llm) for llm in given] for given in llms]
        self.modules, self.system, self.queries, self.metric = modules, system, queries, metric
        self.client, self.concurrency, self.outcomes = client, concurrency, outcomes
        self.num_failed = 0
        # Before it keeps anything of its calls.
        self._graded, *self._graded_before = [GRADED + one for one in identities_of(metric)]
        # A pool apart: asyncio's own pool is small, and looks up host names.
        self._graders = ThreadPoolExecutor(concurrency)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_lock, self._process = threading.Lock(), os.getpid()

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        """Runs the system for every request; see `Evaluator` and `in_window`.

        Raises:
            InputError: If every further call would fail too.
        """
        loop = self._running_loop()

        def start(request: Request, future: Future[Observation]) -> None:
            asyncio.run_coroutine_threadsafe(self._fulfil(future, request), loop)

        return in_window(start, requests, self.concurrency)

    async def _fulfil(self, future: Future[Observation], request: Request) -> None:
        """As `fulfil`."""
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(await self._observe(request))
        except BaseException as error:
            future.set_exception(error)

    async def _observe(self, request: Request) -> Observation:
        theta, query, replicate = request
        assignment = {
            module: candidates[code]
            for module, candidates, code in zip(self.modules, self._candidates, theta, strict=True)
        }
        fields = self.queries[query].fields
        try:
            run = await self.system.run(assignment, fields, self.client, replicate)
        except LLMError as error:
            raise InputError(f"the search cannot go on: {error}") from error
        num_failed = sum(module.num_failed for module in run.modules.values())
        self.num_failed += num_failed
        # A fallback may be right by chance: an LLM that never answers would be the cheapest one.
        quality = None
        if not num_failed:
            quality = await asyncio.get_running_loop().run_in_executor(
                self._graders, self.metric, run.output, self.queries[query]
            )
        observation = _observation(request, run, quality)
        return (
            replace(observation, outcomes=_outcomes(observation)) if self.outcomes else observation
        )

    def fingerprint(self) -> str:
        """Identifies the system, the queries, how the LLMs are called and priced, and the metric.

        Does not depend on the address of the endpoint: a journal may be resumed with another one.
        """
        return self._of_system() + self._graded

    def earlier_fingerprints(self) -> list[str]:
        """See `HasPast`; the first two, of them one of version 0.1.0, knew no metric.

        Of queries that are no plain data they knew a text.
        """
        system = self._of_system()
        early = [self._of_text(), self._of_text(knows_later=False)]
        return [*early, *(system + graded for graded in self._graded_before)]

    def _of_system(self) -> str:
        try:
            return f"{self.system.name}-{digest_of(text_of(self._described()))}"
        except Unknowable:  # then no directory is opened, see `query_keys`
            return self._of_text()

    def _of_text(self, knows_later: bool = True) -> str:
        canonical = json.dumps(self._described(knows_later), sort_keys=True, default=str)
        return f"{self.system.name}-{digest_of(canonical)}"

    def _described(self, knows_later: bool = True) -> dict[str, Any]:
        """What decides its answers."""
        llms = [[_called(llm, knows_later) for llm in of_one] for of_one in self._candidates]
        described: dict[str, Any] = {
            "system": [self.system.name, self.system.version],
            "queries": [[dict(query.fields), query.gold] for query in self.queries],
            "llms": llms,
        }
        if extra_body := getattr(self.client, "extra_body", None):
            described["extra_body"] = dict(extra_body)
        return described

    def query_keys(self) -> list[str]:
        """See `HasQueryKeys`."""
        return keys_of((dict(query.fields), query.gold) for query in self.queries)

    def describe_prices(self) -> dict[str, Any]:
        """See `HasPrices`."""
        llms = {llm.name: llm for candidates in self._candidates for llm in candidates}
        return PriceList(llms).describe(llms)

    def close(self) -> None:
        """Closes the client with its connections, and the metric; ends the event loop.

        If a part of the bill is an upper estimate, it says how much.
        """
        if number := getattr(self.client, "num_estimated", 0):
            logger.warning(
                "%d replies or failed attempts came without usage that can be believed; %.3g USD "
                "of the bill are an upper estimate",
                number,
                getattr(self.client, "estimated_usd", 0.0),
            )
        if close := getattr(self.metric, "close", None):
            close()
        loop = self._running_loop()  # starts one if there is none: closing the client needs it
        if close := getattr(self.client, "close", None):
            asyncio.run_coroutine_threadsafe(close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._loop = None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if os.getpid() != self._process:
            raise InputError(
                "this LiveEvaluator was made before a fork, and its threads are those of the "
                "parent: no call would ever end; make it in the child process"
            )
        with self._loop_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run_loop, args=(self._loop,), daemon=True).start()
            return self._loop


def _called(llm: LLMInfo, knows_later: bool) -> dict[str, Any]:
    """How an LLM is called and priced; its published speed decides nothing in a live run.

    Args:
        llm: The LLM.
        knows_later: Whether prices that version 0.1.0 did not know are told where there are none.
    """
    others = {"tokens_per_s", "first_token_s", "batch_factor"}
    if llm.gpu_hour_usd is None:  # as the directories of earlier versions have it
        others |= {"gpu_hour_usd", "concurrent_calls"}
    if not knows_later:
        others |= {name for name in _LATER_PRICES if getattr(llm, name) is None}
    return {key: value for key, value in asdict(llm).items() if key not in others}


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _observation(request: Request, run: SystemRun, quality: float | None) -> Observation:
    """An observation; without a quality, one of a run that failed."""
    modules: Iterable[Any] = run.modules.values()
    return Observation(
        request.theta,
        request.query,
        run.cost_usd,
        0.0 if quality is None else quality,
        request.replicate,
        latency_s=run.latency_s,
        module_cost_usd=tuple(module.cost_usd for module in modules),
        module_tokens=tuple((module.prompt_tokens, module.completion_tokens) for module in modules),
        failed="app" if quality is None else None,
    )


def _outcomes(observation: Observation) -> dict[str, float]:
    """Seconds and tokens of a run, as named outcomes."""
    prompt, completion = zip(*(observation.module_tokens or ()), strict=True)
    return {
        "latency_s": observation.latency_s or 0.0,
        "input_tokens": float(sum(prompt)),
        "output_tokens": float(sum(completion)),
    }
