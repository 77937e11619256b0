"""Reads the bill of a reply while it passes: of a whole one, or of a stream of events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from scope_torch.llm.billing import MAX_REPLY_BYTES, Usage, parse_int
from scope_torch.llm.usage import usage_of
from scope_torch.serve.apis import CHAT, RESPONSES, Api, Refused
from scope_torch.serve.estimates import (
    Most,
    believable,
    estimate,
    prompt_believable,
    said_bytes,
)

MAX_STREAM_BYTES = 8 * MAX_REPLY_BYTES  # the frame of an event is far larger than its token

# Two line ends; possessive, so that \r\n counts as one.
_END_OF_EVENT = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_LONGEST_END = 4


class Events:
    """Cuts a stream of server-sent events into whole ones.

    Examples:
        >>> events = Events()
        >>> list(events.feed(b"data: 1\\n\\ndata: ")), list(events.feed(b"2\\n\\n"))
        ([b'data: 1\\n\\n'], [b'data: 2\\n\\n'])
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._num_bytes = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The events that end in this piece, byte by byte as they came.

        Raises:
            Refused: If an event has more than 8 MiB, or the stream more than 64.
        """
        self._num_bytes += len(piece)
        looked = max(len(self._held) - _LONGEST_END, 0)
        self._held += piece
        if len(self._held) > MAX_REPLY_BYTES or self._num_bytes > MAX_STREAM_BYTES:
            raise Refused(502, f"the upstream sent more than {MAX_REPLY_BYTES} bytes in an event")
        start = 0
        while end := _END_OF_EVENT.search(self._held, max(start, looked)):
            yield bytes(self._held[start : end.end()])
            start = end.end()
        del self._held[:start]

    def rest(self) -> bytes:
        """Bytes after the last whole event."""
        return bytes(self._held)


def data_of(event: bytes) -> bytes:
    """The data of an event; empty if it has none.

    Examples:
        >>> data_of(b"event: x\\ndata: {}\\n\\n")
        b'{}'
    """
    lines = _LINE_END.split(event)
    return b"\n".join(line[5:].lstrip(b" ") for line in lines if line.startswith(b"data:"))


class Reading:
    """What a reply has told so far.

    Args:
        api: The API of the request.
        most: The most tokens that the request can have asked for.
        wants_usage: Whether the application asked for the usage of a streamed chat completion.

    Attributes:
        failed: Whether the application gets an error, or a cut reply.
        free: Whether nothing was billed, unless the reply says otherwise.
        ended: Whether the last event of a stream was read.
    """

    def __init__(self, api: Api, most: Most, wants_usage: bool) -> None:
        self._api, self._most, self._wants_usage = api, most, wants_usage
        self.failed = self.free = self.ended = False
        self._reported: dict[str, Any] | None = None
        self._is_final = True  # False: the counts may still grow
        self._said = 0

    def whole(self, content: bytes) -> None:
        """Reads a whole reply."""
        reply = _decoded(content)
        if reply is None:
            self._said += len(content)
            return
        self._reported = reply
        self._said += sum(said_bytes(reply.get(key)) for key in self._api.said)
        if isinstance(reply.get("error"), dict) and not any(map(reply.get, self._api.said)):
            self.failed = self.free = True  # some servers send errors with status 200

    def event(self, event: bytes) -> bool:
        """Reads an event of a stream; returns whether the application gets it."""
        data = data_of(event)
        content = _decoded(data)
        self.ended |= self._api is CHAT and data.strip() == b"[DONE]"
        if content is None:
            return True
        if self._api is CHAT:
            return self._chat(content)
        if self._api is RESPONSES:
            self._response(content)
        else:
            self._message(content)
        return True

    def bill(self) -> Usage | None:
        """The tokens to book: as told, or an upper estimate; None for nothing."""
        told = usage_of(self._reported) if self._reported else None
        if told is not None and self._is_final and believable(told, self._most, self._said):
            return told
        if self.free:
            return None
        known = told is not None and not self._is_final and prompt_believable(told, self._most)
        return estimate(self._most, self._said, told if known else None)

    def _chat(self, chunk: dict[str, Any]) -> bool:
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._said += said_bytes(choice.get("delta"))
        self.failed |= bool(chunk.get("error"))
        if not isinstance(chunk.get("usage"), dict):
            return True
        self._reported = chunk
        return bool(choices) or self._wants_usage

    def _response(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        self._said += said_bytes(event.get("delta"))
        self.failed |= kind in ("error", "response.failed")
        response = event.get("response")
        ended = kind in ("response.completed", "response.incomplete", "response.failed")
        self.ended |= ended
        if ended and isinstance(response, dict):
            self._reported = response

    def _message(self, event: dict[str, Any]) -> None:
        """The first event counts the prompt; the last ones add the tokens of the reply."""
        self._said += said_bytes(event.get("delta"))
        self.failed |= event.get("type") == "error"
        self.ended |= event.get("type") == "message_stop"
        message = event.get("message")
        usage = (message if isinstance(message, dict) else event).get("usage")
        if event.get("type") in ("message_start", "message_delta") and isinstance(usage, dict):
            before = (self._reported or {}).get("usage", {})
            told = {key: value for key, value in usage.items() if value is not None}
            self._reported = {"type": "message", "usage": before | told}
            self._is_final = event["type"] == "message_delta"


def _decoded(content: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(content, parse_int=parse_int)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
