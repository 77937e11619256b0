"""Faults of an upstream: each request ends with its own reply or an error, and with its bill."""

import gzip
import http.client
import json
import logging
import random
import zlib
from collections import Counter

import openai
import pytest
from llm.raw_server import CUT, RawServer, chat, response
from llm.test_faulty_replies import EXACT, FAULTS, MOST, NOTHING, USAGE, too_large
from llm.test_reply_size import bomb, layers, spaces
from llm.test_surplus_replies import Defective
from serve.fake_upstream import LLMS, FakeUpstream, Say, Status
from serve.serve_cases import CHOICE, MESSAGES, PATHS, body_of, message_of, post, serving

from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo

CHAT = PATHS[0]
MEDIUM = LLMS["medium"]
LIMIT = 32  # completion tokens that `body_of` asks for
STREAM_HEAD = b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\n"


def usd_of(prompt: int, completion: int) -> float:
    """At the prices of `medium`."""
    return (prompt * 1.0 + completion * 4.0) * 1e-6


def most_usd(body: dict) -> float:
    """A token for every 2 bytes, and all completion tokens."""
    sent = {**body, "model": "medium"}
    if body.get("stream"):
        sent["stream_options"] = {"include_usage": True}
    size = len(json.dumps(sent, ensure_ascii=False).encode())
    return usd_of(-(-size // 2), LIMIT)


@pytest.mark.parametrize(
    "number", [150, pytest.param(1500, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_faulty_replies_change_nothing_silently(number):
    """The faults of tests/llm, each with its bill; no reply answers another request."""
    draw, kinds, bills = random.Random(number), Counter(), []

    def answer(request: dict, _: int) -> list[bytes]:
        question = request["messages"][-1]["content"]
        fault = too_large if draw.random() < 0.005 else draw.choice(FAULTS)
        reply, bill = fault(question.replace("question", "answer"), draw)
        kinds[fault.__name__] += 1
        bills.append(bill)
        return reply if isinstance(reply, list) else [reply]

    uncached = PriceList({"medium": LLMInfo("medium", 1.0, 4.0)})
    with RawServer(answer) as server, serving(server.url, prices=uncached) as endpoint:
        for i in range(number):
            body = body_of(CHAT) | {"messages": [{"role": "user", "content": f"question {i}."}]}
            with endpoint.query({"planner": "medium"}) as query:
                got = post(query.base_url + CHAT, body)
            check_reply(got, i)
            bill = query.ledger.by_module()["planner"]
            most, exact = most_usd(body), usd_of(USAGE["prompt_tokens"], USAGE["completion_tokens"])
            allowed = {EXACT: [exact], MOST: [most], NOTHING: [0.0], "either": [exact, most]}
            assert any(bill.cost_usd == pytest.approx(usd) for usd in allowed[bills[-1]]), (
                got,
                bills[-1],
            )
            estimated = bill.cost_usd if bill.cost_usd == pytest.approx(most) else 0.0
            assert bill.estimated_usd == pytest.approx(estimated)
    assert len(kinds) >= len(FAULTS)
    assert kinds.total() == len(server.requests) == number == server.num_connections


def check_reply(got, number: int) -> None:
    """It is the reply to this request, or visibly none."""
    if got.status != 200:
        assert got.status >= 400
        return
    try:
        text = got.json()["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return  # the client of the application fails
    assert text == f"answer {number}." or not isinstance(text, str)


@pytest.mark.parametrize(
    "when", ["in the same packet", "in the next packet", "after the next request"]
)
def test_a_surplus_reply_answers_no_other_request(when):
    with (
        RawServer(Defective(when)) as server,
        serving(server.url) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        for i in range(6):
            messages = [{"role": "user", "content": f"question {i}"}]
            got = post(query.base_url + CHAT, body_of(CHAT) | {"messages": messages})
            assert got.json()["choices"][0]["message"]["content"] == f"answer {i}"
    assert server.num_connections == 6
    assert query.ledger.cost_usd == pytest.approx(6 * usd_of(3, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "reply", [bomb, spaces, lambda: bomb(400), lambda: spaces(500), layers],
    ids=["gzip bomb", "endless", "gzip bomb as an error", "endless error", "packed twice"],
)  # fmt: skip
def test_a_huge_reply_is_refused(reply):
    with (
        RawServer(lambda *_: reply()) as server,
        serving(server.url) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        got = post(query.base_url + CHAT, body_of(CHAT))
    assert (got.status, got.headers["x-should-retry"]) == (502, "false")  # it was paid for
    told = "in an encoding that was not asked for" if reply is layers else "than 8388608 bytes"
    assert told in message_of(got)
    bill = query.ledger.by_module()["planner"]
    is_error = reply not in (bomb, spaces, layers)
    assert bill.estimated_usd == pytest.approx(0.0 if is_error else most_usd(body_of(CHAT)))
    assert bill.failed == 1


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


def event(**data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def delta(text: str) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}])


TOLD = event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 4})
DONE = b"data: [DONE]\n\n"
END = chunk(b"")
CHUNKED = STREAM_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = [CHUNKED, chunk(delta("a ")), chunk(delta("b")), chunk(TOLD), chunk(DONE), END]
HUGE = {"prompt_tokens": 10**12, "completion_tokens": 4}
PACKED = zlib.compressobj(9, zlib.DEFLATED, 31)
# pieces, text that arrives, whether the stream is cut, its bill
STREAMS = {
    "whole": (WHOLE, "a b", False, EXACT),
    "in one packet": ([b"".join(WHOLE)], "a b", False, EXACT),
    "byte by byte": ([bytes([b]) for b in b"".join(WHOLE)], "a b", False, EXACT),
    "usage with the last words": (
        [CHUNKED, chunk(event(choices=[{"index": 0, "delta": {"content": "a b"}}],
         usage={"prompt_tokens": 9, "completion_tokens": 4})), chunk(DONE), END],
        "a b", False, EXACT),
    "carriage returns": (
        [CHUNKED, chunk((delta("a b") + TOLD + DONE).replace(b"\n", b"\r\n")), END],
        "a b", False, EXACT),
    "packed": (
        [STREAM_HEAD + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n",
         gzip.compress(delta("a b") + TOLD + DONE), CUT], "a b", False, EXACT),
    "surplus": ([b"".join(WHOLE), b"".join(WHOLE)], "a b", False, EXACT),
    "no usage": ([CHUNKED, chunk(delta("a b")), chunk(DONE), END], "a b", False, MOST),
    "no end": ([CHUNKED, chunk(delta("a b")), END], "a b", False, MOST),
    "huge usage": (
        [CHUNKED, chunk(delta("a b")), chunk(event(choices=[], usage=HUGE)), chunk(DONE), END],
        "a b", False, MOST),
    "odd usage": (
        [CHUNKED, chunk(delta("a b")), chunk(event(choices=[], usage={"prompt_tokens": "x"})), END],
        "a b", False, MOST),
    "nonsense": (
        [CHUNKED, chunk(b"data: {\n\n: note\n\ndata\n\n\n\n"), chunk(delta("a b") + TOLD), END],
        None, False, EXACT),
    "cut between events": ([CHUNKED, chunk(delta("a b")), CUT], "a b", True, MOST),
    "cut in an event": ([CHUNKED, chunk(delta("a b") + delta("c")[:9]), CUT], "a b", True, MOST),
    "cut at once": ([CHUNKED, CUT], "", True, MOST),
    "cut after its usage": ([CHUNKED, chunk(delta("a b") + TOLD), CUT], "a b", True, EXACT),
    "bad frame": ([CHUNKED, chunk(delta("a b")), b"zz\r\n", CUT], "a b", True, MOST),
    "error event": (
        [CHUNKED, chunk(delta("a b")), chunk(event(error={"message": "overloaded"})), END],
        None, False, MOST),
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
def test_streams_that_are_cut_or_odd(name):
    pieces, text, is_cut, bill = STREAMS[name]
    body = body_of(CHAT, stream=True)
    with (
        RawServer(lambda *_: [*pieces, CUT]) as server,
        serving(server.url) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        got = post(query.base_url + CHAT, body)
    assert (got.status, got.cut) == (200, is_cut)
    assert text is None or said(got.body) == text
    assert b'"usage"' not in got.body or name in ("usage with the last words",)
    assert (b"event: error" in got.body) == is_cut
    (booked,) = query.ledger.by_module().values()
    usd = {EXACT: usd_of(9, 4), MOST: most_usd(body)}[bill]
    assert booked.cost_usd == pytest.approx(usd)
    assert booked.estimated_usd == pytest.approx(usd if bill == MOST else 0.0)
    assert booked.failed == (is_cut or name == "error event")


def said(stream: bytes) -> str:
    """The words of a stream of chat completions."""
    lines = [line[6:] for line in stream.replace(b"\r", b"").split(b"\n") if line[:6] == b"data: "]
    chunks = [json.loads(line) for line in lines if line != b"[DONE]"]
    return "".join(c["delta"].get("content", "") for k in chunks for c in k.get("choices", ()))


@pytest.mark.slow
def test_an_event_without_end_is_given_up():
    pieces = [STREAM_HEAD + b"\r\n", *[b"data: " + b"x" * (1 << 20)] * 9, CUT]
    with (
        RawServer(lambda *_: pieces) as server,
        serving(server.url) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        got = post(query.base_url + CHAT, body_of(CHAT, stream=True))
    assert got.cut
    assert b"more than 8388608 bytes" in got.body
    assert query.ledger.estimated_usd == pytest.approx(most_usd(body_of(CHAT, stream=True)))


def test_clients_notice_a_cut_stream(upstream):
    import anthropic  # takes a second, in the workers that need it

    upstream.answer = lambda _: Say("w " * 50, cut_after=20)
    with serving(upstream.url) as endpoint, endpoint.query(CHOICE) as query:
        with openai.OpenAI(base_url=query.base_url, api_key="x", max_retries=0) as client:
            with pytest.raises(openai.APIError):
                [*client.chat.completions.create(
                    model="scope/planner", messages=MESSAGES, stream=True
                )]  # fmt: skip
            with pytest.raises(openai.APIError):
                [*client.responses.create(model="scope/planner", input="hi", stream=True)]
        url = query.env["ANTHROPIC_BASE_URL"]
        with (
            anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as client,
            pytest.raises(anthropic.APIError),
        ):
            [*client.messages.create(
                model="scope/planner", max_tokens=99, messages=MESSAGES, stream=True
            )]  # fmt: skip
    bill = query.ledger.by_module()["planner"]
    assert (bill.calls, bill.failed) == (3, 3)
    assert query.ledger.cost_usd > upstream.usd_by_tag()[""]


@pytest.mark.parametrize(("path", "limit"), [(PATHS[1], 16_384), (PATHS[2], 99)])
def test_a_cut_stream_without_limit_has_a_stated_bound(upstream, path, limit):
    upstream.answer = lambda _: Say("word " * 30, cut_after=20)
    body = body_of(path, stream=True)
    body |= {"max_tokens": 99} if path == PATHS[2] else {"max_output_tokens": None}
    with serving(upstream.url) as endpoint, endpoint.query(CHOICE) as query:
        assert post(query.base_url + path, body).cut
    bill = query.ledger.by_module()["planner"]
    assert limit <= bill.completion_tokens < limit + 100
    (served,) = upstream.served
    if path == PATHS[2]:  # its first event counts the prompt
        assert (bill.prompt_tokens, bill.cached_tokens) == (served.prompt, served.cached)
    else:
        assert bill.prompt_tokens > served.prompt


def test_errors_pass_and_the_client_sends_again(upstream):
    """The application's own client retries; every attempt is a call."""
    limited = Status(429, b'{"error": {"message": "slow down"}}', {"retry-after-ms": "1"})
    replies = iter([limited, Status(503), Say()])
    upstream.answer = lambda _: next(replies)
    with (
        serving(upstream.url) as endpoint,
        endpoint.query(CHOICE) as query,
        openai.OpenAI(base_url=query.base_url, api_key="x") as client,
    ):
        reply = client.chat.completions.create(model="scope/planner", messages=MESSAGES)
    assert reply.choices[0].message.content == "it is fine."
    bill = query.ledger.by_module()["planner"]
    assert (bill.calls, bill.failed, bill.estimated_usd) == (3, 2, 0.0)
    assert bill.cost_usd == pytest.approx(upstream.usd_by_tag()[""], abs=1e-15)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 422, 429, 500, 529])
def test_an_error_comes_back_as_it_is(upstream, status):
    headers = {"retry-after": "7", "x-request-id": "r1", "set-cookie": "a=b", "x-odd": "1"}
    headers |= {"access-control-allow-origin": "*"}
    upstream.answer = lambda _: Status(status, b'{"error": {"message": "no\xff"}}', headers)
    with serving(upstream.url) as endpoint, endpoint.query(CHOICE) as query:
        got = post(query.base_url + CHAT, body_of(CHAT))
    assert (got.status, got.body) == (status, b'{"error": {"message": "no\xff"}}')
    assert (got.headers["retry-after"], got.headers["x-request-id"]) == ("7", "r1")
    assert not {"set-cookie", "x-odd", "access-control-allow-origin"} & set(got.headers)
    bill = query.ledger.by_module()["planner"]
    assert (bill.calls, bill.failed, bill.cost_usd) == (1, 1, 0.0)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_refused(upstream, status):
    with FakeUpstream() as other:
        headers = {"location": other.url + CHAT}
        upstream.answer = lambda _: Status(status, b"", headers)
        with serving(upstream.url) as endpoint, endpoint.query(CHOICE) as query:
            got = post(query.base_url + CHAT, body_of(CHAT))
        assert other.requests == []
    assert (got.status, "location" in got.headers) == (502, False)
    assert f"answered {status}, a redirect" in message_of(got)
    assert query.ledger.cost_usd == 0.0


@pytest.mark.parametrize("path", PATHS)
def test_an_upstream_that_is_not_there(path):
    with serving("http://127.0.0.1:9/v1") as endpoint, endpoint.query(CHOICE) as query:
        got = post(query.base_url + path, body_of(path))
    assert (got.status, "x-should-retry" in got.headers) == (502, False)
    assert message_of(got).startswith("the upstream cannot be reached (ConnectError)")
    bill = query.ledger.by_module()["planner"]
    assert (bill.calls, bill.failed, bill.cost_usd) == (1, 1, 0.0)


def test_no_key_in_errors_headers_or_logs(upstream, monkeypatch, caplog):
    key = "sk-of-the-upstream-123"
    monkeypatch.setenv("UPSTREAM_KEY", key)
    monkeypatch.setenv("OTHER_KEY", "sk-of-the-application")
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {key}"}}).encode()
    headers = {"x-request-id": key, "retry-after": "1"}
    upstream.answer = lambda _: Status(401, body, headers)
    caplog.set_level(logging.DEBUG)
    with (
        serving(upstream.url, api_key_env="UPSTREAM_KEY") as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        own = {"Authorization": "Bearer sk-of-the-application", "x-api-key": "own-key-123"}
        own |= {"Cookie": "c=1", "OpenAI-Organization": "org-1", "X-Title": "kept"}
        got = [post(query.base_url + path, body_of(path), own) for path in PATHS]
    assert [g.status for g in got] == [401] * 3
    assert message_of(got[0]) == "Incorrect API key provided: ***"
    assert {g.headers["x-request-id"] for g in got} == {"***"}
    assert [h["authorization"] for h in upstream.headers] == [f"Bearer {key}"] * 3
    assert [h.get("x-api-key") for h in upstream.headers] == [None, None, key]
    for sent in upstream.headers:
        assert sent["x-title"] == "kept"
        assert not {"cookie", "openai-organization", "x-scope-query"} & set(sent)
        assert (sent["connection"], "own-key-123" in sent.values()) == ("close", False)
    assert key not in caplog.text
    assert "sk-of-the-application" not in caplog.text


def test_a_cut_stream_leaves_no_traceback_in_the_log(upstream, caplog):
    upstream.answer = lambda _: Say(cut_after=2)
    with serving(upstream.url) as endpoint, endpoint.query(CHOICE) as query:
        assert post(query.base_url + CHAT, body_of(CHAT, stream=True)).cut
    assert "Traceback" not in caplog.text


def test_an_error_with_status_200_costs_what_it_says(upstream):
    """Some gateways answer so."""
    of_choice = {"message": {"content": ""}, "error": {"code": 502}}
    replies = [{"error": {"message": "x"}}, {"error": {"message": "x"}, "usage": USAGE}]
    replies += [{"choices": [of_choice], "usage": USAGE}]
    for reply, usd in zip(replies, [0.0, usd_of(9, 4), usd_of(9, 4)], strict=True):
        body = json.dumps(reply).encode()
        upstream.answer = lambda _, body=body: Status(200, body)
        with serving(upstream.url) as endpoint, endpoint.query(CHOICE) as query:
            assert post(query.base_url + CHAT, body_of(CHAT)).body == body
        bill = query.ledger.by_module()["planner"]
        assert (bill.failed, bill.estimated_usd) == (1, 0.0)
        assert bill.cost_usd == pytest.approx(usd)


@pytest.mark.slow
def test_a_slow_application_does_not_hold_the_upstream(upstream):
    """The upstream's stream is read to its end while the application reads nothing."""
    upstream.answer = lambda _: Say("w" * 200 + " " + "w " * 5000)
    with serving(upstream.url) as endpoint:
        with endpoint.query(CHOICE) as query:
            connection = http.client.HTTPConnection(query.base_url.split("/")[2], timeout=20)
            path = "/" + query.base_url.split("/", 3)[3] + CHAT
            connection.request(
                "POST", path, json.dumps(body_of(CHAT, stream=True, max_tokens=9999))
            )
            response_ = connection.getresponse()
        assert query.ledger.by_module()["planner"].estimated_usd == 0.0
        assert response_.read().endswith(DONE)
        connection.close()
    assert query.ledger.cost_usd == pytest.approx(upstream.usd_by_tag()[""])


def test_a_fault_is_not_needed_for_a_bill():
    """The helpers of this file agree with a plain reply."""
    with (
        RawServer(lambda *_: response(chat("x", USAGE))) as server,
        serving(server.url) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        post(query.base_url + CHAT, body_of(CHAT))
    assert query.ledger.cost_usd == pytest.approx(usd_of(9, 4))
