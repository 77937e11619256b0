"""An event loop whose time passes only while nothing is to be done, and a server with a limit."""

import asyncio
import json
import math
import random

from scope_torch.llm.chat import ChatCall, Message
from scope_torch.llm.failures import SendError
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.retrying import Connection, RetryingClient

REPLY = {
    "choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2},
}


class VirtualLoop(asyncio.SelectorEventLoop):
    now = 0.0

    def time(self):
        return self.now

    def _run_once(self):
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0]._when)
        super()._run_once()


def in_virtual_time(main):
    """Seconds that a coroutine takes."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        runner.run(main)
        return loop.time()


class Limited:
    """A server that takes so many requests a second, and refuses all others at once.

    Args:
        per_s: Requests a second.
        burst: Requests that it takes at a time, after a pause.
        answer_s: How long an answer takes, on average; lognormal.
        retry_after: The header, for the seconds until it takes the next request; None for none.
        every_s: Instead of a burst: the requests of so many seconds, at the beginning of each.
    """

    def __init__(self, per_s, burst=1, answer_s=1.0, retry_after=None, every_s=None, seed=0):
        self.per_s, self.burst, self.answer_s = per_s, burst, answer_s
        self.retry_after, self.every_s = retry_after, every_s
        self.answered = self.refused = 0
        self._content, self._at, self._period, self._random = burst, 0.0, -1, random.Random(seed)

    async def send(self, request):
        missing_s = self._missing_s(asyncio.get_running_loop().time())
        if missing_s > 0:
            self.refused += 1
            await asyncio.sleep(0.02)
            header = None if self.retry_after is None else self.retry_after(missing_s)
            raise SendError("slow down", status=429, retry_after=header)
        await asyncio.sleep(self.answer_s * self._random.lognormvariate(-0.125, 0.5))
        self.answered += 1
        return json.dumps(REPLY)

    def _missing_s(self, now):
        """Takes a request, or says in how many seconds it would."""
        if self.every_s is not None:
            period = math.floor(now / self.every_s)
            if period != self._period:
                self._period, self._content = period, self.per_s * self.every_s
            if self._content < 1:
                return (period + 1) * self.every_s - now
        else:
            self._content = min(self.burst, self._content + (now - self._at) * self.per_s)
            self._at = now
            if self._content < 1 - 1e-9:
                return (1 - self._content) / self.per_s
        self._content -= 1
        return 0.0


class Client(RetryingClient):
    """Sends to a `Limited`."""

    server: Limited

    def _check_access(self):
        pass

    def _connect(self):
        async def close():
            pass

        return Connection(self.server.send, close)


CALL = ChatCall("a", (Message("user", "how?"),), max_tokens=10)
LLMS = {name: LLMInfo(name, 1.0, 2.0) for name in ("a", "b")}


def now():
    """The time of the running loop; 0 before it runs."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return 0.0


def client_of(server, concurrency):
    client = Client(LLMS, concurrency=concurrency, clock=now, max_failures_in_a_row=10**6)
    client.server = server
    return client
