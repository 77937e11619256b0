"""The steps of a selection: probe, reference, search, held-out queries."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scope_torch.bounds.population import mean_interval
from scope_torch.constraints import COST, QUALITY, Constraint
from scope_torch.errors import InputError
from scope_torch.evaluators.application import Application, Item
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.llm.price_list import PriceList
from scope_torch.methods import Base
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.runs.callbacks import Callback
from scope_torch.runs.earlier import known_from
from scope_torch.runs.evaluator import Evaluator
from scope_torch.runs.held_out import HeldOut
from scope_torch.runs.journal import lost_in
from scope_torch.runs.measure import TooDear, measure
from scope_torch.runs.result import RunResult
from scope_torch.runs.runner import run
from scope_torch.search.known import Known
from scope_torch.search.optimizer import Optimizer
from scope_torch.selection.again import ask_again
from scope_torch.selection.pilot import piloted
from scope_torch.selection.plan import TOO_DEAR_AFTER, Pilot, Plan
from scope_torch.selection.preflight import cheapest, first_requests, preflight, query_of
from scope_torch.selection.setup import Setup
from scope_torch.tracking.progress import ProgressBar

logger = logging.getLogger(__name__)

_ROUNDING = 1e-9


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


def is_shown(progress: bool | None) -> bool:
    """Whether to show progress; None: on a terminal."""
    return sys.stderr.isatty() if progress is None else progress


def search(
    setup: Setup,
    application: Application,
    make_evaluator: Callable[..., FunctionEvaluator],
    make_optimizer: Callable[..., Optimizer],
    show: bool,
    callbacks: Sequence[Callback],
    earlier: Sequence[Path | str] = (),
) -> RunResult:
    """Measures the reference, searches, and compares on the held-out queries.

    Raises:
        InputError: If the reference alone would cost more than the budget.
    """
    for callback in callbacks:
        callback.check(setup.problem)
    application.check([*setup.searched, *setup.held_out])
    evaluator = make_evaluator(setup.problem, queries=setup.searched)
    known = known_of(setup, evaluator, earlier)
    logged = logged_reference(setup)
    answered = [*known.observations, *logged]
    _say(show, plan_of(setup, known))
    evaluator.paid(known.observations)
    pilots = piloted(setup, evaluator)
    spent_usd = _paid(pilots) if setup.answers_vary else 0.0  # else they are kept answers
    probe = preflight(setup, evaluator, answered)
    base = _base(setup, [*answered, *probe])
    if evaluator.deterministic and not logged:  # the reference gets the kept answer, and its bill
        theta_ref = setup.problem.theta_ref
        probe = [one for one in probe if one.theta != theta_ref or one.failed is not None]
    spent_usd += _paid(probe) + _lost_before_search(setup)
    reference = logged or _measure_reference(setup, evaluator, known, spent_usd, show)
    problem = _with_reference(setup.problem, reference)
    if failed := sum(one.failed is not None for one in (*probe, *reference)):
        logger.warning(
            "%d runs before the search failed and count as quality 0: a failing reference lowers "
            "the threshold. If that is not what you want, begin anew with on_error='retry'",
            failed,
        )
    taken_over = {*known.observations, *logged}
    spent_usd += _paid([one for one in reference if one not in taken_over])
    left = setup.budget_usd - spent_usd
    again, repeats = ask_again(setup, make_evaluator, reference, left, earlier)
    spent_usd += _paid(again)
    left = setup.budget_usd - spent_usd - len(setup.held_out) * _held_out_usd(problem)
    if left <= 0:
        raise InputError(
            f"{spent_usd:.3g} of budget_usd={setup.budget_usd:g} were paid before the search, most "
            "for the reference, and nothing is left for it; raise it, or give fewer queries"
        )
    _say(show, _of_reference(problem, left))
    evaluator = make_evaluator(problem, queries=setup.searched)
    evaluator.paid([*known.observations, *probe, *reference])
    if setup.needs_base:
        how = {"base": base} if base is not None else {"initial_pool": "random"}
        make_optimizer = partial(make_optimizer, budget_usd=left, known=known, **how)
    watching = [*([ProgressBar()] if show else []), *callbacks]
    result = run(
        problem, make_optimizer(problem), evaluator, left, run_dir=setup.folder, callbacks=watching
    )
    has_tokens = any(one.module_tokens is not None for one in (*probe, *reference))
    paid_llms = dict.fromkeys([*_names_in(problem), *filter(None, [application.judge])])
    held_out_usd = setup.budget_usd - spent_usd - result.history.spend_usd
    found = replace(
        result,
        reference=None if logged else reference,
        reference_again=again,
        varies=repeats,
        probe=probe,
        held_out=_held_out(setup, make_evaluator, result, held_out_usd, show),
        queries=[item.input for item in setup.searched],
        answers=_by_codes(problem, application.outputs, setup.searched),
        prices=setup.prices.describe(paid_llms) if setup.is_priced or has_tokens else None,
        lost=[] if setup.folder is None else lost_in(setup.folder),
    )
    found.write()
    return found


def plan_of(setup: Setup, known: Known, pilot: Pilot | None = None) -> Plan:
    """What will be done, and what it costs if pilots have shown it."""
    answered = [*known.observations, *logged_reference(setup)]
    first = first_requests(setup.problem, answered)
    num_first = 0 if setup.began_before("preflight") else len(first)
    return setup.plan(num_first, known.observations, pilot)


def known_of(
    setup: Setup,
    evaluator: FunctionEvaluator,
    earlier: Sequence[Path | str],
    keeps: bool = True,
) -> Known:
    """What older runs observed; `keeps`: the directory of this run keeps it."""
    if not earlier:
        return Known(setup.problem)
    return known_from(
        earlier,
        setup.problem,
        evaluator,
        answers_vary=not evaluator.deterministic,
        run_dir=setup.folder if keeps else None,
    )


def logged_reference(setup: Setup) -> list[Observation]:
    """theta_0 on the queries of the search, as it was logged; empty if it has to be measured."""
    if setup.logged is None:
        return []
    numbers = [item.number for item in setup.searched]
    return setup.logged.observations(setup.problem.theta_ref, numbers)


def _say(show: bool, text: object) -> None:
    if show:
        print(text, file=sys.stderr)


def _paid(observations: Sequence[Observation]) -> float:
    return math.fsum(observation.paid_usd for observation in observations)


def _lost_before_search(setup: Setup) -> float:
    """USD of calls that ended an earlier process of this selection, before its search began."""
    folders = [setup.inside(name) for name in ("preflight", "probe", "reference", "again")]
    return _paid([one for folder in folders if folder is not None for one in lost_in(folder)])


def _names_in(problem: SelectionProblem) -> list[str]:
    return list(dict.fromkeys(llm for names in problem.llms for llm in names))


def _of_reference(problem: SelectionProblem, left_usd: float) -> str:
    """What was measured of theta_0, and what the rest of the budget can buy."""
    low, high = mean_interval([quality for _, quality in problem.reference_answers or ()])
    return (
        f"reference: quality {problem.reference_quality:.3g} (on queries like these {low:.2g} to "
        f"{high:.2g}), {problem.reference_cost_usd:.3g} USD a query; {left_usd:.3g} USD are left "
        f"for the search, as much as {left_usd / problem.reference_cost_usd:,.0f} runs of it"
    )


def _measure_reference(
    setup: Setup, evaluator: Evaluator, known: Known, spent_usd: float, show: bool
) -> list[Observation]:
    """theta_0 on every query, once and for good; what is known is not measured again.

    Raises:
        InputError: If it would cost more than the budget: after five queries, or as soon as it has.
    """
    problem, budget_usd = setup.problem, setup.budget_usd - spent_usd
    of_query = {o.query: o for o in known.observations[::-1] if o.theta == problem.theta_ref}
    missing = [query for query in range(problem.num_queries) if query not in of_query]
    if missing and budget_usd <= 0:
        raise InputError(
            f"{spent_usd:.3g} USD were paid before the reference, and "
            f"budget_usd={setup.budget_usd:g}; raise it"
        )
    with tqdm(total=len(missing), desc="reference", unit="query", disable=not show) as bar:

        def count(_: Observation) -> None:
            bar.update()

        try:
            found = measure(
                evaluator,
                [Request(problem.theta_ref, query) for query in missing],
                folder=setup.inside("reference"),
                facts={"prices_at": setup.prices.at.isoformat()} if setup.is_priced else {},
                observed=count,
                budget_usd=budget_usd,
                first=(TOO_DEAR_AFTER,),
            )
        except TooDear as error:
            kept = "" if setup.folder is None else " (what was measured is kept in run_dir)"
            raise InputError(
                f"the reference cost {error.spent_usd:.3g} USD on {error.number} of "
                f"{len(missing)} queries, so about {error.expected_usd:.3g} USD on all, and "
                f"budget_usd={setup.budget_usd:g}; raise it, or give fewer queries{kept}"
            ) from None
    of_query |= {observation.query: observation for observation in found}
    return [of_query[query] for query in range(problem.num_queries)]


def _base(setup: Setup, answered: Sequence[Observation]) -> Base:
    """Where the search starts: as told, by price, or by what one query has cost."""
    if setup.base is not None or not setup.needs_base:
        return setup.base
    query = query_of(one for one in answered if one.failed is None)
    return cheapest(setup.problem, answered, query)


def _held_out_usd(problem: SelectionProblem) -> float:
    """The most that a query costs with theta_0 and with theta_out, on average, in USD."""
    if problem.objective == "cost":
        return 2 * problem.reference_cost_usd
    (most_usd,) = (limit.value for limit in problem.limits if limit.outcome == COST)
    return problem.reference_cost_usd + most_usd


def _held_out(
    setup: Setup,
    make_evaluator: Callable[..., FunctionEvaluator],
    result: RunResult,
    left_usd: float,
    show: bool,
) -> HeldOut | None:
    """Choice and reference on the queries that the search has not seen, as far as money reaches."""
    thetas = list(dict.fromkeys([setup.problem.theta_ref, result.recommendation.theta]))
    costs = result.problem.reference_cost_usd, result.cost_usd.value or 0.0
    number = min(len(setup.held_out), int(left_usd / math.fsum(costs[: len(thetas)]) + _ROUNDING))
    if number < len(setup.held_out):
        logger.warning(
            "what is left of the budget pays for %d of %d held-out queries",
            max(0, number),
            len(setup.held_out),
        )
    if number <= 0:
        return None
    part = "held_out" if number == len(setup.held_out) else f"held_out_{number}"
    problem = replace(setup.problem, num_queries=number)
    evaluator = make_evaluator(problem, queries=setup.held_out[:number])
    with tqdm(total=number * len(thetas), desc="held out", disable=not show) as bar:

        def count(_: Observation) -> None:
            bar.update()

        found = [
            measure(
                evaluator,
                [Request(theta, query) for query in range(number)],
                folder=setup.inside(f"{part}/{'-'.join(map(str, theta))}"),
                observed=count,
            )
            for theta in thetas
        ]
    return HeldOut(number, choice=found[-1], reference=found[0])


def _by_codes(
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


def _with_reference(problem: SelectionProblem, answers: Sequence[Observation]) -> SelectionProblem:
    """The problem with theta_0 as it was measured.

    Raises:
        InputError: If it was never right, or free, or an outcome of a constraint is missing.
    """
    costs = [answer.cost_usd for answer in answers]
    qualities = [answer.quality for answer in answers]
    return replace(
        problem,
        reference_quality=_mean(qualities),
        reference_cost_usd=_mean(costs),
        reference_answers=tuple(zip(costs, qualities, strict=True)),
        reference_outcomes={
            limit.outcome: _mean([_outcome(answer, limit) for answer in answers])
            for limit in problem.constraints
            if limit.outcome not in (QUALITY, COST)
        },
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _outcome(answer: Observation, limit: Constraint) -> float:
    """In its own unit, at most its cap."""
    value = (answer.outcomes or {}).get(limit.outcome)
    if value is None and answer.failed is not None:
        return limit.outcome_of(0.0)  # the worst
    if value is None:
        raise InputError(
            f"the app says no {limit.outcome!r}, which the constraint {limit} needs; return a dict "
            f"with outcomes={{{limit.outcome!r}: ...}}"
        )
    limit.grade(value)  # refuses a value outside its range
    return min(value, limit.high)
