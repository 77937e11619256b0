"""Finished runs on disk, and what is measured on a group of them that differ in their seed."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from scope_torch.errors import InputError
from scope_torch.problem import SelectionProblem
from scope_torch.runs.metrics import OracleCurve
from scope_torch.runs.recorded import recorded_problem
from scope_torch.runs.trace import RecordedRow, read_trace, recorded_curve

EARLY = 0.26  # share of the queries: the first 40 of 156 in sec:rq1
NEAR = 1.1  # "near the optimum": at most 10% dearer
Group = tuple[str, str, float]  # task, method with its overrides, budget


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    Args:
        path: Its directory.
        result: Content of `result.json`.
        settings: Content of `settings.json`.
    """

    path: Path
    result: dict[str, Any]
    settings: dict[str, Any]

    @property
    def group(self) -> Group:
        """What it shares with the runs that differ from it in seed and world only."""
        overrides = [o for o in self.path.parent.name.split(",") if "world_seed=" not in o]
        variant, method = ",".join(overrides), self.result["method"]
        label = method if variant in ("", method) else f"{method} {variant}"
        return self.result["task"], label, self.result["budget_usd"]

    @cached_property
    def problem(self) -> SelectionProblem:
        """The problem searched."""
        return recorded_problem(self.settings)

    @cached_property
    def _trace(self) -> list[RecordedRow]:
        return read_trace(self.path / "trace.csv", self.problem)

    @cached_property
    def curve(self) -> OracleCurve | None:
        """True cost and quality of theta_out against the budget; None if unknown."""
        return recorded_curve(self.problem, self._trace)

    @cached_property
    def deployment(self) -> dict[str, Any] | None:
        """Content of `deployment.json`, if theta_out was run on held-out queries."""
        path = self.path / "deployment.json"
        return json.loads(path.read_text()) if path.exists() else None

    @property
    def pruned_early(self) -> float | None:
        """Share of the candidates of SCOPE pruned within 26% of the queries; None for others."""
        rows = [recorded.row for recorded in self._trace]
        candidates = [r for r in rows if r.event in ("pruned", "completed") and r.iteration]
        if "candidates_pruned" not in self.result or not candidates:
            return None
        most = EARLY * self.result["num_queries"]
        pruned = [r for r in candidates if r.event == "pruned" and (r.num_queries or 0) <= most]
        return len(pruned) / len(candidates)

    def measures(self) -> dict[str, float | None]:
        """The run in numbers; None where unknown.

        `cost_10` to `cost_100` are c_bf at these percentages of the budget and `area` its average
        over the budget, all as fractions of c(theta_0); `of_optimum` is the final c_bf over
        c(theta_star); `near_optimum_usd` the budget at which it is first within 10%; `feasible` is
        1 or 0 for the final theta_out.
        """
        result, curve = self.result, self.curve
        out: dict[str, float | None] = {
            "spend_usd": result["spend_usd"],
            "seconds": result["timing"]["seconds"],
            "b_g": result.get("b_g"),
            "b_c_usd": result.get("b_c"),
            "pruned_early": self.pruned_early,
        }
        if self.deployment is not None:
            theta_out, reference = self.deployment["theta_out"], self.deployment["reference"]
            out |= {"test_cost_usd": theta_out["cost_usd"], "test_quality": theta_out["quality"]}
            out["test_reference_cost_usd"] = reference["cost_usd"]
            out["test_reference_quality"] = reference["quality"]
        if curve is not None:
            budget, usual = result["budget_usd"], result["reference_cost_usd"]
            for percent in (10, 25, 50, 100):
                best = float(curve.best_feasible_cost(budget * percent / 100))
                out[f"cost_{percent}"] = min(best, usual) / usual
            best = float(curve.best_feasible_cost(budget))
            out["of_optimum"] = min(best, usual) / result["optimal_cost_usd"]
            out["area"] = _area(curve, budget, usual) / usual
            out["violation"] = float(curve.violation(budget))
            out["feasible"] = float(result["feasible"])
            out["last_improvement_usd"] = last_improvement(curve)
            out["near_optimum_usd"] = first_within(curve, NEAR * result["optimal_cost_usd"], budget)
        return out


def last_improvement(curve: OracleCurve) -> float:
    """Budget in USD from which c_bf no longer improves."""
    best = curve.best_feasible_cost(curve.budget_usd)
    return float(curve.budget_usd[int(np.argmin(best))])


def first_within(curve: OracleCurve, cost_usd: float, most: float) -> float | None:
    """Least budget up to `most`, in USD, whose c_bf is at most `cost_usd`; None if none is."""
    near = curve.budget_usd[curve.best_feasible_cost(curve.budget_usd) <= cost_usd]
    return float(near[0]) if len(near) and near[0] <= most else None


def _area(curve: OracleCurve, budget: float, reference: float) -> float:
    edges = np.append(curve.budget_usd[curve.budget_usd < budget], budget)
    best = np.minimum(curve.best_feasible_cost(edges[:-1]), reference)
    return float((best * np.diff(edges)).sum() / budget)


def load_runs(output_dir: Path) -> tuple[dict[Group, list[FinishedRun]], list[str]]:
    """All finished runs below a directory, by group, and remarks on those that are not.

    Raises:
        InputError: If there is no finished run, or a result cannot be read.
    """
    groups: dict[Group, list[FinishedRun]] = {}
    for path in sorted(output_dir.rglob("result.json")):
        try:
            result = json.loads(path.read_text())
            settings = json.loads(path.with_name("settings.json").read_text())
            run = FinishedRun(path.parent, result, settings)
            groups.setdefault(run.group, []).append(run)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{path} cannot be read ({error!r}); move the run away") from error
    if not groups:
        raise InputError(f"no finished run below {output_dir}; run scope-torch first")
    remarks = [
        f"{what}: {path}"
        for what, name in (("unfinished", "settings.json"), ("failed", "error.log"))
        for path in sorted(p.parent for p in output_dir.rglob(name))
        if not (path / "result.json").exists()
    ]
    return dict(sorted(groups.items())), remarks


def column(runs: Sequence[FinishedRun], name: str) -> list[float]:
    """A measure of all runs that have it."""
    return [value for run in runs if (value := run.measures().get(name)) is not None]


def median(values: Sequence[float]) -> float | None:
    """The median; None without values."""
    return statistics.median(values) if values else None
