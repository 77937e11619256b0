"""The tokens of one module of a run, as an application returns them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scope_torch.errors import InputError
from scope_torch.llm.billing import Usage
from scope_torch.llm.usage import usage_of


def reported(used: Any) -> Mapping[str, Any] | None:
    """The usage of a reply as a dict, if `used` is one: a dict, or an object of a client."""
    used = _dumped(used)
    # `dict(usage)` leaves objects in it, such as that of the cached tokens.
    return {k: _dumped(v) for k, v in used.items()} if isinstance(used, Mapping) else None


def _dumped(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) else value


def tokens_of(used: Any) -> Usage:
    """Tokens, as numbers or as the usage of a reply.

    Args:
        used: (prompt tokens, completion tokens), a `Usage`, or the usage of a reply of OpenAI's or
            Anthropic's client, or of one like them, as an object or as a dict.

    Raises:
        InputError: If it is none of these, or a number is below 0.

    Examples:
        >>> tokens_of((90, 7))[:3], tokens_of({"prompt_tokens": 90, "completion_tokens": 7})[:3]
        ((90, 7, 0), (90, 7, 0))
    """
    if (report := reported(used)) is not None:
        if (usage := usage_of({"usage": report})) is not None:
            return usage
        raise InputError(
            f"{dict(report)!r:.200} is no usage of a reply; give its prompt_tokens and "
            "completion_tokens"
        )
    try:
        prompt, completion = used[:2] if isinstance(used, Usage) else used
        if min(prompt, completion) < 0:
            raise InputError(f"{used!r:.80}: numbers of tokens must be at least 0")
        return used if isinstance(used, Usage) else Usage(int(prompt), int(completion))
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{used!r:.80} are no tokens; give (prompt tokens, completion tokens), or the usage of "
            "the reply"
        ) from error
