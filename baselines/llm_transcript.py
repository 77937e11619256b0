"""A record of an LLM's replies, so that a run with it can be resumed and repeated."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError
from scope_torch.files import for_owner

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Replies:
    """Replies to one prompt.

    Args:
        texts: The replies.
        prompt_tokens: Tokens of the prompt, summed over HTTP requests; 0 where not reported.
        completion_tokens: Tokens of the replies, summed over HTTP requests; 0 where not reported.
        requests: Number of answered HTTP requests.
        requests_without_usage: Number of answered HTTP requests that did not report tokens.
    """

    texts: tuple[str, ...]
    prompt_tokens: int = 0
    completion_tokens: int = 0
    requests: int = 0
    requests_without_usage: int = 0

    def __add__(self, other: Replies) -> Replies:
        return Replies(
            self.texts + other.texts,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.requests + other.requests,
            self.requests_without_usage + other.requests_without_usage,
        )


def prompt_key(*parts: Any) -> str:
    """SHA-256 of everything that decides a reply, in hexadecimal.

    Args:
        parts: JSON-serialisable values: the seed, the LLM, sampling settings and messages.
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Transcript:
    """Replies by prompt and occurrence: a prompt asked for the i-th time gets its i-th reply.

    With a path every reply is on disk before it is used. Damaged lines, which a crash may leave,
    are skipped with a warning; those replies are asked for again.

    Args:
        path: JSON lines; created with the first reply. None keeps the replies in memory only.

    Raises:
        InputError: If the file cannot be read.

    Examples:
        >>> transcript = Transcript(None)
        >>> transcript.append("key", [{"role": "user", "content": "?"}], Replies(("yes",)))
        >>> transcript.next_reply("key") is None  # the second time it is asked
        True
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._replies: dict[tuple[str, int], Replies] = {}
        self._num_asked: Counter[str] = Counter()
        if path is not None and path.exists():
            self._read(path)

    def next_reply(self, key: str) -> Replies | None:
        """The reply to this occurrence of a prompt, if it is recorded."""
        reply = self._replies.get((key, self._num_asked[key]))
        if reply is not None:
            self._num_asked[key] += 1
        return reply

    def append(self, key: str, messages: Sequence[dict[str, str]], reply: Replies) -> None:
        """Records the reply to this occurrence of a prompt.

        Raises:
            InputError: If the file cannot be written.
        """
        occurrence = self._num_asked[key]
        self._num_asked[key] += 1
        self._replies[key, occurrence] = reply
        if self.path is not None:
            values = {"key": key, "occurrence": occurrence, **vars(reply), "messages": messages}
            self._write(self.path, json.dumps(values) + "\n")

    def _write(self, path: Path, line: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a+b", opener=for_owner) as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    line = line if file.read(1) == b"\n" else "\n" + line
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(
                f"cannot write the transcript {path}: {error.strerror}; choose another path"
            ) from error

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            raise InputError(f"cannot read the transcript {path}: {error.strerror}") from error
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                at, reply = _parse(line)
            except (ValueError, TypeError, KeyError, RecursionError):
                logger.warning("%s: skipped line %d, which is damaged", path, number)
                continue
            self._replies.setdefault(at, reply)


def _parse(line: bytes) -> tuple[tuple[str, int], Replies]:
    values = json.loads(line)
    counts = {
        name: int(values[name])
        for name in ("prompt_tokens", "completion_tokens", "requests", "requests_without_usage")
    }
    texts = values["texts"]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("texts is not a list of strings")
    return (str(values["key"]), int(values["occurrence"])), Replies(tuple(texts), **counts)
