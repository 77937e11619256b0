"""Interrupts at the worst moments lose no call that was paid for."""

import queue
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from scope_torch.evaluators import window
from scope_torch.observation import Observation, Request

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


def interrupted(concurrency, fails_at=None):
    """The queries that are asked and those that are yielded, until the interrupt is raised."""
    made: list[int] = []
    found: list[int] = []

    def observe(request):
        made.append(request.query)
        return Observation(request.theta, request.query, cost_usd=0.01, quality=1.0)

    def submit(request):
        if request.query == fails_at:
            raise KeyboardInterrupt
        return pool.submit(observe, request)

    def pour():
        for observation in window.in_window(submit, REQUESTS, concurrency):
            found.append(observation.query)

    with ThreadPoolExecutor(concurrency) as pool, pytest.raises(KeyboardInterrupt):
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
