"""Data transformation on the TDE benchmark: apply a transformation that three examples show."""

from __future__ import annotations

import re
from pathlib import Path

from scope_torch.errors import InputError
from scope_torch.tasks.dataset import Dataset, Query
from scope_torch.tasks.files import check_count, find_folder, read_text
from scope_torch.tasks.grading import ExactMatch, lowered

NUM_DEMONSTRATIONS = 3
SEARCH = ("benchmark-bing-query-logs", "semantic_*.txt", 102)
HELD_OUT = ("benchmark-stackoverflow", "*.txt", 710)
SOURCE = "the folder Benchmark of github.com/Yeye-He/Transform-Data-by-Example"


def tde(folder: str = "tde", *, check_counts: bool = True) -> Dataset:
    """Bing-QueryLogs (102 queries) for the search, and StackOverflow (710 held-out queries).

    Each file is a transformation. Its first three rows are the demonstrations, and every further
    row is a query. Of Bing-QueryLogs only the `semantic_*` files are used; the `unit_*` files have
    99 queries.

    Args:
        folder: Folder with `benchmark-bing-query-logs` and `benchmark-stackoverflow`. A relative
            path is looked up in the working directory, in `$SCOPE_DATA_DIR` and in `./data`.
        check_counts: Whether there must be as many queries as published.

    Returns:
        Queries with the fields `instruction`, `demonstrations` (lists of source and target) and
        `source`; gold is the target.

    Raises:
        InputError: If a file is absent or cut short, or the number of queries differs.
    """
    path = find_folder(folder, SOURCE)
    queries, held_out = (_read_split(path, *split, check_counts) for split in (SEARCH, HELD_OUT))
    return Dataset("tde", queries, held_out, ExactMatch(lowered))


def _read_split(
    path: Path, name: str, pattern: str, expected: int, check_counts: bool
) -> tuple[Query, ...]:
    files = sorted((path / name).glob(pattern), key=_number)
    if not files:
        raise InputError(f"{path / name} has no {pattern}; take {SOURCE}")
    queries = tuple(query for file in files for query in read_transformation(file))
    if check_counts:
        check_count(path / name, f"queries in {pattern}", len(queries), expected)
    return queries


def read_transformation(path: Path) -> list[Query]:
    """Reads a file: `//` and the instruction, then rows of a source, two tabs and a target.

    Raises:
        InputError: If the instruction or a target is missing, or no row is left for a query.
    """
    # Not splitlines(), which also splits at characters that may be part of a value.
    lines = [line.rstrip("\r") for line in read_text(path, "cp1252").split("\n")]
    lines = [line for line in lines if line.strip()]
    if not lines or not lines[0].startswith("//"):
        raise InputError(f"{path}: the first line must be // and an instruction")
    rows = [_row(path, line) for line in lines[1:]]
    if len(rows) <= NUM_DEMONSTRATIONS:
        raise InputError(
            f"{path}: {len(rows)} rows, but {NUM_DEMONSTRATIONS} demonstrations and a row to ask "
            "for are needed; download it again"
        )
    instruction = lines[0].lstrip("/").strip()
    demonstrations = rows[:NUM_DEMONSTRATIONS]
    return [
        Query(
            {
                "instruction": instruction,
                "demonstrations": [list(row) for row in demonstrations],
                "source": source,
            },
            target,
        )
        for source, target in rows[NUM_DEMONSTRATIONS:]
    ]


def _row(path: Path, line: str) -> list[str]:
    # One row of the benchmark has one tab and another has three; a source may be a space.
    row = re.split(r"\t+", line, maxsplit=1)
    if len(row) != 2 or not row[1].strip():
        raise InputError(f"{path}: the row {line!r} has no target; download it again")
    return row


def _number(path: Path) -> tuple[int, str]:
    """The number in the name of a file, so that 10 comes after 9; then the name."""
    digits = re.search(r"\d+", path.stem)
    return int(digits[0]) if digits else 0, path.name
