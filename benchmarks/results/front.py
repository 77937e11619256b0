"""Searches for the front of cost and quality, side by side (docs/results-front.md).

A recorded task is searched until `LIMIT` of the cost of the whole grid is spent, or the search
ends. A front that is recommended is judged by the true averages of its configurations: the area
below it (`Front.area`), relative to that of the true front. The area ends at the largest true cost
of Theta and begins at its least true quality.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from benchmarks.results.in_flight import lognormal, makespan
from benchmarks.results.planned import Composed, numbers_text
from scope_torch.baselines.front import LogNEHVI, OptunaFront, RandomFront
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.front_method import make_scope_front
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.hypervolume import Front, non_dominated
from scope_torch.tasks import Task

LIMIT = 0.8  # of the cost of the whole grid
SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75)  # of the same, in the tables
CURVE = tuple(10 ** (-2.5 + 2.4 * i / 80) for i in range(81))  # of the same, in the figure
AXES = {"log": "log USD", "usd": "USD"}
_LEAST_USD = 1e-12  # free configurations have no logarithm


def _on(axis: str, cost_usd: float) -> float:
    return cost_usd if axis == "usd" else math.log(max(cost_usd, _LEAST_USD))


Steps = list[list[float]]  # rows of `Judge`


class Searched(Protocol):
    """A search that recommends a front."""

    spend_usd: float
    stop_reason: str | None

    @property
    def front(self) -> list[tuple[int, ...]]:
        """What is recommended now, by rising cost."""
        ...

    def ask(self) -> Sequence[Request]:
        """See `Optimizer`."""
        ...

    def tell(self, observations: Sequence[Observation]) -> None:
        """See `Optimizer`."""
        ...


Make = Callable[[SelectionProblem, str, int], Searched]
METHODS: dict[str, Make] = {
    "scope_front": lambda p, base, seed: make_scope_front(p, base=base, seed=seed),
    "scope_front rule=chance": lambda p, base, seed: make_scope_front(
        p, base=base, seed=seed, rule="chance"
    ),
    "scope_front, rounds of 32": lambda p, base, seed: make_scope_front(
        p, base=base, seed=seed, batch_size=32
    ),
    "scope_front, 32 in flight": lambda p, base, seed: make_scope_front(
        p, base=base, seed=seed, in_flight=32
    ),
    "random": lambda p, _, seed: RandomFront(p, seed=seed),
    "Optuna NSGA-II": lambda p, _, seed: OptunaFront(
        p, seed=seed, sampler="NSGAIISampler", options={"population_size": 8}, name="nsga"
    ),
    "Optuna GP": lambda p, _, seed: OptunaFront(
        p, seed=seed, sampler="GPSampler", name="gp", most_repeats=3
    ),
    "qLogNEHVI": lambda p, _, seed: LogNEHVI(p, seed=seed),
    "qLogNEHVI per USD": lambda p, _, seed: LogNEHVI(p, seed=seed, per_usd=True),
}


class Judge:
    """The true averages of a task, and what a front is worth by them.

    Args:
        task: A task whose evaluator knows the truth.
    """

    def __init__(self, task: Task) -> None:
        cost, quality = task.evaluator.truth()  # type: ignore[attr-defined]
        self.cost: list[float] = cost.flatten().tolist()
        self.quality: list[float] = quality.flatten().tolist()
        self.space = task.problem.space
        self.grid_usd = sum(self.cost) * task.problem.num_queries
        best = non_dominated(self.cost, self.quality)
        self.true = self._points(best)
        self._whole = {axis: self._area(best, axis) for axis in ("log", "usd")}

    def row(self, spend_usd: float, front: Sequence[tuple[int, ...]]) -> list[float]:
        """Share of the grid's cost, area on both axes, most accurate or not, exact or not."""
        index = [self.space.index_of(theta) for theta in front]
        areas = [self._area(index, axis) / self._whole[axis] for axis in ("log", "usd")]
        points = self._points(index)
        is_best = self.true[-1] in points
        return [spend_usd / self.grid_usd, *areas, float(is_best), float(points == self.true)]

    def _area(self, index: Sequence[int], axis: str) -> float:
        worst, floor = _on(axis, max(self.cost)), min(self.quality)
        points = [(_on(axis, self.cost[i]), self.quality[i] - floor) for i in index]
        return Front(points, worst).area

    def _points(self, index: Sequence[int]) -> list[tuple[float, float]]:
        """Rounded, so that configurations with equal averages count as the same."""
        return sorted((round(self.cost[i], 12), round(self.quality[i], 9)) for i in index)


@dataclass(frozen=True)
class FrontCell(Composed):
    """A search for the front of a recorded task."""

    @property
    def library(self) -> str:
        """The module that its method needs."""
        return "optuna" if self.method.startswith("Optuna") else ""

    def measured(self) -> dict[str, Any]:
        """Makes the search, and judges its fronts."""
        cfg = compose(self.settings)
        task: Task = build(cfg.task)
        judge = Judge(task)
        optimizer = METHODS[self.method](task.problem, cfg.base, self.seed)
        steps, events = search(task, optimizer, judge)
        by_query = self.method.startswith("scope_front")  # others ask whole configurations
        areas = {
            f"area_{axis}_{s:g}": at(steps, s, 1 + i) for i, axis in enumerate(AXES) for s in SHARES
        }
        return {
            "configurations": task.problem.space.size,
            "queries": task.problem.num_queries,
            "grid_usd": judge.grid_usd,
            **areas,
            "area_95_kept": kept(steps, 1, 0.95),
            "best_first": first(steps, 3),
            "best_kept": kept(steps, 3),
            "exact_kept": kept(steps, 4),
            "end": optimizer.spend_usd / judge.grid_usd,
            "stopped": int(optimizer.stop_reason is not None),
            "speedup_lognormal": speedup(events, self.seed) if by_query else None,
            "area_log_curve": numbers_text(at(steps, share, 1) for share in CURVE),
        }


def cells(problems: Iterable[str], seeds: Iterable[int]) -> list[FrontCell]:
    """Every method on recorded tasks."""
    return [
        FrontCell(problem, method, seed, None, (f"task={problem}",))
        for problem in problems
        for seed in seeds
        for method in METHODS
    ]


def search(task: Task, optimizer: Searched, judge: Judge) -> tuple[Steps, list[int]]:
    """A row of `Judge` whenever the front of a search has changed; events as of `makespan`."""
    steps, front = [judge.row(0.0, ())], []
    lag = getattr(optimizer, "lag", 0)
    waiting, events = deque[Observation](), list[int]()
    while optimizer.spend_usd < LIMIT * judge.grid_usd:
        while len(waiting) < max(lag, 1) and (requests := optimizer.ask()):
            waiting += task.evaluator.evaluate(requests)
            events.append(len(requests))
        if not waiting:
            break
        told = [waiting.popleft() for _ in range(1 if lag else len(waiting))]
        optimizer.tell(told)
        events += [-1] * len(told)
        if optimizer.front != front:
            front = list(optimizer.front)
            steps.append(judge.row(optimizer.spend_usd, front))
    return steps, events


def speedup(events: Sequence[int], seed: int) -> float:
    """How many times as fast as one call at a time, with 32 and lognormal latencies.

    What was asked but not told, because the money was spent, is no call of a search one by one.
    """
    latencies = lognormal(np.random.default_rng(seed), sum(n for n in events if n > 0))
    return float(latencies[: events.count(-1)].sum()) / makespan(events, latencies, 32)


def at(steps: Steps, share: float, column: int) -> float:
    """A column of the last row up to a share of the grid's cost."""
    return [row[column] for row in steps if row[0] <= share][-1]


def first(steps: Steps, column: int) -> float | None:
    """The share from which a column is 1 for the first time; None: never."""
    return next((row[0] for row in steps if row[column]), None)


def kept(steps: Steps, column: int, least: float = 1.0) -> float | None:
    """The share from which a column is `least` or more to the end; None: never."""
    rows = [[0.0] * 5, *steps]
    if rows[-1][column] < least:
        return None
    return next(b[0] for a, b in reversed(list(pairwise(rows))) if a[column] < least)
