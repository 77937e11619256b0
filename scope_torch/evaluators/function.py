"""Any Python callable as a compound AI system."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scope_torch.errors import InputError
from scope_torch.evaluators.window import in_window
from scope_torch.llm.billing import Usage, cost_usd
from scope_torch.llm.prices import LLMInfo, choose_llms
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem

Tokens = Mapping[str, tuple[int, int]]
Graded = tuple[float, float | Tokens]
System = Callable[[dict[str, str], Any], Graded | Awaitable[Graded]]


class FunctionEvaluator:
    """Evaluates `system(assignment, query) -> (quality, cost_usd)`.

    Args:
        problem: Names of modules and LLMs.
        system: Runs the system: `assignment` maps module names to LLM names; returns the quality
            in [0, 1] and the cost in USD. Instead of the cost it may return the tokens used:
            `{module: (prompt_tokens, completion_tokens)}`. May be `async def`.
        queries: The Q queries; each is handed to `system` as it is.
        concurrency: Calls in flight at a time, each in a thread. Only batches of requests can run
            concurrently: Calibrate's rounds, and the j-loop if `batch_size` is above 1.
        name: Identifies the system, by default the callable's name; a journal is only resumed under
            the same name and queries, so rename what you change.
        prices: The price list, for a system that returns tokens; see `load_llms`.

    Raises:
        InputError: If the number of queries is not the problem's, or an LLM has no price.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        system: System,
        queries: Sequence[Any],
        concurrency: int = 1,
        name: str | None = None,
        prices: Mapping[str, LLMInfo] | None = None,
    ) -> None:
        if len(queries) != problem.num_queries:
            raise InputError(f"{len(queries)} queries given, the problem has {problem.num_queries}")
        if concurrency < 1:
            raise InputError(f"concurrency={concurrency} must be at least 1")
        for llms in problem.llms if prices is not None else ():
            choose_llms(dict(prices or {}), llms)
        self.problem, self.system, self.queries = problem, system, queries
        self.concurrency = concurrency
        self.name = name if name is not None else getattr(system, "__qualname__", "system")
        self._prices = prices

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        """See `Evaluator` and `in_window`."""
        pool = ThreadPoolExecutor(self.concurrency)
        try:
            yield from in_window(
                lambda request: pool.submit(self._observe, request), requests, self.concurrency
            )
        finally:
            pool.shutdown(wait=False)

    def _observe(self, request: Request) -> Observation:
        theta, query, replicate = request
        assignment = self.problem.names(theta)
        graded = self.system(dict(assignment), self.queries[query])
        quality, cost = asyncio.run(_result(graded)) if inspect.isawaitable(graded) else graded
        if not isinstance(cost, Mapping):
            return Observation(theta, query, float(cost), float(quality), replicate)
        tokens = tuple(self._tokens(cost, module) for module in assignment)
        costs = tuple(
            self._priced(llm, *used) for llm, used in zip(assignment.values(), tokens, strict=True)
        )
        return Observation(
            theta,
            query,
            sum(costs),
            float(quality),
            replicate,
            module_cost_usd=costs,
            module_tokens=tokens,
        )

    def _tokens(self, used: Tokens, module: str) -> tuple[int, int]:
        unknown = set(used) - set(self.problem.modules)
        if unknown:
            raise InputError(
                f"the system used tokens in {sorted(unknown)}; the modules are "
                f"{list(self.problem.modules)}"
            )
        prompt, completion = used.get(module, (0, 0))
        if prompt < 0 or completion < 0:
            raise InputError(
                f"the system used {used[module]} tokens in {module!r}; none is negative"
            )
        return int(prompt), int(completion)

    def _priced(self, llm: str, prompt: int, completion: int) -> float:
        if self._prices is None:
            raise InputError("the system returns tokens; give FunctionEvaluator prices=load_llms()")
        return cost_usd(self._prices[llm], Usage(prompt, completion))

    def fingerprint(self) -> str:
        """See `Evaluator`; the name, and a hash of the queries if they are plain data."""
        try:
            queries = json.dumps(list(self.queries), sort_keys=True)
        except (TypeError, ValueError):
            queries = str(len(self.queries))
        return f"{self.name}-{hashlib.sha256(queries.encode()).hexdigest()[:16]}"


async def _result(graded: Awaitable[Graded]) -> Graded:
    return await graded
