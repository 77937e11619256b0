"""A choice beside the truth of a recorded table: the rows of the two CSV files."""

from __future__ import annotations

from typing import Any, NamedTuple

from scope_torch.evaluators.table import RecordedTable
from scope_torch.problem import SelectionProblem


class Choice(NamedTuple):
    """What a run spent (USD), and the codes of its configuration."""

    spend_usd: float
    theta: tuple[int, ...]


def quality_row(table: RecordedTable, choice: Choice) -> dict[str, Any]:
    """A row of quality.csv but for its names: averages over all queries of the table."""
    means = table.quality.mean(-1)
    return {
        **_spent(table, choice),
        "true_quality": round(float(means[choice.theta]), 9),
        "best_quality": round(float(means.max()), 9),
    }


def cost_row(table: RecordedTable, problem: SelectionProblem, choice: Choice) -> dict[str, Any]:
    """A row of cost.csv but for its names; USD for a query, averaged over all queries."""
    quality, cost = table.quality.mean(-1), table.cost_usd.mean(-1)
    return {
        **_spent(table, choice),
        "true_quality": round(float(quality[choice.theta]), 9),
        "s_0": round(problem.s_0, 9),
        "true_cost_usd": round(float(cost[choice.theta]), 9),
        "least_cost_usd": round(float(cost[quality >= problem.s_0].min()), 9),
    }


def _spent(table: RecordedTable, choice: Choice) -> dict[str, Any]:
    names = [llms[code] for llms, code in zip(table.llms, choice.theta, strict=True)]
    return {"spend_usd": round(choice.spend_usd, 6), "choice": " + ".join(names)}
