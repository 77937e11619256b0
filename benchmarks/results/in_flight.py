"""What many calls in flight cost, and how much time they save, with simulated latencies."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.results.runs import Cell, method_of
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.observation import Request
from scope_torch.tasks import Task

WIDTHS = {
    "1": ("method=scope_joint",),
    "rounds of 32": ("method=scope_joint", "method.batch_size=32"),
    "8": ("method=scope_joint", "method.in_flight=8"),
    "32": ("method=scope_joint", "method.in_flight=32"),
    "128": ("method=scope_joint", "method.in_flight=128"),
    "scope 1": ("method=scope",),
    "scope 32": ("method=scope", "method.in_flight=32"),
    "scope 128": ("method=scope", "method.in_flight=128"),
}
# Others with 4 trials in parallel, each of which asks all queries at once.
PARALLEL = {
    "optuna_tpe 32": "optuna_tpe n_startup=10 constant_liar=1 trials=4",
    "ax 32": "ax n_startup=10 trials=4",
}


@dataclass(frozen=True)
class InFlightCell(Cell):
    """One search without a clock; its time follows from the order of its requests."""

    def measured(self) -> dict[str, Any]:
        """Money, calls, cost of the choice over the optimum, and times in mean latencies."""
        cfg = compose(self.settings)
        task: Task = build(cfg.task)
        search = method_of(self, cfg, task)
        events, spend_usd = searched(search, task, cfg.budget_usd)
        calls = sum(number for number in events if number > 0)
        width = int(self.method.split()[-1])
        rng = np.random.default_rng(cfg.seed)
        times = {
            "equal": np.ones(calls),
            "lognormal": lognormal(rng, calls),
            "heavy": 1.5 * rng.pareto(2.5, calls),  # a power law of mean 1
        }
        cost, quality = (values.view(-1) for values in task.evaluator.truth()[:2])
        best = float(cost[quality >= task.problem.s_0 - 1e-12].min())
        choice = search.recommend()
        return {
            "certified": choice.basis == "certified",
            "ratio": float(cost[task.problem.space.index_of(choice.theta)]) / best,
            "usd": spend_usd,
            "calls": calls,
            **{
                f"speedup_{name}": float(of.sum()) / makespan(events, of, width)
                for name, of in times.items()
            },
        }


def lognormal(rng: np.random.Generator, calls: int) -> np.ndarray:
    """Latencies of mean 1, with sigma 0.8."""
    return rng.lognormal(-0.32, 0.8, calls)


def searched(search: Any, task: Task, budget_usd: float) -> tuple[list[int], float]:
    """A whole search: what it asked and was told, in order, and what it paid in USD.

    Returns:
        For each step, how many requests were made; or -1 where the answer to the oldest was told.
    """
    lag = getattr(search, "lag", 0)
    numbers: dict[Request, int] = {}
    waiting, events, spend_usd = deque[Any](), list[int](), 0.0
    batch: list[Any] = []
    while True:
        while (len(waiting) < lag or not (waiting or lag)) and (requests := search.ask()):
            for request in requests:
                numbers[request] = numbers.get(request, -1) + 1
                numbered = request._replace(replicate=numbers[request])
                waiting += task.evaluator.evaluate([numbered])
            events.append(len(requests))
        if not waiting:
            return events, spend_usd
        batch.append(waiting.popleft())
        events.append(-1)
        spend_usd += batch[-1].paid_usd
        is_spent = spend_usd > budget_usd
        if lag or is_spent or not waiting:
            search.tell(batch)
            batch = []
        if is_spent:
            return events, spend_usd


def makespan(events: Sequence[int], latencies: np.ndarray, width: int) -> float:
    """When the last answer was told, in mean latencies: `width` calls at a time, thinking is free.

    Args:
        events: See `searched`.
        latencies: Of each request, in the order asked.
        width: A request starts when it was made and one of so many places is free.
    """
    free, now, told = [0.0] * width, 0.0, 0
    ends: list[float] = []
    for number in events:
        for _ in range(number):
            start = max(heapq.heappop(free), now)
            ends.append(start + float(latencies[len(ends)]))
            heapq.heappush(free, ends[-1])
        if number < 0:
            now = max(now, ends[told])
            told += 1
    return now
