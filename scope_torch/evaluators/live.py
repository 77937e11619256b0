"""A compound system that calls LLMs, for real money."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from scope_torch.errors import InputError
from scope_torch.evaluators.window import in_window
from scope_torch.llm.chat import ChatClient, LLMError
from scope_torch.llm.prices import LLMInfo, choose_llms
from scope_torch.observation import Observation, Request
from scope_torch.systems.graph import CompoundSystem, SystemRun
from scope_torch.tasks.dataset import Metric, Query


class LiveEvaluator:
    """Runs a compound system on queries, many at a time, on an event loop of its own.

    A reply that cannot be used costs quality, not the run; an error that every further call would
    meet too (no key, an unknown model, too many failures in a row) ends the run after the calls in
    flight, and the journal resumes it.

    Args:
        modules: Names of the modules of the problem: those of `system`, in the same order.
        llms: For each module the names of its candidate LLMs.
        system: What runs.
        queries: The Q queries.
        metric: Grades the output; called in a thread, for it may take long.
        prices: The LLMs by name.
        client: Where completions come from; usually a `ResponseStore`, so that calls that several
            configurations share are paid once.
        concurrency: Queries in flight at a time.

    Attributes:
        num_failed: Calls so far that gave no reply, after retries.

    Raises:
        InputError: If the modules are not those of the system, or an LLM has no price.
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
    ) -> None:
        names = [module.name for module in system.modules]
        if list(modules) != names:
            raise InputError(f"modules={list(modules)}: {system.name} has {names}")
        if concurrency < 1:
            raise InputError(f"concurrency={concurrency} must be at least 1")
        self._candidates = [choose_llms(dict(prices), candidates) for candidates in llms]
        self.modules, self.system, self.queries, self.metric = modules, system, queries, metric
        self.client, self.concurrency = client, concurrency
        self.num_failed = 0
        # asyncio's own pool has few threads, and looking up host names needs them
        self._graders = ThreadPoolExecutor(concurrency)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start = threading.Lock()

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        """See `Evaluator` and `in_window`.

        Raises:
            InputError: If every further call would fail too.
        """
        loop = self._running_loop()

        def submit(request: Request) -> Future[Observation]:
            return asyncio.run_coroutine_threadsafe(self._observe(request), loop)

        return in_window(submit, requests, self.concurrency)

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
        self.num_failed += sum(module.num_failed for module in run.modules.values())
        quality = await asyncio.get_running_loop().run_in_executor(
            self._graders, self.metric, run.output, self.queries[query]
        )
        return _observation(request, run, quality)

    def fingerprint(self) -> str:
        """See `Evaluator`: the system, the queries, and how the LLMs are called and priced.

        Where the endpoint lies is left out: a journal may be resumed from another place.
        """
        described: dict[str, Any] = {
            "system": [self.system.name, self.system.version],
            "queries": [[dict(query.fields), query.gold] for query in self.queries],
            "llms": [[asdict(llm) for llm in candidates] for candidates in self._candidates],
        }
        if extra_body := getattr(self.client, "extra_body", None):
            described["extra_body"] = dict(extra_body)
        canonical = json.dumps(described, sort_keys=True, default=str)
        return f"{self.system.name}-{hashlib.sha256(canonical.encode()).hexdigest()[:16]}"

    def close(self) -> None:
        """Closes the client, and its connections of this evaluator, and ends the event loop."""
        loop = self._running_loop()  # even if nothing was observed: the client has to be closed
        if close := getattr(self.client, "close", None):
            asyncio.run_coroutine_threadsafe(close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._loop = None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._start:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(self._loop,), daemon=True).start()
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _observation(request: Request, run: SystemRun, quality: float) -> Observation:
    modules: Iterable[Any] = run.modules.values()
    return Observation(
        request.theta,
        request.query,
        run.cost_usd,
        quality,
        request.replicate,
        latency_s=run.latency_s,
        module_cost_usd=tuple(module.cost_usd for module in modules),
        module_tokens=tuple((module.prompt_tokens, module.completion_tokens) for module in modules),
    )
