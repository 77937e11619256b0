"""Weights & Biases as a view of a run. The only module of the library that imports wandb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import wandb

from scope_torch.errors import InputError
from scope_torch.optimizer import Optimizer, TraceRow
from scope_torch.problem import SelectionProblem
from scope_torch.runner import Callback, RunResult


class WandbTracker(Callback):
    """Logs the trace against spend_usd, and the result as a summary and a table artifact.

    Args:
        project: W&B project.
        entity: W&B entity; None for the default.
        mode: `offline` writes files to sync later.
        group: Groups runs; empty for the task's name. The job type is the method.
        tags: Tags of the run.
        directory: Where W&B keeps its files.

    Raises:
        InputError: If the mode is unknown.
    """

    def __init__(
        self,
        project: str = "scope-torch",
        entity: str | None = None,
        mode: Literal["online", "offline", "disabled"] = "offline",
        group: str = "",
        tags: Sequence[str] = (),
        directory: str = ".",
    ) -> None:
        if mode not in ("online", "offline", "disabled"):
            raise InputError(f"tracking.mode={mode!r} must be online, offline or disabled")
        self._arguments: dict[str, Any] = {
            "project": project,
            "entity": entity,
            "mode": mode,
            "tags": list(tags),
            "dir": directory,
        }
        self._group = group
        self._run: wandb.Run | None = None
        self._problem: SelectionProblem | None = None

    def start(self, problem: SelectionProblem, optimizer: Optimizer, budget_usd: float) -> None:
        """See base."""
        settings = optimizer.settings()
        self._problem = problem
        self._run = wandb.init(
            **self._arguments,
            group=self._group or problem.name,
            job_type=optimizer.name,
            name=f"{problem.name}-{optimizer.name}-{settings.get('seed')}",
            config={"task": problem.name, "budget_usd": budget_usd, "optimizer": settings},
            reinit="create_new",
        )
        self._run.define_metric("spend_usd")
        self._run.define_metric("*", step_metric="spend_usd")

    def changed(self, row: TraceRow) -> None:
        """See base."""
        if self._run is None or self._problem is None:
            return
        numbers = {
            "spend_usd": row.spend_usd,
            "num_observations": row.t,
            "u_out_usd": row.u_out_usd,
            "gap_usd": row.gap_usd,
            "iteration": row.iteration,
            "num_queries": row.num_queries,
        }
        self._run.log({name: value for name, value in numbers.items() if value is not None})

    def end(self, result: RunResult) -> None:
        """See base."""
        if self._run is None:
            return
        if result.curve is not None:
            self._log_curve(result)
        summary = result.summary()
        self._run.summary.update({"result": summary})
        table = wandb.Table(columns=["key", "value"])
        for key, value in summary.items():
            table.add_data(key, str(value))
        artifact = wandb.Artifact(f"result-{self._run.id}", type="result")
        artifact.add(table, "result")
        self._run.log_artifact(artifact)

    def close(self, error: BaseException | None) -> None:
        """See base; the run is finished whatever happened."""
        if self._run is not None:
            self._run.finish(exit_code=0 if error is None else 1)
            self._run = None

    def _log_curve(self, result: RunResult) -> None:
        assert self._run is not None
        assert result.curve is not None
        budgets = np.append(result.curve.budget_usd, result.budget_usd)
        best = result.curve.best_feasible_cost(budgets)
        violation = result.curve.violation(budgets)
        for budget, cost, v in zip(budgets, best, violation, strict=True):
            point = {"c_bf_usd": float(cost), "violation": float(v)}
            self._run.log({"spend_usd": float(budget), **point})
