"""How much answers vary: the reference answers some of its queries a second time."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scope_torch.bounds.repeats import Repeats
from scope_torch.evaluators.application import Application
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.evaluators.outputs import FILE
from scope_torch.observation import Observation, Request
from scope_torch.runs.asked import replayed
from scope_torch.runs.directory import read_settings
from scope_torch.runs.evaluator import Evaluator
from scope_torch.runs.measure import keep_repeats, measure, repeats_in
from scope_torch.runs.older import had_reference, is_graded_otherwise
from scope_torch.selection.setup import Setup

logger = logging.getLogger(__name__)

_FOLDER = "again"


def ask_again(
    setup: Setup,
    make_evaluator: Callable[..., FunctionEvaluator],
    reference: Sequence[Observation],
    left_usd: float,
) -> tuple[list[Observation], Repeats | None]:
    """Second answers of theta_0, and what both say; as many as half of the rest pays for.

    None are asked for if an older run has some, graded by the same metric.

    Args:
        setup: Of the selection.
        make_evaluator: Makes an evaluator, given problem and queries.
        reference: theta_0, once on each query that it was asked.
        left_usd: What is left of the budget.

    Returns:
        The observations that were paid for, and the grades of both calls; None if nothing was asked
        twice. What a cache of the application replayed is no second answer; a failure is one.
    """
    evaluator = make_evaluator(setup.problem, queries=setup.searched, deterministic=False)
    known, begun = _known(setup, evaluator), _begun(setup)
    is_late, told = setup.began_before(_FOLDER), setup.given.repeats is not None
    usd = math.fsum(one.paid_usd for one in reference) / len(reference)
    most = left_usd / 2 / usd if usd else math.inf
    number = int(max(0, min(setup.repeats, len(reference), most)))
    if told and (begun or is_late) and number != begun:
        logger.warning(
            "repeats=%s is not what this run began with: it asked %d queries twice, and keeps to "
            "that; for others give continue_from= and another run_dir",
            *(setup.given.repeats, begun),
        )
    if is_late or (known is not None and not told and not begun):
        return [], known
    number = begun or number
    of_query = {one.query: one for one in reference}
    queries = sorted(of_query)
    random.Random(f"again {setup.seed}").shuffle(queries)
    if isinstance(evaluator.system, Application):  # the outputs of the first answers stay
        evaluator.system = evaluator.system.apart(setup.inside(f"{_FOLDER}/{FILE}"))
    requests = [Request(setup.problem.theta_ref, query) for query in sorted(queries[:number])]
    where: dict[str, Any] = {"folder": setup.inside(_FOLDER), "deadline": setup.deadline}
    found = measure(evaluator, requests, **where) if requests else []
    told = list(filter(evaluator.is_answer, found))
    asked = [one for one in told if one.failed is None]
    modules, optional = setup.problem.modules, setup.given.optional_modules
    if of_cache := replayed(modules, reference, asked, optional):
        logger.warning(
            "%d of %d second answers came from a cache: they cost nothing, or asked fewer modules "
            "than the first ones; switch it off, because they do not tell whether answers vary",
            *(len(of_cache), len(asked)),
        )
    told = [one for one in told if one not in of_cache]
    both = [(of_query[one.query].quality, one.quality) for one in told]
    if known is not None and not begun:  # an older run's count too
        both += zip(known.first, known.second, strict=True)
    elif begun and (kept := None if setup.folder is None else repeats_in(setup.folder)):
        return found, kept
    repeats = Repeats(*map(tuple, zip(*both, strict=True))) if both else None
    if repeats is not None and setup.folder is not None:
        keep_repeats(setup.folder, repeats)
    return found, repeats


def _known(setup: Setup, evaluator: Evaluator) -> Repeats | None:
    """Those that this run has taken over, or may take over from older ones.

    That is the latest one that saw a change: 30 answers that stay say little against one, and
    nothing of another reference.
    """
    own = setup.folder
    if own is not None and (found := repeats_in(own)) is not None:
        return found
    older = [(path, repeats_in(path)) for path in map(Path, reversed(setup.earlier))]
    others = {path for path, one in older if one and is_graded_otherwise(path, evaluator)}
    told = [
        one
        for path, one in older
        if one is not None and path not in others
        if one.changed or had_reference(path, setup.problem)
    ]
    changed = [str(path) for path, one in older if path in others and one and one.changed]
    if setup.given.repeats == 0 and changed:
        logger.warning(
            "answers changed from call to call in %s, by another metric; with repeats=0 this "
            "search takes them for fixed. Leave it out, and the reference answers twice",
            changed[0],
        )
    found = next((one for one in told if one.changed), told[0] if told else None)
    if own is not None and found is not None and setup.given.repeats is None:
        keep_repeats(own, found)
    return found


def _begun(setup: Setup) -> int:
    """How many second answers this run has asked for, once it has begun to; else 0."""
    path = setup.inside(f"{_FOLDER}/settings.json")
    if path is None or not path.exists():
        return 0
    return int(read_settings(path)["problem"]["num_pairs"])
