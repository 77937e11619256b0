"""`recheck`: whether a choice still is what it was, looked at day after day.

Each call draws a few queries more, and looks at all draws so far, see `scope_torch.bounds.drift`.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from scope_torch.constraints import QUALITY, Constraint, at_least
from scope_torch.errors import InputError
from scope_torch.factors import LLM
from scope_torch.files import inside, write_atomically
from scope_torch.observation import Observation
from scope_torch.results.checked import Pair
from scope_torch.results.rechecked import RecheckResult, alarm_of
from scope_torch.runs.content import digest_of
from scope_torch.runs.directory import read_json
from scope_torch.runs.evaluator import HasPrices
from scope_torch.runs.journal import lost_in, read_journal
from scope_torch.runs.older import KNOWN
from scope_torch.runs.opening import facts_of
from scope_torch.runs.regrading import REGRADED
from scope_torch.selection.check import Named, between, llms_of
from scope_torch.selection.checks import check_kind, checked_number, checked_size
from scope_torch.selection.face import serving
from scope_torch.selection.pairs import Pairs
from scope_torch.traces.reading import Traces
from scope_torch.traces.rules import TraceRules
from scope_torch.traces.summary import summarize

_DAYS, _RESULT = "days.json", "recheck.json"
_EVERY = 100_000  # draws on average until a false alarm, at least
_CHANCE = 0.01  # of what is no chance: traces left out one after another, up to the newest


def recheck(
    app: Any,
    configuration: Named,
    *,
    run_dir: Path | str,
    reference: Named | None = None,
    constraints: Sequence[Constraint | str] = (),
    draws: int = 20,
    false_alarm_every: int = _EVERY,
    **arguments: Any,
) -> RecheckResult:
    """Asks a choice for a few queries more, and says whether it has become worse than it may be.

    Call it once a day, or as often as you like: the directory keeps all draws, and the test may be
    looked at for ever. Queries are drawn with replacement, so answers may vary. As long as every
    constraint holds, an alarm comes after `false_alarm_every` draws on average, at least. An alarm
    stays; after you have mended what it is about, begin a new directory. A draw that fails because
    an LLM is retired is an alarm of its own, which lasts as long as draws fail so.

    Args:
        app: As for `select`.
        configuration: The LLM of each module, or a file of `RunResult.save`.
        run_dir: The directory that keeps the draws.
        reference: With `max_quality_loss` or another relative bound: the LLMs to compare with. They
            then answer every draw too, and cost what they cost.
        constraints: As for `check`.
        draws: How many queries this call draws.
        false_alarm_every: See above.
        arguments: As for `check`: `dataset`, `metric`, `budget_usd` (for this call), `min_quality`
            or `max_quality_loss`, `endpoint`, `prices`, ...

    Raises:
        InputError: If a setting cannot be used, or the directory holds draws of other settings.

    Examples:
        >>> import scope_torch as st
        >>> skill = {"mini": 10}
        >>> def app(models, number):
        ...     return number % 10 < skill[models["answer"]], 0.001
        >>> how = {"dataset": range(100), "min_quality": 0.9, "budget_usd": 1, "run_dir": "watch"}
        >>> st.recheck(app, {"answer": "mini"}, draws=50, **how).alarm is None
        True
        >>> skill["mini"] = 5  # the provider has changed it
        >>> found = st.recheck(app, {"answer": "mini"}, draws=50, **how)
        >>> found.alarm.draw, found.alarm.since, found.exit_status
        (61, 52, 1)
    """
    draws = checked_size("draws", draws)
    every = checked_size("false_alarm_every", false_alarm_every)
    check_kind("run_dir", run_dir)
    folder = Path(run_dir).absolute()  # the app may enter another one
    kept = {**arguments, "run_dir": folder}
    setup, theta, limits = between(app, configuration, reference, constraints, kept)
    has_reference = any(one.is_relative for one in limits)
    earlier = read_journal(folder / "journal.jsonl")
    graded = {*lost_in(inside(folder, REGRADED))}  # are in `Pairs.graded_usd`
    lost = [one for one in lost_in(folder) if one not in graded]
    before = math.fsum(one.paid_usd for one in (*earlier, *lost))
    is_begun, days = (folder / KNOWN).exists(), _days(folder)
    _refuse_cut(folder, earlier, len(days))
    setup.deadline.begin()
    with serving(setup) as (application, make_evaluator):
        application.check(setup.searched)
        evaluator = make_evaluator(setup.problem, queries=setup.searched, deterministic=False)
        order = _draws(setup.problem.num_queries, len(days) + draws, setup.seed, earlier)
        asked = Pairs(setup, theta, evaluator, iter(order), has_reference, is_fixed=False)
        asked.forget_chosen()
        settings = {"name": "recheck", "limits": [str(limit) for limit in limits]}
        before += asked.graded_usd if is_begun else 0.0
        reported_usd = _reported_usd(folder, before)  # a damaged file is refused before a call
        budget_usd = before + setup.budget_usd
        found = asked.ask(settings, _never, len(order), budget_usd, 0.0, for_days=True)
        today = evaluator.describe_prices() if isinstance(evaluator, HasPrices) else None
    num_before = len(days)
    days += [str(date.today())] * (len(found.pairs) - len(days))
    write_atomically(folder / _DAYS, json.dumps(_numbers(days), indent=2) + "\n")
    alarm, evidence = alarm_of(found.pairs, limits, every)
    paid = math.fsum(one.paid_usd for one in found.paid) + found.lost_usd
    result = RecheckResult(
        setup.problem.names(theta),
        limits,
        found.pairs,
        days,
        every,
        alarm,
        evidence,
        len(found.pairs) - num_before,
        paid - reported_usd,
        _changed(facts_of(folder, "prices.json").get("prices"), today),
        evaluator.retired,
        paid,
        is_logged=setup.logged is not None,
    )
    write_atomically(folder / _RESULT, json.dumps(result.to_json(), indent=2) + "\n")
    return result


def recheck_traces(
    traces: Traces,
    configuration: Named,
    *,
    min_quality: float,
    rules: TraceRules | None = None,
    false_alarm_every: int = _EVERY,
) -> RecheckResult:
    """As `recheck`, of logged traces of production in the order of time; makes no call.

    Wait for the grades of a day before you look at it: one that comes late changes what was seen.
    A draw is a trace with a time and a score whose calls name the LLMs of the choice. The others
    are left out, and counted; `RecheckResult.exit_status` says whether they may hide an alarm.

    Args:
        traces: What the log holds, see `read_traces`.
        configuration: The LLM of each module: that of the choice, or a file of `RunResult.save`.
        min_quality: The least average quality, in [0, 1].
        rules: How to read the traces; each of them is a draw, whether or not it tells its cost.
        false_alarm_every: See `recheck`.

    Raises:
        InputError: If no trace has a time and a score, or they ran other LLMs.
    """
    choice = llms_of(configuration)
    own = {"query_attribute": None, "needs_cost": False}  # each trace is a draw
    summary = summarize(traces, replace(rules or TraceRules(), **own))
    names = dict(choice) if isinstance(choice, Mapping) else {}
    llms = {module: LLM.parse(name).llm for module, name in names.items()}
    if summary.models not in (names, llms):  # a log may not tell effort and prompt
        raise InputError(f"the traces ran {summary.models}, and the choice is {choice}")
    limit = at_least(QUALITY, checked_number("min_quality", min_quality))
    began: dict[str, float] = {}
    for span in traces.spans:
        if span.start is not None:
            began[span.trace] = min(span.start, began.get(span.trace, math.inf))
    of_score = [one for one in summary.queries if one.quality is not None]
    scored = sorted(  # of one time in an order that is blind to the grades
        (began[query.id], digest_of(query.id), query.quality or 0.0, query.cost_usd or 0.0)
        for query in of_score
        if query.id in began
    )
    left_out = summary.left_out + Counter(
        {
            "without a score": len(summary.queries) - len(of_score),
            "without a time that can be read": len(of_score) - len(scored),
        }
    )
    if not scored:
        why = "; ".join(f"{number} {reason}" for reason, number in left_out.items())
        raise InputError(f"no trace has a time and a score ({why}); export both")
    theta = (0,) * len(summary.models)
    pairs = [
        Pair(Observation(theta, number, usd, quality), None)
        for number, (*_, quality, usd) in enumerate(scored)
    ]
    days = [str(datetime.fromtimestamp(start, UTC).date()) for start, *_ in scored]
    every = checked_size("false_alarm_every", false_alarm_every)
    alarm, evidence = alarm_of(pairs, [limit], every)
    draws = {query.id for query in of_score}
    return RecheckResult(
        summary.models,
        [limit],
        pairs,
        days,
        every,
        alarm,
        evidence,
        len(pairs),
        left_out=left_out,
        num_unread=traces.num_unread,
        num_newer=_newer(began, draws),
        num_undated=len({span.trace for span in traces.spans} - began.keys()) + traces.num_lost,
    )


def _newer(began: Mapping[str, float], draws: Set[str]) -> int:
    """How many traces without a draw are later than all draws; 0 if that may be chance.

    Between the first and the last draw some share of the traces is no draw, such as those without a
    score. So many in a row, each with this probability, are then no surprise.

    Args:
        began: The time of each trace that has one.
        draws: The traces with a score, with or without a time.
    """
    times = [began[trace] for trace in draws & began.keys()]
    others = [start for trace, start in began.items() if trace not in draws]
    newer = sum(start > max(times) for start in others)
    between = sum(min(times) <= start <= max(times) for start in others)
    return newer if (between / (between + len(times))) ** newer < _CHANCE else 0


def _never(_: object) -> bool:
    return False


def _days(folder: Path) -> list[str]:
    """The day of each draw so far."""
    path = folder / _DAYS
    number_of: Mapping[str, int] = read_json(path) if path.exists() else {}
    return [day[:10] for day, number in number_of.items() for _ in range(number)]


def _refuse_cut(folder: Path, earlier: Sequence[Observation], draws: int) -> None:
    """Refuses a journal that lost draws: they would be made and paid again, as if on their day."""
    found = max(Counter(one.theta for one in earlier).values(), default=0)
    if found + 1 < draws:  # a last line that is damaged is observed again
        raise InputError(
            f"{folder / 'journal.jsonl'} has {found} of {draws} draws; restore the file, or begin "
            "a new directory"
        )


def _numbers(days: Sequence[str]) -> dict[str, int]:
    """How many draws each day had; of a day that comes again, as the clock went back, apart."""
    found = dict[str, int]()
    for day, of_day in itertools.groupby(days):
        name = day if day not in found else f"{day} ({len(found) + 1})"
        found[name] = len([*of_day])
    return found


def _reported_usd(folder: Path, paid_usd: float) -> float:
    """USD in the reports so far; an early version did not tell, and took them for all that is paid.

    What a look paid that was stopped is in none: the next one tells it.
    """
    path = folder / _RESULT
    return read_json(path).get("total_usd", paid_usd) if path.exists() else 0.0


def _draws(num_queries: int, number: int, seed: int, asked: Sequence[Observation]) -> list[int]:
    """The queries; more than so many if a look that was stopped has asked for more."""
    order, draws = random.Random(f"recheck {seed}"), list[int]()
    left = Counter[int]()
    for one in asked:
        if one.query < num_queries:  # else of other queries, which is refused later
            left[one.query] = max(left[one.query], one.replicate + 1)
    while len(draws) < number or left:
        draws.append(order.randrange(num_queries))
        left -= Counter(draws[-1:])
    return draws


def _changed(
    first: Mapping[str, Any] | None, today: Mapping[str, Any] | None
) -> dict[str, tuple[tuple[float, float], tuple[float, float]]]:
    """The prices that differ from those of the first day."""
    both = "input_usd_per_mtok", "output_usd_per_mtok"
    found: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {}
    for llm, now in (today or {}).items():
        then = (first or {}).get(llm)
        if then is not None:
            old, new = ((of[both[0]], of[both[1]]) for of in (then, now))
            if old != new:
                found[llm] = old, new
    return found
