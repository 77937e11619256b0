"""Usage that a server reports is believed only where an honest endpoint could report it."""

import logging
from dataclasses import replace

import pytest
from llm.client_cases import CALL, MOST_PROMPT, MOST_USD, OK_USD, USAGE, ask, client_of, run
from llm.fake_endpoint import (
    FakeEndpoint,
    Say,
    Status,
    only_loopback,  # noqa: F401
)
from llm.raw_server import RawServer, chat, response
from llm.store_cases import fixture_of_path  # noqa: F401

from scope_torch.llm.chat import Completion
from scope_torch.llm.store import ResponseStore


def counts(prompt: object, completion: object, **more: object) -> dict:
    return {"prompt_tokens": prompt, "completion_tokens": completion, **more}


def replied_with(body: bytes, call=CALL, **settings) -> tuple[Completion, object]:
    with RawServer(lambda *_: response(body)) as server:
        client = client_of(server, **settings)
        (completion,) = run(client, call)
    assert isinstance(completion, Completion), completion
    assert len(server.requests) == 1
    return completion, client


HUGE = 10**400
UNBELIEVABLE = [
    counts(0, 0),
    counts(0, 2),
    counts(5, 0),
    counts(2**63, 2),
    counts(5, 2**63),
    counts(2**53 + 1, 2),
    counts(5, HUGE),
    counts(HUGE, 2),
    counts(5, 2, total_tokens=10**15),
    counts(5, 2, total_tokens=HUGE),
    counts(5, 2, total_tokens=2**63),
]
FAR_ABOVE = [
    (counts(10 * MOST_PROMPT + 4097, 2), (10 * MOST_PROMPT + 4097, 32)),
    (counts(5, 10 * 32 + 65_536 + 1), (MOST_PROMPT, 10 * 32 + 65_536 + 1)),
    (counts(5, 2, total_tokens=5 + 10 * 32 + 65_536 + 1), (MOST_PROMPT, 10 * 32 + 65_536 + 1)),
    (counts(10**8, 10**8), (10**8, 10**8)),
]


@pytest.mark.parametrize("usage", UNBELIEVABLE, ids=lambda usage: str(usage)[:60])
def test_usage_that_cannot_be_true_is_replaced_by_the_upper_estimate(usage):
    completion, client = replied_with(chat("it is", usage))
    assert (completion.text, completion.estimated, completion.failed_usd) == ("it is", True, 0.0)
    assert completion.cost_usd == pytest.approx(MOST_USD)
    assert client.billed_usd == client.estimated_usd == completion.cost_usd
    assert client.num_estimated == 1


@pytest.mark.parametrize(("usage", "booked"), FAR_ABOVE, ids=lambda value: str(value)[:60])
def test_an_estimate_is_never_below_what_is_told(usage, booked):
    """Counts far above the request may be wrong, but not that they may be too low."""
    completion, client = replied_with(chat("it is", usage))
    assert (completion.prompt_tokens, completion.completion_tokens) == booked
    assert completion.estimated
    assert completion.cost_usd == pytest.approx((booked[0] * 1.0 + booked[1] * 4.0) * 1e-6)
    assert client.estimated_usd == client.billed_usd


@pytest.mark.parametrize(("told", "warns"), [(OK_USD, False), (5.0, True)])
def test_a_cost_that_the_reply_names_is_checked(told, warns, caplog, monkeypatch):
    """The bill stays that of the price list; the difference is said once."""
    monkeypatch.setattr("scope_torch.llm.billing._differing", set())
    body = chat("it is", {**USAGE, "cost": told})
    for _ in range(2):
        completion, client = replied_with(body)
        assert completion.cost_usd == client.billed_usd == pytest.approx(OK_USD)
    said = [r.getMessage() for r in caplog.records if "names a cost" in r.getMessage()]
    assert [text.startswith("a reply of 'a' names a cost of 5 USD") for text in said] == (
        [True] if warns else []
    )


def test_a_number_with_too_many_digits_for_python_loses_no_reply():
    body = chat("it is", counts(5, 2)).replace(b": 5", b": " + b"9" * 5000)
    completion, client = replied_with(body)
    assert (completion.text, completion.estimated) == ("it is", True)
    assert client.billed_usd == pytest.approx(MOST_USD)


HONEST = [
    (counts(5, 2), "it is"),
    (counts(5, 0), ""),  # nothing was said
    (counts(13 * 3 + 8 * 2, 32), "it is"),  # a token for every byte
    (counts(690, 2), "it is"),  # a hidden prompt
    (counts(5, 32, completion_tokens_details={"reasoning_tokens": 32}), ""),
    (counts(5, 20_000, completion_tokens_details={"reasoning_tokens": 19_980}), "it is"),
    (counts(5, 2, total_tokens=20_007), "it is"),  # reasoning only in the total
    (counts(5, 33), "it is"),  # the token that ends a reply
    (counts(5, 20_000), "it is"),  # reasoning that is not told as such
    (counts(100, 2, prompt_tokens_details={"cached_tokens": 100}), "it is"),
]


@pytest.mark.parametrize(("usage", "text"), HONEST, ids=lambda value: str(value)[:60])
def test_usage_of_honest_endpoints_is_believed(usage, text, caplog):
    completion, client = replied_with(chat(text, usage))
    assert not completion.estimated
    assert completion.prompt_tokens == usage["prompt_tokens"]
    said = usage.get("total_tokens", 0) - usage["prompt_tokens"]
    assert completion.completion_tokens == max(said, usage["completion_tokens"])
    assert (client.estimated_usd, client.num_estimated) == (0.0, 0)
    assert caplog.text == ""


def test_an_empty_prompt_has_no_tokens():
    completion, _ = replied_with(chat("it is", counts(0, 2)), replace(CALL, messages=()))
    assert (completion.prompt_tokens, completion.estimated) == (0, False)


def test_it_is_said_once(caplog):
    caplog.set_level(logging.WARNING)
    with FakeEndpoint([Say("it is", counts(0, 0))]) as endpoint:
        client = client_of(endpoint)
        outcomes = run(client, *[CALL] * 5)
    assert all(outcome.estimated for outcome in outcomes)
    assert client.num_estimated == 5
    assert client.estimated_usd == pytest.approx(5 * MOST_USD)
    (record,) = caplog.records
    assert "reports no usage of 'a' that can be believed" in record.getMessage()


def test_usage_of_a_bad_reply_is_checked_too():
    bad = Status(200, {"choices": [], "usage": counts(5, 10**15)})
    outcome, client, _ = ask([bad, Say("it is", USAGE)])
    assert outcome.failed_usd == pytest.approx(MOST_USD)
    assert client.billed_usd == pytest.approx(MOST_USD + OK_USD)
    assert client.num_estimated == 1


@pytest.mark.parametrize(
    "odd",
    [
        {"finish_reason": "\ud800"},
        {"finish_reason": "x" * 1_000_000},
        {"text": "\udfff\0"},
        {"usage": counts(HUGE, HUGE, total_tokens=HUGE)},
        {"usage": counts(5, 2, prompt_tokens_details={"cached_tokens": HUGE})},
    ],
)
def test_whatever_a_reply_says_it_is_stored_and_billed(odd, path):
    body = chat(**{"text": "it is", "usage": USAGE, **odd})
    with RawServer(lambda *_: response(body)) as server:
        client = client_of(server)
        (first,) = run(ResponseStore(path, client), CALL)
        assert isinstance(first, Completion), first
        assert run(ResponseStore(path, client), CALL) == [first]
        store = ResponseStore(path, client)
        assert store.total_billed_usd() == client.billed_usd == first.cost_usd
        run(store)
    assert len(server.requests) == 1
    assert 0 < first.cost_usd <= 1.001 * MOST_USD
    assert len(first.finish_reason) <= 100
