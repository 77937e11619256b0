"""Observations, the ledger of a run, and the journal that survives a crash."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scope_torch.errors import InputError

try:
    import orjson
except ImportError:  # the standard library's takes ten times as long
    orjson = None

logger = logging.getLogger(__name__)
_encode = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode
_AT_ONCE = 250  # observations that may wait; more at a time would call the garbage collector


class Request(NamedTuple):
    """A (theta, query) pair to observe; `replicate` counts earlier observations of the pair."""

    theta: tuple[int, ...]
    query: int
    replicate: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """What running configuration theta on a query gave.

    Args:
        theta: Codes of the configuration.
        query: Index of the query in [0, Q).
        cost_usd: y_c, in USD.
        quality: y_s, in [0, 1].
        replicate: How often the pair had been observed before in this run.
        latency_s: Seconds the system took, where known.
        module_cost_usd: Cost of each module in USD, where known.
        module_tokens: (prompt, completion) tokens of each module, where known.

    Raises:
        InputError: If the cost is negative or not finite, or the quality outside [0, 1].
    """

    theta: tuple[int, ...]
    query: int
    cost_usd: float
    quality: float
    replicate: int = 0
    latency_s: float | None = None
    module_cost_usd: tuple[float, ...] | None = None
    module_tokens: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta", tuple(map(int, self.theta)))
        object.__setattr__(self, "cost_usd", float(self.cost_usd))  # numpy and torch scalars too
        object.__setattr__(self, "quality", float(self.quality))
        if not 0 <= self.cost_usd < math.inf:
            raise InputError(
                f"cost_usd={self.cost_usd} at theta={list(self.theta)}, query={self.query} must be "
                "a number >= 0 (USD)"
            )
        if not 0 <= self.quality <= 1:
            raise InputError(
                f"quality={self.quality} at theta={list(self.theta)}, query={self.query} must lie "
                "in [0, 1]; rescale it"
            )

    @property
    def request(self) -> Request:
        """The pair observed."""
        return Request(self.theta, self.query, self.replicate)

    def to_json(self) -> str:
        """One line of JSON without the fields that are unknown."""
        return _to_lines([self]).decode().rstrip("\n")

    @classmethod
    def from_json(cls, line: str) -> Observation:
        """Inverse of `to_json`.

        Raises:
            InputError: If the line is not a journaled observation.
        """
        try:
            values: dict[str, Any] = json.loads(line)
            values["theta"] = tuple(_count(code) for code in values["theta"])
            for name in ("query", "replicate"):
                values[name] = _count(values.get(name, 0 if name == "replicate" else None))
            for name in ("cost_usd", "quality"):
                values[name] = _amount(values[name])
            if values.get("latency_s") is not None:
                values["latency_s"] = _amount(values["latency_s"])
            if values.get("module_cost_usd") is not None:
                values["module_cost_usd"] = tuple(map(_amount, values["module_cost_usd"]))
            if values.get("module_tokens") is not None:
                values["module_tokens"] = tuple(
                    (_count(p), _count(c)) for p, c in values["module_tokens"]
                )
            return cls(**values)
        except InputError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"not an observation: {line[:80]!r}") from error
        except (OverflowError, RecursionError) as error:  # numbers or nestings without end
            raise InputError(f"not an observation: {line[:80]!r}") from error


def _to_lines(observations: Iterable[Observation]) -> bytes:
    """Lines of JSON, all at once: for each alone it takes several times as long."""
    content = _dumps([_known(o) for o in observations])[1:-1]
    content = content.replace(b"},{", b"}\n{")  # no value holds text or an object
    return content + b"\n" if content else b""


def _known(o: Observation) -> dict[str, Any]:
    """Field by field, which takes a third of the time of a loop over their names."""
    known: dict[str, Any] = {
        "theta": o.theta,
        "query": o.query,
        "cost_usd": o.cost_usd,
        "quality": o.quality,
        "replicate": o.replicate,
    }
    if o.latency_s is not None:
        known["latency_s"] = o.latency_s
    if o.module_cost_usd is not None:
        known["module_cost_usd"] = o.module_cost_usd
    if o.module_tokens is not None:
        known["module_tokens"] = o.module_tokens
    return known


def _dumps(known: list[dict[str, Any]]) -> bytes:
    if orjson is not None:
        with contextlib.suppress(TypeError):  # a whole number of more than 64 bits
            content = orjson.dumps(known)
            if b"null" not in content:  # what it makes of numbers that are not finite
                return content
    return _encode(known).encode()


def _count(value: Any) -> int:
    """A whole number as it stands in JSON: neither true, nor 1.5, nor text."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _amount(value: Any) -> float:
    """A number as it stands in JSON; what it may be is checked where it is used."""
    if type(value) not in (int, float):
        raise ValueError(f"{value!r} is no number")
    return float(value)


class History:
    """The observations of a run in the asked order, append-only, and what they cost."""

    def __init__(self) -> None:
        self._observations: list[Observation] = []
        self.spend_usd = 0.0

    def append(self, observation: Observation) -> None:
        """Adds an observation and its cost."""
        self._observations.append(observation)
        self.spend_usd += observation.cost_usd

    def __len__(self) -> int:
        return len(self._observations)

    def __iter__(self) -> Iterator[Observation]:
        return iter(self._observations)

    def __getitem__(self, t: int) -> Observation:
        return self._observations[t]


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
        content = _to_lines(self._waiting)
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


def cannot_write(path: Path, error: OSError) -> InputError:
    """What to tell the user about a file that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        mend = "make room, and the same command goes on where this one stopped"
    else:
        mend = "make it writable, or choose another output_dir"
    return InputError(f"cannot write {path}: {error.strerror or error}; {mend}")


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
