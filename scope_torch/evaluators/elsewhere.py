"""Calls of an application and its metric on an executor: in other processes, on other machines.

Only the functions travel, with their arguments, and what they return comes home. Prices, bills,
retries, kept outputs and the endpoint stay here.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import pickle
import platform
import reprlib
import secrets
import signal
import threading
import time
import traceback
import urllib.parse
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from functools import lru_cache, partial
from types import TracebackType
from typing import Any

from scope_torch.errors import InputError
from scope_torch.evaluators.calling import called, in_place_of
from scope_torch.observation import Observation
from scope_torch.serve.current import IN_FLIGHT
from scope_torch.serve.headers import is_loopback

try:
    import cloudpickle
except ImportError:  # then a function must be importable
    cloudpickle = None

logger = logging.getLogger(__name__)

Call = Callable[..., tuple[Any, float]]  # as a function, and says how many seconds it took
Made = Executor | Callable[[], Executor]

MOST_LOST = 3  # times that a call is asked again because its worker was lost
PAUSE_S = 0.5  # before that


class WorkerLost(Exception):
    """A call did not come home: its worker ended, or could not be reached."""


def asked_again(call: Callable[[], Any], lose: Callable[[WorkerLost], object]) -> Any:
    """What a call returns; it is called again if its worker was lost, which `lose` is told.

    Raises:
        InputError: If that happens again and again.
    """
    lost: WorkerLost | None = None
    for _ in range(1 + MOST_LOST):
        try:
            return call()
        except WorkerLost as error:
            lose(lost := error)
    raise InputError(
        f"executor= lost the worker of one call {1 + MOST_LOST} times ({lost}): see its log, and "
        "whether a worker has the memory that a call needs, and scope-torch installed"
    ) from lost


def timed(function: Callable[..., Any]) -> Call:
    """A function, called here.

    Examples:
        >>> value, seconds = timed(max)(1, 2)
        >>> value, seconds >= 0
        (2, True)
    """

    def call(*arguments: Any, **keywords: Any) -> tuple[Any, float]:
        began = time.perf_counter()
        value = called(function, *arguments, **keywords)
        return value, time.perf_counter() - began

    return call


class Elsewhere:
    """Calls functions on an executor; a context manager.

    Args:
        executor: A `concurrent.futures.Executor`, or a function that makes one. What is made here
            is replaced when it breaks, and shut down at the end.

    Attributes:
        lost: Calls whose worker was lost, with what the endpoint knows that they have cost.

    Examples:
        >>> with Elsewhere(partial(ThreadPoolExecutor, 2)) as elsewhere:
        ...     elsewhere.function("app", max)(1, 2)[0]
        2
    """

    def __init__(self, executor: Made) -> None:
        is_there = isinstance(executor, Executor)
        self._make: Callable[[], Executor] | None = None if is_there else executor
        self._executor: Executor | None = executor if is_there else None
        self._lock = threading.Lock()
        self._broken: Executor | None = None
        self.lost: list[Observation] = []
        self._num_taken = 0

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if self._make is not None and self._executor is not None:
            # After an interrupt nobody waits for a call that hangs.
            self._executor.shutdown(wait=not isinstance(error, KeyboardInterrupt))
            self._executor = None

    def function(self, name: str, function: Callable[..., Any]) -> Call:
        """A function, called on the executor.

        Raises:
            InputError: If it cannot be sent there.
        """
        content = self.check(
            f"{name}={getattr(function, '__qualname__', function)!s:.80}", function
        )

        def call(*arguments: Any, **keywords: Any) -> tuple[Any, float]:
            return self._called(name, function, content, arguments, keywords)

        return call

    def check(self, name: str, value: Any) -> bytes:
        """What is sent of a value.

        Args:
            name: Of the value, in the message.
            value: Any.

        Raises:
            InputError: If it cannot be sent.
        """
        if isinstance(self._executor, ThreadPoolExecutor):  # of this process
            return b""
        try:
            return _dumped(value)
        except Exception as error:
            if isinstance(self._running(), ThreadPoolExecutor):
                return b""
            more = "" if cloudpickle else ", or pip install cloudpickle, which also sends a lambda"
            raise InputError(
                f"{name} cannot be sent to the workers of executor= ({error}); give an importable "
                f"function, plain data, and clients that are made inside the function{more}"
            ) from error

    def take_lost(self) -> list[Observation]:
        """See `LosesCalls`."""
        taken = self.lost[self._num_taken :]
        self._num_taken += len(taken)
        return taken

    def _called(
        self,
        name: str,
        function: Callable[..., Any],
        content: bytes,
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
    ) -> tuple[Any, float]:
        executor = self._running()
        if isinstance(executor, ThreadPoolExecutor):
            run = contextvars.copy_context().run  # it knows the query in flight
            return self._submitted(executor, partial(run, timed(function)), *arguments, **keywords)
        what = _dumped((arguments, keywords, IN_FLIGHT.get()))
        # Dask takes a second call with equal arguments for the first one.
        unique = secrets.token_hex(8)
        answer = self._submitted(executor, _run, name, content, what, _place(), unique)
        return _unpacked(name, answer)

    def _submitted(
        self, executor: Executor, function: Callable[..., Any], *arguments: Any, **keywords: Any
    ) -> Any:
        """What comes home.

        Raises:
            WorkerLost: If nothing does.
            InputError: If the executor takes no calls.
        """
        try:
            with _deaf_to_interrupts():  # so are the workers that this starts
                future: Future[Any] = executor.submit(function, *arguments, **keywords)
        except BrokenExecutor as error:  # the call has not begun
            self._replace(executor, error)
            return self._submitted(self._running(), function, *arguments, **keywords)
        except RuntimeError as error:
            raise InputError(
                f"executor={executor!r:.80} takes no calls ({error}); keep it open until the "
                "search has ended"
            ) from error
        try:
            return future.result()
        except Exception as error:  # `_run` returns what a function raises
            if isinstance(executor, ThreadPoolExecutor):
                raise
            if isinstance(error, BrokenExecutor) and self._make is not None:
                self._replace(executor, error)
            raise WorkerLost(f"{type(error).__name__}: {error}") from error

    def _running(self) -> Executor:
        with self._lock:
            if self._executor is None:
                assert self._make is not None
                made = self._make()
                if not isinstance(made, Executor) or made is self._broken:
                    raise InputError(
                        f"executor={self._make!r:.80} made {made!r:.80}; it must make a new "
                        "concurrent.futures.Executor each time"
                    )
                self._executor = made
            return self._executor

    def _replace(self, broken: Executor, error: BrokenExecutor) -> None:
        """Forgets an executor that takes no more calls; whoever asks next makes another one.

        Raises:
            InputError: If nobody can make another one.
        """
        if self._make is None:
            raise InputError(
                f"executor={broken!r:.80} broke, and its calls in flight with it ({error}); give a "
                "function that makes one, such as functools.partial(ProcessPoolExecutor, 8): then "
                "another one takes its place"
            ) from error
        with self._lock:
            if self._executor is broken:
                self._executor, self._broken = None, broken
                broken.shutdown(wait=False)


def _dumped(value: Any) -> bytes:
    """By value where cloudpickle can, because a worker elsewhere cannot import `__main__`."""
    if cloudpickle is not None:
        with contextlib.suppress(Exception):
            return cloudpickle.dumps(value)
    return pickle.dumps(value)


@lru_cache(maxsize=8)
def _loaded(content: bytes) -> Any:
    """Once for each process: a function may keep a client."""
    return pickle.loads(content)


def _run(name: str, content: bytes, what: bytes, home: tuple[str, int], unique: str) -> bytes:
    """Calls a function in a worker; what it returns or raises, and its seconds."""
    here = _place()
    del unique
    if here != home:
        _leave_interrupts_to_the_search()
    try:
        function = _loaded(content)
        arguments, keywords, query = pickle.loads(what)
    except Exception as error:
        return _packed(name, error=_not_loaded(name, error))
    if query is not None and here[0] != home[0]:
        host = urllib.parse.urlsplit(query.base_url).hostname or ""
        if is_loopback(host):
            return _packed(name, error=_not_reached(host, home[0]))
    context = contextvars.copy_context()
    context.run(IN_FLIGHT.set, query)
    try:
        value, seconds = context.run(timed(function), *arguments, **keywords)
    except BaseException as error:
        error.add_note(f"on {platform.node()}: {traceback.format_exc()}")
        return _packed(name, error=error)
    return _packed(name, value, seconds)


def _place() -> tuple[str, int]:
    """Machine and process."""
    return platform.node(), os.getpid()


@contextlib.contextmanager
def _deaf_to_interrupts() -> Generator[None, None, None]:
    """A thread whose new processes never hear of Ctrl-C, which ends those that still start."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_interrupts_to_the_search() -> None:
    """Ctrl-C reaches all processes of a terminal; the search waits for its calls, which go on."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _packed(
    name: str, value: Any = None, seconds: float = 0.0, error: BaseException | None = None
) -> bytes:
    try:
        content = _dumped((value, seconds, error))
        if error is not None:
            pickle.loads(content)  # an exception may take other arguments than it keeps
        return content
    except Exception as failure:
        if error is None:
            told: Exception = InputError(
                f"the {name} returned {reprlib.repr(value)}, which cannot be sent home from a "
                f"worker ({failure}); return plain data"
            )
            with contextlib.suppress(Exception):  # what it says to have cost is lost otherwise
                pickle.dumps(cost := _cost_in(value))
                told.refused_answer = cost  # type: ignore[attr-defined]
        else:
            told = in_place_of(error, f"{type(error).__name__}: {error}")
            for note in error.__notes__:
                told.add_note(note)
        return pickle.dumps((None, 0.0, told))


def _cost_in(value: Any) -> dict[str, Any]:
    """What of an answer says its cost, as `told_usd` reads it."""
    if isinstance(value, Mapping):
        said = ("cost_usd", "module_cost_usd", "tokens", "seconds")
        return {name: value[name] for name in said if name in value}
    if isinstance(value, tuple | list) and len(value) == 2:
        return {"tokens" if isinstance(value[1], Mapping) else "cost_usd": value[1]}
    return {}


def _unpacked(name: str, answer: bytes) -> tuple[Any, float]:
    try:
        value, seconds, error = pickle.loads(answer)
    except Exception as failure:
        raise InputError(
            f"what the {name} returned in a worker cannot be read here ({failure}); return plain "
            "data"
        ) from failure
    if error is not None:
        raise error
    return value, seconds


def _not_loaded(name: str, error: Exception) -> InputError:
    return InputError(
        f"a worker of executor= on {platform.node()} cannot load the {name} "
        f"({type(error).__name__}: {error}); install what it imports on each worker"
    )


def _not_reached(host: str, home: str) -> InputError:
    return InputError(
        f"the endpoint listens on {host} of {home}, which a worker on {platform.node()} cannot "
        "reach; give endpoint=Endpoint(your address, host=the address of this machine, "
        "token=a secret), and use the token as the key of the application's client"
    )
