"""One run of an experiment, and the CSV file that it is written to."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers import make_peer
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.problem import SelectionProblem
from scope_torch.runs.deployment import deploy
from scope_torch.runs.finished import NEAR, first_within, pruned_early
from scope_torch.runs.measured import SHARES
from scope_torch.runs.metrics import OracleCurve, best_feasible, step, true_values
from scope_torch.runs.result import RunResult
from scope_torch.runs.runner import run
from scope_torch.search.optimizer import TraceRow
from scope_torch.tasks import Task

STEPS = tuple((i + 1) / 40 for i in range(40))  # of the budget, for figures
KEY = ("problem", "method", "world", "seed")
COLUMNS = (
    *KEY,
    "budget_usd",
    "c_0",
    "s_0",
    "c_star",
    *(f"c_bf_{round(100 * share)}" for share in SHARES),
    "V",
    "infeasible",
    "spent_usd",
    "usd_within_10",
    "observations",
    "candidates",
    "pruned_early",
    "V_last_queried",
    "c_bf_last_queried",
    "deployed_cost",
    "deployed_quality",
    "deployed_cost_ref",
    "deployed_quality_ref",
    "c_bf_curve",
    "V_curve",
)


@dataclass(frozen=True)
class Cell:
    """One run.

    Args:
        problem: Name of the task, or of its variant, in tables.
        method: Name of the method, or of its variant, in tables.
        seed: Seed of the run.
        world: World seed of a simulated task; None for a recorded one.
        overrides: What the command line of `scope-torch` would say beside the seeds.
        peer: An optimizer of `benchmarks.peers` with its settings, in the place of the method.
    """

    problem: str
    method: str
    seed: int
    world: int | None
    overrides: tuple[str, ...]
    peer: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """Identifies the row of this cell in its file."""
        return (self.problem, self.method, _text(self.world), str(self.seed))


def row_of(cell: Cell) -> dict[str, str]:
    """Makes the run of a cell and measures it against the truth; values are text."""
    worlds = [] if cell.world is None else [f"task.world_seed={cell.world}"]
    cfg = compose([*cell.overrides, *worlds, f"seed={cell.seed}"])
    task: Task = build(cfg.task)
    if cell.peer:
        method = make_peer(cell.peer, task.problem, cfg.seed)
    else:
        settings = {"seed": cfg.seed, "device": "cpu", "budget_usd": cfg.budget_usd}
        method = build(cfg.method, problem=task.problem, kernel=build(cfg.kernel), **settings)
    result = run(task.problem, method, task.evaluator, cfg.budget_usd)
    measured = measured_values(task, result)
    values = dict(zip(KEY, cell.key, strict=True)) | {k: _text(v) for k, v in measured.items()}
    return {column: values.get(column, "") for column in COLUMNS}


def one_thread() -> None:
    """Limits the threads of a worker process, for runs side by side."""
    torch.set_num_threads(1)


def measured_values(task: Task, result: RunResult) -> dict[str, Any]:
    """The figures of a finished run; None where a figure makes no sense."""
    problem, curve, budget = task.problem, result.curve, result.budget_usd
    c_0 = problem.reference_cost_usd
    assert curve is not None, f"the truth of {problem.name} is not known"

    def c_bf(share: float) -> float:  # theta_0 is feasible, and nobody pays more than it costs
        return min(c_0, float(curve.best_feasible_cost(share * budget)))

    c_star = float(result.summary()["optimal_cost_usd"])
    return {
        "budget_usd": budget,
        "c_0": c_0,
        "s_0": problem.s_0,
        "c_star": c_star,
        **{f"c_bf_{round(100 * s)}": c_bf(s) for s in SHARES},
        "V": float(curve.violation(budget)),
        "infeasible": int(not curve.feasible[-1]),
        "spent_usd": result.history.spend_usd,
        "usd_within_10": first_within(curve, NEAR * c_star, budget),
        "observations": len(result.history),
        **candidates(result.trace, problem.num_queries),
        **last_queried(problem, result),
        **deployed(task, result),
        "c_bf_curve": curve_text(map(c_bf, STEPS)),
        "V_curve": curve_text(curve.violation(s * budget) for s in STEPS),
    }


def candidates(trace: Sequence[TraceRow], num_queries: int) -> dict[str, Any]:
    """How many candidates there were, and which share was given up after few queries (sec:rq1)."""
    prunes = any(row.event == "pruned" for row in trace)
    return {
        "candidates": sum(row.event == "selected" for row in trace),
        "pruned_early": pruned_early(trace, num_queries) if prunes else None,
    }


def last_queried(problem: SelectionProblem, result: RunResult) -> dict[str, Any]:
    """V and c_bf if theta_out were the configuration evaluated last; of dataset-level methods."""
    rows = [row for row in result.trace if row.event in ("completed", "improved")]
    if not rows or any(row.num_queries != problem.num_queries for row in rows):
        return {}
    truth = result.truth
    assert truth is not None
    steps = {0.0: step(problem, true_values(problem, problem.theta_ref, truth))}
    for row in rows:
        assert row.theta_cand is not None
        steps[row.from_budget_usd] = step(problem, true_values(problem, row.theta_cand, truth))
    curve = OracleCurve.from_steps(steps, problem.s_0, problem.others)
    budget = result.budget_usd
    return {
        "V_last_queried": float(curve.violation(budget)),
        "c_bf_last_queried": min(steps[0.0][0], float(curve.best_feasible_cost(budget))),
    }


def deployed(task: Task, result: RunResult) -> dict[str, Any]:
    """Cost and quality on held-out queries of the configuration of best feasible cost (RQ2)."""
    if task.held_out is None:
        return {}
    held_out = task.held_out()
    assert result.truth is not None
    best = best_feasible(task.problem, result.trace, result.truth)
    chosen, reference = deploy(held_out, best), deploy(held_out, task.problem.theta_ref)
    return {
        "deployed_cost": chosen["cost_usd"],
        "deployed_quality": chosen["quality"],
        "deployed_cost_ref": reference["cost_usd"],
        "deployed_quality_ref": reference["quality"],
    }


def curve_text(values: Iterable[Any]) -> str:
    """Numbers in one cell of a CSV file."""
    return " ".join(f"{float(value):.3g}" for value in values)


def curve_of(row: Mapping[str, str], column: str) -> np.ndarray:
    """The numbers of `curve_text`."""
    return np.array([float(text) for text in row[column].split()])


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.7g}" if isinstance(value, float) else str(value)


class Rows:
    """A CSV file of runs; a row is on the disk before the next run begins.

    Args:
        path: The file, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = read_rows(path)

    def has(self, cell: Cell) -> bool:
        """Whether the run is in the file."""
        return cell.key in {tuple(row[name] for name in KEY) for row in self.rows}

    def add(self, row: dict[str, str]) -> None:
        """Writes a row to the end of the file."""
        is_new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(row)
        self.rows.append(row)


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a file; none if it does not exist."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def median(rows: Sequence[Mapping[str, str]], column: str) -> float:
    """The median of a column, of the rows that have a value there."""
    return statistics.median(float(row[column]) for row in rows if row[column])
