"""Evaluators of recorded tables and of functions."""

import asyncio
import queue
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tables import Task, make_task

from scope_torch.errors import InputError
from scope_torch.evaluators import window
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.llm.prices import LLMInfo
from scope_torch.observation import Observation, Request
from scope_torch.testing import EvaluatorConformance
from scope_torch.testing.problems import names, table_of

TASK = make_task(1, (3, 2), 4)


class TestTableEvaluator(EvaluatorConformance):
    @pytest.fixture
    def make_evaluator(self):
        return Task.evaluator

    def test_another_table_has_another_fingerprint(self, task):
        cost, quality = task.table.cost_usd, task.table.quality
        more = np.array(cost)
        more[0, 0, 0] += 1e-12
        tables = [table_of(cost, quality), table_of(more, quality), table_of(cost, 1 - quality)]
        renamed = RecordedTable(("a", "b"), task.table.llms, task.table.queries, cost, quality)
        assert len({TableEvaluator(t).fingerprint() for t in [*tables, renamed]}) == 4


def system_of(task: Task):
    """The task's table as a callable on names."""

    def system(assignment: dict[str, str], query: str) -> tuple[float, float]:
        theta = task.problem.codes(list(assignment.values()))
        observation = task.observe(Request(theta, task.table.queries.index(query)))
        return observation.quality, observation.cost_usd

    return system


def function_evaluator(task: Task, system=None, **settings) -> FunctionEvaluator:
    system = system or system_of(task)
    return FunctionEvaluator(task.problem, system, task.table.queries, **settings)


class TestFunctionEvaluator(EvaluatorConformance):
    @pytest.fixture(params=[1, 4])
    def make_evaluator(self, request):
        return lambda task: function_evaluator(task, concurrency=request.param)


def constant(quality, cost):
    """A system that always gives the same."""

    def system(assignment, query):
        return quality, cost

    return system


def test_function_evaluator_refuses_wrong_settings():
    with pytest.raises(InputError, match="3 queries given, the problem has 4"):
        FunctionEvaluator(TASK.problem, system_of(TASK), ["a", "b", "c"])
    with pytest.raises(InputError, match="concurrency=0 must be at least 1"):
        function_evaluator(TASK, concurrency=0)


def test_a_fingerprint_tells_systems_and_queries_apart():
    def fingerprint(queries, **arguments):
        return FunctionEvaluator(TASK.problem, system_of(TASK), queries, **arguments).fingerprint()

    assert fingerprint(["a", "b", "c", "d"]) == fingerprint(("a", "b", "c", "d"))
    assert fingerprint(["a", "b", "c", "d"]) != fingerprint(["b", "a", "c", "d"])
    assert fingerprint(["a", "b", "c", "d"]) != fingerprint(["a", "b", "c", "d"], name="new")
    assert fingerprint([object()] * 4) == fingerprint([object()] * 4)  # not plain data


def test_function_evaluator_gives_numbers_of_any_kind_as_floats():
    evaluator = function_evaluator(TASK, constant(True, np.float32(0.25)))
    (observation,) = evaluator.evaluate([Request((0, 0), 0)])
    assert (observation.quality, observation.cost_usd) == (1.0, 0.25)
    assert Observation.from_json(observation.to_json()) == observation


@pytest.mark.parametrize(("quality", "cost"), [(1.5, 0.1), (0.5, -0.1), (float("nan"), 0.1)])
def test_function_evaluator_refuses_values_out_of_range(quality, cost):
    evaluator = function_evaluator(TASK, constant(quality, cost))
    with pytest.raises(InputError, match=r"theta=\[0, 1\], query=3"):
        list(evaluator.evaluate([Request((0, 1), 3)]))


class Rehearsed:
    """A system that waits for all calls of the first batch, then fails or returns by query."""

    def __init__(self, task: Task, concurrency: int, failing: set[int]) -> None:
        self.system, self.queries = system_of(task), list(task.table.queries)
        self.failing, self.calls = failing, []
        self.together = threading.Barrier(concurrency)
        self.failed = threading.Event()

    def __call__(self, assignment, query):
        number = self.queries.index(query)
        self.calls.append(number)
        self.together.wait(timeout=30)
        if number in self.failing:
            self.failed.set()
            raise RuntimeError(f"provider down on query {number}")
        self.failed.wait(timeout=30)
        time.sleep(0.02 * number)
        return self.system(assignment, query)


def collect(iterator, error) -> list[Observation]:
    """What is yielded before the error that must end it."""
    observations: list[Observation] = []

    def pour() -> None:
        for observation in iterator:
            observations.append(observation)

    with pytest.raises(error):
        pour()
    return observations


@pytest.mark.parametrize("failing", [{0}, {1}, {2}, {0, 2}])
def test_after_a_failure_calls_in_flight_are_kept_and_no_other_is_started(failing):
    system = Rehearsed(TASK, 3, failing)
    evaluator = function_evaluator(TASK, system, concurrency=3)
    requests = [Request((0, 0), q) for q in (0, 1, 2, 3)]
    requests += [Request((1, 0), q) for q in (0, 1, 2, 3)]
    observations = collect(evaluator.evaluate(requests[:3]), RuntimeError)
    assert {o.query for o in observations} == {0, 1, 2} - failing
    assert observations == [TASK.observe(o.request) for o in observations]
    assert sorted(system.calls) == [0, 1, 2]


def test_after_a_failure_waiting_calls_are_cancelled():
    calls = []

    def system(assignment, query):
        calls.append(query)
        if len(calls) == 2:
            raise RuntimeError("provider down")
        time.sleep(0.05)
        return 0.5, 0.1

    evaluator = function_evaluator(TASK, system, concurrency=1)
    requests = [Request(theta, q) for theta in np.ndindex(3, 2) for q in range(4)]
    observations = collect(evaluator.evaluate(requests), RuntimeError)
    assert len(calls) < len(requests)
    assert len(observations) == len(calls) - 1  # all that was paid for, but for the failure


def test_a_reader_that_stops_early_starts_no_further_call():
    calls = []

    def system(assignment, query):
        calls.append(query)
        time.sleep(0.01)
        return 0.5, 0.1

    evaluator = function_evaluator(TASK, system, concurrency=1)
    requests = [Request(theta, q) for theta in np.ndindex(3, 2) for q in range(4)]
    observations = evaluator.evaluate(requests)
    next(observations)
    observations.close()
    assert len(calls) < len(requests)


def test_an_interrupt_waits_for_the_calls_in_flight(monkeypatch):
    class Interrupted(queue.SimpleQueue):
        waits = 0

        def get(self, timeout):
            Interrupted.waits += 1
            if Interrupted.waits == 2:
                raise KeyboardInterrupt
            return super().get()

    # Only there: the threads of the pool wait on queues of their own.
    monkeypatch.setattr(
        window, "queue", SimpleNamespace(SimpleQueue=Interrupted, Empty=queue.Empty)
    )
    system = Rehearsed(TASK, 3, set())
    system.failed.set()
    evaluator = function_evaluator(TASK, system, concurrency=3)
    requests = [Request((0, 0), q) for q in range(3)]
    observations = collect(evaluator.evaluate(requests), KeyboardInterrupt)
    assert sorted(o.query for o in observations) == [0, 1, 2]


def test_requests_are_taken_as_there_is_room():
    """Whoever feeds them can stop, and only what was taken is paid for."""
    taken, stop = [], threading.Event()

    def feed():
        for q in range(4):
            if stop.is_set():
                return
            taken.append(q)
            yield Request((0, 0), q)

    evaluator = function_evaluator(TASK, lambda *_: (0.5, 0.1), concurrency=2)
    observations = evaluator.evaluate(feed())
    first = next(observations)
    assert taken == [0, 1]
    stop.set()
    assert {o.query for o in [first, *observations]} == {0, 1}


async def graded(assignment, query):
    await asyncio.sleep(0)
    return 0.25, {"module0": (100, 10), "module1": (50, 0)}


def test_tokens_are_priced_and_a_system_may_be_async():
    prices = {f"llm{i}": LLMInfo(f"llm{i}", 1.0 + i, 10.0 * (1 + i)) for i in range(3)}
    problem, queries = TASK.problem, list(range(TASK.problem.num_queries))
    evaluator = FunctionEvaluator(problem, graded, queries, prices=prices)
    (observed,) = evaluator.evaluate([Request((2, 1), 0)])
    costs = (100 * 3 + 10 * 30) / 1e6, (50 * 2 + 0) / 1e6
    assert observed.module_cost_usd == pytest.approx(costs)
    assert observed.cost_usd == pytest.approx(sum(costs))
    assert observed.module_tokens == ((100, 10), (50, 0))
    assert observed.quality == 0.25
    with pytest.raises(InputError, match="give FunctionEvaluator prices"):
        list(FunctionEvaluator(problem, graded, queries).evaluate([Request((2, 1), 0)]))
    with pytest.raises(InputError, match="no price is known for LLM 'llm2'"):
        FunctionEvaluator(problem, graded, queries, prices={k: prices[k] for k in list(prices)[:2]})


def test_tokens_of_an_unknown_module_are_refused():
    prices = {f"llm{i}": LLMInfo(f"llm{i}", 1.0, 1.0) for i in range(3)}
    evaluator = FunctionEvaluator(
        TASK.problem, lambda *_: (1.0, {"typo": (1, 1)}), list(range(4)), prices=prices
    )
    with pytest.raises(InputError, match=r"tokens in \['typo'\]"):
        list(evaluator.evaluate([Request((0, 0), 0)]))


def table(**changed) -> RecordedTable:
    modules, llms = names((2, 2))
    values = {"modules": modules, "llms": llms, "queries": ("q0", "q1", "q2")}
    values |= {"cost_usd": np.full((2, 2, 3), 0.5), "quality": np.full((2, 2, 3), 0.5)}
    return RecordedTable(**{**values, **changed})


@pytest.mark.parametrize("what", ["cost_usd", "quality"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.25, 1.5])
def test_a_table_names_the_cell_that_is_wrong(what, value):
    values = np.full((2, 2, 3), 0.5)
    values[1, 0, 2] = value
    if (what, value) == ("cost_usd", 1.5):
        table(cost_usd=values)
        return
    with pytest.raises(InputError) as caught:
        table(**{what: values})
    for word in (f"{what}={value}", "'module0': 'llm1'", "'module1': 'llm0'", "query q2"):
        assert word in str(caught.value)


@pytest.mark.parametrize("shape", [(2, 2), (2, 2, 4), (2, 3, 3), (2, 2, 3, 1)])
@pytest.mark.parametrize("what", ["cost_usd", "quality"])
def test_a_table_refuses_shapes_that_do_not_fit(what, shape):
    with pytest.raises(InputError, match=rf"{what} has shape .* expected \(2, 2, 3\)"):
        table(**{what: np.zeros(shape)})


@pytest.mark.parametrize("make", [np.ndarray.tolist, torch.from_numpy, np.float32])
def test_a_table_takes_numbers_in_any_form(make):
    cost = np.arange(12, dtype=np.float64).reshape(2, 2, 3) / 8
    told = make(cost)
    made, same = table(cost_usd=told, outcomes={"seconds": told}), table(cost_usd=cost)
    assert made.problem("t", ["llm1", "llm1"], 0.1) == same.problem("t", ["llm1", "llm1"], 0.1)
    for one, other in zip(TableEvaluator(made).truth(), TableEvaluator(same).truth(), strict=True):
        assert one.dtype == torch.float64
        assert torch.equal(one, other)


def test_a_table_refuses_what_is_no_array_of_numbers():
    for wrong in ([[1.0], [1.0, 2.0]], "many", None):
        with pytest.raises(InputError, match="cost_usd"):
            table(cost_usd=wrong)


def test_a_table_accepts_the_ends_of_the_ranges():
    made = table(cost_usd=np.zeros((2, 2, 3)), quality=np.ones((2, 2, 3)))
    assert made.space.sizes == (2, 2)
    with pytest.raises(InputError, match="free reference"):
        made.problem("free", ["llm0", "llm0"], 0.1)
