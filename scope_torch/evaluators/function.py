"""Any Python callable as a compound AI system."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

from scope_torch.errors import InputError
from scope_torch.history import Observation, Request
from scope_torch.problem import SelectionProblem

System = Callable[[dict[str, str], Any], tuple[float, float]]


class FunctionEvaluator:
    """Evaluates `system(assignment, query) -> (quality, cost_usd)`.

    Args:
        problem: Names of modules and LLMs.
        system: Runs the system: `assignment` maps module names to LLM names; returns the quality
            in [0, 1] and the cost in USD.
        queries: The Q queries; each is handed to `system` as it is.
        concurrency: Calls in flight at a time, each in a thread. Only batches of requests can run
            concurrently: Calibrate's rounds, and the j-loop if `batch_size` is above 1.
        name: Identifies the system, by default the callable's name; a journal is only resumed under
            the same name and queries, so rename what you change.

    Raises:
        InputError: If the number of queries is not the problem's.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        system: System,
        queries: Sequence[Any],
        concurrency: int = 1,
        name: str | None = None,
    ) -> None:
        if len(queries) != problem.num_queries:
            raise InputError(f"{len(queries)} queries given, the problem has {problem.num_queries}")
        if concurrency < 1:
            raise InputError(f"concurrency={concurrency} must be at least 1")
        self.problem, self.system, self.queries = problem, system, queries
        self.concurrency = concurrency
        self.name = name if name is not None else getattr(system, "__qualname__", "system")

    def evaluate(self, requests: Sequence[Request]) -> Iterator[Observation]:
        """See `Evaluator`.

        If a call raises, or the user interrupts, no further call is started; those in flight are
        waited for and yielded, because they are paid for; then the error is raised. A second
        interrupt does not wait.
        """
        pool = ThreadPoolExecutor(self.concurrency)
        pending = {pool.submit(self._observe, request) for request in requests}
        error: BaseException | None = None
        try:
            while pending:
                try:
                    future = next(as_completed(pending))
                except KeyboardInterrupt as interrupt:
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    error = interrupt
                    pending = _cancel(pending)
                    continue
                pending.discard(future)
                if failure := future.exception():
                    error = error or failure
                    pending = _cancel(pending)
                else:
                    yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        if error:
            raise error

    def _observe(self, request: Request) -> Observation:
        theta, query, replicate = request
        quality, cost_usd = self.system(self.problem.names(theta), self.queries[query])
        return Observation(theta, query, float(cost_usd), float(quality), replicate)

    def fingerprint(self) -> str:
        """See `Evaluator`; the name, and a hash of the queries if they are plain data."""
        try:
            queries = json.dumps(list(self.queries), sort_keys=True)
        except (TypeError, ValueError):
            queries = str(len(self.queries))
        return f"{self.name}-{hashlib.sha256(queries.encode()).hexdigest()[:16]}"


def _cancel(pending: set[Future[Observation]]) -> set[Future[Observation]]:
    """Cancels calls that have not started; returns those in flight."""
    return {future for future in pending if not future.cancel()}
