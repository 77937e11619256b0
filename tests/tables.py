"""Small random tasks with a known truth, shared by the tests of the algorithms and the runner."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from scope_torch.bounds import TunedBounds
from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.methods import compose_scope
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.scope import SCOPE


@dataclass(frozen=True)
class Task:
    """A recorded table and the selection problem on it."""

    table: RecordedTable
    problem: SelectionProblem

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.table.cost_usd.shape[:-1]

    @property
    def base(self) -> tuple[int, ...]:
        """The cheapest LLM in every module: code 0."""
        return (0,) * len(self.sizes)

    @property
    def mean_cost(self) -> np.ndarray:
        """c(theta) in USD by flat index."""
        return self.table.cost_usd.mean(-1).ravel()

    @property
    def mean_quality(self) -> np.ndarray:
        """s(theta) by flat index."""
        return self.table.quality.mean(-1).ravel()

    @property
    def best_cost(self) -> float:
        """c(theta_star) in USD."""
        return float(self.mean_cost[self.mean_quality >= self.problem.s_0].min())

    def budget(self, evaluations: float) -> float:
        """Cost of that many complete evaluations of an average configuration, in USD."""
        return float(evaluations * self.table.cost_usd.mean() * len(self.table.queries))

    def observe(self, request: Request) -> Observation:
        """What the table holds for a request."""
        theta, query, replicate = request
        at = (*theta, query)
        cost, quality = float(self.table.cost_usd[at]), float(self.table.quality[at])
        return Observation(theta, query, cost, quality, replicate)

    def evaluator(self) -> TableEvaluator:
        return TableEvaluator(self.table)

    def scope(self, seed: int = 0, **settings) -> SCOPE:
        """SCOPE with tuned bounds and the base that costs least."""
        bounds = settings.pop("bounds", None) or TunedBounds(self.problem)
        base = None if settings.get("initial_pool", "base") != "base" else self.base
        return compose_scope(self.problem, bounds, seed=seed, base=base, device="cpu", **settings)

    def coarse(self, seed: int = 0, **settings) -> SCOPE:
        return self.scope(seed, initial_pool="none", prune=False, name="scope-coarse", **settings)

    def rand(self, seed: int = 0, **settings) -> SCOPE:
        return self.scope(seed, initial_pool="random", name="scope-rand", **settings)


def names(sizes: tuple[int, ...]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Names of modules and of the LLMs of each."""
    modules = tuple(f"module{i}" for i in range(len(sizes)))
    return modules, tuple(tuple(f"llm{m}" for m in range(size)) for size in sizes)


def table_of(cost: np.ndarray, quality: np.ndarray) -> RecordedTable:
    """A table of `M_1 x ... x M_N x Q` costs and qualities."""
    modules, llms = names(cost.shape[:-1])
    queries = tuple(f"q{i}" for i in range(cost.shape[-1]))
    return RecordedTable(modules, llms, queries, cost, quality)


def task_of(
    cost: np.ndarray, quality: np.ndarray, theta_ref: tuple[int, ...], epsilon: float = 0.15
) -> Task:
    """A task on given costs and qualities."""
    table = table_of(cost, quality)
    reference = [llms[code] for llms, code in zip(table.llms, theta_ref, strict=True)]
    return Task(table, table.problem("random", reference, epsilon))


@functools.cache
def make_task(
    seed: int = 0,
    sizes: tuple[int, ...] = (4, 4, 4),
    num_queries: int = 16,
    graded: bool = True,
    epsilon: float = 0.15,
) -> Task:
    """A random task; where Theta allows it, something feasible costs under 0.7 of the reference.

    Code 0 is the cheapest LLM of a module, dearer LLMs tend to be better. `graded` qualities are
    continuous, others 0 or 1.
    """
    for attempt in itertools.count():
        rng = np.random.default_rng((seed, attempt))
        cost, quality = _random_values(rng, sizes, num_queries, graded)
        mean_cost, mean_quality = cost.mean(-1), quality.mean(-1)
        theta_ref = np.unravel_index(mean_quality.argmax(), sizes)
        feasible = mean_quality >= (1 - epsilon) * mean_quality.max()
        improvable = mean_cost[feasible].min() < 0.7 * mean_cost[theta_ref] or mean_cost.size == 1
        if improvable and mean_quality.max() > 0:
            return task_of(cost, quality, tuple(int(code) for code in theta_ref), epsilon)
    raise AssertionError


def _random_values(
    rng: np.random.Generator, sizes: tuple[int, ...], num_queries: int, graded: bool
) -> tuple[np.ndarray, np.ndarray]:
    price, skill = np.zeros(sizes), np.zeros(sizes)
    for module, size in enumerate(sizes):
        shape = [1] * len(sizes)
        shape[module] = size
        price = price + np.sort(rng.lognormal(-7, 1.2, size)).reshape(shape)
        ability = 0.4 + 0.3 * np.arange(size) / max(1, size - 1) + rng.uniform(-0.15, 0.25, size)
        skill = skill + ability.reshape(shape) / len(sizes)
    cost = price[..., None] * rng.lognormal(0, 0.2, (*sizes, num_queries))
    ease = rng.normal(0, 0.1, num_queries)
    quality = np.clip(skill[..., None] + ease, 0.02, 0.98)
    if graded:
        return cost, np.clip(quality + rng.normal(0, 0.05, quality.shape), 0.0, 1.0)
    return cost, (rng.random(quality.shape) < quality).astype(np.float64)


class Crash(Exception):
    """What `CountingEvaluator` raises."""


class CountingEvaluator:
    """Counts what is paid for, answers in a shuffled order, and crashes on demand.

    Args:
        task: What is evaluated.
        concurrency: As of any evaluator.
        crash_after: Observations made before it raises `Crash`; None for never.
    """

    def __init__(self, task: Task, concurrency: int = 1, crash_after: int | None = None) -> None:
        self.task, self.concurrency, self.crash_after = task, concurrency, crash_after
        self.paid: Counter[Request] = Counter()
        self.in_flight: list[int] = []

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        waiting, in_flight = iter(requests), []
        rng = random.Random(self.paid.total())
        while True:
            in_flight += itertools.islice(waiting, self.concurrency - len(in_flight))
            self.in_flight.append(len(in_flight))
            if not in_flight:
                return
            request = in_flight.pop(rng.randrange(len(in_flight)))
            if self.paid.total() == self.crash_after:
                raise Crash(f"on {request}")
            self.paid[request] += 1
            yield self.task.observe(request)

    def truth(self):
        return self.task.evaluator().truth()

    def fingerprint(self) -> str:
        return "counting"
