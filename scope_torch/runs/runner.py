"""Runs an optimizer against an evaluator within a budget, and survives crashes."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError
from scope_torch.evaluators import Evaluator, HasTruth
from scope_torch.observation import History, Observation
from scope_torch.problem import SelectionProblem
from scope_torch.runs.callbacks import Callback
from scope_torch.runs.directory import open_run_dir, write_atomically
from scope_torch.runs.result import RunResult
from scope_torch.runs.source import ObservationSource
from scope_torch.runs.trace import TraceFile
from scope_torch.search.optimizer import Optimizer


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
