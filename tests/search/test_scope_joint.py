"""scope_joint: what holds of any optimizer, and what it is for."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tables import make_task

from scope_torch.bounds import CredibleBounds
from scope_torch.errors import InputError
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.runs.runner import run
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.testing import OptimizerConformance


class TestScopeJoint(OptimizerConformance):
    @pytest.fixture
    def make_optimizer(self):
        def make(problem, seed):
            base = problem.llms[0][0]
            return make_scope_joint(problem, base=base, seed=seed, device="cpu")

        return make


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_finds_the_optimum_for_less_than_scope(seed):
    task = synthetic_task()
    cost, quality = (truth.flatten() for truth in task.evaluator.truth())
    feasible = quality >= task.problem.s_0 - 1e-12
    spent = {}
    for make in (make_scope, make_scope_joint):
        optimizer = make(task.problem, base="small", seed=seed, device="cpu")
        run(task.problem, optimizer, task.evaluator, budget_usd=6.0)
        spent[make] = optimizer.spend_usd
        at = int(task.problem.space.rank(torch.tensor(optimizer.recommend().theta)))
        assert feasible[at]
    assert cost[at] <= 1.1 * cost[feasible].min()  # of scope_joint
    assert spent[make_scope_joint] < spent[make_scope]


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_what_is_certified_is_feasible_at_any_batch_size(batch_size):
    task = make_task(3, (4, 3), 12, graded=False)
    optimizer = make_scope_joint(task.problem, base="llm0", batch_size=batch_size, device="cpu")
    while requests := optimizer.ask():
        optimizer.tell([task.observe(request) for request in requests])
    recommended = optimizer.recommend()
    assert recommended.basis == "certified"
    at = int(task.problem.space.rank(torch.tensor(recommended.theta)))
    assert task.mean_quality[at] >= task.problem.s_0 - 1e-12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"b": 0.0}, "b=0.0 must be a positive number"),
        ({"b": 2.0, "b_certify": math.nan}, "b_certify=nan must be"),
        ({"widenings": -1}, "widenings=-1 must be a whole number from 0 to 100"),
        ({"widenings": math.nan}, "widenings=nan must be a whole number"),
        ({"widenings": 0.5}, "widenings=0.5 must be a whole number"),
        ({"widenings": 1e9}, "widenings=1000000000.0 must be a whole number from 0 to 100"),
    ],
)
def test_wrong_standard_deviations(arguments, message):
    with pytest.raises(InputError, match=message):
        CredibleBounds(**arguments)


@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lam": math.inf}, "lam=inf must be at least 1e-09, as in the paper, and finite"),
        ({"batch_size": math.nan}, "batch_size=nan must be a whole number >= 1, or None"),
        ({"seed": math.nan}, "seed=nan must be a whole number"),
        ({"seed": math.inf}, "seed=inf must be a whole number"),
        ({"seed": "1"}, "seed=1 must be a whole number"),
        ({"max_nodes": math.nan, "space_search": "branch_and_bound"}, "max_nodes=nan must be a"),
        ({"max_nodes": math.inf, "space_search": "branch_and_bound"}, "max_nodes=inf must be a"),
        ({"bounds": {"mode": "theory", "R_c": 1e200}}, "lam=inf must be at least 1e-09"),
    ],
)
def test_no_number_that_is_none_gets_into_a_search(make, settings, message):
    problem = make_task(3, (4, 3), 12).problem
    theory = {"rho": 0.5} if "bounds" in settings and make is make_scope_joint else {}
    with pytest.raises(InputError, match=message):
        make(problem, base="llm0", device="cpu", **settings, **theory)


@pytest.mark.parametrize("budget_usd", [0.0, -1.0, math.nan, math.inf])
def test_a_budget_is_a_positive_number(budget_usd):
    problem = make_task(3, (4, 3), 12).problem
    with pytest.raises(InputError, match=f"budget_usd={budget_usd} must be a positive number"):
        make_scope_joint(problem, base="llm0", budget_usd=budget_usd)


def test_whole_numbers_may_be_of_numpy_or_floats():
    problem = make_task(3, (4, 3), 12).problem
    for size in (4.0, np.int64(4), np.float64(4)):
        search = make_scope_joint(problem, base="llm0", batch_size=size)
        assert type(search.batch_size) is int
        fewer = replace(problem, num_queries=size, reference_answers=None)
        assert make_scope_joint(fewer, base="llm0").ask()


def test_costs_need_calibrate():
    problem = make_task(3, (4, 3), 12).problem
    with pytest.raises(InputError, match="initial_pool=none: the scale of costs is fitted"):
        make_scope_joint(problem, initial_pool="none", device="cpu")


@pytest.mark.slow
def test_the_search_goes_on_with_wider_bounds_where_nothing_was_left():
    """b, then 1.5 b, then 2.25 b; until the first of them the search is the one without."""
    task = make_task(6, (6, 5), 16, graded=False)
    traces, cost = {}, {}
    for widenings in (0, 2):
        bounds = {"b": 1.0, "widenings": widenings}
        optimizer = make_scope_joint(
            task.problem, base="llm0", bounds=bounds, device="cpu", verify=0
        )
        while requests := optimizer.ask():
            optimizer.tell([task.observe(request) for request in requests])
        assert optimizer.report()["widened"] == widenings
        assert optimizer.belief.bounds.beta(1).g == pytest.approx(1.5**widenings)
        at = int(task.problem.space.rank(torch.tensor(optimizer.recommend().theta)))
        traces[widenings], cost[widenings] = optimizer.trace, task.mean_cost[at]
    until = [row.event for row in traces[2]].index("widened")
    assert traces[2][:until] == traces[0][:-1]
    assert traces[0][-1].event == "stopped"
    assert [row.event for row in traces[2]].count("widened") == 2
    assert cost[2] == task.best_cost < cost[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("free", [{0, 1, 2, 3}, {0, 1, 2}, {0, 2}, {3}])
def test_free_llms_beat_the_reference(free, seed):
    """Also if every observation is free: c(theta_0) is then the only cost that is known."""
    task = make_task(3, (4, 3), 12, graded=False)
    price = [
        0.0 if llm in free else task.problem.reference_cost_usd * 2.0**-llm for llm in range(4)
    ]

    def observe(request):
        return replace(task.observe(request), cost_usd=sum(price[llm] for llm in request.theta))

    optimizer = make_scope_joint(task.problem, base="llm0", seed=seed, device="cpu")
    while requests := optimizer.ask():
        optimizer.tell([observe(request) for request in requests])
    recommended = optimizer.recommend()
    space = task.problem.space
    feasible = [t for t in np.ndindex(*space.sizes) if quality_at(task, t) >= task.problem.s_0]
    assert recommended.basis == "certified"
    assert recommended.theta in feasible
    assert recommended.u_out_usd < 0.5 * task.problem.reference_cost_usd
    costs = [sum(price[llm] for llm in theta) for theta in feasible]
    assert sum(price[llm] for llm in recommended.theta) == min(costs)


def quality_at(task, theta):
    return task.table.quality[theta].mean() + 1e-12
