"""scope_front drops an LLM whose calls keep failing: for one call at a time, and in flight."""

from dataclasses import replace

import pytest
from tables import CountingEvaluator, check_a_crash, make_task
from test_front_in_flight import check_turns, driven

from scope_torch.front_method import make_scope_front
from scope_torch.observation import Observation
from scope_torch.runs.runner import run
from scope_torch.search.failing import FailingLLMs
from scope_torch.testing import drive

TASK = make_task(3, (3, 3), 24, False)
PROBLEM = TASK.problem
FIRST = {(0, 0)}
ALL = {(module, 0) for module in range(2)}
RANDOM = {"initial_pool": "random", "base": None}


def uses(theta, broken):
    return not broken.isdisjoint(enumerate(theta))


class Broken:
    """The task; calls of some LLMs, as (module, code), fail."""

    def __init__(self, broken, task=TASK):
        self.broken, self.task, self.problem = broken, task, task.problem
        self.evaluator = task.evaluator

    def observe(self, request):
        if uses(request.theta, self.broken):
            return Observation(*request[:2], 0.0, 0.0, request.replicate, failed="app")
        return self.task.observe(request)


def make(problem=PROBLEM, of_base=0, **settings):
    base = [llms[of_base] for llms in problem.llms]
    return make_scope_front(problem, **{"base": base, "seed": 1, **settings})


def searched(evaluator, run_dir=None, **settings):
    return run(PROBLEM, make(**settings), evaluator, 1e6, run_dir=run_dir)


def asked_in_vain(history, problem=PROBLEM):
    """How many calls were made of LLMs that the answers before them had dropped."""
    failing, number = FailingLLMs(problem), 0
    for observation in history:
        number += failing.is_dropped(observation.theta)
        failing.record(observation)
    return number


@pytest.mark.slow
@pytest.mark.parametrize("broken", [FIRST, ALL])
@pytest.mark.parametrize("settings", [{}, {"batch_size": 4}, {"in_flight": 6}, RANDOM])
def test_the_search_goes_on_without_them(broken, settings):
    result = searched(CountingEvaluator(Broken(broken)), **settings)
    assert result.dropped == {PROBLEM.modules[module]: ["llm0"] for module, _ in broken}
    assert result.report["dropped"] == result.dropped
    failed = [one for one in result.history if one.failed]
    assert len(failed) < len(result.history) / 3
    assert not any(uses(PROBLEM.codes([*llms.values()]), broken) for llms in result.report["front"])
    rows = [*result.pareto().by_loss, *result.pareto().points]
    assert not any(uses(row.theta, broken) for row in rows)
    assert len(result.pareto().points) > 1
    assert not uses(result.recommendation.theta, broken)
    for first, second, told in result.table().select("module0", "module1", "status").rows():
        codes = int(first[-1]), int(second[-1])
        assert (told == "dropped: its calls fail") is uses(codes, broken)


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "most"), [({}, 0), ({"batch_size": 4}, 3)])
def test_the_turn_of_one_that_is_dropped_ends(settings, most):
    optimizer = make(of_base=-1, **settings)  # so it is dropped after Calibrate
    told = drive(optimizer, Broken(FIRST), 10_000)
    assert optimizer.stop_reason
    assert asked_in_vain(told) <= most
    check_turns(optimizer, told)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [FIRST, ALL])
@pytest.mark.parametrize("in_flight", [2, 6, 16])
def test_so_do_those_of_all_open_candidates_that_use_it(broken, in_flight):
    task = Broken(broken, make_task(2, (4, 4), 40, False))
    optimizer = make(task.problem, of_base=-1, in_flight=in_flight)
    told, _ = driven(optimizer, task)
    assert optimizer.stop_reason
    assert asked_in_vain(told, task.problem) <= optimizer.lag
    assert len({(one.theta, one.query) for one in told}) == len(told)
    check_turns(optimizer, told)


@pytest.mark.slow
@pytest.mark.parametrize("in_flight", [1, 6])
def test_what_is_dropped_is_not_recommended_any_more(in_flight):
    """From the answer on that drops it, not only from the end of its turn on."""
    optimizer = make(of_base=-1, in_flight=in_flight)
    task, failing = Broken(FIRST), FailingLLMs(PROBLEM)
    before: set[tuple[int, ...]] = set()
    while requests := optimizer.ask():
        before.update(optimizer.front)
        answers = [task.observe(request) for request in requests]
        optimizer.tell(answers)
        for answer in answers:
            failing.record(answer)
        recommended = [*optimizer.front, optimizer.recommend().theta]
        assert not any(map(failing.is_dropped, recommended))
    assert any(uses(theta, FIRST) for theta in before)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"batch_size": 4}, {"in_flight": 6}])
def test_one_search_in_any_order_of_arrival_and_after_any_crash(settings, tmp_path):
    task = Broken(ALL)
    whole = searched(CountingEvaluator(task), **settings)
    many = searched(CountingEvaluator(task, 16), **settings)
    assert list(many.history) == list(whole.history)
    assert many.trace == whole.trace

    def search(evaluator, run_dir):
        return searched(evaluator, run_dir, **settings)

    for after in (7, 60):
        check_a_crash(search, task, whole, tmp_path / str(after), after)


def test_a_pool_of_nothing_else_is_drawn_anew():
    """Otherwise Calibrate tells the model nothing about answers that do not fail."""

    class CheapWithTheReference(Broken):  # so Calibrate keeps the two with one LLM that works
        def observe(self, request):
            answer = super().observe(request)
            works = uses(request.theta, set(enumerate(PROBLEM.theta_ref)))
            return replace(answer, cost_usd=answer.cost_usd if works else 1.0)

    optimizer = make()
    told = drive(optimizer, CheapWithTheReference(ALL), 10_000)
    calibrated = next(row.t for row in optimizer.trace if row.event == "calibrated")
    assert not all(one.failed for one in told[:calibrated])
    assert sum(bool(one.failed) for one in told) == 5 + 3 + 4 + 4  # of the first pool alone
