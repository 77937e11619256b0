"""One search of an experiment, and its figures against the truth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from benchmarks.peers import LIBRARIES, make_peer
from benchmarks.results.planned import KEY, Composed, numbers_text
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.problem import SelectionProblem
from scope_torch.results.metrics import OracleCurve, best_feasible, oracle_curve, step, true_values
from scope_torch.results.result import RunResult
from scope_torch.runs.deployment import deploy
from scope_torch.runs.finished import NEAR, first_within, pruned_early
from scope_torch.runs.measured import SHARES
from scope_torch.runs.runner import run
from scope_torch.search.optimizer import TraceRow
from scope_torch.tasks import Task

STEPS = tuple((i + 1) / 40 for i in range(40))  # of the budget, for figures
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
class Cell(Composed):
    """One search.

    Args:
        peer: An optimizer of `benchmarks.peers` with its settings, in the place of the method.
    """

    peer: str = ""

    @property
    def library(self) -> str:
        """The module that its peer needs."""
        return LIBRARIES.get(self.peer.split()[0], "botorch") if self.peer else ""

    def measured(self) -> dict[str, Any]:
        """Makes the search and measures it against the truth."""
        cfg = compose(self.settings)
        task: Task = build(cfg.task)
        found = measured_values(task, searched(self, cfg, task))
        return dict.fromkeys(COLUMNS[len(KEY) :]) | found


C = TypeVar("C", bound=Cell)


def crossed(
    kind: type[C],
    variants: Mapping[str, Sequence[str]],
    tasks: Iterable[tuple[str, Sequence[str], Sequence[int], Sequence[int | None]]],
) -> list[C]:
    """A row for each task, variant, world and seed; a task is (name, overrides, seeds, worlds)."""
    return [
        kind(name, variant, seed, world, (*overrides, *of))
        for name, overrides, seeds, worlds in tasks
        for (variant, of), world, seed in itertools.product(variants.items(), worlds, seeds)
    ]


def searched(cell: Cell, cfg: Any, task: Task) -> RunResult:
    """The finished search of a cell."""
    return run(task.problem, method_of(cell, cfg, task), task.evaluator, cfg.budget_usd)


def method_of(cell: Cell, cfg: Any, task: Task) -> Any:
    """A fresh search of a cell."""
    if cell.peer:
        return make_peer(cell.peer, task.problem, cfg.seed)
    settings = {"seed": cfg.seed, "device": "cpu", "budget_usd": cfg.budget_usd}
    return build(cfg.method, problem=task.problem, kernel=build(cfg.kernel), **settings)


def measured_values(task: Task, result: RunResult) -> dict[str, Any]:
    """The figures of a finished run; None where a figure makes no sense."""
    problem, curve, budget = task.problem, result.curve, result.budget_usd
    c_0 = problem.reference_cost_usd
    assert curve is not None, f"the truth of {problem.name} is not known"

    assert result.truth is not None
    trace = found_trace(result)
    found = oracle_curve(problem, trace, result.truth)

    def c_bf(share: float) -> float:  # theta_0 is feasible, and nobody pays more than it costs
        return min(c_0, float(found.best_feasible_cost(share * budget)))

    c_star = float(result.summary()["optimal_cost_usd"])
    is_known = not math.isnan(curve.quality[-1])  # else some of its answers were not recorded
    return {
        "budget_usd": budget,
        "c_0": c_0,
        "s_0": problem.s_0,
        "c_star": c_star,
        **{f"c_bf_{round(100 * s)}": c_bf(s) for s in SHARES},
        "V": float(curve.violation(budget)) if is_known else None,
        "infeasible": int(not curve.feasible[-1]) if is_known else None,
        "spent_usd": result.history.spend_usd,
        "usd_within_10": first_within(found, NEAR * c_star, budget),
        "observations": len(result.history),
        **candidates(result.trace, problem.num_queries),
        **last_queried(problem, result),
        **deployed(task, best_feasible(problem, trace, result.truth)),
        "c_bf_curve": numbers_text(map(c_bf, STEPS)),
        "V_curve": numbers_text(curve.violation(s * budget) for s in STEPS),
    }


def found_trace(result: RunResult) -> Sequence[TraceRow]:
    """The trace that c_bf is computed of: "the best cost found" by a competitor (sec:exp).

    The theta_out of LLMSelector is its allocation, whatever that costs; it has found what it has
    evaluated. The theta_out of all others is the best that they have found.
    """
    if "best_observed_feasible" not in result.summary():
        return result.trace
    return [replace(row, theta_out=row.theta_cand) for row in evaluated(result)]


def evaluated(result: RunResult) -> list[TraceRow]:
    """The rows in which a configuration has been evaluated; none of methods that give some up."""
    rows = [row for row in result.trace if row.event in ("completed", "improved")]
    rows = [row for row in rows if row.theta_cand is not None]
    whole = all(row.num_queries == result.problem.num_queries for row in rows)
    return rows if whole else []


def candidates(trace: Sequence[TraceRow], num_queries: int) -> dict[str, Any]:
    """How many candidates there were, and which share was given up after few queries (sec:rq1)."""
    prunes = any(row.event == "pruned" for row in trace)
    return {
        "candidates": sum(row.event == "selected" for row in trace),
        "pruned_early": pruned_early(trace, num_queries) if prunes else None,
    }


def last_queried(problem: SelectionProblem, result: RunResult) -> dict[str, Any]:
    """V and c_bf if theta_out were the configuration evaluated last; of dataset-level methods."""
    rows = evaluated(result)
    if not rows:
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


def deployed(task: Task, best: tuple[int, ...]) -> dict[str, Any]:
    """Cost and quality on held-out queries of the configuration of best feasible cost (RQ2)."""
    if task.held_out is None:
        return {}
    held_out = task.held_out()
    chosen, reference = deploy(held_out, best), deploy(held_out, task.problem.theta_ref)
    return {
        "deployed_cost": chosen["cost_usd"],
        "deployed_quality": chosen["quality"],
        "deployed_cost_ref": reference["cost_usd"],
        "deployed_quality_ref": reference["quality"],
    }
