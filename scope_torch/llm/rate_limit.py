"""Keeps calls below the rate limits of an endpoint: those that are known, and those it shows."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

# Simulated servers with a hard limit (tests/llm/test_congestion.py) chose these.
_SHRINKS = 0.7  # a half leaves more of a limit unused
_GROWS = 0.03  # at most so much with an answer: below one request in flight 1 / window is far more
_LEAST = 0.01  # requests in flight: one is sent each hundred times that an answer takes
_SMOOTH = 1 / 16
_MANY = 10**9


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


class Ticket(NamedTuple):
    """A request in flight, see `Congestion`."""

    llm: str
    epoch: int
    sent_s: float


class Congestion:
    """Finds out how many requests a provider takes at a time, by what it refuses (AIMD).

    All pass until one is refused. From then on requests are spread evenly over the time that an
    answer takes. An answer lets their number grow, by one in that time; a refusal lets it shrink by
    three tenths, once for all requests that were in flight by then. It belongs to no event loop.

    Args:
        clock: Returns the time in seconds.
        sleep: Waits for a number of seconds.

    Attributes:
        window: Requests in flight at a time; infinite as long as nothing was refused. Below 1 there
            are pauses between them.
        num_shrunk: How often it shrank.

    Examples:
        >>> congestion = Congestion()
        >>> async def refused(number):
        ...     tickets = [await congestion.enter("mini") for _ in range(number)]
        ...     for ticket in tickets:
        ...         congestion.refused(ticket, None)
        >>> asyncio.run(refused(10))
        >>> congestion.window, congestion.num_shrunk
        (7.0, 1)
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.window, self.num_shrunk = math.inf, 0
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._in_flight, self._answer_s, self._next_s = 0, 0.0, -math.inf
        self._held_until: dict[str, float] = {}
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    async def enter(self, llm: str) -> Ticket:
        """Waits until a request to an LLM may be sent; `leave` or `refused` must follow."""
        while True:
            if (wait_s := self._held_s(llm)) > 0:
                self._wake(1)  # another LLM may not be held back
                await self._sleep(wait_s)
            elif (waiter := self._take()) is not None:
                try:
                    await waiter
                except asyncio.CancelledError:
                    self._wake(1)  # it may have been the one to go on
                    raise
            else:
                try:
                    if (wait_s := self._reserve()) > 0:
                        await self._sleep(wait_s)
                except BaseException:
                    self._give_back()
                    raise
                if self._held_s(llm) <= 0:
                    return Ticket(llm, self.num_shrunk, self._clock())
                self._give_back()

    def leave(self, ticket: Ticket, *, answered: bool) -> None:
        """Takes in how a request ended that was not refused."""
        with self._lock:
            if answered:
                took_s = self._clock() - ticket.sent_s
                share = _SMOOTH if self._answer_s else 1.0
                self._answer_s += share * (took_s - self._answer_s)
                if 2 * self._in_flight >= self.window:  # what is not used proves nothing
                    self.window += min(1 / self.window, _GROWS * self.window)
        self._give_back()

    def refused(self, ticket: Ticket, wait_s: float | None) -> None:
        """Takes in a refusal.

        Args:
            ticket: Of the request.
            wait_s: Seconds for which no request to this LLM is sent; None if the server said none.
        """
        with self._lock:
            if ticket.epoch == self.num_shrunk:
                self.window = max(_LEAST, _SHRINKS * min(self.window, self._in_flight))
                self.num_shrunk += 1
            if wait_s is not None:
                until = self._clock() + wait_s
                self._held_until[ticket.llm] = max(until, self._held_until.get(ticket.llm, until))
        self._give_back()

    def release(self, llm: str) -> None:
        """Lets requests to an LLM pass again: somebody has waited as long as the server said."""
        self._held_until.pop(llm, None)

    @property
    def _room(self) -> int:
        return max(1, math.ceil(min(self.window, _MANY))) - self._in_flight

    def _held_s(self, llm: str) -> float:
        return self._held_until.get(llm, -math.inf) - self._clock()

    def _take(self) -> asyncio.Future[None] | None:
        """Counts a request as in flight; if there is no room, what ends when there may be."""
        with self._lock:
            if self._room > 0:
                self._in_flight += 1
                return None
            loop = asyncio.get_running_loop()
            self._waiting.append((loop, waiter := loop.create_future()))
            return waiter

    def _reserve(self) -> float:
        """Seconds until a request that is counted may be sent: not all at a time."""
        with self._lock:
            now = self._clock()
            at = max(now, self._next_s)
            self._next_s = at + self._answer_s / self.window
            return at - now

    def _give_back(self) -> None:
        with self._lock:
            self._in_flight -= 1
            room = self._room
        self._wake(room)

    def _wake(self, number: int) -> None:
        """Lets so many of those look again that wait for others to end."""
        while number > 0:
            with self._lock:
                if not self._waiting:
                    return
                loop, waiter = self._waiting.popleft()
            if not (waiter.done() or loop.is_closed()):  # as of a call that was cancelled
                loop.call_soon_threadsafe(_set, waiter)
                number -= 1


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
