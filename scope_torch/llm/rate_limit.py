"""Keeping below the rates at which an endpoint refuses calls."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable


class TokenBucket:
    """Lets an amount per minute through; those who want more wait.

    It fills at a steady rate up to what comes in `burst_s`, so that no minute sees more than the
    limit and a burst. An amount larger than that goes through once the bucket is full and leaves
    it in debt. It belongs to no event loop, so several may share it.

    Args:
        per_minute: What may pass in a minute: requests, or tokens; None for no limit.
        burst_s: Seconds of it that may pass at once; at least an amount of 1.
        clock: Seconds that pass.
        sleep: Waits for a number of seconds.
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
        """Corrects an earlier `take` that was `amount` too much; negative: too little."""
        with self._lock:
            self._content += amount  # the next to take spills what is more than it holds

    def _try(self, amount: float) -> float:
        """Takes `amount` and returns 0, or returns how long to wait before trying again."""
        if self._per_s is None:
            return 0.0
        with self._lock:
            now = self._clock()
            filled = self._content + (now - self._filled_at) * self._per_s
            self._content, self._filled_at = min(filled, self._capacity), now
            missing = min(amount, self._capacity) - self._content
            # a rounding error must not become a wait too short for the clock to notice
            if missing > 1e-9 * self._capacity:
                return max(missing / self._per_s, 1e-3)
            self._content -= amount
            return 0.0
