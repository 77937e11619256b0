"""`trace.csv`: what changed when, written while the search goes on, and read back."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from scope_torch.errors import InputError, cannot_write
from scope_torch.problem import SelectionProblem
from scope_torch.runs.metrics import OracleCurve, true_values
from scope_torch.search.optimizer import TraceRow

_NAMES = [field.name for field in fields(TraceRow)]
_TRUTH = ("true_cost_usd", "true_quality")
_TEXT, _WHOLE, _THETA = ("event",), ("t", "iteration", "num_queries"), ("theta_out", "theta_cand")


class TraceFile:
    """Columns of `TraceRow`, then the true cost and quality of theta_out where known.

    Args:
        path: The file; replaced.
        problem: Gives the names of the LLMs.
        truth: c(theta) in USD and s(theta) by flat index, two `|Theta|` tensors, if known.

    Raises:
        InputError: If it cannot be written; so do the methods.
    """

    def __init__(
        self, path: Path, problem: SelectionProblem, truth: tuple[Tensor, Tensor] | None
    ) -> None:
        self._problem, self._truth = problem, truth
        self._num_written = 0
        self._path = path
        try:
            self._file = open(path, "w", newline="")  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise cannot_write(path, error) from error
        self._write([*_NAMES, *_TRUTH])

    def update(self, trace: Sequence[TraceRow]) -> None:
        """Writes the rows that are new, each in one piece, for others read along."""
        for row in trace[self._num_written :]:
            true = ("", "")
            if self._truth is not None:
                true = true_values(self._problem, row.theta_out, self._truth)
            self._write([*(self._cell(getattr(row, name)) for name in _NAMES), *true])
            self._num_written += 1

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):  # of what could not be written, told before
            self._file.close()

    def _write(self, cells: Sequence[Any]) -> None:
        try:
            csv.writer(self._file).writerow(cells)
            self._file.flush()
        except OSError as error:
            raise cannot_write(self._path, error) from error

    def _cell(self, value: Any) -> Any:
        return "|".join(self._problem.names(value).values()) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class RecordedRow:
    """A row of a trace as read.

    Args:
        row: The row.
        truth: True average cost in USD and quality of its theta_out, where known.
    """

    row: TraceRow
    truth: tuple[float, float] | None


def read_trace(path: Path, problem: SelectionProblem) -> list[RecordedRow]:
    """The rows of a trace; none if there is no file. A line that is being written is left out.

    Args:
        path: `trace.csv`.
        problem: The problem searched.

    Raises:
        InputError: If a line is not a row of a trace of this problem.
    """
    try:
        with open(path, newline="") as file:
            text = file.read()
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\r\n") + 2] if "\r\n" in text else ""
    # An LLM's name may hold the sign between names.
    theta = re.compile(r"\|".join(f"({'|'.join(map(re.escape, names))})" for names in problem.llms))
    found = []
    for number, cells in enumerate(csv.DictReader(io.StringIO(whole, newline="")), start=2):
        try:
            values = {
                name: _parse(name, cells.get(name) or None, theta, problem) for name in _NAMES
            }
            cost, quality = (cells.get(name) for name in _TRUTH)
            truth = (float(cost), float(quality)) if cost and quality else None
            found.append(RecordedRow(TraceRow(**values), truth))
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{path}: line {number} is not a row of this problem's trace ({error}); move the "
                "file away, and run the search again to write it anew"
            ) from error
    return found


def recorded_curve(problem: SelectionProblem, rows: Iterable[RecordedRow]) -> OracleCurve | None:
    """True cost and quality of theta_out against the budget; None if unknown."""
    steps = {0.0: (problem.reference_cost_usd, problem.reference_quality)}
    theta_out, known = problem.theta_ref, False
    for recorded in rows:
        if recorded.truth is None:
            return None
        if recorded.row.theta_out != theta_out:
            theta_out = recorded.row.theta_out
            steps[recorded.row.from_budget_usd] = recorded.truth
        elif not known and theta_out == problem.theta_ref:
            steps[0.0] = recorded.truth
        known = True
    cost, quality = zip(*steps.values(), strict=True)
    curve = OracleCurve(np.array(list(steps)), np.array(cost), np.array(quality), problem.s_0)
    return curve if known else None


def _parse(name: str, cell: str | None, theta: re.Pattern[str], problem: SelectionProblem) -> Any:
    if cell is None or name in _TEXT:
        return cell
    if name in _WHOLE:
        return int(cell)
    if name in _THETA:
        match = theta.fullmatch(cell)
        if match is None:
            raise ValueError(f"{name}={cell!r} names other LLMs")
        return problem.codes(match.groups(), name)
    return float(cell)
