"""One event loop for all asynchronous systems of the process, on a thread of its own.

A client of an `async def` system keeps connections that belong to the loop that opened them. So all
calls of all evaluators run on one loop, and a client may be shared by all of them. The loop of a
notebook cannot be that one: the search that runs in its thread blocks it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import threading
from collections.abc import Awaitable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from scope_torch.errors import InputError

T = TypeVar("T")

# As asyncio says it.
_OF_ANOTHER = re.compile(
    "Event loop is closed|is bound to a different event loop|to a different loop"
)
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


@contextmanager
def naming_its_mend() -> Generator[None, None, None]:
    """Names the mend of an error because a client lives on another event loop.

    A request may have been sent, and paid, before the error, so nothing is sent again.

    Raises:
        InputError: In the place of such an error.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError) or not _is_of_another_loop(error):
            raise
        wrong = InputError(
            "an asynchronous client of the app belongs to another event loop, because it was used "
            "before, by `await` in a notebook or by asyncio.run(): make the client inside the app, "
            "or a new one right before the search; and give the search the `async def` itself "
            f"({type(error).__name__}: {error})"
        )
        if (usd := getattr(error, "cost_usd", None)) is not None:
            wrong.cost_usd = usd  # type: ignore[attr-defined]
        raise wrong from error


def _is_of_another_loop(error: BaseException | None) -> bool:
    """Whether it, or what it came from, is asyncio's error about another loop."""
    while error is not None:
        if isinstance(error, RuntimeError | ValueError) and _OF_ANOTHER.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


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
        while not _has_run(loop):
            pass


def _has_run(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop ran until it was stopped; and was not left by a task of an application.

    A task that raises `KeyboardInterrupt` or `SystemExit` gives it to whoever awaits the task, and
    to the loop. The loop goes on, so that whoever awaits gets it, and other calls get an answer.
    """
    try:
        loop.run_forever()
    except (KeyboardInterrupt, SystemExit):
        return False
    return True


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
