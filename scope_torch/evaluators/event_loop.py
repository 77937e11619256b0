"""One event loop for all asynchronous systems of the process, on a thread of its own.

A client of an `async def` system keeps connections that belong to the loop that opened them. So all
calls of all evaluators run on one loop, and a client may be shared by all of them.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

_CLOSING_S = 5.0  # how long the process waits at its end for the loop to close
_lock = threading.Lock()
_serving: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None


def result_of(awaitable: Awaitable[T]) -> T:
    """Runs an awaitable on the loop and waits for its result.

    Call it in any thread but the loop's own. The loop starts with the first call and closes at the
    end of the process. A child process, which has no threads of its parent, starts another one.

    Raises:
        BaseException: What the awaitable raised.

    Examples:
        >>> async def loop():
        ...     return asyncio.get_running_loop()
        >>> result_of(loop()) is result_of(loop())
        True
    """
    outcome = asyncio.run_coroutine_threadsafe(_outcome(awaitable), _running_loop()).result()
    return outcome.result()


async def _outcome(awaitable: Awaitable[T]) -> Future[T]:
    """The result or the error; SystemExit, if it were raised, would end the loop for all calls."""
    outcome: Future[T] = Future()
    try:
        outcome.set_result(await awaitable)
    except BaseException as error:
        outcome.set_exception(error)
    return outcome


def _running_loop() -> asyncio.AbstractEventLoop:
    global _serving
    with _lock:
        if _serving is None or not _serving[1].is_alive():
            started: Future[asyncio.AbstractEventLoop] = Future()
            thread = threading.Thread(
                target=_serve, args=(started,), name="scope-torch-loop", daemon=True
            )
            thread.start()
            _serving = started.result(), thread
        return _serving[0]


def _serve(started: Future[asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner() as runner:  # at its end it cancels calls and closes the loop
        loop = runner.get_loop()
        asyncio.set_event_loop(loop)
        loop.call_soon(started.set_result, loop)
        loop.run_forever()


def _unlock() -> None:
    """In a forked child the thread that held the lock is gone."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


@atexit.register
def _close() -> None:
    if _serving is not None and _serving[1].is_alive():
        loop, thread = _serving
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSING_S)
