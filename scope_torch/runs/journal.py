"""The journal of a run: observations are on disk before they are used, and survive a crash."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from scope_torch.errors import InputError, cannot_write
from scope_torch.observation import Observation, Request, to_lines

logger = logging.getLogger("scope_torch.history")  # users may have configured this name
_MAX_WAITING = 250  # more observations at a time would start the garbage collector


class Journal:
    """A file of JSON lines, one observation each, to which lines are only appended.

    Opening the file reads it. If a crash cut the last line short, it is dropped with a warning.
    Damage anywhere else is an error, because that observation would be paid for again. The file is
    locked, so that two processes cannot pay for the same run.

    Args:
        path: The file; created if there is none.
        durable: Whether every observation is on disk before the search goes on; for observations
            that cost money. If not, up to 250 observations wait in memory for `flush`, and are lost
            if the process is killed.

    Attributes:
        recorded: The observations that were in the file when it was opened.

    Raises:
        InputError: If the file cannot be written, is in use, or is damaged before its last line.

    Examples:
        >>> with contextlib.closing(Journal(Path("journal.jsonl"))) as journal:
        ...     journal.append([Observation(theta=(0, 2), query=5, cost_usd=0.01, quality=1.0)])
        >>> with contextlib.closing(Journal(Path("journal.jsonl"))) as journal:
        ...     [observation.request for observation in journal.recorded]
        [Request(theta=(0, 2), query=5, replicate=0)]
    """

    def __init__(self, path: Path, durable: bool = True) -> None:
        self.path, self._durable = path, durable
        try:
            # A buffer could keep a part that a full disk refuses, and write it at a later time.
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise cannot_write(path, error) from error
        try:
            _lock(self._file.fileno(), path)
            self.recorded = self._read()
            self._size = os.fstat(self._file.fileno()).st_size
            self._is_whole = True  # False from the start of a write to its end
            self._waiting: list[Observation] = []
        except BaseException:
            self._file.close()
            raise

    def append(self, observations: Iterable[Observation]) -> None:
        """Adds observations and, if the journal is durable, waits until they are on disk.

        An append that is interrupted or meets a full disk leaves nothing in the file.

        Raises:
            InputError: If the disk is full; observations appended earlier are kept.
        """
        before = len(self._waiting)
        self._waiting.extend(observations)
        if self._durable or len(self._waiting) >= _MAX_WAITING:
            try:
                self.flush()
            except BaseException:
                del self._waiting[before:]
                raise

    def flush(self) -> None:
        """Writes the observations that wait in memory.

        Raises:
            InputError: If the disk is full or the file cannot be written.
        """
        if not self._waiting:
            return
        content = to_lines(self._waiting)
        try:
            if not self._is_whole:
                self._file.truncate(self._size)
            self._is_whole = False
            self._write(content)
            if self._durable:
                os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._size)
            raise cannot_write(self.path, error) from error
        self._size, self._waiting = self._size + len(content), []
        self._is_whole = True

    def close(self) -> None:
        """Writes the observations that wait if it can, closes the file, and releases its lock."""
        try:
            with contextlib.suppress(InputError):  # must not hide what ended the run
                self.flush()
        finally:
            self._file.close()

    def _read(self) -> list[Observation]:
        """The observations in the file; mends its last line."""
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        if ends_with_newline := not lines[-1]:
            lines.pop()
        observations: list[Observation] = []
        first_line: dict[Request, int] = {}
        for number, line in enumerate(lines, start=1):
            try:
                observation = Observation.from_json(line.decode())
            except (InputError, UnicodeDecodeError) as error:
                if number < len(lines):
                    raise self._damaged(f"line {number} is damaged ({error})") from error
                self._drop_last(lines)
                return observations
            if (first := first_line.setdefault(observation.request, number)) != number:
                raise self._damaged(f"line {number} repeats the observation of line {first}")
            observations.append(observation)
        if not ends_with_newline:
            self._write(b"\n")
        return observations

    def _drop_last(self, lines: Sequence[bytes]) -> None:
        self._file.truncate(sum(len(line) + 1 for line in lines[:-1]))
        logger.warning(
            "%s: dropped line %d, cut short by a crash; it will be observed again",
            self.path,
            len(lines),
        )

    def _damaged(self, reason: str) -> InputError:
        return InputError(
            f"{self.path}: {reason}; restore the file, or move the directory away and start anew"
        )

    def _write(self, content: bytes) -> None:
        """Writes all of `content`: without a buffer, a nearly full disk may take only a part."""
        while content:
            content = content[self._file.write(content) :]


def _lock(fileno: int, path: Path) -> None:
    with contextlib.suppress(ImportError):
        import fcntl  # POSIX only

        try:
            fcntl.flock(fileno, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{path} is in use by another process; wait for it or stop it"
            ) from error
        except OSError as error:
            raise InputError(
                f"{path} cannot be locked: {error.strerror}; choose an output_dir on another disk"
            ) from error
