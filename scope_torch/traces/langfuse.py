"""Observations and scores of Langfuse: its blob storage export, and its API.

| | export (`observations_v2/`, `scores/`) | API |
| --- | --- | --- |
| a call | `type` = GENERATION | the same |
| LLM | `provided_model_name` | `providedModelName`, `model` |
| tokens | `usage_details` | `usageDetails`; older: `usage`, `promptTokens` |
| cost | `cost_details`, `total_cost` | `costDetails`, `totalCost`, `calculatedTotalCost` |
| score | `trace_id`, `name`, `value`, `data_type` | `traceId` or `subject` |

The entries of `usage_details` do not overlap: `input` is without `input_cached_tokens`, and the
prompt is the sum of both. OpenAI's own names, which overlap, are read as OpenAI means them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from scope_torch.llm.billing import Usage
from scope_torch.llm.usage import usage_of
from scope_torch.traces.span import (
    Score,
    Span,
    UnreadableRow,
    between,
    count,
    decoded,
    mapping_in,
    moment,
    needed,
    number,
    recorded_usd,
    text_in,
    used,
)

_TRACE = "trace_id", "traceId"
_CACHED = "input_cached_tokens", "cache_read_input_tokens", "input_cache_read", "input_cached"
_WRITTEN = "cache_creation_input_tokens", "input_cache_creation", "input_cache_write"
_COSTS = "total_cost", "totalCost", "calculated_total_cost", "calculatedTotalCost"
_GRADES = "NUMERIC", "BOOLEAN"


def read_observation(row: Mapping[str, Any]) -> Iterator[Span]:
    """An observation.

    Raises:
        UnreadableRow: If it has no trace, or no identifier.
    """
    is_call = needed(row, "type").upper() == "GENERATION"
    start = moment(row.get("start_time") or row.get("startTime"))
    end = moment(row.get("end_time") or row.get("endTime"))
    usage = _usage(row)
    yield Span(
        needed(row, *_TRACE),
        needed(row, "id"),
        text_in(row, "parent_observation_id", "parentObservationId"),
        text_in(row, "name") or "",
        start=start,
        seconds=between(start, end),
        is_call=is_call,
        llm=text_in(row, "provided_model_name", "providedModelName", "model") if is_call else None,
        usage=usage,
        cost_usd=recorded_usd([_sum(row), *(row.get(name) for name in _COSTS)], usage),
        failed=row.get("level") == "ERROR",
        attributes={**row, **decoded(row, "metadata")},
    )


def read_score(row: Mapping[str, Any]) -> Iterator[Score]:
    """A score; nothing if it is a text or a category.

    Raises:
        UnreadableRow: If it has no trace, no name or no value.
    """
    kind = text_in(row, "data_type", "dataType")
    if kind is not None and kind.upper() not in _GRADES:
        return
    subject = mapping_in(row, "subject")
    trace = text_in(row, *_TRACE) or text_in(subject, "traceId")
    if trace is None and subject.get("kind") == "trace":
        trace = text_in(subject, "id")
    if trace is None:
        raise UnreadableRow("a score without trace_id")
    if (value := number(row.get("value"))) is None:
        raise UnreadableRow(f"a score whose value={row.get('value')!r:.40} is no number")
    yield Score(trace, needed(row, "name"), value)


def _usage(row: Mapping[str, Any]) -> Usage | None:
    details = decoded(row, "usage_details", "usageDetails", "usage")
    if "prompt_tokens" in details:
        return usage_of({"usage": details})
    if not details:
        prompt = row.get("promptTokens", row.get("prompt_tokens"))
        return used(prompt, row.get("completionTokens", row.get("completion_tokens")))
    counts = {key: value for key in details if (value := count(details[key])) is not None}
    cached, written = (sum(counts.get(key, 0) for key in keys) for keys in (_CACHED, _WRITTEN))
    sides = [
        [value for key, value in counts.items() if key == side or _belongs(key, side)]
        for side in ("input", "output")
    ]
    prompt, completion = (sum(side) if side else None for side in sides)
    return used(prompt, completion, cached, written)


def _belongs(key: str, side: str) -> bool:
    """Whether a bucket such as `cache_read_input_tokens` is of the prompt or the completion."""
    return key.startswith(f"{side}_") or key.endswith(f"_{side}_tokens")


def _sum(row: Mapping[str, Any]) -> float | None:
    """The cost of all buckets; None if there are none."""
    details = decoded(row, "cost_details", "costDetails")
    costs = {key: usd for key in details if (usd := number(details[key])) is not None}
    return costs["total"] if "total" in costs else math.fsum(costs.values()) if costs else None
