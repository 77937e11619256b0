"""An HTTP server on this machine that plays the LLM, and the replies it can give."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Reply = tuple[int, dict[str, str], object]


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, *args: object) -> None:
        """The client hung up, or was meant to be hung up on."""


class Server:
    """Answers with the replies given, the last one for ever; keeps what it was sent."""

    def __init__(self, answer: Callable[[dict], Reply] | list[Reply]) -> None:
        self.requests: list[dict] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body)
                outer.headers.append(dict(self.headers))
                outer.paths.append(self.path)
                number = len(outer.requests) - 1
                reply = answer[min(number, len(answer) - 1)] if isinstance(answer, list) else None
                status, headers, content = reply or answer(body)
                if content is None:  # hangs up
                    self.connection.close()
                    return
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                outer.paths.append(f"GET {self.path}")
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def ok(*texts: str | None, usage: object = "default") -> Reply:
    if usage == "default":
        usage = {"prompt_tokens": 7, "completion_tokens": 2 * len(texts)}
    content = {"choices": [{"message": {"role": "assistant", "content": text}} for text in texts]}
    return 200, {}, content | ({} if usage is None else {"usage": usage})


def error(status: int, message: str = "", headers: dict[str, str] | None = None) -> Reply:
    return status, headers or {}, {"error": {"message": message}}
