"""Calls of a function that somebody else wrote: plain or `async def`, and it may try to leave."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from scope_torch.evaluators.event_loop import naming_its_mend, result_of


def called(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """What a function returns; an awaitable is awaited on the event loop of all such functions.

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
            returned = function(*arguments, **keywords)
            # Also on the event loop the call sees the context of this thread: which query it is.
            return result_of(returned) if inspect.isawaitable(returned) else returned
    except (StopIteration, StopAsyncIteration) as error:  # means something else to generators
        raise RuntimeError(f"it raised {error!r}") from error
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise RuntimeError(
            f"it raised {error!r}, which would end the search; let it return or raise another "
            "exception"
        ) from error
