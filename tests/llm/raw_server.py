"""A server on this machine that answers with raw bytes and keeps its connections open."""

import json
import socket
import threading
from collections.abc import Callable, Iterable

Reply = bytes | Iterable[bytes]
CUT = b""


class RawServer:
    """Answers requests by `answer(request, number on this connection)`; a context manager.

    Args:
        answer: Takes the JSON of a request and its number on its connection, from 0; returns bytes,
            or pieces of them. The piece CUT closes the connection.

    Attributes:
        url: Its base URL.
        requests: Bodies received.
        num_connections: Connections so far.
    """

    def __init__(self, answer: Callable[[dict, int], Reply]) -> None:
        self._answer = answer
        self.requests: list[dict] = []
        self.num_connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> "RawServer":
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for connection in list(self._open):
            shut(connection)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            self._open.add(connection)
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        number = 0
        try:
            with connection, connection.makefile("rb") as file:
                while (request := _request(file)) is not None:
                    self.requests.append(request)
                    answer = self._answer(request, number)
                    pieces = [answer] if isinstance(answer, bytes) else answer
                    for piece in pieces:
                        if piece is CUT:
                            return
                        connection.sendall(piece)
                    number += 1
        except OSError:
            return  # the client closed the connection
        finally:
            self._open.discard(connection)


def shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def _request(file) -> dict | None:
    length = 0
    line = file.readline()
    if not line:
        return None
    while (line := file.readline().strip().lower()) != b"":
        name, _, value = line.partition(b":")
        if name == b"content-length":
            length = int(value)
    return json.loads(file.read(length))


def response(body: bytes, *headers: str, status: int = 200) -> bytes:
    """A whole HTTP/1.1 response."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chat(text: object, usage: object = None, finish_reason: object = "stop") -> bytes:
    """The JSON of a chat completion."""
    choice = {"index": 0, "message": {"content": text}, "finish_reason": finish_reason}
    content = {"object": "chat.completion", "choices": [choice], "usage": usage}
    return json.dumps(content).encode()
