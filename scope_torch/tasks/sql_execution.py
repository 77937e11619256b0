"""Runs SQL that an LLM wrote on a SQLite database: it can only read, and it has limits.

Each query runs in a child process (`_sql_worker`), because SQLite cannot be interrupted inside one
function. A child that runs longer than the limit ends.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError
from scope_torch.tasks import _sql_worker

Row = tuple[Any, ...]

_HEADER = b"SQLite format 3\0"


@dataclass(frozen=True)
class QueryLimits:
    """Limits of a query.

    Args:
        seconds: Longest time to run the query and fetch its rows.
        rows: Largest number of different rows.
        bytes: Largest total size of the different rows, roughly.
        memory_bytes: Largest memory of the process that runs the query. Windows and macOS limit
            only the memory of SQLite.
    """

    seconds: float = 30.0
    rows: int = 500_000
    bytes: int = 100_000_000
    memory_bytes: int = 1 << 30


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
        >>> import sqlite3
        >>> connection = sqlite3.connect("shop.sqlite")
        >>> _ = connection.execute("CREATE TABLE item (name TEXT, price REAL)")
        >>> _ = connection.execute("INSERT INTO item VALUES ('pen', 2.5), ('ink', 8.0)")
        >>> connection.commit()
        >>> connection.close()
        >>> sorted(distinct_rows("shop.sqlite", "SELECT name FROM item WHERE price > 2"))
        [('ink',), ('pen',)]
        >>> distinct_rows("shop.sqlite", "DROP TABLE item")
        Traceback (most recent call last):
        scope_torch.tasks.sql_execution.QueryFailed: not authorized
    """
    return frozenset(_query(database, sql, limits, distinct=True)[1])


def all_rows(
    database: Path | str, sql: str, limits: QueryLimits | None = None
) -> tuple[list[str], list[Row]]:
    """Runs one SELECT of ours, within the limits on time and memory.

    Returns:
        The names of the columns, and the rows in their order.

    Raises:
        QueryFailed: As `distinct_rows`.
    """
    return _query(database, sql, limits, distinct=False)


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


def _query(
    database: Path | str, sql: str, limits: QueryLimits | None, *, distinct: bool
) -> tuple[list[str], list[Row]]:
    limits = limits or QueryLimits()
    request = {"database": str(Path(database).resolve()), "sql": sql, "distinct": distinct}
    reply = _reply(request | asdict(limits), limits.seconds)
    if "error" in reply:
        raise QueryFailed(reply["error"])
    return reply["columns"], [tuple(row) for row in reply["rows"]]


def _reply(request: dict[str, Any], seconds: float) -> dict[str, Any]:
    for again in (False, True):  # again, if the process was ended by somebody else
        worker = _Worker() if again else _idle_worker()
        try:
            reply = worker.ask(request)
        except (EOFError, OSError):
            if worker.close() in _sql_worker.LATE:
                return {"error": f"longer than {seconds} s"}
            continue
        except BaseException:
            worker.close()
            raise
        if "full" in reply:
            worker.close()
        else:
            _idle.append(worker)
        return reply
    return {"error": "the process that ran the query died, twice"}


class _Worker:
    """A child process that runs queries, one at a time."""

    def __init__(self) -> None:
        # -I -S: nothing of the user's site or folder is imported. A session of its own: Ctrl-C in
        # a terminal is for the parent. subprocess does not fork Python, so threads do not matter.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _sql_worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pipesize=1 << 20,
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Runs a query.

        Raises:
            EOFError, OSError: If the process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(_sql_worker.packed(request))
        self._process.stdin.flush()
        return _sql_worker.receive(self._process.stdout)

    def close(self) -> int:
        """Ends the process, unless it has ended; returns its exit status."""
        self._process.kill()
        self._process.communicate()
        return self._process.returncode


_idle: deque[_Worker] = deque()


def _idle_worker() -> _Worker:
    try:
        return _idle.pop()
    except IndexError:
        return _Worker()


def close_workers() -> None:
    """Ends the processes that wait for a query; the next query starts another."""
    while _idle:
        _idle.pop().close()


atexit.register(close_workers)
if hasattr(os, "register_at_fork"):  # a fork must not share the pipes of its parent
    os.register_at_fork(after_in_child=_idle.clear)
