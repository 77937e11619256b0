"""Who may ask the endpoint: other names of this machine, tokens, and callers that stop halfway."""

import contextvars
import http.client
import http.server
import json
import logging
import socket
import threading

import h11
import openai
import pytest
from serve.fake_upstream import Say, prices
from serve.serve_cases import (
    CHOICE,
    MESSAGES,
    PATHS,
    body_of,
    message_of,
    post,
    serving,
    wait_until,
)

from scope_torch.errors import InputError
from scope_torch.serve.endpoint import Endpoint

TOKEN = "a-token-of-the-test"
USAGE = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
DOCKER = {"Host": "host.docker.internal:8700"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_container_names_this_machine_and_sends_the_token(upstream):
    with (
        serving(upstream.url, allowed_hosts=["host.docker.internal"], token=TOKEN) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        url = query.base_url + PATHS[0]
        for headers in (bearer(TOKEN), {"x-api-key": TOKEN}, {"Authorization": f"bearer {TOKEN}"}):
            assert post(url, body_of(PATHS[0]), DOCKER | headers).status == 200
        for headers in ({}, bearer("x"), bearer(TOKEN + "x"), {"x-api-key": "\xe9"},
                        {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}):  # fmt: skip
            for host in (DOCKER, {}):
                got = post(url, body_of(PATHS[0]), host | headers)
                assert got.status == 401
                assert "send it as the key of the API" in message_of(got)
                assert TOKEN not in got.body.decode()
        other = post(url, body_of(PATHS[0]), {"Host": "evil.example"} | bearer(TOKEN))
        assert other.status == 403
        assert "allowed_hosts=[that name]" in message_of(other)
        page = DOCKER | bearer(TOKEN) | {"Origin": "http://host.docker.internal"}
        assert post(url, body_of(PATHS[0]), page).status == 403
    assert len(upstream.requests) == 3
    assert not any(TOKEN in str(headers) for headers in upstream.headers)


def test_clients_get_the_token_from_the_environment_of_the_query(upstream):
    import anthropic  # takes a second, in the workers that need it

    with (
        serving(upstream.url, allowed_hosts=["host.docker.internal"]) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        env = query.env
        assert env["OPENAI_API_KEY"] == env["ANTHROPIC_API_KEY"] == endpoint.token
        assert len(endpoint.token or "") >= 32
        with openai.OpenAI(base_url=query.base_url, api_key=env["OPENAI_API_KEY"]) as client:
            client.chat.completions.create(model="scope/planner", messages=MESSAGES)
        url, key = env["ANTHROPIC_BASE_URL"], env["ANTHROPIC_API_KEY"]
        with anthropic.Anthropic(base_url=url, api_key=key) as client:
            client.messages.create(model="scope/planner", max_tokens=9, messages=MESSAGES)
        with (
            openai.OpenAI(base_url=query.base_url, api_key="scope", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError, match="this endpoint has a token"),
        ):
            client.chat.completions.create(model="scope/planner", messages=MESSAGES)
    assert len(upstream.requests) == 2


def test_without_other_names_there_is_no_token(endpoint):
    assert endpoint.token is None
    with endpoint.query(CHOICE) as query:
        assert query.env["OPENAI_API_KEY"] == "scope"


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "0.0.0.0", "token": TOKEN}, False),
        ({"host": "0.0.0.0", "allowed_hosts": ["box"]}, False),
        ({"host": "localhost"}, False),
        ({}, False),
    ],
)
def test_an_open_host_without_token_warns(settings, warns, caplog):
    caplog.set_level(logging.WARNING)
    Endpoint("http://127.0.0.1:9/v1", **settings)
    assert ("without a token: whoever reaches it spends your money" in caplog.text) == warns


@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_hosts": "host.docker.internal"},
        {"allowed_hosts": ["http://box"]},
        {"allowed_hosts": [""]},
        {"allowed_hosts": ["a b"]},
        {"token": ""},
        {"token": "a b"},
        {"token": "é"},
        {"token": "a\n"},
    ],
)
def test_settings_that_cannot_be_used(settings):
    with pytest.raises(InputError, match="must be"):
        Endpoint("http://127.0.0.1:9/v1", **settings)


HALVES = {
    "nothing": b"",
    "half a head": b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0",
    "half a body": b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b'Content-Length: 999\r\n\r\n{"model"',
    "half a chunk": b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
}


def connected(endpoint: Endpoint, content: bytes) -> socket.socket:
    host, port = endpoint.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.sendall(content)
    return connection


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(65536) == b""
    except ConnectionResetError:
        return True


def has_read(endpoint: Endpoint, half: str) -> bool:
    """Whether the endpoint has the only connection, and the head if it was sent."""
    states = [one.conn.their_state for one in endpoint._server.server_state.connections]
    return states == [h11.IDLE if half in ("nothing", "half a head") else h11.SEND_BODY]


@pytest.mark.parametrize("half", HALVES)
def test_a_half_sent_request_does_not_block_the_end(upstream, half):
    """It blocked for `timeout_s`, which the test does not wait for."""
    endpoint = Endpoint(upstream.url, timeout_s=3600.0, chosen={"planner": "gpt-4o"})
    endpoint.start()
    with connected(endpoint, HALVES[half]) as connection:
        wait_until(lambda: has_read(endpoint, half))
        stopping = threading.Thread(target=endpoint.stop, daemon=True)
        stopping.start()
        stopping.join(20)
        assert not stopping.is_alive()
        assert closed(connection)


@pytest.mark.parametrize("half", HALVES)
def test_a_half_sent_request_does_not_stay(upstream, half, monkeypatch):
    monkeypatch.setattr("scope_torch.serve.server.HALF_SENT_S", 0.05)
    with (
        serving(upstream.url, chosen={"planner": "medium"}) as endpoint,
        connected(endpoint, HALVES[half]) as connection,
    ):
        assert closed(connection)
        assert post(f"{endpoint.url}/v1{PATHS[0]}", body_of(PATHS[0])).status == 200
        parts = endpoint.url.removeprefix("http://").split(":")
        client = http.client.HTTPConnection(parts[0], int(parts[1]), timeout=20)
        for _ in range(2):  # a request that is answered is not half-sent
            client.request("POST", f"/v1{PATHS[0]}", json.dumps(body_of(PATHS[0])))
            assert client.getresponse().read()
        client.close()


def test_a_slow_answer_is_not_half_sent(upstream, monkeypatch):
    monkeypatch.setattr("scope_torch.serve.server.HALF_SENT_S", 0.01)
    gate = threading.Event()
    answered: list[int] = []
    upstream.answer = lambda _: Say(gate=gate)
    with serving(upstream.url, chosen={"planner": "medium"}) as endpoint:
        url = f"{endpoint.url}/v1{PATHS[0]}"
        asking = threading.Thread(
            target=lambda: answered.append(post(url, body_of(PATHS[0])).status)
        )
        asking.start()
        wait_until(lambda: upstream.requests)
        with connected(endpoint, HALVES["half a body"]) as other:
            assert closed(other)  # so the limit has passed
        gate.set()
        asking.join(20)
    assert answered == [200]


def test_a_list_of_models_asks_no_llm_so_it_is_no_stray(endpoint):
    """A health check of a gateway made a run no observation."""
    with endpoint.query(CHOICE) as query:
        assert post(query.base_url + PATHS[0], body_of(PATHS[0])).status == 200
        assert post(f"{endpoint.url}/v1/models", b"", method="GET").status == 409
        assert post(f"{endpoint.url}/q/1-x/v1/models/planner", b"", method="GET").status == 409
        query.is_answered = True
    assert endpoint.fault_of(query) is None
    assert post(endpoint.url + "/v1" + PATHS[0], body_of(PATHS[0])).status == 409
    assert "came for a query that had ended" in endpoint.fault_of(query)


def test_a_request_that_comes_between_two_runs_is_told_at_the_next_one(endpoint):
    """The app asked on after its answer while the metric graded it, and nobody was told."""

    def fault_after(*urls: str) -> str | None:
        for url in urls:
            assert post(url + PATHS[0], body_of(PATHS[0])).status == 409
        with endpoint.query(CHOICE) as query:
            assert post(query.base_url + PATHS[0], body_of(PATHS[0])).status == 200
            query.is_answered = True
        ended.append(query.base_url)
        return endpoint.fault_of(query)

    ended: list[str] = []
    assert fault_after() is None
    assert fault_after(f"{endpoint.url}/v1", f"{endpoint.url}/q/1-x/v1") is None  # of no run
    assert "asks on after its answer" in (fault_after(ended[0]) or "")
    assert fault_after() is None


@pytest.mark.parametrize("hangs_up", [True, False])
def test_a_late_request_that_was_cancelled_is_no_stray(endpoint, hangs_up):
    """An app sent a call twice, took the first answer, and cancelled the call that was slower."""
    with endpoint.query(CHOICE) as query:
        assert post(query.base_url + PATHS[0], body_of(PATHS[0])).status == 200
    host, port = endpoint.url.removeprefix("http://").split(":")
    content = json.dumps(body_of(PATHS[0])).encode()
    head = f"POST /q/{query.key}/v1{PATHS[0]} HTTP/1.1\r\nHost: {host}\r\n"
    with socket.create_connection((host, int(port))) as late:
        late.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        if not hangs_up:
            assert late.recv(12) == b"HTTP/1.1 409"
    threading.Event().wait(0.1)  # by then it is counted
    with endpoint.query(CHOICE) as query:
        assert post(query.base_url + PATHS[0], body_of(PATHS[0])).status == 200
        query.is_answered = True
    assert (endpoint.fault_of(query) is None) == hangs_up


def test_a_client_asks_for_one_model(endpoint):
    with endpoint.query(CHOICE) as query:
        key = {"api_key": "x", "max_retries": 0}
        of_openai = openai.OpenAI(base_url=query.base_url, **key)
        assert of_openai.models.retrieve("scope/planner").id == "scope/planner"
        with pytest.raises(openai.NotFoundError, match="no module 'gpt-4o'"):
            of_openai.models.retrieve("gpt-4o")
        for path in ("/v1/models", "/v1/models/solver", "/v1beta/models/scope/solver"):
            url = query.base_url.removesuffix("/v1") + path
            got, head = (post(url, b"", method=method) for method in ("GET", "HEAD"))
            assert (got.status, head.status, head.body) == (200, 200, b"")
        assert got.json()["name"] == "models/scope/solver"
        assert got.json()["id"] == "scope/solver"


def test_a_query_that_ends_in_another_context_has_ended(upstream):
    """As that of an async fixture does."""
    with serving(upstream.url) as endpoint:
        within = endpoint.query(CHOICE)
        query = contextvars.copy_context().run(within.__enter__)
        contextvars.copy_context().run(within.__exit__, None, None, None)
        assert post(query.base_url + PATHS[0], body_of(PATHS[0])).status == 409


def test_a_cookie_of_one_query_is_not_sent_with_the_next():
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.headers.get("Cookie"))
            said = {"choices": [{"message": {"content": "42"}}], "usage": USAGE}
            content = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("Set-Cookie", "session=theirs; Path=/")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with serving(f"http://127.0.0.1:{server.server_port}/v1") as endpoint:
            for _ in range(2):
                with endpoint.query(CHOICE) as query:
                    post(query.base_url + PATHS[0], body_of(PATHS[0]))
    finally:
        server.shutdown()
        server.server_close()
    assert seen == [None, None]


@pytest.mark.slow
def test_a_second_interrupt_waits_for_no_request_and_the_endpoint_starts_again(upstream):
    answers = threading.Event()
    upstream.answer = lambda _: Say(gate=answers)
    endpoint = Endpoint(upstream.url, prices=prices(), timeout_s=20.0)
    statuses = []

    def ask() -> None:
        with endpoint.query(CHOICE) as query:
            statuses.append(post(query.base_url + PATHS[0], body_of(PATHS[0])).status)

    def interrupt() -> None:
        caller.start()
        wait_until(lambda: upstream.requests)
        raise KeyboardInterrupt

    caller = threading.Thread(target=ask)
    with pytest.raises(KeyboardInterrupt), endpoint.shared():
        interrupt()
    assert caller.is_alive()  # its request would have been waited for until its timeout
    assert not endpoint.is_started
    answers.set()
    caller.join()
    with endpoint.shared():
        ask()
    assert statuses == [200, 200]
