"""ResponseStore: every reply is paid for once, by one of its callers."""

import asyncio
import threading
from dataclasses import replace

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
    A,
    Client,
    fixture_of_path,  # noqa: F401
    fixture_of_stores,  # noqa: F401
    ledger,
    numbered,
    rows,
    run,
)

from scope_torch.errors import InputError
from scope_torch.llm.chat import Completion, LLMError, Message
from scope_torch.llm.client import OpenAIClient
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.store import call_key


def test_a_reply_is_paid_once_and_replayed_with_its_cost(open_store):
    client = Client()
    store = open_store(client)
    assert run(store, CALL) == [REPLY]
    assert ledger(store) == (0.25, 0.0, 0.25, 0)
    assert run(store, CALL, CALL) == [REPLY, REPLY]
    assert ledger(store) == (0.25, 0.5, 0.25, 0)
    again = open_store(client)  # another session
    (replayed,) = run(again, CALL)
    assert replayed == REPLY
    assert replayed.estimated is True
    assert ledger(again) == (0.0, 0.25, 0.25, 0)
    assert len(client.calls) == 1
    assert again.llms is LLMS


@pytest.mark.parametrize(
    ("other", "llm", "same"),
    [
        (replace(CALL), A, True),
        (replace(CALL, llm="few"), LLMS["few"], True),
        (replace(CALL, temperature=0), A, True),
        (CALL, replace(A, input_usd_per_mtok=9.0, max_tokens_key="max_completion_tokens"), True),
        (replace(CALL, llm="b"), LLMS["b"], False),
        (replace(CALL, replicate=1), A, False),
        (replace(CALL, repeat_of="a=x"), A, True),  # what is asked first is everybody's
        (replace(CALL, max_tokens=33), A, False),
        (replace(CALL, temperature=0.1), A, False),
        (replace(CALL, messages=(Message("system", "one two three"),)), A, False),
        (replace(CALL, messages=(*CALL.messages, *CALL.messages)), A, False),
        (CALL, replace(A, reasoning_effort="low"), False),
        (CALL, replace(A, takes_temperature=False), False),
    ],
)
def test_what_shares_an_entry(other, llm, same):
    assert (call_key(other, llm) == call_key(CALL, A)) == same


def test_repeats_are_shared_by_nobody():
    mine, theirs = (replace(CALL, replicate=1, repeat_of=of) for of in ("a=x", "a=y"))
    assert call_key(mine, A) == call_key(replace(mine), A) != call_key(theirs, A)
    assert call_key(replace(mine, replicate=2), A) != call_key(mine, A)


def test_a_temperature_that_is_not_sent_does_not_matter():
    llm = replace(A, takes_temperature=False)
    assert call_key(replace(CALL, temperature=0.7), llm) == call_key(CALL, llm)


def test_an_extra_body_is_a_part_of_what_was_asked(open_store):
    assert call_key(CALL, A, {}) == call_key(CALL, A, None) == call_key(CALL, A)
    plain, seeded = call_key(CALL, A, {"top_k": 1}), call_key(CALL, A, {"top_k": 2})
    assert len({plain, seeded, call_key(CALL, A)}) == 3
    client = Client()
    for body, paid in (({"top_k": 1}, 1), ({"top_k": 2}, 2), ({"top_k": 1}, 2)):
        client.extra_body = body
        run(open_store(client), CALL)
        assert len(client.calls) == paid


def test_keys_stay_what_they_are():
    """Else every stored reply would be paid for again; odd text has a key too."""
    assert call_key(CALL, A).startswith("3f3464c4b5c7300d")
    odd = replace(CALL, messages=(Message("user", "\ud800 é \0"),))
    assert len(call_key(odd, A)) == 64


def test_two_prices_of_a_model_share_what_was_paid(open_store):
    client = Client()
    store = open_store(client)
    assert run(store, CALL, replace(CALL, llm="few")) == [REPLY, REPLY]
    assert [call.llm for call in client.calls] == ["a"]


def test_a_reply_at_other_prices_is_named_once(open_store, caplog):
    """Else a search after a mended price list mixes two prices, and knows of none."""
    paid = Completion("it", 1000, 100, 400, cost_usd=0.0014 + 0.25, failed_usd=0.25, latency_s=1.0)
    run(open_store(Client(paid)), CALL, CALL, replace(CALL, llm="few"))
    assert caplog.records == []
    run(open_store(Client(llms={"a": replace(A, cached_input_usd_per_mtok=0.5)})), CALL, CALL)
    (record,) = caplog.records
    assert "'a' cost 0.2514 USD, and would cost 0.2512 USD" in record.getMessage()
    machine = LLMInfo("a", 0.0, 0.0, gpu_hour_usd=1.0)  # the seconds are not stored
    for llm in (machine, replace(A, input_usd_per_mtok=9.0, cache_write_usd_per_mtok=2.0)):
        run(open_store(Client(llms={"a": llm})), CALL)
    assert len(caplog.records) == 1


def test_callers_of_the_same_wait_for_the_one_that_pays(open_store):
    client = Client(gate=asyncio.Event())
    store = open_store(client)

    async def main() -> list[Completion]:
        calls = [asyncio.create_task(store.complete(CALL)) for _ in range(5)]
        await asyncio.sleep(0.01)
        assert (len(client.calls), store.in_flight) == (1, 1)
        client.gate.set()
        return await asyncio.gather(*calls)

    assert asyncio.run(main()) == [REPLY] * 5
    assert len(client.calls) == 1
    assert ledger(store) == (0.25, 1.0, 0.25, 0)


def test_who_gives_up_waiting_leaves_the_others_their_reply(open_store):
    client = Client(gate=asyncio.Event())
    store = open_store(client)

    async def main() -> list:
        calls = [asyncio.create_task(store.complete(CALL)) for _ in range(3)]
        await asyncio.sleep(0.01)
        calls[1].cancel()
        await asyncio.sleep(0.01)
        client.gate.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    first, cancelled, last = asyncio.run(main())
    assert (first, last) == (REPLY, REPLY)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert len(client.calls) == 1
    assert ledger(store) == (0.25, 0.25, 0.25, 0)


def test_threads_with_event_loops_of_their_own(open_store):
    """8 threads ask for the same 20 replies."""
    client = Client()
    store = open_store(client)
    outcomes = []
    threads = [
        threading.Thread(target=lambda: outcomes.extend(run(store, *map(numbered, range(20)))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [REPLY] * 160
    assert sorted(call.replicate for call in client.calls) == list(range(20))
    assert store.billed_usd == store.total_billed_usd() == 20 * 0.25
    assert store.replayed_usd == 140 * 0.25


def test_failures_are_shared_billed_and_not_kept(open_store, path):
    client = Client(LLMError("no reply", fatal=True, cost_usd=0.5, latency_s=3.0))
    store = open_store(client)
    outcomes = run(store, CALL, CALL, CALL)
    for outcome in outcomes:
        assert isinstance(outcome, LLMError)
        assert (str(outcome), outcome.fatal, outcome.cost_usd) == ("no reply", True, 0.5)
        assert outcome.latency_s == 3.0
    assert len(client.calls) == 1
    assert ledger(store) == (0.5, 1.0, 0.5, 0)
    client.outcome = REPLY
    assert run(store, CALL) == [REPLY]  # paid again
    assert ledger(store) == (0.75, 1.0, 0.75, 0)
    assert rows(path, "SELECT model, cost_usd, reason FROM failures") == [("a", 0.5, "no reply")]
    client.outcome = LLMError("refused")
    assert isinstance(run(store, numbered(1))[0], LLMError)
    assert len(rows(path, "SELECT * FROM failures")) == 1  # failures without cost are not listed
    assert rows(path, "SELECT * FROM claims") == []


def without_room(monkeypatch, store):
    """The file takes nothing that was paid for, until `monkeypatch` is undone."""

    def full(*_):
        raise InputError("no room")

    for name in ("keep", "fail"):
        monkeypatch.setattr(store._file, name, full)


def test_a_reply_that_cannot_be_stored_is_paid_once(open_store, monkeypatch, caplog):
    client = Client()
    store = open_store(client)
    without_room(monkeypatch, store)
    assert run(store, *[CALL] * 5) == [REPLY] * 5
    assert "is not stored: no room" in caplog.text
    assert run(store, CALL) == [REPLY]
    refused = run(store, numbered(1), numbered(1), numbered(2))  # nothing more is paid for
    assert [str(one) for one in refused] == ["no room"] * 3
    assert len(client.calls) == 1
    assert ledger(store) == (0.25, 1.25, 0.0, 0)
    monkeypatch.undo()
    assert run(store, numbered(1)) == [REPLY]
    assert run(open_store(client), CALL, numbered(1)) == [REPLY] * 2
    assert len(client.calls) == 2
    assert ledger(store) == (0.5, 1.25, 0.5, 0)


def test_a_reply_that_had_no_room_is_stored_at_the_end(open_store, monkeypatch):
    client = Client()
    store = open_store(client)
    without_room(monkeypatch, store)
    assert run(store, CALL) == [REPLY]
    monkeypatch.undo()
    asyncio.run(store.close())
    assert run(open_store(client), CALL) == [REPLY]
    assert len(client.calls) == 1


def test_a_failure_that_cannot_be_stored_is_paid_once(open_store, monkeypatch):
    client = Client(LLMError("no reply", fatal=True, cost_usd=0.5, latency_s=3.0))
    store = open_store(client)
    without_room(monkeypatch, store)
    outcomes = run(store, CALL, CALL, CALL)
    assert [(type(one), one.cost_usd) for one in outcomes] == [(LLMError, 0.5)] * 3
    assert len(client.calls) == 1
    assert store.billed_usd == 0.5


def test_other_errors_pass_through(open_store, path):
    store = open_store(Client(ZeroDivisionError("a mistake")))
    assert isinstance(run(store, CALL)[0], ZeroDivisionError)
    (unknown,) = run(store, replace(CALL, llm="c"))
    assert isinstance(unknown, InputError)
    assert "no price is known for LLM 'c'" in str(unknown)
    assert ledger(store) == (0.0, 0.0, 0.0, 0)
    assert rows(path, "SELECT * FROM claims") == []


def test_a_cancelled_call_is_billed_and_the_next_caller_pays(open_store, path):
    """With the real client, whose estimate is stored in the file."""
    with FakeEndpoint([Hold(threading.Event(), Say("x")), "it is"]) as endpoint:
        client = OpenAIClient(LLMS, endpoint.url, None)
        store = open_store(client)

        async def main() -> Completion:
            first = asyncio.create_task(store.complete(CALL))
            while not endpoint.requests:
                await asyncio.sleep(0.001)
            second = asyncio.create_task(store.complete(CALL))
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            reply = await second
            await client.close()
            return reply

        reply = asyncio.run(main())
    assert reply.text == "it is"
    assert client.estimated_usd > 0
    assert rows(path, "SELECT cost_usd FROM failures") == [(client.estimated_usd,)]
    assert store.total_billed_usd() == pytest.approx(client.billed_usd)
    assert store.billed_usd == pytest.approx(client.billed_usd)


def test_a_second_store_waits_for_the_claim_of_the_first(open_store, path):
    """Two stores of a file, which behave like two processes."""
    payer = Client(gate=asyncio.Event())
    first, polls = open_store(payer), []

    async def sleep(seconds: float) -> None:
        polls.append(seconds)
        if len(polls) == 3:
            payer.gate.set()
        await asyncio.sleep(0)

    waiter = Client(replace(REPLY, text="paid again"))
    second = open_store(waiter, sleep=sleep, poll_s=7)

    async def main() -> list[Completion]:
        paying = asyncio.create_task(first.complete(CALL))
        while not payer.calls:
            await asyncio.sleep(0)
        return [await second.complete(CALL), await paying]

    assert asyncio.run(main()) == [REPLY, REPLY]
    assert waiter.calls == []
    assert len(polls) >= 3
    assert set(polls) == {7}
    assert ledger(second) == (0.0, 0.25, 0.25, 0)
    assert rows(path, "SELECT * FROM claims") == []
