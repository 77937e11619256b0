"""One query before all others: each LLM of each module answers it once.

A wrong name, a missing key, a refused setting, a cache or a shared client of the application shows
here, for the price of a few calls, and not in the middle of the search. The cheapest answer tells
where the search starts, if no price does.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice, product

from scope_torch.errors import InputError
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.factors import changes, levels_of
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.runs.asked import silent
from scope_torch.runs.measure import TooDear, measure
from scope_torch.selection.setup import Setup

logger = logging.getLogger(__name__)

Theta = tuple[int, ...]
FOLDER = "preflight"
_MOST_TRIED = 10_000  # configurations, to find an allowed one


def preflight(
    setup: Setup,
    evaluator: FunctionEvaluator,
    known: Sequence[Observation],
    budget_usd: float,
) -> list[Observation]:
    """The answers of one query that nobody knows yet: theta_0's first, alone, then the others.

    Args:
        setup: Of the selection.
        evaluator: Asks.
        known: Observations of earlier searches and logs; an LLM that they show is not asked again.
        budget_usd: What is left of the budget.

    Returns:
        The observations; none of a search that began before there was a preflight.

    Raises:
        InputError: If no answer was given, or the budget does not pay for this.
    """
    if setup.began_before(FOLDER):
        return []
    requests = first_requests(setup.problem, known)
    if requests and budget_usd <= 0:
        raise InputError(f"budget_usd={setup.budget_usd:g} went into pilots and grades; raise it")
    try:
        found = measure(
            evaluator,
            requests,
            folder=setup.inside(FOLDER),
            facts=setup.prices.facts,
            budget_usd=budget_usd,
            first=(1, 1),
            deadline=setup.deadline,
        )
    except TooDear as error:
        raise InputError(
            f"each LLM of each module answers one query first: {error.number} of {len(requests)} "
            f"runs cost {error.spent_usd:.3g} USD, and budget_usd={setup.budget_usd:g}; raise it"
        ) from None
    # One LLM that is asked again after an earlier search may fail; the search finds out.
    is_new = len(found) > 1 or not known
    if found and is_new and all(one.failed == "app" for one in found):
        raise InputError(
            f"no configuration answered query {found[0].query}: all {len(found)} runs failed; the "
            "warnings above say why. Then begin with another run_dir"
        )
    _warn_of_left_out(setup, [*known, *found], found)
    return found


def _warn_of_left_out(
    setup: Setup, answered: Iterable[Observation], found: Sequence[Observation]
) -> None:
    """Warns of a module that asks nobody, ever or once it has another LLM than the reference's."""
    problem, theta_ref = setup.problem, setup.problem.theta_ref
    answered = list(answered)
    for name in silent(problem.modules, answered, setup.given.optional_modules):
        logger.warning(
            "%r has no tokens and no cost in any run: its LLMs count as free. Let the application "
            "return them, or say optional_modules=[%r] if it may be left out",
            name,
            name,
        )
    of_reference = {o.query: o.modules_asked for o in answered if o.theta == theta_ref}
    for one in found:
        expected, asked = of_reference.get(one.query), one.modules_asked
        if expected is None or asked is None or one.failed is not None:
            continue
        for module in sorted(expected - asked):
            name = problem.modules[module]
            if one.theta[module] != theta_ref[module] and name not in setup.given.optional_modules:
                logger.warning(
                    "%r asked an LLM under the reference, and none under %s: does a cache of the "
                    "application answer in its place? Switch it off, or say optional_modules=[%r] "
                    "if it may be left out",
                    name,
                    problem.names(one.theta),
                    name,
                )


def first_requests(problem: SelectionProblem, known: Iterable[Observation]) -> list[Request]:
    """What the preflight asks; nothing if `known` shows an answer of each LLM in each module."""
    answered = [one for one in known if one.failed is None]
    query = query_of(answered)
    there = list(dict.fromkeys(one.theta for one in answered if one.query == query))
    thetas = covering(problem, [one.theta for one in answered], there)
    return [Request(theta, query) for theta in thetas]


def query_of(answered: Iterable[Observation]) -> int:
    """The query that most configurations have answered; of equal ones the first; else 0."""
    number = Counter(query for query, _ in dict.fromkeys((o.query, o.theta) for o in answered))
    return max(sorted(number), key=number.__getitem__, default=0)


def covering(
    problem: SelectionProblem, known: Iterable[Theta], answered: Sequence[Theta] = ()
) -> list[Theta]:
    """Allowed configurations in which each LLM of each module that `known` lacks runs once.

    Of choices with factors each value of each factor runs once.

    theta_0 comes first, unless it is among `answered`; then those with one LLM in all modules,
    then others, each with as many new LLMs as it can have.

    Args:
        problem: Its LLMs.
        known: Configurations whose LLMs need not answer.
        answered: Configurations whose answer is known.

    Examples:
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> covering(synthetic_task().problem, [])
        [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]
    """
    missing = {(i, code) for i, codes in enumerate(_to_cover(problem)) for code in codes}
    missing -= {pair for theta in known for pair in enumerate(theta)}
    if not missing:
        return []
    common = [llm for llm in problem.llms[0] if all(llm in names for names in problem.llms)]
    same = [problem.codes([llm] * len(problem.modules)) for llm in common]
    chosen = [] if problem.theta_ref in answered else [problem.theta_ref]
    missing -= set(enumerate(problem.theta_ref))
    for theta in same:
        if problem.is_allowed(theta) and missing & set(enumerate(theta)):
            chosen.append(theta)
            missing -= set(enumerate(theta))
    while missing:
        theta = _with_most(problem, missing)
        if theta is not None:
            chosen.append(theta)
        missing -= {min(missing)} if theta is None else set(enumerate(theta))
    return chosen


def _to_cover(problem: SelectionProblem) -> list[Collection[int]]:
    """The choices of each module; where choices have factors, theta_0's and its changes."""
    levels = levels_of(problem.llms)
    if levels is None:
        return [range(len(names)) for names in problem.llms]
    both = zip(levels, problem.theta_ref, strict=True)
    return [(code, *changes(of_module, code)) for of_module, code in both]


def _with_most(problem: SelectionProblem, missing: set[tuple[int, int]]) -> Theta | None:
    """An allowed configuration with the first missing LLM and as many others as it can have.

    None if none was found: the rule forbids this LLM in its module, or nearly so.
    """
    module, code = min(missing)
    sets: list[list[int]] = []
    for i, names in enumerate(problem.llms):
        new = sorted(other for of, other in missing if of == i)
        first = [*new, problem.theta_ref[i]]
        codes = [*first, *(c for c in range(len(names)) if c not in first)]
        sets.append([code] if i == module else codes)
    thetas = islice(product(*sets), _MOST_TRIED)
    return next((theta for theta in thetas if problem.is_allowed(theta)), None)


def cheapest(
    problem: SelectionProblem, observations: Iterable[Observation], query: int
) -> Mapping[str, str] | None:
    """The LLM that is cheapest in all modules on a query, by module; None if none was asked.

    A failed run costs nothing, and says nothing.
    """
    same = [
        one
        for one in observations
        if one.query == query
        and one.failed is None
        and len(set(problem.names(one.theta).values())) == 1
    ]
    if not same:
        return None
    return problem.names(min(same, key=lambda one: one.cost_usd).theta)
