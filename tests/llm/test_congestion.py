"""How many requests are in flight is found by what the provider refuses; in simulated time."""

import asyncio
import logging
import math
import threading
from dataclasses import replace

import pytest
from llm.virtual_time import CALL, LLMS, Limited, client_of, in_virtual_time, now

from scope_torch.llm import failures
from scope_torch.llm.billing import Usage
from scope_torch.llm.failures import MAX_WAIT_S, SendError, failure_of
from scope_torch.llm.litellm_client import LiteLLMClient
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.rate_limit import Congestion

FOR_S, CALLS = 600.0, 3000


def in_seconds(missing_s):
    return str(math.ceil(missing_s))


def flooded(server, concurrency):
    """The share of what the server could answer that it did; it is asked without a pause."""
    client, for_s = client_of(server, concurrency), min(FOR_S, CALLS / server.per_s)
    in_time = []

    async def ask():
        while now() < for_s:
            await client.complete(CALL)
            in_time.append(now() < for_s)

    async def main():
        await asyncio.gather(*(ask() for _ in range(concurrency)))

    in_virtual_time(main())
    return sum(in_time) / for_s / min(server.per_s, concurrency / server.answer_s)


@pytest.mark.parametrize(
    ("limit", "least", "refused", "header"),
    [
        ({"per_s": 10, "burst": 10, "answer_s": 2}, 0.7, 0.06, None),
        pytest.param(
            *({"per_s": 20, "burst": 20, "answer_s": 1}, 0.7, 0.06, in_seconds),
            marks=pytest.mark.slow,
        ),
        ({"per_s": 10, "burst": 1, "answer_s": 2}, 0.6, 0.12, in_seconds),
        pytest.param(
            *({"per_s": 2, "burst": 2, "answer_s": 5}, 0.7, 0.2, None), marks=pytest.mark.slow
        ),
        ({"per_s": 2, "burst": 1, "answer_s": 0.5}, 0.6, 0.2, None),
        ({"per_s": 0.2, "burst": 1, "answer_s": 1}, 0.6, 0.9, in_seconds),
    ],
)
def test_a_hard_limit_is_used_and_seldom_crossed(header, limit, least, refused):
    """Also where a request in flight is too many, and where two at a time are refused."""
    server = Limited(retry_after=header, **limit)
    assert flooded(server, 64) >= least
    assert server.refused <= refused * server.answered


@pytest.mark.slow
def test_the_requests_of_a_minute_may_come_at_once():
    """The server says when the next minute begins."""
    server = Limited(10, answer_s=2, retry_after=in_seconds, every_s=60)
    assert flooded(server, 64) >= 0.95
    assert server.refused <= 0.01 * server.answered


def test_without_a_refusal_all_are_in_flight():
    server = Limited(1000, burst=1000)
    client = client_of(server, 32)

    async def main():
        await asyncio.gather(*(client.complete(CALL) for _ in range(320)))

    assert in_virtual_time(main()) < 1.3 * 320 / 32
    assert (server.refused, client.max_in_flight) == (0, 32)
    assert client.congestion(LLMS["a"]).window == math.inf


@pytest.mark.slow
def test_a_limit_that_rises_is_found():
    class Rises(Limited):
        later = 0

        async def send(self, request):
            if now() > 300:
                self.later += 1
                self.per_s = self.burst = 20
            return await super().send(request)

    server = Rises(5, burst=5, retry_after=in_seconds)
    flooded(server, 64)
    assert server.later >= 0.8 * 20 * (CALLS / 5 - 300)


def test_one_event_shrinks_once():
    congestion = Congestion(clock=lambda: 0.0)

    async def main():
        tickets = [await congestion.enter("a") for _ in range(10)]
        for ticket in tickets[:6]:
            congestion.refused(ticket, None)
        assert (congestion.window, congestion.num_shrunk) == (7, 1)
        for ticket in tickets[6:]:
            congestion.leave(ticket, answered=False)
        assert congestion.window == 7
        congestion.refused(await congestion.enter("a"), None)
        assert congestion.num_shrunk == 2

    asyncio.run(main())


def test_an_llm_that_is_held_back_leaves_the_others_alone():
    """One that is out of its daily quota says so for hours."""

    class OneIsOut(Limited):
        async def send(self, request):
            if request["model"] == "a":
                raise SendError("no more today", status=429, retry_after="36000")
            return await super().send(request)

    server = OneIsOut(10, burst=10, answer_s=2)
    client = client_of(server, 8)

    async def main():
        out = asyncio.create_task(client.complete(CALL))
        for _ in range(5):
            await asyncio.gather(*(client.complete(replace(CALL, llm="b")) for _ in range(4)))
        out.cancel()

    assert in_virtual_time(main()) < MAX_WAIT_S
    assert server.answered == 20


def test_a_cancelled_call_leaves_room():
    server = Limited(1, burst=1, answer_s=1, retry_after=in_seconds)
    client = client_of(server, 8)

    async def main():
        calls = [asyncio.create_task(client.complete(CALL)) for _ in range(8)]
        await asyncio.sleep(3)
        for call in calls[:6]:
            call.cancel()
        await asyncio.gather(*calls[6:])
        await client.complete(CALL)

    in_virtual_time(main())
    assert client.congestion(LLMS["a"])._in_flight == 0


def test_whoever_waits_after_a_cancelled_one_goes_on():
    congestion = Congestion()
    congestion.window = 1.0

    async def main():
        first = await congestion.enter("a")
        waits, goes = (asyncio.create_task(congestion.enter("a")) for _ in range(2))
        await asyncio.sleep(0)
        goes.cancel()
        await asyncio.sleep(0.01)
        congestion.leave(first, answered=False)
        await asyncio.wait_for(waits, timeout=5)

    asyncio.run(main())


def test_several_loops_share_what_is_known():
    """Each worker of a notebook may have its own loop."""
    congestion, most, there, lock = Congestion(), [], [], threading.Lock()

    async def many():
        async def one():
            ticket = await congestion.enter("a")
            with lock:
                there.append(ticket)
                most.append(len(there))
            await asyncio.sleep(0.001)
            with lock:
                there.remove(ticket)
            congestion.leave(ticket, answered=False)

        await asyncio.gather(*(one() for _ in range(40)))

    congestion.window = 3.0
    threads = [threading.Thread(target=asyncio.run, args=(many(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(most), max(most)) == (160, 3)


NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize(
    ("header", "wait_s", "odd"),
    [
        ("7", 7.0, None),
        ("0.25", 0.25, None),
        ("0", None, None),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0, None),
        ("-5", None, "is absurd"),
        ("nan", None, "is absurd"),
        ("-inf", None, "is absurd"),
        ("Tue, 14 Nov 2023 22:13:00 GMT", None, "is absurd"),
        ("Wed, 21 Oct 2015 07:28:00 GMT", None, "is absurd"),
        ("soon", None, "is absurd"),
        ("Tue, 99 Nov 2023 22:13:00 GMT", None, "is absurd"),
        ("\x1b[2J", None, r"\x1b[2J, which is absurd"),
        ("3600", MAX_WAIT_S, "is long; it is asked again every 60 s"),
        ("Wed, 15 Nov 2023 22:13:20 GMT", MAX_WAIT_S, "is long"),
        ("1e9", None, "is absurd; the usual wait is kept"),
        ("inf", None, "is absurd"),
        ("Thu, 14 Nov 2024 22:13:20 GMT", None, "is absurd"),
        ("", None, None),
        (None, None, None),
    ],
)
def test_what_a_server_says_of_the_time_to_wait(monkeypatch, header, wait_s, odd):
    monkeypatch.setattr(failures.time, "time", lambda: NOW)
    most = Usage(1, 1)
    failure = failure_of(SendError("", status=429, retry_after=header), most, None)
    assert failure.wait_s == wait_s
    assert failure.congested
    assert (odd is None and failure.odd_wait == "") or odd in failure.odd_wait


@pytest.mark.slow
@pytest.mark.parametrize("header", ["-5", "1e9"])
def test_an_odd_time_to_wait_is_said_once_and_the_calls_end(caplog, header):
    server = Limited(5, burst=5, retry_after=lambda _: header)
    with caplog.at_level(logging.WARNING):
        assert flooded(server, 16) >= 0.4
    assert caplog.text.count(f"Retry-After: {header}, which is") == 1


@pytest.mark.parametrize(
    ("status", "header", "congested"),
    [
        (429, None, True),
        (529, None, True),
        (503, "3", True),
        (503, None, False),
        (500, None, False),
        (400, "3", False),
    ],
)
def test_which_answers_say_that_there_are_too_many(status, header, congested):
    error = SendError("", status=status, retry_after=header)
    assert failure_of(error, Usage(1, 1), None).congested is congested


def test_each_provider_has_its_own(monkeypatch):
    names = ["anthropic/haiku", "anthropic/opus", "openai/nano"]
    llms = {name: LLMInfo(name, 1.0, 2.0) for name in names}
    client = LiteLLMClient(llms)
    haiku, opus, nano = (client.congestion(llms[name]) for name in names)
    assert haiku is opus
    assert haiku is not nano
    at_one_host = LiteLLMClient(llms, "http://localhost:4000")
    assert at_one_host.congestion(llms[names[0]]) is at_one_host.congestion(llms[names[2]])
