"""Runs an optimizer against an evaluator within a budget, and survives crashes."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from scope_torch.errors import InputError
from scope_torch.evaluators import Evaluator, HasTruth
from scope_torch.history import History, Observation
from scope_torch.metrics import OracleCurve, optimal_cost, oracle_curve, true_values
from scope_torch.observation_source import ObservationSource
from scope_torch.optimizer import Described, Optimizer, Recommendation, TraceRow
from scope_torch.problem import SelectionProblem
from scope_torch.run_directory import open_run_dir, settings_hash, write_atomically
from scope_torch.trace_file import TraceFile


class Outcome(Protocol):
    """What a callback is told of a finished run: `RunResult`, or one read from its directory."""

    @property
    def run_dir(self) -> Path | None:
        """Where its files are."""
        ...

    @property
    def curve(self) -> OracleCurve | None:
        """True cost and quality along the run, if known."""
        ...

    def summary(self) -> dict[str, Any]:
        """Content of result.json."""
        ...


class Callback:
    """Watches a run, or one that is told again; the methods do nothing unless overridden."""

    def start(self, problem: SelectionProblem, optimizer: Described, budget_usd: float) -> None:
        """Before the first observation."""

    def observed(self, observation: Observation, spend_usd: float) -> None:
        """After each observation, in the asked order, replayed ones included."""

    def changed(self, row: TraceRow) -> None:
        """For each row of the trace."""

    def end(self, result: Outcome) -> None:
        """When the run is complete and its files are written."""

    def close(self, error: BaseException | None) -> None:
        """Always, last; `error` is what ended the run early, if anything did."""


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


def run(
    problem: SelectionProblem,
    optimizer: Optimizer,
    evaluator: Evaluator,
    budget_usd: float,
    *,
    run_dir: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Spends a budget on a search.

    The budget is tested after every observation: the first that takes the spend above it is the
    last. With `run_dir` every observation that costs something is on disk before it is used; the
    same call resumes an interrupted run, without paying for anything twice, and gives the same
    result.

    Args:
        problem: What is searched.
        optimizer: A fresh optimizer.
        evaluator: Where observations come from.
        budget_usd: Lambda, in USD.
        run_dir: Directory for `journal.jsonl`, `settings.json`, `trace.csv` and `result.json`;
            None keeps nothing.
        callbacks: Watchers.

    Raises:
        InputError: If the budget is not positive, the optimizer is of another problem or has been
            used, or the directory cannot be written or holds a run with other settings.
    """
    _check_run(problem, optimizer, budget_usd)
    began = time.perf_counter()
    settings = run_settings(problem, optimizer, evaluator, budget_usd)
    run_dir = None if run_dir is None else Path(run_dir)
    truth_began = time.perf_counter()
    truth = evaluator.truth() if isinstance(evaluator, HasTruth) else None
    truth_seconds = time.perf_counter() - truth_began
    with ExitStack() as closing:
        journal = None
        if run_dir is not None:
            durable = not getattr(evaluator, "free", False)
            opened = open_run_dir(run_dir, settings, durable)
            journal = closing.enter_context(contextlib.closing(opened))
        source, history = ObservationSource(evaluator, journal), History()
        for callback in callbacks:
            closing.push(_closer(callback))
        for callback in callbacks:
            callback.start(problem, optimizer, budget_usd)
        trace_file = None
        if run_dir is not None:
            trace_file = TraceFile(run_dir / "trace.csv", problem, truth)
            closing.callback(trace_file.close)
        try:
            stop_reason, optimizer_seconds = _loop(
                optimizer, source, budget_usd, history, callbacks, trace_file
            )
        except BaseException:
            with contextlib.suppress(InputError):  # must not hide what ended the run
                _update(trace_file, optimizer)
            raise
        _update(trace_file, optimizer)
        result = RunResult(
            problem=problem,
            method=optimizer.name,
            recommendation=optimizer.recommend(),
            stop_reason=stop_reason,
            budget_usd=float(budget_usd),
            history=history,
            surplus_usd=source.surplus_usd(history),
            trace=optimizer.trace,
            report=optimizer.report(),
            settings=settings,
            truth=truth,
            seconds={
                "total": time.perf_counter() - began,
                "optimizer": optimizer_seconds,
                "evaluator": truth_seconds + source.seconds,
            },
            replayed=source.replayed,
            run_dir=run_dir,
        )
        if run_dir is not None:
            write_atomically(run_dir / "result.json", json.dumps(result.summary(), indent=2) + "\n")
        for callback in callbacks:
            callback.end(result)
    return result


def _check_run(problem: SelectionProblem, optimizer: Optimizer, budget_usd: float) -> None:
    if not (math.isfinite(budget_usd) and budget_usd > 0):
        raise InputError(f"budget_usd={budget_usd} must be a positive number of USD")
    if optimizer.problem != problem:
        raise InputError(f"the optimizer was made for the problem {optimizer.problem.name!r}")
    if optimizer.t > 0:
        raise InputError(
            f"the optimizer has made {optimizer.t} observations; give run() a fresh one"
        )


def _closer(callback: Callback) -> Callable[[Any, BaseException | None, Any], None]:
    return lambda _type, error, _traceback: callback.close(error)


def _loop(
    optimizer: Optimizer,
    source: ObservationSource,
    budget_usd: float,
    history: History,
    callbacks: Sequence[Callback],
    trace_file: TraceFile | None,
) -> tuple[str, float]:
    """Why it ended, and the seconds that the optimizer took."""
    num_reported = 0
    watching = [c.observed for c in callbacks if type(c).observed is not Callback.observed]

    def report_changes() -> None:
        nonlocal num_reported
        if len(optimizer.trace) == num_reported:
            return
        source.flush()
        if trace_file is not None:
            trace_file.update(optimizer.trace)
        for row in optimizer.trace[num_reported:]:
            for callback in callbacks:
                callback.changed(row)
        num_reported = len(optimizer.trace)

    began = time.perf_counter()
    requests = optimizer.ask()
    seconds = time.perf_counter() - began
    while requests:
        report_changes()
        told: list[Observation] = []
        observations = source.fulfil(requests)
        try:
            for observation in observations:
                told.append(observation)
                history.append(observation)
                for observed in watching:
                    observed(observation, history.spend_usd)
                if history.spend_usd > budget_usd:
                    break
        finally:
            observations.close()
        began = time.perf_counter()
        optimizer.tell(told)
        requests = () if history.spend_usd > budget_usd else optimizer.ask()
        seconds += time.perf_counter() - began
    report_changes()
    source.flush()
    spent = history.spend_usd > budget_usd
    return "budget" if spent else optimizer.stop_reason or "finished", seconds


def run_settings(
    problem: SelectionProblem, optimizer: Optimizer, evaluator: Evaluator, budget_usd: float
) -> dict[str, Any]:
    """Everything that decides a run, JSON-serialisable; arguments as in `run`."""
    return {
        "problem": asdict(problem),
        "optimizer": optimizer.settings(),
        "evaluator": evaluator.fingerprint(),
        "budget_usd": float(budget_usd),
    }


def _update(trace_file: TraceFile | None, optimizer: Optimizer) -> None:
    if trace_file is not None:
        trace_file.update(optimizer.trace)
