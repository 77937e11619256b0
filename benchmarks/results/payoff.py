"""What a search and H runs of its result cost together, when it stops by different rules.

A run makes three searches of one task: `scope`, `scope_joint` with one widening, and `scope_joint`
that stops when it no longer pays. One search with H = 1e6 tells the end for every smaller H: H
decides nothing but the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.results.planned import Composed
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.runs.runner import run
from scope_torch.search.payoff import ExpectedReturn
from scope_torch.search.scope import SCOPE
from scope_torch.tasks import Task

DEPLOYMENTS = (1e2, 1e3, 1e4, 1e5, 1e6)
# As the searches were made.
EARLIER = (
    *("method.calibration_queries=null", "method.verify=0"),
    "method.cost_scale=least_squares",
)
RULES = {"pays": "while it pays", "widened": "one widening", "scope": "`scope`"}
NAME = "three rules"


@dataclass(frozen=True)
class PayoffCell(Composed):
    """Searches of one task by each of `RULES`."""

    def measured(self) -> dict[str, Any]:
        """Totals in c(theta_0) by rule and H, and the spend in USD while it pays, by H."""
        found = {rule: search(self.settings, rule) for rule in RULES}
        totals = {f"{rule}_{H:.0e}": total(found[rule], H) for rule in RULES for H in DEPLOYMENTS}
        return totals | {f"spend_{H:.0e}": end(found["pays"], H) for H in DEPLOYMENTS}


def cells(
    problem: str, overrides: Iterable[str], seeds: Iterable[int], worlds: Iterable[int | None]
) -> list[PayoffCell]:
    """A run for each world and seed."""
    given = tuple(overrides)
    return [PayoffCell(problem, NAME, s, world, given) for world in worlds for s in seeds]


def search(overrides: list[str], rule: str) -> dict[str, Any]:
    """The search of a config by one of `RULES`: its spend, theta_out and expected returns."""
    method = ["method=scope_joint", *EARLIER] if rule != "scope" else ["method=scope"]
    cfg = compose([*overrides, *method])
    task: Task = build(cfg.task)
    problem = task.problem
    if rule == "pays":
        problem = replace(problem, deployment_queries=DEPLOYMENTS[-1])
    kernel = build(cfg.kernel)
    optimizer: SCOPE = build(cfg.method, problem=problem, kernel=kernel, seed=cfg.seed)
    rows: list[tuple[float, float]] = []
    if rule == "pays":
        payoff = optimizer.rules._payoff  # pyright: ignore[reportPrivateUsage]
        assert isinstance(payoff, ExpectedReturn)
        recorder = Recorder(payoff, lambda: optimizer.spend_usd)
        optimizer.rules._payoff, rows = recorder, recorder.rows  # pyright: ignore[reportPrivateUsage]
    result = run(problem, optimizer, task.evaluator, cfg.budget_usd)
    curve = result.curve
    assert curve is not None, "the truth of this task is not known"
    return {
        "c_0": problem.reference_cost_usd,
        "s_0": problem.s_0,
        "spend": result.history.spend_usd,
        "curve": [curve.budget_usd.tolist(), curve.cost_usd.tolist(), curve.quality.tolist()],
        "returns": rows,
    }


class Recorder:
    """A payoff that notes the best expected return wherever it is lower than ever before.

    Args:
        payoff: Whose returns are noted; it is asked about other H than its own.
        spend_usd: The spend of the search so far.
    """

    def __init__(self, payoff: ExpectedReturn, spend_usd: Callable[[], float]) -> None:
        self._payoff, self._spend_usd = payoff, spend_usd
        self._least = math.inf  # for H = 1
        self.rows: list[tuple[float, float]] = []  # spend in USD, return for H = 1

    def goes_on(self, candidate: Any, minima: Any) -> bool:
        """Whether the search would go on at the largest H."""
        # With the H at which the least return so far just pays, it looks no further than needed.
        H = self._payoff.deployment_queries = 1 / self._least if self.rows else 1e-9
        self._payoff.goes_on(candidate, minima)
        best = self._payoff.report()["expected_return"] / H
        if best < self._least:
            self._least = best
            self.rows.append((self._spend_usd(), best))
        return best * DEPLOYMENTS[-1] > 1

    def settings(self) -> dict[str, Any]:
        """Nothing that another payoff has not."""
        return {}

    def report(self) -> dict[str, Any]:
        """Nothing."""
        return {}


def end(found: dict[str, Any], H: float) -> float:
    """Spend in USD when the search ends."""
    ends = (spend for spend, best in found["returns"] if best * H <= 1)
    return next(ends, found["spend"])


def total(found: dict[str, Any], H: float) -> float:
    """Cost of the search and of H runs of theta_out, in c(theta_0).

    If theta_out is not feasible, the reference runs.
    """
    spend = end(found, H)
    at = np.searchsorted(found["curve"][0], spend, side="right") - 1
    _, cost, quality = (column[at] for column in found["curve"])
    return (spend + H * (cost if quality >= found["s_0"] else found["c_0"])) / found["c_0"]
