"""Small random tasks with a known truth, shared by the tests of the algorithms and the runner."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from composed import compose_scope

from scope_torch.bounds import TunedBounds
from scope_torch.observation import Observation, Request
from scope_torch.search.scope import SCOPE
from scope_torch.testing.problems import KnownTask


class Task(KnownTask):
    """A known task, and SCOPE on it."""

    def budget(self, evaluations: float) -> float:
        """Cost of that many complete evaluations of an average configuration, in USD."""
        return float(evaluations * self.table.cost_usd.mean() * len(self.table.queries))

    def scope(self, seed: int = 0, **settings) -> SCOPE:
        """SCOPE with tuned bounds and the base that costs least."""
        bounds = settings.pop("bounds", None) or TunedBounds(self.problem)
        base = None if settings.get("initial_pool", "base") != "base" else self.base
        return compose_scope(self.problem, bounds, seed=seed, base=base, device="cpu", **settings)

    def coarse(self, seed: int = 0, **settings) -> SCOPE:
        return self.scope(seed, initial_pool="none", prune=False, name="scope-coarse", **settings)

    def rand(self, seed: int = 0, **settings) -> SCOPE:
        return self.scope(seed, initial_pool="random", name="scope-rand", **settings)


make_task = functools.cache(Task.random)
task_of = Task.of


class Crash(Exception):
    """Raised by `CountingEvaluator`."""


class CountingEvaluator:
    """Counts what is paid for, answers in a shuffled order, and crashes on demand.

    Args:
        task: Gives the values.
        concurrency: Requests in flight.
        crash_after: Observations made before it raises `Crash`; None for never.
    """

    def __init__(self, task: Task, concurrency: int = 1, crash_after: int | None = None) -> None:
        self.task, self.concurrency, self.crash_after = task, concurrency, crash_after
        self.paid: Counter[Request] = Counter()
        self.in_flight: list[int] = []

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        waiting, in_flight = iter(requests), []
        rng = random.Random(self.paid.total())
        while True:
            in_flight += itertools.islice(waiting, self.concurrency - len(in_flight))
            self.in_flight.append(len(in_flight))
            if not in_flight:
                return
            request = in_flight.pop(rng.randrange(len(in_flight)))
            if self.paid.total() == self.crash_after:
                raise Crash(f"on {request}")
            self.paid[request] += 1
            yield self.task.observe(request)

    def truth(self):
        return self.task.evaluator().truth()

    def fingerprint(self) -> str:
        return "counting"


def check_a_crash(search, task, whole, run_dir, after):
    """A search that dies goes on to the same result, and pays for nothing twice.

    Args:
        search: Runs it with an evaluator in a folder.
        task: What is searched.
        whole: The result of the search that did not die.
        run_dir: An empty folder.
        after: Answers before the crash.
    """
    crashing = CountingEvaluator(task, 6, crash_after=after)
    with pytest.raises(Crash):
        search(crashing, run_dir)
    rest = CountingEvaluator(task, 6)
    resumed = search(rest, run_dir)
    assert list(resumed.history) == list(whole.history)
    assert resumed.trace == whole.trace
    assert not set(rest.paid) & set(crashing.paid)
    assert sum((crashing.paid + rest.paid).values()) == len(whole.history)
