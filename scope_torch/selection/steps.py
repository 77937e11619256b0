"""The steps of a selection: probe, reference, search, held-out queries."""

from __future__ import annotations

import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
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
from scope_torch.runs.earlier import HELD_OUT, KNOWN, known_from
from scope_torch.runs.evaluator import Evaluator
from scope_torch.runs.held_out import HeldOut
from scope_torch.runs.measure import measure
from scope_torch.runs.opening import begin
from scope_torch.runs.result import RunResult
from scope_torch.runs.runner import problem_settings, run
from scope_torch.search.known import Known
from scope_torch.search.optimizer import Optimizer
from scope_torch.selection.plan import TOO_DEAR_AFTER
from scope_torch.selection.setup import Setup
from scope_torch.tracking.progress import ProgressBar

logger = logging.getLogger(__name__)


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
    _say(show, setup.plan())
    evaluator = make_evaluator(setup.problem, queries=setup.searched)
    if setup.folder is not None:
        begin(setup.folder, problem_settings(setup.problem), evaluator)
    known = _known(setup, evaluator, earlier, show)
    evaluator.paid(known.observations)
    logged = _logged_reference(setup)
    probe, base = _probe(setup, evaluator, [*known.observations, *logged])
    reference = logged or _measure_reference(setup, evaluator, known, _cost(probe), show)
    problem = _with_reference(setup.problem, reference)
    if failed := evaluator.num_failed:
        logger.warning(
            "%d runs before the search failed and count as quality 0: a failing reference lowers "
            "the threshold. If that is not what you want, begin anew with on_error='retry'",
            failed,
        )
    evaluator = make_evaluator(problem, queries=setup.searched)
    evaluator.paid([*known.observations, *probe, *reference])
    taken_over = {*known.observations, *logged}
    measured_usd = _cost([one for one in reference if one not in taken_over])
    left = setup.budget_usd - _cost(probe) - measured_usd
    left -= 2 * problem.reference_cost_usd * len(setup.held_out)
    if left <= 0:
        raise InputError(
            f"the reference took {measured_usd:.3g} of budget_usd={setup.budget_usd:g}, and "
            "nothing is left for the search; raise it, or give fewer queries"
        )
    _say(show, _of_reference(problem, left))
    if setup.needs_base:
        how = {"base": base} if base is not None else {"initial_pool": "random"}
        make_optimizer = partial(make_optimizer, budget_usd=left, known=known, **how)
    watching = [*([ProgressBar()] if show else []), *callbacks]
    result = run(
        problem, make_optimizer(problem), evaluator, left, run_dir=setup.folder, callbacks=watching
    )
    found = replace(
        result,
        reference=None if logged else reference,
        probe=probe,
        held_out=_held_out(setup, make_evaluator, result, show, earlier),
        queries=[item.input for item in setup.searched],
        expected=[item.expected for item in setup.searched] if application.has_metric else None,
        answers=_by_codes(problem, application.outputs, setup.searched),
        prices=setup.prices.describe(_names_in(problem)) if setup.is_priced else None,
        num_failed=failed + evaluator.num_failed,
    )
    found.write()
    return found


def _known(
    setup: Setup, evaluator: FunctionEvaluator, earlier: Sequence[Path | str], show: bool
) -> Known:
    """What older runs observed."""
    if not earlier:
        return Known(setup.problem)
    known = known_from(
        earlier,
        setup.problem,
        evaluator,
        answers_vary=not evaluator.deterministic,
        run_dir=setup.folder,
    )
    _say(show, f"known from earlier runs: {len(known.observations):,} answers")
    return known


def _logged_reference(setup: Setup) -> list[Observation]:
    """theta_0 on the queries of the search, as it was logged; empty if it has to be measured."""
    if setup.logged is None:
        return []
    numbers = [item.number for item in setup.searched]
    return setup.logged.observations(setup.problem.theta_ref, numbers)


def _say(show: bool, text: object) -> None:
    if show:
        print(text, file=sys.stderr)


def _cost(observations: Sequence[Observation]) -> float:
    return math.fsum(observation.cost_usd for observation in observations)


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
    problem, folder = setup.problem, setup.inside("reference")
    spent, number, budget_usd = 0.0, 0, setup.budget_usd - spent_usd
    of_query = {o.query: o for o in known.observations[::-1] if o.theta == problem.theta_ref}
    missing = [query for query in range(problem.num_queries) if query not in of_query]
    Q = len(missing)
    with tqdm(total=Q, desc="reference", unit="query", disable=not show) as bar:

        def observed(observation: Observation) -> None:
            nonlocal spent, number
            spent, number = spent + observation.cost_usd, number + 1
            bar.update()
            bar.set_postfix_str(f"{spent:.3g} USD", refresh=False)
            expected = spent / number * Q
            if max(spent, expected if number >= TOO_DEAR_AFTER else 0.0) >= budget_usd:
                raise InputError(
                    f"the reference cost {spent:.3g} USD on {number} of {Q} queries, so about "
                    f"{expected:.3g} USD on all, and budget_usd={setup.budget_usd:g}; raise it, or "
                    "give fewer queries"
                    + ("" if folder is None else " (what was measured is kept in run_dir)")
                )

        requests = [Request(problem.theta_ref, query) for query in missing]
        facts = {"prices_at": setup.prices.at.isoformat()} if setup.is_priced else {}
        found = measure(evaluator, requests, folder=folder, facts=facts, observed=observed)
    of_query |= {observation.query: observation for observation in found}
    return [of_query[query] for query in range(problem.num_queries)]


def _probe(
    setup: Setup, evaluator: FunctionEvaluator, known: Sequence[Observation]
) -> tuple[list[Observation], Base]:
    """The LLM that is cheapest on one query, in all modules, and the calls that tell.

    None, without a call, if no LLM is a candidate of every module and allowed in all.
    """
    problem = setup.problem
    common = [llm for llm in problem.llms[0] if all(llm in names for names in problem.llms)]
    thetas = [problem.codes([llm] * len(problem.modules)) for llm in common]
    thetas = [theta for theta in thetas if problem.is_allowed(theta)]
    if setup.base is not None or not setup.needs_base or not thetas:
        return [], setup.base
    answers = {(answer.query, answer.theta): answer for answer in known[::-1]}  # first ones stay
    number = Counter(query for query, theta in answers if theta in thetas)
    query = max(sorted(number), key=number.__getitem__, default=0)
    old = [answers[query, theta] for theta in thetas if (query, theta) in answers]
    new = [Request(theta, query) for theta in thetas if (query, theta) not in answers]
    found = measure(evaluator, new, folder=setup.inside("probe"))
    cheapest = min([*old, *found], key=lambda observation: observation.cost_usd)
    if evaluator.deterministic:  # the reference gets the kept answer, and is billed for it
        found = [observation for observation in found if observation.theta != problem.theta_ref]
    return found, problem.names(cheapest.theta)


def _held_out(
    setup: Setup,
    make_evaluator: Callable[..., FunctionEvaluator],
    result: RunResult,
    show: bool,
    earlier: Sequence[Path | str],
) -> HeldOut | None:
    """Choice and reference on the queries that the search has not seen; asks what is not known."""
    number = len(setup.held_out)
    if not number:
        return None
    problem = replace(setup.problem, num_queries=number)
    evaluator = make_evaluator(problem, queries=setup.held_out)
    folder = setup.inside(HELD_OUT)
    known: dict[Request, Observation] = {}
    begun = folder is not None and folder.exists() and not (folder / KNOWN).exists()
    if earlier and evaluator.deterministic and not begun:  # by a version that took none over
        answers = known_from(earlier, problem, evaluator, run_dir=folder, held_out=True)
        known = {answer.request: answer for answer in answers.observations}
    thetas = list(dict.fromkeys([problem.theta_ref, result.recommendation.theta]))
    of_thetas = [[Request(theta, query) for query in range(number)] for theta in thetas]
    missing = [[pair for pair in pairs if pair not in known] for pairs in of_thetas]
    found = dict(known)
    with tqdm(total=sum(map(len, missing)), desc="held out", disable=not show) as bar:

        def count(_: Observation) -> None:
            bar.update()

        for theta, pairs in zip(thetas, missing, strict=True):
            to = None if folder is None else folder / "-".join(map(str, theta))
            answers = measure(evaluator, pairs, folder=to, observed=count)
            found |= {answer.request: answer for answer in answers}
    reference, *_, choice = [[found[pair] for pair in pairs] for pairs in of_thetas] * 2
    return HeldOut(number, choice, reference, known=list(known.values()))


def _by_codes(
    problem: SelectionProblem,
    answers: Mapping[tuple[tuple[str, ...], int], Any],
    items: Sequence[Item],
) -> dict[tuple[tuple[int, ...], int], Any]:
    """Outputs by configuration and query of the search."""
    query_of = {item.number: query for query, item in enumerate(items)}
    return {
        (problem.codes(names), query_of[index]): output
        for (names, index), output in answers.items()
        if index in query_of
    }


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
    if value is None:
        raise InputError(
            f"the app says no {limit.outcome!r}, which the constraint {limit} needs; return a dict "
            f"with outcomes={{{limit.outcome!r}: ...}}"
        )
    limit.grade(value)  # refuses a value outside its range
    return min(value, limit.high)
