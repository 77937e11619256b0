"""Parts of `result.json`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from scope_torch.problem import SelectionProblem
from scope_torch.results.metrics import (
    best_feasible,
    column_of,
    is_feasible,
    optimal_cost,
    true_values,
)
from scope_torch.search.optimizer import Recommendation, TraceRow


def bounds_of_theta_out(problem: SelectionProblem, out: Recommendation) -> dict[str, Any]:
    """Upper bounds on its cost and gap in USD, or, if quality is the objective, on the loss."""
    if problem.objective == "cost":
        return {"u_out_usd": out.u_out_usd, "gap_usd": out.gap_usd}
    least = None if out.u_out_usd is None else 1 - out.u_out_usd
    return {"u_out_usd": None, "gap_usd": None, "least_quality": least, "regret": out.gap_usd}


def truth_of_theta_out(
    problem: SelectionProblem,
    theta: tuple[int, ...],
    trace: Sequence[TraceRow],
    truth: Sequence[Tensor] | None,
) -> dict[str, Any]:
    """Its true cost and quality, and the optimal cost; None where unknown."""
    cost = quality = optimum = feasible = best = None
    others: Sequence[float | None] = [None] * len(problem.others)
    if truth is not None:
        values = true_values(problem, theta, truth)
        optimum = finite(optimal_cost(problem, truth))
        best = best_feasible(problem, trace, truth)
        if not math.isnan(values[1]):  # else it was not recorded on every query
            cost, quality, others = values[0], values[1], values[2:]
            feasible = is_feasible(problem, values)
    names = [column_of(limit) for limit in problem.others]
    optimal: dict[str, Any] = {"optimal_cost_usd": optimum, "best_feasible_codes": best}
    if problem.objective == "quality":
        optimal = {
            **optimal,
            "optimal_cost_usd": None,
            "optimal_quality": None if optimum is None else 1 - optimum,
        }
    return {
        **dict(zip(names, others, strict=True)),
        "true_cost_usd": cost,
        "true_quality": quality,
        **optimal,
        "feasible": feasible,
    }


def finite(value: float) -> float | None:
    """A number, or None: JSON knows no infinity."""
    return value if math.isfinite(value) else None


def facts_of(problem: SelectionProblem) -> dict[str, Any]:
    """The reference, the threshold, and how large the problem is."""
    constraints = [str(limit) for limit in problem.limits]
    return {
        "reference": problem.names(problem.theta_ref),
        "reference_cost_usd": problem.reference_cost_usd,
        "reference_quality": problem.reference_quality,
        **({} if (n := problem.reference_queries) is None else {"reference_queries": n}),
        "epsilon": problem.epsilon,
        "s_0": problem.s_0,
        **({"constraints": constraints} if problem.others else {}),
        **({} if problem.objective == "cost" else {"objective": problem.objective}),
        "num_queries": problem.num_queries,
        "num_configurations": problem.space.size,
    }
