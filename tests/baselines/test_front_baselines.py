"""Competitors that search for the front."""

import importlib

import pytest
from botorch.acquisition.multi_objective import logei

from scope_torch.baselines.front import LogNEHVI, OptunaFront, RandomFront
from scope_torch.runs.runner import run
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.testing import KnownTask, OptimizerConformance, drive

try:
    importlib.import_module("optuna")
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True
needs_optuna = pytest.mark.skipif(not INSTALLED, reason="the extra `peers` is not installed")


@pytest.fixture(autouse=True)
def _without_a_compiler(monkeypatch):
    """Else BoTorch compiles a form of the acquisition in C++, for half a minute."""
    monkeypatch.setattr(logei, "_load_attempted", True, raising=False)


def nsga(problem, seed):
    options = {"population_size": 4}
    return OptunaFront(problem, seed=seed, sampler="NSGAIISampler", options=options, name="nsga")


class TestRandomFront(OptimizerConformance):
    @pytest.fixture
    def make_optimizer(self):
        return lambda problem, seed: RandomFront(problem, seed=seed)


@needs_optuna
class TestNSGA(OptimizerConformance):
    @pytest.fixture
    def make_optimizer(self):
        return nsga


def searches():
    optuna = [pytest.param(nsga, marks=needs_optuna)]
    return [
        lambda problem, seed: RandomFront(problem, seed=seed),
        lambda problem, seed: LogNEHVI(problem, seed=seed, num_first=3),
        lambda problem, seed: LogNEHVI(problem, seed=seed, num_first=3, per_usd=True),
        *optuna,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("make", searches())
def test_the_front_is_that_of_the_averages_and_no_pair_costs_twice(make):
    task = KnownTask.random(1, (3, 3), 6)
    search = make(task.problem, 0)
    told = drive(search, task, 24)
    pairs = [(o.theta, o.query) for o in told]
    assert len(set(pairs)) == len(pairs)
    index = {task.problem.space.index_of(theta) for theta, _ in pairs}
    cost, quality = task.mean_cost, task.mean_quality
    expected = [
        i
        for i in sorted(index, key=lambda i: cost[i])
        if not any(cost[j] <= cost[i] and quality[j] >= quality[i] for j in index if j != i)
    ]
    assert [task.problem.space.index_of(theta) for theta in search.front] == expected


def test_it_can_be_run_as_any_search():
    """What it knows are no observations of earlier searches."""
    task = synthetic_task(num_queries=4)
    search = RandomFront(task.problem, seed=0)
    result = run(task.problem, search, task.evaluator, budget_usd=9)
    assert len(result.history) == 4 * len(search.known) == 4 * 36


@pytest.mark.parametrize("make", searches()[:2])
@pytest.mark.slow
def test_ends_with_the_exact_front(make):
    task = KnownTask.random(2, (3, 2), 4)
    search = make(task.problem, 0)
    drive(search, task, 1000)
    assert len(search.known) == 6
    assert search.stop_reason == "every configuration was evaluated"


@pytest.mark.slow
def test_the_improvement_per_usd_prefers_what_is_cheaper():
    """Of the same budget, it evaluates more configurations."""
    task = KnownTask.random(4, (4, 4), 6)
    number = {}
    for per_usd in (False, True):
        search, spend = LogNEHVI(task.problem, seed=0, num_first=4, per_usd=per_usd), 0.0
        while spend < 0.5 * task.table.cost_usd.sum():
            told = [task.observe(request) for request in search.ask()]
            spend += sum(o.cost_usd for o in told)
            search.tell(told)
        number[per_usd] = len(search.known)
    assert number[True] >= number[False]
