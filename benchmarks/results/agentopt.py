"""AgentOpt's selectors as rows beside the other peers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.agentopt import selectors
from benchmarks.results.planned import KEY, Composed
from benchmarks.results.runs import COLUMNS
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.evaluators.table import RecordedTable
from scope_torch.problem import SelectionProblem
from scope_torch.runs.finished import NEAR
from scope_torch.tasks import Task

# Without `brute_force`, which buys the whole table.
METHODS = {f"AgentOpt {n}": n for n in selectors.OF_COST if n != "brute_force"}
TIES = "task.outcome_columns=[output_tokens]"  # by which a selector breaks ties, where recorded


@dataclass(frozen=True)
class SelectorCell(Composed):
    """A run of a selector on a recorded problem: without a budget, with one choice at its end."""

    @property
    def library(self) -> str:
        """The module that has the selectors."""
        return "agentopt"

    def measured(self) -> dict[str, Any]:
        """Makes the run; `usd_within_10` is its whole spend, also one above the budget."""
        cfg = compose(list(self.settings))
        task: Task = build(cfg.task)
        problem, table = in_one_slot(task.problem, task.evaluator.table)  # type: ignore[attr-defined]
        row = selectors.least_cost(table, problem, METHODS[self.method], self.seed)
        c_0, cost = problem.reference_cost_usd, row["true_cost_usd"]
        is_feasible = row["true_quality"] >= problem.s_0 - selectors.SAME
        is_near = is_feasible and cost <= NEAR * row["least_cost_usd"]
        return dict.fromkeys(COLUMNS[len(KEY) :]) | {
            "budget_usd": float(cfg.budget_usd),
            "c_0": c_0,
            "s_0": problem.s_0,
            "c_star": row["least_cost_usd"],
            "c_bf_100": min(c_0, cost) if is_feasible else c_0,
            "infeasible": int(not is_feasible),
            "spent_usd": row["spend_usd"],
            "usd_within_10": row["spend_usd"] if is_near else None,
        }


def in_one_slot(
    problem: SelectionProblem, table: RecordedTable
) -> tuple[SelectionProblem, RecordedTable]:
    """A list of configurations as the candidates of one module: AgentOpt searches products only."""
    if table.rows is None:
        return problem, table
    names = tuple(" / ".join(problem.names(theta).values()) for theta in table.rows.tolist())
    one = replace(table, modules=("all",), llms=(names,), partial=False, rows=None)
    reference = " / ".join(problem.names(problem.theta_ref).values())
    return one.problem(problem.name, [reference], problem.epsilon), one


def cells(problems: Mapping[str, tuple[str, ...]], seeds: Iterable[int]) -> list[SelectorCell]:
    """Every selector on recorded problems without holes: a selector runs any pair that it likes."""
    return [
        SelectorCell(problem, method, seed, None, overrides)
        for method in METHODS
        for seed in seeds
        for problem, overrides in problems.items()
    ]
