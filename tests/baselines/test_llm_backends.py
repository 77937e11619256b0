"""LLAMBO's LLM: a real HTTP server on this machine, transcripts, and the stand-in."""

import dataclasses
import json
import socket
import threading
import time
from pathlib import Path

import pytest
from llm_server import Server, error, ok

from scope_torch.baselines.chat_client import CompletionsClient
from scope_torch.baselines.llm_backends import BackendConfig, backend_config, make_backend
from scope_torch.baselines.llm_transcript import Replies, Transcript
from scope_torch.errors import InputError

KEY = "sk-canary-5d1e0f77aa"
CHAT = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this machine can be reached; replaces the fixture of the same name."""
    connect = socket.socket.connect

    def only_local(self: socket.socket, address: object) -> object:
        if self.family == socket.AF_INET and address[0] != "127.0.0.1":
            raise RuntimeError(f"a test tried to connect to {address!r}; the network is off")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", only_local)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEST_LLM_KEY", KEY)


@pytest.fixture
def serve():
    servers = []

    def start(answer) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def config(server: Server, **settings) -> BackendConfig:
    values = {"kind": "openai", "model": "m", "base_url": server.url, "backoff_s": 0.0}
    return backend_config({**values, "api_key_env": "TEST_LLM_KEY", **settings})


def ask(server: Server, n: int = 1, **settings) -> Replies:
    backend = make_backend(config(server, **settings), seed=0)
    return backend.complete(CHAT, n, 0.7, 32)


def test_a_reply_and_its_tokens(serve):
    server = serve([ok("one", "two")])
    assert ask(server, 2) == Replies(("one", "two"), 7, 4, 1, 0)
    assert server.paths == ["/v1/chat/completions"]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert server.requests == [
        {"model": "m", "messages": CHAT, "max_completion_tokens": 4096, "n": 2}
    ]


def test_sampling_settings_are_sent_where_allowed(serve):
    server = serve([ok("x")])
    ask(server, sampling=True, token_parameter="max_tokens", min_tokens=0)
    assert server.requests == [
        {"model": "m", "messages": CHAT, "max_tokens": 32, "temperature": 0.7, "top_p": 0.95}
    ]


def test_a_server_without_key(serve, monkeypatch):
    monkeypatch.delenv("TEST_LLM_KEY")
    server = serve([ok("x")])
    ask(server, api_key_env=None)
    assert "Authorization" not in server.headers[0]


def test_n_is_made_up_for_where_it_is_ignored(serve):
    server = serve([ok("a"), ok("b"), ok("c")])
    assert ask(server, 3) == Replies(("a", "b", "c"), 21, 6, 3, 0)
    assert [request.get("n", 1) for request in server.requests] == [3, 2, 1]
    server = serve([ok("a"), ok("b"), ok("c")])
    assert ask(server, 3, multiple=False).texts == ("a", "b", "c")
    assert all("n" not in request for request in server.requests)


def test_more_replies_than_asked_for_are_dropped(serve):
    assert ask(serve([ok("a", "b", "c")]), 2).texts == ("a", "b")


@pytest.mark.parametrize(
    "usage", [None, [], {}, {"prompt_tokens": "many", "completion_tokens": 1},
              {"prompt_tokens": -1, "completion_tokens": 1}]
)  # fmt: skip
def test_missing_usage_is_counted(serve, usage):
    assert ask(serve([ok("x", usage=usage)])) == Replies(("x",), 0, 0, 1, 1)


def test_a_refusal_is_an_empty_reply(serve):
    assert ask(serve([ok(None)])).texts == ("",)


PASSING = [
    error(429, "slow down", {"Retry-After": "0"}),
    error(429, "slow down", {"Retry-After": "soon"}),
    error(500),
    error(503),
    (200, {}, b"<html>"),
    (200, {}, b'{"choices": [' * 2000),
    (200, {}, b"[" * 100_000),
    (200, {}, b"\xff\xfe"),
    (200, {}, {"choices": []}),
    (200, {}, {"choices": [{"message": None}]}),
    (200, {}, {"choices": [{"message": {"content": 3}}]}),
    (200, {}, {"choices": 3}),
    (200, {}, 3),
    (200, {}, None),
]


@pytest.mark.parametrize("failure", PASSING, ids=range(len(PASSING)))
def test_passing_failures_are_tried_again(serve, failure):
    server = serve([failure, failure, ok("x")])
    replies = ask(server, retries=2)
    assert replies.texts == ("x",)
    assert len(server.requests) == 3
    # What was answered, but is of no use, is billed all the same, for nobody knows what.
    of_no_use = 2 * (failure[0] == 200 and failure[2] is not None)
    assert replies.requests - 1 == replies.requests_without_usage == of_no_use


@pytest.mark.parametrize("failure", PASSING, ids=range(len(PASSING)))
def test_lasting_ones_are_an_input_error(serve, failure):
    server = serve([failure])
    with pytest.raises(InputError, match=r"127\.0\.0\.1.*3 times; try again later") as caught:
        ask(server, retries=2)
    assert len(server.requests) == 3
    assert "\n" not in str(caught.value)
    assert KEY not in str(caught.value)


def test_waits_double_and_obey_the_server(serve, monkeypatch):
    waits = []
    monkeypatch.setattr("scope_torch.baselines.chat_client.time.sleep", waits.append)
    replies = [error(500), error(429, "", {"Retry-After": "7"}), error(429, "", {"Retry-After":
               "9999"}), error(503), ok("x")]  # fmt: skip
    ask(serve(replies), retries=4, backoff_s=0.5)
    assert waits == [0.5, 7.0, 60.0, 4.0]


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_is_an_input_error_at_once(serve, status):
    server = serve([error(status, f"Incorrect API key provided: {KEY}")])
    with pytest.raises(InputError, match=rf"{status}.*does not accept.*TEST_LLM_KEY") as caught:
        ask(server)
    assert len(server.requests) == 1
    assert_no_key(caught.value)


def test_without_credit_nothing_is_tried_again(serve):
    server = serve([(429, {}, {"error": {"message": "no", "code": "insufficient_quota"}})])
    with pytest.raises(InputError, match="answered 429: no credit is left"):
        ask(server)
    assert len(server.requests) == 1


def test_a_response_without_end_is_cut_off(serve, monkeypatch):
    monkeypatch.setattr("scope_torch.baselines.chat_client.MAX_RESPONSE_BYTES", 50)
    with pytest.raises(InputError, match="sent more than 50 bytes, 1 times"):
        ask(serve([ok("x" * 100)]), retries=0)


@pytest.mark.parametrize("status", [400, 404, 422])
def test_what_the_server_does_not_like_is_told(serve, status):
    message = f"no temperature,\nplease {KEY}" + "!" * 5000
    with pytest.raises(InputError, match=rf"{status} \(no temperature, please \*\*\*") as caught:
        ask(serve([error(status, message)]))
    assert len(str(caught.value)) < 600
    assert_no_key(caught.value)
    with pytest.raises(InputError, match=f"answered {status};"):
        ask(serve([(status, {}, b"no json")]))


def test_redirects_do_not_carry_the_key_elsewhere(serve):
    other = serve([ok("x")])
    for status in (301, 302, 303, 307, 308):
        server = serve([(status, {"Location": f"{other.url}/chat/completions"}, b"")])
        with pytest.raises(InputError, match=f"answered {status}"):
            ask(server)
    assert other.paths == []


def test_an_unreachable_server_is_an_input_error(serve):
    server = serve([ok("x")])
    server.close()
    with pytest.raises(InputError, match=r"cannot be reached \(ConnectionRefusedError\), 2 times"):
        ask(server, retries=1)


def test_a_silent_server_times_out(serve):
    release = threading.Event()

    def silent(_body):
        release.wait(20)
        return ok("late")

    server, began = serve(silent), time.monotonic()
    with pytest.raises(InputError, match=r"cannot be reached \(TimeoutError\), 1 times"):
        ask(server, retries=0, timeout_s=0.05)
    release.set()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("key", [None, "", "  "])
def test_without_a_key_nothing_is_sent(serve, monkeypatch, key):
    if key is None:
        monkeypatch.delenv("TEST_LLM_KEY")
    else:
        monkeypatch.setenv("TEST_LLM_KEY", key)
    server = serve([ok("x")])
    with pytest.raises(InputError, match=r"\$TEST_LLM_KEY is not set"):
        ask(server)
    assert not server.requests


@pytest.mark.parametrize("key", [f"{KEY}\nX-Other: 1", f"{KEY}\x00", f"{KEY}é"])
def test_a_key_that_cannot_be_one_is_not_shown(serve, monkeypatch, key):
    if "\x00" in key:
        monkeypatch.setattr("os.environ", {"TEST_LLM_KEY": key})
    else:
        monkeypatch.setenv("TEST_LLM_KEY", key)
    server = serve([ok("x")])
    with pytest.raises(InputError, match="characters that no key has") as caught:
        ask(server)
    assert not server.requests
    assert_no_key(caught.value)


def assert_no_key(exception: BaseException) -> None:
    seen: BaseException | None = exception
    while seen is not None:
        assert KEY not in f"{seen} {seen!r} {seen.args}"
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "ftp://host/v1", "http://", "http://host:port/v1", "http://host/v1?a=b",
     "http://host/v1#x", "http://ho st/v1", "http://host/\n", "http://höst/v1", "http://[::1/v1"],
)  # fmt: skip
def test_what_is_no_url_is_refused_before_anything(url):
    with pytest.raises(InputError, match=r"backend\.base_url"):
        make_backend(BackendConfig(kind="openai", base_url=url), seed=0)


def test_a_password_in_the_url_is_refused_and_not_shown():
    with pytest.raises(InputError, match=r"backend\.base_url has a user in it") as caught:
        make_backend(BackendConfig(kind="openai", base_url=f"https://me:{KEY}@host/v1"), seed=0)
    assert_no_key(caught.value)


def test_the_key_is_nowhere_but_in_the_request(serve, tmp_path):
    server, path = serve([ok("x")]), tmp_path / "t.jsonl"
    settings = config(server, transcript=str(path))
    backend = make_backend(settings, seed=0)
    backend.complete(CHAT, 1, 0.7, 32)
    client = backend._client
    assert isinstance(client, CompletionsClient)
    shown = [settings, backend, vars(backend), vars(client), vars(client._opener),
             json.dumps(backend.settings()), path.read_text()]  # fmt: skip
    for value in shown:
        assert KEY not in f"{value} {value!r}"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "magic"}, "kind='magic' must be one of"),
        ({"kinds": "stub"}, "no key 'kinds'; choose among"),
        ({"token_parameter": "tokens"}, "token_parameter='tokens'"),
        ({"timeout_s": -1.0}, "timeout_s=-1.0"),
        ({"price_input": float("nan")}, "price_input=nan"),
        ({"malformed": 1.0}, "malformed=1.0"),
        ({"kind": "replay"}, "transcript=None is not a file"),
        ({"kind": "replay", "transcript": "nowhere.jsonl"}, "'nowhere.jsonl' is not a file"),
    ],
)
def test_wrong_settings_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        backend_config(values)


def test_config_files_have_the_same_keys_and_defaults():
    from scope_torch.cli.schema import LLMBackendConfig

    assert dataclasses.asdict(LLMBackendConfig()) == dataclasses.asdict(BackendConfig())


class TestTranscript:
    def transcript(self, serve, path: Path) -> tuple[Server, list[Replies]]:
        """Two different replies to the same prompt, one to another."""
        server = serve([ok("a"), ok("b", usage=None), ok("c")])
        backend = make_backend(config(server, transcript=str(path)), seed=5)
        other = [{"role": "user", "content": "other"}]
        chats = [CHAT, CHAT, other]
        return server, [backend.complete(chat, 1, 0.7, 32) for chat in chats]

    def test_replies_are_on_disk_and_repeated_in_order(self, serve, tmp_path):
        path = tmp_path / "new" / "t.jsonl"
        server, replies = self.transcript(serve, path)
        assert [reply.texts for reply in replies] == [("a",), ("b",), ("c",)]
        other = [{"role": "user", "content": "other"}]
        for kind in ("openai", "replay"):
            again = make_backend(config(server, transcript=str(path), kind=kind), seed=5)
            assert again.complete(other, 1, 0.7, 32) == replies[2]
            assert [again.complete(CHAT, 1, 0.7, 32) for _ in range(2)] == replies[:2]
        assert len(server.requests) == 3

    def test_a_miss_is_an_error_that_names_the_file(self, serve, tmp_path):
        path = tmp_path / "t.jsonl"
        server, _ = self.transcript(serve, path)
        for seed, model, n in ((5, "m", 2), (6, "m", 1), (5, "n", 1)):
            settings = config(server, transcript=str(path), kind="replay", model=model)
            with pytest.raises(InputError, match=r"t\.jsonl has no reply to a prompt"):
                make_backend(settings, seed=seed).complete(CHAT, n, 0.7, 32)
        backend = make_backend(config(server, transcript=str(path), kind="replay"), seed=5)
        for _ in range(2):
            backend.complete(CHAT, 1, 0.7, 32)
        with pytest.raises(InputError, match="no reply"):  # a third was never recorded
            backend.complete(CHAT, 1, 0.7, 32)

    @pytest.mark.parametrize("damage", [b'{"key": "x', b"\xff\n", b"[]\n", b'{"key": 1}\n', b"3"])
    def test_damaged_lines_are_skipped_and_do_not_damage_the_next(
        self, serve, tmp_path, caplog, damage
    ):
        path = tmp_path / "t.jsonl"
        server, replies = self.transcript(serve, path)
        with open(path, "ab") as file:
            file.write(damage)
        backend = make_backend(config(server, transcript=str(path)), seed=5)
        assert "skipped line 4" in caplog.text
        for reply in replies[:2]:
            assert backend.complete(CHAT, 1, 0.7, 32) == reply
        new = backend.complete(CHAT, 1, 0.7, 32)
        again = make_backend(config(server, transcript=str(path), kind="replay"), seed=5)
        assert [again.complete(CHAT, 1, 0.7, 32) for _ in range(3)] == [*replies[:2], new]

    def test_in_memory_nothing_is_written(self, serve, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        server = serve([ok("a"), ok("b")])
        backend = make_backend(config(server), seed=0)
        assert backend.complete(CHAT, 1, 0.7, 32).texts == ("a",)
        assert backend.complete(CHAT, 1, 0.7, 32).texts == ("b",)
        assert list(tmp_path.iterdir()) == []

    def test_a_path_that_cannot_be_written_is_an_input_error(self, tmp_path):
        (tmp_path / "file").write_text("")
        transcript = Transcript(tmp_path / "file" / "t.jsonl")
        with pytest.raises(InputError, match="cannot write the transcript"):
            transcript.append("key", CHAT, Replies(("x",)))
        with pytest.raises(InputError, match="cannot read the transcript"):
            Transcript(tmp_path)
