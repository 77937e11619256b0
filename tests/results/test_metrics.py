"""c_bf and V against brute force, and the meaning of theta_out at a budget (sec:exp)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tables import Task, make_task, task_of

from scope_torch.results.metrics import (
    OracleCurve,
    best_feasible,
    is_feasible,
    optimal_cost,
    oracle_curve,
)
from scope_torch.runs.finished import first_within
from scope_torch.runs.runner import run
from scope_torch.search.optimizer import TraceRow
from scope_torch.tasks.synthetic import synthetic_task

S_0 = 0.6


def random_curve(seed: int, steps: int) -> OracleCurve:
    rng = np.random.default_rng(seed)
    budget = np.concatenate([[0.0], np.sort(rng.uniform(0.01, 2.0, steps - 1))])
    quality = rng.uniform(0.4, 0.8, steps)
    quality[0] = max(quality[0], S_0)  # theta_0
    return OracleCurve(budget, rng.lognormal(size=steps), quality, S_0)


def step_at(curve: OracleCurve, budget: float) -> int:
    return max(n for n, start in enumerate(curve.budget_usd) if start <= budget)


def brute_best_feasible_cost(curve: OracleCurve, budget: float) -> float:
    steps = range(step_at(curve, budget) + 1)
    return min((curve.cost_usd[n] for n in steps if curve.quality[n] >= S_0), default=np.inf)


def brute_violation(curve: OracleCurve, budget: float, cells: int = 20_000) -> float:
    """Midpoint rule over a fine grid of budgets."""
    middle = (np.arange(cells) + 0.5) * budget / cells
    at = (middle[:, None] >= curve.budget_usd).sum(1) - 1
    return float(np.mean(np.maximum(S_0 - curve.quality[at], 0) / S_0))


@pytest.mark.parametrize("steps", [1, 2, 5, 12])
@pytest.mark.parametrize("seed", range(3))
def test_metrics_equal_brute_force(seed, steps):
    curve = random_curve(seed, steps)
    budgets = np.random.default_rng(seed).uniform(0, 3, 15)
    best, violation = curve.best_feasible_cost(budgets), curve.violation(budgets)
    assert best.shape == violation.shape == budgets.shape
    for n, budget in enumerate(budgets):
        assert best[n] == brute_best_feasible_cost(curve, budget)
        assert violation[n] == pytest.approx(brute_violation(curve, budget), abs=steps / 20_000)
        assert curve.best_feasible_cost(budget) == best[n]
        assert curve.violation(budget) == violation[n]


def test_a_curve_computed_by_hand():
    curve = OracleCurve(
        np.array([0.0, 1.0, 3.0, 4.0]),
        np.array([9.0, 5.0, 7.0, 6.0]),
        np.array([0.7, 0.3, 0.6, 0.8]),
        S_0,
    )
    budgets = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0])
    assert curve.best_feasible_cost(budgets).tolist() == [9, 9, 9, 9, 7, 6, 6]
    expected = [0, 0, 0, 0.5 * 1 / 2, 0.5 * 2 / 3, 0.5 * 2 / 4, 0.5 * 2 / 6]
    np.testing.assert_allclose(curve.violation(budgets), expected, rtol=1e-15)
    assert curve.violation(budgets.reshape(7, 1)).shape == (7, 1)


def test_violation_is_zero_at_zero_even_from_an_infeasible_start():
    curve = OracleCurve(np.array([0.0, 1.0]), np.ones(2), np.array([0.1, 0.9]), S_0)
    assert curve.violation(0.0) == 0
    assert curve.violation(1e-12) == pytest.approx(0.5 / 0.6)
    assert curve.best_feasible_cost(0.5) == np.inf
    assert curve.best_feasible_cost(1.0) == 1


@pytest.mark.slow
@given(st.integers(0, 1000), st.integers(1, 8))
def test_best_feasible_cost_never_rises_and_violation_is_a_fraction(seed, steps):
    curve, budgets = random_curve(seed, steps), np.linspace(0, 3, 40)
    assert (np.diff(curve.best_feasible_cost(budgets)) <= 0).all()
    violation = curve.violation(budgets)
    assert ((violation >= 0) & (violation <= 1)).all()


def row(from_budget: float, spend: float, theta: tuple[int, ...]) -> TraceRow:
    return TraceRow(1, from_budget, spend, "improved", theta)


def test_the_curve_starts_at_theta_0_and_changes_from_the_least_budget_that_gets_there():
    problem = make_task(0, (2, 2), 3).problem
    truth = (torch.arange(4.0).double(), torch.arange(4.0).double() / 10)
    one, two = (t for t in [(0, 1), (1, 0), (1, 1), (0, 0)][:3] if t != problem.theta_ref)
    trace = [row(0.5, 0.7, one), row(0.9, 1.0, one), row(0.9, 1.2, two), row(2.0, 2.5, one)]
    curve = oracle_curve(problem, trace, truth)
    rank = [2 * theta[0] + theta[1] for theta in (problem.theta_ref, one, two, one)]
    at = np.searchsorted(curve.budget_usd, [0.0, 0.4, 0.5, 0.8, 0.9, 1.9, 2.0, 9.0], "right") - 1
    steps = [0, 0, 1, 1, 2, 2, 3, 3]
    assert curve.cost_usd[at].tolist() == [rank[step] for step in steps]
    assert curve.quality[at].tolist() == [rank[step] / 10 for step in steps]
    empty = oracle_curve(problem, [], truth)
    assert empty.budget_usd.tolist() == [0.0]
    assert empty.cost_usd.tolist() == [rank[0]]


def free_cells(task: Task) -> Task:
    """A quarter of the observations, and all those of one query, cost nothing."""
    rng = np.random.default_rng(0)
    cost = np.where(rng.random(task.table.cost_usd.shape) < 0.25, 0.0, task.table.cost_usd)
    cost[..., 1] = 0.0
    return task_of(cost, task.table.quality, task.problem.theta_ref)


CASES = {
    "graded": (make_task(1, (3, 3), 6), Task.scope, {}),
    "zero-one": (make_task(7, (3, 3), 6, graded=False), Task.scope, {"batch_size": 3}),
    "rand": (make_task(2, (3, 2), 5), Task.rand, {}),
    "coarse": (make_task(4, (4, 2), 5), Task.coarse, {"batch_size": None}),
    "free": (free_cells(make_task(10, (3, 3), 6)), Task.scope, {}),
    "to the letter": (make_task(1, (3, 3), 6), Task.scope, {"gap_tolerance": None}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_curve_gives_what_a_run_with_that_budget_returns(case):
    task, make, settings = CASES[case]

    def search(budget: float):
        return run(task.problem, make(task, 1, **settings), task.evaluator(), budget)

    whole = search(task.budget(8))
    curve, spends = whole.curve, np.cumsum([o.cost_usd for o in whole.history])
    changes = curve.budget_usd[1:]
    assert len(changes) >= 1
    rng = np.random.default_rng(0)
    budgets = [*rng.uniform(0, whole.budget_usd, 6), *rng.choice(spends[:-1], 4), *changes[-4:]]
    budgets += [np.nextafter(b, 0) for b in changes[-2:]]
    for budget in {float(b) for b in budgets if 0 < b <= whole.budget_usd}:
        short = search(budget)
        at = np.searchsorted(curve.budget_usd, budget, side="right") - 1
        theta = short.recommendation.theta
        assert task.table.cost_usd[theta].mean() == curve.cost_usd[at]
        assert task.table.quality[theta].mean() == curve.quality[at]
        assert list(short.history) == list(whole.history)[: len(short.history)]
        assert short.curve.best_feasible_cost(budget) == curve.best_feasible_cost(budget)
        assert short.curve.violation(budget) == pytest.approx(curve.violation(budget), rel=1e-12)


def test_the_end_of_the_curve_is_the_recommendation():
    task = make_task(1, (3, 3), 6)
    result = run(task.problem, task.scope(1), task.evaluator(), task.budget(8))
    theta = result.recommendation.theta
    assert result.curve.cost_usd[-1] == task.table.cost_usd[theta].mean()
    assert result.summary()["true_cost_usd"] == result.curve.cost_usd[-1]
    assert result.summary()["true_quality"] == result.curve.quality[-1]
    assert result.summary()["optimal_cost_usd"] == pytest.approx(task.best_cost)
    assert result.summary()["feasible"]


def test_the_paper_deploys_the_configuration_of_best_feasible_cost():
    """Not the last theta_out, which may be infeasible or dearer."""
    problem = make_task(0, (2, 2), 3).problem
    everything = map(problem.space.theta_at, range(4))
    thetas = cheap, poor, dear = [theta for theta in everything if theta != problem.theta_ref]
    cost, quality = torch.full((4,), 9.0).double(), torch.full((4,), problem.s_0).double()
    for theta, (c, s) in zip(thetas, [(2.0, 0.0), (1.0, -0.1), (3.0, 0.0)], strict=True):
        cost[problem.space.index_of(theta)] = c
        quality[problem.space.index_of(theta)] += s
    trace = [row(0.5, 0.7, cheap), row(0.9, 1.0, poor), row(1.2, 1.4, dear)]
    curve = oracle_curve(problem, trace, (cost, quality))
    assert best_feasible(problem, trace, (cost, quality)) == cheap
    assert curve.best_feasible_cost(2.0) == 2.0
    assert best_feasible(problem, trace[1:], (cost, quality)) == dear
    assert best_feasible(problem, [], (cost, quality)) == problem.theta_ref


def test_the_least_budget_that_comes_near():
    budget, cost = np.array([0.0, 1.0, 2.0, 3.0]), np.array([9.0, 1.0, 2.0, 1.0])
    curve = OracleCurve(
        budget, cost, np.array([0.7, 0.5, 0.7, 0.7]), S_0
    )  # the second is infeasible
    assert first_within(curve, 2.0, 10.0) == 2.0
    assert first_within(curve, 1.5, 10.0) == 3.0
    assert first_within(curve, 1.5, 2.5) is None
    assert first_within(curve, 0.5, 10.0) is None


def test_an_average_at_the_threshold_is_feasible():
    """0.99 of 100 of 156 is 99 of 156, but not in float64."""
    s_0, quality = (1 - 0.01) * (100 / 156), 99 / 156
    assert quality < s_0
    curve = OracleCurve.from_steps({0.0: (2.0, 0.7), 1.0: (1.0, quality)}, s_0=s_0)
    assert curve.feasible.tolist() == [True, True]
    assert curve.best_feasible_cost(2.0) == 1.0
    assert curve.violation(2.0) == 0.0
    problem = replace(
        synthetic_task().problem,
        reference_quality=100 / 156,
        reference_answers=None,
        epsilon=0.01,
        num_queries=156,
    )
    assert is_feasible(problem, (1.0, quality))
    assert not is_feasible(problem, (1.0, 98 / 156))
    cost = torch.full((problem.space.size,), 2.0, dtype=torch.float64)
    s = torch.zeros_like(cost)
    cost[3], s[3] = 1.0, quality
    assert optimal_cost(problem, (cost, s)) == 1.0


def test_an_outcome_at_its_bound_is_feasible():
    """A search may certify it: the truth must not say otherwise."""
    problem = replace(synthetic_task().problem, constraints=["latency_s <= 0.2 cap 1"])
    latency = float(np.mean([0.1, 0.2, 0.3]))
    assert latency > 0.2
    assert is_feasible(problem, (1.0, 1.0, latency))
    assert not is_feasible(problem, (1.0, 1.0, 0.2001))
    cost = torch.full((problem.space.size,), 2.0, dtype=torch.float64)
    seconds = torch.ones_like(cost)
    cost[3], seconds[3] = 1.0, latency
    assert optimal_cost(problem, (cost, torch.ones_like(cost), seconds)) == 1.0
    steps = {0.0: (2.0, 1.0, 0.1), 1.0: (1.0, 1.0, latency)}
    curve = OracleCurve.from_steps(steps, problem.s_0, problem.others)
    assert curve.feasible.tolist() == [True, True]
