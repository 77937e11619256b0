"""Upstreams that refuse a key of ours, answer later, or send odd headers: each with its bill."""

import json
import socket

import openai
import pytest
from llm.raw_server import CUT, RawServer, response
from serve.path_server import Asked, Reply, path_server
from serve.serve_cases import CHOICE, MESSAGES, PATHS, body_of, post, serving

from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo

USAGE = {"prompt_tokens": 9, "completion_tokens": 4}
USD = (9 * 1.0 + 4 * 4.0) * 1e-6  # at the prices of `medium`
CHAT = {"choices": [{"index": 0, "message": {"content": "it is"}}], "usage": USAGE}


def stream(*events: dict) -> str:
    return "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n"


WORDS = {"choices": [{"index": 0, "delta": {"content": "it is"}, "finish_reason": "stop"}]}
PLAIN = stream(WORDS, {"choices": [], "usage": USAGE})


def refusing(status: int, message: str = "Unrecognized request argument: stream_options"):
    def answer(asked: Asked) -> Reply:
        if asked.body.get("stream_options") is not None:
            return Reply({"error": {"message": message}}, status)
        return Reply(PLAIN)

    return answer


@pytest.mark.parametrize("more", [{}, {"stream_options": None}])
@pytest.mark.parametrize("status", [400, 422])
def test_stream_options_that_are_refused_are_left_out(status, more):
    body = body_of(PATHS[0], stream=True, **more)
    with (
        path_server(refusing(status)) as (url, asked),
        serving(url) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        for _ in range(3):
            got = post(query.base_url + PATHS[0], body)
            assert (got.status, got.cut) == (200, False)
            assert b"it is" in got.body
        solver = post(query.base_url + PATHS[0], body | {"model": "solver"})
    assert solver.status == 200
    sent = [request.body.get("stream_options") is not None for request in asked]
    assert sent == [True, False, False, False, True, False]  # once for each LLM
    assert sum("include_usage" in json.dumps(request.body) for request in asked) == 2
    bill = query.ledger.by_module()["planner"]
    assert (bill.calls, bill.failed, bill.estimated_usd) == (3, 0, 0.0)
    assert bill.cost_usd == pytest.approx(3 * USD)


def test_what_is_lost_after_such_a_refusal_is_booked():
    refused = response(b'{"error": {"message": "unknown: stream_options"}}', status=400)

    def answer(request: dict, _: int) -> list[bytes]:
        return [refused if "stream_options" in request else CUT]

    with RawServer(answer) as upstream, serving(upstream.url) as endpoint:
        with endpoint.query(CHOICE) as query:
            got = post(query.base_url + PATHS[0], body_of(PATHS[0], stream=True))
        assert (got.status, len(upstream.requests)) == (502, 2)
    bill = query.ledger.by_module()["planner"]
    assert (bill.calls, bill.failed, bill.completion_tokens) == (1, 1, 32)
    assert bill.cost_usd == bill.estimated_usd > 0


def test_other_refusals_and_options_of_the_application_stay():
    own = body_of(PATHS[0], stream=True, stream_options={"include_usage": True})
    with (
        path_server(refusing(400)) as (url, asked),
        serving(url) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        assert post(query.base_url + PATHS[0], own).status == 400
        assert len(asked) == 1
    with (
        path_server(refusing(400, "no such model")) as (url, asked),
        serving(url) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        got = post(query.base_url + PATHS[0], body_of(PATHS[0], stream=True))
        assert (got.status, len(asked)) == (400, 1)
        assert b"no such model" in got.body


def test_the_switch_asks_for_no_usage():
    with (
        path_server(refusing(400)) as (url, asked),
        serving(url, asks_for_usage=False) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        assert post(query.base_url + PATHS[0], body_of(PATHS[0], stream=True)).status == 200
    assert [request.body.get("stream_options") for request in asked] == [None]
    assert query.ledger.cost_usd == pytest.approx(USD)


def later(looks: int, ends: Reply):
    """A background response that is done after some looks."""
    waiting = {"id": "resp_1", "object": "response", "status": "queued", "usage": None}
    state = {"looks": 0}

    def answer(asked: Asked) -> Reply:
        if asked.method == "POST":
            return Reply(waiting)
        state["looks"] += 1
        return Reply(waiting | {"status": "in_progress"}) if state["looks"] < looks else ends

    return answer


DONE = {"id": "resp_1", "object": "response", "status": "completed", "output": [],
        "usage": {"input_tokens": 9, "output_tokens": 4}}  # fmt: skip


@pytest.fixture
def quick_looks(monkeypatch):
    monkeypatch.setattr("scope_torch.serve.upstream._FIRST_LOOK_S", 0.01)


def test_a_background_response_is_asked_for_its_usage(quick_looks):
    body = body_of(PATHS[1], background=True)
    with (
        path_server(later(3, Reply(DONE))) as (url, asked),
        serving(url) as endpoint,
    ):
        with endpoint.query(CHOICE) as query:
            got = post(query.base_url + PATHS[1], body)
            assert got.json()["status"] == "queued"
        assert query.ledger.cost_usd == pytest.approx(USD)
    assert query.ledger.estimated_usd == 0.0
    assert [request.path for request in asked[1:]] == ["/v1/responses/resp_1"] * (len(asked) - 1)


@pytest.mark.parametrize("ends", [Reply({}, 404), Reply(DONE | {"usage": None})])
def test_a_background_response_that_tells_nothing_is_estimated(quick_looks, ends):
    with path_server(later(2, ends)) as (url, _), serving(url) as endpoint:
        with endpoint.query(CHOICE) as query:
            assert post(query.base_url + PATHS[1], body_of(PATHS[1], background=True)).status == 200
        bill = query.ledger.by_module()["planner"]
    assert bill.completion_tokens == 32
    assert bill.estimated_usd == bill.cost_usd > 0


def test_an_application_asks_for_its_background_response(quick_looks):
    with path_server(later(4, Reply(DONE))) as (url, asked), serving(url) as endpoint:
        with (
            endpoint.query(CHOICE) as query,
            openai.OpenAI(base_url=query.base_url, api_key="x") as client,
        ):
            response = client.responses.create(model="scope/planner", input="hi", background=True)
            while response.status in ("queued", "in_progress"):
                response = client.responses.retrieve(response.id)
            client.responses.delete(response.id)
        assert query.ledger.by_module()["planner"].calls == 1
        assert query.ledger.cost_usd == pytest.approx(USD)
    assert {(r.method, r.path) for r in asked} == {
        ("POST", "/v1/responses"), ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
    }  # fmt: skip


def test_a_response_that_the_application_deletes_at_once_is_booked(monkeypatch):
    """The endpoint has not looked yet, but has seen what the application was told."""
    monkeypatch.setattr("scope_torch.serve.upstream._FIRST_LOOK_S", 0.5)
    gone = []

    def answer(asked: Asked) -> Reply:
        if asked.method == "DELETE":
            gone.append(asked.path)
        if asked.method == "GET" and gone:
            return Reply({}, 404)
        return Reply(DONE if asked.method == "GET" else DONE | {"status": "queued", "usage": None})

    with path_server(answer) as (url, _), serving(url) as endpoint:
        with endpoint.query(CHOICE) as query:
            post(query.base_url + PATHS[1], body_of(PATHS[1], background=True))
            one = f"{query.base_url}/responses/resp_1"
            assert post(one, b"", method="GET").json()["status"] == "completed"
            assert post(one, b"", method="DELETE").status == 200
        assert query.ledger.cost_usd == pytest.approx(USD)
    assert query.ledger.estimated_usd == 0.0
    assert len(gone) == 1


@pytest.mark.parametrize("name", ["../../admin", "..", ".", "", "a b", "a?b", "a\n", 7, None])
def test_an_identifier_that_is_a_path_is_not_asked_for(name):
    waiting = {"id": name, "status": "queued", "usage": None}
    with (
        path_server(lambda _: Reply(waiting)) as (url, asked),
        serving(url) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        assert post(query.base_url + PATHS[1], body_of(PATHS[1], background=True)).status == 200
    assert len(asked) == 1


def test_tokens_are_counted_for_the_llm_of_a_module():
    def answer(asked: Asked) -> Reply:
        return Reply({"input_tokens": 14, "model": asked.body["model"]})

    with (
        path_server(answer) as (url, asked),
        serving(url, extra_body={"top_k": 3}) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        counted = post(
            f"{query.base_url}/responses/input_tokens", {"model": "planner", "input": "x"}
        )
        assert counted.json()["model"] == "medium"
        body = {"model": "scope/planner", "messages": MESSAGES}
        got = post(f"{query.base_url}/messages/count_tokens?beta=true", body)
        assert got.json() == {"input_tokens": 14, "model": "medium"}
        assert post(f"{query.base_url}/messages/count_tokens", {"model": "x"}).status == 404
    assert asked[0].body == {"model": "medium", "input": "x"}
    assert asked[1].path == "/v1/messages/count_tokens?beta=true"
    assert asked[1].body == {"model": "medium", "messages": MESSAGES}
    assert query.ledger.by_module() == {}


def test_embeddings_say_what_to_do(endpoint, upstream):
    with endpoint.query(CHOICE) as query:
        got = post(f"{query.base_url}/embeddings", {"model": "x", "input": "hi"})
    assert (got.status, upstream.requests) == (404, [])
    assert "such as embeddings, give the application a client of its own" in got.body.decode()


def raw(url: str, path: str, headers: bytes, body: dict) -> bytes:
    """Sends a request byte by byte as it is, and returns the answer."""
    content = json.dumps(body).encode()
    host, port = url.split("/")[2].split(":")
    prefix = "/" + url.split("/", 3)[3]
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(
            f"POST {prefix}{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode() + headers
            + f"Connection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
        )  # fmt: skip
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("name", ["Zoë", "日本", "naïve \u2028", "\x80\xff"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_header_outside_latin_1_goes_both_ways(name, is_stream):
    """It was booked without being sent, or a paid reply became an error of status 500."""
    text = name.encode("latin-1") if name == "\x80\xff" else name.encode()

    def answer(asked: Asked) -> Reply:
        back = {"x-request-id": asked.headers["x-title"].encode("latin-1"), "openai-name": text}
        return Reply(PLAIN if is_stream else CHAT, headers=back)

    with (
        path_server(answer) as (url, asked),
        serving(url) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        body = body_of(PATHS[0], stream=is_stream)
        got = raw(query.base_url, PATHS[0], b"X-Title: " + text + b"\r\n", body)
    head = got.partition(b"\r\n\r\n")[0]
    assert head.startswith(b"HTTP/1.1 200")
    assert b"x-request-id: " + text in head
    assert b"openai-name: " + text in head
    assert asked[0].headers["x-title"].encode("latin-1") == text
    bill = query.ledger.by_module()["planner"]
    assert (bill.calls, bill.failed) == (1, 0)
    assert bill.cost_usd == pytest.approx(USD)


def test_a_request_that_cannot_be_built_costs_nothing(monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise UnicodeEncodeError("ascii", "\u2028", 0, 1, "ordinal not in range(128)")

    with path_server(lambda _: Reply(CHAT)) as (url, asked), serving(url) as endpoint:
        monkeypatch.setattr(endpoint._upstream._client, "build_request", broken)
        with endpoint.query(CHOICE) as query:
            got = post(query.base_url + PATHS[0], body_of(PATHS[0]))
    assert (got.status, got.headers["x-should-retry"], asked) == (502, "false", [])
    assert b"cannot be sent on (UnicodeEncodeError)" in got.body
    bill = query.ledger.by_module()["planner"]
    assert (bill.calls, bill.failed, bill.cost_usd) == (1, 1, 0.0)


SECRET = "sk-of-the-upstream-456"


@pytest.mark.parametrize("is_text", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
def test_keys_are_redacted_in_errors_with_status_200(monkeypatch, is_stream, is_text):
    monkeypatch.setenv("UPSTREAM_KEY", SECRET)
    message = f"Incorrect API key provided: {SECRET}"
    error = {"error": message if is_text else {"message": message, "code": 401}}
    reply = Reply(stream(WORDS, error) if is_stream else error)
    with (
        path_server(lambda _: reply) as (url, _),
        serving(url, api_key_env="UPSTREAM_KEY") as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        got = post(query.base_url + PATHS[0], body_of(PATHS[0], stream=is_stream))
    assert got.status == 200
    assert b"provided: ***" in got.body
    assert SECRET.encode() not in got.body
    assert query.ledger.by_module()["planner"].failed == 1


SAID = f"Incorrect API key provided: {SECRET}"
ERRORS_OF_OTHER_FORMS = [
    {"detail": SAID},
    {"object": "error", "message": SAID, "code": 401},
    [{"error": {"message": SAID}}],
    {"choices": [{"message": {"content": ""}, "error": {"message": SAID}}]},
    CHAT | {"error": {"message": SAID}},
    SAID,
]


@pytest.mark.parametrize("error", ERRORS_OF_OTHER_FORMS)
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_key_is_redacted_whatever_the_reply(monkeypatch, path, is_stream, error):
    monkeypatch.setenv("UPSTREAM_KEY", SECRET)
    body = error if isinstance(error, str) else json.dumps(error)
    reply = Reply(f"event: error\ndata: {body}\n\n" if is_stream else body.encode())
    with (
        path_server(lambda _: reply) as (url, _),
        serving(url, api_key_env="UPSTREAM_KEY") as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        got = post(query.base_url + path, body_of(path, stream=is_stream))
    assert got.status == 200
    assert body.replace(SECRET, "***").encode() in got.body


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_reply_without_the_key_stays_as_it_is(monkeypatch, is_stream):
    """Other secrets of the environment, and a short key, may be words of the reply."""
    monkeypatch.setenv("UPSTREAM_KEY", "it-is")
    monkeypatch.setenv("OTHER_KEY", "how are you")
    spaced = '{"choices":  [{"index": 0, "message": {"content": "it-is; how are you"}}]}'
    body = f"data: {spaced}\n\ndata: [DONE]\n\n" if is_stream else spaced
    with (
        path_server(lambda _: Reply(body if is_stream else body.encode())) as (url, _),
        serving(url, api_key_env="UPSTREAM_KEY") as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        got = post(query.base_url + PATHS[0], body_of(PATHS[0], stream=is_stream))
    assert got.body == body.encode()


@pytest.mark.parametrize("path", [PATHS[1], PATHS[2]])
def test_keys_are_redacted_in_error_events(monkeypatch, path):
    monkeypatch.setenv("UPSTREAM_KEY", SECRET)
    event = {"type": "error", "error": {"message": f"no such key {SECRET}"}}
    with (
        path_server(lambda _: Reply(f"event: error\ndata: {json.dumps(event)}\n\n")) as (url, _),
        serving(url, api_key_env="UPSTREAM_KEY") as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        got = post(query.base_url + path, body_of(path, stream=True))
    assert b"no such key ***" in got.body
    assert SECRET.encode() not in got.body


def test_a_cost_that_the_reply_names_is_checked(caplog):
    told = {"usage": USAGE | {"cost": 0.01}}
    prices = PriceList({"checked": LLMInfo("checked", 1.0, 4.0)})
    with path_server(lambda _: Reply(CHAT | told)) as (url, _), serving(
        url, prices=prices
    ) as endpoint:  # fmt: skip
        for _ in range(2):
            with endpoint.query({"planner": "checked"}) as query:
                post(query.base_url + PATHS[0], body_of(PATHS[0]))
    assert query.ledger.cost_usd == pytest.approx(USD)
    (record,) = caplog.records
    assert "a reply of 'checked' names a cost of 0.01 USD" in record.getMessage()
