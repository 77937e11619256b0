"""Random search, and what all dataset-level methods share."""

import json
import math

import numpy as np
import pytest
from gp_reference import best_feasible, choices, tie_key
from tables import make_task, task_of

from scope_torch.baselines.abacus import Abacus
from scope_torch.baselines.llambo import make_llambo
from scope_torch.baselines.random_search import RandomSearch
from scope_torch.errors import InputError
from scope_torch.front_method import make_scope_front
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.runs.runner import run
from scope_torch.testing import OptimizerConformance, drive


class TestRandomSearch(OptimizerConformance):
    @pytest.fixture
    def make_optimizer(self):
        return lambda problem, seed: RandomSearch(problem, seed=seed)


def ours(make):
    return lambda problem, seed: make(problem, base=[of[0] for of in problem.llms], seed=seed)


OURS = [ours(make) for make in (make_scope, make_scope_joint, make_scope_front)]


@pytest.mark.parametrize("make", [RandomSearch, Abacus, make_llambo, *OURS])
def test_a_seed_of_numpy_is_that_number(make):
    problem = make_task(2, (3, 4), 5).problem
    one, other = make(problem, seed=np.int64(3)), make(problem, seed=3)
    assert json.dumps(one.settings()) == json.dumps(other.settings())
    assert one.ask() == other.ask()


@pytest.mark.parametrize("seed", [0, 1, -5])
def test_evaluates_everything_but_the_reference_once_in_the_seeded_order(seed):
    task = make_task(2, (3, 4, 2), 5)
    optimizer = RandomSearch(task.problem, seed=seed)
    space, sizes = task.problem.space, task.sizes
    asked = [theta for _, theta in choices(optimizer, task, 100)]
    order = sorted(range(space.size), key=lambda index: tie_key(index, seed))
    codes = [(i // 8, i // 2 % 4, i % 2) for i in order]
    assert sizes == (3, 4, 2)
    assert asked == [*(c for c in codes if c != task.problem.theta_ref), None]
    assert "every configuration" in optimizer.stop_reason


def test_recommends_the_best_observed_feasible_at_every_time():
    task = make_task(3, (4, 3, 3), 8)
    optimizer = RandomSearch(task.problem, seed=4)
    changed = 0
    for done, _ in choices(optimizer, task, 40):
        expected = best_feasible(task.problem, done)[0]
        assert optimizer.recommend().theta == expected
        basis = "reference" if expected == task.problem.theta_ref else "observed"
        assert optimizer.recommend().basis == basis
        changed += bool(done) and optimizer.trace[-2].event == "improved"
    assert changed > 1
    assert optimizer.best_observed_feasible().cost_usd == pytest.approx(task.best_cost)


def test_all_queries_in_one_fixed_order():
    task = make_task(2, (3, 3), 20)
    optimizer = RandomSearch(task.problem, seed=0)
    orders = []
    for _ in range(3):
        requests = optimizer.ask()
        orders.append([request.query for request in requests])
        optimizer.tell([task.observe(request) for request in requests])
    assert sorted(orders[0]) == list(range(20))
    assert orders[0] != sorted(orders[0])
    assert orders[1] == orders[2] == orders[0]


@pytest.mark.parametrize("missing", [1, 7])
def test_an_unfinished_evaluation_is_no_observation(missing):
    task = make_task(2, (3, 3), 8)
    optimizer = RandomSearch(task.problem, seed=0)
    drive(optimizer, task, 24)
    before = (optimizer.recommend(), len(optimizer.evaluations))
    requests = optimizer.ask()
    optimizer.tell([task.observe(request) for request in requests[:-missing]])
    assert (optimizer.recommend(), len(optimizer.evaluations)) == before
    assert optimizer.t == 32 - missing
    assert list(optimizer.ask()) == []


def test_the_evaluation_that_ends_with_the_budget_counts():
    task = make_task(2, (3, 3), 8)
    watched = RandomSearch(task.problem, seed=0)
    drive(watched, task, 16)
    total = watched.spend_usd
    for budget, count in ((total * (1 - 1e-9), 2), (watched.trace[-1].from_budget_usd * 0.999, 1)):
        optimizer = RandomSearch(task.problem, seed=0)
        result = run(task.problem, optimizer, task.evaluator(), budget)
        assert len(optimizer.evaluations) == count
        assert result.stop_reason == "budget"


def test_ties_of_cost_go_to_the_earliest():
    import numpy as np

    cost = np.full((4, 1, 3), 1.0)
    cost[0] = 5.0
    task = task_of(cost, np.ones((4, 1, 3)), (0, 0))
    optimizer = RandomSearch(task.problem, seed=1)
    first = optimizer.ask()[0].theta
    drive(optimizer, task, 100)
    assert optimizer.recommend().theta == first
    assert math.isclose(optimizer.best_observed_feasible().cost_usd, 1.0)


def test_a_seed_must_fit():
    with pytest.raises(InputError, match="seed=9223372036854775808"):
        RandomSearch(make_task(2, (3, 3), 8).problem, seed=2**63)
