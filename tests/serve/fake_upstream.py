"""An upstream on this machine that speaks four APIs, streams, calls tools and keeps its ledger."""

import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo

LLMS = {
    "tiny": LLMInfo("tiny", 0.05, 0.2),
    "small": LLMInfo("small", 0.1, 0.4, model="vendor/small-1"),
    "medium": LLMInfo("medium", 1.0, 4.0, cached_input_usd_per_mtok=0.25),
    "large": LLMInfo("large", 10.0, 40.0),
}
CACHED = 2  # prompt tokens that are read from the cache, of every prompt


def prices() -> PriceList:
    return PriceList(LLMS)


class Say(NamedTuple):
    """A reply.

    Args:
        text: What the LLM says.
        tool: Name and arguments of a tool that it calls instead.
        tells_usage: Whether the reply has its usage.
        cut_after: A stream is cut after so many events; a whole reply, after so many bytes.
        gate: It is sent when the test sets this: a stream, after its first event.
    """

    text: str = "it is fine."
    tool: tuple[str, dict] | None = None
    tells_usage: bool = True
    cut_after: int | None = None
    gate: threading.Event | None = None


class Status(NamedTuple):
    """An answer with another status."""

    status: int
    body: bytes = b"{}"
    headers: Mapping[str, str] = {}


class Served(NamedTuple):
    """A reply that was billed; `tag` is the key `metadata` of the request."""

    model: str
    tag: str
    prompt: int
    completion: int
    cached: int


Answer = Callable[[dict], Say | Status | str]


class FakeUpstream:
    """Answers `/v1/chat/completions`, `/responses`, `/messages` and `/models/x:generateContent`.

    Attributes:
        url: Its base URL.
        requests, headers, paths: What it received.
        served: What it bills.
    """

    def __init__(self, answer: Answer = lambda _: Say()) -> None:
        self.answer = answer
        self.requests: list[dict] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.served: list[Served] = []
        self.lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> "FakeUpstream":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def usd_by_tag(self) -> dict[str, float]:
        """What each tag is billed, in USD."""
        by_model = {name: llm for llm in LLMS.values() for name in (llm.name, llm.model)}
        bills: dict[str, float] = defaultdict(float)
        for bill in self.served:
            llm = by_model[bill.model]
            price = llm.cached_input_usd_per_mtok
            cached_price = llm.input_usd_per_mtok if price is None else price
            bills[bill.tag] += 1e-6 * (
                (bill.prompt - bill.cached) * llm.input_usd_per_mtok
                + bill.cached * cached_price
                + bill.completion * llm.output_usd_per_mtok
            )
        return dict(bills)

    def serve(self, request: dict, say: Say) -> Served:
        """Bills a reply: a token is a word."""
        asked = request.get("messages", request.get("input", request.get("contents")))
        words = json.dumps(asked).split()
        said = say.tool[0] if say.tool else say.text
        tag = (request.get("metadata") or {}).get("tag", "")
        bill = Served(request["model"], tag, len(words) + CACHED, len(said.split()), CACHED)
        with self.lock:
            self.served.append(bill)
        return bill


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        """Ignores that the client or the test closed the connection."""


def _handler(upstream: FakeUpstream) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            request = json.loads(content)
            path = self.path.partition("?")[0].removeprefix("/v1")
            with upstream.lock:
                upstream.requests.append(request)
                upstream.headers.append({k.lower(): v for k, v in self.headers.items()})
                upstream.paths.append(self.path)
            reply = upstream.answer(request)
            reply = Say(reply) if isinstance(reply, str) else reply
            if isinstance(reply, Status):
                self._send(reply.status, reply.body, reply.headers)
                return
            if of_gemini := re.fullmatch("/models/(.+):(streamG|g)enerateContent", path):
                path, streams = "/models", of_gemini[2] == "streamG"
                request = request | {"model": of_gemini[1], "stream": streams}
            api = _APIS[path]
            bill = upstream.serve(request, reply)
            if request.get("stream"):
                self._stream(api.events(request, reply, bill), reply)
                return
            body = json.dumps(api.whole(request, reply, bill)).encode()
            if reply.gate is not None:
                reply.gate.wait(30)
            self._send(200, body, {}, reply.cut_after)

        def _send(
            self, status: int, body: bytes, headers: Mapping[str, str], cut: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:cut])

        def _stream(self, events: Iterator[str], say: Say) -> None:
            self.wfile.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            for number, event in enumerate(events):
                if number == say.cut_after:
                    return
                data = event.encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                if number == 0 and say.gate is not None:
                    say.gate.wait(30)
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _event(data: dict, name: str = "") -> str:
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n"


def _pieces(text: str) -> list[str]:
    return [word + " " for word in text.split(" ")[:-1]] + text.split(" ")[-1:]


class _Chat:
    @staticmethod
    def usage(bill: Served) -> dict:
        details = {"prompt_tokens_details": {"cached_tokens": bill.cached}}
        counts = {"prompt_tokens": bill.prompt, "completion_tokens": bill.completion}
        return counts | details | {"total_tokens": bill.prompt + bill.completion}

    def whole(self, request: dict, say: Say, bill: Served) -> dict:
        message: dict = {"role": "assistant", "content": None if say.tool else say.text}
        if say.tool:
            message["tool_calls"] = [self._call(say.tool)]
        reason = "tool_calls" if say.tool else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        base = self._base("chat.completion", request)
        return (
            base | {"choices": [choice]} | ({"usage": self.usage(bill)} if say.tells_usage else {})
        )

    def events(self, request: dict, say: Say, bill: Served) -> Iterator[str]:
        base = self._base("chat.completion.chunk", request)
        deltas: list[dict] = [{"role": "assistant", "content": ""}]
        deltas += [{"tool_calls": [self._call(say.tool) | {"index": 0}]}] if say.tool else []
        deltas += [] if say.tool else [{"content": piece} for piece in _pieces(say.text)]
        for delta in deltas:
            yield _event(base | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        last = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if say.tool else "stop"}
        yield _event(base | {"choices": [last]})
        if (request.get("stream_options") or {}).get("include_usage") and say.tells_usage:
            yield _event(base | {"choices": [], "usage": self.usage(bill)})
        yield "data: [DONE]\n\n"

    @staticmethod
    def _base(kind: str, request: dict) -> dict:
        return {"id": "c1", "object": kind, "created": 1, "model": request["model"]}

    @staticmethod
    def _call(tool: tuple[str, dict]) -> dict:
        function = {"name": tool[0], "arguments": json.dumps(tool[1])}
        return {"id": "call_1", "type": "function", "function": function}


class _Responses:
    def whole(self, request: dict, say: Say, bill: Served) -> dict:
        text = {"type": "output_text", "text": say.text, "annotations": []}
        item = {"type": "message", "id": "m1", "role": "assistant", "status": "completed"}
        item["content"] = [text]  # type: ignore[assignment]
        if say.tool:
            item = {"type": "function_call", "id": "f1", "call_id": "call_1", "name": say.tool[0],
                    "arguments": json.dumps(say.tool[1]), "status": "completed"}  # fmt: skip
        usage = {
            "input_tokens": bill.prompt,
            "input_tokens_details": {"cached_tokens": bill.cached},
            "output_tokens": bill.completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": bill.prompt + bill.completion,
        }
        whole = {"id": "r1", "object": "response", "created_at": 1, "status": "completed",
                 "model": request["model"], "output": [item], "parallel_tool_calls": True,
                 "tool_choice": "auto", "tools": [], "error": None}  # fmt: skip
        return whole | ({"usage": usage} if say.tells_usage else {})

    def events(self, request: dict, say: Say, bill: Served) -> Iterator[str]:
        whole = self.whole(request, say, bill)
        begun = whole | {"status": "in_progress", "output": [], "usage": None}
        events: list[dict] = [{"type": "response.created", "response": begun}]
        item = whole["output"][0]
        begun_item = {**item, "status": "in_progress"} | ({} if say.tool else {"content": []})
        item_of = {"output_index": 0, "item": begun_item}
        events.append({"type": "response.output_item.added", **item_of})
        where = {"item_id": item["id"], "output_index": 0}
        if not say.tool:
            where["content_index"] = 0
            part = {"type": "output_text", "text": "", "annotations": []}
            events.append({"type": "response.content_part.added", **where, "part": part})
        kind = "response.function_call_arguments" if say.tool else "response.output_text"
        for piece in _pieces(item["arguments"] if say.tool else say.text):
            events.append({"type": f"{kind}.delta", **where, "delta": piece})
        events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
        events.append({"type": "response.completed", "response": whole})
        for number, event in enumerate(events):
            yield _event(event | {"sequence_number": number}, event["type"])


class _Messages:
    def usage(self, bill: Served) -> dict:
        counts = {"input_tokens": bill.prompt - bill.cached, "output_tokens": bill.completion}
        return counts | {"cache_read_input_tokens": bill.cached, "cache_creation_input_tokens": 0}

    def whole(self, request: dict, say: Say, bill: Served) -> dict:
        block: dict = {"type": "text", "text": say.text}
        if say.tool:
            block = {"type": "tool_use", "id": "t1", "name": say.tool[0], "input": say.tool[1]}
        reason = "tool_use" if say.tool else "end_turn"
        whole = {"id": "m1", "type": "message", "role": "assistant", "model": request["model"],
                 "content": [block], "stop_reason": reason, "stop_sequence": None}  # fmt: skip
        return whole | ({"usage": self.usage(bill)} if say.tells_usage else {})

    def events(self, request: dict, say: Say, bill: Served) -> Iterator[str]:
        whole = self.whole(request, say, bill)
        usage = self.usage(bill) if say.tells_usage else {}
        begun = {**whole, "content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
        yield _event({"type": "message_start", "message": begun}, "message_start")
        start = {"type": "content_block_start", "index": 0}
        yield _event(start | {"content_block": {"type": "text", "text": ""}}, start["type"])
        for piece in _pieces(say.text):
            delta = {"type": "text_delta", "text": piece}
            event = {"type": "content_block_delta", "index": 0, "delta": delta}
            yield _event(event, "content_block_delta")
        yield _event({"type": "content_block_stop", "index": 0}, "content_block_stop")
        end = {"stop_reason": "end_turn", "stop_sequence": None}
        told = {"usage": {"output_tokens": bill.completion}} if say.tells_usage else {"usage": {}}
        yield _event({"type": "message_delta", "delta": end, **told}, "message_delta")
        yield _event({"type": "message_stop"}, "message_stop")


class _Gemini:
    def whole(self, request: dict, say: Say, bill: Served) -> dict:
        said: list[dict] = [{"text": say.text}]
        if say.tool:
            said = [{"functionCall": {"name": say.tool[0], "args": say.tool[1]}}]
        return self._part(request, say, bill, said, "STOP")

    def events(self, request: dict, say: Say, bill: Served) -> Iterator[str]:
        pieces = _pieces(say.text)
        for number, piece in enumerate(pieces, 1):
            ends = "STOP" if number == len(pieces) else None
            said = number if ends is None else bill.completion
            part = [{"text": piece}]
            yield _event(self._part(request, say, bill._replace(completion=said), part, ends))

    @staticmethod
    def _part(request: dict, say: Say, bill: Served, said: list, ends: str | None) -> dict:
        one = {"index": 0, "content": {"role": "model", "parts": said}}
        usage = {"promptTokenCount": bill.prompt, "cachedContentTokenCount": bill.cached,
                 "candidatesTokenCount": bill.completion,
                 "totalTokenCount": bill.prompt + bill.completion}  # fmt: skip
        whole = {"candidates": [one | ({"finishReason": ends} if ends else {})]}
        whole |= {"modelVersion": request["model"], "responseId": "g1"}
        return whole | ({"usageMetadata": usage} if say.tells_usage else {})


_APIS = {
    "/models": _Gemini(),
    "/chat/completions": _Chat(),
    "/responses": _Responses(),
    "/messages": _Messages(),
}
