"""A search ends when its time is over, as it does when its money is spent."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from numbers import Real

from scope_torch.errors import InputError

TIME_IS_OVER = "time limit"  # why a search ended, in `result.json`
_PARTS = re.compile(r"(\d+(?:\.\d+)?)\s*(days?|d|hours?|h|minutes?|min|m|seconds?|s)\s*")
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


class Deadline:
    """When no further call starts; the calls in flight are waited for.

    It is that of one process: what is in a journal is read again first, and each process has the
    whole time.

    Args:
        limit: Such as "2h", "1h 30min", "45s", or a number of seconds; None for no limit.
        clock: Returns the time in seconds.

    Attributes:
        limit: As given.

    Raises:
        InputError: If it is no time above 0.

    Examples:
        >>> times = iter([0.0, 5399.0, 5400.0])
        >>> deadline = Deadline("1h 30min", clock=lambda: next(times))
        >>> deadline.is_over, deadline.is_over
        (False, True)
    """

    def __init__(
        self,
        limit: str | float | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.limit = limit
        self._clock = (lambda: time.monotonic()) if clock is None else clock
        self._seconds = math.inf if limit is None else _seconds_of(limit)
        self.begin()

    def begin(self) -> None:
        """The time runs from now on."""
        self._ends_at = self._clock() + self._seconds

    @property
    def is_over(self) -> bool:
        """Whether the time has passed."""
        return self._seconds < math.inf and self._clock() >= self._ends_at


def deadline_of(limit: Deadline | str | float | None) -> Deadline:
    """A deadline as it is; a time that begins now, as one.

    Raises:
        InputError: See `Deadline`.
    """
    return limit if isinstance(limit, Deadline) else Deadline(limit)


def _seconds_of(limit: object) -> float:
    seconds = math.nan
    if isinstance(limit, Real) and not isinstance(limit, bool):  # numpy's too
        seconds = float(limit)
    elif isinstance(limit, str):
        parts = _PARTS.findall(limit)
        if parts and not _PARTS.sub("", limit.strip()):
            seconds = math.fsum(float(number) * _SECONDS[unit[0]] for number, unit in parts)
        elif re.fullmatch(r"\d+(\.\d+)?", limit):
            seconds = float(limit)
    if not 0 < seconds < math.inf:
        raise InputError(
            f"time_limit={limit!r:.80} must be a time above 0, such as '2h', '1h 30min', '45s', or "
            "a number of seconds"
        )
    return seconds
