"""Calls of a function that somebody else wrote: plain or `async def`, and it may try to leave."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

from scope_torch.evaluators.event_loop import naming_its_mend, result_of


def fresh(value: Any) -> Any:
    """A value anew, as far as it is data: what a call writes there reaches no other call.

    Else a cheap LLM would be graded by what a better one has left in the input. Lists, dicts, sets,
    tuples, dataclasses and models of pydantic are copied. Other objects are shared: nobody knows
    whether they can be copied; so are those that raise when they are.
    """
    try:
        return _fresh(value)
    except RecursionError:  # it contains itself
        return value


def _fresh(value: Any) -> Any:
    try:
        return _copied(value)
    except RecursionError:
        raise
    except Exception:  # such as of a lock in a model
        return value


def _copied(value: Any) -> Any:
    kind: Any = type(value)
    if callable(getattr(kind, "model_copy", None)):
        return value.model_copy(deep=True)
    if isinstance(value, tuple):
        make = tuple if kind is tuple else getattr(kind, "_make", None)
        return value if make is None else make(map(_fresh, value))
    if not isinstance(value, dict | list | set) and not is_dataclass(kind):
        return value
    other: Any = copy(value)
    if isinstance(value, dict):
        for key, one in value.items():
            dict.__setitem__(other, key, _fresh(one))  # a Counter has another `|=`
    elif isinstance(value, list):
        list.__setitem__(other, slice(None), map(_fresh, value))
    elif not isinstance(value, set):
        for field in fields(value):
            if hasattr(value, field.name):  # of init=False, it may not be set yet
                object.__setattr__(other, field.name, _fresh(getattr(value, field.name)))
    return other


def called(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """What a function returns; an awaitable is awaited on the event loop of all such functions.

    It gets its arguments anew, see `fresh`.

    `sys.exit()`, or the cancellation of a task, would end the search with all calls in flight, or
    end the program with status 0. Here it is an error of the function like any other.

    Raises:
        InputError: If a client of it belongs to another event loop, see `naming_its_mend`.
        RuntimeError: If the function raises an exception that is meant to end a program or a task,
            but for an interrupt of the user.
        Exception: Whatever else it raises.

    Examples:
        >>> called(max, 1, 2)
        2
        >>> import sys
        >>> called(sys.exit, 0)
        Traceback (most recent call last):
        ...
        RuntimeError: it raised SystemExit(0), which would end the search; let it return or raise \
another exception
    """
    try:
        with naming_its_mend():
            given = {name: fresh(value) for name, value in keywords.items()}
            returned = function(*map(fresh, arguments), **given)
            # Also on the event loop the call sees the context of this thread: which query it is.
            return result_of(returned) if inspect.isawaitable(returned) else returned
    except (StopIteration, StopAsyncIteration) as error:  # means something else to generators
        raise in_place_of(error, f"it raised {error!r}") from error
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        why = f"it raised {error!r}, which would end the search; let it return or raise another "
        raise in_place_of(error, f"{why}exception") from error


def in_place_of(error: BaseException, message: str) -> RuntimeError:
    """An error of the function like any other, with what it says that the call has cost."""
    told = RuntimeError(message)
    if hasattr(error, "cost_usd"):
        told.cost_usd = error.cost_usd  # type: ignore[attr-defined]
    return told
