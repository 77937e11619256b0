"""A store of completions in a file, so that each call is paid for once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from scope_torch.errors import InputError
from scope_torch.llm.billing import Usage, cost_usd
from scope_torch.llm.chat import ChatCall, ChatClient, Completion, LLMError
from scope_torch.llm.choices import chosen
from scope_torch.llm.claims import ClaimWatch, new_owner, retire
from scope_torch.llm.prices import OTHER_PRICES, LLMInfo
from scope_torch.llm.store_file import StoreFile

logger = logging.getLogger(__name__)

CLAIM_LIMIT_S = 900.0
_RENEWALS = 10  # of a claim, in the time after which it would be given up


class PricedClient(ChatClient, Protocol):
    """A ChatClient that knows the LLMs it calls, such as `OpenAIClient`."""

    @property
    def llms(self) -> Mapping[str, LLMInfo]:
        """The LLMs by name."""
        ...


class ResponseStore:
    """A ChatClient in front of another one; replies that were paid for are read from a file.

    A stored reply tells its original cost, and costs nothing again. If that is not its cost at the
    prices of today, a warning says so once for each LLM. It is used for every call with
    the same model of the endpoint, messages, limit, temperature, reasoning effort, extra body and
    replicate, and if that is above 0 with the same `repeat_of`; the name of the LLM in the price
    list does not matter.

    If several callers need the same reply at the same time, one pays and the others wait, also in
    other processes that use the file. A crash loses only the calls in flight.

    A reply that the file does not take, as on a full disk, goes to its callers all the same. Before
    the next call is paid for it must be stored.

    Args:
        path: An SQLite file on a disk of this machine; made if there is none.
        client: Completes the calls that are not stored.
        poll_s: Seconds between two looks for a reply that another process is paying for.
        claim_limit_s: Seconds after which a process of another machine is given up, unless it
            shows that it lives. A process of this machine is given up when it is dead.
        sleep: Waits for a number of seconds.

    Attributes:
        billed_usd: Cost of the calls that this store paid for so far, in USD.
        replayed_usd: Original cost of the stored replies that it returned so far, in USD.
        in_flight: Number of calls that are being paid for.

    Raises:
        InputError: If the file cannot be used.

    Examples:
        >>> from scope_torch.llm.chat import Message
        >>> from scope_torch.llm.prices import load_llms
        >>> class Endpoint:  # in place of an OpenAIClient
        ...     llms = load_llms()
        ...     async def complete(self, call):
        ...         return Completion("42", 10, 1, 0, cost_usd=0.5, failed_usd=0.0, latency_s=0.1)
        >>> store = ResponseStore("replies.sqlite", Endpoint())
        >>> call = ChatCall("GPT-5.2", (Message("user", "What is 6 x 7?"),), max_tokens=20)
        >>> async def ask_twice():
        ...     replies = [(await store.complete(call)).text for _ in range(2)]
        ...     await store.close()
        ...     return replies
        >>> asyncio.run(ask_twice()), store.billed_usd, store.replayed_usd
        (['42', '42'], 0.5, 0.5)
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
        self._warned_of = set[str]()
        self._storing = threading.Lock()
        self._unstored: dict[str, tuple[str, Completion]] = {}  # model and reply by key
        self._file = StoreFile(path)
        self._owner = new_owner()

    @property
    def llms(self) -> Mapping[str, LLMInfo]:
        """The LLMs of the client."""
        return self._client.llms

    @property
    def extra_body(self) -> Mapping[str, Any] | None:
        """The client's `extra_body`, sent with every request; None if it has none."""
        return getattr(self._client, "extra_body", None)

    @property
    def num_estimated(self) -> int:
        """Number of replies and failed attempts that the client billed by an upper estimate."""
        return getattr(self._client, "num_estimated", 0)

    @property
    def estimated_usd(self) -> float:
        """The part of `billed_usd` that is an upper estimate, in USD."""
        return getattr(self._client, "estimated_usd", 0.0)

    def __repr__(self) -> str:
        return f"ResponseStore({str(self._file.path)!r}, {self._client!r})"

    async def complete(self, call: ChatCall) -> Completion:
        """Returns the completion of `call`, from the file if it is stored there.

        Raises:
            LLMError: If there is no reply after retries; its `cost_usd` was billed.
            InputError: If the LLM has no price, or the file cannot be used.
        """
        llm, asked = chosen(self._client.llms, call)
        key = call_key(asked, llm, self.extra_body)
        while True:
            _, unstored = self._unstored.get(key, ("", None))
            if stored := unstored or self._file.read(key):
                return self._replay(stored, llm)
            with self._lock:
                flight = self._flights.get(key)
                if flight is None:
                    own_flight = self._flights[key] = Future()
                    own_flight.set_running_or_notify_cancel()  # so callers that wait cannot cancel
                    break
            outcome = await asyncio.wrap_future(flight)
            if isinstance(outcome, Completion):
                return self._replay(outcome, llm)
            if isinstance(outcome, LLMError):
                self._count(replayed_usd=outcome.cost_usd)
                raise LLMError(
                    str(outcome),
                    fatal=outcome.fatal,
                    cost_usd=outcome.cost_usd,
                    latency_s=outcome.latency_s,
                )
        return await self._pay_for_all(key, llm, call, own_flight)

    def total_billed_usd(self) -> float:
        """Cost in USD of all calls ever paid for with this file, failed ones included."""
        return self._file.total_usd()

    async def close(self) -> None:
        """Closes the file, and the client's connections of the running event loop."""
        with contextlib.suppress(InputError):  # was logged when a reply could not be stored
            self._store_all()
        retire(self._owner)
        self._file.close()
        if close := getattr(self._client, "close", None):
            await close()

    async def _pay_for_all(
        self, key: str, llm: LLMInfo, call: ChatCall, flight: Future[Completion | LLMError | None]
    ) -> Completion:
        """Pays for a call, and gives its outcome to the callers that wait for the same call."""
        outcome: Completion | LLMError | None = None  # None: cancelled; the next caller pays
        try:
            outcome = await self._claim_and_pay(key, llm, call)
            return outcome
        except LLMError as error:
            outcome = error
            raise
        finally:
            with self._lock:
                del self._flights[key]
            flight.set_result(outcome)

    async def _claim_and_pay(self, key: str, llm: LLMInfo, call: ChatCall) -> Completion:
        """Pays for a call once no other process does, unless another one has paid meanwhile."""
        self._store_all()
        model = llm.model or llm.name
        waited, watch = False, ClaimWatch(self._claim_limit_s)
        while not self._file.claim(key, self._owner, watch.is_stale):
            if not waited:
                logger.info("waiting for another process to pay for a call of %s", model)
            waited = True
            await self._sleep(self._poll_s)
        if stored := self._file.read(key):  # another process paid meanwhile
            self._file.release(key, self._owner)
            return self._replay(stored, llm)
        renewing = asyncio.create_task(self._renew(key))
        try:
            completion = await self._pay(key, model, call)
        finally:
            renewing.cancel()
        self._unstored[key] = model, completion
        try:
            self._store_all()
        except InputError as error:  # those who wait would pay for the same reply
            logger.warning("a reply that was paid for is not stored: %s", error)
        return completion

    def _store_all(self) -> None:
        """Stores the replies that were paid for, also those that had no room before.

        Raises:
            InputError: If there is no room.
        """
        with self._storing:  # a reply that is stored twice counts as paid twice
            for key, (model, completion) in list(self._unstored.items()):
                self._file.keep(key, self._owner, model, completion)
                del self._unstored[key]

    async def _pay(self, key: str, model: str, call: ChatCall) -> Completion:
        self._count(in_flight=1)
        try:
            completion = await self._client.complete(call)
            self._count(billed_usd=completion.cost_usd)
            return completion
        except BaseException as error:
            # A CancelledError of RetryingClient has a cost too.
            usd = float(getattr(error, "cost_usd", 0.0))
            self._count(billed_usd=usd)
            try:
                self._file.fail(key, self._owner, model, usd, str(error) or type(error).__name__)
            except InputError as full:  # those who wait would pay for the same failure
                logger.warning("a failed call that cost %.3g USD is not stored: %s", usd, full)
            raise
        finally:
            self._count(in_flight=-1)

    async def _renew(self, key: str) -> None:
        """Shows to other machines, until cancelled, that this store still pays for the call."""
        while True:
            await asyncio.sleep(max(self._claim_limit_s / _RENEWALS, 0.01))
            try:
                self._file.renew(key, self._owner)
            except InputError as error:  # the reply is what matters
                logger.info("a claim was not renewed: %s", error)

    def _replay(self, stored: Completion, llm: LLMInfo) -> Completion:
        self._count(replayed_usd=stored.cost_usd)
        usd = None if llm.name in self._warned_of else _usd_today(stored, llm)
        if usd is not None and not math.isclose(usd, stored.cost_usd, rel_tol=1e-9, abs_tol=1e-15):
            self._warned_of.add(llm.name)
            logger.warning(
                "a stored reply of %r cost %.6g USD, and would cost %.6g USD at the prices of "
                "today: stored replies keep their cost, so the two would be mixed; restore the "
                "prices, or name another file for the replies (this is said once)",
                *(llm.name, stored.cost_usd, usd),
            )
        return stored

    def _count(
        self, *, billed_usd: float = 0.0, replayed_usd: float = 0.0, in_flight: int = 0
    ) -> None:
        with self._lock:
            self.billed_usd += billed_usd
            self.replayed_usd += replayed_usd
            self.in_flight += in_flight


def _usd_today(stored: Completion, llm: LLMInfo) -> float | None:
    """What a reply costs at today's prices; None if that needs more than a store knows of it."""
    if llm.usd_per_s is not None or any(getattr(llm, name) is not None for name in OTHER_PRICES):
        return None
    tokens = stored.prompt_tokens, stored.completion_tokens, stored.cached_tokens
    return cost_usd(llm, Usage(*tokens)) + stored.failed_usd


def call_key(call: ChatCall, llm: LLMInfo, extra_body: Mapping[str, Any] | None = None) -> str:
    """The key under which a reply is stored: SHA-256 of everything that decides the reply."""
    content: dict[str, Any] = {
        "model": llm.model or llm.name,
        "messages": [[message.role, message.content] for message in call.messages],
        "max_tokens": call.max_tokens,
        "temperature": float(call.temperature) if llm.takes_temperature else None,
        "reasoning_effort": llm.reasoning_effort,
        "replicate": call.replicate,
    }
    if call.replicate and call.repeat_of:
        content["repeat_of"] = call.repeat_of
    if extra_body:
        content["extra_body"] = dict(extra_body)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
