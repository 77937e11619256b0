"""Upper estimates of the tokens of a request, for replies that tell none that can be believed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scope_torch.llm.billing import (
    BYTES_PER_TOKEN,
    HIDDEN_PROMPT_TOKENS,
    HIDDEN_REASONING_TOKENS,
    TIMES_ASKED_FOR,
    Usage,
    is_count,
)
from scope_torch.serve.apis import Api

REFERRED_TOKENS = 65_536  # for what a request only names: images by URL, files, earlier turns
UNLIMITED_TOKENS = 16_384  # beyond what was received, if the request sets no limit

_REFERENCES = {
    "previous_response_id",
    "conversation",
    "prompt",
    "container",
    "file_id",
    "file_url",
}
_NO_WORDS = {"id", "type", "role", "object", "status", "index", "finish_reason", "call_id"}


class Most(NamedTuple):
    """The most that a request can have asked for.

    Args:
        prompt_tokens: One for every 2 bytes of the request, and 65,536 if it refers to more.
        completion_tokens: Its limit, times the number of replies; None if it sets none.
        refers: Whether it refers to content that it does not contain.
    """

    prompt_tokens: int
    completion_tokens: int | None
    refers: bool


def most_of(api: Api, body: Mapping[str, Any], num_bytes: int) -> Most:
    """The most tokens of a request of `num_bytes` bytes."""
    refers = _refers(body)
    limits = [body[key] for key in api.limits if is_count(body.get(key)) and body[key]]
    replies = body.get("n")
    limit = min(limits) * (replies if is_count(replies) and replies else 1) if limits else None
    prompt = -(-num_bytes // BYTES_PER_TOKEN) + (REFERRED_TOKENS if refers else 0)
    return Most(prompt, limit, refers)


def estimate(most: Most, said: int, known: Usage | None = None) -> Usage:
    """An upper estimate of the billed tokens.

    Args:
        most: The most that was asked for.
        said: Bytes of the reply's words that were received.
        known: The tokens told before the end, as at the start of Anthropic's streams.
    """
    completion = most.completion_tokens
    if completion is None:
        completion = -(-said // BYTES_PER_TOKEN) + UNLIMITED_TOKENS
    if known is None:
        return Usage(most.prompt_tokens, completion, 0, estimated=True)
    completion = max(completion, known.completion_tokens)
    return known._replace(completion_tokens=completion, estimated=True)


def believable(usage: Usage, most: Most, said: int) -> bool:
    """Whether the counts fit the request and the reply; the rule is that of `read_reply`."""
    if not usage.prompt_tokens or (said and not usage.completion_tokens):
        return False
    if not prompt_believable(usage, most):
        return False
    if most.completion_tokens is None:
        return True
    limit = TIMES_ASKED_FOR * most.completion_tokens + HIDDEN_REASONING_TOKENS
    return usage.completion_tokens <= limit


def prompt_believable(usage: Usage, most: Most) -> bool:
    """Whether the count of prompt tokens fits the request."""
    return most.refers or (
        0 < usage.prompt_tokens <= TIMES_ASKED_FOR * most.prompt_tokens + HIDDEN_PROMPT_TOKENS
    )


def said_bytes(value: Any) -> int:
    """Bytes of all text in a part of a reply, without its names and roles."""
    total, rest = 0, [value]
    while rest:  # a loop, because a reply may be nested deeply
        part = rest.pop()
        if isinstance(part, str):
            total += len(part.encode("utf-8", "replace"))
        elif isinstance(part, list):
            rest.extend(part)
        elif isinstance(part, dict):
            rest.extend(inner for key, inner in part.items() if key not in _NO_WORDS)
    return total


def _refers(value: Any) -> bool:
    """Whether a request names content that lies elsewhere."""
    rest = [value]
    while rest:
        part = rest.pop()
        if isinstance(part, list):
            rest.extend(part)
        elif isinstance(part, dict):
            if any(map(_is_reference, part, part.values())):
                return True
            # The schemas of tools may use any name.
            rest.extend(inner for key, inner in part.items() if key != "tools")
    return False


def _is_reference(key: Any, value: Any) -> bool:
    return (key in _REFERENCES and bool(value)) or _is_address(key, value)


def _is_address(key: Any, value: Any) -> bool:
    """Whether this is the URL of an image or a document."""
    return key in ("url", "image_url") and isinstance(value, str) and not value.startswith("data:")
