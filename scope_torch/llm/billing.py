"""Reads replies and their bills, and estimates the bill of a lost reply from above."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

from scope_torch.llm.chat import ChatCall
from scope_torch.llm.prices import LLMInfo

logger = logging.getLogger(__name__)

MAX_TEXT_CHARS = 1_000_000
BYTES_PER_TOKEN = 2  # English text has 3 to 5; tables, code and other scripts have down to 2
TOKENS_PER_MESSAGE = 8  # for its role and the separators


class Usage(NamedTuple):
    """Tokens that were billed; see `Completion`."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    estimated: bool = False  # True: an upper estimate instead of the server's count


class Reply(NamedTuple):
    """A usable reply; `usage` is None if the server did not report it."""

    text: str
    usage: Usage | None
    finish_reason: str


class BadReply(Exception):
    """An answer with status 200 that is not a usable reply.

    Args:
        reason: What is wrong with it.
        usage: Tokens that it reports as billed; None if it reports none.
        error: The error in the answer; None if it has none.
    """

    def __init__(
        self, reason: str, usage: Usage | None = None, error: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(reason)
        self.usage = usage
        self.error = error


def cost_usd(llm: LLMInfo, usage: Usage) -> float:
    """Tokens x price in USD; cached prompt tokens have a price of their own.

    Examples:
        >>> round(cost_usd(LLMInfo("mini", 0.25, 2.0), Usage(1_000_000, 500_000)), 6)
        1.25
    """
    cached_price = llm.cached_input_usd_per_mtok
    if cached_price is None:
        cached_price = llm.input_usd_per_mtok
    uncached = usage.prompt_tokens - usage.cached_tokens
    return (
        uncached * llm.input_usd_per_mtok
        + usage.cached_tokens * cached_price
        + usage.completion_tokens * llm.output_usd_per_mtok
    ) / 1e6


def most_tokens(call: ChatCall) -> Usage:
    """An upper estimate of the tokens of a call.

    The prompt counts as one token for every 2 bytes of UTF-8, and 8 tokens for every message. The
    completion counts as its limit, because hidden reasoning is billed too.
    """
    sizes = (len(encodable(m.content).encode()) + len(m.role) for m in call.messages)
    prompt = sum(-(-size // BYTES_PER_TOKEN) + TOKENS_PER_MESSAGE for size in sizes)
    return Usage(prompt, call.max_tokens, 0, estimated=True)


def encodable(text: str) -> str:
    """The text with `?` for lone surrogates, which files and requests cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def read_reply(content: Any) -> Reply:
    """Reads a chat completion.

    Args:
        content: JSON text, or the value decoded from it.

    Raises:
        BadReply: If it is not a chat completion.
    """
    if isinstance(content, bytes | str):
        try:
            content = json.loads(content)
        except (ValueError, RecursionError):
            raise BadReply("sent malformed JSON") from None
    if not isinstance(content, dict):
        raise BadReply("sent no chat completion")
    usage = _usage(content.get("usage"))
    error, choices = content.get("error"), content.get("choices")
    if isinstance(error, dict) and not choices:
        raise BadReply("sent an error", usage, error)
    try:
        choice = choices[0]  # type: ignore[index]
        text = _text(choice["message"].get("content"))
    except (KeyError, IndexError, TypeError, AttributeError):
        raise BadReply("sent no choices", usage) from None
    reason = choice.get("finish_reason")
    return Reply(text, usage, reason if isinstance(reason, str) else "")


def _text(content: Any) -> str:
    """The text of a message, which is a string, None, or a list of parts, some of them text."""
    if isinstance(content, list):
        parts = (part.get("text") for part in content)
        content = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(content, str | None):
        raise TypeError("neither text nor nothing")
    text = encodable(content or "")
    if len(text) > MAX_TEXT_CHARS:
        logger.warning("a reply of %d characters was cut to %d", len(text), MAX_TEXT_CHARS)
    return text[:MAX_TEXT_CHARS]


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not (_is_count(prompt) and _is_count(completion)):
        return None
    total = usage.get("total_tokens")
    if _is_count(total):  # some servers count hidden reasoning only in the total
        completion = max(completion, total - prompt)
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(prompt, completion, min(cached, prompt) if _is_count(cached) else 0)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0
