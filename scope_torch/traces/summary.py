"""What logged traces say of the application: its modules, their LLMs, costs, and scores.

The module of a call is the name of the nearest span around it that is neither itself a call of an
LLM nor the root of the trace; if there is none, the name of the call's own span. The root is the
only span without one around it; if there are several, they stand below the trace itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scope_torch.errors import InputError, printable
from scope_torch.llm.price_list import PriceList
from scope_torch.traces.reading import Traces
from scope_torch.traces.rules import TraceRules
from scope_torch.traces.span import Score, Span, number
from scope_torch.traces.tree import Tree, trees_of


class Call(NamedTuple):
    """A call of an LLM: its module, and its cost in USD, None if no price is known."""

    module: str
    span: Span
    cost_usd: float | None
    is_priced: bool = False


@dataclass
class TracedModule:
    """A module in all traces that count.

    Args:
        llm: Its LLM.
        traces: Number of traces that called it.
        calls: Number of calls, also those that failed.
        failed: Number of calls that failed.
        free: Number of calls that failed, and report neither tokens nor a cost.
        prompt_tokens: Sum over all calls; so are the other numbers.
        completion_tokens: See `prompt_tokens`.
        cached_tokens: The part of the prompt tokens that a cache gave.
        cost_usd: In USD; None if the price of a call is not known.
        priced: Number of calls whose tokens were priced; the cost of the others was recorded.
        seconds: Duration of all calls.
    """

    llm: str
    traces: int = 0
    calls: int = 0
    failed: int = 0
    free: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = 0.0
    priced: int = 0
    seconds: float = 0.0


class LoggedQuery(NamedTuple):
    """The reference on one query: averages over its traces.

    `cost_usd` is None if a price is not known, `quality` (in [0, 1]) if no trace has a score, and
    `seconds` if no duration is known.
    """

    id: str
    traces: int
    cost_usd: float | None
    quality: float | None
    seconds: float | None


@dataclass
class Summary:
    """Modules and queries of the traces that count.

    Args:
        modules: By name, in the order of their first calls.
        queries: In the order of the files.
        num_traces: Number of traces that count.
        left_out: Number of traces that do not count, by reason.
        notes: Other things to know, a sentence each.
        unpriced: LLMs without a price.
        score_names: Number of traces by name of a score.
        score: The name that is the quality; None if there is none.
    """

    modules: dict[str, TracedModule] = field(default_factory=dict)
    queries: list[LoggedQuery] = field(default_factory=list)
    num_traces: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    unpriced: list[str] = field(default_factory=list)
    score_names: Counter[str] = field(default_factory=Counter)
    score: str | None = None

    @property
    def models(self) -> dict[str, str]:
        """The LLM of each module: the reference."""
        return {name: module.llm for name, module in self.modules.items()}

    @property
    def cost_usd(self) -> float | None:
        """Average over the queries in USD; None if a price is not known."""
        return mean([query.cost_usd for query in self.queries])

    @property
    def quality(self) -> float | None:
        """Average over the queries with a score; None if there are none."""
        return mean([q.quality for q in self.queries if q.quality is not None])


def mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if there are no values, or one is not known.

    Examples:
        >>> mean([1.0, 2.0]), mean([1.0, None]), mean([])
        (1.5, None, None)
    """
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def summarize(traces: Traces, rules: TraceRules | None = None) -> Summary:
    """Modules, queries, costs and scores of the traces.

    Args:
        traces: What the files hold.
        rules: How to read them; None for the defaults.

    Raises:
        InputError: If no trace is left, if a module ran several LLMs, if no call has the attribute
            that names its module, or if scores cannot be qualities.

    Examples:
        >>> spans = [
        ...     Span("t1", "a", None, "answer"),
        ...     Span("t1", "b", "a", "plan"),
        ...     Span("t1", "c", "b", "chat nano", is_call=True, llm="nano", cost_usd=0.25),
        ... ]
        >>> summary = summarize(Traces(spans))
        >>> summary.models, summary.cost_usd
        ({'plan': 'nano'}, 0.25)
    """
    rules = rules or TraceRules()
    summary = Summary()
    trees, repeated = trees_of(traces.spans)
    if repeated:
        summary.notes.append(f"{repeated} spans are there twice, and count once")
    calls = _usable(trees, rules, summary)
    llms = _one_llm_each(calls, rules, summary)
    if not calls:
        why = "; ".join(f"{number} {reason}" for reason, number in summary.left_out.items())
        why = "; ".join([why, *traces.notes])
        raise InputError(
            f"no trace is left ({why}); export whole traces, with the spans of their LLM calls"
        )
    summary.modules = {module: TracedModule(llm) for module, llm in llms.items()}
    for of_trace in calls.values():
        _add(summary.modules, of_trace)
    summary.num_traces = len(calls)
    summary.unpriced = sorted(
        {str(call.span.llm) for each in calls.values() for call in each if call.cost_usd is None}
    )
    summary.queries = _queries(
        trees, calls, _qualities(traces, trees, calls, rules, summary), rules
    )
    return summary


def _usable(
    trees: Mapping[str, Tree], rules: TraceRules, summary: Summary
) -> dict[str, list[Call]]:
    """The calls of each trace that is whole; counts the reasons of the others.

    Raises:
        InputError: If an attribute names the modules, and no call has it.
    """
    prices = rules.prices or PriceList()
    found: dict[str, list[Call]] = {}
    tops = [tree.root for tree in trees.values()]
    roots = {root.name for root in tops if root is not None and root.parent is None}
    for trace, tree in trees.items():
        reason = tree.why_not(roots, rules.needs_cost)
        if reason:
            summary.left_out[reason] += 1
        else:
            found[trace] = [_call(tree, span, rules, prices) for span in tree.calls]
    if (name := rules.module_attribute) is not None and found:
        calls = ((trees[trace], call.span) for trace, each in found.items() for call in each)
        if not any(tree.attribute(span, name) for tree, span in calls):
            raise InputError(
                f"no call has the attribute {name!r}, nor has a span around one; choose another "
                "one with --module-attribute, or leave it out: then spans name the modules"
            )
    return found


def _call(tree: Tree, span: Span, rules: TraceRules, prices: PriceList) -> Call:
    module = None
    if rules.module_attribute is not None:
        module = tree.attribute(span, rules.module_attribute)
    module = module or tree.name(span, rules.name_of)
    if span.cost_usd is not None and not (rules.reprice and span.usage is not None):
        return Call(module, span, span.cost_usd)
    if span.usage is None:  # of one that failed no tokens are known: not billed
        return Call(module, span, 0.0 if span.failed else None)
    try:
        usd = prices.cost_usd(str(span.llm), span.usage, span.seconds)
    except InputError:
        usd = None
    return Call(module, span, usd, is_priced=True)


def _one_llm_each(
    calls: dict[str, list[Call]], rules: TraceRules, summary: Summary
) -> dict[str, str]:
    """The LLM of each module; removes traces with another one, if the rules say so.

    Raises:
        InputError: If a module ran several LLMs, and the rules do not say so.
    """
    llms: dict[str, Counter[str]] = {}
    for of_trace in calls.values():
        for module, llm in dict.fromkeys((call.module, call.span.llm) for call in of_trace):
            if llm is not None:
                llms.setdefault(module, Counter())[llm] += 1
    several = {module: counts for module, counts in llms.items() if len(counts) > 1}
    if several and not rules.most_frequent:
        module, counts = next(iter(several.items()))
        names = ", ".join(f"{llm} in {number} traces" for llm, number in counts.most_common())
        raise InputError(
            f"module {module!r} ran {names}, so it has not one reference; take the most frequent "
            "LLM with --most-frequent, which leaves out the other traces, or export a time in "
            "which it ran one (if the name stands for several modules: --module-attribute)"
        )
    chosen = {module: counts.most_common(1)[0][0] for module, counts in llms.items()}
    if several:
        other = [
            trace
            for trace, of_trace in calls.items()
            if any(call.span.llm not in (None, chosen.get(call.module)) for call in of_trace)
        ]
        for trace in other:
            del calls[trace]
        summary.left_out["ran another LLM than the most frequent"] = len(other)
    left = {call.module for of_trace in calls.values() for call in of_trace if call.span.llm}
    return {module: llm for module, llm in chosen.items() if module in left}


def _add(modules: Mapping[str, TracedModule], calls: Sequence[Call]) -> None:
    """Adds the calls of a trace, but for those of a module whose LLM no call names."""
    calls = [call for call in calls if call.module in modules]
    for name in {call.module for call in calls}:
        modules[name].traces += 1
    for call in calls:
        module = modules[call.module]
        module.calls += 1
        module.failed += call.span.failed
        module.free += call.span.usage is None and call.span.cost_usd is None
        module.priced += call.is_priced
        module.seconds += call.span.seconds or 0.0
        if (usage := call.span.usage) is not None:
            module.prompt_tokens += usage.prompt_tokens
            module.completion_tokens += usage.completion_tokens
            module.cached_tokens += usage.cached_tokens
        if module.cost_usd is not None:
            module.cost_usd = None if call.cost_usd is None else module.cost_usd + call.cost_usd


def _qualities(
    traces: Traces,
    trees: Mapping[str, Tree],
    calls: Mapping[str, Any],
    rules: TraceRules,
    summary: Summary,
) -> dict[str, float]:
    """The quality of each trace with a score; several scores of one name are averaged.

    Raises:
        InputError: If several names are there and none is chosen, or a score is out of range.
    """
    given: dict[str, dict[str, list[float]]] = {}
    if rules.score_attribute is not None:
        for trace in calls:
            value = number(trees[trace].value(rules.score_attribute))
            if value is not None:
                given.setdefault(rules.score_attribute, {})[trace] = [value]
    else:
        scores = _last_of_each(traces.scores)
        if repeated := len(traces.scores) - len(scores):
            summary.notes.append(f"{repeated} scores are there twice, and the latest counts")
        for score in scores:
            if score.trace in calls:
                given.setdefault(score.name, {}).setdefault(score.trace, []).append(score.value)
    summary.score_names = Counter({name: len(of_traces) for name, of_traces in given.items()})
    summary.score = _chosen_score(rules, summary.score_names)
    scored = given.get(summary.score, {}) if summary.score is not None else {}
    low, high = rules.score_range
    return {trace: _quality(trace, values, low, high) for trace, values in scored.items()}


def _last_of_each(scores: Iterable[Score]) -> list[Score]:
    """The latest version of each score."""
    latest: dict[object, Score] = {}
    for number_of, score in enumerate(scores):
        key = (score.trace, score.name, score.id) if score.id else number_of
        if key not in latest or score.version >= latest[key].version:
            latest[key] = score
    return list(latest.values())


def _chosen_score(rules: TraceRules, names: Mapping[str, int]) -> str | None:
    """The name of the score that is the quality; None if there is none."""
    wanted = rules.score_attribute or rules.score
    if wanted is None and len(names) < 2:
        return next(iter(names), None)
    told = ", ".join(f"{name} ({traces} traces)" for name, traces in names.items()) or "none"
    if wanted is None:
        raise InputError(f"there are several scores: {told}; choose one with --score NAME")
    if wanted not in names:
        raise InputError(f"no trace has the score {wanted!r}; the scores are: {told}")
    return wanted


def _quality(trace: str, values: Sequence[float], low: float, high: float) -> float:
    grades = [(value - low) / (high - low) for value in values]
    if not all(0 <= grade <= 1 for grade in grades):
        raise InputError(
            f"trace {trace} has the scores {values[:3]}, outside {low:g} to {high:g}; say which "
            "scores mean quality 0 and quality 1 with --score-range LOW HIGH"
        )
    return math.fsum(grades) / len(grades)


def _queries(
    trees: Mapping[str, Tree],
    calls: Mapping[str, Sequence[Call]],
    qualities: Mapping[str, float],
    rules: TraceRules,
) -> list[LoggedQuery]:
    of_query: dict[str, list[str]] = {}
    for trace in calls:
        value = None if rules.query_attribute is None else trees[trace].value(rules.query_attribute)
        if rules.query_attribute is not None and value is None:
            raise InputError(
                f"trace {trace} has no attribute {rules.query_attribute!r}; choose another one "
                "with --query-attribute, or leave it out: then the trace's identifier is used"
            )
        query = trace if value is None else printable(str(value))
        of_query.setdefault(query, []).append(trace)
    return [
        LoggedQuery(
            query,
            len(same),
            mean([_cost(calls[trace]) for trace in same]),
            mean([qualities[trace] for trace in same if trace in qualities]),
            mean([s for trace in same if (s := trees[trace].seconds) is not None]),
        )
        for query, same in of_query.items()
    ]


def _cost(calls: Iterable[Call]) -> float | None:
    """In USD; None if a price is not known."""
    costs = [call.cost_usd for call in calls]
    known = [usd for usd in costs if usd is not None]
    return math.fsum(known) if len(known) == len(costs) else None
