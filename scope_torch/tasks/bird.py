"""Text-to-SQL on BIRD: questions about a database, graded by execution accuracy."""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError
from scope_torch.tasks.dataset import Dataset, Query
from scope_torch.tasks.files import find_data, find_folder, read_text
from scope_torch.tasks.sql_execution import (
    QueryFailed,
    QueryLimits,
    Row,
    all_rows,
    check_database,
    close_workers,
    distinct_rows,
)

SOURCE = "mini_dev.json and dev.json with dev_databases of bird-bench.github.io (CC BY-SA 4.0)"
KEYS = ("question_id", "db_id", "question", "evidence", "SQL")

_log = logging.getLogger(__name__)


def bird(
    path: str = "bird/mini_dev.json",
    databases_dir: str = "bird/dev_databases",
    *,
    held_out_path: str | None = "bird/dev.json",
    exclude_seen: bool = True,
    sample_rows: int = 3,
    max_value_chars: int = 60,
    timeout_s: float = 30.0,
) -> Dataset:
    """BIRD-mini-dev (500 queries) for the search, and BIRD-dev (1534 held-out queries).

    Relative paths are looked up in the working directory, in `$SCOPE_DATA_DIR` and in `./data`.

    Args:
        path: Questions of the search.
        databases_dir: Folder with `DB_ID/DB_ID.sqlite` for every database.
        held_out_path: Held-out questions; None for none.
        exclude_seen: Whether held-out questions that are also in the search are left out. All of
            mini-dev is in dev, so 1034 remain; the paper measures on all 1534.
        sample_rows: Number of rows shown of every table.
        max_value_chars: Longer values in these rows are cut.
        timeout_s: Longest time for one SQL query, in seconds.

    Returns:
        Queries with the fields `question`, `evidence` (a hint), `db_id` and `schema` (DDL and
        sample rows); gold is a dict of `sql` and `database` (its path).

    Raises:
        InputError: If a file or a database is absent or damaged.
    """
    items = read_questions(find_data(path, SOURCE))
    held_out_items = read_questions(find_data(held_out_path, SOURCE)) if held_out_path else []
    if exclude_seen:
        seen = {(item["db_id"], item["question_id"]) for item in items}
        held_out_items = [
            item for item in held_out_items if (item["db_id"], item["question_id"]) not in seen
        ]
    folder = find_folder(databases_dir, SOURCE)
    databases = {
        db_id: database_path(folder, db_id)
        for db_id in dict.fromkeys(item["db_id"] for item in (*items, *held_out_items))
    }
    schemas = {
        db_id: schema_text(database, sample_rows, max_value_chars)
        for db_id, database in databases.items()
    }
    search, held_out = (
        tuple(_query(item, databases, schemas) for item in part) for part in (items, held_out_items)
    )
    return Dataset("bird", search, held_out, ExecutionAccuracy(QueryLimits(timeout_s)))


def read_questions(path: Path) -> list[dict[str, Any]]:
    """Reads a file of questions.

    Raises:
        InputError: If it is not a JSON list of objects with `KEYS`.
    """
    try:
        items = json.loads(read_text(path))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not JSON ({error}); download it again") from error
    if not isinstance(items, list) or not items:
        raise InputError(f"{path} must be a list of questions; download it again")
    for number, item in enumerate(items):
        missing = [key for key in KEYS if not isinstance(item, dict) or key not in item]
        if missing:
            raise InputError(f"{path}: question {number} has no {missing[0]!r}; download it again")
        texts = [key for key in KEYS[1:] if not isinstance(item[key], str)]
        if texts:
            raise InputError(
                f"{path}: {texts[0]!r} of question {number} must be a text; download it again"
            )
    return items


def database_path(folder: Path, db_id: str) -> Path:
    """The path of a database's file.

    Raises:
        InputError: If there is no such SQLite database, or `db_id` is not a plain name.
    """
    if not db_id or Path(db_id).name != db_id:
        raise InputError(f"db_id={db_id!r} must be the name of a folder in {folder}")
    path = folder / db_id / f"{db_id}.sqlite"
    check_database(path)
    return path


def schema_text(database: Path, sample_rows: int = 3, max_value_chars: int = 60) -> str:
    """The CREATE statement of every table of a database, each followed by the first rows.

    Args:
        database: SQLite file.
        sample_rows: Number of rows shown of every table.
        max_value_chars: Longer values are cut.

    Raises:
        InputError: If the database cannot be read.
    """
    tables = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
    parts = []
    try:
        for name, ddl in all_rows(database, tables)[1]:
            if name.startswith("sqlite_"):  # SQLite's own
                continue
            quoted = name.replace('"', '""')
            columns, found = all_rows(database, f'SELECT * FROM "{quoted}" LIMIT {sample_rows:d}')
            rows = [[_shown(value, max_value_chars) for value in row] for row in found]
            lines = "\n".join(" | ".join(cells) for cells in [columns, *rows])
            parts.append(f"{ddl.strip()};\n/* first rows of {name}:\n{lines}\n*/")
    except QueryFailed as error:
        raise InputError(f"cannot read {database} ({error}); download it again") from error
    # SQLite text that is not UTF-8 arrives as lone surrogates, which no request can hold.
    return "\n\n".join(parts).encode("utf-8", "replace").decode("utf-8")


class ExecutionAccuracy:
    """1 if predicted and gold SQL return the same set of rows, else 0, as BIRD defines it.

    SQL that fails, writes or exceeds its limits has quality 0. The rows of gold SQL are kept.

    Args:
        limits: Limits on the time and size of a query.
    """

    def __init__(self, limits: QueryLimits | None = None) -> None:
        self.limits = limits or QueryLimits()
        self._gold: dict[tuple[str, str], frozenset[Row] | None] = {}
        weakref.finalize(self, close_workers)

    def close(self) -> None:
        """Ends the processes that run queries; a later query starts new ones."""
        close_workers()

    def __call__(self, output: str, query: Query) -> float:
        """Grades an SQL text."""
        gold = self.gold_rows(query)
        if gold is None:
            return 0.0
        try:
            return float(distinct_rows(query.gold["database"], output, self.limits) == gold)
        except QueryFailed:
            return 0.0

    def gold_rows(self, query: Query) -> frozenset[Row] | None:
        """Rows of the gold SQL; None if it fails. A failure is logged once."""
        database, sql = query.gold["database"], query.gold["sql"]
        if (database, sql) not in self._gold:
            try:
                self._gold[database, sql] = distinct_rows(database, sql, self.limits)
            except QueryFailed as error:
                _log.warning("gold SQL fails on %s (%s): %s", database, error, sql)
                self._gold[database, sql] = None
        return self._gold[database, sql]


def failing_gold(queries: Sequence[Query], timeout_s: float = 30.0) -> list[str]:
    """Runs the gold SQL of every query.

    Returns:
        The questions whose gold SQL fails; every output on them has quality 0.
    """
    metric = ExecutionAccuracy(QueryLimits(timeout_s))
    return [query.fields["question"] for query in queries if metric.gold_rows(query) is None]


def _query(item: dict[str, Any], databases: dict[str, Path], schemas: dict[str, str]) -> Query:
    db_id = item["db_id"]
    fields = {name: item[name] for name in ("question", "evidence", "db_id")}
    gold = {"sql": item["SQL"], "database": str(databases[db_id])}
    return Query({**fields, "schema": schemas[db_id]}, gold)


def _shown(value: Any, max_chars: int) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    text = " ".join(str(value).split())
    return text if len(text) <= max_chars else f"{text[:max_chars]}..."
