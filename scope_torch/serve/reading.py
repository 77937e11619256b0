"""Reads the bill of a reply while it passes: of a whole one, or of a stream of events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from scope_torch.llm.billing import MAX_REPLY_BYTES, error_in, error_of_choice, parse_int
from scope_torch.llm.estimates import Most, booked, said_bytes
from scope_torch.llm.usage import Usage, merged, usage_of
from scope_torch.serve.apis import CHAT, GENERATE, MESSAGES, RESPONSE_ID, RESPONSES, Api, Refused

MAX_STREAM_BYTES = 8 * MAX_REPLY_BYTES  # the frame of an event is far larger than its token

# Two line ends; possessive, so that \r\n counts as one.
_END_OF_EVENT = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_LONGEST_END = 4
_OF_USAGE = "usage", "x_groq"  # Groq tells it a second time
_ID = re.compile(RESPONSE_ID)


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
        wants_usage: Whether the application gets the usage of a streamed chat completion: it
            asked for it, or nobody did.

    Attributes:
        failed: Whether the application gets an error, or a cut reply.
        free: Whether nothing was billed, unless the reply says otherwise.
        ended: Whether the last event of a stream was read.
        error: An error that came with status 200; nothing was billed if no word came with it.
        later: Identifier of a background response, whose usage the upstream tells later.
    """

    def __init__(self, api: Api, most: Most, wants_usage: bool) -> None:
        self._api, self._most, self.wants_usage = api, most, wants_usage
        self.failed = self.free = self.ended = False
        self.error: object = None
        self.later: str | None = None
        self._reported: dict[str, Any] = {}
        self._is_final = True  # False: the counts may still grow
        self._said = 0
        self._begun: set[Any] = set()  # indices of choices without a reason to end, so far

    def whole(self, content: bytes) -> None:
        """Reads a whole reply."""
        reply = _decoded(content)
        if reply is None:
            self._said += len(content)
            return
        self._reported = reply
        self._said += sum(said_bytes(reply.get(key)) for key in self._api.said)
        error = reply.get("error")
        if error and not any(map(reply.get, self._api.said)):
            self._fail(error)  # some servers send errors with status 200
        elif self._api is CHAT and (error := error_in(reply)) is not None:
            self._fail(error)
        waits = self._api is RESPONSES and reply.get("status") in ("queued", "in_progress")
        named = reply.get("id")
        self.later = named if waits and isinstance(named, str) and _ID.fullmatch(named) else None

    def waits(self) -> bool:
        """Whether a background response has not told its usage yet."""
        return self.later is not None

    def event(self, event: bytes) -> bool:
        """Reads an event of a stream; returns whether the application gets it."""
        data = data_of(event)
        content = _decoded(data)
        self.ended |= self._api is CHAT and data.strip() == b"[DONE]"
        if content is None:
            return True
        if self._api in (CHAT, GENERATE):
            return self._chat(content)
        if self._api is RESPONSES:
            self._response(content)
        else:
            self._message(content)
        return True

    def bill(self) -> Usage | None:
        """The tokens to book: as told, or an upper estimate; None for nothing."""
        told = usage_of(self._reported)
        # The end of a message counts nothing: what its start counted is not the reply.
        final = self._is_final or (self.ended and self._api is not MESSAGES)
        free = self.free or (isinstance(self.error, dict) and not self._said)
        return booked(told, self._most, self._said, final=final, free=free)

    def _fail(self, error: object) -> None:
        """Takes in an error with status 200."""
        self.failed, self.error = True, error

    def _chat(self, chunk: dict[str, Any]) -> bool:
        choices = chunk.get("choices", chunk.get("candidates"))
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._choice(choice)
        if error := chunk.get("error"):
            self._fail(error)
        told = merged({}, chunk)
        if "usage" in told:
            self._is_final = not choices or not self._begun
        if told:
            self._reported = merged(self._reported, told)
        more = [key for key, part in chunk.items() if key not in _OF_USAGE and _is_content(part)]
        return bool(more) or self.wants_usage or not isinstance(chunk.get("usage"), dict)

    def _choice(self, choice: dict[str, Any]) -> None:
        """Some servers count while they write, so words after a report make it a part."""
        said = said_bytes(choice.get("delta", choice.get("content")))
        self._said += said
        self._is_final &= not said
        if (error := error_of_choice(choice)) is not None:
            self._fail(error)
        index = choice.get("index") if isinstance(choice.get("index"), int) else 0
        if choice.get("finish_reason", choice.get("finishReason")) is None:
            self._begun.add(index)
        else:
            self._begun.discard(index)

    def _response(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        self._said += said_bytes(event.get("delta"))
        response = event.get("response")
        if kind in ("error", "response.failed"):
            told = response if isinstance(response, dict) else event
            self._fail(told.get("error") or told)
        ended = kind in ("response.completed", "response.incomplete", "response.failed")
        self.ended |= ended
        if ended and isinstance(response, dict):
            self._reported = response

    def _message(self, event: dict[str, Any]) -> None:
        """The first event counts the prompt; the last ones add the tokens of the reply."""
        self._said += said_bytes(event.get("delta"))
        if event.get("type") == "error":
            self._fail(event.get("error") or event)
        self.ended |= event.get("type") == "message_stop"
        message = event.get("message")
        told = message if isinstance(message, dict) else event
        if event.get("type") in ("message_start", "message_delta") and told.get("usage"):
            self._reported = merged(self._reported, {"usage": told["usage"]})
            self._is_final = event["type"] == "message_delta"


def _is_content(part: object) -> bool:
    """Whether a part of a chunk, beside its usage, is more than one of the names of the chunk."""
    return isinstance(part, list | dict) and bool(part)


def _decoded(content: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(content, parse_int=parse_int)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
