"""What the tests of the endpoint share."""

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from serve.fake_upstream import prices

from scope_torch.serve.endpoint import Endpoint

CHOICE = {"planner": "medium", "solver": "small", "critic": "large"}
MESSAGES = [{"role": "user", "content": "how are you today?"}]
PATHS = ("/chat/completions", "/responses", "/messages")


class Got(NamedTuple):
    """An answer as it came over the wire; `cut` if the connection ended before the answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: bool = False

    def json(self) -> Any:
        return json.loads(self.body)


@contextmanager
def serving(url: str, **settings: Any) -> Iterator[Endpoint]:
    """An endpoint in front of an upstream."""
    with Endpoint(url, **{"prices": prices(), "timeout_s": 20.0, **settings}) as endpoint:
        yield endpoint


def body_of(path: str, model: object = "scope/planner", **more: Any) -> dict:
    """A request of one of the APIs, of at most 32 tokens."""
    limit = {PATHS[0]: "max_tokens", PATHS[1]: "max_output_tokens", PATHS[2]: "max_tokens"}[path]
    said = "input" if path == PATHS[1] else "messages"
    return {"model": model, said: MESSAGES, limit: 32, **more}


def post(url: str, body: object, headers: Mapping[str, str] = {}, *, method: str = "POST") -> Got:
    """Sends a request, without any client of an API."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request(method, path, content, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        got = Got(response.status, dict(response.getheaders()), b"")
        try:
            return got._replace(body=response.read())
        except http.client.IncompleteRead as error:
            return got._replace(body=error.partial, cut=True)
    finally:
        connection.close()


def message_of(got: Got) -> str:
    return got.json()["error"]["message"]


def wait_until(done: Callable[[], object]) -> None:
    """Waits until the condition holds."""
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)
