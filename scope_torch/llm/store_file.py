"""The SQLite file of a response store."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError
from scope_torch.llm.chat import Completion

SCHEMA_VERSION = 2  # 1 had no checksums
_APPLICATION_ID = 0x53434F50  # "SCOP", in the header of the SQLite file
_BUSY_S = 60.0
_COLUMNS = tuple(field.name for field in fields(Completion))
_LIST = ", ".join(_COLUMNS)
_REPLY = f"key, model, stored_at, {_LIST}"
_FAILURE = "key, model, failed_at, cost_usd, reason"
_SCHEMA = (
    f"CREATE TABLE replies (key TEXT PRIMARY KEY, model TEXT, stored_at REAL, {_LIST}, checksum)",
    "CREATE TABLE failures (key TEXT, model TEXT, failed_at REAL, cost_usd REAL, reason TEXT, "
    "checksum)",
    "CREATE TABLE claims (key TEXT PRIMARY KEY, owner TEXT, claimed_at REAL)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_FROM_VERSION_1 = (
    "ALTER TABLE replies ADD COLUMN checksum",
    "ALTER TABLE failures ADD COLUMN checksum",
    f"UPDATE replies SET checksum = checksum_of({_REPLY})",
    f"UPDATE failures SET checksum = checksum_of({_FAILURE})",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class StoreFile:
    """Replies, failed calls that cost something, and claims on calls that are being paid for.

    Threads and processes may share the file. It contains hashes of requests, not their text. Every
    reply and failure has a checksum. A file of version 1, which had none, gets them when it is
    opened. A damaged file is refused.

    Args:
        path: The file; made with its folder if there is none.

    Raises:
        InputError: If the file cannot be used, here or in any method.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        with self._usable():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Replies are for their owner, also in the files that SQLite puts beside this one. A
            # file that is there is not opened: to close it would release SQLite's locks.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
            # Autocommit: only _transaction begins and ends transactions.
            self._db = sqlite3.connect(
                self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        try:
            with self._usable():
                self._db.create_function("checksum_of", -1, checksum_of, deterministic=True)
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def read(self, key: str) -> Completion | None:
        """The reply stored under `key`; None if there is none."""
        with self._usable():
            row = self._one(f"SELECT {_REPLY}, checksum FROM replies WHERE key = ?", key)
        if row is None:
            return None
        self._check(row)
        values: dict[str, Any] = dict(zip(_COLUMNS, row[3:-1], strict=True))
        if wrong := _wrong(values):
            raise self._damaged(key, f"{wrong}={values[wrong]!r}")
        values["estimated"] = bool(values["estimated"])  # SQLite has no truth values
        return Completion(**values)

    def claim(self, key: str, owner: str, is_stale: Callable[[str, float], bool]) -> bool:
        """Claims a call for `owner`, unless another owner is paying for it.

        Args:
            key: Key of the call.
            owner: The store that wants to pay.
            is_stale: Takes the owner and the time (Unix) of a claim; returns whether that owner
                will not finish.

        Returns:
            Whether `owner` may pay.
        """
        with self._transaction(durable=False):
            row = self._one("SELECT owner, claimed_at FROM claims WHERE key = ?", key)
            if row is not None and row[0] != owner and not is_stale(*row):
                return False
            self._do("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", key, owner, time.time())
            return True

    def renew(self, key: str, owner: str) -> None:
        """Shows that the owner of a claim still pays for the call."""
        with self._transaction(durable=False):
            renewed = "UPDATE claims SET claimed_at = ? WHERE key = ? AND owner = ?"
            self._do(renewed, time.time(), key, owner)

    def release(self, key: str, owner: str) -> None:
        """Gives a claim back."""
        with self._transaction(durable=False):
            self._drop_claim(key, owner)

    def keep(self, key: str, owner: str, model: str, completion: Completion) -> None:
        """Stores a reply, and ends the claim."""
        row = key, model, time.time(), *astuple(completion)
        with self._transaction():
            # If there is a reply, another owner took over the claim of this one.
            if self._one("SELECT 1 FROM replies WHERE key = ?", key):
                self._add_failure(key, model, completion.cost_usd, "paid twice")
            else:
                self._insert("replies", *row)
            self._drop_claim(key, owner)

    def fail(self, key: str, owner: str, model: str, cost_usd: float, reason: str) -> None:
        """Stores the cost of a call without a reply, and ends the claim."""
        with self._transaction():
            if cost_usd > 0:
                self._add_failure(key, model, cost_usd, reason)
            self._drop_claim(key, owner)

    def total_usd(self) -> float:
        """Cost in USD of all replies and failures in the file."""
        costs: list[float] = []
        for columns, table in ((_REPLY, "replies"), (_FAILURE, "failures")):
            with self._usable():
                rows = self._db.execute(f"SELECT cost_usd, {columns}, checksum FROM {table}")
                for usd, *row in rows:
                    self._check(row)
                    costs.append(usd)
        return math.fsum(costs)

    def close(self) -> None:
        """Closes the file; it cannot be used after that."""
        with self._lock:
            self._db.close()

    def _prepare(self) -> None:
        """Makes the tables of a new file; refuses a file of another program or version."""
        with self._transaction():
            version = self._number("PRAGMA user_version")
            ours = self._number("PRAGMA application_id") == _APPLICATION_ID
            if not ours and self._number("SELECT COUNT(*) FROM sqlite_master"):
                raise InputError(
                    f"{self.path} belongs to another program; name another file for the replies"
                )
            if not ours:
                for statement in _SCHEMA:
                    self._do(statement)
            elif version == 1:
                for statement in _FROM_VERSION_1:
                    self._do(statement)
            elif version != SCHEMA_VERSION:
                raise InputError(
                    f"{self.path} is of version {version}, this program reads version "
                    f"{SCHEMA_VERSION}; name another file for the replies"
                )
        self._do("PRAGMA journal_mode = WAL")  # last, because it changes the file
        if (found := self._one("PRAGMA integrity_check(1)")) != ("ok",):
            raise sqlite3.DatabaseError(f"malformed: {found and found[0]}")

    def _add_failure(self, key: str, model: str, cost_usd: float, reason: str) -> None:
        self._insert("failures", key, model, time.time(), cost_usd, reason)

    def _insert(self, table: str, *row: Any) -> None:
        """Adds a row with its checksum."""
        marks = ", ".join("?" * len(row))
        self._do(f"INSERT INTO {table} VALUES ({marks}, checksum_of({marks}))", *row, *row)

    def _check(self, row: Sequence[Any]) -> None:
        """Raises InputError if a row is not the one that was stored."""
        *values, checksum = row
        if checksum_of(*values) != checksum:
            raise self._damaged(values[0], "its checksum is wrong")

    def _damaged(self, key: object, reason: str) -> InputError:
        return InputError(
            f"{self.path}: the row with key {key!r} is damaged ({reason}); put a copy of the file "
            "in its place, or delete the row, and its call is paid for again"
        )

    def _drop_claim(self, key: str, owner: str) -> None:
        self._do("DELETE FROM claims WHERE key = ? AND owner = ?", key, owner)

    def _do(self, statement: str, *values: object) -> None:
        self._db.execute(statement, values)

    def _one(self, query: str, *values: object) -> tuple[Any, ...] | None:
        return self._db.execute(query, values).fetchone()

    def _number(self, query: str) -> int:
        row = self._one(query)
        return int(row[0]) if row else 0

    @contextlib.contextmanager
    def _transaction(self, durable: bool = True) -> Generator[None, None, None]:
        """A transaction: all of it or nothing; if `durable`, on the disk when it ends."""
        with self._usable():
            self._do(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._do("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # SQLite may have rolled back already
                    self._do("ROLLBACK")
                raise
            self._do("COMMIT")

    @contextlib.contextmanager
    def _usable(self) -> Generator[None, None, None]:
        """Lets one thread in at a time; turns errors of SQLite and of the disk into InputError."""
        with self._lock:
            try:
                yield
            # UnicodeDecodeError: SQLite quotes a damaged schema in its message.
            except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
                raise InputError(f"{self.path}: {error}; {_mend(error)}") from None


def checksum_of(*values: Any) -> str:
    """SHA-256 of the values of a row as SQLite returns them."""
    return hashlib.sha256(ascii(values).encode()).hexdigest()


def _wrong(values: Mapping[str, Any]) -> str | None:
    """Name of a value that no reply can have; None if there is none."""
    for name, value in values.items():
        if name in ("text", "finish_reason"):
            right = isinstance(value, str)
        elif name.endswith("_tokens") or name == "estimated":
            right = type(value) is int and value >= 0
        else:
            right = type(value) in (int, float) and math.isfinite(value)
            right = right and (value >= 0 or name == "latency_s")
        if not right:
            return name
    return None


def _mend(error: Exception) -> str:
    """Advice for the user, by the words of an error."""
    text = str(error)
    if isinstance(error, OSError):  # not the path, which may contain any of these words
        text = error.strerror or text
    if "locked" in text:
        return "another process holds it; end that one, or name another file for the replies"
    if any(sign in text for sign in ("malformed", "not a database", "no such", "decode")):
        return "it is damaged, or not a file of replies; move it away, or name another file"
    if "full" in text or "disk I/O" in text or "No space" in text:
        return "make room on the disk and run again: what was stored is kept"
    if "closed database" in text:
        return "the store was closed; make a new one"
    return "name a file that can be written"
