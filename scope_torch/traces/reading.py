"""Reads logged traces from files, whatever logged them.

A file has one JSON value for each line, or values that span lines, as Python's ConsoleSpanExporter
prints them, or one list of all; plain or gzipped. Rows that cannot be read are counted and named.
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
from scope_torch.traces.langfuse import read_observation, read_score
from scope_torch.traces.langsmith import read_run
from scope_torch.traces.opentelemetry import read_otlp, read_printed, spans_of_otlp
from scope_torch.traces.span import Score, Span, UnreadableRow

FORMATS = ("opentelemetry", "langfuse", "langsmith")
_Read = Callable[[Mapping[str, Any]], Iterator[Span | Score]]
_MOST_NAMED = 20
_MOST_NESTED = 100
_DECODER = json.JSONDecoder(parse_int=parse_int)
# Entries of a row that hold rows: answers of APIs, a whole trace, a run with its children.
_HOLDERS = ("data", "runs", "observations", "scores", "child_runs")


@dataclass
class Traces:
    """What the files hold.

    Args:
        spans: All spans.
        scores: All scores.
        formats: Number of spans by format.
        num_unread: Number of rows that could not be read.
        unread: The first of them, each with file, line and reason.
    """

    spans: list[Span] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    formats: Counter[str] = field(default_factory=Counter)
    num_unread: int = 0
    unread: list[str] = field(default_factory=list)

    def cannot_read(self, path: Path, line: int, reason: object) -> None:
        """Counts a row that cannot be read, and names it if it is among the first."""
        self.num_unread += 1
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
        for line, content in _values(read_text(path, "utf-8-sig")):
            _take(found, path, line, content, format)
    if not found.spans:
        named = f" ({found.unread[0]})" if found.unread else ""
        raise InputError(
            f"{', '.join(map(str, paths))}: no span can be read{named}; give an export of "
            "OpenTelemetry (OTLP JSON), OpenInference, Langfuse (observations) or LangSmith (runs)"
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
        found.cannot_read(path, line, content)
        return
    for kind, read, row in _rows(content):
        try:
            if read is None or (format not in ("auto", kind)):
                raise UnreadableRow(f"no span or score of {_asked(format)}")
            for item in read(row):
                if isinstance(item, Span):
                    found.spans.append(item)
                    found.formats[kind] += 1
                else:
                    found.scores.append(item)
        except UnreadableRow as error:
            found.cannot_read(path, line, error)


def _asked(format: str) -> str:
    return "a known format" if format == "auto" else format


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
        return
    if isinstance(content, list):
        for item in content:
            yield from _rows(item, depth + 1)
        return
    if not isinstance(content, Mapping):
        yield "", None, {}
        return
    if "resourceSpans" in content:
        for span in spans_of_otlp(content):
            yield "opentelemetry", read_otlp if isinstance(span, Mapping) else None, span
        return
    kind, read = _kind(content)
    held = [content[key] for key in _HOLDERS if isinstance(content.get(key), list)]
    if read is not None or not held:
        yield kind, read, content
    for rows in held:
        yield from _rows(rows, depth + 1)


def _kind(row: Mapping[str, Any]) -> tuple[str, _Read | None]:
    """The format of a row, and its reader."""
    if "run_type" in row:
        return "langsmith", read_run
    if isinstance(row.get("context"), Mapping):
        return "opentelemetry", read_printed
    if "traceId" in row and "spanId" in row:
        return "opentelemetry", read_otlp
    if row.keys() & {"trace_id", "traceId", "subject"}:
        if "type" in row:
            return "langfuse", read_observation
        if "value" in row:
            return "langfuse", read_score
    return "", None
