"""Rows that are made again, beside those of the files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.results.planned import Planned, key_of, read_rows, row_of

_MOST_SHOWN = 28  # characters of a cell
_NUMBER, _LISTED = 1e-5, 1e-2  # relative; of seven digits and three, rounded otherwise


def words_of(run: Planned) -> str:
    """What `--row` calls a run: task, method, world if it has one, seed."""
    return " ".join(part for part in run.key if part)


def side_by_side(name: str, run: Planned, folder: Path) -> str:
    """The row of the file and a fresh one, column by column."""
    before = _by_key(folder / f"{name}.csv").get(run.key, {})
    lines, same = [["", f"{name}.csv", "made now"]], 0
    for column, fresh in row_of(run).items():
        old = before.get(column, "not there")
        same += old == fresh
        lines.append([column, _cut(old), _cut(fresh)] + ([] if old == fresh else ["differs"]))
    shown = [f"{one[0]:22}{one[1]:{_MOST_SHOWN + 2}}{'  '.join(one[2:])}".rstrip() for one in lines]
    return "\n".join([*shown, f"{same} of {len(lines) - 1} columns are the same"])


def compared(
    name: str, quick: Sequence[Planned], reported: Sequence[Planned], made: Path, folder: Path
) -> tuple[int, list[str]]:
    """Whether quick runs give the rows that are committed.

    Args:
        name: Of the experiment.
        quick: Its quick runs; one that is not among `reported` is not compared.
        reported: Its runs.
        made: Where the rows of quick runs are.
        folder: Where the rows of the reported runs are.

    Returns:
        How many rows are compared, and a line for each that differs.
    """
    fresh, before = _by_key(made / f"{name}.csv"), _by_key(folder / f"{name}.csv")
    both = [r for r in quick if r in set(reported) and r.key in fresh and r.key in before]
    lines = []
    for run in both:
        old = before[run.key]
        new = dict.fromkeys(old, "not there") | fresh[run.key]
        other = [column for column in old if not _same(old[column], new[column])]
        if other:
            first = f"{other[0]} is {_cut(new[other[0]])}, not {_cut(old[other[0]])}"
            lines.append(f"{name} {words_of(run)}: {first}; {len(other)} columns differ")
    return len(both), lines


def _by_key(path: Path) -> Mapping[tuple[str, ...], Mapping[str, str]]:
    return {key_of(row): row for row in read_rows(path)}


def _same(one: str, other: str) -> bool:
    """Whether two cells agree up to rounding."""
    if one == other:
        return True
    most = _LISTED if " " in one else _NUMBER
    try:
        pairs = zip(map(float, one.split()), map(float, other.split()), strict=True)
        return all(math.isclose(a, b, rel_tol=most) for a, b in pairs)
    except ValueError:
        return False


def _cut(cell: str) -> str:
    """A cell to read: curves are long."""
    return cell if len(cell) <= _MOST_SHOWN else f"{cell[: _MOST_SHOWN - 3]}..."
