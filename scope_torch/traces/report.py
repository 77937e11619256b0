"""What logged traces say, as text for a person."""

from __future__ import annotations

from collections.abc import Sequence

from scope_torch.errors import printable
from scope_torch.traces.reading import Traces
from scope_torch.traces.summary import Summary, TracedModule

_HEAD = ("module", "LLM", "traces", "calls", "prompt", "cached", "completion", "USD", "seconds")


def report(summary: Summary, traces: Traces) -> str:
    """The modules as a table, the averages, and what did not count, and why.

    Examples:
        >>> from scope_torch.traces.span import Span
        >>> from scope_torch.traces.summary import summarize
        >>> traces = Traces([Span("t", "s", None, "plan", is_call=True, llm="nano", cost_usd=0.5)])
        >>> print(report(summarize(traces), traces))
        module  LLM   traces  calls  prompt  cached  completion  USD  seconds
        plan    nano       1      1       0       0           0  0.5        0
        1 query in 1 trace; all numbers are sums, the seconds those of the calls
        the reference: 0.5 USD a query (recorded in the traces), quality unknown: no trace has a score
        modules are named by the spans of the calls themselves (plan); see docs/howto/import-traces.md
    """  # noqa: E501 - an example
    queries = _number(len(summary.queries), "query", "queries")
    counted = f"{queries} in {_number(summary.num_traces, 'trace', 'traces')}"
    lines = _table([_HEAD, *(_row(name, m) for name, m in summary.modules.items())])
    lines.append(f"{counted}; all numbers are sums, the seconds those of the calls")
    lines.append(f"the reference: {_cost(summary)}, {_quality(summary)}")
    modules = summary.modules.values()
    if failed := sum(module.failed for module in modules):
        free = sum(module.free for module in modules)
        told = f"; {free} without tokens or a cost, which count as free" if free else ""
        lines.append(f"{_number(failed, 'call', 'calls')} failed{told}")
    if any(m.priced for m in modules) and not any(m.cached_tokens for m in modules):
        lines.append("no call reports cached tokens; where a cache gave prompts, you paid less")
    of_calls = {span.name for span in traces.spans if span.is_call}
    own = [name for name in summary.modules if name in of_calls]
    if own:
        lines.append(
            f"modules are named by the spans of the calls themselves ({', '.join(own)}); see "
            "docs/howto/import-traces.md"
        )
    left_out = summary.left_out.items()
    lines += [f"left out: {_number(cut, 'trace', 'traces')} {why}" for why, cut in left_out]
    lines += [*summary.notes, *traces.notes]
    if traces.num_unread:
        lines.append(f"not read: {_number(traces.num_unread, 'row', 'rows')}")
        lines += [f"  {named}" for named in traces.unread]
        if traces.num_unread > len(traces.unread):
            lines.append("  ...")
    return "\n".join(map(printable, lines))


def _number(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _row(name: str, module: TracedModule) -> tuple[str, ...]:
    counts = (module.traces, module.calls, module.prompt_tokens, module.cached_tokens)
    return (
        name,
        module.llm,
        *(f"{count:,}" for count in (*counts, module.completion_tokens)),
        "unknown" if module.cost_usd is None else f"{module.cost_usd:.6g}",
        f"{module.seconds:.3g}",
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width; the first two to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _cost(summary: Summary) -> str:
    """The average cost, and where it comes from."""
    if summary.cost_usd is None:
        names = ", ".join(summary.unpriced)
        return f"cost unknown: no price is known for {names} (give --prices prices.toml)"
    modules = summary.modules.values()
    priced = sum(module.priced for module in modules)
    calls = sum(module.calls - module.free for module in modules)
    if not priced:
        source = "recorded in the traces"
    elif priced >= calls:
        source = "tokens times prices"
    else:
        source = f"tokens times prices for {priced} of {calls} calls, recorded for the others"
    return f"{summary.cost_usd:.6g} USD a query ({source})"


def _quality(summary: Summary) -> str:
    if summary.quality is None:
        return "quality unknown: no trace has a score"
    scored = sum(query.quality is not None for query in summary.queries)
    of = "all" if scored == len(summary.queries) else f"{scored} of {len(summary.queries)}"
    return f"quality {summary.quality:.3g} (score {summary.score!r} of {of} queries)"
