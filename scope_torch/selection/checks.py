"""What can be refused before anything is paid for."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, SupportsFloat, SupportsIndex

from scope_torch.errors import InputError
from scope_torch.problem import SelectionProblem
from scope_torch.runs.callbacks import Callback
from scope_torch.search.optimizer import Optimizer

_OF_OPTIMIZER = "ask", "tell", "recommend", "settings", "report"


def checked_number(name: str, value: Any) -> float:
    """A number as a float, also one of numpy or torch.

    Raises:
        InputError: If it is none, or not finite.
    """
    if isinstance(value, str) or not isinstance(value, SupportsFloat):
        raise InputError(f"{name}={value!r} must be a number")
    if not math.isfinite(number := float(value)):
        raise InputError(f"{name}={value!r} must be a finite number")
    return number


def checked_whole(name: str, value: Any) -> int:
    """A whole number.

    Raises:
        InputError: If it is something else.
    """
    if not isinstance(value, SupportsIndex) or isinstance(value, bool):
        raise InputError(f"{name}={value!r} must be a whole number")
    return operator.index(value)


def checked_size(name: str, value: Any, least: int = 1) -> int:
    """A whole number of at least `least`.

    Raises:
        InputError: If it is something else.
    """
    if not isinstance(value, SupportsIndex) or isinstance(value, bool) or int(value) < least:
        raise InputError(f"{name}={value!r} must be a whole number, and at least {least}")
    return int(value)


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Refuses what has not the methods of a `Callback`.

    Raises:
        InputError: If one has not.
    """
    names = [name for name in vars(Callback) if not name.startswith("_")]
    for callback in callbacks:
        missing = [name for name in names if not callable(getattr(callback, name, None))]
        if missing:
            raise InputError(
                f"callback {callback!r:.80} has no method {missing[0]!r}; make it a subclass of "
                "scope_torch.Callback"
            )


def check_optimizer(
    make: Callable[[SelectionProblem], Optimizer], problem: SelectionProblem
) -> None:
    """Makes the search of a user for a problem whose reference is not measured yet.

    Raises:
        InputError: If it makes something else.
    """
    answers = ((problem.reference_cost_usd, problem.reference_quality),) * problem.num_queries
    made = make(replace(problem, reference_answers=answers))
    if missing := [name for name in _OF_OPTIMIZER if not callable(getattr(made, name, None))]:
        raise InputError(
            f"optimizer={make!r:.80} made {made!r:.80}, which has no method {missing[0]!r}; make a "
            "search for the problem, such as lambda problem: make_scope(problem, base='small')"
        )
