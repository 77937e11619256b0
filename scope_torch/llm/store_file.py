"""The SQLite file of a response store."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError
from scope_torch.llm.chat import Completion

SCHEMA_VERSION = 1
_APPLICATION_ID = 0x53434F50  # "SCOP"; SQLite keeps it in the header of the file
_BUSY_S = 60.0
_COLUMNS = tuple(field.name for field in fields(Completion))
_LIST = ", ".join(_COLUMNS)
_SCHEMA = (
    f"CREATE TABLE replies (key TEXT PRIMARY KEY, model TEXT, stored_at REAL, {_LIST})",
    "CREATE TABLE failures (key TEXT, model TEXT, failed_at REAL, cost_usd REAL, reason TEXT)",
    "CREATE TABLE claims (key TEXT PRIMARY KEY, owner TEXT, claimed_at REAL)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class StoreFile:
    """Replies, failures that cost something, and claims on calls that are being paid.

    Threads and processes may share it. No request is in it, only its hash.

    Args:
        path: The file; it and its folder are made if there are none.

    Raises:
        InputError: If the file cannot be used, here or in any method.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        with self._usable():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # autocommit: transactions begin and end where _transaction says
            self._db = sqlite3.connect(
                self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        try:
            with self._usable():
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def read(self, key: str) -> Completion | None:
        """The reply stored under `key`."""
        with self._usable():
            row = self._one(f"SELECT {_LIST} FROM replies WHERE key = ?", key)
        if row is None:
            return None
        values: dict[str, Any] = dict(zip(_COLUMNS, row, strict=True))
        values["estimated"] = bool(values["estimated"])  # SQLite has no truth values
        return Completion(**values)

    def claim(self, key: str, owner: str, is_stale: Callable[[str, float], bool]) -> bool:
        """Whether `owner` may pay for `key`: nobody else is doing so.

        Args:
            key: The call.
            owner: Who asks.
            is_stale: Of who claimed a call and when (Unix time): whether to give them up.
        """
        with self._transaction(durable=False):
            row = self._one("SELECT owner, claimed_at FROM claims WHERE key = ?", key)
            if row is not None and row[0] != owner and not is_stale(*row):
                return False
            self._do("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", key, owner, time.time())
            return True

    def release(self, key: str, owner: str) -> None:
        """Gives a claim back."""
        with self._transaction(durable=False):
            self._drop_claim(key, owner)

    def keep(self, key: str, owner: str, model: str, completion: Completion) -> None:
        """Stores a reply, and ends the claim."""
        values = astuple(completion)
        marks = ", ".join("?" * (3 + len(values)))
        with self._transaction():
            if self._one("SELECT 1 FROM replies WHERE key = ?", key):  # our claim was taken over
                usd = completion.cost_usd
                self._add_failure(key, model, usd, "paid twice")
            else:
                insert = f"INSERT INTO replies VALUES ({marks})"
                self._do(insert, key, model, time.time(), *values)
            self._drop_claim(key, owner)

    def fail(self, key: str, owner: str, model: str, cost_usd: float, reason: str) -> None:
        """Stores what a call without a reply cost, and ends the claim."""
        with self._transaction():
            if cost_usd > 0:
                self._add_failure(key, model, cost_usd, reason)
            self._drop_claim(key, owner)

    def total_usd(self) -> float:
        """What everything in the file cost, in USD."""
        costs = "SELECT cost_usd FROM replies UNION ALL SELECT cost_usd FROM failures"
        with self._usable():
            row = self._one(f"SELECT TOTAL(cost_usd) FROM ({costs})")
        return float(row[0]) if row else 0.0

    def close(self) -> None:
        """Closes the file; it cannot be used after that."""
        with self._lock:
            self._db.close()

    def _prepare(self) -> None:
        """Makes the tables of a new file; refuses another program's, or another version's."""
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
            elif version != SCHEMA_VERSION:
                raise InputError(
                    f"{self.path} is of version {version}, this program reads version "
                    f"{SCHEMA_VERSION}; name another file for the replies"
                )
        self._do("PRAGMA journal_mode = WAL")  # after all else: it changes the file

    def _add_failure(self, key: str, model: str, cost_usd: float, reason: str) -> None:
        row = key, model, time.time(), cost_usd, reason
        self._do("INSERT INTO failures VALUES (?, ?, ?, ?, ?)", *row)

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
        """All or nothing; `durable` ones are on the disk when it ends."""
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
        """One thread at a time; errors of SQLite and of the disk as InputError."""
        with self._lock:
            try:
                yield
            except (sqlite3.Error, OSError) as error:
                raise InputError(f"{self.path}: {error}; {_mend(error)}") from None


def _mend(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError):  # without the path, which may hold any of these words
        text = error.strerror or text
    if "locked" in text:
        return "another process holds it; end that one, or name another file for the replies"
    if any(sign in text for sign in ("malformed", "not a database", "no such", "decode")):
        return "it is damaged, or no file of replies; move it away, or name another file"
    if "full" in text or "disk I/O" in text or "No space" in text:
        return "make room on the disk and run again: what was stored is kept"
    if "closed database" in text:
        return "the store was closed; make a new one"
    return "name a file that can be written"
