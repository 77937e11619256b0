"""scope_front: what holds of any optimizer, and what it is for."""

import math
from dataclasses import replace

import numpy as np
import pytest

from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.errors import InputError
from scope_torch.front_method import make_scope_front
from scope_torch.runs.runner import run
from scope_torch.search.hypervolume import Costs, Qualities, expected_improvement
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.testing import KnownTask, OptimizerConformance, drive


def make(problem, seed, **settings):
    return make_scope_front(problem, base=problem.llms[0][0], seed=seed, **settings)


class TestScopeFront(OptimizerConformance):
    @pytest.fixture
    def make_optimizer(self):
        return make


class TestByChanceInBatches(OptimizerConformance):
    @pytest.fixture
    def make_optimizer(self):
        return lambda problem, seed: make(problem, seed, rule="chance", batch_size=4)


def true_front(task: KnownTask) -> list[tuple[float, float]]:
    points = list(zip(task.mean_cost.tolist(), task.mean_quality.tolist(), strict=False))
    return sorted(
        p for p in points if not any(o != p and o[0] <= p[0] and o[1] >= p[1] for o in points)
    )


def at(task: KnownTask, theta: tuple[int, ...]) -> tuple[float, float]:
    index = task.problem.space.index_of(theta)
    return float(task.mean_cost[index]), float(task.mean_quality[index])


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "seed"), [("area", 0), ("chance", 1), ("chance", 2)])
def test_finds_the_exact_front(rule, seed):
    task = KnownTask.random(seed, (4, 4), 40, graded=False)
    search = make(task.problem, seed, rule=rule, widenings=3)
    told = drive(search, task, 10_000)
    ends = [row for row in search.trace if row.event in ("pruned", "completed")]
    assert len(ends) == sum(row.event == "selected" for row in search.trace)
    for row in ends:
        is_whole = sum(one.theta == row.theta_cand for one in told[: row.t]) == 40
        assert is_whole == (row.event == "completed")
    assert [at(task, theta) for theta in search.front] == true_front(task)
    assert len(told) < 0.95 * task.problem.space.size * 40
    assert search.stop_reason == "no other configuration can improve the front in these bounds"


@pytest.mark.slow
def test_asks_for_no_pair_twice():
    task = KnownTask.random(1, (4, 4), 20, graded=False)
    told = drive(make(task.problem, 0), task, 10_000)
    pairs = [(o.theta, o.query) for o in told]
    assert len(set(pairs)) == len(pairs)


@pytest.mark.slow
def test_cheap_configurations_come_first():
    """Of the money, most goes to dear configurations; of the first tenth, most to cheap ones."""
    task = KnownTask.random(4, (4, 4), 60, graded=False)
    told = drive(make(task.problem, 0), task, 10_000)
    spend = np.cumsum([o.cost_usd for o in told])
    early = [o.cost_usd for o, total in zip(told, spend, strict=False) if total < spend[-1] / 10]
    assert np.median(early) < np.median([o.cost_usd for o in told[len(early) :]])


@pytest.mark.slow
def test_theta_out_is_the_cheapest_of_the_front_that_is_good_enough():
    task = KnownTask.random(2, (4, 4), 40, graded=False)
    search = make(task.problem, 0, widenings=3)
    drive(search, task, 10_000)
    good = [theta for theta in search.front if at(task, theta)[1] >= task.problem.s_0]
    assert search.recommend().theta == good[0]
    assert at(task, good[0])[0] == pytest.approx(task.best_cost)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "own", "epsilon"), [(80, 72, 0.1), (80, 71, 0.1), (60, 57, 0.05)]
)
def test_theta_out_may_have_exactly_the_threshold(theirs, own, epsilon):
    """s_0 of 80 of 100 is 0.7200000000000001 at epsilon = 0.1, and 72 of 100 are good enough."""
    quality = (np.arange(100) < np.array([[30], [own], [theirs]])).astype(float)
    cost = np.array([[0.001], [0.002], [0.02]]) * np.ones(100)
    task = KnownTask.of(cost, quality, (2,), epsilon=epsilon)
    assert task.problem.s_0 == pytest.approx(theirs * (1 - epsilon) / 100)
    search = make(task.problem, 0)
    drive(search, task, 10_000)
    is_enough = 100 * own >= round(theirs * (100 - 100 * epsilon))
    assert search.recommend().theta == ((1,) if is_enough else (2,))


@pytest.mark.slow
def test_free_llms_do_not_stop_it():
    task = KnownTask.random(3, (3, 3), 12, graded=False)
    free = task.table.cost_usd.copy()
    free[0] = 0.0
    task = KnownTask.of(free, task.table.quality, task.problem.theta_ref)
    search = make(task.problem, 0)
    drive(search, task, 10_000)
    assert search.stop_reason is not None
    assert at(task, search.front[0])[0] == 0.0


@pytest.mark.slow
def test_a_resumed_search_goes_on_where_it_stopped(tmp_path):
    task = synthetic_task(num_queries=20)

    def go(run_dir, budget):
        search = make_scope_front(task.problem, base="small", seed=1)
        return run(task.problem, search, task.evaluator, budget, run_dir=run_dir)

    go(tmp_path / "a", 0.05)
    resumed, whole = go(tmp_path / "a", 0.3), go(tmp_path / "b", 0.3)
    assert resumed.replayed > 0
    assert [o.request for o in resumed.history] == [o.request for o in whole.history]
    assert resumed.summary()["result_hash"] == whole.summary()["result_hash"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"b": 0.0}, "b=0.0 must be a positive number"),
        ({"widenings": -1}, "widenings=-1 must be a whole number"),
        ({"widenings": math.nan}, "widenings=nan must be a whole number from 0 to 100"),
        ({"widenings": math.inf}, "widenings=inf must be a whole number"),
        ({"widenings": 1e9}, "widenings=1000000000.0 must be a whole number"),
        ({"rule": "best"}, "rule='best' must be area or chance"),
        ({"batch_size": 0}, "batch_size=0 must be a whole number"),
        ({"batch_size": math.nan}, "batch_size=nan must be a whole number >= 1, or None"),
        ({"lam": math.inf}, "lam=inf must be at least 1e-09, .* finite"),
        ({"initial_pool": "none"}, "initial_pool=none: the search starts from Calibrate"),
    ],
)
def test_settings_outside_their_range_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        make(synthetic_task().problem, 0, **settings)


def test_the_command_line_knows_it():
    cfg = compose(["task=synthetic", "method=scope_front", "method.rule=chance", "seed=3"])
    task = build(cfg.task)
    search = build(cfg.method, problem=task.problem, kernel=build(cfg.kernel), seed=cfg.seed)
    expected = make_scope_front(task.problem, base=cfg.base, rule="chance", seed=3)
    assert search.settings() == expected.settings()


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["area", "chance"])
@pytest.mark.parametrize("listed", [False, True])
def test_returns_are_those_of_one_configuration_after_another(rule, listed):
    """What each is expected to add for each USD, also where most are beaten or not allowed."""
    task = synthetic_task(num_queries=20)
    problem, size = task.problem, task.problem.space.size
    may = [i % 3 != 1 or i == size - 1 for i in range(size)] if listed else [True] * size
    if listed:
        some = [problem.space.theta_at(i) for i in range(size) if may[i]]
        problem = replace(problem, allowed=some)
    search = make(problem, 0, rule=rule)
    run(problem, search, task.evaluator, 3 * 20 * problem.reference_cost_usd)
    costs, qualities, front = search._costs, search._qualities, search._known
    expected = []
    for i in range(size):
        c, q = Costs(*(x[i] for x in costs)), Qualities(*(x[i] for x in qualities))
        left = float(search._left[i])
        lower_c, upper_q = c.mean - 3 * c.sd, min(q.mean + 3 * q.sd, q.cap)
        known = zip(front.cost, front.quality, strict=True)
        beaten = any(lower_c >= at and upper_q <= of for at, of in known)
        beaten |= bool(lower_c >= front.worst or upper_q <= 0)
        area, chance = (float(one) for one in expected_improvement(front, c, q))
        queries = min(chance * left + (1 - chance) * 2, left)
        price = queries * math.exp(c.mean + c.sd**2 / 2)
        is_open = may[i] and not beaten and left > 0
        expected.append((area if rule == "area" else chance) / price if is_open else -1.0)
    search._widened = 0
    found = search._allowed_returns().tolist()
    assert found == pytest.approx(expected, rel=1e-12)
    assert 0 < sum(value >= 0 for value in found) < size
