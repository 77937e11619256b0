"""`trace.csv`: the changes in a search, written while it runs, and read back."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from scope_torch.errors import InputError, cannot_write
from scope_torch.files import cell_of, no_link, plain_text
from scope_torch.problem import SelectionProblem
from scope_torch.results.metrics import OracleCurve, column_of, step, true_values
from scope_torch.search.optimizer import TraceRow

_COLUMNS = [field.name for field in fields(TraceRow)]
_REQUIRED_COLUMNS = [field.name for field in fields(TraceRow) if field.default is MISSING]
_TEXT_COLUMNS = ("event",)
_COUNT_COLUMNS = ("t", "iteration", "num_queries")
_BOUND_COLUMNS = ("u_out_usd", "gap_usd", "lower_c_usd", "upper_c_usd", "lower_g", "upper_g")
_THETA_COLUMNS = ("theta_out", "theta_cand")


def _truth_columns(problem: SelectionProblem) -> list[str]:
    others = (column_of(limit) for limit in problem.others)
    return ["true_cost_usd", "true_quality", *others]


class TraceFile:
    """Writes `trace.csv`: the columns of `TraceRow`, then theta_out's true cost and quality.

    A further constraint adds the true average of its outcome. These columns are empty where the
    truth is unknown.

    Args:
        path: The file; an old one is replaced.
        problem: Gives the names of the LLMs.
        truth: See `true_values`; None if unknown.

    Raises:
        InputError: If the file cannot be written, here or in a method.
    """

    def __init__(
        self, path: Path, problem: SelectionProblem, truth: Sequence[Tensor] | None
    ) -> None:
        self._problem, self._truth = problem, truth
        self._num_written = 0
        self._path = path
        try:
            self._file = open(  # noqa: SIM115 - closed by close()
                path, "w", encoding="utf-8", newline="", opener=no_link
            )
        except OSError as error:
            raise cannot_write(path, error) from error
        self._write([*_COLUMNS, *_truth_columns(problem)])

    def update(self, trace: Sequence[TraceRow]) -> None:
        """Writes the new rows, each in one piece, because `read_trace` may read at the same time.

        Args:
            trace: All rows of the search so far.
        """
        for row in trace[self._num_written :]:
            true: Sequence[Any] = [""] * len(_truth_columns(self._problem))
            if self._truth is not None:
                values = true_values(self._problem, row.theta_out, self._truth)
                true = true if math.isnan(values[1]) else values
            self._write([*(self._cell(getattr(row, name)) for name in _COLUMNS), *true])
            self._num_written += 1

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):  # update() has raised it before
            self._file.close()

    def _write(self, cells: Sequence[Any]) -> None:
        try:
            csv.writer(self._file).writerow(map(cell_of, cells))
            self._file.flush()
        except OSError as error:
            raise cannot_write(self._path, error) from error

    def _cell(self, value: Any) -> Any:
        return "|".join(self._problem.names(value).values()) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class RecordedRow:
    """A row read from `trace.csv`.

    Args:
        row: The row.
        truth: `true_values` of its theta_out; None if unknown.
    """

    row: TraceRow
    truth: tuple[float, ...] | None


def read_trace(
    path: Path, problem: SelectionProblem, result: Mapping[str, Any] | None = None
) -> list[RecordedRow]:
    """The rows of a trace; none if there is no file. A last line without its end is left out.

    Args:
        path: `trace.csv`, which a running search may be writing.
        problem: The problem that was searched.
        result: Content of `result.json`; None if the search has not finished.

    Raises:
        InputError: If a line is not a row of a trace of this problem, or the file ends with another
            theta_out than the result.
    """
    rows = _rows_of(path, problem)
    last = rows[-1].row.theta_out if rows else problem.theta_ref
    if result is not None and [*last] != result["theta_out_codes"]:
        raise InputError(
            f"{path} is missing or cut: it ends before the theta_out of result.json; restore it, "
            "or, where journal.jsonl is whole, move result.json away and run the same command "
            "again: it writes both anew and pays for nothing"
        )
    return rows


def _rows_of(path: Path, problem: SelectionProblem) -> list[RecordedRow]:
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error
    whole = text[: text.rfind("\r\n") + 2] if "\r\n" in text else ""
    # A pattern, because the name of an LLM may contain the separator "|".
    theta = re.compile(r"\|".join(f"({'|'.join(map(re.escape, names))})" for names in problem.llms))
    found: list[RecordedRow] = []
    try:
        for cells in csv.DictReader(io.StringIO(whole, newline="")):
            found.append(_parse_row(cells, theta, problem))
    except (ValueError, TypeError, csv.Error) as error:
        reason = (
            f"line {len(found) + 2} is no row of a trace of the problem in settings.json ({error})"
        )
        raise _damaged(path, reason) from error
    return found


def _damaged(path: Path, reason: object) -> InputError:
    return InputError(
        f"{path}: {reason}; move it away, with result.json if there is one, and run the same "
        "command again: it writes them anew from the journal and pays for nothing"
    )


def recorded_curve(
    problem: SelectionProblem, rows: Iterable[RecordedRow], is_known: bool = False
) -> OracleCurve | None:
    """True cost and quality of theta_out against the budget; None if they are unknown.

    Args:
        problem: What was searched.
        rows: Of the trace. A search that ended in Calibrate has none, and kept theta_0.
        is_known: Whether the truth is known although no row has it.
    """
    of_reference = values_of_reference(problem)
    unknown = (math.nan,) * len(of_reference)  # theta_out was not recorded on every query
    steps: dict[float, tuple[float, ...]] = {}
    steps[0.0] = step(problem, of_reference)
    theta_out, known = problem.theta_ref, False
    for recorded in rows:
        truth = unknown if recorded.truth is None else recorded.truth
        if recorded.row.theta_out != theta_out:
            theta_out = recorded.row.theta_out
            steps[recorded.row.from_budget_usd] = step(problem, truth)
        elif not known and recorded.truth is not None and theta_out == problem.theta_ref:
            steps[0.0] = step(problem, truth)
        known |= recorded.truth is not None
    is_known |= known
    return OracleCurve.from_steps(steps, problem.s_0, problem.others) if is_known else None


def values_of_reference(problem: SelectionProblem) -> tuple[float, ...]:
    """`true_values` of theta_0, as given; a constraint on an outcome that is not counts as held."""
    known = problem.reference_averages
    others = (known.get(limit.name, limit.value) for limit in problem.others)
    return (problem.reference_cost_usd, problem.reference_quality, *others)


def _parse_row(
    cells: dict[str, str], theta: re.Pattern[str], problem: SelectionProblem
) -> RecordedRow:
    values = {name: _parse_cell(name, cells.get(name) or None, theta, problem) for name in _COLUMNS}
    found = [(name, cells.get(name)) for name in _truth_columns(problem)]
    truth = None
    if all(cell for _, cell in found):
        truth = tuple(_number(name, cell or "") for name, cell in found)
    return RecordedRow(TraceRow(**values), truth)


def _parse_cell(
    name: str, cell: str | None, theta: re.Pattern[str], problem: SelectionProblem
) -> Any:
    if cell is None and name in _REQUIRED_COLUMNS:
        raise ValueError(f"{name} is missing")
    if cell is None or name in _TEXT_COLUMNS:
        return cell
    if name in _COUNT_COLUMNS:
        return int(cell)
    if name in _THETA_COLUMNS:
        match = theta.fullmatch(plain_text(cell))
        if match is None:
            raise ValueError(f"{name}={cell!r} names other LLMs")
        return problem.codes(match.groups(), name)
    return _number(name, cell)


def _number(name: str, cell: str) -> float:
    """Returns a number; only a bound may be infinite."""
    value = float(cell)
    if math.isnan(value) or (math.isinf(value) and name not in _BOUND_COLUMNS):
        raise ValueError(f"{name}={cell} is not a number")
    return value
