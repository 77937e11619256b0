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
    """Evaluates your own function, `system(assignment, query) -> (quality, cost_usd)`.

    If your function raises, the search stops. Catch bad replies and return `(0.0, cost)`.

    Args:
        problem: Names of modules and LLMs.
        system: Runs the system on one query. `assignment` maps module names to LLM names. It
            returns the quality in [0, 1] and the cost in USD, or the quality and the tokens used:
            `{module: (prompt_tokens, completion_tokens)}`. May be `async def`.
        queries: The Q queries; each is passed to `system` as it is.
        concurrency: Calls in flight at a time, each in a thread. Only batches of requests can run
            concurrently: Calibrate's rounds, and the j-loop if `batch_size` is above 1.
        name: Identifies the system; None for the name of the function. A journal is only resumed
            with the same name and queries, so change the name when you change the function.
        prices: The price list, for a system that returns tokens; see `load_llms`.

    Raises:
        InputError: If the number of queries is not the problem's, or an LLM has no price.

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
        """Calls the function for every request; see `Evaluator` and `in_window`."""
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
                f"the system used {used[module]} tokens in {module!r}; both numbers must be at "
                "least 0"
            )
        return int(prompt), int(completion)

    def _priced(self, llm: str, prompt: int, completion: int) -> float:
        if self._prices is None:
            raise InputError("the system returns tokens; give FunctionEvaluator prices=load_llms()")
        return cost_usd(self._prices[llm], Usage(prompt, completion))

    def fingerprint(self) -> str:
        """The name with a hash of the queries, or of their number if they are not plain data."""
        try:
            queries = json.dumps(list(self.queries), sort_keys=True)
        except (TypeError, ValueError):
            queries = str(len(self.queries))
        return f"{self.name}-{hashlib.sha256(queries.encode()).hexdigest()[:16]}"


async def _result(graded: Awaitable[Graded]) -> Graded:
    """A coroutine, because asyncio.run takes no other awaitable."""
    return await graded
