"""The spans of one trace: which is around which, and which module a call belongs to."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

from scope_torch.errors import printable
from scope_torch.traces.span import Span

_SCALARS = str | int | float
_NEARLY = 0.9  # of the tokens of a call: two libraries may count some of them differently


class Tree:
    """The spans of one trace.

    Args:
        spans: Its spans, in any order; their identifiers differ.

    Attributes:
        calls: The calls of LLMs, by time. Where two libraries have logged the same call, one inside
            the other, only the inner one is among them, or the one that reports tokens or a cost.
            Nor is one that failed and names no LLM, no tokens and no cost.

    Examples:
        >>> call = Span("t", "c", "b", "chat nano", is_call=True, llm="nano")
        >>> tree = Tree([Span("t", "a", None, "answer"), Span("t", "b", "a", "plan"), call])
        >>> tree.name(call, "nearest"), tree.name(call, "own")
        ('plan', 'chat nano')
    """

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = {span.id: span for span in spans}
        self._tops = [span for span in self._spans.values() if span.parent not in self._spans]
        self._downwards = list(self._from_the_top())
        self._steps: dict[str, tuple[Span | None, Span | None]] = {}
        self._found: dict[str, dict[str, str | None]] = {}
        for span, parent in self._downwards:
            self._steps[span.id] = self._step_around(parent)
        doubles = self._doubles()
        calls = [span for span in self._spans.values() if span.is_call and span.id in self._steps]
        self.calls = sorted(
            (span for span in calls if _says_something(span) and span.id not in doubles),
            key=lambda span: span.start or 0.0,
        )

    def _doubles(self) -> set[str]:
        """Calls that are logged once more, by the calls inside or around them."""
        doubles: set[str] = set()
        below: dict[str, list[Span]] = {}  # the calls in a span, but for those of tools and agents
        for span, parent in reversed(self._downwards):
            inner = below.pop(span.id, [])
            if span.is_call and any(map(_tells, inner)):
                if _is_same(span, [one for one in inner if _tells(one)]):
                    doubles.add(span.id)
                else:
                    inner.append(span)
            elif span.is_call:
                if _tells(span):
                    doubles.update(one.id for one in inner)
                inner = [span]
            if parent is not None and not span.is_apart:
                below.setdefault(parent.id, []).extend(inner)
        return doubles

    def _from_the_top(self) -> Iterator[tuple[Span, Span | None]]:
        """Each span with the one around it, which comes first. Spans in a circle do not come."""
        inside: dict[str, list[Span]] = {}
        for span in self._spans.values():
            inside.setdefault(span.parent or "", []).append(span)
        next_ones: list[tuple[Span, Span | None]] = [(span, None) for span in self._tops]
        while next_ones:
            span, parent = next_ones.pop()
            yield span, parent
            next_ones += [(child, span) for child in inside.get(span.id, ())]

    def _step_around(self, parent: Span | None) -> tuple[Span | None, Span | None]:
        """The nearest and the topmost span around that is neither a call nor the root."""
        if parent is None:
            return None, None
        nearest, topmost = self._steps[parent.id]
        if parent.is_call or parent is self.root:
            return nearest, topmost
        return parent, topmost or parent

    @property
    def root(self) -> Span | None:
        """The only topmost span; None if there are several."""
        return self._tops[0] if len(self._tops) == 1 else None

    def why_not(self, roots: Set[str], needs_cost: bool) -> str:
        """Why the trace does not count; empty if it does.

        Args:
            roots: Names of roots with nothing around them. A root whose parent is missing has one
                of them, or there are none: then another service has made the spans around it.
            needs_cost: Whether each call must tell tokens or a cost.
        """
        if len(self._downwards) < len(self._spans):
            return "with spans around each other in a circle"
        if not self.calls:
            is_lost = any(span.is_call for span in self._spans.values())
            return "with failed calls that name no LLM" if is_lost else "without a call of an LLM"
        is_cut = any(top.parent for top in self._tops)
        is_known = self.root is not None and (not roots or self.root.name in roots)
        if is_cut and not is_known:
            return "not whole: a span around others is missing"
        nameless = [call for call in self.calls if call.llm is None]
        paid = [call for call in nameless if call.failed and call.usage is None]  # its cost is told
        if len(paid) < len(nameless) or len(nameless) == len(self.calls):
            return "with a call that does not name its LLM"
        silent = [call for call in self.calls if not (_tells(call) or call.failed)]
        unknown = silent if needs_cost else []
        if units := {call.unit for call in unknown if call.unit is not None}:
            return f"with a call that counts {min(units)}, not tokens: no price is known for these"
        if unknown:
            return "with a call that reports neither tokens nor a cost"
        return ""

    def name(self, call: Span, name_of: str) -> str:
        """The module of a call; see `TraceRules.name_of`."""
        nearest, topmost = self._steps[call.id]
        around = topmost if name_of == "top" else nearest
        return (name_of != "own" and around and around.name) or call.name or "llm"

    def attribute(self, span: Span, name: str) -> str | None:
        """An attribute of a span, or of the nearest one around it that has it; None if none has."""
        if name not in self._found:
            found = self._found[name] = {}
            for each, parent in self._downwards:
                own = (each.attributes or {}).get(name)
                around = None if parent is None else found[parent.id]
                found[each.id] = printable(str(own)) if _is_told(own) else around
        return self._found[name][span.id]

    def value(self, name: str) -> str | float | None:
        """An attribute of the trace: of a topmost span, else of any; None if none has it."""
        found = ((span.attributes or {}).get(name) for span in (*self._tops, *self._spans.values()))
        return next(filter(_is_told, found), None)

    @property
    def seconds(self) -> float | None:
        """From the first start to the last end; None if they are not known.

        Below a root only the calls and the spans around them count: an evaluation may have added
        another span a day later.
        """
        counts = set(self._spans) if self.root is None else {call.id for call in self.calls}
        for span, parent in reversed(self._downwards):
            if parent is not None and span.id in counts:
                counts.add(parent.id)
        timed = [(s.start, s.seconds) for s in self._spans.values() if s.id in counts]
        times = [(start, start + s) for start, s in timed if start is not None and s is not None]
        return max(end for _, end in times) - min(start for start, _ in times) if times else None


def _tells(call: Span) -> bool:
    return call.usage is not None or call.cost_usd is not None


def _is_same(outer: Span, inner: Sequence[Span]) -> bool:
    """Whether calls inside a call are what it reports, or more: it may have been tried again.

    Of another LLM they are so only if they, or one of them, report as much.
    """
    used = [_tokens(one) for one in inner if one.usage is not None]
    paid = [one.cost_usd for one in inner if one.cost_usd is not None]
    if outer.usage is not None and used:
        whole, parts = float(_tokens(outer)), [float(tokens) for tokens in used]
    elif outer.cost_usd is not None and paid:
        whole, parts = outer.cost_usd, paid
    else:
        return not _tells(outer) or outer.llm in (None, *(one.llm for one in inner))
    if any(_is_alike(outer.llm, one.llm) for one in inner):
        return math.fsum(parts) >= _NEARLY * whole
    return any(_NEARLY * whole <= some <= whole / _NEARLY for some in (math.fsum(parts), *parts))


def _is_alike(one: str | None, other: str | None) -> bool:
    """Whether two names may be of one LLM: one may have a provider, and a version or a date."""
    if one is None or other is None:
        return True
    short, long = sorted((name.lower().rpartition("/")[2] for name in (one, other)), key=len)
    version = r"([-@:](v?\d|latest|preview).*)?"
    return re.search(rf"(?<![\w-]){re.escape(short)}{version}$", long) is not None


def _is_told(value: Any) -> bool:
    return isinstance(value, _SCALARS) and str(value).strip() != ""


def _tokens(call: Span) -> int:
    return 0 if call.usage is None else call.usage.prompt_tokens + call.usage.completion_tokens


def _says_something(call: Span) -> bool:
    return not call.failed or call.llm is not None or _tells(call)


def _progress(span: Span) -> tuple[bool, float, int]:
    """Of a span that was exported several times: more after its end, and when all is counted."""
    return _tells(span), span.seconds if span.seconds is not None else -1.0, _tokens(span)


def trees_of(spans: Iterable[Span]) -> tuple[dict[str, Tree], int]:
    """The traces, and the number of spans that are there twice; that which is complete counts.

    Examples:
        >>> span = Span("t1", "s1", None, "plan")
        >>> trees, repeated = trees_of([span, span])
        >>> list(trees), repeated
        (['t1'], 1)
    """
    found: dict[str, dict[str, Span]] = {}
    repeated = 0
    for span in spans:
        of_trace = found.setdefault(span.trace, {})
        repeated += span.id in of_trace
        first = of_trace.setdefault(span.id, span)
        if _progress(span) > _progress(first):
            of_trace[span.id] = span
    return {trace: Tree(of_trace.values()) for trace, of_trace in found.items()}, repeated
