"""Our searches beside AgentOpt's selectors, with the defaults of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.agentopt.choices import Choice, cost_row, quality_row
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.constraints import at_most
from scope_torch.methods import make_scope_joint
from scope_torch.runs.runner import run

JOINT = "scope_joint"
METHODS = (JOINT, "scope")


def best_quality(task: str, budgets: Mapping[str, float], seed: int) -> Iterator[dict[str, Any]]:
    """One search of scope_joint for the best quality: a row at its end, and one at each budget.

    No bound on the cost but the dearest run of the table. The search is told the averages of
    theta_base alone. A pair that it asks for again is paid again.
    """
    config = compose([f"task={task}"])
    made = build(config.task)
    table, means = made.evaluator.table, made.evaluator.table.quality.mean(-1)
    problem, dearest = made.problem, float(table.cost_usd.max())
    base = problem.codes([config.base] * len(problem.modules))
    problem = replace(
        problem,
        theta_ref=base,
        reference_quality=float(means[base]),
        reference_cost_usd=float(table.cost_usd[base].mean()),
        reference_answers=None,
        epsilon=None,
        objective="quality",
        constraints=(at_most("cost_usd", dearest, cap=dearest),),
    )
    optimizer = make_scope_joint(problem, base=config.base, seed=seed, device="cpu")
    result = run(problem, optimizer, made.evaluator, budget_usd=float(table.cost_usd.sum()))
    ends = {JOINT: result.history.spend_usd}
    ends |= {f"{JOINT} within {selector}": usd for selector, usd in budgets.items()}
    for name, budget_usd in ends.items():
        known = [row.theta_out for row in result.trace if row.from_budget_usd <= budget_usd]
        theta_out = known[-1] if known else base
        choice = Choice(min(budget_usd, result.history.spend_usd), theta_out)
        yield {"selector": name, **quality_row(table, choice)}


def least_cost(task: str, method: str, seed: int) -> dict[str, Any]:
    """One search for the least cost: what it spent and chose.

    As `scope-torch task=... method=... seed=...` runs it: it is told the averages of theta_0, ends
    at the budget of the task or when it no longer pays, and pays for a pair each time it asks.
    """
    config = compose([f"task={task}", f"method={method}", "device=cpu"])
    made = build(config.task)
    problem, budget_usd = made.problem, config.budget_usd
    optimizer = build(
        config.method,
        problem=problem,
        kernel=build(config.kernel),
        seed=seed,
        device="cpu",
        budget_usd=budget_usd,
    )
    result = run(problem, optimizer, made.evaluator, budget_usd)
    choice = Choice(result.history.spend_usd, result.recommendation.theta)
    row = cost_row(made.evaluator.table, problem, choice)
    return {"selector": method, "seed": seed, **row, "found": 1}
