"""Searches that scripts/speed.py measures: steps, whole runs, spaces too large to enumerate."""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.model import list_sums
from scope_torch.runs.runner import run
from scripts.speed_tables import Row

TASKS = ("data_imputation", "entity_resolution", "text_to_sql", "data_transformation")
# Lists of what may be chosen, and how they are taken; their steps alone.
LISTS = ("recorded/bing", "recorded/bing, a quarter", "recorded/bing, as a grid")
METHODS = ("scope", "scope_joint")
WORLDS = Path(__file__).resolve().parents[1] / "benchmarks" / "large_worlds.toml"
CHAINS = ("chain_of_7", "chain_of_8")  # worlds of this file
MOST_STEPS = {"scope": 20, "scope_joint": 100}  # in a chain; those of scope take seconds each
Seconds = list[tuple[float, float]]  # of the processor, and on the clock


def processor_s(function: Callable[[], Any]) -> tuple[float, float, Any]:
    """Processor seconds and clock seconds of a call, and what it returns."""
    clock, processor = time.perf_counter(), time.process_time()
    found = function()
    return time.process_time() - processor, time.perf_counter() - clock, found


class Steps:
    """Notes the selection steps of a search: processor seconds and clock seconds.

    A step begins where the surrogate is brought up to date, and ends with the first request of the
    next candidate.

    Args:
        optimizer: Its posterior and its `ask` are watched.
        most: The search ends after so many steps.
    """

    def __init__(self, optimizer: Any, most: int) -> None:
        self.seconds: Seconds = []
        self._ask, self._most = optimizer.ask, most
        self._update, self._began = optimizer.belief.posterior.update, None
        optimizer.ask, optimizer.belief.posterior.update = self.ask, self.update

    def update(self) -> None:
        """Begins a step."""
        self._began = time.process_time(), time.perf_counter()
        self._update()

    def ask(self) -> Any:
        """Ends it; no requests once there are enough steps."""
        requests = self._ask()
        if self._began is not None:
            processor, clock = self._began
            self.seconds.append((time.process_time() - processor, time.perf_counter() - clock))
            self._began = None
        return requests if len(self.seconds) < self._most else []


class Searches:
    """Notes the searches of an optimizer by branch and bound.

    Args:
        optimizer: Its posterior's `ran` and its choice's `select` are watched.
    """

    def __init__(self, optimizer: Any) -> None:
        self.num_nodes: list[int] = []  # prefixes expanded, of each search
        self.choices_not_proven = 0
        self._is_proven = True
        posterior, choice = optimizer.belief.posterior, optimizer._choice
        self._ran, self._select = posterior.ran, choice.select
        posterior.ran, choice.select = self.ran, self.select

    def ran(self, search: Any) -> Any:
        """Runs a search, and notes it."""
        found = self._ran(search)
        self.num_nodes.append(search.num_nodes)
        self._is_proven = search.is_decided
        return found

    def select(self, *arguments: Any) -> int:
        """Chooses; the last search of a choice finds it."""
        index = self._select(*arguments)
        self.choices_not_proven += not self._is_proven
        return index


def prepared(overrides: Sequence[str], every: int = 1) -> tuple[Any, Any, float]:
    """A task, its method with the defaults and seed 0, and the budget in USD.

    Of a list of what may be chosen, each `every`-th is taken, and theta_0.
    """
    cfg = compose(overrides)
    task, kernel = build(cfg.task), build(cfg.kernel)
    if every > 1:
        kept = {*sorted(task.problem.allowed)[::every], task.problem.theta_ref}
        task = task._replace(problem=replace(task.problem, allowed=tuple(sorted(kept))))
    common = {"kernel": kernel, "seed": 0, "device": "cpu", "budget_usd": cfg.budget_usd}
    return task, build(cfg.method, problem=task.problem, **common), cfg.budget_usd


def searched(task: Any, optimizer: Any, budget_usd: float) -> tuple[Any, float]:
    """The result of a search, with all its files, and its processor seconds."""
    with tempfile.TemporaryDirectory() as folder:
        settings = (task.problem, optimizer, task.evaluator, budget_usd)
        processor, _, result = processor_s(lambda: run(*settings, run_dir=folder))
    return result, processor


def about(result: Any, method: str) -> Row:
    """The columns that say which search it was."""
    problem = result.problem
    sizes = {"N": len(problem.llms), "M": max(map(len, problem.llms)), "Q": problem.num_queries}
    observed = len({o.theta for o in result.history})
    name = {"who": method, "task": problem.name, "how": "measured"}
    may_be_chosen = (problem.rule and problem.rule.count) or problem.space.size
    return {**name, **sizes, "D": observed, "Theta": may_be_chosen}


def rows_of(seconds: Seconds, same: Row) -> list[Row]:
    """Median, first and largest selection step, and the peak memory of this process."""
    median = [statistics.median(one) for one in zip(*seconds, strict=True)]
    times = {"median": median, "first": seconds[0], "largest": max(seconds)}
    rows = [
        {**same, "what": f"{name} step", "value": one[0], "wall": one[1], "unit": "s"}
        for name, one in times.items()
    ]
    rows.append({**same, "what": "steps", "value": len(seconds), "unit": ""})
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return [*rows, {**same, "what": "peak memory", "value": gib, "unit": "GiB"}]


def measure_steps(task: str, method: str) -> list[Row]:
    """Selection steps of a search."""
    name, _, how = task.partition(", ")
    is_slow = name == "data_transformation" or how == "as a grid"
    # Theta is never so much larger than a list that the grid of Theta does not pay.
    with patch.object(list_sums, "_PAYS", 2**62) if how == "as a grid" else nullcontext():
        search = prepared([f"task={name}", f"method={method}"], 4 if how == "a quarter" else 1)
        steps = Steps(search[1], 60 if is_slow else 500)
        result, _ = searched(*search)
    return rows_of(steps.seconds, {**about(result, method), "task": task})


def measure_large(task: str, method: str) -> list[Row]:
    """Selection steps in a chain, and the searches by branch and bound that they are made of."""
    with tempfile.TemporaryDirectory() as cache:
        world = [f"task.name={task}", f"task.world={task}", f"task.world_file='{WORLDS}'"]
        where = [f"task.cache_dir='{cache}'", "method.space_search=branch_and_bound"]
        # What the world does not say is as in this task: the base, and the budget.
        search = prepared(["task=data_transformation", f"method={method}", *world, *where])
        most = MOST_STEPS[method] if task in CHAINS else 3
        steps, searches = Steps(search[1], most), Searches(search[1])
        result, _ = searched(*search)
    same, selection = about(result, method), result.report["selection"]
    gap, unit = ("promise_gap", "share") if method == "scope_joint" else ("gap_usd", "USD")
    values = {
        "observations": (len(result.history), ""),
        "searches": (len(searches.num_nodes), ""),
        "median nodes": (statistics.median(searches.num_nodes), ""),
        "most nodes": (max(searches.num_nodes), ""),
        "searches not proven": (selection["incomplete_searches"], ""),
        "choices not proven": (searches.choices_not_proven, ""),
        "largest gap": (selection[gap], unit),
    }
    counted = [{**same, "what": what, "value": v, "unit": u} for what, (v, u) in values.items()]
    return [*rows_of(steps.seconds, same), *counted]


def measure_runs(task: str, method: str) -> list[Row]:
    """Whole runs in a world whose truth is kept; one task before that too."""
    overrides = [f"task={task}", f"method={method}"]
    searched(*prepared(["task=synthetic", f"method={method}"]))  # the first calls load libraries
    worlds = ("new world", "world seen before")
    build(compose(overrides).task).evaluator.truth()  # which keeps it
    if (task, method) != ("text_to_sql", "scope"):
        worlds = worlds[1:]
    rows: list[Row] = []
    for world in worlds:
        with tempfile.TemporaryDirectory() as empty, patch.dict(os.environ) as environment:
            if world == "new world":
                environment["SCOPE_CACHE_DIR"] = empty
            result, processor = searched(*prepared(overrides))
        timing = result.summary()["timing"]
        total, optimizer = timing["seconds"], timing["optimizer_seconds"]
        shares = {"method": optimizer / total, "evaluator": timing["evaluator_seconds"] / total}
        shares["rest"] = 1 - sum(shares.values())
        same = {**about(result, method), "how": f"measured, {world}"}
        rows.append({**same, "what": "run", "value": processor, "wall": total, "unit": "s"})
        rows += [{**same, "what": what, "value": v, "unit": "share"} for what, v in shares.items()]
        rows.append({**same, "what": "observations", "value": len(result.history), "unit": ""})
    return rows
