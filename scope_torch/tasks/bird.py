"""Text-to-SQL on BIRD: questions about a database, graded by execution accuracy."""

from __future__ import annotations

import csv
import io
import json
import logging
import weakref
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError, whole_number
from scope_torch.tasks.dataset import Dataset, Query
from scope_torch.tasks.files import find_data, find_folder, read_decompressed, read_text
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

_DESCRIPTION_COLUMNS = (
    "original_column_name",
    "column_name",
    "column_description",
    "value_description",
)
_MARK = "\xef\xbb\xbf"  # a byte order mark of UTF-8, read in another encoding

_log = logging.getLogger(__name__)


def bird(
    path: str = "bird/mini_dev.json",
    databases_dir: str = "bird/dev_databases",
    *,
    held_out_path: str | None = "bird/dev.json",
    db_ids: str | Sequence[str] | None = None,
    exclude_seen: bool = True,
    sample_rows: int = 3,
    max_value_chars: int = 60,
    max_description_chars: int = 300,
    timeout_s: float = 30.0,
) -> Dataset:
    """BIRD-mini-dev (500 queries) for the search, and the 1034 others of BIRD-dev held out.

    Relative paths are looked up in the working directory, in `$SCOPE_DATA_DIR` and in `./data`.

    Args:
        path: Questions of the search.
        databases_dir: Folder with `DB_ID/DB_ID.sqlite` for every database, and where there are
            descriptions `DB_ID/database_description/TABLE.csv`; see `column_descriptions`.
        held_out_path: Held-out questions; None for none.
        db_ids: Only questions about these databases, or this one, such as `superhero`; the others
            need not be there. None: about all.
        exclude_seen: Whether held-out questions that are also in the search are left out. All of
            mini-dev is in dev, so 1034 remain. The paper measures on all 1534, a third of which its
            search has seen; False does so too.
        sample_rows: Number of rows shown of every table.
        max_value_chars: Longer values in these rows are cut.
        max_description_chars: Longer descriptions of a column are cut; 0 shows none.
        timeout_s: Longest time for one SQL query, in seconds; for gold SQL ten times as many.

    Returns:
        Queries with the fields `question`, `evidence` (a hint), `db_id` and `schema` (DDL,
        descriptions of columns, sample rows); gold is a dict of `sql` and `database` (its path).

    Raises:
        InputError: If a file or a database is absent or damaged, nothing is asked about one, or a
            number is outside its range.
    """
    if not timeout_s > 0:  # else all SQL would be wrong
        raise InputError(f"timeout_s={timeout_s} must be a number of seconds above 0")
    items = read_questions(find_data(path, SOURCE))
    held_out_items = read_questions(find_data(held_out_path, SOURCE)) if held_out_path else []
    if db_ids is not None:
        db_ids = [db_ids] if isinstance(db_ids, str) else db_ids
        there = dict.fromkeys(item["db_id"] for item in items)
        if not db_ids or not set(db_ids) <= set(there):
            raise InputError(f"db_ids={list(db_ids)} must be some of {list(there)}, see {path}")
        items = [item for item in items if item["db_id"] in db_ids]
        held_out_items = [item for item in held_out_items if item["db_id"] in db_ids]
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
        db_id: schema_text(database, sample_rows, max_value_chars, max_description_chars)
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
        items = json.loads(read_text(path, "utf-8-sig"))
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


def schema_text(
    database: Path,
    sample_rows: int = 3,
    max_value_chars: int = 60,
    max_description_chars: int = 300,
) -> str:
    """The CREATE statement of every table of a database, its described columns, its first rows.

    Args:
        database: SQLite file.
        sample_rows: Number of rows shown of every table.
        max_value_chars: Longer values are cut.
        max_description_chars: Longer descriptions of a column are cut; 0 shows none.

    Raises:
        InputError: If the database cannot be read, or a number is below 0.
    """
    sample_rows = whole_number("sample_rows", sample_rows, 0)  # SQLite takes -1 for all
    max_value_chars = whole_number("max_value_chars", max_value_chars, 0)
    max_description_chars = whole_number("max_description_chars", max_description_chars, 0)
    tables = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
    files = _description_files(database) if max_description_chars else {}
    parts = []
    try:
        for name, ddl in all_rows(database, tables)[1]:
            if name.startswith("sqlite_"):  # SQLite's own
                continue
            quoted = name.replace('"', '""')
            columns, found = all_rows(database, f'SELECT * FROM "{quoted}" LIMIT {sample_rows:d}')
            parts.append(f"{ddl.strip()};")
            if described := _described(columns, files.get(_key(name)), max_description_chars):
                parts[-1] += f"\n/* columns of {name}:\n{described}\n*/"
            rows = [[_shown(value, max_value_chars) for value in row] for row in found]
            lines = "\n".join(" | ".join(cells) for cells in [columns, *rows])
            parts[-1] += f"\n/* first rows of {name}:\n{lines}\n*/"
    except QueryFailed as error:
        raise InputError(f"cannot read {database} ({error}); download it again") from error
    # SQLite text that is not UTF-8 arrives as lone surrogates, which no request can hold.
    return "\n\n".join(parts).encode("utf-8", "replace").decode("utf-8")


def column_descriptions(path: Path) -> dict[str, str]:
    """What BIRD says of the columns of a table.

    The published files are in several encodings, and not all of them are well formed. A file
    without the column `original_column_name`, or that is no CSV file, is named in the log and
    describes nothing.

    Args:
        path: A file of the folder `database_description` of a database.

    Returns:
        By column, in small letters: its long name if it has another one, its description, and the
        meaning of its values, in one line. Columns of which nothing is said are left out.

    Examples:
        >>> _ = Path("crossing.csv").write_text(
        ...     "original_column_name,column_name,column_description,value_description\\n"
        ...     "state,,whether it sailed,S: sailed; C: cancelled\\n"
        ... )
        >>> column_descriptions(Path("crossing.csv"))
        {'state': 'whether it sailed. Values: S: sailed; C: cancelled'}
    """
    reader = csv.DictReader(io.StringIO(_decoded(path), newline=""))
    try:
        rows = [
            {_key(k): " ".join((v or "").split()) for k, v in row.items() if k} for row in reader
        ]
    except csv.Error as error:
        _log.warning("%s is no CSV file (%s); its columns have no descriptions", path, error)
        return {}
    if rows and _DESCRIPTION_COLUMNS[0] not in rows[0]:
        _log.warning("%s has no column original_column_name; it describes nothing", path)
    found = {_key(row.get(_DESCRIPTION_COLUMNS[0], "")): _description(row) for row in rows}
    return {column: text for column, text in found.items() if column and text}


def _description(row: Mapping[str, str]) -> str:
    """One row of a description file as a line of text."""
    original, name, text, values = (row.get(key, "") for key in _DESCRIPTION_COLUMNS)
    named = name if _key(name) not in (_key(original), _key(text)) else ""
    values = f"Values: {values}" if values else ""
    said = ". ".join(part.rstrip(".") for part in (text, values) if part)
    return ": ".join(part for part in (named, said) if part).replace("*/", "* /")


def _described(columns: Sequence[str], path: Path | None, max_chars: int) -> str:
    """A line for each column of a table that has a description; "" if none has."""
    found = column_descriptions(path) if path is not None else {}
    lines = [(column, found.get(_key(column))) for column in columns]
    return "\n".join(f"{column}: {_cut(text, max_chars)}" for column, text in lines if text)


def _description_files(database: Path) -> dict[str, Path]:
    """The description files of a database, by table."""
    paths = sorted((database.parent / "database_description").glob("*.csv"))
    return {_key(path.stem): path for path in paths}


def _key(name: str) -> str:
    """A name as it is compared: the files of BIRD differ from its databases in case and blanks."""
    return name.strip().lower()


def _decoded(path: Path) -> str:
    """The text of a file in UTF-8, with or without a byte order mark, else in Windows-1252."""
    try:
        content = read_decompressed(path).getvalue()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path} ({error}); download it again") from error
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            return content.decode(encoding).removeprefix(_MARK)
        except UnicodeDecodeError:
            continue
    return content.decode("latin-1").removeprefix(_MARK)


class ExecutionAccuracy:
    """1 if predicted and gold SQL return the same set of rows, else 0, as BIRD defines it.

    SQL that fails, writes or exceeds its limits has quality 0. The rows of gold SQL are kept. Gold
    SQL may take ten times as long: if it was late once, on a busy machine, its question would have
    quality 0 from then on.

    Args:
        limits: Limits on the time and size of a query.
    """

    def __init__(self, limits: QueryLimits | None = None) -> None:
        self.limits = limits or QueryLimits()
        self._gold: dict[tuple[str, str], frozenset[Row] | None] = {}
        weakref.finalize(self, close_workers)

    def __getstate__(self) -> dict[str, Any]:
        """What it is, without the rows that it keeps."""
        return {"limits": self.limits}

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
            limits = replace(self.limits, seconds=10 * self.limits.seconds)
            try:
                self._gold[database, sql] = distinct_rows(database, sql, limits)
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
    return _cut(" ".join(str(value).split()), max_chars)


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}..."
