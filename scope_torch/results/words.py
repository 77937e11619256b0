"""A result in words: six lines, each under 110 characters; more if there are many modules."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Protocol

from scope_torch.html_table import html_table
from scope_torch.observation import History, Observation
from scope_torch.problem import SelectionProblem
from scope_torch.results.bill import Bill
from scope_torch.results.digits import per_thousand, percent, plain, quality, share, usd
from scope_torch.results.doubt import Promised, confidence, doubt_of, not_asked, sampled
from scope_torch.results.estimate import MODEL, Estimate
from scope_torch.search.front import FrontTable
from scope_torch.search.stopping import (
    FREE_CANDIDATE,
    GAP_CLOSED,
    NO_LONGER_PAYS,
    NOTHING_FOUND,
    NOTHING_LEFT,
)

_WIDTH = 109
_IF_FIXED = ", if answers do not vary"  # from call to call
_MORE = 'more: .table(){} .plot() .disagreements() .bill .why .save("models.json")'
_STOPS = {
    "budget": "the budget is spent",
    "time limit": "the time is over",
    NO_LONGER_PAYS: "it no longer pays",
    NOTHING_LEFT: "nothing is left that can be better",
    NOTHING_FOUND: "nothing was found that can be better",
    GAP_CLOSED: "the optimum is close enough",
    FREE_CANDIDATE: "the best candidate is free and fully observed",
}


class Told(Promised, Protocol):
    """A result, as far as the words need it: a `RunResult`."""

    @property
    def stop_reason(self) -> str:
        """Why the search ended."""
        ...

    @property
    def history(self) -> History:
        """All observations."""
        ...

    @property
    def quality(self) -> Estimate:
        """Of theta_out."""
        ...

    @property
    def cost_usd(self) -> Estimate:
        """Of theta_out, of a query."""
        ...

    @property
    def savings(self) -> Estimate:
        """Against theta_0."""
        ...

    @property
    def bill(self) -> Bill:
        """What was paid."""
        ...

    @property
    def front(self) -> FrontTable | None:
        """What to use if more loss is accepted; None if the problem has further constraints."""
        ...

    @property
    def reference_again(self) -> Sequence[Observation]:
        """Its second answers."""
        ...


def lines_of(result: Told, width: int = _WIDTH) -> dict[str, str]:
    """The six lines, by what each is about; and `doubt`, if something speaks against the promise.

    The choice has more than one line if the names of all modules need it.

    Args:
        result: A `RunResult`.
        width: Most characters of a line.

    Examples:
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> result = run(problem, make_scope(problem, base="nano", seed=0), evaluator, 0.1)
        >>> lines_of(result)["quality"]
        'quality 0.55 against 0.45 (all 20 queries answered)'
    """
    lines = {
        "choice": _choice(result, width),
        "quality": _quality(result),
        "evidence": _evidence(result, width),
        **({"doubt": doubt} if (doubt := doubt_of(result)) else {}),
        "search": _search(result),
        "bill": _bill(result.bill) + _dropped(result),
        "more": _MORE.format("" if result.front is None else " .pareto()"),
    }
    return {name: _fitted(name, line, width) for name, line in lines.items()}


def _fitted(name: str, line: str, width: int) -> str:
    """A line as it is if it fits; what must be read whole is wrapped, the others are cut."""
    if name in ("choice", "evidence", "doubt", "bill"):
        return "\n  ".join(textwrap.wrap(line, width - 2, break_on_hyphens=False))
    return textwrap.shorten(line, width, placeholder=" ...")


def stop_in_words(reason: str) -> str:
    """Why a search ended, as its user would say it.

    Examples:
        >>> stop_in_words("budget")
        'the budget is spent'
    """
    return _STOPS.get(reason, reason)


def html_of(result: Told) -> str:
    """The six lines as a table, escaped."""
    return html_table(lines_of(result).items())


def one_line(result: Told, name: str) -> str:
    """The `repr` of a result."""
    llms = in_words(result.problem.names(result.recommendation.theta), 60)
    kept = " (reference)" if result.recommendation.theta == result.problem.theta_ref else ""
    certified = "certified" if result.certified else "not certified"
    return f"<{name} of {result.problem.name!r}: {llms}{kept}, {certified}>"


def in_words(llms: Mapping[str, str], room: int) -> str:
    """The LLM of each module in at most so many characters; equal ones are named once.

    Args:
        llms: By module.
        room: Characters; a single long name may take more.

    Examples:
        >>> in_words({"plan": "medium", "solve": "small"}, 60)
        'plan=medium, solve=small'
        >>> in_words({f"step_{i}": "small" for i in range(9)}, 60)
        'small in all 9 modules'
        >>> in_words({f"step_{i}": f"llm_{i}" for i in range(9)}, 40)
        'step_0=llm_0 and 8 more modules'
    """
    pairs = [f"{module}={llm}" for module, llm in llms.items()]
    text = ", ".join(pairs)
    if len(text) <= room or len(pairs) == 1:
        return text
    if len(set(llms.values())) == 1:
        number = "both" if len(llms) == 2 else f"all {len(llms)}"
        return f"{next(iter(llms.values()))} in {number} modules"
    number = len(pairs) - 1
    while number > 1 and len(", ".join(pairs[:number])) + len(" and 99 more modules") > room:
        number -= 1
    left = len(pairs) - number
    return f"{', '.join(pairs[:number])} and {left} more module{'s' * (left > 1)}"


def why(result: Told) -> str:
    """One sentence: what the choice rests on, and whether to search on would pay.

    Args:
        result: A `RunResult`.

    Examples:
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> result = run(problem, make_scope(problem, base="nano", seed=0), evaluator, 0.1)
        >>> why(result)
        'certified on these 20 queries, all answered, if answers do not vary'
    """
    left = not_asked(result.left_out)
    return _full(result) + (f"; {left}" if left else "")


def _full(result: Told) -> str:
    """The grounds, and whether to search on would pay."""
    returns = result.report.get("expected_return")
    if returns is None or result.stop_reason not in ("budget", "time limit"):
        return _grounds(result)
    return f"{_grounds(result)}; another USD of search is expected to return {plain(returns)} USD"


def _grounds(result: Told) -> str:
    out, problem, report = result.recommendation, result.problem, result.report
    Q = problem.num_queries
    if out.theta == problem.theta_ref:
        better = "cheaper" if problem.objective == "cost" else "better"
        reason = stop_in_words(result.stop_reason)
        return f"not certified: nothing {better} than the reference was, and {reason}"
    sure_of = result.evidence.is_known(out.theta) and result.evidence.is_feasible(out.theta)
    if result.certified and sure_of and report.get("certificate") != "population":
        sure = confidence(0.0, problem) if sampled(problem) else ""
        fixed = _of_answers(result)
        return f"certified{sure} on these {Q} queries, all answered{fixed}{sampled(problem)}"
    if out.basis == "certified":
        delta = report.get("delta")
        sure = "" if delta is None else confidence(delta, problem)
        if report.get("certificate") == "population":
            return f"certified{sure} on queries like these {Q}"
        fixed = ", if the model's bounds hold"
        if report.get("certificate") == "sequence":
            fixed = _of_answers(result)
        return f"certified{sure} on these {Q} queries{fixed}{sampled(problem)}"
    return {
        "accepted (tuned)": "not certified: accepted by bounds of the model, without a probability",
        "estimated": "not certified: the model expects it to be good enough",
    }.get(out.basis, "not certified: the best of what was observed")


def _of_answers(result: Told) -> str:
    """How a certificate by answers stands to answers that vary from call to call."""
    varies = result.varies
    if result.report.get("flips"):
        if varies is None or not varies.changed:
            return ", however answers vary"
        low, high = varies.interval
        ends = f"{share(low, 'down', 2)} to {share(high, 'up', 2)}"
        return f", although {share(varies.rate, digits=2)} ({ends}) of answers change"
    if varies is None and result.reference_again:
        failed = [one.failed is not None for one in result.reference_again]
        of = {True: "failed", False: "came from a cache"}
        fate = " or ".join(of[one] for one in sorted(set(failed), reverse=True))
        return f"{_IF_FIXED}, which is not known: all {len(failed)} second answers {fate}"
    if varies is None or varies.changed:
        return _IF_FIXED
    most = share(varies.interval[1], "up", 2)
    return f"{_IF_FIXED} (reference: 0 of {varies.asked} did, at most {most})"


def _choice(result: Told, width: int) -> str:
    problem, out = result.problem, result.recommendation
    is_reference = out.theta == problem.theta_ref
    about = _of_cost(result) if problem.objective == "cost" else _of_quality(result)
    if is_reference:
        better = "cheaper" if problem.objective == "cost" else "better"
        about = f"nothing {better} was certified ({_of_theirs(problem)})"
    begin = "Keep the reference " if is_reference else "Use "
    llms, room = problem.names(out.theta), width - len(begin) - len(about) - 2
    named = ", ".join(f"{module}={llm}" for module, llm in llms.items())
    if len(named) > room and len(set(llms.values())) == 1:
        named = in_words(llms, room)
    return f"{begin}{named}: {about}"


def _of_cost(result: Told) -> str:
    cost, saved, problem = result.cost_usd, result.savings, result.problem
    if cost.value is None or saved.value is None:
        return "its cost is not known"
    instead = f"{per_thousand(cost.value)} instead of {_of_theirs(problem)}"
    about = _about(problem)
    if saved.value < 0:
        return f"{about}{percent(-saved.value)} dearer ({instead})"
    return f"{about}{percent(saved.value)} cheaper ({instead})"


def _of_theirs(problem: SelectionProblem) -> str:
    return _about(problem) + _per_query(problem.reference_cost_usd)


def _about(problem: SelectionProblem) -> str:
    return "" if problem.reference_queries is None else "about "


def _of_quality(result: Told) -> str:
    mine, theirs = result.quality.value, result.problem.reference_quality
    found = "unknown" if mine is None else quality(mine)
    cost = result.cost_usd.value
    price = "" if cost is None else f", {_per_query(cost)}"
    return f"quality {found} instead of {quality(theirs)}{price}"


def _per_query(usd_per_query: float) -> str:
    return f"{per_thousand(usd_per_query)} USD per 1,000 queries"


def _quality(result: Told) -> str:
    problem, mine = result.problem, result.quality
    theirs = quality(problem.reference_quality)
    if mine.value is None:
        return f"quality unknown, reference {theirs} ({mine.basis})"
    if (n := problem.reference_queries) is not None:
        of_reference = f"; reference {theirs} on {n} of {problem.num_queries} queries"
        of_reference *= result.recommendation.theta != problem.theta_ref
        return f"quality {quality(mine.value)} ({_sure(mine)}){of_reference}"
    return f"quality {quality(mine.value)} against {theirs} ({_sure(mine)})"


def _sure(found: Estimate) -> str:
    """The interval of a quality and what it means."""
    if found.is_exact or found.lower is None:
        return found.basis
    if found.basis.startswith("certified"):
        confidence = found.basis.removeprefix("certified").strip()
        return f"at least {plain(found.lower, side='down')}" + (confidence and f", {confidence}")
    upper = 1.0 if found.upper is None else found.upper
    between = f"{plain(found.lower, side='down')} to {plain(upper, side='up')}"
    by_model = found.basis.startswith(MODEL)
    return f"{between} by the model, no probability" if by_model else f"{between}, {found.basis}"


def _evidence(result: Told, width: int) -> str:
    """Why, then the constraints, then held-out queries; the longest form that fits."""
    grounds, full, held = _grounds(result), _full(result), result.held_out
    hold, unseen, doubt = "", "", doubt_of(result)
    left = not_asked(result.left_out)
    left = f"; {left}" if left and "was not asked" not in doubt else ""
    if result.certified and result.problem.others:
        limits = len(result.problem.limits)
        hold = f"; all {limits} constraints hold" if limits > 1 else "; its constraint holds"
    for limit in result.problem.others:
        within = result.evidence.outcome(result.recommendation.theta, limit.name)
        if limit.is_share and within is not None:
            hold += f"; {limit}: {share(within)} of runs"
    if held is not None and "say otherwise" not in doubt:  # else it stands there
        averages = f"{quality(held.quality)} against {quality(held.reference_quality)}"
        unseen = f"; held out: {averages}"
    short = re.sub(r" \([^)]*\)", "", grounds)
    brief = short.partition(_IF_FIXED)[0].partition(":")[0]
    grounds_only = (full, grounds, short) if result.certified else (full, grounds, short, brief)
    forms = [form + hold + unseen + left for form in grounds_only]
    return next((form for form in forms if len(form) <= width), forms[-1])


def _search(result: Told) -> str:
    # The rule of what is allowed is in no file, but this number is.
    size = result.report.get("num_allowed", result.problem.num_allowed)
    calls = len(result.history) - result.bill.num_kept
    looked = sum(1 for _ in result.evidence.answers)
    reason = stop_in_words(result.stop_reason)
    plural = "s" * (size > 1)
    old = f" and {result.bill.num_known:,} earlier answers" if result.bill.num_known else ""
    return (
        f"searched {size:,} configuration{plural}, looked at {looked:,} in {calls:,} "
        f"call{'s' * (calls != 1)}{old}; stopped: {reason}"
    )


def _bill(bill: Bill) -> str:
    parts = [f"{name} {usd(paid)}" for name, paid in bill.amounts.items() if paid]
    failed = f"; {bill.num_failed:,} failed" if bill.num_failed else ""
    failed += f"; {bill.num_lost:,} lost with a worker" if bill.num_lost else ""
    return f"bill {usd(bill.total_usd)} USD" + (f": {', '.join(parts)}" if parts else "") + failed


def _dropped(result: Told) -> str:
    """The LLMs that were dropped because their calls fail."""
    names = result.report.get("dropped", {}).values()
    llms = dict.fromkeys(llm for of_module in names for llm in of_module)
    return f"; dropped for that: {', '.join(llms)}" if llms else ""
