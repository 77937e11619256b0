"""Retries, rate limits, prices and bills of calls; subclasses say how a request is sent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from scope_torch.errors import InputError
from scope_torch.llm.billing import (
    BadReply,
    Reply,
    Usage,
    check_reported,
    cost_usd,
    encodable,
    read_reply,
)
from scope_torch.llm.chat import ChatCall, Completion, LLMError
from scope_torch.llm.choices import chosen, llm_of
from scope_torch.llm.estimates import Most, estimate, most_of_call
from scope_torch.llm.failures import MAX_WAIT_S, Failure, SendError, failure_of, failure_of_bad
from scope_torch.llm.keys import check_key_env, without_key
from scope_torch.llm.prices import LLMInfo, check_llm
from scope_torch.llm.rate_limit import Congestion, TokenBucket

logger = logging.getLogger(__name__)


class Connection(NamedTuple):
    """A connection of one event loop to an endpoint.

    Attributes:
        send: Takes the arguments of a chat completion and returns its JSON, decoded or not; may
            raise SendError.
        close: Closes the connection.
    """

    send: Callable[[dict[str, Any]], Awaitable[Any]]
    close: Callable[[], Awaitable[None]]


class _LoopState(NamedTuple):
    """The free slots and the connection of one event loop."""

    slots: asyncio.Semaphore
    connection: Connection


@dataclass
class _Attempts:
    """A call, and the cost of its attempts so far."""

    llm: LLMInfo
    call: ChatCall
    request: dict[str, Any]
    bounds: Most  # the most that was asked for
    most: Usage  # upper estimate of the tokens of an attempt
    failed_usd: float = 0.0
    estimated: bool = False  # whether `failed_usd` has a part that is an upper estimate
    started_s: float | None = None
    sent_s: float = 0.0  # when the last attempt was


@dataclass(eq=False, repr=False)
class RetryingClient:
    """A ChatClient that sends calls, and sends them again after failures that may pass.

    The module `failures` says which failures may pass. Every attempt that may have been billed is
    counted, with the reported tokens or with an upper estimate (`estimates.most_of_call`). This
    includes cancelled calls, whose CancelledError gets an attribute `cost_usd`.

    Args:
        llms: The price list: LLMs by name.
        base_url: Address of the endpoint.
        api_key_env: Environment variable with the key, which is in no message; None if the
            endpoint needs no key.
        timeout_s: Longest wait for a reply, in seconds.
        retries: How often a call is sent again before it fails. If the endpoint cannot be reached,
            or answers 429, 502, 503 or 504, the call is not the cause: it is sent again until it
            succeeds, or until `max_failures_in_a_row` makes the error fatal.
        backoff_s: Wait before a call is sent again, in seconds; doubles each time, up to 60 s. A
            `Retry-After` of the server replaces it, up to 60 s as well, and holds back all requests
            to this LLM. Requests that a server refuses make those in flight fewer, see
            `Congestion`.
        requests_per_minute: Largest number of requests sent in a minute; None for no limit.
        tokens_per_minute: Largest number of tokens sent and received in a minute; None for no
            limit. A request counts as `estimates.most_of_call` until its reply reports the number.
        concurrency: Calls in flight at a time in one event loop.
        max_failures_in_a_row: After so many calls without a reply, or attempts of one call, the
            next error is fatal.
        extra_body: Sent with every request, such as {"cache_prompt": false}.
        sleep: Waits for a number of seconds.
        clock: Returns the time in seconds.

    Attributes:
        billed_usd: Cost of all calls so far, in USD.
        estimated_usd: The part of `billed_usd` that is an upper estimate.
        num_estimated: Number of replies and failed attempts billed by an upper estimate.
        in_flight: Number of calls in flight.
        max_in_flight: Largest number of calls in flight so far.
        num_retries: Number of requests that were sent again.

    Raises:
        InputError: If a setting or a price cannot be used.
    """

    llms: Mapping[str, LLMInfo]
    base_url: str | None = None
    api_key_env: str | None = None
    _: KW_ONLY
    timeout_s: float = 60.0
    retries: int = 4
    backoff_s: float = 1.0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int = 16
    max_failures_in_a_row: int = 50
    extra_body: Mapping[str, Any] | None = None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    billed_usd: float = field(init=False, default=0.0)
    estimated_usd: float = field(init=False, default=0.0)
    num_estimated: int = field(init=False, default=0)
    in_flight: int = field(init=False, default=0)
    max_in_flight: int = field(init=False, default=0)
    num_retries: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._check_settings()
        self._lock = threading.Lock()
        self._failures_in_a_row = 0
        self._has_replied, self._warned_of = False, set[str]()
        self._congestions: dict[str, Congestion] = {}
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopState] = WeakKeyDictionary()
        self._requests, self._tokens = (
            TokenBucket(limit, clock=self.clock, sleep=self.sleep)
            for limit in (self.requests_per_minute, self.tokens_per_minute)
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where()}, {len(self.llms)} LLMs)"

    def check(self, names: Iterable[str]) -> None:
        """Finds errors that every call would meet, as far as possible without a call.

        Args:
            names: Names of the LLMs that will be called.

        Raises:
            InputError: If one has no price, the key is not set, or a package is missing.
        """
        for name in names:
            llm_of(self.llms, name)
        self._check_access()

    async def complete(self, call: ChatCall) -> Completion:
        """Returns the completion of `call`.

        Raises:
            LLMError: If there is no reply after retries; its `cost_usd` was billed.
            InputError: If the LLM has no price, the key is not set, or a package is missing.
        """
        llm, call = chosen(self.llms, call)
        state = self._state_of_loop()
        bounds = most_of_call(call, self.extra_body)
        most = estimate(bounds, 0)
        attempts = _Attempts(llm, call, self._request(llm, call), bounds, most)
        async with state.slots:
            with self._counted():
                try:
                    return await self._attempt_all(state.connection, attempts)
                except asyncio.CancelledError as error:
                    error.cost_usd = attempts.failed_usd  # type: ignore[attr-defined]
                    raise

    async def close(self) -> None:
        """Closes the connections of the running event loop; call it before the loop ends."""
        state = self._loops.pop(asyncio.get_running_loop(), None)
        if state is not None:
            await state.connection.close()

    def _where(self) -> str:
        """Name of the endpoint in messages."""
        return self.base_url or type(self).__name__

    def _check_access(self) -> None:
        """Raises InputError if the key is not set, or a package is missing."""
        raise NotImplementedError

    def _connect(self) -> Connection:
        """Opens a connection for the running event loop."""
        raise NotImplementedError

    def _check_settings(self) -> None:
        check_key_env(self.api_key_env)
        least = {"timeout_s": 1e-9, "retries": 0, "backoff_s": 0.0, "concurrency": 1}
        least |= {"requests_per_minute": 1, "tokens_per_minute": 1, "max_failures_in_a_row": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is None and name.endswith("per_minute"):
                continue
            if not _fits(value, bound):
                kind = "a number" if isinstance(bound, float) else "a whole number"
                above = "above 0" if name == "timeout_s" else f"of at least {bound:g}"
                raise InputError(f"{name}={value!r} must be {kind} {above}")
        for llm in self.llms.values():
            check_llm(llm)

    def _state_of_loop(self) -> _LoopState:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._loops:  # connections cannot be used from another loop
                self._check_access()
                self._loops[loop] = _LoopState(asyncio.Semaphore(self.concurrency), self._connect())
            return self._loops[loop]

    @contextlib.contextmanager
    def _counted(self) -> Generator[None, None, None]:
        """Counts a call as in flight."""
        with self._lock:
            self.in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            yield
        finally:
            with self._lock:
                self.in_flight -= 1

    def _request(self, llm: LLMInfo, call: ChatCall) -> dict[str, Any]:
        messages = [{"role": m.role, "content": encodable(m.content)} for m in call.messages]
        request: dict[str, Any] = {
            "model": llm.model or llm.name,
            "messages": messages,
            llm.max_tokens_key: call.max_tokens,
        }
        if llm.takes_temperature:
            request["temperature"] = call.temperature
        if llm.reasoning_effort is not None:
            request["reasoning_effort"] = llm.reasoning_effort
        if self.extra_body:
            request["extra_body"] = dict(self.extra_body)
        return request

    async def _attempt_all(self, connection: Connection, attempts: _Attempts) -> Completion:
        """Sends a call until it succeeds, or raises the error of its last attempt."""
        number = 0
        while True:
            outcome = await self._attempt(connection, attempts)
            if isinstance(outcome, Reply):
                return self._completion(attempts, outcome)
            if outcome.usage is not None:
                self._charge_failed(attempts, outcome.usage)
            number += 1
            if not outcome.again or number % (self.retries + 1) == 0:
                error = self._error(attempts, outcome, number)
                if error.fatal or not outcome.outage:
                    raise error
                logger.warning("%s; waiting for it", error)
            backoff_s = self.backoff_s * 2.0 ** min(number - 1, 30)
            wait_s = backoff_s if outcome.wait_s is None else outcome.wait_s
            logger.info("%s %s; again", self._where(), outcome.reason)
            await self.sleep(min(wait_s, MAX_WAIT_S))
            if outcome.wait_s is not None:
                self.congestion(attempts.llm).release(attempts.request["model"])
            with self._lock:
                self.num_retries += 1

    async def _attempt(self, connection: Connection, attempts: _Attempts) -> Reply | Failure:
        """Sends a call once, when the provider has room for it."""
        most = attempts.most.prompt_tokens + attempts.most.completion_tokens
        await self._requests.take(1)
        await self._tokens.take(most)
        congestion = self.congestion(attempts.llm)
        ticket = await congestion.enter(attempts.request["model"])
        try:
            outcome = await self._send(connection, attempts)
        except BaseException:
            congestion.leave(ticket, answered=False)
            raise
        if isinstance(outcome, Failure) and outcome.congested:
            congestion.refused(ticket, outcome.wait_s)
        else:
            congestion.leave(ticket, answered=isinstance(outcome, Reply))
        if isinstance(outcome, Failure):
            if outcome.odd_wait:
                self._warn_once("%s says %s", self._where(), outcome.odd_wait)
            return outcome
        usage = outcome.usage or attempts.most
        if usage.estimated:
            self._warn_once(
                "%s reports no usage of %r that can be believed; such replies are billed by an "
                "upper estimate (this is said once; num_estimated counts them)",
                *(self._where(), attempts.llm.name),
            )
        self._tokens.give_back(most - usage.prompt_tokens - usage.completion_tokens)
        return outcome._replace(
            text=without_key(outcome.text, self.api_key_env),
            finish_reason=without_key(outcome.finish_reason, self.api_key_env),
        )

    async def _send(self, connection: Connection, attempts: _Attempts) -> Reply | Failure:
        attempts.sent_s = now_s = self.clock()
        attempts.started_s = now_s if attempts.started_s is None else attempts.started_s
        try:
            async with asyncio.timeout(self.timeout_s):
                return read_reply(await connection.send(attempts.request), attempts.bounds)
        except asyncio.CancelledError:
            self._charge_failed(attempts, attempts.most)
            raise
        except SendError as error:
            return failure_of(error, attempts.most, self.api_key_env)
        except TimeoutError:
            return Failure(f"sent no reply within {self.timeout_s:g} s", attempts.most)
        except BadReply as bad:
            return failure_of_bad(bad, attempts.most, self.api_key_env)

    def congestion(self, llm: LLMInfo) -> Congestion:
        """What is known of how many requests the provider of an LLM takes."""
        new = Congestion(clock=self.clock, sleep=self.sleep)
        return self._congestions.setdefault(self._provider(llm), new)

    def _provider(self, _: LLMInfo, /) -> str:
        """Who refuses requests if there are too many."""
        return self._where()

    def _warn_once(self, text: str, *values: str) -> None:
        """Says something of the endpoint, the first time."""
        with self._lock:
            first = text not in self._warned_of
            self._warned_of.add(text)
        if first:
            logger.warning(text, *values)

    def _completion(self, attempts: _Attempts, reply: Reply) -> Completion:
        usage = reply.usage or attempts.most
        usd = self._charge(attempts, usage)
        check_reported(attempts.llm.name, usage, usd)
        with self._lock:
            self._failures_in_a_row, self._has_replied = 0, True
        return Completion(
            text=reply.text,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            cost_usd=usd + attempts.failed_usd,
            failed_usd=attempts.failed_usd,
            latency_s=self.clock() - (attempts.started_s or 0.0),
            finish_reason=reply.finish_reason,
            estimated=usage.estimated or attempts.estimated,
        )

    def _charge_failed(self, attempts: _Attempts, usage: Usage) -> None:
        attempts.failed_usd += self._charge(attempts, usage)
        attempts.estimated |= usage.estimated

    def _charge(self, attempts: _Attempts, usage: Usage) -> float:
        """Books the last attempt; returns its cost in USD."""
        usd = cost_usd(attempts.llm, usage, self.clock() - attempts.sent_s)
        with self._lock:
            self.billed_usd += usd
            self.estimated_usd += usd if usage.estimated else 0.0
            self.num_estimated += usage.estimated
        return usd

    def _error(self, attempts: _Attempts, failure: Failure, tries: int) -> LLMError:
        """The error to raise after `tries` attempts, the last of which gave `failure`."""
        with self._lock:
            self._failures_in_a_row += 1
            in_a_row = self._failures_in_a_row
        message = f"{attempts.llm.name!r}: {self._where()} {failure.reason}"
        message += f", {tries} times" if tries > 1 else ""
        fatal = failure.fatal
        if in_a_row >= self.max_failures_in_a_row and not fatal:
            message += f"; {in_a_row} calls in a row have failed: see whether the endpoint works"
            fatal = True
        elif failure.outage and tries >= self.max_failures_in_a_row:
            message += ": see whether the endpoint has this LLM at the moment"
            fatal = True
        elif failure.unreachable and not self._has_replied:
            message += ": see whether it runs, and base_url"
            fatal = True
        seconds = self.clock() - (attempts.started_s or 0.0)
        return LLMError(message, fatal=fatal, cost_usd=attempts.failed_usd, latency_s=seconds)


def _fits(value: Any, least: float) -> bool:
    """Whether a setting is a number of at least `least`; a whole number if `least` is an int."""
    types = (int, float) if isinstance(least, float) else (int,)
    return type(value) in types and math.isfinite(value) and value >= least
