"""The steps of a selection: what comes before, the search, held-out queries."""

from __future__ import annotations

import logging
import math
import statistics
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from scope_torch.bounds.population import mean_interval
from scope_torch.errors import InputError
from scope_torch.evaluators.application import Application, Item
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.llm.price_list import PriceList
from scope_torch.methods import make_scope_joint
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.reference import REFERENCE_DELTA
from scope_torch.results.result import RunResult
from scope_torch.runs.asked import left_out, silent
from scope_torch.runs.changed_settings import OF_0_1
from scope_torch.runs.directory import read_settings
from scope_torch.runs.journal import lost_in
from scope_torch.runs.runner import run
from scope_torch.search.optimizer import Optimizer
from scope_torch.selection.before import Before, held_out_usd, prepare, say
from scope_torch.selection.held_out import compare_held_out
from scope_torch.selection.sampling import warn_of_copies
from scope_torch.selection.setup import Setup
from scope_torch.tracking.progress import ProgressBar

logger = logging.getLogger(__name__)

_UNKNOWN_FLIPS = 0.1  # where nothing was asked twice, but answers are said to vary


@contextmanager
def served(endpoint: Any, prices: PriceList) -> Generator[Any, None, None]:
    """The endpoint while the application runs; an address becomes an `Endpoint`; None stays.

    It books at `prices`, which may be those of an earlier day.
    """
    if endpoint is None:
        yield None
        return
    from scope_torch.serve.endpoint import Endpoint  # needs starlette

    if isinstance(endpoint, str):
        endpoint = Endpoint(endpoint, prices=prices)
    before = endpoint.ledger.estimated_usd
    try:
        with endpoint.shared():  # other selections may use it, too
            yield endpoint.at_prices(prices)
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
    optimizer = make_optimizer(problem)
    if "population_delta" in optimizer.settings():
        warn_of_copies(setup.searched)
    bar = ProgressBar()
    watching = [*([bar] if setup.shows else []), *given.callbacks]
    parts: tuple[Any, ...] = setup, application, make_evaluator, before, bar
    return run(
        problem,
        optimizer,
        evaluator,
        left,
        run_dir=setup.folder,
        callbacks=watching,
        time_limit=setup.deadline,
        finish=partial(_finished, *parts),
    )


def _finished(
    setup: Setup,
    application: Application,
    make_evaluator: Callable[..., FunctionEvaluator],
    before: Before,
    bar: ProgressBar,
    result: RunResult,
) -> RunResult:
    """The result of the search with all that was measured before and after it."""
    bar.close(None)
    measured = [*before.probe, *before.reference]
    is_priced = setup.is_priced or any(one.module_tokens is not None for one in measured)
    paid_llms = dict.fromkeys([*_names_in(result.problem), *filter(None, [application.judge])])
    lost_usd = math.fsum(one.paid_usd for one in _lost(setup, application))
    lost_usd -= before.lost_usd  # which is in spent_usd
    rest = setup.budget_usd - before.spent_usd - result.history.spend_usd - lost_usd
    held_out, unpaired_usd = compare_held_out(setup, make_evaluator, result, rest)
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
        answers=by_codes(result.problem, application.outputs, setup.searched),
        prices=_described(setup, paid_llms) if is_priced else None,
        lost=_lost(setup, application),
    )
    return replace(found, left_out=_left_out(setup, found, before.reference))


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
    number, Q, each_usd = len(answers), problem.num_queries, problem.reference_cost_usd
    some = "" if number == Q else f"{number} of {Q} queries; "
    runs = f", as much as {left_usd / each_usd:,.0f} runs of it" if each_usd else ""
    return (
        f"reference: quality {problem.reference_quality:.3g} ({some}on queries like these "
        f"{low:.2g} to {high:.2g}), {each_usd:.3g} USD a query; {left_usd:.3g} USD are left for "
        f"the search{runs}"
    )


def _as_begun(folder: Path | None) -> dict[str, Any]:
    """Settings of a search that version 0.1.0 began, which had none of them."""
    settings = None if folder is None else folder / "settings.json"
    if settings is None or not settings.exists():
        return {}
    told = read_settings(settings)["optimizer"]
    return {name: value for name, value in OF_0_1.items() if name not in told}


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
            "reference are known from elsewhere, or were not timed then; leave it out"
        )
    (width,) = setup.at_a_time.values()  # of in_flight, or of batch_size
    return float(hour_usd) / 3600 * statistics.fmean(seconds) / width


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
