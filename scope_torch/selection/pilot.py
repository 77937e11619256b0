"""A few runs of the reference, which tell what a selection may cost and how long it may take."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Set

from scope_torch.errors import InputError
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.observation import Observation, Request
from scope_torch.runs.journal import read_journal
from scope_torch.runs.measure import TooDear, measure
from scope_torch.runs.opening import begin, describe_prices
from scope_torch.runs.runner import problem_settings
from scope_torch.selection.plan import Pilot
from scope_torch.selection.setup import Setup

NUMBER = 3  # queries
FOLDER = "pilot"


def fly(setup: Setup, evaluator: FunctionEvaluator) -> Pilot:
    """Runs the reference on a few queries; with a directory, the selection does not pay again.

    If it has measured some of the reference already, these runs tell.

    Raises:
        InputError: If they cost more than the budget, or a run fails; or if the directory holds a
            run with other settings.
    """
    measured, known = measured_before(setup)[:NUMBER], measured_before(setup, "preflight")
    if setup.folder is not None and (measured or known):
        begin(setup.folder, problem_settings(setup.problem), evaluator)  # refuses other settings
    if measured:
        return Pilot(len(measured), paid_usd(measured), None, evaluator.concurrency)
    evaluator.remember(known)
    is_new = (folder := setup.inside(FOLDER)) is None or not (known or folder.exists())
    began = time.perf_counter()
    requests, budget_usd = _requests(setup), setup.budget_usd
    if setup.folder is not None:
        describe_prices(setup.folder, evaluator)  # refuses others than those of known answers
    try:
        found = measure(evaluator, requests, folder=folder, budget_usd=budget_usd)
    except TooDear as error:
        raise InputError(
            f"the pilots: {error.number} of {len(requests)} runs of the reference cost "
            f"{error.spent_usd:.3g} USD, and budget_usd={budget_usd:g}; raise it: all queries cost "
            f"about {error.spent_usd / error.number * len(setup.sample or setup.searched):.3g} USD"
        ) from None
    rounds = 1 + -(-(len(found) - 1) // evaluator.concurrency)  # the first run is alone
    seconds = (time.perf_counter() - began) / rounds if is_new else None
    return Pilot(len(found), paid_usd(found), seconds, evaluator.concurrency)


def piloted(setup: Setup, evaluator: FunctionEvaluator) -> list[Observation]:
    """The pilots of earlier dry runs in the same directory, which the evaluator remembers.

    Those that a dry run has left out, as its budget or the user ended it, are not made up for: what
    the evaluator knows of an earlier search would be paid for twice in the bill.
    """
    folder = setup.inside(FOLDER)
    if folder is None or not folder.exists():
        return []
    found = measure(evaluator, _requests(setup), folder=folder, enough=0)
    return sorted(found, key=lambda one: one.query)


def measured_before(setup: Setup, part: str = "reference") -> list[Observation]:
    """What an earlier process has measured of the reference in the same directory."""
    path, theta_ref = setup.inside(f"{part}/journal.jsonl"), setup.problem.theta_ref
    return [] if path is None else [one for one in read_journal(path) if one.theta == theta_ref]


def booked_apart(
    evaluator: FunctionEvaluator,
    found: list[Observation],
    copied: Collection[Observation],
    theirs: Set[Request],
) -> list[Observation]:
    """Pilots, or answers of the preflight, that are booked as such; a kept answer is booked once.

    Args:
        evaluator: Says whether answers are kept.
        found: The pilots or answers.
        copied: What others have got. A failure is among them if failures were answers then.
        theirs: What others get, as kept answers.
    """
    if not evaluator.deterministic:
        return found
    rest = [one for one in found if one not in copied]
    return [one for one in rest if one.request not in theirs or not evaluator.is_answer(one)]


def paid_usd(observations: Iterable[Observation]) -> float:
    """What observations have cost."""
    return math.fsum(one.paid_usd for one in observations)


def _requests(setup: Setup) -> list[Request]:
    queries = range(min(NUMBER, len(setup.searched)))
    return [Request(setup.problem.theta_ref, query) for query in queries]
