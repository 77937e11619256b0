"""The journal of a run: observations are on disk before they are used, and survive a crash.

Every line ends with `"crc"`: 8 hex digits, the CRC-32 of all bytes before `,"crc"`. Lines of an
early version have none, and are read before the first line with one.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from scope_torch.errors import InputError, cannot_write
from scope_torch.files import close_in_children, for_owner
from scope_torch.observation import Observation, Request, has_checksum, to_lines

try:
    from filelock import lock_descriptor
except ImportError:  # before 3.30: a search without a directory needs no lock
    lock_descriptor = None

logger = logging.getLogger(__name__)
_FLOCK = "@hhqqi4x"  # `struct flock`: type, whence, start, length (0: to the end), process
_NO_LOCKS = errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP
_MAX_WAITING = 250  # more observations at a time would start the garbage collector


class Journal:
    """A file of JSON lines, one observation each, to which lines are only appended.

    Opening the file reads it. If a crash cut the last line short, it is dropped with a warning.
    Damage anywhere else is an error, because that observation would be paid for again; a checksum
    in every line finds it. The file itself is locked, so that two processes cannot pay for the same
    run. Early versions took the same lock, so they keep away too.

    Args:
        path: The file; created if there is none.
        durable: Whether every observation is on disk before the search goes on; for observations
            that cost money. If not, up to 250 observations wait in memory for `flush`, and are lost
            if the process is killed.

    Attributes:
        recorded: The observations that were in the file when it was opened.
        lost: What had been paid for without an observation by then, see `Observation.lost`.

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
            self._file = open(  # noqa: SIM115 - closed by close()
                path, "a+b", buffering=0, opener=for_owner
            )
        except OSError as error:
            raise cannot_write(path, error) from error
        close_in_children(self._file)  # a worker of a pool lives on, and would hold the lock
        try:
            _lock(self._file.fileno(), path)
            self.recorded, self.lost = apart(self._read())
            self._size = os.fstat(self._file.fileno()).st_size
            self._is_whole = True  # False from the start of a write to its end
            self._waiting: list[Observation] = []
            self._written: Observation | None = None  # the last one
            self.before_first: Callable[[], None] | None = None  # of what is written from now on
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
            InputError: If the disk is full, or the file cannot be written or was deleted.
        """
        if not self._waiting:
            return
        self.begin()
        content = to_lines(self._waiting)
        try:
            self._check_that_it_is_there()
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
        # In one line: an interrupt comes before all of this or after it.
        size, written = self._size + len(content), self._waiting[-1]
        self._size, self._written, self._waiting, self._is_whole = size, written, [], True

    def begin(self) -> None:
        """Does what must be done before the first observation is written; once.

        Raises:
            InputError: If the disk is full or cannot be written.
        """
        if self.before_first is not None:
            self.before_first()
            self.before_first = None

    @property
    def last(self) -> Observation | None:
        """The observation that was appended last; None if none was."""
        return self._waiting[-1] if self._waiting else self._written

    def close(self) -> None:
        """Writes the observations that wait if it can, closes the file, and releases its lock."""
        try:
            with contextlib.suppress(InputError):  # must not hide what ended the run
                self.flush()
        finally:
            self._file.close()

    def _check_that_it_is_there(self) -> None:
        """Writing to a deleted file goes well, but all that is written there is lost."""
        if os.fstat(self._file.fileno()).st_nlink == 0:
            raise InputError(
                f"{self.path.parent} was deleted during the search, and its observations with it; "
                "restore it, or run the same command again to begin anew, and leave the directory "
                "in place until the search ends"
            )

    def _read(self) -> list[Observation]:
        """The observations in the file; mends its last line."""
        self._file.seek(0)
        lines = self._file.read().split(b"\n")
        if ends_with_newline := not lines[-1]:
            lines.pop()
        observations, damage = _parse(lines)
        if damage is not None and len(observations) < len(lines) - 1:
            raise _damaged(self.path, damage) from damage
        _refuse_repeats(self.path, apart(observations)[0])
        if damage is not None:
            self._drop_last(lines)
        elif not ends_with_newline:
            self._write(b"\n")
        return observations

    def _drop_last(self, lines: Sequence[bytes]) -> None:
        self._file.truncate(sum(len(line) + 1 for line in lines[:-1]))
        logger.warning(
            "%s: dropped line %d, cut short by a crash or damaged; it will be observed again",
            self.path,
            len(lines),
        )

    def _write(self, content: bytes) -> None:
        """Writes all of `content`: without a buffer, a nearly full disk may take only a part."""
        while content:
            content = content[self._file.write(content) :]


def apart(entries: Iterable[Observation]) -> tuple[list[Observation], list[Observation]]:
    """The observations among the entries of a journal; and what was `Observation.lost`."""
    kept: tuple[list[Observation], list[Observation]] = [], []
    for entry in entries:
        kept[entry.lost is not None].append(entry)
    return kept


def lost_in(folder: Path) -> list[Observation]:
    """What was paid for without an observation, in all journals of a directory.

    Raises:
        InputError: If a journal cannot be read, or is damaged.
    """
    entries = map(_read_entries, sorted(folder.rglob("journal.jsonl")))
    return [entry for of_one in entries for entry in apart(of_one)[1]]


def read_journal(path: Path) -> list[Observation]:
    """The observations in a journal that another process may be writing; none without the file.

    A last line without its end is left out: it is being written, or was cut short by a crash.

    Raises:
        InputError: If the file cannot be read, or is damaged.
    """
    return apart(_read_entries(path))[0]


def _read_entries(path: Path) -> list[Observation]:
    """See `read_journal`; with what was lost.

    Raises:
        InputError: If the file cannot be read, or is damaged.
    """
    try:
        content = _read_locked(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; make it readable") from error
    observations, damage = _parse(content.split(b"\n")[:-1])
    if damage is not None:
        raise _damaged(path, damage) from damage
    _refuse_repeats(path, apart(observations)[0])
    return observations


def is_locked(path: Path) -> bool:
    """Whether a search holds the journal.

    On Linux this asks and takes nothing, so that a search that starts is not kept out; a search of
    an early version is not seen. Elsewhere it takes the lock for a moment.

    Raises:
        InputError: If the file cannot be opened or asked.
    """
    # NFS locks only files that are open for writing.
    mode = "r+b" if os.access(path, os.W_OK) else "rb"
    try:
        with open(path, mode) as file:
            marked = _ofd_lock(file.fileno(), "F_OFD_GETLK")
            return not _taken(file.fileno(), tries=3) if marked is None else marked
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:  # then no search has locked it
            return False
        raise InputError(
            f"cannot tell whether {path} is in use: {error.strerror}; make it readable"
        ) from error


def _read_locked(path: Path) -> bytes:
    """The content of a file whose first byte may be locked, which Windows then lets nobody read."""
    try:
        return path.read_bytes()
    except PermissionError:
        with open(path, "rb", buffering=0) as file:
            file.seek(1)
            return b"{" + file.read()  # every line begins with a brace


def _lock(fileno: int, path: Path) -> None:
    try:
        if not _taken(fileno, tries=20):
            raise InputError(
                f"{path} is in use by another process; wait for it or stop it (on Slurm: squeue, "
                "scancel)"
            )
        _ofd_lock(fileno, "F_OFD_SETLK")
    except OSError as error:
        raise InputError(
            f"{path} cannot be locked: {error.strerror}; choose a place on another disk"
        ) from error


def _taken(fileno: int, tries: int) -> bool:
    """Takes the lock of a file; tries again, because `is_locked` holds it for a moment."""
    if lock_descriptor is None:
        raise InputError("filelock is too old to lock a journal: pip install 'filelock>=3.30'")
    while not lock_descriptor(fileno, blocking=False):
        tries -= 1
        if not tries:
            return False
        time.sleep(0.002)
    return True


def _ofd_lock(fileno: int, command: str) -> bool | None:
    """Marks a file as locked (F_OFD_SETLK), or asks for the mark (F_OFD_GETLK); takes no `flock`.

    An open file description holds the mark, as it holds the lock of `flock`, which cannot be asked.

    Returns:
        Whether another one holds the mark; None if the system or the disk has no such marks.
    """
    try:
        import fcntl

        number = getattr(fcntl, command)  # of Linux
        answer = fcntl.fcntl(fileno, number, struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0))
        return struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK
    except (ImportError, AttributeError, OSError):
        return None


def _parse(lines: Iterable[bytes]) -> tuple[list[Observation], InputError | None]:
    """The observations before the first damaged line, and its damage; None without damage."""
    observations: list[Observation] = []
    checked = False
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode()
            if checked and not has_checksum(text):
                raise InputError(f"without the checksum that earlier lines have: {text[:80]!r}")
            observations.append(Observation.from_json(text))
        except (InputError, UnicodeDecodeError) as error:
            return observations, InputError(f"line {number} is damaged ({error})")
        checked = checked or has_checksum(text)
    return observations, None


def _refuse_repeats(path: Path, observations: Sequence[Observation]) -> None:
    first_line: dict[Request, int] = {}
    for number, observation in enumerate(observations, start=1):
        if (first := first_line.setdefault(observation.request, number)) != number:
            raise _damaged(path, f"line {number} repeats the observation of line {first}")


def _damaged(path: Path, reason: object) -> InputError:
    return InputError(
        f"{path}: {reason}; restore the file, or move the directory away and start anew"
    )
