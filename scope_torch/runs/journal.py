"""The journal of a run: every observation is on disk before it is used, and survives a crash."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from scope_torch.errors import InputError, cannot_write
from scope_torch.observation import Observation, Request, to_lines

logger = logging.getLogger("scope_torch.history")  # the name that users may have configured
_AT_ONCE = 250  # observations that may wait; more at a time would call the garbage collector


class Journal:
    """Append-only JSON lines, one observation each, on disk before they are used.

    Opening reads what is there. A last line cut short by a crash is dropped with a warning; damage
    anywhere else is an error, because it would mean paying for that observation again. The file
    is locked, so that two processes cannot pay for the same run.

    Args:
        path: The file; created when absent.
        durable: Whether every observation is on disk before the search goes on, for it is paid
            for. Without, up to 250 wait for `flush`, and are lost if the process is killed.

    Raises:
        InputError: If the file cannot be written, is in use, or is damaged before its last line.
    """

    def __init__(self, path: Path, durable: bool = True) -> None:
        self.path, self._durable = path, durable
        try:
            # unbuffered: nothing is left over, to be written at a time of its own, by a full disk
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
        """Takes in observations and, if durable, waits until they are on disk.

        An append that was interrupted, or ran into a full disk, leaves nothing behind: the next
        one begins where it began.

        Raises:
            InputError: If the disk takes no more; what was appended before is kept.
        """
        before = len(self._waiting)
        self._waiting.extend(observations)
        if self._durable or len(self._waiting) >= _AT_ONCE:
            try:
                self.flush()
            except BaseException:
                del self._waiting[before:]
                raise

    def flush(self) -> None:
        """Writes what waits.

        Raises:
            InputError: If the disk takes no more.
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
        """Writes what waits, if the disk takes it, closes the file and so releases the lock."""
        try:
            with contextlib.suppress(InputError):  # must not hide what ended the run
                self.flush()
        finally:
            self._file.close()

    def _read(self) -> list[Observation]:
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        tail = lines.pop()
        observations: list[Observation] = []
        at: dict[Request, int] = {}
        good_bytes = 0
        for number, line in enumerate([*lines, tail] if tail else lines, start=1):
            try:
                made = Observation.from_json(line.decode())
            except (InputError, UnicodeDecodeError) as error:
                if number < len(lines) + bool(tail):
                    raise InputError(
                        f"{self.path}: line {number} is damaged ({error}); restore the file, or "
                        "move the directory away and start anew"
                    ) from error
                self._file.truncate(good_bytes)
                logger.warning(
                    "%s: dropped line %d, cut short by a crash; it will be observed again",
                    self.path,
                    number,
                )
                return observations
            if (first := at.setdefault(made.request, number)) != number:
                raise InputError(
                    f"{self.path}: line {number} repeats the observation of line {first}; restore "
                    "the file, or move the directory away and start anew"
                )
            observations.append(made)
            good_bytes += len(line) + 1
        if tail:
            self._write(b"\n")
        return observations

    def _write(self, content: bytes) -> None:
        """All of it: a file without a buffer may take a part, when a disk is nearly full."""
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
