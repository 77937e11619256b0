"""One record for the spans of all formats, and the values in them; tokens are in `tokens`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from scope_torch.errors import printable
from scope_torch.llm.billing import Usage

MOST_USD = 1e6  # of one call; a larger number is no cost
_UTC = re.compile(r"\s*(UTC|Z)$")  # which is what a date without a zone means
_LAST_SECOND = 1e11  # about the year 5100; a larger number is no time


class UnreadableRow(Exception):
    """A row that is not a usable span or score; the message says why."""


@dataclass(frozen=True)
class Span:
    """A step of a trace; a call of an LLM if `is_call`.

    Args:
        trace: Identifier of its trace.
        id: Its own identifier.
        parent: Identifier of the span around it; None if there is none.
        name: Its name.
        start: Seconds since 1970; None if not known.
        seconds: How long it took; None if not known.
        is_call: Whether it is one call of an LLM.
        is_apart: Whether it is a tool or an agent: the calls in it are its own, also where it is
            inside a call.
        llm: The LLM that was asked for; None if it is no call, or says none.
        usage: Tokens that were billed; None if it reports none.
        cost_usd: The recorded cost in USD; None if none is recorded, or 0: its logger knew no
            price.
        failed: Whether it ended with an error.
        unit: What its log counts in place of tokens, such as CHARACTERS; None for tokens.
        attributes: Everything else that it says, by name.

    Examples:
        >>> span = Span("t1", "s1", None, "plan", llm="nano", is_call=True, usage=Usage(90, 7))
        >>> span.usage.prompt_tokens
        90
    """

    trace: str
    id: str
    parent: str | None
    name: str
    start: float | None = None
    seconds: float | None = None
    is_call: bool = False
    is_apart: bool = False
    llm: str | None = None
    usage: Usage | None = None
    cost_usd: float | None = None
    failed: bool = False
    unit: str | None = None
    attributes: Mapping[str, Any] | None = None


class Score(NamedTuple):
    """A grade that the log gives to a trace, or to a span in it.

    Of several with the same `id` only the one with the latest `version` counts, in any unit; empty:
    each counts.
    """

    trace: str
    name: str
    value: float
    id: str = ""
    version: float = 0.0


def text_in(row: Mapping[str, Any], *names: str) -> str | None:
    """The first of these entries that is a text with something in it, such as a terminal may show.

    Examples:
        >>> text_in({"trace_id": "", "traceId": "t1"}, "trace_id", "traceId")
        't1'
    """
    found = (row.get(name) for name in names)
    said = next((value for value in found if isinstance(value, str) and value.strip()), None)
    return None if said is None else printable(said)


def first_in(row: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The first of these entries that is not None; None if all are."""
    found = (row.get(name) for name in names)
    return next((value for value in found if value is not None), None)


def needed(row: Mapping[str, Any], *names: str) -> str:
    """Such an entry, which a row must have.

    Raises:
        UnreadableRow: If it has none.
    """
    found = text_in(row, *names)
    if found is None:
        name = next(filter(row.get, names), names[0])
        raise UnreadableRow(f"{name}={row.get(name)!r:.40} must be a text")
    return found


def mapping_in(row: Any, *names: str) -> Mapping[str, Any]:
    """The first of these entries that is a mapping with something in it; empty if none is."""
    found = (row.get(name) for name in names) if isinstance(row, Mapping) else ()
    return next((value for value in found if isinstance(value, Mapping) and value), {})


def decoded(row: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """An entry that is a mapping, or JSON text of one; empty if it is neither."""
    text = text_in(row, *names)
    if text is None:
        return mapping_in(row, *names)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, Mapping) else {}


def number(value: Any) -> float | None:
    """A finite number, also as text, as OTLP and exports of decimals have it; None if it is none.

    Examples:
        >>> number("0.0025"), number(True), number("nan"), number(None)
        (0.0025, 1.0, None, None)
    """
    if not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def recorded_usd(values: Iterable[Any]) -> float | None:
    """The first of these costs that can be believed; None if none can.

    A logger writes 0 where it does not know tokens or prices.

    Examples:
        >>> recorded_usd([None, True, "0.0025"]), recorded_usd([0.0, 1e308])
        (0.0025, None)
    """
    found = (None if isinstance(value, bool) else number(value) for value in values)
    return next((usd for usd in found if usd is not None and 0 < usd <= MOST_USD), None)


def moment(value: Any) -> float | None:
    """Seconds since 1970 of a date in ISO 8601; in UTC if it names no zone; None if it is none.

    A number counts seconds, or milliseconds, microseconds or nanoseconds, as a frame of pandas in
    JSON; its size tells which.

    Examples:
        >>> moment("1970-01-01T00:00:02.5Z"), moment("1970-01-01 00:00:02.5 UTC"), moment(7)
        (2.5, 2.5, None)
        >>> moment(1735689600.5), moment(1735689600000), moment(1735689600000000000)
        (1735689600.5, 1735689600.0, 1735689600.0)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        units = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3), (1e9, 1.0))
        seconds = next((value / unit for least, unit in units if value >= least), None)
        return seconds if seconds is not None and seconds < _LAST_SECOND else None
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(_UTC.sub("", value.strip()))
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def of_nanoseconds(value: Any) -> float | None:
    """Seconds since 1970 of a count of nanoseconds; None if it is none, or beyond all dates.

    Examples:
        >>> of_nanoseconds("2500000000"), of_nanoseconds(1e308)
        (2.5, None)
    """
    found = number(value)
    return found / 1e9 if found is not None and 0 <= found / 1e9 < _LAST_SECOND else None


def between(start: float | None, end: float | None) -> float | None:
    """Seconds from start to end; None if one is not known, or the end is before the start."""
    return None if start is None or end is None or end < start else end - start
