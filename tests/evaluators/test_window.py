"""Interrupts at the worst moments lose no call that was paid for."""

import contextlib
import dis
import queue
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from tables import make_task

from scope_torch.evaluators import window
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.observation import Observation, Request
from scope_torch.runs.journal import Journal
from scope_torch.runs.source import ObservationSource

REQUESTS = [Request((0,), query) for query in range(12)]


class Interrupted:
    """A queue whose `get` is interrupted once: it has taken a call, and has not returned it."""

    at = 1

    def __init__(self) -> None:
        self._queue, self._gets = queue.SimpleQueue(), 0
        self.put = self._queue.put

    def get(self, timeout: float) -> object:
        taken = self._queue.get(timeout=timeout)
        self._gets += 1
        if self._gets == self.at:
            raise KeyboardInterrupt
        return taken


def interrupted(concurrency, fails_at=None, late=False, error=KeyboardInterrupt):
    """The queries that are asked and those that are yielded, until the interrupt is raised."""
    made: list[int] = []
    found: list[int] = []

    def observe(request):
        made.append(request.query)
        return Observation(request.theta, request.query, cost_usd=0.01, quality=1.0)

    def start(request, future):
        if request.query == fails_at and not late:
            raise error
        pool.submit(window.fulfil, future, observe, request)
        if request.query == fails_at:
            raise error

    def pour():
        for observation in window.in_window(start, REQUESTS, concurrency):
            found.append(observation.query)

    with ThreadPoolExecutor(concurrency) as pool, pytest.raises(error):
        pour()
    return sorted(made), sorted(found)


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("at", [1, 3])
def test_a_call_that_an_interrupt_takes_from_the_queue_is_yielded(monkeypatch, concurrency, at):
    monkeypatch.setattr(Interrupted, "at", at)
    patched = SimpleNamespace(SimpleQueue=Interrupted, Empty=queue.Empty)
    monkeypatch.setattr(window, "queue", patched)
    made, found = interrupted(concurrency)
    assert found == made
    assert 0 < len(made) < len(REQUESTS)


def test_an_interrupt_while_a_call_is_started_waits_for_those_in_flight():
    made, found = interrupted(4, fails_at=6)
    assert found == made == list(range(6))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_call_that_was_started_just_before_an_error_is_waited_for_or_never_begins(error):
    made, found = interrupted(4, fails_at=6, late=True, error=error)
    assert found == made
    assert made in (list(range(6)), list(range(7)))


# Python looks for signals after a call, where a function starts, and where a loop begins anew.
LOOKS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "RESUME", "JUMP_BACKWARD"}
WATCHED = {
    function.__code__
    for function in (
        window.in_window,
        ObservationSource.observe,
        ObservationSource._keep,
        ObservationSource._keep_late,
        Journal.append,
        Journal.flush,
        Journal._write,
    )
}


class InterruptAt:
    """Traces the functions that keep books, and sends Ctrl-C where Python looks the n-th time."""

    def __init__(self, number: int) -> None:
        self.left, self._before = number, {}

    def __call__(self, frame, event, _):
        if frame.f_code not in WATCHED:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before, now = self._before.get(frame), frame.f_code.co_code[frame.f_lasti]
            self._before[frame] = dis.opname[now]
            if before in LOOKS:
                self.left -= 1
                if self.left == 0:
                    signal.raise_signal(signal.SIGINT)
        return self


def kept_and_made(path: Path, number: int) -> tuple[list[int], list[int], bool]:
    """The queries in the journal of an interrupted search, and those that were paid for."""
    made: list[int] = []
    problem = make_task(1, (2,), 5).problem

    def system(_, query):
        made.append(query)
        return 1.0, 0.01

    evaluator = FunctionEvaluator(problem, system, range(5), concurrency=2)
    with contextlib.closing(Journal(path)) as journal:
        observations = ObservationSource(evaluator, journal).observe(REQUESTS[:5])
        interrupt = InterruptAt(number)
        sys.settrace(interrupt)
        try:
            for _ in observations:
                pass
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        observations.close()
    with contextlib.closing(Journal(path)) as journal:  # it refuses lines that are there twice
        return sorted(o.query for o in journal.recorded), sorted(made), interrupt.left <= 0


@pytest.mark.slow
def test_an_interrupt_at_any_moment_loses_no_call_and_writes_none_twice(tmp_path):
    number = 0
    while True:
        number += 1
        kept, made, was_interrupted = kept_and_made(tmp_path / f"{number}.jsonl", number)
        assert kept == made, f"interrupt {number}"
        if not was_interrupted:
            break
    assert kept == list(range(5))
    assert number > 100
