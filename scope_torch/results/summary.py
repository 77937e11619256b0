"""Parts of `result.json`, whose keys are

| key | |
| --- | --- |
| `task`, `method`, `seed`, `budget_usd`, `num_queries`, `num_configurations` | what was searched, and how |
| `num_allowed` | only with `allowed`: how many configurations may be chosen |
| `reference_quality`, `reference_cost_usd` | s(theta_0) and c(theta_0) |
| `theta_out`, `theta_out_codes` | the LLM of each module; their codes |
| `basis` | `certified`, `accepted (tuned)` or `reference`. Competitors: `observed`, `estimated` |
| `certificate`, `mode`, `assumptions` | what "certified" rests on |
| `b_c`, `b_g` | half-widths of the bounds at a configuration about which nothing is known, in USD and in units of quality |
| `b_rules`, `b_g_widened`; `b`, `b_certify`, `widenings`, `widened` | how they were set, and how often they grew |
| `hyperparameters`, `verified` | of `scope_joint`: its fitted model, and what its trial asked and found |
| `u_out_usd` | upper bound on c(theta_out), per query |
| `gap_usd` | upper bound on c(theta_out) - c(theta_star); 0: nothing else can improve |
| `deployment_queries`, `expected_return` | of `scope_joint`: H, and how many USD the next USD of search was expected to save |
| `selection` | above 2e8 configurations: `exact` if every choice was proven best, otherwise how far it can be off |
| `estimates` | average `quality` and `cost_usd` of theta_out: value, interval and what the interval means |
| `s_0`, `epsilon` | the threshold, and the share of the quality that you give up |
| `spend_usd`, `num_observations` | what the search cost; theta_0 is not charged |
| `num_repeats`, `repeats_usd` | only for a deterministic function: observations that a kept answer gave without a call, and their part of `spend_usd`, which you did not pay |
| `reference_usd`, `again_usd`, `preflight_usd` | only of `select`: what theta_0, its second answers and the preflight cost, not in `spend_usd` |
| `reference_quality_interval`, `repeated_answers`, `left_out` | likewise: s(theta_0) on queries like these; how many second answers changed; runs by module that left it out |
| `held_out` | only with `holdout`: both averages, their difference, and what the answers cost (`cost_usd`) |
| `known` | only with `continue_from`: how many old answers are known, and by source and reason how many were left out |
| `surplus_usd` | cost of calls that were in flight when the budget ended, or of answers to held-out queries that are not compared: paid for, but not used |
| `surplus` | codes, query and replicate of each such call of the search, if there are any |
| `judge_usd`, `lost_usd`, `num_lost` | only where it was paid: for grading, in `spend_usd` where the search did it; and for calls that ended an earlier process or were lost with their worker, not in `spend_usd`; `num_lost` of the latter have a cost that nobody knows |
| `dropped` | only if there are any: by module the LLMs that were given up because their calls fail |
| `stop_reason` | `budget`, `time limit`, or why the search ended earlier |
| `population` | bounds on the quality difference and the cost ratio for tomorrow's queries, at `delta`, and about how many `more_queries` would certify it there |
| `closest` | only with `certificate=population`: the best candidate without a certificate, and how many queries it lacks |
| `pareto` | only where quality is the only constraint. `by_loss`: for a loss of 0 to 20% the cheapest configuration that is known or certified to be good enough, then the one that looks cheapest; `points`: the front of all that were observed |
| `constraints`, `true_latency_s`, ... | only with further constraints: their texts, and the true average of each outcome where it is known |
| `objective`, `least_quality`, `regret`, `optimal_quality` | only with `objective=quality`: a lower bound on the quality of theta_out, and an upper bound on the quality lost |
| `candidates`, `candidates_pruned` | turns of candidates that were asked, and those in which one was given up |
| `true_cost_usd`, `true_quality`, `feasible`, `optimal_cost_usd`, `best_feasible_codes` | only where the truth is known: tables and simulations. The last is the cheapest feasible theta_out that the search has had |
| `settings_hash`, `result_hash`, `timing`, `paths` | hashes; seconds by part (`call_seconds`: of the calls of the search, one after another), and threads; the directory |
"""  # noqa: E501 - a table

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from scope_torch.problem import SelectionProblem
from scope_torch.results.estimate import Estimate
from scope_torch.results.metrics import (
    best_feasible,
    column_of,
    is_feasible,
    optimal_cost,
    true_values,
)
from scope_torch.search.optimizer import Recommendation, TraceRow


def bounds_of_theta_out(
    problem: SelectionProblem, out: Recommendation, cost: Estimate, quality: Estimate
) -> dict[str, float | None]:
    """Upper bounds on its cost and gap in USD, or, if quality is the objective, on the loss.

    They are those of the moment when theta_out was accepted, unless its estimates say that it may
    be worse: by its later answers, or because answers vary.
    """
    most, gap = out.u_out_usd, out.gap_usd
    is_cost = problem.objective == "cost"
    worst = cost.upper if is_cost else 1 - (quality.lower or 0.0)
    if most is not None and worst is not None and worst > most and out.theta != problem.theta_ref:
        most, gap = worst, None if gap is None else gap + worst - most
    if is_cost:
        return {"u_out_usd": most, "gap_usd": gap}
    least = None if most is None else 1 - most
    return {"u_out_usd": None, "gap_usd": None, "least_quality": least, "regret": gap}


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
        **({} if problem.rule is None else {"num_allowed": problem.num_allowed}),
    }
