"""Which queries are searched on, held out, and answered by the reference before the search."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from scope_torch.errors import InputError
from scope_torch.evaluators.application import Item
from scope_torch.problem import SelectionProblem
from scope_torch.reference import sample_queries
from scope_torch.runs.directory import read_settings
from scope_torch.runs.evaluator import keys_of
from scope_torch.selection.arguments import Arguments
from scope_torch.selection.checks import checked_size

logger = logging.getLogger(__name__)
T = TypeVar("T")

_FEW = 10  # queries of theta_0 where nothing is relative to it: they tell about what it costs


def split(items: Sequence[T], share: float, seed: int) -> tuple[list[T], list[T]]:
    """The items to search on, and a random share of them that is kept for the end.

    The order of those is random, too: if money or time runs out, the first stand for all.

    Raises:
        InputError: If the share is not in [0, 1), or leaves nothing to one of the two.

    Examples:
        >>> searched, held_out = split(range(10), 0.2, seed=0)
        >>> len(searched), len(held_out), searched == sorted(searched)
        (8, 2, True)
    """
    if not 0 <= share < 1:
        raise InputError(f"holdout={share} must be a share in [0, 1), such as 0.2")
    number = round(share * len(items))
    if share and not 0 < number < len(items):
        raise InputError(f"holdout={share} of {len(items)} queries leaves nothing to one part")
    chosen = random.Random(f"holdout {seed}").sample(range(len(items)), number)
    held_out = set(chosen)
    searched = [item for index, item in enumerate(items) if index not in held_out]
    return searched, [items[index] for index in chosen]


def warn_of_known(searched: Sequence[Item], held_out: Sequence[Item]) -> None:
    """Warns if held-out queries are searched on, too: they tell little of new ones."""
    if not held_out:
        return
    try:
        keys = keys_of(item.input for item in (*searched, *held_out))
    except InputError:  # nobody can tell whether they are the same
        return
    known = set(keys[: len(searched)])
    if number := sum(key in known for key in keys[len(searched) :]):
        logger.warning(
            "%d of %d held-out queries have the input of a query of the search, and say little of "
            "new ones; give each query once",
            *(number, len(held_out)),
        )


def warn_of_copies(searched: Sequence[Item]) -> None:
    """Warns if queries that stand for tomorrow's are there twice: each counts as a draw."""
    try:
        keys = keys_of(item.input for item in searched)
    except InputError:  # nobody can tell whether they are the same
        return
    if copies := len(keys) - len(set(keys)):
        logger.warning(
            "%d of %d queries have the input of another one, and each counts as a draw of its own: "
            "unless they came in as often, give each query once, or what is said of tomorrow's "
            "queries is wrong more often than it says",
            *(copies, len(keys)),
        )


def sample_of(
    given: Arguments, problem: SelectionProblem, folder: Path | None, seed: int
) -> list[int] | None:
    """The queries that theta_0 answers, in the order in which they are drawn; None for all.

    Raises:
        InputError: If their number is none of 1 to Q, or something is relative to all averages.
    """
    Q, number = problem.num_queries, given.reference_queries
    relative = [str(one) for one in problem.constraints if one.is_relative]
    relative += ["objective='quality'"] if problem.objective == "quality" else []
    if number is None:
        needs_all = relative or problem.epsilon is not None or given.optimizer is not None
        number = Q if needs_all or _began_with_all(folder) else min(Q, _FEW)
    if (number := checked_size("reference_queries", number)) > Q:
        raise InputError(f"reference_queries={number}: only {Q} queries are searched on")
    if number == Q:
        return None
    if relative:
        raise InputError(
            f"reference_queries={number}, but {relative[0]} compares with the reference on all {Q} "
            "queries: leave reference_queries out, or say an absolute bound; of the quality, "
            "max_quality_loss"
        )
    return sample_queries(Q, number, seed)


def _began_with_all(folder: Path | None) -> bool:
    """Whether these files hold a reference that was to answer all queries."""
    path = None if folder is None else folder / "reference" / "settings.json"
    if path is None or not path.exists():
        return False
    return "reference_queries" not in read_settings(path)["problem"]
