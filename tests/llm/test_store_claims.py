"""ResponseStore and other processes that pay for a call, or crash."""

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from llm.fake_endpoint import (
    FakeEndpoint,
    Hold,
    Say,
    only_loopback,  # noqa: F401
)
from llm.store_cases import (
    CALL,
    LLMS,
    REPLY,
    ROOT,
    A,
    Client,
    fixture_of_path,  # noqa: F401
    fixture_of_stores,  # noqa: F401
    numbered,
    rows,
    run,
)

from scope_torch.llm import claims
from scope_torch.llm.chat import Completion
from scope_torch.llm.client import OpenAIClient
from scope_torch.llm.store import ResponseStore, call_key
from scope_torch.llm.store_file import StoreFile

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux tells it")


def claimed(path: Path, owner: str, age_s: float = 0.0) -> None:
    """Adds a claim of another owner on CALL."""
    StoreFile(path).close()
    with sqlite3.connect(path) as db:
        row = call_key(CALL, A), owner, time.time() - age_s
        db.execute("INSERT INTO claims VALUES (?, ?, ?)", row)
    db.close()


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def ended_pid() -> int:
    """A process that has ended, but that its parent, this one, has not asked about."""
    pid = os.posix_spawnp("true", ["true"], os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


@pytest.mark.parametrize(
    "who",
    [
        "dead",
        "same pid before a restart",
        pytest.param("ended", marks=linux),
        pytest.param("another process has its number", marks=linux),
    ],
)
def test_claims_that_are_taken_over(who, path, open_store):
    host, token = socket.gethostname(), "00"
    pid = {"dead": dead_pid, "ended": ended_pid, "same pid before a restart": os.getpid}.get(
        who, os.getppid
    )()
    if who == "another process has its number":
        token = "17-00"  # it began 0.17 s after the machine, unlike the parent of this process
    claimed(path, f"{host} {pid} {token}")
    client = Client()
    store = open_store(client, sleep=None)  # so waiting is an error
    assert run(store, CALL) == [REPLY]
    assert len(client.calls) == 1
    assert rows(path, "SELECT * FROM claims") == []
    if who == "ended":
        os.waitpid(pid, 0)


@pytest.mark.parametrize("age_s", [0.0, 1000.0, -1000.0, 1e9, -1e9])
@pytest.mark.parametrize("where", ["this machine", "this machine, with start", "another machine"])
def test_claims_that_are_respected(where, age_s, path, open_store):
    """However old they are, or seem to be after a clock has jumped."""
    start = claims._started(os.getppid()) or ""
    owner = {
        "this machine": f"{socket.gethostname()} {os.getppid()} 00",
        "this machine, with start": f"{socket.gethostname()} {os.getppid()} {start}-00",
        "another machine": f"elsewhere {dead_pid()} 00",  # a process id of another machine
    }[where]
    claimed(path, owner, age_s)

    class Waited(Exception):
        pass

    async def sleep(seconds: float) -> None:
        raise Waited

    client = Client()
    store = open_store(client, sleep=sleep)
    assert isinstance(run(store, CALL)[0], Waited)
    assert client.calls == []


@pytest.mark.parametrize("jump_s", [-1e8, 1e8])
def test_a_clock_that_jumps_gives_no_claim_of_this_process_to_another(
    path, open_store, monkeypatch, jump_s
):
    """Two searches of a process need the same reply; the clock is set while one of them pays."""
    now = [1.7e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    looked = threading.Event()

    async def sleep(seconds: float) -> None:
        looked.set()
        await asyncio.sleep(0.001)

    waiting = Client()
    second = threading.Thread(target=lambda: run(open_store(waiting, sleep=sleep), CALL))

    def meanwhile() -> None:
        now[0] += jump_s
        second.start()
        assert looked.wait(20)

    paying = Client(before=meanwhile)
    assert run(open_store(paying), CALL) == [REPLY]
    second.join(20)
    assert (len(paying.calls), len(waiting.calls)) == (1, 0)


class Clock:
    """A clock that goes on only while somebody sleeps."""

    def __init__(self, monkeypatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(claims.time, "monotonic", lambda: self.now_s)

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


@pytest.mark.parametrize("age_s", [0, 1000, -1000])
def test_a_claim_from_elsewhere_is_given_up_whichever_way_the_clock_was_set(
    path, open_store, monkeypatch, age_s
):
    claimed(path, f"elsewhere {dead_pid()} 00", age_s)
    client, clock = Client(), Clock(monkeypatch)
    store = open_store(client, sleep=clock.sleep, poll_s=10.0, claim_limit_s=900.0)
    assert run(store, CALL) == [REPLY]
    assert len(client.calls) == 1
    assert 900 < clock.now_s <= 920


def test_a_claim_from_elsewhere_that_is_renewed_is_respected(path, open_store, monkeypatch):
    """It pays for 3 times the limit, then its reply is used."""
    owner, clock = f"elsewhere {dead_pid()} 00", Clock(monkeypatch)
    claimed(path, owner)
    elsewhere = StoreFile(path)

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        if clock.now_s % 90 == 0:
            elsewhere.renew(call_key(CALL, A), owner)
        if clock.now_s == 2700:
            elsewhere.keep(call_key(CALL, A), owner, "a", REPLY)

    client = Client()
    store = open_store(client, sleep=sleep, poll_s=10.0, claim_limit_s=900.0)
    assert run(store, CALL) == [REPLY]
    assert (client.calls, clock.now_s) == ([], 2700.0)
    elsewhere.close()


def test_a_store_renews_its_claim_while_it_pays(path, open_store):
    """Until the claim was renewed three times, the reply does not come."""
    client = Client(gate=asyncio.Event())
    store = open_store(client, claim_limit_s=0.1)

    async def main() -> Completion:
        call = asyncio.create_task(store.complete(CALL))
        times: set[float] = set()
        while len(times) < 4:
            times |= {at for (at,) in rows(path, "SELECT claimed_at FROM claims")}
            await asyncio.sleep(0.001)
        client.gate.set()
        return await call

    assert asyncio.run(main()) == REPLY
    assert rows(path, "SELECT * FROM claims") == []


def test_what_was_paid_twice_is_in_the_bill(path, open_store):
    """The claim of a slow owner is taken over; both pay, one reply is kept."""
    quick = open_store(Client(replace(REPLY, text="quick", cost_usd=0.125)), claim_limit_s=-1.0)
    slow = open_store(Client(before=lambda: threading_run(quick)))
    slow._owner = "elsewhere 1 00"  # a store of this process would be known to be alive
    assert run(slow, CALL)[0] == REPLY
    assert run(slow, CALL)[0].text == "quick"
    assert rows(path, "SELECT cost_usd, reason FROM failures") == [(0.25, "paid twice")]
    assert slow.total_billed_usd() == 0.375
    assert rows(path, "SELECT * FROM claims") == []


def threading_run(store: ResponseStore) -> None:
    """Makes CALL in another thread, because this thread has a running event loop."""
    thread = threading.Thread(target=run, args=(store, CALL))
    thread.start()
    thread.join()


CHILD = """
import asyncio, sys
from scope_torch.llm.chat import ChatCall, Message
from scope_torch.llm.client import OpenAIClient
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.store import ResponseStore

async def main():
    client = OpenAIClient({"a": LLMInfo("a", 1.0, 4.0)}, sys.argv[1], None)
    store = ResponseStore(sys.argv[2], client)
    messages = (Message("user", "one two three"),)
    calls = [ChatCall("a", messages, 32, replicate=i) for i in range(6)]
    for call in calls[:4]:
        await store.complete(call)
    await asyncio.gather(*map(store.complete, calls[4:]))

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_killed_process_loses_the_calls_in_flight_and_nothing_else(path, open_store):
    """Four replies are in the file and two calls in flight when it is killed."""
    gate = Hold(threading.Event(), Say("late"))
    behaviours = ["it is"] * 4 + [gate, gate, "it is"]
    with FakeEndpoint(behaviours) as endpoint:
        child = subprocess.Popen([sys.executable, "-c", CHILD, endpoint.url, str(path)], cwd=ROOT)
        try:
            while endpoint.in_flight < 2:
                assert child.poll() is None
            polls = []

            async def sleep(seconds: float) -> None:
                """Waits for the child, which is alive; then it is not."""
                polls.append(len(endpoint.requests))
                if len(polls) == 3:
                    child.send_signal(signal.SIGKILL)
                    child.wait()
                await asyncio.sleep(0)

            client = OpenAIClient(LLMS, endpoint.url, None)
            store = open_store(client, sleep=sleep)

            async def main() -> list[Completion]:
                replies = [await store.complete(numbered(i)) for i in range(6)]
                await client.close()
                return replies

            replies = asyncio.run(main())
        finally:
            child.kill()
            child.wait()
        assert polls == [6, 6, 6]
        assert child.returncode == -signal.SIGKILL
        assert len(endpoint.requests) == 8  # the two lost calls, once more
        cost_usd = (3 * 1.0 + 2 * 4.0) * 1e-6
        assert [reply.text for reply in replies] == ["it is"] * 6
        assert [reply.cost_usd for reply in replies] == pytest.approx([cost_usd] * 6)
        assert store.billed_usd == pytest.approx(2 * cost_usd)
        assert store.replayed_usd == pytest.approx(4 * cost_usd)
        assert store.total_billed_usd() == pytest.approx(6 * cost_usd)
    assert endpoint.billed_usd({"a": A}) == pytest.approx(6 * cost_usd + 2 * (3 + 4) * 1e-6)
