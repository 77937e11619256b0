"""Completions that are paid for once and kept in a file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from scope_torch.llm.chat import ChatCall, ChatClient, Completion, LLMError
from scope_torch.llm.prices import LLMInfo, choose_llms
from scope_torch.llm.store_file import StoreFile

logger = logging.getLogger(__name__)

CLAIM_LIMIT_S = 900.0  # longer than a call takes with all its retries
_OWNERS: set[str] = set()  # the stores of this process: after a restart the same pid may return


class PricedClient(ChatClient, Protocol):
    """A ChatClient that knows the LLMs it calls, such as `OpenAIClient`."""

    @property
    def llms(self) -> Mapping[str, LLMInfo]:
        """The LLMs by name."""
        ...


class ResponseStore:
    """A ChatClient in front of another; what that one was asked before is read from a file.

    A stored reply says what it cost when it was paid, and bills nothing. It is used again for a
    call with the same model of the endpoint, messages, limit, temperature, reasoning effort, extra
    body and replicate, whatever the LLM is called in the price list.

    Of several callers that want the same at the same time, in this process or another one that
    uses the file, one pays and the others wait. A crash loses the calls in flight, nothing else.

    Args:
        path: An SQLite file on a disk of this machine; made if there is none.
        client: Who is asked for what is not stored.
        poll_s: Seconds between looks at what another process is paying for.
        claim_limit_s: Seconds after which a process that does not finish is given up. Until then
            it is waited for, unless it is one of this machine and dead.
        sleep: Waits for a number of seconds.

    Attributes:
        billed_usd: What the calls of this store have cost so far, in USD.
        replayed_usd: What the replies that it had cost, in USD.
        in_flight: Calls that are being paid.

    Example:
        >>> store = ResponseStore("replies.sqlite", OpenAIClient(llms, url, "OPENAI_API_KEY"))
        >>> completion = await store.complete(call)
        >>> await store.close()

    Raises:
        InputError: If the file cannot be used.
    """

    def __init__(
        self,
        path: Path | str,
        client: PricedClient,
        *,
        poll_s: float = 0.2,
        claim_limit_s: float = CLAIM_LIMIT_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.billed_usd, self.replayed_usd, self.in_flight = 0.0, 0.0, 0
        self._client, self._poll_s, self._sleep = client, poll_s, sleep
        self._claim_limit_s = claim_limit_s
        self._lock = threading.Lock()
        self._flights: dict[str, Future[Completion | LLMError | None]] = {}
        self._file = StoreFile(path)
        self._owner = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}"
        _OWNERS.add(self._owner)

    @property
    def llms(self) -> Mapping[str, LLMInfo]:
        """The LLMs of the client."""
        return self._client.llms

    @property
    def extra_body(self) -> Mapping[str, Any] | None:
        """What the client sends along with every request, if it does."""
        return getattr(self._client, "extra_body", None)

    def __repr__(self) -> str:
        return f"ResponseStore({str(self._file.path)!r}, {self._client!r})"

    async def complete(self, call: ChatCall) -> Completion:
        """Returns the completion of `call`, from the file if it is there.

        Raises:
            LLMError: If there is none, after retries; its `cost_usd` has been billed.
            InputError: If the LLM has no price, or the file cannot be used.
        """
        llm = choose_llms(dict(self._client.llms), [call.llm])[0]
        key = call_key(call, llm, self.extra_body)
        while True:
            if stored := self._file.read(key):
                return self._replay(stored)
            with self._lock:
                theirs = self._flights.get(key)
                if theirs is None:
                    ours = self._flights[key] = Future()
                    ours.set_running_or_notify_cancel()  # who waits cannot cancel it
                    break
            outcome = await asyncio.wrap_future(theirs)
            if isinstance(outcome, Completion):
                return self._replay(outcome)
            if isinstance(outcome, LLMError):
                self._count(replayed_usd=outcome.cost_usd)
                raise LLMError(str(outcome), fatal=outcome.fatal, cost_usd=outcome.cost_usd)
        return await self._fly(key, llm.model or llm.name, call, ours)

    def total_billed_usd(self) -> float:
        """What all calls in the file cost, in USD, replies or not, in this session and others."""
        return self._file.total_usd()

    async def close(self) -> None:
        """Closes the file, and the client's connections of the running event loop."""
        _OWNERS.discard(self._owner)
        self._file.close()
        if close := getattr(self._client, "close", None):
            await close()

    async def _fly(
        self, key: str, model: str, call: ChatCall, flight: Future[Completion | LLMError | None]
    ) -> Completion:
        """Pays for a call, and tells those who wait for it how it went."""
        outcome: Completion | LLMError | None = None  # None: cancelled; the next one pays
        try:
            outcome = await self._claim_and_pay(key, model, call)
            return outcome
        except LLMError as error:
            outcome = error
            raise
        finally:
            with self._lock:
                del self._flights[key]
            flight.set_result(outcome)

    async def _claim_and_pay(self, key: str, model: str, call: ChatCall) -> Completion:
        waited = False
        while not self._file.claim(key, self._owner, self._is_stale):
            if not waited:
                logger.info("waiting for another process to pay for a call of %s", model)
            waited = True
            await self._sleep(self._poll_s)
        if stored := self._file.read(key):  # another process paid meanwhile
            self._file.release(key, self._owner)
            return self._replay(stored)
        completion = await self._pay(key, model, call)
        self._file.keep(key, self._owner, model, completion)
        return completion

    async def _pay(self, key: str, model: str, call: ChatCall) -> Completion:
        self._count(in_flight=1)
        try:
            completion = await self._client.complete(call)
            self._count(billed_usd=completion.cost_usd)
            return completion
        except BaseException as error:
            # a CancelledError of RetryingClient carries its cost, too
            usd = float(getattr(error, "cost_usd", 0.0))
            self._count(billed_usd=usd)
            self._file.fail(key, self._owner, model, usd, str(error) or type(error).__name__)
            raise
        finally:
            self._count(in_flight=-1)

    def _is_stale(self, owner: str, claimed_at: float) -> bool:
        """Whether who claimed a call is not going to finish it."""
        host, pid, _ = owner.rsplit(" ", 2)
        here = host == socket.gethostname()
        if here and int(pid) == os.getpid():  # known whatever the clock says
            return owner not in _OWNERS
        # Of an earlier time, or of a later one: then a clock was set back.
        if abs(time.time() - claimed_at) > self._claim_limit_s:
            return True
        return here and not _is_alive(int(pid))

    def _replay(self, stored: Completion) -> Completion:
        self._count(replayed_usd=stored.cost_usd)
        return stored

    def _count(
        self, *, billed_usd: float = 0.0, replayed_usd: float = 0.0, in_flight: int = 0
    ) -> None:
        with self._lock:
            self.billed_usd += billed_usd
            self.replayed_usd += replayed_usd
            self.in_flight += in_flight


def call_key(call: ChatCall, llm: LLMInfo, extra_body: Mapping[str, Any] | None = None) -> str:
    """What a reply is stored under: SHA-256 of all that decides about it."""
    content: dict[str, Any] = {
        "model": llm.model or llm.name,
        "messages": [[message.role, message.content] for message in call.messages],
        "max_tokens": call.max_tokens,
        "temperature": float(call.temperature) if llm.takes_temperature else None,
        "reasoning_effort": llm.reasoning_effort,
        "replicate": call.replicate,
    }
    if extra_body:
        content["extra_body"] = dict(extra_body)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _is_alive(pid: int) -> bool:
    if os.name == "nt":  # there, signal 0 is Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
