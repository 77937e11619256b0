"""AgentOpt's selectors as rows beside the other peers."""

from __future__ import annotations

from typing import Any

from benchmarks.agentopt import selectors
from scope_torch.runs.finished import NEAR
from scope_torch.tasks import Task

PREFIX = "agentopt "
# Without `brute_force`, which buys the whole table.
NAMES = tuple(name for name in selectors.OF_COST if name != "brute_force")
OUTCOMES = "task.outcome_columns=[output_tokens]"  # by which a selector breaks ties


def is_selector(peer: str) -> bool:
    """Whether a peer is one of AgentOpt's selectors."""
    return peer.startswith(PREFIX)


def measured_choice(task: Task, peer: str, seed: int, budget_usd: float) -> dict[str, Any]:
    """The figures of a run that has no budget and one choice, which it makes at its end.

    `usd_within_10` is the spend of the whole run, also where that is above the budget.
    """
    problem, table = task.problem, task.evaluator.table  # type: ignore[attr-defined]
    row = selectors.least_cost(table, problem, peer.removeprefix(PREFIX), seed)
    c_0, cost = problem.reference_cost_usd, row["true_cost_usd"]
    is_feasible = row["true_quality"] >= problem.s_0 - 1e-9
    is_near = is_feasible and cost <= NEAR * row["least_cost_usd"]
    return {
        "budget_usd": budget_usd,
        "c_0": c_0,
        "s_0": problem.s_0,
        "c_star": row["least_cost_usd"],
        "c_bf_100": min(c_0, cost) if is_feasible else c_0,
        "infeasible": int(not is_feasible),
        "spent_usd": row["spend_usd"],
        "usd_within_10": row["spend_usd"] if is_near else None,
    }
