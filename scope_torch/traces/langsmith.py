"""Runs of LangSmith, in its run data format: exports, `list_runs`, and `child_runs` in them.

| | entry |
| --- | --- |
| a call | `run_type` = llm |
| LLM | `extra.metadata.ls_model_name`; else `extra.invocation_params.model`, `inputs.model` |
| tokens | `prompt_tokens`, `completion_tokens`, `prompt_token_details`; else `usage_metadata`; cached tokens are inside the prompt |
| cost | `total_cost` |
| score | the average of each key of `feedback_stats` |

Its export to Parquet has `extra`, `inputs`, `outputs` and `feedback_stats` as JSON text.
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scope_torch.errors import printable
from scope_torch.llm.usage import Usage, count, usage_of
from scope_torch.traces.span import (
    Score,
    Span,
    between,
    decoded,
    mapping_in,
    moment,
    needed,
    number,
    recorded_usd,
    text_in,
)
from scope_torch.traces.tokens import cached_in, further_in, tier_in, used

_NO_TOKENS = {"input_tokens": 0, "output_tokens": 0}
_TIERS = "flex", "priority"  # details that tell the tier


def read_run(row: Mapping[str, Any]) -> Iterator[Span | Score]:
    """A run.

    Raises:
        UnreadableRow: If it has no identifier, or no trace.
    """
    path = [part.rpartition("Z")[2] for part in (text_in(row, "dotted_order") or "").split(".")]
    trace = text_in(row, "trace_id") or path[0] or needed(row, "trace_id")
    parent = text_in(row, "parent_run_id") or (path[-2] if len(path) > 1 else None)
    kind = needed(row, "run_type").lower()
    is_call = kind == "llm"
    start, end = moment(row.get("start_time")), moment(row.get("end_time"))
    usage = _usage(row) if is_call else None
    metadata = mapping_in(decoded(row, "extra"), "metadata")
    yield Span(
        trace,
        needed(row, "id"),
        parent,
        text_in(row, "name") or "",
        start=start,
        seconds=between(start, end),
        is_call=is_call,
        is_apart=kind == "tool",
        llm=_llm(row, metadata) if is_call else None,
        usage=usage,
        cost_usd=recorded_usd([row.get("total_cost")]),
        failed=bool(row.get("error")) or row.get("status") == "error",
        attributes={**row, **metadata},
    )
    for name, stats in decoded(row, "feedback_stats").items():
        average = number(stats.get("avg")) if isinstance(stats, Mapping) else None
        if average is not None:
            version = number(stats.get("n")) or 0.0  # feedback is added
            yield Score(trace, printable(name), average, needed(row, "id"), version)


def _llm(row: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    parameters = mapping_in(decoded(row, "extra"), "invocation_params")
    places = (metadata, "ls_model_name"), (parameters, "model"), (parameters, "model_name")
    inputs = decoded(row, "inputs")
    found = (text_in(*place) for place in (*places, (inputs, "model"), (inputs, "model_name")))
    return next(filter(None, found), None)


def _usage(row: Mapping[str, Any]) -> Usage | None:
    outputs, extra = decoded(row, "outputs"), decoded(row, "extra")
    places = outputs, mapping_in(extra, "metadata")
    said = next(filter(None, (mapping_in(place, "usage_metadata") for place in places)), {})
    given = decoded(row, "prompt_token_details") or mapping_in(said, "input_token_details")
    answered = decoded(row, "completion_token_details") or mapping_in(said, "output_token_details")
    response = _response(outputs)
    counts = {f"input_{key}": value for key, value in given.items()}
    counts |= {f"output_{key}": value for key, value in answered.items()}
    tools = {"server_tool_use": mapping_in(response, "usage").get("server_tool_use")}
    searched = usage_of({"usage": {**_NO_TOKENS, **tools}, "output": outputs.get("output")})
    if searched is not None:
        counts |= {"web_searches": searched.searches, "file_searches": searched.file_searches}
    tiers = [{"service_tier": tier} for tier in _TIERS if count(given.get(tier))]
    tier = tier_in(response, outputs, *tiers, mapping_in(extra, "invocation_params"))
    cached, further = cached_in(given), {**further_in(counts), "service_tier": tier}
    columns = row.get("prompt_tokens"), row.get("completion_tokens")
    counted = used(*columns, cached, total=row.get("total_tokens"), further=further)
    if counted is not None and (counted.prompt_tokens or counted.completion_tokens):
        return counted
    tokens = said.get("input_tokens"), said.get("output_tokens")
    return used(*tokens, cached, total=said.get("total_tokens"), further=further)


def _response(outputs: Any) -> Mapping[str, Any]:
    """What LangChain keeps of the reply itself; empty if nothing."""
    for name in ("generations", 0, 0, "message", "kwargs", "response_metadata"):
        try:
            outputs = outputs[name]
        except (LookupError, TypeError):
            return {}
    return outputs if isinstance(outputs, Mapping) else {}
