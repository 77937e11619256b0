"""The tokens that a reply reports as billed, for the three APIs and for those compatible with them.

| API | prompt | of it cached, written | completion, reasoning included |
| --- | --- | --- | --- |
| chat completions | `prompt_tokens` | `prompt_tokens_details`; DeepSeek: `prompt_cache_hit_tokens` | `completion_tokens`, or `total_tokens` without the prompt if that is more |
| responses | `input_tokens` | `input_tokens_details` | `output_tokens`, likewise |
| messages | `input_tokens` + both | `cache_read_input_tokens`, `cache_creation_input_tokens` | `output_tokens` |
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scope_torch.llm.billing import Usage, is_count, read_usage

_WRITTEN = "cache_write_tokens", "cache_creation_tokens"


def usage_of(body: Any) -> Usage | None:
    """The usage in a decoded reply; None if it has none, or counts that cannot be.

    Args:
        body: The JSON of a reply, with the key `usage`. For a streamed message of Anthropic's API,
            the usages of its first and its last event merged.

    Examples:
        >>> usage_of({"usage": {"prompt_tokens": 90, "completion_tokens": 7}})[:3]
        (90, 7, 0)
        >>> usage_of({"usage": {"input_tokens": 10, "cache_read_input_tokens": 80, "output_tokens": 7}})[:3]
        (90, 7, 80)
    """  # noqa: E501 - an example
    reported = body.get("usage") if isinstance(body, Mapping) else None
    if not isinstance(reported, Mapping):
        return None
    if "prompt_tokens" in reported:
        return _of_details(reported, "prompt", "completion")
    if reported.keys() & {"cache_read_input_tokens", "cache_creation_input_tokens"}:
        return _of_messages(reported)
    return _of_details(reported, "input", "output")


def _of_details(reported: Mapping[str, Any], prompt: str, completion: str) -> Usage | None:
    """Counts with details; the cached and the written tokens are a part of the prompt."""
    details = reported.get(f"{prompt}_tokens_details")
    details = dict(details) if isinstance(details, Mapping) else {}
    if "cached_tokens" not in details and "prompt_cache_hit_tokens" in reported:
        details["cached_tokens"] = reported["prompt_cache_hit_tokens"]
    usage = read_usage(
        {
            "prompt_tokens": reported.get(f"{prompt}_tokens"),
            "completion_tokens": reported.get(f"{completion}_tokens"),
            "total_tokens": reported.get("total_tokens"),
            "prompt_tokens_details": details,
            "completion_tokens_details": reported.get(f"{completion}_tokens_details"),
        }
    )
    written = next((details[key] for key in _WRITTEN if is_count(details.get(key))), 0)
    if usage is None or not written:
        return usage
    return usage._replace(
        cache_write_tokens=min(written, usage.prompt_tokens - usage.cached_tokens)
    )


def _of_messages(reported: Mapping[str, Any]) -> Usage | None:
    """Counts of Anthropic's API, whose `input_tokens` are those after the last cached one."""
    names = "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"
    counts = [reported.get(name) or 0 for name in names]
    completion = reported.get("output_tokens")
    if not (all(map(is_count, counts)) and is_count(completion) and is_count(sum(counts))):
        return None
    written = reported.get("cache_creation")
    long = written.get("ephemeral_1h_input_tokens") if isinstance(written, Mapping) else 0
    long = min(counts[2], long) if is_count(long) else 0
    return Usage(
        sum(counts), completion, counts[1], cache_write_tokens=counts[2], cache_write_1h_tokens=long
    )
