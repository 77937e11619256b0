"""Calls of a function that somebody else wrote: plain or `async def`, and it may try to leave."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

from scope_torch.evaluators.event_loop import naming_its_mend, result_of

_TOLD = "cost_usd", "status_code", "code"  # what an exception may say of a call


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
    end the program with status 0. Here it is an error of the function like any other. So is an
    exception that is not `is_usual`: what the call has cost could not be said in it.

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
            return _returned(function, arguments, keywords)
    except (StopIteration, StopAsyncIteration) as error:  # means something else to generators
        raise in_place_of(error, f"it raised {error!r}") from error
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        why = f"it raised {error!r}, which would end the search; let it return or raise another "
        raise in_place_of(error, f"{why}exception") from error


def _returned(
    function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Any:
    given = {name: fresh(value) for name, value in keywords.items()}
    try:
        returned = function(*map(fresh, arguments), **given)
        # Also on the event loop the call sees the context of this thread: which query it is.
        return result_of(returned) if inspect.isawaitable(returned) else returned
    except Exception as error:
        if is_usual(error):
            raise
        told = in_place_of(error, type(error).__name__)
        with suppress(Exception):
            told.args = (f"{type(error).__name__}: {error}",)
        told.add_note("".join(traceback.format_tb(error.__traceback__)))
        raise told from None


def is_usual(error: BaseException) -> bool:
    """Whether its text and attributes can be read, and something be noted in it.

    Not so of a frozen dataclass, or if `__str__` returns no text.
    """
    try:
        _ = str(error), repr(error), [getattr(error, name, None) for name in _TOLD]
        notes = getattr(error, "__notes__", [])
        error.__notes__ = notes
        return isinstance(notes, list)
    except Exception:
        return False


def in_place_of(error: BaseException, message: str) -> RuntimeError:
    """An error of the function like any other, with what its client and its bill say."""
    told = RuntimeError(message)
    for name in _TOLD:
        with suppress(Exception):
            setattr(told, name, getattr(error, name))
    return told
