"""The result of a run, and the content of `result.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scope_torch.observation import History
from scope_torch.problem import SelectionProblem
from scope_torch.runs.directory import settings_hash
from scope_torch.runs.metrics import OracleCurve, optimal_cost, oracle_curve, true_values
from scope_torch.search.optimizer import Recommendation, TraceRow


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Args:
        problem: The problem searched.
        method: Name of the optimizer.
        recommendation: theta_out and why.
        stop_reason: Why the search ended.
        budget_usd: Lambda.
        history: All observations up to the one that crossed the budget, in the asked order.
        surplus_usd: Cost of observations that were in flight beyond that one, in USD.
        trace: What changed when.
        report: What the method recorded: mode, b_c, b_g, delta, assumptions, ...
        settings: Everything that decides the run.
        truth: c(theta) in USD and s(theta) of all of Theta, if the evaluator knows them.
        seconds: Wall-clock time of this process: `optimizer`, that of the method; `evaluator`,
            waiting for observations and for the truth, if it knows that; `total`, journal, files
            and callbacks included.
        replayed: Observations taken from the journal instead of paid for.
    """

    problem: SelectionProblem
    method: str
    recommendation: Recommendation
    stop_reason: str
    budget_usd: float
    history: History
    surplus_usd: float
    trace: Sequence[TraceRow]
    report: dict[str, Any]
    settings: dict[str, Any]
    truth: tuple[Tensor, Tensor] | None
    seconds: dict[str, float]
    replayed: int
    run_dir: Path | None = field(default=None)

    @property
    def llms(self) -> dict[str, str]:
        """theta_out: which LLM for which module."""
        return self.problem.names(self.recommendation.theta)

    @property
    def curve(self) -> OracleCurve | None:
        """True cost and quality along the run, if known."""
        return None if self.truth is None else oracle_curve(self.problem, self.trace, self.truth)

    def summary(self) -> dict[str, Any]:
        """Content of result.json; equal for equal runs, but for `timing` and `paths`."""
        problem, out = self.problem, self.recommendation
        true_cost = true_quality = optimum = None
        if self.truth is not None:
            true_cost, true_quality = true_values(problem, out.theta, self.truth)
            optimum = optimal_cost(problem, self.truth)
        return {
            "task": problem.name,
            "method": self.method,
            "theta_out": self.llms,
            "theta_out_codes": list(out.theta),
            "basis": out.basis,
            **self.report,
            "u_out_usd": out.u_out_usd,
            "gap_usd": out.gap_usd,
            "true_cost_usd": true_cost,
            "true_quality": true_quality,
            "optimal_cost_usd": optimum,
            "feasible": None if true_quality is None else true_quality >= problem.s_0,
            "reference": problem.names(problem.theta_ref),
            "reference_cost_usd": problem.reference_cost_usd,
            "reference_quality": problem.reference_quality,
            "epsilon": problem.epsilon,
            "s_0": problem.s_0,
            "num_queries": problem.num_queries,
            "num_configurations": problem.space.size,
            "budget_usd": self.budget_usd,
            "spend_usd": self.history.spend_usd,
            "surplus_usd": self.surplus_usd,
            "num_observations": len(self.history),
            "stop_reason": self.stop_reason,
            "seed": self.settings["optimizer"].get("seed"),
            "settings_hash": settings_hash(self.settings),
            "timing": {
                "seconds": self.seconds["total"],
                "optimizer_seconds": self.seconds["optimizer"],
                "evaluator_seconds": self.seconds["evaluator"],
                "replayed_observations": self.replayed,
                "threads": torch.get_num_threads(),
            },
            "paths": {"run_dir": None if self.run_dir is None else str(self.run_dir)},
        }
