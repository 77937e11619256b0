"""Spans of OpenTelemetry, with the attributes of its GenAI conventions or of OpenInference.

| | GenAI: current, then older names | OpenInference |
| --- | --- | --- |
| a call | `gen_ai.operation.name` such as chat; an unknown one, and none, with an LLM | `openinference.span.kind` = LLM |
| LLM | `gen_ai.request.model`, `gen_ai.response.model`; `llm.request.model` | `llm.request.model_name`, `llm.model_name` |
| tokens | `gen_ai.usage.*`; `llm.usage.*`, `ai.usage.*`: see `tokens` | `llm.token_count.*` |
| cost | `gen_ai.usage.cost`, `operation.cost`, `gen_ai.cost.total_cost` | `llm.cost.total` |
| score | event `gen_ai.evaluation.result`, or its attributes at a span | `evaluations.N.evaluation.score`, `annotations.N.annotation.score` |

Phoenix has the status and the kind of a span beside its attributes, and may nest these:
`{"llm": {"token_count": {"prompt": 90}}}`. Its rows of OTLP, and those of protobuf's JSON with the
names of the fields, are in snake_case.
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
    of_nanoseconds,
    recorded_usd,
    text_in,
)
from scope_torch.traces.tokens import SCOPE, usage_in

# The name that was asked for comes first: the reply names a dated version, which may change.
_LLM = (
    "gen_ai.request.model",
    "llm.request.model_name",
    "llm.model_name",
    "gen_ai.response.model",
    "llm.response.model_name",
    "llm.request.model",
)
_COST = (
    "gen_ai.usage.cost",
    "llm.cost.total",
    "operation.cost",
    "gen_ai.cost.total_cost",
    "gen_ai.usage.total_cost",
)
_NO_CALLS = re.compile(r"agent|tool|embedding|workflow|retriev|rerank|memory", re.IGNORECASE)
_CALLS = re.compile(r"chat|completion|generat|response|message", re.IGNORECASE)
_APART = re.compile(r"agent|tool", re.IGNORECASE)
_OPERATION = "gen_ai.operation.name", "llm.request.type"
_SCORE = "gen_ai.evaluation.score.value"
_SCORE_NAME = "gen_ai.evaluation.name"
_GRADE = re.compile(r"((?:trace\.)?(?:evaluations|annotations)\.\d+\.(?:evaluation|annotation))")
_KIND = "openinference.span.kind"
_KINDS = (
    *("LLM", "CHAIN", "TOOL", "AGENT", "RETRIEVER", "EMBEDDING", "RERANKER"),
    *("GUARDRAIL", "EVALUATOR", "PROMPT"),
)
_UNNAMED = "score"
_MOST_NESTED = 50


def spans_of_otlp(content: Mapping[str, Any]) -> Iterator[Any]:
    """The spans in a line of OTLP JSON, as the collector's file exporter writes it.

    Each knows the library that made it: `otel.scope.name` among its attributes.
    """
    for resource in _list(content, "resourceSpans", "resource_spans"):
        for group in _list(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans"):
            library = text_in(mapping_in(group, "scope", "instrumentationLibrary"), "name")
            for span in _list(group, "spans"):
                yield {SCOPE: library, **span} if isinstance(span, Mapping) else span


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
    attributes = _flat(_plain(row.get("attributes")))
    if SCOPE in row:
        attributes.setdefault(SCOPE, row[SCOPE])
    return _read(
        needed(row, "traceId", "trace_id"),
        needed(row, "spanId", "span_id"),
        text_in(row, "parentSpanId", "parent_span_id"),
        row,
        (
            of_nanoseconds(row.get("startTimeUnixNano", row.get("start_time_unix_nano"))),
            of_nanoseconds(row.get("endTimeUnixNano", row.get("end_time_unix_nano"))),
        ),
        attributes,
        events,
        failed=mapping_in(row, "status").get("code") in (2, "STATUS_CODE_ERROR"),
    )


def read_printed(row: Mapping[str, Any]) -> Iterator[Span | Score]:
    """A span as Python's `ReadableSpan.to_json` and ConsoleSpanExporter print it, or Phoenix.

    Raises:
        UnreadableRow: If it has no trace, or no identifier.
    """
    context = mapping_in(row, "context")
    events = [
        (event.get("name"), mapping_in(event, "attributes"))
        for event in _list(row, "events")
        if isinstance(event, Mapping)
    ]
    attributes = _flat(mapping_in(row, "attributes"))
    if row.get("span_kind") in _KINDS:
        attributes.setdefault(_KIND, row["span_kind"])
    return _read(
        needed(context, "trace_id"),
        needed(context, "span_id"),
        text_in(row, "parent_id"),
        row,
        (moment(row.get("start_time")), moment(row.get("end_time"))),
        attributes,
        events,
        failed="ERROR" in (row.get("status_code"), mapping_in(row, "status").get("status_code")),
    )


def undotted(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of Phoenix's data frame, `context.trace_id` and `attributes.*`, as its API has it."""
    inside: dict[str, dict[str, Any]] = {"context": {}, "attributes": {}}
    for key, value in row.items():
        place, _, name = key.partition(".")
        if name and place in inside:
            inside[place][name] = value
    return {**row, **inside}


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
    usage = usage_in(attributes)
    is_call = _is_call(attributes)
    yield Span(
        trace,
        span_id,
        parent,
        text_in(row, "name") or "",
        start=times[0],
        seconds=between(*times),
        is_call=is_call,
        is_apart=not is_call and _is_apart(attributes, text_in(row, "name") or ""),
        llm=_llm(attributes) if is_call else None,
        usage=usage if is_call else None,
        cost_usd=recorded_usd(attributes.get(name) for name in _COST),
        failed=failed,
        attributes=attributes,
    )
    said = [attributes, *(values for name, values in events if name == "gen_ai.evaluation.result")]
    for at, values in enumerate(said):
        if (score := number(values.get(_SCORE))) is not None:
            yield Score(trace, text_in(values, _SCORE_NAME) or _UNNAMED, score, f"{span_id} {at}")
    for start in dict.fromkeys(found[1] for key in attributes if (found := _GRADE.match(key))):
        if (score := number(attributes.get(f"{start}.score"))) is not None:
            name = text_in(attributes, f"{start}.name") or _UNNAMED
            yield Score(trace, name, score, f"{span_id} {start}")


def _is_call(attributes: Mapping[str, Any]) -> bool:
    """Whether these are the attributes of one call of an LLM.

    A span of an agent has the sum of the tokens of its calls, which would count twice.
    """
    kind = text_in(attributes, _KIND)
    if kind is not None:
        return kind.upper() == "LLM"
    operation = text_in(attributes, *_OPERATION)
    if operation is not None and (_CALLS.search(operation) or _NO_CALLS.search(operation)):
        return not _NO_CALLS.search(operation)
    return text_in(attributes, *_LLM) is not None


def _is_apart(attributes: Mapping[str, Any], name: str) -> bool:
    """Whether these are the attributes of a tool or an agent; some say it by their name alone."""
    said = text_in(attributes, _KIND), text_in(attributes, *_OPERATION), name
    return any(_APART.search(text) for text in said if text is not None)


def _llm(attributes: Mapping[str, Any]) -> str | None:
    """The LLM of a call; OpenInference names that of a failed call in its parameters alone."""
    parameters = decoded(attributes, "llm.invocation_parameters")
    return text_in(attributes, *_LLM) or text_in(parameters, "model", "model_name")


def _list(row: Any, *names: str) -> list[Any]:
    """The first of these entries that is a list with something in it; empty if none is."""
    found = (row.get(name) for name in names) if isinstance(row, Mapping) else ()
    return next((value for value in found if isinstance(value, list) and value), [])


def _flat(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes with nested ones by their dotted names too: `llm.token_count.prompt`, `a.0.b`."""
    found = dict(attributes)
    inside = [(name, value, 0) for name, value in attributes.items()]
    while inside:
        name, value, depth = inside.pop()
        items = value.items() if isinstance(value, Mapping) else ()
        if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            items = enumerate(value)
        for key, item in items if depth < _MOST_NESTED else ():
            found.setdefault(f"{name}.{key}", item)
            inside.append((f"{name}.{key}", item, depth + 1))
    return found


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
    told = value.items() if isinstance(value, Mapping) else ()
    # Phoenix writes all kinds of a value, and null for those that it is not.
    kind, content = next(((k, v) for k, v in told if v is not None), ("", None))
    if kind in ("arrayValue", "array_value"):
        return [_value(item, depth + 1) for item in _list(content, "values")]
    if kind in ("kvlistValue", "kvlist_value"):
        return _plain(mapping_in(value, kind).get("values"), depth + 1)
    return content
