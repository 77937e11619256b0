"""What a selection does before it searches: preflight, reference, second answers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tqdm import tqdm

from scope_torch.bounds.betting import upper_average, upper_expectation
from scope_torch.bounds.repeats import Repeats
from scope_torch.constraints import COST, QUALITY, Constraint, at_least
from scope_torch.errors import InputError
from scope_torch.evaluators.application import Application
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.files import inside
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.reference import REFERENCE_DELTA
from scope_torch.results.bill import regraded_usd
from scope_torch.runs.earlier import known_from, refuse_others
from scope_torch.runs.evaluator import Evaluator
from scope_torch.runs.journal import lost_in
from scope_torch.runs.measure import TooDear, measure
from scope_torch.runs.older import KNOWN
from scope_torch.runs.opening import begin
from scope_torch.runs.regrading import REGRADED
from scope_torch.runs.runner import problem_settings
from scope_torch.search.calibrate import Base
from scope_torch.search.known import Known
from scope_torch.selection.again import ask_again
from scope_torch.selection.pilot import booked_apart, measured_before, paid_usd, piloted
from scope_torch.selection.plan import TOO_DEAR_AFTER, Pilot, Plan
from scope_torch.selection.preflight import cheapest, first_requests, preflight, query_of
from scope_torch.selection.sampling import warn_of_known
from scope_torch.selection.setup import Setup
from scope_torch.tracking.heard import HEARD

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Before:
    """What is known before the search.

    Args:
        problem: With theta_0 as it was measured.
        known: Observations of older runs.
        probe: Those of the preflight; not theta_0's, which count as the reference's.
        base: Where the search starts; None if nothing tells.
        reference: theta_0, once on each query that it is asked; rising.
        again: Its second answers.
        repeats: What both say; None if nothing was asked twice.
        vary: Whether answers change from call to call, as said or seen.
        spent_usd: What all of it has cost.
        lost_usd: Of that, calls that gave no observation.
    """

    problem: SelectionProblem
    known: Known
    probe: list[Observation]
    base: Base
    reference: list[Observation]
    again: list[Observation]
    repeats: Repeats | None
    vary: bool
    spent_usd: float
    lost_usd: float


def prepare(
    setup: Setup,
    application: Application,
    make_evaluator: Callable[..., FunctionEvaluator],
) -> Before:
    """Preflight and reference.

    Raises:
        InputError: If the budget does not pay for them, or for grading older outputs anew.
    """
    evaluator = make_evaluator(setup.problem, queries=setup.searched)
    if setup.folder is not None:
        if not (setup.folder / KNOWN).exists():
            known_of(setup, evaluator, keeps=False)  # refuses what is no run before there are files
        begin(setup.folder, problem_settings(setup.problem), evaluator)
    known = known_of(setup, evaluator)
    if (graded_usd := regraded_usd(known.sources)) >= setup.budget_usd:
        raise InputError(
            f"grading the outputs of older runs anew cost {graded_usd:.3g} USD, and "
            f"budget_usd={setup.budget_usd:g}; raise it"
        )
    _refuse_lost(setup, _lost_usd(setup, application), graded_usd)
    if logged := logged_reference(setup):
        _with_reference(setup.problem, logged, None)  # refuses a log before anything is paid for
    answered = [*known.observations, *logged]
    say(setup, plan_of(setup, known))
    warn_of_known(setup.searched, setup.held_out)
    evaluator.paid(known.observations)
    reused = {one.query for one in answered if one.theta == setup.problem.theta_ref}
    new = _asked(setup, known) - reused
    copied = measured_before(setup)
    theirs = {Request(setup.problem.theta_ref, query) for query in new}
    flown = piloted(setup, evaluator)
    pilots = booked_apart(evaluator, flown, copied, theirs)
    apart, first = {*pilots}, first_requests(setup.problem, answered)
    paid = [one for one in flown if one in apart or one.request not in first]
    left = setup.budget_usd - graded_usd - paid_usd(paid)  # the preflight counts its copies
    probe = preflight(setup, evaluator, answered, left)
    base = _base(setup, [*answered, *probe])
    theirs |= {one.request for one in pilots if evaluator.is_answer(one)}
    probe = [*pilots, *booked_apart(evaluator, probe, [*copied, *pilots], theirs)]
    spent_usd, lost_usd = paid_usd(probe) + graded_usd, _lost_usd(setup, application)
    reference = logged or _measure_reference(setup, evaluator, known, spent_usd, lost_usd)
    sample = _sample(setup, known)
    problem = _with_reference(setup.problem, reference, sample)
    if failed := sum(one.failed is not None for one in reference):
        logger.warning(
            "%d of %d runs of the reference failed and count as quality 0, which lowers the "
            "threshold. If that is not what you want, begin anew with on_error='retry'",
            failed,
            len(reference),
        )
    taken_over = {*answered}
    spent_usd += paid_usd([one for one in reference if one not in taken_over])
    left = setup.budget_usd - spent_usd - _lost_usd(setup, application)
    left -= held_out_usd(setup, problem, reference)
    again, repeats = ask_again(setup, make_evaluator, reference, left)
    vary = setup.given.repeat or (repeats is not None and repeats.changed > 0)
    if vary:  # the most that s(theta_0) may be is then more
        problem = _with_reference(setup.problem, reference, sample, vary=True)
    lost_usd = _lost_usd(setup, application)  # a worker may be lost in each part
    spent_usd += paid_usd(again) + lost_usd
    return Before(problem, known, probe, base, reference, again, repeats, vary, spent_usd, lost_usd)


def held_out_usd(
    setup: Setup, problem: SelectionProblem, reference: Sequence[Observation]
) -> float:
    """The most that theta_0 and theta_out cost on the held-out queries, on average, in USD.

    theta_0 costs nothing if a log knows it.
    """
    of_choice = problem.reference_cost_usd
    of_reference = of_choice if setup.logged is None else 0.0
    if problem.objective == "quality":
        (of_choice,) = (limit.value for limit in problem.limits if limit.name == COST)
    judge_usd = 2 * math.fsum(one.judge_usd for one in reference) / len(reference)
    return len(setup.held_out) * (of_reference + of_choice + judge_usd)


def plan_of(setup: Setup, known: Known, pilot: Pilot | None = None) -> Plan:
    """What will be done, and what it costs if pilots have shown it."""
    problem, logged = setup.problem, logged_reference(setup)
    first = first_requests(problem, [*known.observations, *logged])
    of_reference = {one.query for one in known.observations if one.theta == problem.theta_ref}
    missing = _asked(setup, known) - of_reference
    measured = missing & {one.query for one in measured_before(setup)}
    sample = _sample(setup, known)
    names = dict.fromkeys(llm for llms in problem.llms for llm in llms)
    by_tokens = [llm for llm in names if not setup.prices.is_timed(llm)]
    usd = {llm: setup.prices.usd_per_mtok(llm) for llm in by_tokens} if setup.is_priced else None
    return Plan(
        problem.name,
        dict(zip(problem.modules, problem.llms, strict=True)),
        problem.names(problem.theta_ref),
        len(setup.searched),
        len(setup.held_out),
        setup.budget_usd,
        usd,
        num_first=0 if setup.began_before("preflight") else len(first),
        repeats=setup.repeats,
        is_logged=bool(logged),
        num_known=len(known.observations),
        num_reference=0 if logged else len(missing - measured),
        num_measured=len(measured),
        reference_queries=None if sample is None else len(sample),
        pilot=pilot,
        num_allowed=problem.num_allowed,
    )


def _sample(setup: Setup, known: Known) -> Sequence[int] | None:
    """The queries that theta_0 answers, as drawn; None for all: also if all answers are known."""
    theta_ref = setup.problem.theta_ref
    queries = {one.query for one in known.observations if one.theta == theta_ref}
    return None if len(queries) == setup.problem.num_queries else setup.sample


def _asked(setup: Setup, known: Known) -> set[int]:
    """The queries that theta_0 answers."""
    sample = _sample(setup, known)
    return set(range(setup.problem.num_queries) if sample is None else sample)


def known_of(
    setup: Setup,
    evaluator: FunctionEvaluator,
    keeps: bool = True,
    counts: Collection[tuple[int, ...]] | None = None,
) -> Known:
    """What older runs observed; `keeps`: the directory of this run keeps it.

    See `known_from` for `counts`.

    Raises:
        InputError: If this run began with other ones, or has lost what grading anew may cost; or
            see `known_from`.
    """
    if setup.folder is not None and setup.given.optimizer is None:
        refuse_others(setup.earlier, setup.folder)
    if not setup.earlier:
        return Known(setup.problem)
    lost_usd = 0.0
    if keeps and setup.folder is not None and not (setup.folder / KNOWN).exists():
        lost_usd = _refuse_lost(setup, _lost_usd(setup))
    return known_from(
        setup.earlier,
        setup.problem,
        evaluator,
        answers_vary=not evaluator.deterministic,
        run_dir=setup.folder if keeps else None,
        regrade_usd=setup.budget_usd - lost_usd if keeps else None,
        counts=counts,
    )


def logged_reference(setup: Setup) -> list[Observation]:
    """theta_0 on the queries of the search, as it was logged; empty if it has to be measured."""
    if setup.logged is None:
        return []
    numbers = [item.number for item in setup.searched]
    return setup.logged.observations(setup.problem.theta_ref, numbers)


def _measure_reference(
    setup: Setup, evaluator: Evaluator, known: Known, spent_usd: float, lost_usd: float
) -> list[Observation]:
    """theta_0 on its queries, once and for good; what is known is not measured again.

    Args:
        setup: Of the selection.
        evaluator: Makes the observations.
        known: Those of older runs.
        spent_usd: Paid before, for observations.
        lost_usd: And for calls that gave none.

    Raises:
        InputError: If it would cost more than the budget: after five queries, or as soon as it has.
    """
    problem, budget_usd = setup.problem, setup.budget_usd - spent_usd - lost_usd
    of_query = {o.query: o for o in known.observations[::-1] if o.theta == problem.theta_ref}
    queries = sorted(_asked(setup, known))
    missing = [query for query in queries if query not in of_query]
    facts: dict[str, Any] = setup.prices.facts if setup.is_priced else {}
    if _sample(setup, known) is not None:
        facts["reference_queries"] = len(queries)
    if missing and budget_usd <= 0:
        raise InputError(
            f"{spent_usd + lost_usd:.3g} USD were paid before the reference, and "
            f"budget_usd={setup.budget_usd:g}; raise it"
        )
    with tqdm(
        total=len(missing), desc="reference", unit="query", disable=not setup.shows, file=HEARD
    ) as bar:

        def count(_: Observation) -> None:
            bar.update()

        try:
            found = measure(
                evaluator,
                [Request(problem.theta_ref, query) for query in missing],
                folder=setup.inside("reference"),
                facts=facts,
                observed=count,
                budget_usd=budget_usd,
                first=(TOO_DEAR_AFTER,),
                deadline=setup.deadline,
            )
        except TooDear as error:
            kept = "" if setup.folder is None else " (what was measured is kept in run_dir)"
            lost = f", after {lost_usd:.3g} USD were lost" if lost_usd else ""
            raise InputError(
                f"the reference cost {error.spent_usd:.3g} USD on {error.number} of "
                f"{len(missing)} queries, so about {error.expected_usd:.3g} USD on all, and "
                f"budget_usd={setup.budget_usd:g}{lost}; raise it, or give fewer queries{kept}"
            ) from None
    of_query |= {observation.query: observation for observation in found}
    return [of_query[query] for query in queries]


def _base(setup: Setup, answered: Sequence[Observation]) -> Base:
    """Where the search starts: as told, by price, or by what one query has cost."""
    if setup.base is not None or setup.given.optimizer is not None:
        return setup.base
    query = query_of(one for one in answered if one.failed is None)
    return cheapest(setup.problem, answered, query)


def _lost_usd(setup: Setup, application: Application | None = None) -> float:
    """USD of calls that gave no observation, in all processes, before the search has begun."""
    if setup.folder is None:
        return 0.0 if application is None else paid_usd(application.lost)
    parts = "pilot", "preflight", "reference", "again", REGRADED
    return paid_usd([one for part in parts for one in lost_in(inside(setup.folder, part))])


def _refuse_lost(setup: Setup, lost_usd: float, graded_usd: float = 0.0) -> float:
    """The USD that were lost; an error if they and what was graded anew have taken the budget."""
    if lost_usd + graded_usd >= setup.budget_usd:
        raise InputError(
            f"{lost_usd:.3g} USD were paid for runs that were lost, and "
            f"budget_usd={setup.budget_usd:g}; raise it"
        )
    return lost_usd


def _with_reference(
    problem: SelectionProblem,
    answers: Sequence[Observation],
    sample: Sequence[int] | None,
    vary: bool = False,
) -> SelectionProblem:
    """The problem with theta_0 as it was measured.

    Args:
        problem: With placeholders.
        answers: Of theta_0.
        sample: Their queries, as they were drawn; None if they are all.
        vary: Whether answers change from call to call.

    Raises:
        InputError: If it was never right, or free, or an outcome of a constraint is missing.
    """
    costs = [answer.cost_usd for answer in answers]
    qualities = [answer.quality for answer in answers]
    is_whole = sample is None and not _is_below(problem, _mean(qualities))
    if (is_whole or problem.epsilon is not None) and not any(qualities):
        if all(answer.failed is not None for answer in answers):
            raise InputError(
                f"all {len(answers)} runs of the reference failed, so there is no threshold; the "
                "warnings above say why"
            )
        raise InputError(
            f"the reference was right on none of {len(answers)} queries, so there is no threshold; "
            "does the metric compare what it should? outputs.jsonl in run_dir has the answers"
        )
    return replace(
        problem,
        reference_quality=_mean(qualities),
        reference_cost_usd=_mean(costs),
        reference_answers=tuple(zip(costs, qualities, strict=True)) if is_whole else None,
        reference_queries=None if is_whole else len(answers),
        constraints=(*problem.constraints, *_in_numbers(problem, answers, sample, vary)),
        reference_outcomes={
            limit.name: _mean([limit.of(answer) for answer in answers])
            for limit in problem.constraints
            if limit.name not in (QUALITY, COST)
        },
    )


def _is_below(problem: SelectionProblem, quality: float) -> bool:
    """Whether theta_0 has less than the least quality: then it is no fallback, as with a sample."""
    if any(limit.is_relative for limit in problem.constraints):
        return False  # needs all of its answers
    return any(one.name == QUALITY and not one.holds(quality) for one in problem.constraints)


def _in_numbers(
    problem: SelectionProblem,
    answers: Sequence[Observation],
    sample: Sequence[int] | None,
    vary: bool,
) -> list[Constraint]:
    """The threshold of a tolerated loss, if a sample tells the most that s(theta_0) may be."""
    if sample is None or problem.epsilon is None:
        return []
    of_query = {answer.query: answer.quality for answer in answers}
    drawn = [of_query[query] for query in sample]
    if vary:
        most = upper_expectation(drawn, REFERENCE_DELTA)
    else:
        most = upper_average(drawn, problem.num_queries, REFERENCE_DELTA)
    return [at_least(QUALITY, (1 - problem.epsilon) * most)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def say(setup: Setup, text: object) -> None:
    """Tells the user, who sees no log, how the selection goes on."""
    if setup.shows:
        print(text, file=HEARD)
