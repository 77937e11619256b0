"""Requests that the endpoint refuses: they cost nothing, and the message says what to do."""

import openai
import pytest
from serve.serve_cases import CHOICE, MESSAGES, PATHS, body_of, message_of, post, serving

from scope_torch.errors import InputError
from scope_torch.serve import current
from scope_torch.serve import endpoint as module_of_endpoint
from scope_torch.serve.endpoint import Endpoint

NAMES = "scope/planner, scope/solver, scope/critic"


@pytest.fixture
def query(endpoint):
    with endpoint.query(CHOICE) as query:
        yield query


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("gpt-5", f"there is no module 'gpt-5'; ask for one of these models: {NAMES}"),
        ("medium", f"there is no module 'medium'; ask for one of these models: {NAMES}"),
        ("scope/", "there is no module 'scope/'"),
        ("scope/scope/planner", "there is no module 'scope/scope/planner'"),
        (None, "there is no module None"),
        (["planner"], "there is no module ['planner']"),
    ],
)
def test_a_name_that_is_no_module(query, upstream, path, model, told):
    got = post(f"{query.base_url}{path}", body_of(path, model))
    assert (got.status, upstream.requests) == (404, [])
    assert told in message_of(got)
    assert query.ledger.by_module() == {}


def test_what_the_app_may_not_have_heard_is_told_once(endpoint, upstream, caplog):
    for _ in range(2):
        with endpoint.query(CHOICE) as query:
            post(f"{query.base_url}/embeddings", {"model": "embed", "input": "how are you?"})
            post(f"{query.base_url}{PATHS[0]}", body_of(PATHS[0], "scope/rewriter"))
            post(f"{endpoint.url}/v1{PATHS[0]}", body_of(PATHS[0], "gpt-5"), query.headers)
            assert query.refused.startswith("there is no module 'gpt-5'")
        post(f"{query.base_url}/moderations", {"input": "hi"})  # of a query that has ended
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "the endpoint refused a request of the app: there is nothing at '/v1/embeddings': only "
        "/v1/chat/completions, /v1/responses, /v1/messages, /v1beta/models/MODULE:generateContent "
        "and /v1/models, also behind /q/KEY, and /metrics",
        "the endpoint refused a request of the app: there is no module 'scope/rewriter'",
        "the endpoint refused a request of the app: there is no module 'gpt-5'",
    ]
    assert upstream.requests == []


def test_refusals_that_all_differ_fill_no_log(endpoint, query, caplog):
    for number in range(9):
        post(f"{query.base_url}{PATHS[0]}", body_of(PATHS[0], f"gpt-{number}"))
    assert len(caplog.records) == 5
    assert query.refused.startswith("there is no module 'gpt-8'")


@pytest.mark.parametrize("path", PATHS)
def test_a_request_of_no_query(endpoint, upstream, path):
    got = post(f"{endpoint.url}/v1{path}", body_of(path))
    assert (got.status, got.headers["x-should-retry"]) == (409, "false")
    assert "belongs to no query in flight" in message_of(got)
    assert "endpoint.query(assignment)" in message_of(got)
    assert upstream.requests == []
    body = got.json()
    if path == "/messages":
        assert (body["type"], set(body["error"])) == ("error", {"type", "message"})
    else:
        assert set(body["error"]) == {"type", "message", "param", "code"}


def test_clients_show_the_refusal_and_do_not_ask_again(endpoint, query, upstream):
    import anthropic  # takes a second, in the workers that need it

    with (
        openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="x") as client,
        pytest.raises(openai.ConflictError, match="belongs to no query in flight"),
    ):
        client.chat.completions.create(model="scope/planner", messages=MESSAGES)
    with (
        anthropic.Anthropic(base_url=query.env["ANTHROPIC_BASE_URL"], api_key="x") as client,
        pytest.raises(anthropic.NotFoundError, match="there is no module 'claude'"),
    ):
        client.messages.create(model="claude", max_tokens=9, messages=MESSAGES)
    assert upstream.requests == []


def test_two_queries_in_one_request(endpoint, query, upstream):
    with endpoint.query(CHOICE) as other:
        url = f"{query.base_url}{PATHS[0]}"
        assert post(url, body_of(PATHS[0]), query.headers).status == 200
        got = post(url, body_of(PATHS[0]), other.headers)
    assert (got.status, len(upstream.requests)) == (409, 1)


@pytest.mark.parametrize("key", ["x", "1-00000000", "%2e%2e"])
def test_a_key_that_nobody_has(endpoint, query, upstream, key):
    assert post(f"{endpoint.url}/q/{key}/v1{PATHS[0]}", body_of(PATHS[0])).status == 409
    got = post(f"{endpoint.url}/v1{PATHS[0]}", body_of(PATHS[0]), {"x-scope-query": key})
    assert (got.status, upstream.requests) == (409, [])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/embeddings", 404),
        ("POST", "/chat/completions", 404),
        ("GET", "/v1/messages/count_tokens", 405),
        ("PUT", "/v1/responses/r1", 405),
        ("POST", "/v1/responses/r1", 405),
        ("POST", "/v1/responses/compact", 405),  # it is billed
        ("GET", "/v1/responses/r1/cancel", 405),
        ("POST", "/v1/responses/r1/input_items", 405),
        ("GET", "/v1/responses/r1/../../models", 404),
        ("GET", "/v1/responses/..", 404),
        ("GET", "/v1/responses/%2e%2e", 404),
        ("GET", "/v1/responses/%2e%2e%2fmodels", 404),
        ("GET", "/v1/responses/.r", 404),
        ("POST", "/v1/../v1/chat/completions/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/messages", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/", 404),
    ],
)
def test_other_paths_and_methods(query, upstream, method, path, status):
    url = query.base_url.removesuffix("/v1")
    got = post(f"{url}{path}", body_of(PATHS[0]), method=method)
    assert (got.status, upstream.requests) == (status, [])
    assert message_of(got)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"null", b"[]", b"\xff", b'{"a": NaN}', b"[" * 10**5, b'{"a": 1e999}']
)
def test_a_body_that_is_no_object(query, upstream, body):
    got = post(f"{query.base_url}{PATHS[0]}", body)
    assert (got.status, upstream.requests) == (400, [])


def test_a_packed_or_huge_body(query, upstream, monkeypatch):
    url = f"{query.base_url}{PATHS[0]}"
    assert post(url, body_of(PATHS[0]), {"Content-Encoding": "gzip"}).status == 415
    monkeypatch.setattr("scope_torch.serve.app.MAX_REQUEST_BYTES", 50)
    assert post(url, body_of(PATHS[0])).status == 413
    assert upstream.requests == []


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("Host", "evil.example", 403),
        ("Host", "evil.example:80", 403),
        ("Host", "127.0.0.1.evil.example", 403),
        ("Host", "[::1", 403),
        ("Host", "localhost:1", 200),
        ("Host", "[::1]:8700", 200),
        ("Host", "127.8.9.1", 200),
        ("Origin", "https://evil.example", 403),
        ("Origin", "null", 403),
        ("Origin", "http://localhost:3000", 200),
    ],
)
def test_pages_of_other_sites(upstream, header, value, status):
    """A browser of this machine can reach the endpoint; a page of another site must not."""
    with serving(upstream.url, chosen=CHOICE) as endpoint:
        got = post(f"{endpoint.url}/v1{PATHS[0]}", body_of(PATHS[0]), {header: value})
    assert (got.status, len(upstream.requests)) == (status, int(status == 200))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"base_url": "ftp://x"}, "base_url must be a plain"),
        ({"base_url": "http://me:pw@x/v1"}, "put the key into an environment variable"),
        ({"api_key_env": "SCOPE_NO_SUCH_KEY"}, "SCOPE_NO_SUCH_KEY is not set"),
        ({"timeout_s": 0}, "timeout_s=0 must be"),
        ({"timeout_s": float("nan")}, "timeout_s=nan must be"),
        ({"port": 70000}, "port=70000 must be from 0"),
        ({"prices": "prices.toml"}, "prices='prices.toml' must be a PriceList, such as"),
        ({"extra_body": {"model": "x"}}, "the application decides"),
        ({"extra_body": {"x": float("inf")}}, "cannot be sent as JSON"),
        ({"chosen": {"planner": "gpt-nobody-knows"}}, "gpt-nobody-knows"),
        ({"chosen": {}}, "no module has an LLM"),
    ],
)
def test_settings_that_cannot_be_used(settings, told):
    with (
        pytest.raises(InputError, match="(?s)" + told),
        serving(settings.pop("base_url", "http://127.0.0.1:1/v1"), **settings),
    ):
        pass


def test_an_llm_without_price(endpoint):
    with pytest.raises(InputError, match="nobody-knows"), endpoint.query({"a": "nobody-knows"}):
        pass


def test_an_endpoint_that_is_not_started(upstream):
    endpoint = Endpoint(upstream.url)
    with pytest.raises(InputError, match="not started"), endpoint.query(CHOICE):
        pass
    endpoint.stop()


def test_a_port_that_is_taken(endpoint, upstream):
    port = int(endpoint.url.rpartition(":")[2])
    with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1, port {port}: "):
        Endpoint(upstream.url, port=port).start()
    with pytest.raises(InputError, match="started already"):
        endpoint.start()


def test_a_package_that_is_missing(monkeypatch):
    def missing(name: str) -> None:
        raise ImportError(name=name)

    monkeypatch.setattr(module_of_endpoint, "import_module", missing)
    with pytest.raises(InputError, match=r'package httpx: pip install "scope-torch\[serve\]"'):
        Endpoint("http://127.0.0.1:1/v1")


def test_no_query_is_in_flight_here(endpoint):
    with endpoint.query(CHOICE):
        pass
    for ask in (current.base_url, current.headers):
        with pytest.raises(InputError, match="no query is in flight here"):
            ask()


def test_a_start_that_fails_says_why(upstream, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "ftp://nowhere")
    endpoint = Endpoint(upstream.url)
    with pytest.raises(InputError, match="did not start: "):
        endpoint.start()
    monkeypatch.delenv("HTTP_PROXY")
    with endpoint:
        assert post(f"{endpoint.url}/v1{PATHS[0]}", body_of(PATHS[0])).status == 409
