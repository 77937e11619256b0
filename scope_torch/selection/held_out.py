"""Held-out queries: reference and choice on what the search has not seen."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.files import write_atomically
from scope_torch.observation import Observation, Request, to_lines
from scope_torch.results.bill import regraded_usd
from scope_torch.results.held_out import HeldOut
from scope_torch.results.result import RunResult
from scope_torch.runs.earlier import known_from
from scope_torch.runs.journal import read_journal
from scope_torch.runs.measure import measure
from scope_torch.runs.older import HELD_OUT, KNOWN, LOGGED, is_graded_otherwise
from scope_torch.runs.opening import facts_of
from scope_torch.search.known import Known
from scope_torch.selection.pilot import paid_usd
from scope_torch.selection.setup import Setup
from scope_torch.tracking.heard import HEARD

logger = logging.getLogger(__name__)

_ROUNDING = 1e-9


def compare_held_out(
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
    taken, before = _known_held_out(setup, make_evaluator, left_usd), _paid_held_out(setup)
    taken_over = [*taken.observations, *_logged_held_out(setup, before)]
    known = {answer.request: answer for answer in taken_over}
    anew_usd = regraded_usd(taken.sources)
    thetas = list(dict.fromkeys([setup.problem.theta_ref, result.recommendation.theta]))
    costs = result.problem.reference_cost_usd, result.cost_usd.value or 0.0
    judged = [one.judge_usd for one in result.history]
    judge_usd = math.fsum(judged) / max(1, len(judged))
    usd_of = dict(zip(thetas, (usd + judge_usd for usd in costs), strict=False))
    # Earlier choices, with a smaller budget; the answers of these two are counted where they count.
    left_usd -= anew_usd + paid_usd([one for one in before if one.theta not in usd_of])
    number = _number_paid_for(setup, usd_of, known, left_usd)
    if number < len(setup.held_out):
        logger.warning(
            "what is left of the budget pays for %d of %d held-out queries",
            *(number, len(setup.held_out)),
        )
    if number <= 0:
        return None, anew_usd + paid_usd(before)
    left_usd -= paid_usd([one for one in before if one.theta in usd_of and one.query >= number])
    part = HELD_OUT if number == len(setup.held_out) else f"{HELD_OUT}_{number}"
    problem = replace(setup.problem, num_queries=number)
    # Each pair is asked once; also if answers vary, what a smaller budget has paid for is one.
    evaluator = make_evaluator(problem, queries=setup.held_out[:number], deterministic=True)
    evaluator.remember([*taken_over, *_kept_held_out(setup, evaluator)])
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
        return None, anew_usd + paid_usd(paid)
    of_thetas = [[found[Request(theta, query)] for query in range(both)] for theta in thetas]
    reference, choice = of_thetas[0], of_thetas[-1]  # the same if the reference is kept
    told = HeldOut(both, choice, reference, taken_over, anew_usd)
    compared = set(told.paid)
    return told, paid_usd([one for one in paid if one not in compared])


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
            # Who is expected to be free takes nothing from the others.
            share_usd = left_usd * (expected[at] / rest if expected[at] else 1.0)
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
            left_usd -= paid_usd(answers)
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


def _logged_held_out(setup: Setup, before: Iterable[Observation]) -> list[Observation]:
    """theta_0 as it was logged; kept for those who read the directory.

    Empty if there is no log, or if an early version has paid for such answers `before`.
    """
    theta_ref = setup.problem.theta_ref
    if setup.logged is None or any(one.theta == theta_ref for one in before):
        return []
    numbers = [item.number for item in setup.held_out]
    found = setup.logged.observations(theta_ref, numbers)
    if (folder := setup.inside(HELD_OUT)) is not None:
        folder.mkdir(exist_ok=True)
        write_atomically(folder / LOGGED, to_lines(found).decode(), private=True)
    return found


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
