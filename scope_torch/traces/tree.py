"""The spans of one trace: which is around which, and which module a call belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Any

from scope_torch.traces.span import Span

_SCALARS = str | int | float


class Tree:
    """The spans of one trace.

    Args:
        spans: Its spans, in any order; their identifiers differ.

    Attributes:
        calls: The calls of LLMs, by time. A call around another one that reports tokens is not
            among them: two libraries have logged the same call. Nor is one that failed and names
            no LLM and no tokens.

    Examples:
        >>> call = Span("t", "c", "b", "chat nano", is_call=True, llm="nano")
        >>> tree = Tree([Span("t", "a", None, "answer"), Span("t", "b", "a", "plan"), call])
        >>> tree.name(call, "nearest"), tree.name(call, "own")
        ('plan', 'chat nano')
    """

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = {span.id: span for span in spans}
        self._tops = [span for span in self._spans.values() if span.parent not in self._spans]
        calls = [span for span in self._spans.values() if span.is_call and _says_something(span)]
        inner = [span for span in calls if span.usage is not None]
        outer = {around.id for span in inner for around in self.around(span) if around.is_call}
        self.calls = sorted(
            (span for span in calls if span.id not in outer), key=lambda span: span.start or 0.0
        )

    def around(self, span: Span) -> Iterator[Span]:
        """The spans around a span, from the nearest to the topmost."""
        seen = {span.id}  # a damaged log may have a circle
        while (parent := self._spans.get(span.parent or "")) is not None and parent.id not in seen:
            yield parent
            seen.add(parent.id)
            span = parent

    @property
    def root(self) -> Span | None:
        """The only topmost span; None if there are several."""
        return self._tops[0] if len(self._tops) == 1 else None

    def why_not(self, roots: Set[str]) -> str:
        """Why the trace does not count; empty if it does.

        Args:
            roots: Names of roots with nothing around them. A root whose parent is missing has one
                of them, or there are none: then another service has made the spans around it.
        """
        if not self.calls:
            return "without a call of an LLM"
        is_cut = any(top.parent for top in self._tops)
        is_known = self.root is not None and (not roots or self.root.name in roots)
        if not self._tops or (is_cut and not is_known):
            return "not whole: a span around others is missing"
        if any(call.llm is None for call in self.calls):
            return "with a call that does not name its LLM"
        unknown = [call for call in self.calls if call.usage is None and call.cost_usd is None]
        if any(not call.failed for call in unknown):
            return "with a call that reports neither tokens nor a cost"
        return ""

    def name(self, call: Span, name_of: str) -> str:
        """The module of a call; see `Rules.name_of`."""
        around = [span for span in self.around(call) if not span.is_call and span is not self.root]
        if name_of == "own" or not around:
            return call.name or "llm"
        return (around[0] if name_of == "nearest" else around[-1]).name or call.name or "llm"

    def attribute(self, span: Span, name: str) -> str | None:
        """An attribute of a span, or of the nearest one around it that has it; None if none has."""
        found = ((each.attributes or {}).get(name) for each in (span, *self.around(span)))
        return next((str(value) for value in found if isinstance(value, _SCALARS)), None)

    def value(self, name: str) -> Any:
        """An attribute of the trace: of a topmost span, else of any; None if none has it."""
        found = ((span.attributes or {}).get(name) for span in (*self._tops, *self._spans.values()))
        return next((value for value in found if isinstance(value, _SCALARS)), None)

    @property
    def seconds(self) -> float | None:
        """From the first start to the last end; None if they are not known."""
        timed = [(s.start, s.seconds) for s in self._spans.values()]
        times = [(start, start + s) for start, s in timed if start is not None and s is not None]
        return max(end for _, end in times) - min(start for start, _ in times) if times else None


def _says_something(call: Span) -> bool:
    return not call.failed or call.llm is not None or call.usage is not None


def trees_of(spans: Iterable[Span]) -> tuple[dict[str, Tree], int]:
    """The traces, and the number of spans that are there twice.

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
        of_trace.setdefault(span.id, span)
    return {trace: Tree(of_trace.values()) for trace, of_trace in found.items()}, repeated
