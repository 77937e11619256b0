"""Reads a run from its directory, whether it is running, finished or interrupted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.results.metrics import OracleCurve
from scope_torch.runs.callbacks import Callback
from scope_torch.runs.directory import read_settings, result_of
from scope_torch.runs.journal import is_locked, read_journal
from scope_torch.runs.measure import is_measurement
from scope_torch.runs.trace import RecordedRow, read_trace, recorded_curve

Status = Literal["running", "finished", "interrupted", "failed"]


@dataclass(frozen=True)
class RecordedMethod:
    """Name and settings of the method of a recorded run."""

    name: str
    recorded: dict[str, Any]

    def settings(self) -> dict[str, Any]:
        """The recorded settings; see `Described`."""
        return self.recorded


@dataclass(frozen=True)
class RecordedRun:
    """The content of a run's directory; made by `read_run`.

    Args:
        path: The directory.
        settings: Content of `settings.json`.
        problem: The problem that is searched.
        observations: The journal: all observations made, in the order in which they arrived.
        rows: The trace.
        result: Content of `result.json`; None if the run has not finished with these settings.
        error: Content of `error.log`; None if the last attempt did not fail.
        is_running: Whether a process holds the journal's lock.
    """

    path: Path
    settings: dict[str, Any]
    problem: SelectionProblem
    observations: list[Observation]
    rows: list[RecordedRow]
    result: dict[str, Any] | None
    error: str | None
    is_running: bool

    @property
    def status(self) -> Status:
        """Whether the run is running, finished, interrupted or failed."""
        if self.is_running:
            return "running"
        if self.result is not None:
            return "finished"
        return "interrupted" if self.error is None else "failed"

    @property
    def method(self) -> RecordedMethod:
        """The method of the search: its name and settings."""
        optimizer = self.settings["optimizer"]
        return RecordedMethod(str(optimizer["name"]), optimizer)

    @property
    def budget_usd(self) -> float:
        """Lambda, in USD."""
        return float(self.settings["budget_usd"])

    @property
    def spend_usd(self) -> float:
        """What was paid for all observations, in USD."""
        return math.fsum(o.paid_usd for o in self.observations)

    @property
    def run_dir(self) -> Path | None:
        """The directory; see `Outcome`."""
        return self.path

    @property
    def curve(self) -> OracleCurve | None:
        """True cost and quality of theta_out against the budget; None if they are unknown."""
        is_known = not self.rows and self.summary().get("true_cost_usd") is not None
        return recorded_curve(self.problem, self.rows, is_known)

    def summary(self) -> dict[str, Any]:
        """Content of `result.json`; empty if the run has not finished."""
        return {} if self.result is None else self.result

    def replay(self, callback: Callback) -> None:
        """Calls the methods of a callback as the run itself would have called them."""
        error = None if self.result is not None else InterruptedError(f"{self.path} is unfinished")
        try:
            callback.start(self.problem, self.method, self.budget_usd)
            spend_usd = 0.0
            for observation in self.observations:
                spend_usd += observation.paid_usd
                callback.observed(observation, spend_usd)
            for recorded in self.rows:
                callback.changed(recorded.row)
            if self.result is not None:
                callback.end(self)
        except BaseException as failure:
            error = failure
            raise
        finally:
            callback.close(error)


def read_run(path: Path) -> RecordedRun:
    """Reads a run's directory, without disturbing a process that writes to it.

    Raises:
        InputError: If it is not a run's directory, or a file in it is damaged.

    Examples:
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> optimizer = make_scope(problem, base="nano", seed=0)
        >>> _ = run(problem, optimizer, evaluator, budget_usd=0.1, run_dir="outputs/demo")
        >>> recorded = read_run(Path("outputs/demo"))
        >>> recorded.status, len(recorded.observations), recorded.rows[-1].row.theta_out
        ('finished', 82, (4, 3))
    """
    try:
        settings = read_settings(path / "settings.json")
    except FileNotFoundError:
        raise InputError(
            f"{path} is not the directory of a run: settings.json is missing; name a directory "
            "that has one"
        ) from None
    if is_measurement(settings):
        name = settings["optimizer"]["name"]
        kept = f"{name}.json has its result" if name != "measure" else "it is a part of one"
        raise InputError(f"{path} is not the directory of a search: {kept}")
    problem = recorded_problem(settings)
    error_log = path / "error.log"
    # How it stands comes first: a run that ends meanwhile has more observations, not fewer.
    is_running, result = is_locked(path / "journal.jsonl"), _result_if_finished(path, settings)
    run = RecordedRun(
        path=path,
        settings=settings,
        problem=problem,
        observations=read_journal(path / "journal.jsonl"),
        rows=read_trace(path / "trace.csv", problem, None if is_running else result),
        result=result,
        error=error_log.read_text("utf-8", "replace") if error_log.exists() else None,
        is_running=is_running,
    )
    _check_number(run)
    return run


def recorded_problem(settings: dict[str, Any]) -> SelectionProblem:
    """The problem in the settings of a run; which configurations it allowed is not recorded.

    Args:
        settings: Content of `settings.json`.

    Raises:
        InputError: If the settings describe no problem.
    """
    try:
        values = dict(settings["problem"])
        values["modules"] = _names(values["modules"])
        values["llms"] = tuple(map(_names, values["llms"]))
        for digest in ("allowed", "offered"):  # tells rules apart, and has none
            values.pop(digest, None)
        return SelectionProblem(**values)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"settings.json describes no problem ({error!r}); restore it") from error


def _names(values: Any) -> tuple[str, ...]:
    """Returns a list of names read from JSON; refuses a text, which is a list of letters too."""
    if not isinstance(values, (list, tuple)) or not all(isinstance(name, str) for name in values):
        raise TypeError(f"{values!r} is no list of names")
    return tuple(values)


def _result_if_finished(path: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    try:
        return result_of(path, settings)
    except FileNotFoundError:
        return None


def _check_number(run: RecordedRun) -> None:
    """Refuses a journal that lost lines after the run had finished."""
    made, found = run.summary().get("num_observations", 0), len(run.observations)
    if found < made:
        raise InputError(
            f"{run.path / 'journal.jsonl'} has {found} of {made} observations; restore the file, "
            "or move the directory away and start anew"
        )
