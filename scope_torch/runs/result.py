"""The result of a run, and the content of `result.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scope_torch.errors import InputError
from scope_torch.observation import History, Observation
from scope_torch.problem import SelectionProblem
from scope_torch.runs.directory import settings_hash, with_hashes
from scope_torch.runs.held_out import HeldOut
from scope_torch.runs.metrics import (
    OracleCurve,
    column_of,
    is_feasible,
    optimal_cost,
    oracle_curve,
    true_values,
)
from scope_torch.search.front import FrontTable
from scope_torch.search.optimizer import Recommendation, TraceRow


@dataclass(frozen=True)
class RunResult:
    """A finished run; made by `run`.

    Args:
        problem: The problem that was searched.
        method: Name of the optimizer.
        recommendation: theta_out and its basis.
        stop_reason: Why the search ended.
        budget_usd: Lambda, in USD.
        history: All observations up to the one that crossed the budget, in the asked order.
        surplus_usd: Cost in USD of the observations that were in flight at that time.
        trace: The changes in the search.
        report: Values that the method records: mode, b_c, b_g, delta, assumptions, ...
        settings: Everything that decides the run.
        truth: c(theta) in USD, s(theta) and averages of further outcomes by flat index, see
            `true_values`; None if the evaluator does not know them.
        seconds: Wall-clock time of this process by part: `optimizer` is the time of the method,
            `evaluator` the time spent waiting for observations and the truth, `total` includes
            journal, files and callbacks.
        replayed: Number of observations taken from the journal, so not paid for again.
        run_dir: Directory with the files of the run; None if it has none.
        repeats: The observations in `history` that a kept answer gave, without a call; None if the
            evaluator keeps no answers.
        front: See `pareto`.
        reference: theta_0 on every query, if it was measured for this search.
        probe: Observations that told where the search should start; not a part of `history`.
        held_out: The comparison on queries that the search has not seen, if there are any.
        queries: The inputs of the queries, if they are known.
        answers: What the application returned, by configuration and query, where it was kept.
        prices: Prices of the LLMs, see `PriceList.describe`.
        num_failed: Calls of this process that failed and count as quality 0.

    Examples:
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> result = run(problem, make_scope(problem, base="nano", seed=0), evaluator, 0.1)
        >>> result.llms
        {'module_1': 'nano', 'module_2': 'mini'}
        >>> result.recommendation.basis, len(result.history), result.stop_reason
        ('accepted (tuned)', 82, 'budget')
        >>> result.summary()["feasible"]  # the truth is known here
        True
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
    truth: Sequence[Tensor] | None
    seconds: dict[str, float]
    replayed: int
    run_dir: Path | None = field(default=None)
    repeats: Sequence[Observation] | None = None
    front: FrontTable | None = None
    reference: Sequence[Observation] | None = None
    probe: Sequence[Observation] = ()
    held_out: HeldOut | None = None
    queries: Sequence[Any] | None = None
    answers: Mapping[tuple[tuple[int, ...], int], Any] | None = None
    prices: Mapping[str, Any] | None = None
    num_failed: int = 0

    def pareto(self) -> FrontTable:
        """For every loss of quality the cheapest configuration, and what that rests on.

        Raises:
            InputError: If the problem has further constraints or another objective, of which the
                table knows nothing, or the result was made without its observations.
        """
        if self.front is None:
            raise InputError(
                "this result has no front: run() makes it, of problems with a bound on quality only"
            )
        return self.front

    @property
    def llms(self) -> dict[str, str]:
        """theta_out: the LLM of each module."""
        return self.problem.names(self.recommendation.theta)

    @property
    def curve(self) -> OracleCurve | None:
        """True cost and quality of theta_out against the budget; None if they are unknown."""
        return None if self.truth is None else oracle_curve(self.problem, self.trace, self.truth)

    def summary(self) -> dict[str, Any]:
        """Content of `result.json`; equal for equal runs, except for `timing` and `paths`.

        `result_hash` is a hash of all that equal runs share, `timing.hash` of `timing` and `paths`.
        """
        out = self.recommendation
        content = {
            "task": self.problem.name,
            "method": self.method,
            "theta_out": self.llms,
            "theta_out_codes": list(out.theta),
            "basis": out.basis,
            **self.report,
            **self._bounds_of_theta_out(),
            **self._truth_of_theta_out(),
            "population": self._population(),
            **_facts(self.problem),
            "budget_usd": self.budget_usd,
            "spend_usd": self.history.spend_usd,
            "surplus_usd": self.surplus_usd,
            "num_observations": len(self.history),
            **self._repeats(),
            "stop_reason": self.stop_reason,
            **({} if self.front is None else {"pareto": self.front.to_json()}),
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
        return with_hashes(content)

    def _population(self) -> dict[str, Any]:
        """About tomorrow's queries; see `tomorrow`."""
        from scope_torch.runs.population import tomorrow  # its bounds import gpytorch: seconds

        theta, seed = self.recommendation.theta, self.settings["optimizer"].get("seed")
        return tomorrow(self.problem, self.history, theta, self.report.get("delta"), seed)

    def _repeats(self) -> dict[str, Any]:
        """Number and cost of the repeats, if the evaluator keeps answers."""
        if self.repeats is None:
            return {}
        usd = math.fsum(o.cost_usd for o in self.repeats)
        return {"num_repeats": len(self.repeats), "repeats_usd": usd}

    def _bounds_of_theta_out(self) -> dict[str, Any]:
        """Upper bounds on its cost and gap in USD, or, if quality is the objective, on the loss."""
        out = self.recommendation
        if self.problem.objective == "cost":
            return {"u_out_usd": out.u_out_usd, "gap_usd": out.gap_usd}
        least = None if out.u_out_usd is None else 1 - out.u_out_usd
        return {"u_out_usd": None, "gap_usd": None, "least_quality": least, "regret": out.gap_usd}

    def _truth_of_theta_out(self) -> dict[str, Any]:
        """Its true cost and quality, and the optimal cost; None where unknown."""
        cost = quality = optimum = feasible = None
        others: Sequence[float | None] = [None] * len(self.problem.others)
        if self.truth is not None:
            values = true_values(self.problem, self.recommendation.theta, self.truth)
            cost, quality, others = values[0], values[1], values[2:]
            optimum = finite(optimal_cost(self.problem, self.truth))
            feasible = is_feasible(self.problem, values)
        names = [column_of(limit) for limit in self.problem.others]
        optimal: dict[str, float | None] = {"optimal_cost_usd": optimum}
        if self.problem.objective == "quality":
            optimal = {
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


def _facts(problem: SelectionProblem) -> dict[str, Any]:
    constraints = [str(limit) for limit in problem.limits]
    return {
        "reference": problem.names(problem.theta_ref),
        "reference_cost_usd": problem.reference_cost_usd,
        "reference_quality": problem.reference_quality,
        "epsilon": problem.epsilon,
        "s_0": problem.s_0,
        **({"constraints": constraints} if problem.others else {}),
        **({} if problem.objective == "cost" else {"objective": problem.objective}),
        "num_queries": problem.num_queries,
        "num_configurations": problem.space.size,
    }
