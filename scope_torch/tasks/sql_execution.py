"""Runs SQL that an LLM wrote on a SQLite database: it can only read, and it has limits."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError

Row = tuple[Any, ...]

_ALLOWED = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
# Functions of some builds of SQLite that load code, or reach files or pointers.
_FORBIDDEN_FUNCTIONS = frozenset(
    {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "sqlar_uncompress"}
)
_MAX_VALUE_BYTES = 1_000_000  # of a value and of a row
_MAX_SQL_BYTES = 100_000
_MAX_PATTERN_BYTES = 1_000  # of LIKE and GLOB: a match cannot be interrupted
_HEAP_BYTES = 2 << 30
_STEPS = 5_000  # steps of SQLite's virtual machine between two looks at the clock
_HEADER = b"SQLite format 3\0"
_PRAGMAS = (
    "query_only=ON",
    "trusted_schema=OFF",
    "temp_store=MEMORY",  # sorting must not fill a disk ...
    f"hard_heap_limit={_HEAP_BYTES}",  # ... or the memory; this limit is for the whole process
)
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: _MAX_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: _MAX_SQL_BYTES,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: _MAX_PATTERN_BYTES,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}


@dataclass(frozen=True)
class QueryLimits:
    """Limits of a query.

    Args:
        seconds: Longest time to run the query and fetch its rows.
        rows: Largest number of different rows.
        bytes: Largest total size of the different rows, roughly.
    """

    seconds: float = 30.0
    rows: int = 500_000
    bytes: int = 100_000_000


class QueryFailed(ValueError):
    """A query is wrong, not allowed, or beyond its limits; the message says why."""


def distinct_rows(
    database: Path | str, sql: str, limits: QueryLimits | None = None
) -> frozenset[Row]:
    """Runs one SELECT and returns its rows as a set.

    Args:
        database: SQLite file; it is not changed, and no file is written beside it.
        sql: The query.
        limits: Limits of the query.

    Raises:
        QueryFailed: If the SQL fails, returns no rows, writes, is more than one statement, or
            exceeds a limit.

    Examples:
        >>> with closing(sqlite3.connect("shop.sqlite")) as connection:
        ...     _ = connection.execute("CREATE TABLE item (name TEXT, price REAL)")
        ...     _ = connection.execute("INSERT INTO item VALUES ('pen', 2.5), ('ink', 8.0)")
        ...     connection.commit()
        >>> sorted(distinct_rows("shop.sqlite", "SELECT name FROM item WHERE price > 2"))
        [('ink',), ('pen',)]
        >>> distinct_rows("shop.sqlite", "DROP TABLE item")
        Traceback (most recent call last):
        scope_torch.tasks.sql_execution.QueryFailed: not authorized
    """
    limits = limits or QueryLimits()
    rows: set[Row] = set()
    size = 0
    with reading(database, limits) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(sql)
        if cursor.description is None:
            raise QueryFailed("no statement that returns rows")
        for row in cursor:
            if row in rows:
                continue
            rows.add(row)
            size += sum(len(v) if isinstance(v, str | bytes) else 8 for v in row)
            if len(rows) > limits.rows or size > limits.bytes:
                raise QueryFailed(f"more than {limits.rows} rows or {limits.bytes} bytes")
    return frozenset(rows)


@contextmanager
def reading(
    database: Path | str, limits: QueryLimits | None = None
) -> Generator[sqlite3.Connection, None, None]:
    """A connection that can only read, and only for `limits.seconds` from now.

    Raises:
        QueryFailed: In place of any error of SQLite in the `with` block.
    """
    limits = limits or QueryLimits()
    deadline = time.monotonic() + limits.seconds
    try:
        with closing(_open(Path(database))) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
            yield connection
    except QueryFailed:
        raise
    except sqlite3.OperationalError as error:
        late = time.monotonic() > deadline
        raise QueryFailed(f"longer than {limits.seconds} s" if late else str(error)) from error
    # ValueError: Python refuses a text with a null character or a lone surrogate.
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        raise QueryFailed(str(error)) from error
    except MemoryError as error:
        raise QueryFailed(f"more than {_HEAP_BYTES} bytes of memory") from error


def check_database(path: Path) -> None:
    """Checks that `distinct_rows` can read a file.

    Raises:
        InputError: If it is absent, not a SQLite database, or has changes in a file beside it.
    """
    try:
        with path.open("rb") as file:
            header = file.read(len(_HEADER))
    except OSError as error:
        raise InputError(f"no database {path} ({error.strerror}); download it") from error
    if header != _HEADER:
        raise InputError(f"{path} is not a SQLite database; download it again")
    for suffix in ("-wal", "-journal"):
        beside = path.with_name(path.name + suffix)
        if beside.exists() and beside.stat().st_size:
            raise InputError(
                f"{beside} holds changes that are not in the database yet; open {path.name} once "
                "with sqlite3 and close it"
            )


def _open(database: Path) -> sqlite3.Connection:
    # immutable: SQLite takes no lock and writes no -wal or -shm file, so the disk may be read-only.
    # check_database makes sure that the file alone is the whole database.
    uri = database.resolve().as_uri() + "?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    try:
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}").close()
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
    except BaseException:
        connection.close()
        raise
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    connection.set_authorizer(_authorize)
    return connection


def _authorize(action: int, _first: str | None, second: str | None, *_: str | None) -> int:
    if action not in _ALLOWED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
