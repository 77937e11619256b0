"""A run as its directory tells it, whether it goes on, has finished, or was interrupted."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.runs.callbacks import Callback
from scope_torch.runs.metrics import OracleCurve
from scope_torch.runs.trace import RecordedRow, read_trace, recorded_curve

Status = Literal["running", "finished", "interrupted", "failed"]


@dataclass(frozen=True)
class RecordedMethod:
    """Name and settings of the method of a recorded run."""

    name: str
    recorded: dict[str, Any]

    def settings(self) -> dict[str, Any]:
        """See `Described`."""
        return self.recorded


@dataclass(frozen=True)
class RecordedRun:
    """What a run's directory holds; made by `read_run`.

    Args:
        path: The directory.
        settings: Content of `settings.json`.
        problem: The problem searched.
        observations: The journal: all that was paid for, in the order in which it arrived.
        rows: The trace.
        result: Content of `result.json` if the run has finished with these settings.
        error: Content of `error.log`, if the last attempt failed.
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
        """How the run stands."""
        if self.is_running:
            return "running"
        if self.result is not None:
            return "finished"
        return "interrupted" if self.error is None else "failed"

    @property
    def method(self) -> RecordedMethod:
        """What was searched with."""
        optimizer = self.settings["optimizer"]
        return RecordedMethod(str(optimizer["name"]), optimizer)

    @property
    def budget_usd(self) -> float:
        """Lambda, in USD."""
        return float(self.settings["budget_usd"])

    @property
    def spend_usd(self) -> float:
        """Cost of all that was observed, in USD."""
        return math.fsum(o.cost_usd for o in self.observations)

    @property
    def run_dir(self) -> Path | None:
        """See `Outcome`."""
        return self.path

    @property
    def curve(self) -> OracleCurve | None:
        """See `Outcome`."""
        return recorded_curve(self.problem, self.rows)

    def summary(self) -> dict[str, Any]:
        """See `Outcome`; empty if the run has not finished."""
        return {} if self.result is None else self.result

    def replay(self, callback: Callback) -> None:
        """Tells a callback what it would have been told by the run itself."""
        error = None if self.result is not None else InterruptedError(f"{self.path} is unfinished")
        try:
            callback.start(self.problem, self.method, self.budget_usd)
            spend_usd = 0.0
            for observation in self.observations:
                spend_usd += observation.cost_usd
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
    """
    settings = _read_json(path / "settings.json")
    if settings is None:
        raise InputError(f"{path} is not the directory of a run: settings.json is missing")
    problem = recorded_problem(settings)
    result = _read_json(path / "result.json")
    error = path / "error.log"
    return RecordedRun(
        path=path,
        settings=settings,
        problem=problem,
        observations=_read_journal(path / "journal.jsonl"),
        rows=read_trace(path / "trace.csv", problem),
        result=result,
        error=error.read_text() if error.exists() else None,
        is_running=_is_locked(path / "journal.jsonl"),
    )


def recorded_problem(settings: dict[str, Any]) -> SelectionProblem:
    """The problem of a run's `settings.json`.

    Raises:
        InputError: If the settings describe none.
    """
    try:
        values = dict(settings["problem"])
        values["modules"] = tuple(values["modules"])
        values["llms"] = tuple(tuple(names) for names in values["llms"])
        return SelectionProblem(**values)
    except (KeyError, TypeError) as error:
        raise InputError(f"settings.json describes no problem ({error!r}); restore it") from error


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}); restore it, or move it away") from error


def _read_journal(path: Path) -> list[Observation]:
    if not path.exists():
        return []
    content = path.read_bytes()
    lines = content[: content.rfind(b"\n") + 1].splitlines()  # the last may still be written
    return [Observation.from_json(line.decode()) for line in lines]


def _is_locked(journal: Path) -> bool:
    """Whether a run holds the journal; the lock is asked for and given back at once."""
    with contextlib.suppress(ImportError, FileNotFoundError):
        import fcntl  # POSIX only

        with open(journal, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
    return False
