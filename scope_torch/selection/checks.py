"""What can be refused before anything is paid for."""

from __future__ import annotations

import math
import operator
import textwrap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsFloat, SupportsIndex

from scope_torch.constraints import Constraint
from scope_torch.errors import InputError
from scope_torch.files import is_path
from scope_torch.llm.price_list import PriceList
from scope_torch.problem import SelectionProblem
from scope_torch.reference import FREE_REFERENCE
from scope_torch.runs.callbacks import Callback
from scope_torch.search.optimizer import Optimizer

_OF_OPTIMIZER = "ask", "tell", "recommend", "settings", "report"


def _is(*kinds: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _are(*kinds: Any) -> Callable[[Any], bool]:
    """Whether a value is a list of such elements."""
    is_list = _is(list, tuple, set, frozenset)
    return lambda value: is_list(value) and all(isinstance(one, kinds) for one in value)


def _is_endpoint(value: Any) -> bool:
    is_url = isinstance(value, str) and value.startswith(("http://", "https://"))
    return is_url or hasattr(value, "ledger")


_TAKES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "metric": (callable, "a function, such as metrics.exact_match"),
    "judge": (_is(str), "the name of an LLM"),
    "metric_version": (_is(str), "a text, such as '1'"),
    "constraints": (_are(str, Constraint), "a list, such as ['latency_s <= 2 cap 10']"),
    "objective": (lambda value: value in ("cost", "quality"), "'cost' or 'quality'"),
    "allowed": (
        lambda value: callable(value) or _are(Mapping, list, tuple)(value),
        "a rule or a list",
    ),
    "prices": (_is(str, Path, Mapping, PriceList), "a file, LLMs by name, or a PriceList"),
    "endpoint": (_is_endpoint, "a URL or an Endpoint"),
    "optional_modules": (_are(str), "a list of modules"),
    "repeat": (_is(bool), "True or False"),
    "on_error": (lambda value: value in ("raise", "retry", "zero"), "'raise', 'retry' or 'zero'"),
    "executor": (
        lambda value: callable(value) or isinstance(value, Executor),
        "a concurrent.futures.Executor, such as client.get_executor() of Dask, or a function that "
        "makes one",
    ),
    "optimizer": (callable, "a function that makes a search for a problem"),
    "run_dir": (is_path, "a path"),
    "continue_from": (
        lambda value: is_path(value) or (_are(object)(value) and all(map(is_path, value))),
        "a path, or a list",
    ),
    "name": (_is(str), "a text"),
    "progress": (_is(bool), "True or False"),
    "callbacks": (_are(object), "a list of trackers"),
    "app": (
        lambda app: callable(app) or _is(str)(app) or _are(str)(app),
        "a function or a command",
    ),
}
_NEEDED = "app", "constraints", "objective", "optional_modules", "repeat", "on_error", "callbacks"


def check_kinds(given: Any) -> None:
    """Refuses arguments of the wrong kind; numbers and what belongs together are checked later.

    Args:
        given: Has them as attributes.

    Raises:
        InputError: If one is of another kind.
    """
    for name in _TAKES:
        check_kind(name, getattr(given, name), name in _NEEDED)
    check_callbacks(given.callbacks)


def check_kind(name: str, value: Any, is_needed: bool = True) -> None:
    """Refuses an argument of the wrong kind; None stands for none if it is not needed.

    Raises:
        InputError: If it is of another kind.
    """
    is_one, takes = _TAKES[name]
    if not (is_one(value) or (value is None and not is_needed)):
        raise InputError(f"{name}={shown(value)} must be {takes}")


def in_order(given: Any) -> Any:
    """A set as a list, in an order that is the same in every process; anything else as it is."""
    return sorted(given, key=repr) if isinstance(given, set | frozenset) else given


def shown(value: Any) -> str:
    """A value in one short line."""
    return textwrap.shorten(repr(value), 80, placeholder=" ...")


def checked_number(name: str, value: Any) -> float:
    """A number as a float, also one of numpy or torch.

    Raises:
        InputError: If it is none, or not finite.
    """
    if isinstance(value, str | bool) or not isinstance(value, SupportsFloat):
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


def refuse_free_reference(prices: PriceList, problem: SelectionProblem) -> None:
    """Refuses a reference that costs nothing before it answers everything for that.

    Raises:
        InputError: If none of its LLMs has a price above 0, and something cheaper is looked for.
    """
    names = problem.names(problem.theta_ref)
    listed = [vars(llm) for name in names.values() if (llm := prices.listed(name)) is not None]
    usd = [price for llm in listed for key, price in llm.items() if "usd" in key]
    if problem.objective == "cost" and len(listed) == len(names) and not any(usd):
        raise InputError(f"reference={names}: its LLMs cost nothing, and {FREE_REFERENCE}")


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Refuses what has not the methods of a `Callback`.

    Raises:
        InputError: If one has not.
    """
    names = [name for name in vars(Callback) if not name.startswith("_")]
    for callback in callbacks:
        is_made = not isinstance(callback, type)
        missing = [n for n in names if not (is_made and callable(getattr(callback, n, None)))]
        if missing:
            raise InputError(
                f"callbacks has {shown(callback)}, which has no method {missing[0]!r}; make it a "
                "subclass of scope_torch.Callback"
            )


def check_optimizer(
    make: Callable[[SelectionProblem], Optimizer], problem: SelectionProblem, knows_all: bool
) -> None:
    """Makes the search of a user for a problem whose reference is not measured yet.

    Args:
        make: As given.
        problem: With placeholders.
        knows_all: Whether theta_0 will answer all queries.

    Raises:
        InputError: If it makes something else.
    """
    answers = ((problem.reference_cost_usd, problem.reference_quality),) * problem.num_queries
    made = make(replace(problem, reference_answers=answers if knows_all else None))
    if missing := [name for name in _OF_OPTIMIZER if not callable(getattr(made, name, None))]:
        raise InputError(
            f"optimizer={make!r:.80} made {made!r:.80}, which has no method {missing[0]!r}; make a "
            "search for the problem, such as lambda problem: make_scope(problem, base='small')"
        )
