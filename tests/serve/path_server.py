"""A server on this machine whose answers are chosen by method, path and body."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """A request that came."""

    method: str
    path: str
    body: Any
    headers: Mapping[str, str]


class Reply(NamedTuple):
    """An answer; a text body is a stream of events, and bytes are sent as they are."""

    body: Any
    status: int = 200
    headers: Mapping[str, bytes] = {}


@contextmanager
def path_server(answer: Callable[[Asked], Reply]) -> Iterator[tuple[str, list[Asked]]]:
    """The base URL, and the requests so far."""
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Asked(
                self.command, self.path, json.loads(content) if content else None, headers
            )
            asked.append(request)
            reply = answer(request)
            is_stream = isinstance(reply.body, str)
            body = reply.body if isinstance(reply.body, str | bytes) else json.dumps(reply.body)
            body = body.encode() if isinstance(body, str) else body
            kind = b"text/event-stream" if is_stream else b"application/json"
            lines = [b"HTTP/1.1 %d X" % reply.status, b"Content-Type: " + kind]
            lines += [name.encode() + b": " + value for name, value in reply.headers.items()]
            lines += [b"Content-Length: %d" % len(body), b"Connection: close"]
            self.wfile.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)

        do_GET = do_POST = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
