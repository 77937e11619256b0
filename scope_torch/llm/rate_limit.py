"""Keeps calls below the rate limits of an endpoint."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable


class TokenBucket:
    """Limits an amount per minute, of requests or tokens; `take` waits when it is used up.

    The bucket fills at a steady rate, up to the amount of `burst_s` seconds. So no minute sees more
    than the limit plus this burst. A larger amount passes when the bucket is full, and leaves it in
    debt. The bucket belongs to no event loop, so several may share it.

    Args:
        per_minute: Amount that may pass in a minute; None for no limit.
        burst_s: The bucket holds the amount of so many seconds, and at least 1.
        clock: Returns the time in seconds.
        sleep: Waits for a number of seconds.

    Examples:
        >>> waits = []
        >>> async def sleep(seconds):
        ...     waits.append(round(seconds, 3))
        ...     raise InterruptedError
        >>> bucket = TokenBucket(60, clock=lambda: 0.0, sleep=sleep)
        >>> asyncio.run(bucket.take(1))  # passes at once
        >>> asyncio.run(bucket.take(1))
        Traceback (most recent call last):
        InterruptedError
        >>> waits
        [1.0]
    """

    def __init__(
        self,
        per_minute: float | None,
        *,
        burst_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._per_s = None if per_minute is None else per_minute / 60
        self._capacity = max(1.0, (self._per_s or 0.0) * burst_s)
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._content = self._capacity
        self._filled_at = clock()

    async def take(self, amount: float) -> None:
        """Waits until `amount` may pass."""
        while (wait_s := self._try(amount)) > 0:
            await self._sleep(wait_s)

    def give_back(self, amount: float) -> None:
        """Corrects an earlier `take` that took `amount` too much, or too little if negative."""
        with self._lock:
            self._content += amount  # the next take() removes what exceeds the capacity

    def _try(self, amount: float) -> float:
        """Takes `amount` and returns 0, or returns how long to wait before trying again."""
        if self._per_s is None:
            return 0.0
        with self._lock:
            now = self._clock()
            filled = self._content + (now - self._filled_at) * self._per_s
            self._content, self._filled_at = min(filled, self._capacity), now
            missing = min(amount, self._capacity) - self._content
            # A rounding error must not lead to a wait that is too short for the clock to notice.
            if missing > 1e-9 * self._capacity:
                return max(missing / self._per_s, 1e-3)
            self._content -= amount
            return 0.0
