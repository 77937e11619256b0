"""Many calls in flight, no more than some number at a time."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

from scope_torch.observation import Observation, Request

logger = logging.getLogger(__name__)

_LOOK_S = 0.2  # between two looks at whether the user has interrupted


def in_window(
    submit: Callable[[Request], Future[Observation]],
    requests: Iterable[Request],
    concurrency: int,
) -> Iterator[Observation]:
    """Observations of all requests, as they come in.

    A request is taken from `requests` only when there is room for it, so whoever feeds them can
    stop at any time. If a call raises, or the user interrupts, no further one is started; those in
    flight are waited for and yielded, because they are paid for; then the error is raised. A second
    interrupt does not wait.

    Args:
        submit: Starts a call.
        requests: What to observe.
        concurrency: Calls in flight at a time.
    """
    done: queue.SimpleQueue[Future[Observation]] = queue.SimpleQueue()
    waiting = iter(requests)
    in_flight, error = 0, None
    while True:
        while error is None and in_flight < concurrency:
            request = next(waiting, None)
            if request is None:
                break
            submit(request).add_done_callback(done.put)
            in_flight += 1
        if in_flight == 0:
            break
        try:
            # Not for ever: polars has an interrupted wait started again, instead of ended.
            future = done.get(timeout=_LOOK_S)
        except queue.Empty:
            continue
        except KeyboardInterrupt as interrupt:
            if isinstance(error, KeyboardInterrupt):
                raise
            error = interrupt
            logger.warning(
                "interrupted; waiting for the %d calls in flight, which are paid for (interrupt "
                "again not to wait)",
                in_flight,
            )
            continue
        in_flight -= 1
        if failure := future.exception():
            error = error or failure
        else:
            yield future.result()
    if error is not None:
        raise error
