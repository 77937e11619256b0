"""The steps of a selection: what comes before, the search, held-out queries."""

from __future__ import annotations

import logging
import math
import statistics
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scope_torch.bounds.population import mean_interval
from scope_torch.errors import InputError
from scope_torch.evaluators.application import Application, Item
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.llm.price_list import PriceList
from scope_torch.methods import make_scope_joint
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.reference import REFERENCE_DELTA
from scope_torch.results.bill import regraded_usd
from scope_torch.results.held_out import HeldOut
from scope_torch.results.result import RunResult
from scope_torch.runs.asked import left_out, silent
from scope_torch.runs.directory import read_settings
from scope_torch.runs.earlier import known_from
from scope_torch.runs.journal import lost_in, read_journal
from scope_torch.runs.measure import measure
from scope_torch.runs.older import HELD_OUT, KNOWN, is_graded_otherwise
from scope_torch.runs.opening import facts_of
from scope_torch.runs.runner import run
from scope_torch.search.known import Known
from scope_torch.search.optimizer import Optimizer
from scope_torch.selection.before import Before, held_out_usd, prepare, say
from scope_torch.selection.setup import Setup
from scope_torch.tracking.heard import HEARD
from scope_torch.tracking.progress import ProgressBar

logger = logging.getLogger(__name__)

_ROUNDING = 1e-9
_UNKNOWN_FLIPS = 0.1  # where nothing was asked twice, but answers are said to vary
_OF_0_1 = {"calibration_queries": None, "verify": 0, "cost_scale": "least_squares"}


@contextmanager
def served(endpoint: Any, prices: PriceList) -> Generator[Any, None, None]:
    """The endpoint while the application runs; an address becomes an `Endpoint`; None stays."""
    if endpoint is None:
        yield None
        return
    from scope_torch.serve.endpoint import Endpoint  # needs starlette

    if isinstance(endpoint, str):
        endpoint = Endpoint(endpoint, prices=prices)
    before = endpoint.ledger.estimated_usd
    try:
        # Whoever has started it stops it.
        with nullcontext() if endpoint.is_started else endpoint:
            yield endpoint
    finally:
        if estimated := endpoint.ledger.estimated_usd - before:
            logger.warning(
                "%.3g USD of the bill are an upper estimate: replies were cut, or came without "
                "usage that can be believed",
                estimated,
            )


def search(
    setup: Setup,
    application: Application,
    make_evaluator: Callable[..., FunctionEvaluator],
) -> RunResult:
    """Measures the reference, searches, and compares on the held-out queries.

    Raises:
        InputError: If the reference alone would cost more than the budget.
    """
    given = setup.given
    for callback in given.callbacks:
        callback.check(setup.problem)
    application.check([*setup.searched, *setup.held_out])
    before = prepare(setup, application, make_evaluator)
    problem, known = before.problem, before.known
    reserved = held_out_usd(setup, problem, before.reference)
    left = setup.budget_usd - before.spent_usd - reserved
    if left <= 0:
        raise InputError(
            f"{before.spent_usd:.3g} of budget_usd={setup.budget_usd:g} were paid before the "
            f"search, most for the reference, {reserved:.3g} are kept for the held-out queries, "
            "and nothing is left for the search; raise it, or give fewer queries"
        )
    say(setup, _of_reference(problem, before.reference, left))
    evaluator = make_evaluator(problem, queries=setup.searched, deterministic=not before.vary)
    evaluator.paid([*known.observations, *before.probe, *before.reference])
    make_optimizer: Callable[..., Optimizer] | None = given.optimizer
    if make_optimizer is None:
        how: dict[str, Any] = {"base": before.base}
        if before.base is None:
            how = {"initial_pool": "random"}
        if before.vary:  # a certificate then asks again, and is told how much there is to expect
            how["certificate_flips"] = before.repeats or _UNKNOWN_FLIPS
        if problem.reference_queries is not None and problem.epsilon is not None:
            how["bounds"] = {"delta": REFERENCE_DELTA}  # the other half is that of theta_0's sample
        how |= {"seed": setup.seed, "call_usd": _call_usd(setup, before), **setup.at_a_time}
        how |= _as_begun(setup.folder)
        make_optimizer = partial(make_scope_joint, budget_usd=left, known=known, **how)
    watching = [*([ProgressBar()] if setup.shows else []), *given.callbacks]
    where: dict[str, Any] = {"run_dir": setup.folder, "time_limit": setup.deadline}
    optimizer = make_optimizer(problem)
    result = run(problem, optimizer, evaluator, left, callbacks=watching, **where)
    measured = [*before.probe, *before.reference]
    is_priced = setup.is_priced or any(one.module_tokens is not None for one in measured)
    paid_llms = dict.fromkeys([*_names_in(problem), *filter(None, [application.judge])])
    lost_usd = math.fsum(one.paid_usd for one in _lost(setup, application))
    lost_usd -= before.lost_usd  # which is in spent_usd
    rest = setup.budget_usd - before.spent_usd - result.history.spend_usd - lost_usd
    held_out, unpaired_usd = _held_out(setup, make_evaluator, result, rest)
    found = replace(
        result,
        surplus_usd=result.surplus_usd + unpaired_usd,
        reference=before.reference if setup.logged is None else None,
        reference_again=before.again,
        varies=before.repeats,
        probe=before.probe,
        held_out=held_out,
        queries=[item.input for item in setup.searched],
        expected=[item.expected for item in setup.searched] if application.has_metric else None,
        answers=by_codes(problem, application.outputs, setup.searched),
        prices=_described(setup, paid_llms) if is_priced else None,
        lost=_lost(setup, application),
    )
    found = replace(found, left_out=_left_out(setup, found, before.reference))
    found.write()
    return found


def _lost(setup: Setup, application: Application) -> list[Observation]:
    """What was paid for without an observation, by all processes of this selection."""
    return application.lost if setup.folder is None else lost_in(setup.folder)


def _described(setup: Setup, llms: Iterable[str]) -> dict[str, Any] | None:
    """The prices of the bill; None if the app tells tokens and costs, and an LLM has no price."""
    try:
        return setup.prices.describe(llms)
    except InputError:
        return None


def _left_out(setup: Setup, found: RunResult, reference: Sequence[Observation]) -> dict[str, int]:
    """Number of runs by module that left it out; answers that were kept are no runs."""
    kept, modules = set(found.repeats or ()), setup.problem.modules
    optional = setup.given.optional_modules
    runs = [*found.known, *found.probe, *(one for one in found.history if one not in kept)]
    number_of = Counter(left_out(modules, reference, runs, optional))
    never = silent(modules, [*reference, *runs], optional)
    number_of.update(dict.fromkeys(never, sum(one.modules_asked is not None for one in runs)))
    if (held := found.held_out) is not None:
        number_of.update(left_out(modules, held.reference, held.choice, optional))
    return dict(number_of)


def _names_in(problem: SelectionProblem) -> list[str]:
    return list(dict.fromkeys(llm for names in problem.llms for llm in names))


def _of_reference(
    problem: SelectionProblem, answers: Sequence[Observation], left_usd: float
) -> str:
    """What was measured of theta_0, and what the rest of the budget can buy."""
    low, high = mean_interval([answer.quality for answer in answers])
    number, Q = len(answers), problem.num_queries
    some = "" if number == Q else f"{number} of {Q} queries; "
    return (
        f"reference: quality {problem.reference_quality:.3g} ({some}on queries like these "
        f"{low:.2g} to {high:.2g}), {problem.reference_cost_usd:.3g} USD a query; {left_usd:.3g} "
        "USD are left for the search, as much as "
        f"{left_usd / problem.reference_cost_usd:,.0f} runs of it"
    )


def _as_begun(folder: Path | None) -> dict[str, Any]:
    """Settings of a search that version 0.1.0 began, which had none of them."""
    settings = None if folder is None else folder / "settings.json"
    if settings is None or not settings.exists():
        return {}
    told = read_settings(settings)["optimizer"]
    return {name: value for name, value in _OF_0_1.items() if name not in told}


def _call_usd(setup: Setup, before: Before) -> float:
    """What waiting for a call costs: the seconds of a run, of which `in_flight` go on at a time.

    Raises:
        InputError: If no run before the search was timed.
    """
    hour_usd = setup.given.hour_usd
    if not hour_usd:
        return 0.0
    runs = before.reference, before.probe, before.again
    told = [[one.outcome("latency_s") for one in of] for of in runs]
    seconds = next(filter(None, ([s for s in of if s is not None] for of in told)), None)
    if not seconds:
        raise InputError(
            f"hour_usd={hour_usd}: nobody knows how long a run takes, because the answers of the "
            "reference are known from elsewhere; leave it out"
        )
    (width,) = setup.at_a_time.values()  # of in_flight, or of batch_size
    return float(hour_usd) / 3600 * statistics.fmean(seconds) / width


def _held_out(
    setup: Setup,
    make_evaluator: Callable[..., FunctionEvaluator],
    result: RunResult,
    left_usd: float,
) -> tuple[HeldOut | None, float]:
    """Choice and reference on the queries that the search has not seen, as far as money reaches.

    Returns:
        Both on the queries that both have answered; and the USD of all other answers.
    """
    if not setup.held_out:
        return None, 0.0
    taken = _known_held_out(setup, make_evaluator, left_usd)
    known = {answer.request: answer for answer in taken.observations}
    anew_usd, before = regraded_usd(taken.sources), _paid_held_out(setup)
    thetas = list(dict.fromkeys([setup.problem.theta_ref, result.recommendation.theta]))
    costs = result.problem.reference_cost_usd, result.cost_usd.value or 0.0
    judged = [one.judge_usd for one in result.history]
    judge_usd = math.fsum(judged) / max(1, len(judged))
    usd_of = dict(zip(thetas, (usd + judge_usd for usd in costs), strict=False))
    # Earlier choices, with a smaller budget; the answers of these two are counted where they count.
    left_usd -= anew_usd + _usd_of([one for one in before if one.theta not in usd_of])
    number = _number_paid_for(setup, usd_of, known, left_usd)
    if number < len(setup.held_out):
        logger.warning(
            "what is left of the budget pays for %d of %d held-out queries",
            *(number, len(setup.held_out)),
        )
    if number <= 0:
        return None, anew_usd + _usd_of(before)
    left_usd -= _usd_of([one for one in before if one.theta in usd_of and one.query >= number])
    part = HELD_OUT if number == len(setup.held_out) else f"{HELD_OUT}_{number}"
    problem = replace(setup.problem, num_queries=number)
    # Each pair is asked once; also if answers vary, what a smaller budget has paid for is one.
    evaluator = make_evaluator(problem, queries=setup.held_out[:number], deterministic=True)
    evaluator.remember([*taken.observations, *_kept_held_out(setup, evaluator)])
    found, paid = _both(setup, evaluator, part, usd_of, known, left_usd - result.surplus_usd)
    both = next(
        (q for q in range(number) if any(Request(t, q) not in found for t in thetas)), number
    )
    if both < number:
        logger.warning(
            "budget or time did not pay for all: compared are %d of %d held-out queries",
            *(both, number),
        )
    paid = paid if setup.folder is None else _paid_held_out(setup)
    if not both:
        return None, anew_usd + _usd_of(paid)
    of_thetas = [[found[Request(theta, query)] for query in range(both)] for theta in thetas]
    reference, choice = of_thetas[0], of_thetas[-1]  # the same if the reference is kept
    told = HeldOut(both, choice, reference, taken.observations, anew_usd)
    compared = set(told.paid)
    return told, _usd_of([one for one in paid if one not in compared])


def _both(
    setup: Setup,
    evaluator: FunctionEvaluator,
    part: str,
    usd_of: Mapping[tuple[int, ...], float],
    known: Mapping[Request, Observation],
    left_usd: float,
) -> tuple[dict[Request, Observation], list[Observation]]:
    """The answers of reference and choice, as far as budget and time reach; and those paid for.

    Each gets its share of the budget, and the choice is asked what the reference has answered.
    """
    number = evaluator.problem.num_queries
    of_thetas = [[Request(theta, query) for query in range(number)] for theta in usd_of]
    missing = [[pair for pair in pairs if pair not in known] for pairs in of_thetas]
    expected = [usd * len(pairs) for usd, pairs in zip(usd_of.values(), missing, strict=True)]
    found, paid = dict(known), list[Observation]()
    with tqdm(
        total=sum(map(len, missing)), desc="held out", disable=not setup.shows, file=HEARD
    ) as bar:

        def count(_: Observation) -> None:
            bar.update()

        for at, (theta, pairs) in enumerate(zip(usd_of, missing, strict=True)):
            rest = math.fsum(expected[at:])
            share_usd = left_usd * (expected[at] / rest if rest else 1.0)
            answers = measure(
                evaluator,
                pairs,
                folder=setup.inside(f"{part}/{'-'.join(map(str, theta))}"),
                observed=count,
                budget_usd=share_usd,
                first=(1,),
                deadline=setup.deadline,
                enough=sum(pair.query < number for pair in pairs),
            )
            left_usd -= math.fsum(one.paid_usd for one in answers)
            paid += answers
            found |= {answer.request: answer for answer in answers}
            number = next((q for q in range(number) if Request(theta, q) not in found), number)
    return found, paid


def _paid_held_out(setup: Setup) -> list[Observation]:
    """All that this selection has paid for on held-out queries, each answer once."""
    found: dict[Any, Observation] = {}  # a directory has what others had paid for
    for path in _held_out_journals(setup):
        keys = facts_of(path.parent, "queries.json").get("queries")
        for one in read_journal(path):
            found[one if keys is None else (keys[one.query], one)] = one
    return [*found.values()]


def _kept_held_out(setup: Setup, evaluator: FunctionEvaluator) -> list[Observation]:
    """Answers to the same queries that this selection has paid for with another budget."""
    keys, found = evaluator.query_keys(), list[Observation]()
    for path in _held_out_journals(setup):
        then = facts_of(path.parent, "queries.json").get("queries")
        is_same = then and then[: len(keys)] == keys[: len(then)]
        if is_same and not is_graded_otherwise(path.parent, evaluator):
            found += read_journal(path)
    return found


def _held_out_journals(setup: Setup) -> list[Path]:
    """One for each configuration, and number of queries, that was asked."""
    folder = setup.folder
    return [] if folder is None else sorted(folder.glob(f"{HELD_OUT}*/*/journal.jsonl"))


def _usd_of(observations: Iterable[Observation]) -> float:
    return math.fsum(one.paid_usd for one in observations)


def _known_held_out(
    setup: Setup,
    make_evaluator: Callable[..., FunctionEvaluator],
    left_usd: float,
) -> Known:
    """What older runs know of the held-out queries."""
    problem = replace(setup.problem, num_queries=len(setup.held_out))
    evaluator = make_evaluator(problem, queries=setup.held_out)
    folder = setup.inside(HELD_OUT)
    begun = [] if folder is None else [*folder.parent.glob(f"{HELD_OUT}*")]
    took_none = folder is not None and begun and not (folder / KNOWN).exists()  # an early version
    if took_none or not (setup.earlier and evaluator.deterministic):
        return Known(problem)
    return known_from(
        setup.earlier, problem, evaluator, run_dir=folder, held_out=True, regrade_usd=left_usd
    )


def _number_paid_for(
    setup: Setup,
    usd_of: Mapping[tuple[int, ...], float],
    known: Mapping[Request, Observation],
    left_usd: float,
) -> int:
    """How many held-out queries the rest of the budget pays for; what is known costs nothing."""
    missing = Counter[tuple[int, ...]]()
    for query in range(len(setup.held_out)):
        new = [theta for theta in usd_of if Request(theta, query) not in known]
        missing.update(new)
        usd = math.fsum(usd_of[theta] * number for theta, number in missing.items())
        if new and usd > left_usd + _ROUNDING * math.fsum(usd_of.values()):
            return query
    return len(setup.held_out)


def by_codes(
    problem: SelectionProblem,
    answers: Mapping[tuple[tuple[str, ...], int], Any],
    items: Sequence[Item],
) -> dict[tuple[tuple[int, ...], int], Any]:
    """Outputs by configuration and query of the search."""
    query_of = {item.number: query for query, item in enumerate(items)}
    found: dict[tuple[tuple[int, ...], int], Any] = {}
    for (names, index), output in answers.items():
        with suppress(InputError):  # a line of the file that was damaged
            if index in query_of:
                found[problem.codes(names), query_of[index]] = output
    return found
