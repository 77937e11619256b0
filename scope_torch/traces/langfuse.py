"""Observations and scores of Langfuse: its blob storage export, its API, downloads of its UI.

| | export (`observations_v2/`, `scores/`) | API, UI |
| --- | --- | --- |
| a call | `type` = GENERATION | the same |
| LLM | `provided_model_name` | `providedModelName`, `model` |
| tokens | `usage_details` | `usageDetails`; older: `usage`, `promptTokens` |
| cost | `cost_details`, `total_cost` | `costDetails`, `totalCost`, `calculatedTotalCost` |
| score | `trace_id`, `name`, `value`, `data_type` | `traceId` or `subject`; in tables of the UI a column for each score, with a list |

The entries of `usage_details` should not overlap: `input` is without `input_cached_tokens`, and the
prompt is the sum of both. Some loggers send entries that do overlap; `total`, and the attributes of
OpenTelemetry that Langfuse keeps in `metadata`, say so. OpenAI's and Anthropic's own names are read
as these mean them.
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scope_torch.errors import printable
from scope_torch.llm.usage import Usage, count, usage_of
from scope_torch.traces.span import (
    Score,
    Span,
    UnreadableRow,
    between,
    decoded,
    first_in,
    mapping_in,
    moment,
    needed,
    number,
    recorded_usd,
    text_in,
)
from scope_torch.traces.tokens import (
    SCOPE,
    cached_in,
    cached_kind,
    further_in,
    tier_in,
    usage_in,
    used,
)

_TRACE = "trace_id", "traceId"
_USAGE = "usage_details", "usageDetails", "usage"
_DETAILS = "langfuse.observation.usage_details"  # an attribute that goes before all others
_COSTS = "total_cost", "totalCost", "calculated_total_cost", "calculatedTotalCost"
_UPDATED = "updated_at", "updatedAt", "timestamp"
_GRADES = "NUMERIC", "BOOLEAN"
_TRUTH = {"True": 1.0, "False": 0.0}
_OF_THE_UI = {"comments", "traceTags", "observationCount"}
_NO_SCORES = {"input", "output", "comments", "tags", "traceTags"}


def read_observation(row: Mapping[str, Any]) -> Iterator[Span | Score]:
    """An observation, and its scores if its table has columns of them.

    Raises:
        UnreadableRow: If it has no trace, or no identifier.
    """
    trace = needed(row, *_TRACE)
    kind = needed(row, "type").upper()
    is_call = kind == "GENERATION"
    start = moment(row.get("start_time") or row.get("startTime"))
    end = moment(row.get("end_time") or row.get("endTime"))
    unit = _unit(row)
    usage = _usage(row) if unit is None else None
    yield Span(
        trace,
        needed(row, "id"),
        text_in(row, "parent_observation_id", "parentObservationId"),
        text_in(row, "name") or "",
        start=start,
        seconds=between(start, end),
        is_call=is_call,
        is_apart=kind in ("AGENT", "TOOL"),
        llm=text_in(row, "provided_model_name", "providedModelName", "model") if is_call else None,
        usage=usage,
        cost_usd=recorded_usd(_costs(row, usage)),
        failed=row.get("level") == "ERROR",
        unit=unit,
        attributes={**row, **decoded(row, "metadata")},
    )
    yield from _columns(row, trace, needed(row, "id"))


def is_trace(row: Mapping[str, Any]) -> bool:
    """Whether a row is a trace itself, whose observations are rows of their own."""
    return {"id", "timestamp", "tags"} <= row.keys() and "type" not in row


def read_trace(row: Mapping[str, Any]) -> Iterator[Score]:
    """A trace itself: of the UI's table it has the scores.

    Raises:
        UnreadableRow: If it has no identifier.
    """
    yield from _columns(row, needed(row, "id"), "")


def _columns(row: Mapping[str, Any], trace: str, span: str) -> Iterator[Score]:
    """Scores of a table of the UI: a column `correct` with the list `[1]` or `["True"]`."""
    for name, values in row.items() if _OF_THE_UI & row.keys() else ():
        are_scores = isinstance(values, list) and name not in _NO_SCORES
        for at, value in enumerate(values if are_scores else ()):
            grade = _TRUTH.get(value) if isinstance(value, str) else number(value)
            if grade is not None:
                yield Score(trace, printable(name), grade, f"{span} {at}")


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
    version = moment(first_in(row, _UPDATED)) or 0.0
    yield Score(trace, needed(row, "name"), value, text_in(row, "id") or "", version)


def _unit(row: Mapping[str, Any]) -> str | None:
    """What the usage counts, if that is not tokens; CHARACTERS in logs of early models."""
    unit = text_in(mapping_in(row, "usage"), "unit") or text_in(row, "unit", "usageUnit")
    return None if unit is None or unit.upper() == "TOKENS" else unit.upper()


def _usage(row: Mapping[str, Any]) -> Usage | None:
    metadata = decoded(row, "metadata")
    attributes = decoded(metadata, "attributes")
    library = text_in(decoded(metadata, "scope"), "name")
    logged = usage_in({**attributes, SCOPE: library})
    if logged is not None and _DETAILS not in attributes:
        return logged
    details = decoded(row, *_USAGE)
    counts = _counts(details)
    is_of_a_provider = "prompt_tokens" in counts or (
        "input_tokens" in counts and "input" not in counts
    )
    tier = tier_in(attributes, decoded(row, "model_parameters", "modelParameters"))
    report = {"usage": {**details, **counts}, "service_tier": tier}
    named = usage_of(report) if is_of_a_provider else None
    if named is not None:
        return named
    told = {**row, **details}
    prompt = first_in(told, ("promptTokens", "prompt_tokens"))
    completion = first_in(told, ("completionTokens", "completion_tokens"))
    further = further_in({**counts, **mapping_in(details, "server_tool_use")})
    further["service_tier"] = tier
    return _of_buckets(counts, further) or used(prompt, completion, further=further)


def _counts(details: Mapping[str, Any]) -> dict[str, int]:
    return {key: value for key in details if (value := count(details[key])) is not None}


def _of_buckets(counts: Mapping[str, int], further: Mapping[str, Any]) -> Usage | None:
    """The tokens in buckets; None if none is of the prompt or the completion."""
    sides: dict[str, list[int]] = {"input": [], "output": [], "apart": []}
    for key, tokens in counts.items():
        side = _side(key)
        repeats = key == f"{side}_tokens" and side in counts
        if side is not None and cached_kind(key) is None and not repeats:
            is_whole = side == "input" or key in ("output", "output_tokens")
            sides[side if is_whole else "apart"].append(tokens)
    cached = cached_in(counts)
    if not (any(sides.values()) or any(cached)):
        return None
    prompt, completion, apart = map(sum, sides.values())
    if any(cached_kind(key) and ("." in key or _side(key) is None) for key in counts):
        # Langfuse once copied the names of OpenTelemetry, whose cached tokens are in the prompt.
        return used(prompt, completion + apart, cached, further=further)
    total = first_in(counts, ("total", "total_tokens"))
    return used(
        prompt, completion, cached, total=total, reasoning=apart, beside=True, further=further
    )


def _side(key: str) -> str | None:
    """Whether a bucket such as `output_reasoning_tokens` is of the prompt or the completion."""
    sides = (side for side in ("input", "output") if key == side or _belongs(key, side))
    return next(sides, None)


def _belongs(key: str, side: str) -> bool:
    return key.startswith(f"{side}_") or key.endswith(f"_{side}_tokens")


def _costs(row: Mapping[str, Any], usage: Usage | None) -> Iterator[Any]:
    """The costs of a call that can be believed.

    Langfuse multiplies the buckets with its prices. If buckets overlap, it has counted tokens twice
    or at another price, and only a cost that was sent to it counts: that has no parts.
    """
    counts = _counts(decoded(row, *_USAGE))
    in_buckets = sum(n for key, n in counts.items() if _side(key) or cached_kind(key))
    billed = 0 if usage is None else usage.prompt_tokens + usage.completion_tokens
    details = decoded(row, "cost_details", "costDetails")
    costs = {key: usd for key in details if (usd := number(details[key])) is not None}
    if usage is None or in_buckets <= billed:
        yield costs["total"] if "total" in costs else sum(costs.values()) if costs else None
        yield from (row.get(name) for name in _COSTS)
    else:
        yield decoded(row, "provided_cost_details", "providedCostDetails").get("total")
        yield costs.get("total") if len(costs) == 1 else None
