"""An endpoint on this machine: a real HTTP server that replies, misbehaves and adds up its bill.

Other test modules get it, and the fixture that lets them reach it, by
`from llm.fake_endpoint import FakeEndpoint, only_loopback  # noqa: F401`.
"""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from scope_torch.llm.prices import LLMInfo

USAGE = "counted"


class Say(NamedTuple):
    """A reply; `usage` is USAGE for the counted tokens, None for no report, else the report."""

    text: object
    usage: object = USAGE
    finish_reason: object = "stop"


class Status(NamedTuple):
    """An answer that is not a reply: an error, a redirect, or a broken body."""

    status: int
    body: object = None  # bytes as they are, anything else as JSON
    headers: Mapping[str, str] = {}
    message: str = ""


class Cut(NamedTuple):
    """Half of a reply, or nothing, then a lost connection."""

    text: str = "half"
    of_body: float = 0.5


class Hold(NamedTuple):
    """A reply that comes when the test sets `gate`, or closes the endpoint."""

    gate: threading.Event
    then: Say


Behaviour = Say | Status | Cut | Hold | str
Answer = Callable[[dict], Behaviour]


def count_tokens(text: object) -> int:
    """The number of tokens: here a token is a word."""
    return len(str(text).split())


class FakeEndpoint:
    """Answers `/v1/chat/completions`; a context manager.

    Args:
        answer: Behaviours in turn, the last one for ever; or what a request is answered with.
        key: The key it wants; None for none.
        models: Those it has; None for any.

    Attributes:
        url: Its base URL.
        requests: Bodies received.
        headers: Headers received, their names in small letters.
        served: (model, prompt tokens, completion tokens, cached tokens) of what it bills.
        in_flight: Requests being answered; `max_in_flight` the most there have been.
    """

    def __init__(
        self,
        answer: Answer | Sequence[Behaviour] = ("ok",),
        *,
        key: str | None = None,
        models: Sequence[str] | None = None,
    ) -> None:
        self._answer, self._key, self._models = answer, key, models
        self._lock = threading.Lock()
        self.requests: list[dict] = []
        self.headers: list[dict[str, str]] = []
        self.served: list[tuple[str, int, int, int]] = []
        self.in_flight = self.max_in_flight = 0
        self._gates: set[threading.Event] = set()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> "FakeEndpoint":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        for gate in self._gates:
            gate.set()
        self._server.server_close()
        self._thread.join()

    def billed_usd(self, llms: Mapping[str, LLMInfo]) -> float:
        """Bill for everything that was served, in USD, at the prices of `llms`."""
        by_model = {llm.model or llm.name: llm for llm in llms.values()}
        total = 0.0
        for model, prompt, completion, cached in self.served:
            llm = by_model[model]
            total += 1e-6 * (prompt - cached) * llm.input_usd_per_mtok
            total += 1e-6 * completion * llm.output_usd_per_mtok
            price = llm.cached_input_usd_per_mtok
            total += 1e-6 * cached * (llm.input_usd_per_mtok if price is None else price)
        return total

    def behaviour(self, request: dict, headers: dict[str, str]) -> Behaviour:
        """The answer to a request; keeps the request."""
        with self._lock:
            number = len(self.requests)
            self.requests.append(request)
            self.headers.append(headers)
        key = headers.get("authorization", "").removeprefix("Bearer ")
        if self._key is not None and key != self._key:
            return Status(401, message=f"Incorrect API key provided: {key}")
        if self._models is not None and request["model"] not in self._models:
            return Status(404, message=f"The model {request['model']} does not exist")
        if callable(self._answer):
            return self._answer(request)
        return self._answer[min(number, len(self._answer) - 1)]

    def completion(self, request: dict, say: Say) -> bytes:
        """The body of a reply, which is billed."""
        prompt = sum(count_tokens(message["content"]) for message in request["messages"])
        tokens = count_tokens(say.text or "")
        usage: object = {"prompt_tokens": prompt, "completion_tokens": tokens}
        if say.usage != USAGE:
            usage = say.usage
        told = usage if isinstance(usage, dict) else {}
        details = told.get("prompt_tokens_details")
        cached = (details.get("cached_tokens") if isinstance(details, dict) else 0) or 0
        bill = told.get("prompt_tokens", prompt), told.get("completion_tokens", tokens), cached
        with self._lock:
            self.served.append((request["model"], *bill))
        message = {"role": "assistant", "content": say.text}
        choice = {"index": 0, "message": message, "finish_reason": say.finish_reason}
        content = {"object": "chat.completion", "model": request["model"], "choices": [choice]}
        return json.dumps(content | ({} if usage is None else {"usage": usage})).encode()

    def wait(self, gate: threading.Event) -> None:
        """Waits until the test sets the gate."""
        self._gates.add(gate)
        gate.wait(30)

    def count(self, change: int) -> None:
        """Counts a request that came (+1) or was answered (-1)."""
        with self._lock:
            self.in_flight += change
            self.max_in_flight = max(self.max_in_flight, self.in_flight)


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for them, so that a test sees everything that was served
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        """Ignores that the client or the test closed the connection."""


def _handler(endpoint: FakeEndpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            endpoint.count(1)
            try:
                answer = self._answer(request)
            finally:
                endpoint.count(-1)
            self.wfile.write(answer)

        def _answer(self, request: dict) -> bytes:
            if self.path != "/v1/chat/completions":
                return _response(404, b"{}", {})
            headers = {name.lower(): value for name, value in self.headers.items()}
            behaviour = endpoint.behaviour(request, headers)
            if isinstance(behaviour, str):
                behaviour = Say(behaviour)
            if isinstance(behaviour, Hold):
                endpoint.wait(behaviour.gate)
                behaviour = behaviour.then
            if isinstance(behaviour, Status):
                return _status(behaviour)
            if isinstance(behaviour, Cut):
                whole = _response(200, endpoint.completion(request, Say(behaviour.text)), {})
                return whole[: int(len(whole) * behaviour.of_body)]
            return _response(200, endpoint.completion(request, behaviour), {})

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _status(behaviour: Status) -> bytes:
    body = behaviour.body
    if body is None:
        body = {"error": {"message": behaviour.message}}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return _response(behaviour.status, data, behaviour.headers)


def _response(status: int, body: bytes, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.0 {status} X", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.fixture(name="_no_network", autouse=True)
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections only to this machine; replaces the fixture of tests/conftest.py."""

    def guarded(method: str) -> None:
        connect = getattr(socket.socket, method)

        def only_local(self: socket.socket, address: object) -> object:
            unix = self.family == getattr(socket, "AF_UNIX", None)
            if not (unix or address[0] == "127.0.0.1"):
                raise RuntimeError(f"a test tried to connect to {address!r}; the network is off")
            return connect(self, address)

        monkeypatch.setattr(socket.socket, method, only_local)

    guarded("connect")
    guarded("connect_ex")
    # no certificates: reading them would take longer than the rest of a test
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
