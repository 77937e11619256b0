"""OpenAIClient against a real server: requests, bills and failures."""

import asyncio
import email.utils
import logging
import socket
import threading
import time
import types
from dataclasses import replace

import pytest
from llm.client_cases import (
    CALL,
    LLMS,
    MOST_PROMPT,
    MOST_USD,
    OK_USD,
    USAGE,
    ask,
    client_of,
    failed,
    replied,
    run,
)
from llm.fake_endpoint import (
    Cut,
    FakeEndpoint,
    Hold,
    Say,
    Status,
    only_loopback,  # noqa: F401
)

from scope_torch.llm import billing
from scope_torch.llm.chat import ChatCall, Completion, LLMError, Message


def test_a_reply_and_its_bill():
    outcome, client, endpoint = ask(["it is"])
    latency_s = outcome.latency_s
    assert outcome == Completion("it is", 5, 2, 0, pytest.approx(OK_USD), 0.0, latency_s)
    assert latency_s > 0
    assert client.billed_usd == pytest.approx(endpoint.billed_usd(LLMS)) == pytest.approx(OK_USD)
    assert (client.estimated_usd, client.num_retries, client.in_flight) == (0.0, 0, 0)
    assert endpoint.requests == [
        {
            "model": "a",
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "one two three"},
            ],
            "max_tokens": 32,
            "temperature": 0.5,
        }
    ]


def test_what_is_sent_to_another_llm():
    call = ChatCall("thinker", (Message("user", "hi"),), 7, 0.5)
    _, _, endpoint = ask(["x"], call, extra_body={"cache_prompt": False})
    assert endpoint.requests == [
        {
            "model": "org/t",
            "messages": [{"role": "user", "content": "hi"}],
            "max_completion_tokens": 7,
            "reasoning_effort": "low",
            "cache_prompt": False,
        }
    ]


def test_cached_and_hidden_tokens_are_billed():
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 150}
    say = Say("x", usage | {"prompt_tokens_details": {"cached_tokens": 60}})
    completion = replied([say], ChatCall("thinker", CALL.messages, 64))
    assert (completion.prompt_tokens, completion.completion_tokens) == (100, 50)
    assert completion.cached_tokens == 60
    assert completion.cost_usd == pytest.approx((40 * 2.0 + 60 * 0.5 + 50 * 8.0) * 1e-6)
    assert not completion.estimated
    completion = replied([say])  # this LLM has no price of cached input
    assert completion.cost_usd == pytest.approx((100 * 1.0 + 50 * 4.0) * 1e-6)
    too_many = usage | {"prompt_tokens_details": {"cached_tokens": 101}}
    assert replied([Say("x", too_many)]).cached_tokens == 100
    for details in (None, 3, {}, {"cached_tokens": None}, {"cached_tokens": -1}):
        say = Say("x", usage | {"prompt_tokens_details": details})
        assert replied([say]).cached_tokens == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ""),
        ("", ""),
        ("a\0b \ud800 é", "a\0b ? é"),
        ([{"type": "text", "text": "par"}, {"type": "image"}, {"text": "ts"}], "parts"),
    ],
)
def test_texts_of_all_kinds_are_replies(text, expected):
    completion = replied([Say(text, USAGE)])
    assert completion.text == expected
    assert completion.cost_usd == pytest.approx(OK_USD)


def test_finish_reasons():
    assert replied([Say("x", finish_reason="length")]).finish_reason == "length"
    assert replied([Say("x", finish_reason=None)]).finish_reason == ""


def test_a_huge_reply_is_cut(caplog):
    with caplog.at_level(logging.WARNING):
        completion = replied([Say("x" * (billing.MAX_TEXT_CHARS + 5), USAGE)])
    assert len(completion.text) == billing.MAX_TEXT_CHARS
    assert "1000005 characters was cut to 1000000" in caplog.text


@pytest.mark.parametrize(
    "usage",
    [None, 3, {}, {"prompt_tokens": 5}, {"prompt_tokens": -1, "completion_tokens": 2},
     {"prompt_tokens": True, "completion_tokens": 2}],
)  # fmt: skip
def test_a_reply_without_usage_is_billed_by_an_upper_estimate(usage):
    outcome, client, _ = ask([Say("it is", usage)])
    assert (outcome.text, outcome.estimated, outcome.failed_usd) == ("it is", True, 0.0)
    assert (outcome.prompt_tokens, outcome.completion_tokens) == (MOST_PROMPT, 32)
    assert outcome.cost_usd == pytest.approx(MOST_USD)
    assert client.billed_usd == client.estimated_usd == outcome.cost_usd


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
def test_passing_statuses_are_tried_again_and_bill_nothing(status):
    outcome, client, endpoint = ask([Status(status), Status(status), "it is"])
    assert (outcome.text, outcome.failed_usd, outcome.estimated) == ("it is", 0.0, False)
    assert outcome.cost_usd == pytest.approx(OK_USD)
    assert client.num_retries == 2
    outage = status in (429, 502, 503)
    times = 6 if outage else 3
    later = [Status(status, message="come back later")]
    error, requests = failed(later, max_failures_in_a_row=4)
    assert (error.fatal, error.cost_usd, requests) == (outage, 0.0, times)
    assert f"answered {status} (come back later), {times} times" in str(error)
    assert endpoint.url not in str(error)  # another server
    assert "'a': http://127.0.0.1" in str(error)


BROKEN = {  # as of OpenRouter
    "message": {"content": "it i"},
    "finish_reason": "error",
    "error": {"code": 502, "message": "gone"},
}
ENDED = {"message": {"content": ""}, "finish_reason": "error"}
SAID_NOTHING = {"message": {"content": ""}, "error": {"code": 529, "message": "gone"}}


@pytest.mark.parametrize(
    ("bad", "failed_usd", "named"),
    [
        (Cut(), MOST_USD, "was lost ("),
        (Cut(of_body=0), MOST_USD, "was lost ("),
        (Status(200, b'{"choices": [{"mess'), MOST_USD, "sent malformed JSON"),
        (Status(200, b"\xff\xfe\x00"), MOST_USD, "sent malformed JSON"),
        (Status(200, b"[" * 100_000), MOST_USD, "sent malformed JSON"),
        (Status(200, [3]), MOST_USD, "sent no chat completion"),
        (Status(200, {"choices": []}), MOST_USD, "sent no choices"),
        (Status(200, {"choices": [], "usage": USAGE}), OK_USD, "sent no choices"),
        (Status(200, {"choices": None}), MOST_USD, "sent no choices"),
        (Status(200, {"choices": ["x"]}), MOST_USD, "sent no choices"),
        (Status(200, {"choices": [{"message": None}]}), MOST_USD, "sent no choices"),
        (Status(200, {"choices": [{"message": {"content": 3}}]}), MOST_USD, "sent no choices"),
        (Status(200, {"error": {"message": "busy", "code": 529}}), 0.0, "answered 529 (busy)"),
        (Status(200, {"error": {"message": "hm"}, "usage": USAGE}), OK_USD, "answered 500 (hm)"),
        (Status(200, {"choices": [BROKEN], "usage": USAGE}), OK_USD, "answered 502 (gone)"),
        (Status(200, {"choices": [BROKEN]}), MOST_USD, "answered 502 (gone)"),
        (Status(200, {"choices": [ENDED], "usage": USAGE}), OK_USD, "answered 500 (the provider"),
        (Status(200, {"choices": [BROKEN | SAID_NOTHING]}), 0.0, "answered 529 (gone)"),
    ],
)
def test_broken_replies_are_tried_again_and_may_have_been_billed(bad, failed_usd, named):
    outcome, client, _ = ask([bad, "it is"])
    assert outcome.text == "it is"
    assert outcome.failed_usd == pytest.approx(failed_usd)
    assert outcome.cost_usd == pytest.approx(OK_USD + failed_usd)
    assert outcome.estimated == (failed_usd == MOST_USD)
    assert client.billed_usd == pytest.approx(outcome.cost_usd)
    assert client.estimated_usd == pytest.approx(failed_usd if outcome.estimated else 0.0)
    error, requests = failed([bad])
    assert error.cost_usd == pytest.approx(3 * failed_usd)
    assert (error.fatal, requests) == (False, 3)
    assert named in str(error)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_an_outage_is_waited_for(status):
    """The call would fail after three attempts if it were the cause."""
    outcome, client, _ = ask([*[Status(status)] * 20, "it is"])
    assert (outcome.text, outcome.failed_usd) == ("it is", 0.0)
    assert client.num_retries == 20


@pytest.mark.slow
def test_an_llm_that_is_gone_stops_the_run_although_others_answer():
    def answer(request):
        return Status(503, message="no such worker") if request["model"] == "a" else "ok"

    with FakeEndpoint(answer) as endpoint:
        client = client_of(endpoint, max_failures_in_a_row=9, retries=1)
        outcomes = run(client, CALL, *[replace(CALL, llm="thinker")] * 30)
    assert [getattr(outcome, "text", None) for outcome in outcomes[1:]] == ["ok"] * 30
    assert outcomes[0].fatal
    assert "whether the endpoint has this LLM" in str(outcomes[0])


def test_a_slow_reply_may_have_been_billed():
    slow = Hold(threading.Event(), Say("late"))
    error, requests = failed([slow], timeout_s=0.05, retries=1)
    assert error.cost_usd == pytest.approx(2 * MOST_USD)
    assert "sent no reply within 0.05 s, 2 times" in str(error)
    assert not error.fatal
    assert requests == 2


def test_a_server_that_is_not_there_bills_nothing():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = types.SimpleNamespace(url=f"http://127.0.0.1:{free.getsockname()[1]}/v1")
        client = client_of(endpoint)
        (error,) = run(client, CALL)
    assert isinstance(error, LLMError)
    assert (error.cost_usd, error.fatal, client.billed_usd) == (0.0, True, 0.0)
    assert "was lost (ConnectError), 3 times: see whether it runs, and base_url" in str(error)


@pytest.mark.parametrize(
    ("status", "fatal", "named"),
    [
        (Status(401, message="bad key"), True, "does not accept the key"),
        (Status(403, message="bad key"), True, "or not for this LLM or country"),
        (
            Status(403, message="Your chosen model requires moderation and your input was flagged"),
            False,
            "answered 403: its moderation refuses this prompt",
        ),
        (
            Status(403, {"error": "Content violates usage guidelines. Key ID: 1", "code": "no"}),
            False,
            "refuses this prompt",
        ),
        (
            Status(403, {"error": {"message": "declined", "code": "content_policy_violation"}}),
            False,
            "refuses this prompt",
        ),
        (
            Status(403, message="violation of provider Terms Of Service"),  # the account's
            True,
            "does not accept the key",
        ),
        (
            Status(200, {"error": {"message": "Input flagged by moderation", "code": 403}}),
            False,
            "refuses this prompt",
        ),
        (
            Status(403, b"<title>Attention Required!</title>Sorry, you have been blocked"),
            False,
            "refuses this prompt",
        ),
        (
            Status(403, {"error": {"code": 403, "message": "Key limit exceeded (total limit)."}}),
            True,
            "no credit is left",
        ),
        (Status(402), True, "no credit is left"),
        (Status(200, {"error": {"code": "insufficient_quota"}}), True, "no credit is left"),
        (Status(400, message="Your credit balance is too low"), True, "no credit is left"),
        (
            Status(403, {"error": "Your team doesn't have any credits yet."}),
            True,
            "no credit is left",
        ),
        (
            Status(400, [{"error": {"message": "API key not valid. Please pass a valid one."}}]),
            True,
            "does not accept the key",
        ),
        (
            Status(400, {"error": "Incorrect API key provided: na***ys.", "code": "no"}),
            True,
            "does not accept the key",
        ),
        (
            Status(400, {"error": {"message": "gone", "code": "model_decommissioned"}}),
            True,
            "answered 400 (gone); check base_url, and `model`",
        ),
        (
            Status(400, message="mini/x is not a valid model ID"),
            True,
            "answered 400 (mini/x is not a valid model ID); check base_url, and `model`",
        ),
        (Status(429, {"error": {"code": "insufficient_quota"}}), True, "no credit is left"),
        (
            Status(404, message="no such model"),
            True,
            "answered 404 (no such model); check base_url",
        ),
        (Status(307, headers={"Location": "http://127.0.0.1:1/v1"}), True, "answered 307"),
        (Status(400, message="too long"), False, "answered 400 (too long)"),
        (Status(422, b"<html>no</html>"), False, "answered 422 (<html>no</html>)"),
        (Status(413, b""), False, "answered 413"),
        (Status(200, {"error": {"message": "no", "code": 400}}), False, "answered 400 (no)"),
    ],
)
def test_statuses_that_do_not_pass(status, fatal, named):
    error, requests = failed([status, "ok"])
    assert (error.fatal, error.cost_usd, requests) == (fatal, 0.0, 1)
    assert named in str(error)
    assert "times" not in str(error)


@pytest.mark.slow
def test_waits_between_attempts():
    naps = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)

    def waits(*answers: Status, **settings) -> list[float]:
        naps.clear()
        replied([*answers, "ok"], retries=len(answers), sleep=sleep, **settings)
        return naps

    assert waits(*[Status(500)] * 5, backoff_s=0.5) == [0.5, 1, 2, 4, 8]
    assert waits(*[Status(500)] * 3, backoff_s=25) == [25, 50, 60]
    later = [Status(429, headers={"Retry-After": after}) for after in ("7", "0.5", "9999", "-3")]
    assert waits(*later, backoff_s=3) == [7, 0.5, 60, 24]
    odd = [Status(429, headers={"Retry-After": after}) for after in ("soon", "", "nan")]
    assert waits(*odd, backoff_s=1) == [1, 2, 4]
    at = email.utils.formatdate(time.time() + 1000, usegmt=True)
    past = "Wed, 21 Oct 2015 07:28:00 GMT"
    dates = [Status(503, headers={"Retry-After": date}) for date in (at, past)]
    assert waits(*dates, backoff_s=3) == [60, 6]


def test_many_failures_in_a_row_are_fatal():
    answers = [Status(400), Status(400), Status(400), "ok", Status(400), Status(400), Status(400)]
    with FakeEndpoint(answers) as endpoint:
        client = client_of(endpoint, max_failures_in_a_row=3, concurrency=1)
        outcomes = run(client, *[CALL] * 7)
    fatal = [isinstance(outcome, LLMError) and outcome.fatal for outcome in outcomes]
    assert fatal == [False, False, True, False, False, False, True]
    assert "3 calls in a row have failed" in str(outcomes[2])


def test_no_more_calls_in_flight_than_allowed():
    gate = threading.Event()
    with FakeEndpoint([Hold(gate, Say("ok"))]) as endpoint:
        client = client_of(endpoint, concurrency=3)

        async def main() -> None:
            calls = [asyncio.create_task(client.complete(CALL)) for _ in range(9)]
            while endpoint.in_flight < 3:
                await asyncio.sleep(0.001)
            assert client.in_flight == 3
            gate.set()
            await asyncio.gather(*calls)
            await client.close()

        asyncio.run(main())
        assert len(endpoint.requests) == 9
        assert endpoint.max_in_flight == client.max_in_flight == 3
        assert client.in_flight == 0
        assert client.billed_usd == pytest.approx(endpoint.billed_usd(LLMS))


def test_calls_keep_below_the_rates():
    """Time passes only when the client sleeps."""
    now = [0.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    with FakeEndpoint(["it is"]) as endpoint:
        settings = {"clock": lambda: now[0], "sleep": sleep, "concurrency": 1}
        run(client_of(endpoint, requests_per_minute=30, **settings), *[CALL] * 4)
        assert now[0] == pytest.approx(6)  # 2 s each but for the first
        now[0] = 0.0
        run(client_of(endpoint, tokens_per_minute=60, **settings), *[CALL] * 3)
        # every call takes its 7 tokens and has to find a full bucket of 1
        assert now[0] == pytest.approx(14)


def test_a_cancelled_call_may_have_been_billed():
    with FakeEndpoint([Status(500), Cut(), Hold(threading.Event(), Say("ok"))]) as endpoint:
        client = client_of(endpoint)

        async def main() -> None:
            call = asyncio.create_task(client.complete(CALL))
            while len(endpoint.requests) < 3:
                await asyncio.sleep(0.001)
            call.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await call
            assert caught.value.cost_usd == pytest.approx(2 * MOST_USD)  # type: ignore[attr-defined]
            await client.close()

        asyncio.run(main())
    assert client.billed_usd == client.estimated_usd == pytest.approx(2 * MOST_USD)
    assert client.in_flight == 0


def test_loops_and_threads():
    """One client in one loop after another, and in two loops at a time."""
    with FakeEndpoint(["it is"]) as endpoint:
        client = client_of(endpoint)
        for _ in range(2):
            assert run(client, CALL)[0].text == "it is"
        outcomes = []
        threads = [
            threading.Thread(target=lambda: outcomes.extend(run(client, *[CALL] * 5)))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [outcome.text for outcome in outcomes] == ["it is"] * 10
        assert client.billed_usd == pytest.approx(12 * OK_USD)


def test_a_request_that_cannot_be_built_was_not_sent(monkeypatch):
    monkeypatch.setattr("scope_torch.llm.client.ONE_CALL", {"X-Odd": "a\nb"})
    outcome, client, endpoint = ask(("ok",), retries=0, max_failures_in_a_row=1)
    assert isinstance(outcome, LLMError)
    assert "LocalProtocolError" in str(outcome)
    assert (outcome.cost_usd, client.billed_usd, endpoint.requests) == (0.0, 0.0, [])
