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
MAX_REPLY_BYTES = 8 << 20  # of the JSON around a text, after it was unpacked
MAX_REASON_CHARS = 100
BYTES_PER_TOKEN = 2  # English text has 3 to 5; tables, code and other scripts have down to 2
TOKENS_PER_MESSAGE = 8  # for its role and the separators
MAX_COUNT = 2**53  # larger numbers are no counts, and no exact floats

# Larger counts than these are not believed; they leave room for every tokenizer.
TIMES_ASKED_FOR = 10
HIDDEN_PROMPT_TOKENS = 4096  # some endpoints add a prompt of their own
HIDDEN_REASONING_TOKENS = 65_536  # some endpoints do not count reasoning against the limit


class Usage(NamedTuple):
    """Tokens that were billed; see `Completion`."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    estimated: bool = False  # True: an upper estimate instead of the server's count
    cache_write_tokens: int = 0  # prompt tokens that were written to the provider's cache
    cache_write_1h_tokens: int = 0  # the part of them that it keeps for an hour, at another price


class Reply(NamedTuple):
    """A usable reply; `usage` is None if the server reported none that can be believed."""

    text: str
    usage: Usage | None
    finish_reason: str


class BadReply(Exception):
    """An answer with status 200 that is not a usable reply.

    Args:
        reason: What is wrong with it.
        usage: Tokens that it reports as billed; None if it reports none that can be believed.
        error: The error in the answer; None if it has none.
    """

    def __init__(
        self, reason: str, usage: Usage | None = None, error: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(reason)
        self.usage = usage
        self.error = error


def cost_usd(llm: LLMInfo, usage: Usage) -> float:
    """Tokens x price in USD; prompt tokens that a cache gave or got have prices of their own.

    Examples:
        >>> round(cost_usd(LLMInfo("mini", 0.25, 2.0), Usage(1_000_000, 500_000)), 6)
        1.25
    """
    price = llm.input_usd_per_mtok
    cached_price = price if (p := llm.cached_input_usd_per_mtok) is None else p
    write_price = price if (p := llm.cache_write_usd_per_mtok) is None else p
    uncached = usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens
    return (
        uncached * price
        + usage.cached_tokens * cached_price
        + usage.cache_write_tokens * write_price
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


def read_reply(content: Any, most: Usage | None = None) -> Reply:
    """Reads a chat completion.

    Usage is not believed if the prompt, or a reply with text, has no tokens, or if a count is far
    above `most`: 10 times, plus room for a hidden prompt and for reasoning reported as such.

    Args:
        content: JSON text, or the value decoded from it.
        most: Upper estimate of the tokens; None to believe every count up to 2**53.

    Raises:
        BadReply: If it is not a chat completion.
    """
    if isinstance(content, bytes | str):
        try:
            content = json.loads(content, parse_int=parse_int)
        except (ValueError, RecursionError):
            raise BadReply("sent malformed JSON") from None
    if not isinstance(content, dict):
        raise BadReply("sent no chat completion")
    usage = read_usage(content.get("usage"), most)
    error, choices = content.get("error"), content.get("choices")
    if isinstance(error, dict) and not choices:
        raise BadReply("sent an error", usage, error)
    try:
        choice = choices[0]  # type: ignore[index]
        text = _text(choice["message"].get("content"))
    except (KeyError, IndexError, TypeError, AttributeError):
        raise BadReply("sent no choices", usage) from None
    if usage is not None and text and not usage.completion_tokens:
        usage = None
    reason = choice.get("finish_reason")
    return Reply(text, usage, _reason(reason) if isinstance(reason, str) else "")


def parse_int(digits: str) -> int:
    """An integer of JSON, cut to 30 digits: Python refuses one of more than 4,300."""
    return int(digits[:30])


def _reason(reason: str) -> str:
    return encodable(reason)[:MAX_REASON_CHARS]


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


def read_usage(reported: Any, most: Usage | None = None) -> Usage | None:
    """The tokens that a server reports; None if there are none, or none that can be believed.

    Args:
        reported: The usage of a chat completion.
        most: Upper estimate of the tokens; None to believe every count up to 2**53.
    """
    if not isinstance(reported, dict):
        return None
    prompt, completion = reported.get("prompt_tokens"), reported.get("completion_tokens")
    if not (is_count(prompt) and is_count(completion)):
        return None
    said = completion - min(completion, _detail(reported, "completion", "reasoning_tokens"))
    total = reported.get("total_tokens")
    if type(total) is int:  # some servers count hidden reasoning only in the total
        completion = max(completion, total - prompt)
    cached = min(prompt, _detail(reported, "prompt", "cached_tokens"))
    usage = Usage(prompt, completion, cached)
    if not is_count(completion) or (most is not None and not _is_believable(usage, said, most)):
        return None
    return usage


def _is_believable(usage: Usage, said: int, most: Usage) -> bool:
    """Whether the counts fit the request; `said` are completion tokens apart from reasoning."""
    most_prompt = TIMES_ASKED_FOR * most.prompt_tokens + HIDDEN_PROMPT_TOKENS
    most_said = TIMES_ASKED_FOR * most.completion_tokens
    return (
        bool(usage.prompt_tokens or not most.prompt_tokens)
        and usage.prompt_tokens <= most_prompt
        and said <= most_said
        and usage.completion_tokens <= most_said + HIDDEN_REASONING_TOKENS
    )


def _detail(reported: dict[str, Any], of: str, name: str) -> int:
    """A count in the details of prompt or completion tokens; 0 if there is none."""
    details = reported.get(f"{of}_tokens_details")
    count = details.get(name) if isinstance(details, dict) else None
    return count if is_count(count) else 0


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value of JSON can be a number of tokens."""
    return type(value) is int and 0 <= value <= MAX_COUNT
