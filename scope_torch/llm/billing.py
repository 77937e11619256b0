"""Reads replies and their bills, and estimates the bill of a lost reply from above."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from scope_torch.errors import InputError
from scope_torch.llm.estimates import Most, booked, said_bytes
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.usage import Usage, is_count, usage_of

__all__ = ["BadReply", "Reply", "Usage", "cost_usd", "is_count", "read_reply"]

logger = logging.getLogger(__name__)

MAX_TEXT_CHARS = 1_000_000
MAX_REPLY_BYTES = 8 << 20  # of the JSON around a text, after it was unpacked
MAX_REASON_CHARS = 100
STANDARD_TIERS = "", "default", "standard", "auto", "on_demand"
MOST_DIFFERENCE = 0.02  # of a cost that the reply names


class Reply(NamedTuple):
    """A usable reply; `usage` is an upper estimate if the server reported none to believe."""

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


def cost_usd(llm: LLMInfo, usage: Usage, seconds: float | None = None) -> float:
    """Tokens and searches x price in USD; tokens of caches and of audio have prices of their own.

    Args:
        llm: Its prices.
        usage: What was billed.
        seconds: How long the call took, for an LLM with a `gpu_hour_usd`; None if not known.

    Raises:
        InputError: If the seconds are needed, and not known.

    Examples:
        >>> round(cost_usd(LLMInfo("mini", 0.25, 2.0), Usage(1_000_000, 500_000)), 6)
        1.25
        >>> cost_usd(LLMInfo("local", 0.0, 0.0, gpu_hour_usd=3.6), Usage(90, 7), seconds=2.0)
        0.002
    """
    price, said = llm.input_usd_per_mtok, llm.output_usd_per_mtok
    cached = price if (p := llm.cached_input_usd_per_mtok) is None else p
    write = price if (p := llm.cache_write_usd_per_mtok) is None else p
    long = write if (p := llm.cache_write_1h_usd_per_mtok) is None else p
    heard = price if (p := llm.audio_input_usd_per_mtok) is None else p
    spoken = said if (p := llm.audio_output_usd_per_mtok) is None else p
    audio = usage.audio_in_tokens - usage.cached_audio_tokens
    uncached = usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens - audio
    if unpriced := _unpriced(llm, usage):
        warn_unpriced(llm.name, unpriced)
    return (
        (
            uncached * price
            + audio * heard
            + usage.cached_tokens * cached
            + (usage.cache_write_tokens - usage.cache_write_1h_tokens) * write
            + usage.cache_write_1h_tokens * long
            + (usage.completion_tokens - usage.audio_out_tokens) * said
            + usage.audio_out_tokens * spoken
        )
        / 1e6
        + usage.searches * (llm.search_usd or 0.0)
        + _machine_usd(llm, seconds)
    )


def _machine_usd(llm: LLMInfo, seconds: float | None) -> float:
    if (usd_per_s := llm.usd_per_s) is None:
        return 0.0
    if seconds is None:
        raise InputError(
            f"{llm.name!r} costs gpu_hour_usd, and the seconds of its calls are not known: let an "
            "endpoint= measure them, or return a dict with output, tokens and seconds by module"
        )
    return seconds * usd_per_s


def _unpriced(llm: LLMInfo, usage: Usage) -> tuple[str, ...]:
    """What of a usage the price list has no price for, though it usually costs more."""
    known = STANDARD_TIERS if llm.batch_factor is None else (*STANDARD_TIERS, "batch")
    needed = {
        "audio_input_usd_per_mtok": usage.audio_in_tokens,
        "audio_output_usd_per_mtok": usage.audio_out_tokens,
        "search_usd": usage.searches,
        # No list has prices of these.
        "file searches": usage.file_searches,
        "image tokens": usage.image_in_tokens + usage.image_out_tokens,
        f"the service tier {usage.tier}": usage.tier not in known,
    }
    return tuple(name for name, n in needed.items() if n and getattr(llm, name, None) is None)


@lru_cache(maxsize=4096)
def warn_unpriced(llm: str, names: tuple[str, ...]) -> None:
    """Says once for an LLM that a part of its bill has no price."""
    logger.warning(
        "the price of %s of %r is not known: tokens are booked as plain text, and searches as "
        "free; a price list of your own may have it (this is said once)", " and ".join(names), llm,
    )  # fmt: skip


def check_reported(llm: str, usage: Usage, usd: float) -> None:
    """Warns, once for an LLM, if a reply names a cost that differs by more than 2%."""
    told = usage.reported_usd
    if told is not None and not usage.estimated and abs(usd - told) > MOST_DIFFERENCE * told:
        _warn_difference(llm, usd, told)


_differing: set[str] = set()


def _warn_difference(llm: str, usd: float, told: float) -> None:
    if llm not in _differing:
        _differing.add(llm)
        logger.warning(
            "a reply of %r names a cost of %.6g USD, and is booked as %.6g USD: see whether its "
            "prices are right (this is said once)", llm, told, usd,
        )  # fmt: skip


def encodable(text: str) -> str:
    """The text with `?` for lone surrogates, which files and requests cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def read_reply(content: Any, most: Most | None = None) -> Reply:
    """Reads a chat completion.

    Args:
        content: JSON text, or the value decoded from it.
        most: The most that was asked for: see `estimates.believable`. None to believe every count,
            and to estimate none.

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
    told = usage_of(content)
    choices = content.get("choices")
    if (error := error_in(content)) is not None:
        said = said_bytes(choices)
        usage = _booked(told, most, said, free=not said) if told or said else None
        raise BadReply("sent an error", usage, error)
    try:
        choice = choices[0]  # type: ignore[index]
        text = _text(choice["message"].get("content"))
    except (KeyError, IndexError, TypeError, AttributeError):
        raise BadReply("sent no choices", told and _booked(told, most, 0)) from None
    reason = choice.get("finish_reason")
    reason = _reason(reason) if isinstance(reason, str) else ""
    return Reply(text, _booked(told, most, said_bytes(choices)), reason)


def error_in(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """The error of a chat completion with status 200; None if it has none.

    Examples:
        >>> error_in({"error": {"code": 502}})
        {'code': 502}
        >>> broken = {"message": {"content": "It i"}, "error": {"code": 502}}  # as of OpenRouter
        >>> error_in({"choices": [broken]})
        {'code': 502}
    """
    choices = content.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return error_of_choice(choices[0])
    error = content.get("error")
    return error if isinstance(error, dict) and not choices else None


def error_of_choice(choice: Mapping[str, Any]) -> dict[str, Any] | None:
    """The error of a choice, whole or in a stream; None if it has none."""
    error = choice.get("error")
    if not error and choice.get("finish_reason") == "error":
        error = "the provider ended it with an error"
    if isinstance(error, str) and error:
        return {"message": error}
    return error if isinstance(error, dict) and error else None


def _booked(
    told: Usage | None, most: Most | None, said: int, *, free: bool = False
) -> Usage | None:
    return told if most is None else booked(told, most, said, free=free)


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
