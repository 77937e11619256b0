"""Runs many calls at a time, up to a limit."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextvars import copy_context
from dataclasses import replace
from decimal import localcontext

from scope_torch.observation import Observation, Request

logger = logging.getLogger(__name__)

_POLL_S = 0.2  # how often to look for an interrupt of the user


class PaidCallFailed(Exception):
    """A call that raised after it was paid for, or was given up.

    Args:
        error: What it raised, which ends the search; None if it was given up.
        paid: What it has cost, as an observation that is `lost`; None if nothing.
    """

    def __init__(self, error: BaseException | None, paid: Observation | None) -> None:
        super().__init__(error)
        self.error, self.paid = error, paid


class GivenUp(BaseException):
    """A call that failed is not made again, because no further call may start."""


def in_window(
    start: Callable[[Request, Future[Observation]], object],
    requests: Iterable[Request],
    concurrency: int,
    stopped: threading.Event | None = None,
) -> Iterator[Observation]:
    """Observes all requests and yields the observations in the order in which they arrive.

    Takes a request from `requests` only when there is room for it; so the caller can end `requests`
    at any time. If a call raises, or the user interrupts, no further call starts. The calls in
    flight are paid for: they are waited for and yielded, then the error is raised. After a second
    interrupt nothing is waited for. What a call has cost that raised `PaidCallFailed` is yielded
    too, as an observation that is `lost`.

    Args:
        start: Starts a call for a request; the call ends the future, as `fulfil` does. The future
            is known here before the call starts: whenever an interrupt comes, the call has not
            begun and never will, or it is waited for.
        requests: The requests.
        concurrency: Calls in flight at a time.
        stopped: Set here once no further call may start: those in flight may then be given up, see
            `ending`. That is after an error or an interrupt, or if `requests.is_over` says so.

    Examples:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> pool = ThreadPoolExecutor(8)
        >>> def observe(request):
        ...     return Observation(request.theta, request.query, cost_usd=0.01, quality=1.0)
        >>> def start(request, future):
        ...     pool.submit(fulfil, future, observe, request)
        >>> requests = [Request((0,), query) for query in range(20)]
        >>> found = list(in_window(start, requests, concurrency=8))
        >>> sorted(observation.query for observation in found) == list(range(20))
        True
    """
    done: queue.SimpleQueue[Future[Observation]] = queue.SimpleQueue()
    waiting = iter(requests)
    in_flight: set[Future[Observation]] = set()  # until they are yielded
    error: BaseException | None = None
    while True:
        try:
            while True:  # within `try`: Python looks for interrupts where a loop begins again
                is_over = error is not None or getattr(requests, "is_over", False)
                if is_over and stopped is not None:
                    stopped.set()
                while error is None and len(in_flight) < concurrency:
                    request = next(waiting, None)
                    if request is None:
                        break
                    future: Future[Observation] = Future()
                    in_flight.add(future)
                    future.add_done_callback(done.put)
                    start(request, future)
                if not in_flight:
                    break
                try:
                    # With a timeout: after polars is imported, an interrupt does not end a wait.
                    future = done.get(timeout=_POLL_S)
                except queue.Empty:
                    _put_again(in_flight, done)
                    continue
                if future not in in_flight:
                    continue  # it was put again, and has been yielded
                failure = future.exception()
                observation = None if failure else future.result()
                if isinstance(failure, PaidCallFailed):
                    observation, failure = failure.paid, failure.error
                try:
                    if observation is not None:
                        yield observation
                    error = error or failure
                finally:
                    in_flight.remove(future)
            break
        except Exception as failure:  # of `requests` or `start`
            error = error or failure
            in_flight -= _cancelled(in_flight)
        except KeyboardInterrupt as interrupt:
            if isinstance(error, KeyboardInterrupt):
                raise
            error = interrupt
            in_flight -= _cancelled(in_flight)
            logger.warning(
                "interrupted; waiting for the %d calls in flight, which are paid for (interrupt "
                "again not to wait; Python may need a third at its end)",
                len(in_flight),
            )
            _put_again(in_flight, done)
    if error is not None:
        raise error


def ending(error: BaseException, paid: Observation) -> BaseException:
    """What to raise to end the search with an error; nothing that was paid is forgotten.

    A call that was `GivenUp` has no error of its own: the search ends for another reason.
    """
    lost = replace(paid, lost=0) if paid.paid_usd else None
    if isinstance(error, GivenUp):
        return PaidCallFailed(None, lost)
    return error if lost is None else PaidCallFailed(error, lost)


def in_threads_of(
    pool: Executor, observe: Callable[[Request], Observation]
) -> Callable[[Request, Future[Observation]], object]:
    """Starts calls in the threads of a pool, for `in_window`.

    Each runs in a copy of the context of whoever asks for it. What it sets there, such as a
    conversation, reaches no other call, as with tasks of asyncio.
    """

    def call(request: Request, future: Future[Observation]) -> None:
        with localcontext():  # else all threads have the same object of `decimal.getcontext()`
            fulfil(future, observe, request)

    return lambda request, future: pool.submit(copy_context().run, call, request, future)


def fulfil(
    future: Future[Observation], observe: Callable[[Request], Observation], request: Request
) -> None:
    """Ends a future with what a call observes or raises, unless it was cancelled before."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(observe(request))
    except BaseException as error:
        future.set_exception(error)


def _cancelled(in_flight: Iterable[Future[Observation]]) -> set[Future[Observation]]:
    """The calls that have not begun, and now never will."""
    return {future for future in in_flight if future.cancel()}


def _put_again(
    in_flight: Iterable[Future[Observation]], done: queue.SimpleQueue[Future[Observation]]
) -> None:
    """Puts the calls that are done into the queue once more.

    An interrupt that comes just when a call is taken from the queue loses the call: it is no longer
    in the queue, and in no variable yet.
    """
    for future in in_flight:
        if future.done():
            done.put(future)
