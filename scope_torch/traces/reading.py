"""Reads logged traces from files, whatever logged them.

A file has one JSON value for each line, or values that span lines, as Python's ConsoleSpanExporter
prints them, or one list of all; plain or gzipped. Or it is a Parquet file. Rows that cannot be read
are counted and named.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError
from scope_torch.llm.billing import parse_int
from scope_torch.tasks.files import read_text
from scope_torch.traces.langfuse import is_trace, read_observation, read_score, read_trace
from scope_torch.traces.langsmith import read_run
from scope_torch.traces.opentelemetry import read_otlp, read_printed, spans_of_otlp, undotted
from scope_torch.traces.parquet import is_parquet, read_parquet
from scope_torch.traces.span import Score, Span, UnreadableRow

FORMATS = ("opentelemetry", "langfuse", "langsmith")
_Read = Callable[[Mapping[str, Any]], Iterator[Span | Score]]
_MOST_NAMED = 20
_MOST_NESTED = 100
_DECODER = json.JSONDecoder(parse_int=parse_int)
# Entries of a row that hold rows: answers of APIs, a whole trace, a run with its children.
_HOLDERS = ("data", "runs", "spans", "trace", "traces", "observations", "scores", "child_runs")
# What tells the formats apart, for the message about a row of none.
_LOOKED_FOR = (
    "OpenTelemetry: resourceSpans, traceId and spanId, or context; Langfuse: traceId with type or "
    "value; LangSmith: run_type; all also in snake_case"
)
_TRACE = {"trace_id", "traceId", "subject"}
_MOST_KEYS = 8


@dataclass
class Traces:
    """What the files hold.

    Args:
        spans: All spans.
        scores: All scores.
        formats: Number of spans by format.
        num_unread: Number of rows that could not be read.
        num_lost: How many of these may be spans of the format that was asked for.
        unread: The first of them, each with file, line and reason.
        notes: What else a reader of the files should know: columns that are missing.
    """

    spans: list[Span] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    formats: Counter[str] = field(default_factory=Counter)
    num_unread: int = 0
    num_lost: int = 0
    unread: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def cannot_read(self, path: Path, line: int, reason: object, may_be_span: bool) -> None:
        """Counts a row that cannot be read, and names it if it is among the first."""
        self.num_unread += 1
        self.num_lost += may_be_span
        if len(self.unread) < _MOST_NAMED:
            self.unread.append(f"{path}, line {line}: {reason}")


def read_traces(paths: Sequence[Path | str], format: str = "auto") -> Traces:
    """Reads the spans and scores in files, such as observations in one and scores in another.

    Args:
        paths: The files.
        format: One of `FORMATS`: rows of another one are not read; `auto` reads all.

    Raises:
        InputError: If a file cannot be read or is too large, if no row can be read, or if the
            files hold calls in two formats: one call may then be there twice.

    Examples:
        >>> span = {"traceId": "t1", "id": "s1", "type": "GENERATION", "model": "nano"}
        >>> _ = Path("traces.jsonl").write_text(json.dumps(span) + "\\n{cut")
        >>> traces = read_traces(["traces.jsonl"])
        >>> traces.spans[0].llm, traces.unread
        ('nano', ['traces.jsonl, line 2: no JSON (Expecting property name enclosed in double quotes)'])
    """  # noqa: E501 - an example
    if format not in ("auto", *FORMATS):
        raise InputError(f"format={format!r} must be auto, {', '.join(FORMATS)}")
    found = Traces()
    for path in map(Path, paths):
        for line, content in _contents(path, found):
            _take(found, path, line, content, format)
    if not found.spans:
        told = [*found.notes, *found.unread[:1]]
        named = f" ({'; '.join(told)})" if told else ""
        raise InputError(
            f"{', '.join(map(str, paths))}: no span can be read{named}; give an export of "
            "OpenTelemetry (OTLP JSON), OpenInference, Phoenix, Langfuse (observations) or "
            "LangSmith (runs), as JSON, JSON lines or Parquet"
        )
    if len(found.formats) > 1:
        held = ", ".join(f"{name} ({spans} spans)" for name, spans in found.formats.items())
        raise InputError(
            f"{', '.join(map(str, paths))} hold {held}, so a call may be there twice; choose one "
            f"with --format {next(iter(found.formats))}"
        )
    return found


def _take(found: Traces, path: Path, line: int, content: object, format: str) -> None:
    """Reads what one JSON value holds."""
    if isinstance(content, UnreadableRow):
        found.cannot_read(path, line, content, may_be_span=True)
        return
    for kind, read, row in _rows(content):
        try:
            if read is None:
                raise UnreadableRow(_unknown(row))
            if format not in ("auto", kind):
                raise UnreadableRow(f"no span or score of {format}, but of {kind}")
            for item in read(row):
                if isinstance(item, Span):
                    found.spans.append(item)
                    found.formats[kind] += 1
                else:
                    found.scores.append(item)
        except UnreadableRow as error:
            is_other = read in (read_score, read_trace) or (read and format not in ("auto", kind))
            found.cannot_read(path, line, error, may_be_span=not is_other)


def _contents(path: Path, found: Traces) -> Iterator[tuple[int, object]]:
    """(line, JSON value) of a file, or (row, its entries) of a Parquet file."""
    if path.suffix.lower() in (".csv", ".tsv"):
        raise InputError(
            f"{path} is a table of text, in which usage and scores are not whole; download JSON "
            "(in Langfuse: Export, JSON), JSON lines or Parquet"
        )
    if is_parquet(path):
        rows, missing = read_parquet(path)
        found.notes += missing
        yield from enumerate(rows, 1)
    else:
        yield from _values(read_text(path, "utf-8-sig"))


def _unknown(row: Mapping[str, Any]) -> str:
    """Why a row is of no format."""
    keys = ", ".join(f"{str(key)!r:.40}" for key in list(row)[:_MOST_KEYS]) or "no keys"
    more = ", ..." if len(row) > _MOST_KEYS else ""
    return f"no span or score of a known format: it has {keys}{more} (looked for {_LOOKED_FOR})"


def _values(text: str) -> Iterator[tuple[int, object]]:
    """(line, JSON value), or (line, why there is none)."""
    start, line = 0, 1
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end + 1
        piece = text[start:end].strip()
        if piece:
            try:
                yield line, _DECODER.decode(piece)
            except (ValueError, RecursionError) as error:
                longer = _over_lines(text, start) if piece[0] in "{[" else None
                if longer is None:
                    reason = getattr(error, "msg", None) or "too deeply nested"
                    yield line, UnreadableRow(f"no JSON ({reason})")
                else:
                    content, end = longer
                    yield line, content
        line += text.count("\n", start, end)
        start = end


def _over_lines(text: str, start: int) -> tuple[object, int] | None:
    """A JSON value that spans lines, and where it ends; None if there is none."""
    while text[start].isspace():
        start += 1
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def _rows(content: Any, depth: int = 0) -> Iterator[tuple[str, _Read | None, Mapping[str, Any]]]:
    """(format, reader, row) for the rows in a JSON value; without a reader if it is none."""
    if depth > _MOST_NESTED:
        yield "", _too_deep, {}
        return
    if isinstance(content, list):
        for item in content:
            yield from _rows(item, depth + 1)
        return
    if not isinstance(content, Mapping):
        yield "", None, {}
        return
    if content.keys() & {"resourceSpans", "resource_spans"}:
        for span in spans_of_otlp(content):
            is_span = isinstance(span, Mapping)
            yield "opentelemetry", read_otlp if is_span else None, span if is_span else {}
        return
    kind, read = _kind(content)
    held = [rows for key in _HOLDERS if (rows := _held(content, key, read is None)) is not None]
    if read is not None or not held:
        yield kind, read, content
    for rows in held:
        yield from _rows(rows, depth + 1)


def _held(content: Mapping[str, Any], key: str, is_holder: bool) -> Any:
    """The rows that an entry holds; None if it holds none. Those of a trace know it."""
    rows = content.get(key)
    if key in ("observations", "scores") and isinstance(rows, list):
        known = {"traceId": content["id"]} if isinstance(content.get("id"), str) else {}
        return [
            row if row.keys() & _TRACE else {**known, **row}
            for row in rows
            if isinstance(row, Mapping)  # some answers name them alone
        ]
    return rows if isinstance(rows, list) or (is_holder and isinstance(rows, Mapping)) else None


def _too_deep(_: Mapping[str, Any]) -> Iterator[Span | Score]:
    raise UnreadableRow(f"rows are nested more than {_MOST_NESTED} deep")


def _kind(row: Mapping[str, Any]) -> tuple[str, _Read | None]:
    """The format of a row, and its reader."""
    if "run_type" in row:
        return "langsmith", read_run
    if isinstance(row.get("context"), Mapping):
        return "opentelemetry", read_printed
    if "context.trace_id" in row:
        return "opentelemetry", lambda row: read_printed(undotted(row))
    if {"traceId", "spanId"} <= row.keys() or {"trace_id", "span_id"} <= row.keys():
        return "opentelemetry", read_otlp
    if row.keys() & _TRACE:
        if "type" in row:
            return "langfuse", read_observation
        if "value" in row:
            return "langfuse", read_score
    return ("langfuse", read_trace) if is_trace(row) else ("", None)
