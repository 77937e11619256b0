"""A process that runs the queries of `sql_execution`, one after the other.

It runs as a script. It imports the standard library only, so that it starts in milliseconds and
needs little of the memory that its queries are limited to. A message is a length of eight bytes
and as many bytes of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

try:
    import resource
except ImportError:  # Windows
    resource = None

_ALLOWED = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
# Functions of some builds of SQLite that load code, or reach files or pointers.
_FORBIDDEN_FUNCTIONS = frozenset(
    {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "sqlar_uncompress"}
)
_MAX_VALUE_BYTES = 1_000_000  # of a value and of a row
_MAX_SQL_BYTES = 100_000
_MAX_PATTERN_BYTES = 1_000  # of LIKE and GLOB
_PRAGMAS = (
    "query_only=ON",
    "trusted_schema=OFF",
    "temp_store=MEMORY",  # sorting must not fill a disk
)
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: _MAX_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: _MAX_SQL_BYTES,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: _MAX_PATTERN_BYTES,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_LENGTH_BYTES = 8
_LATE = 98  # exit status where no signal ends this process
LATE = {_LATE, -getattr(signal, "SIGALRM", _LATE)}  # exit statuses of a process that was too slow


def packed(message: object) -> bytes:
    """A message as bytes; a blob becomes the object `{"hex": ...}`."""
    content = json.dumps(message, default=lambda blob: {"hex": blob.hex()}).encode()
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


def receive(stream: IO[bytes]) -> Any:
    """Reads a message.

    Raises:
        EOFError: If the other side has ended.
    """
    content = _exactly(stream, int.from_bytes(_exactly(stream, _LENGTH_BYTES), "big"))
    return json.loads(content, object_hook=_blob)


def _exactly(stream: IO[bytes], length: int) -> bytes:
    content = stream.read(length)
    if len(content) < length:
        raise EOFError
    return content


def _blob(value: dict[str, Any]) -> Any:
    return bytes.fromhex(value["hex"]) if "hex" in value else value


def main() -> None:
    """Answers queries until standard input ends."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # they are for the parent, which ends this one
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_IGN)
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            request = receive(sys.stdin.buffer)
        except EOFError:
            return
        with _alarm(request["seconds"]):
            reply = packed(answer(request))
        sys.stdout.buffer.write(reply)
        sys.stdout.buffer.flush()


@contextmanager
def _alarm(seconds: float) -> Generator[None, None, None]:
    """Ends this process after so many seconds, wherever it is, and even if the parent is dead."""
    seconds = min(max(seconds, 1e-6), threading.TIMEOUT_MAX)  # an alarm after 0 never rings
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel ends the process
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
        signal.setitimer(signal.ITIMER_REAL, 0)
    else:  # Windows; SQLite lets other threads run
        timer = threading.Timer(seconds, os._exit, [_LATE])
        timer.start()
        yield
        timer.cancel()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Runs a query.

    Args:
        request: `database` (an absolute path), `sql`, and the limits `rows`, `bytes`,
            `memory_bytes`; `distinct`, whether a repeated row is returned once.

    Returns:
        `columns` and `rows`, or `error`. With `full`, the memory may be too fragmented for more.
    """
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        memory = request["memory_bytes"] if hard < 0 else min(request["memory_bytes"], hard)
        resource.setrlimit(resource.RLIMIT_AS, (memory, hard))
    try:
        return _run(request)
    except MemoryError:
        return {"error": f"more than {request['memory_bytes']} bytes of memory", "full": True}
    # ValueError: Python refuses a text with a null character or a lone surrogate.
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        return {"error": str(error)}


def _run(request: dict[str, Any]) -> dict[str, Any]:
    with (
        closing(_open(request["database"], request["memory_bytes"])) as connection,
        closing(connection.cursor()) as cursor,
    ):
        cursor.execute(request["sql"])
        if cursor.description is None:
            raise ValueError("no statement that returns rows")
        columns = [column[0] for column in cursor.description]
        if request["distinct"]:
            return {"columns": columns, "rows": list(_distinct(cursor, request))}
        return {"columns": columns, "rows": cursor.fetchall()}


def _distinct(cursor: sqlite3.Cursor, request: dict[str, Any]) -> set[Any]:
    rows: set[Any] = set()
    size = 0
    for row in cursor:
        if row in rows:
            continue
        rows.add(row)
        size += sum(len(v) if isinstance(v, str | bytes) else 8 for v in row)
        if len(rows) > request["rows"] or size > request["bytes"]:
            raise ValueError(f"more than {request['rows']} rows or {request['bytes']} bytes")
    return rows


def _open(database: str, memory_bytes: int) -> sqlite3.Connection:
    # immutable: SQLite takes no lock and writes no -wal or -shm file, so the disk may be read-only.
    # check_database makes sure that the file alone is the whole database.
    uri = Path(database).as_uri() + "?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    try:
        for pragma in (*_PRAGMAS, f"hard_heap_limit={memory_bytes}"):
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


if __name__ == "__main__":
    main()
