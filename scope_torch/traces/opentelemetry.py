"""Spans of OpenTelemetry, with the attributes of its GenAI conventions or of OpenInference.

| | GenAI: current, then older names | OpenInference |
| --- | --- | --- |
| a call | `gen_ai.operation.name`, unless it is one of an agent, a tool or an embedding | `openinference.span.kind` = LLM |
| LLM | `gen_ai.request.model`, `gen_ai.response.model`; `llm.request.model` | `llm.request.model_name`, `llm.model_name` |
| prompt | `gen_ai.usage.input_tokens`; `gen_ai.usage.prompt_tokens`, `llm.usage.prompt_tokens` | `llm.token_count.prompt` |
| completion | `gen_ai.usage.output_tokens`; `gen_ai.usage.completion_tokens`, `llm.usage.completion_tokens` | `llm.token_count.completion` |
| cached | `gen_ai.usage.cache_read.input_tokens`; `gen_ai.usage.cache_read_input_tokens` | `llm.token_count.prompt_details.cache_read` |
| cost | `gen_ai.usage.cost` | `llm.cost.total` |
| score | event `gen_ai.evaluation.result`, or its attributes at a span | `evaluations.N.evaluation.score`, `annotations.N.annotation.score` |
"""  # noqa: E501 - a table

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scope_torch.traces.span import (
    Score,
    Span,
    UnreadableRow,
    between,
    decoded,
    mapping_in,
    moment,
    needed,
    number,
    recorded_usd,
    text_in,
    used,
)

# The name that was asked for comes first: the reply names a dated version, which may change.
_LLM = (
    "gen_ai.request.model",
    "llm.request.model_name",
    "llm.model_name",
    "gen_ai.response.model",
    "llm.response.model_name",
    "llm.request.model",
)
_PROMPT = (
    "gen_ai.usage.input_tokens",
    "llm.token_count.prompt",
    "gen_ai.usage.prompt_tokens",
    "llm.usage.prompt_tokens",
)
_COMPLETION = (
    "gen_ai.usage.output_tokens",
    "llm.token_count.completion",
    "gen_ai.usage.completion_tokens",
    "llm.usage.completion_tokens",
)
_CACHED = (
    "gen_ai.usage.cache_read.input_tokens",
    "llm.token_count.prompt_details.cache_read",
    "gen_ai.usage.cache_read_input_tokens",
    "llm.usage.cache_read_input_tokens",
)
_WRITTEN = (
    "gen_ai.usage.cache_write.input_tokens",
    "gen_ai.usage.cache_creation.input_tokens",
    "llm.token_count.prompt_details.cache_write",
    "gen_ai.usage.cache_creation_input_tokens",
    "llm.usage.cache_creation_input_tokens",
)
_COST = ("gen_ai.usage.cost", "llm.cost.total")
_NO_CALLS = re.compile(r"agent|tool|embedding|workflow|retriev|rerank|memory", re.IGNORECASE)
_SCORE = "gen_ai.evaluation.score.value"
_SCORE_NAME = "gen_ai.evaluation.name"
_GRADE = re.compile(r"((?:trace\.)?(?:evaluations|annotations)\.\d+\.(?:evaluation|annotation))")
_UNNAMED = "score"
_MOST_NESTED = 50


def spans_of_otlp(content: Mapping[str, Any]) -> Iterator[Any]:
    """The spans in a line of OTLP JSON, as the collector's file exporter writes it."""
    for resource in _list(content, "resourceSpans"):
        groups = _list(resource, "scopeSpans") or _list(resource, "instrumentationLibrarySpans")
        for group in groups:
            yield from _list(group, "spans")


def read_otlp(row: Mapping[str, Any]) -> Iterator[Span | Score]:
    """A span of OTLP JSON.

    Raises:
        UnreadableRow: If it has no trace, or no identifier.
    """
    events = [
        (event.get("name"), _plain(event.get("attributes")))
        for event in _list(row, "events")
        if isinstance(event, Mapping)
    ]
    start, end = (_of_nanoseconds(row.get(key)) for key in _NANOSECONDS)
    return _read(
        needed(row, "traceId"),
        needed(row, "spanId"),
        text_in(row, "parentSpanId"),
        row,
        (start, end),
        _plain(row.get("attributes")),
        events,
        failed=mapping_in(row, "status").get("code") in (2, "STATUS_CODE_ERROR"),
    )


_NANOSECONDS = "startTimeUnixNano", "endTimeUnixNano"


def read_printed(row: Mapping[str, Any]) -> Iterator[Span | Score]:
    """A span as Python's `ReadableSpan.to_json` and ConsoleSpanExporter print it.

    Raises:
        UnreadableRow: If it has no trace, or no identifier.
    """
    context = mapping_in(row, "context")
    events = [
        (event.get("name"), mapping_in(event, "attributes"))
        for event in _list(row, "events")
        if isinstance(event, Mapping)
    ]
    return _read(
        needed(context, "trace_id"),
        needed(context, "span_id"),
        text_in(row, "parent_id"),
        row,
        (moment(row.get("start_time")), moment(row.get("end_time"))),
        mapping_in(row, "attributes"),
        events,
        failed=mapping_in(row, "status").get("status_code") == "ERROR",
    )


def _read(
    trace: str,
    span_id: str,
    parent: str | None,
    row: Mapping[str, Any],
    times: tuple[float | None, float | None],
    attributes: Mapping[str, Any],
    events: Iterable[tuple[Any, Mapping[str, Any]]],
    *,
    failed: bool,
) -> Iterator[Span | Score]:
    usage = used(
        *(_first(attributes, names) for names in (_PROMPT, _COMPLETION, _CACHED, _WRITTEN))
    )
    is_call = _is_call(attributes)
    yield Span(
        trace,
        span_id,
        parent,
        text_in(row, "name") or "",
        start=times[0],
        seconds=between(*times),
        is_call=is_call,
        llm=_llm(attributes) if is_call else None,
        usage=usage if is_call else None,
        cost_usd=recorded_usd((attributes.get(name) for name in _COST), usage),
        failed=failed,
        attributes=attributes,
    )
    said = [attributes, *(values for name, values in events if name == "gen_ai.evaluation.result")]
    for values in said:
        if (score := number(values.get(_SCORE))) is not None:
            yield Score(trace, text_in(values, _SCORE_NAME) or _UNNAMED, score)
    for start in dict.fromkeys(found[1] for key in attributes if (found := _GRADE.match(key))):
        if (score := number(attributes.get(f"{start}.score"))) is not None:
            yield Score(trace, text_in(attributes, f"{start}.name") or _UNNAMED, score)


def _is_call(attributes: Mapping[str, Any]) -> bool:
    """Whether these are the attributes of one call of an LLM.

    A span of an agent has the sum of the tokens of its calls, which would count twice.
    """
    kind = text_in(attributes, "openinference.span.kind")
    if kind is not None:
        return kind.upper() == "LLM"
    operation = text_in(attributes, "gen_ai.operation.name", "llm.request.type")
    if operation is not None:
        return not _NO_CALLS.search(operation)
    return text_in(attributes, *_LLM) is not None


def _llm(attributes: Mapping[str, Any]) -> str | None:
    """The LLM of a call; OpenInference names that of a failed call in its parameters alone."""
    parameters = decoded(attributes, "llm.invocation_parameters")
    return text_in(attributes, *_LLM) or text_in(parameters, "model", "model_name")


def _first(attributes: Mapping[str, Any], names: Iterable[str]) -> Any:
    found = (attributes.get(name) for name in names)
    return next((value for value in found if value is not None), None)


def _list(row: Any, key: str) -> list[Any]:
    found = row.get(key) if isinstance(row, Mapping) else None
    return found if isinstance(found, list) else []


def _of_nanoseconds(value: Any) -> float | None:
    found = number(value)
    return None if found is None else found / 1e9


def _plain(attributes: Any, depth: int = 0) -> dict[str, Any]:
    """Attributes of OTLP, `[{"key": ..., "value": {"stringValue": ...}}]`, as a mapping."""
    items = attributes if isinstance(attributes, list) else []
    return {
        item["key"]: _value(item.get("value"), depth)
        for item in items
        if isinstance(item, Mapping) and isinstance(item.get("key"), str)
    }


def _value(value: Any, depth: int) -> Any:
    if depth > _MOST_NESTED:
        raise UnreadableRow("its attributes are nested too deeply")
    kind, content = (
        next(iter(value.items()), ("", None)) if isinstance(value, Mapping) else ("", None)
    )
    if kind == "arrayValue":
        return [_value(item, depth + 1) for item in _list(content, "values")]
    if kind == "kvlistValue":
        return _plain(mapping_in(value, kind).get("values"), depth + 1)
    return content
