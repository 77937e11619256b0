"""The front after a search, against naive computations."""

import json
import math

import numpy as np
import pytest

from scope_torch.baselines.random_search import RandomSearch
from scope_torch.errors import InputError
from scope_torch.evaluators.table import TableEvaluator
from scope_torch.front_method import make_scope_front
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.results.result import RunResult
from scope_torch.runs.runner import run
from scope_torch.search.front import LOSSES, Estimates, front_of
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.testing import KnownTask

FRACTIONS = [i / 20 for i in range(1, 20)]


def make_task(seed: int = 0) -> KnownTask:
    return KnownTask.random(seed, (4, 4), 40, graded=False, epsilon=0.1)


def search_of(name: str, task: KnownTask, seed: int = 0):
    if name == "random":
        return RandomSearch(task.problem, seed=seed)
    make = {"scope": make_scope, "scope_joint": make_scope_joint, "scope_front": make_scope_front}
    return make[name](task.problem, base="llm0", seed=seed)


def found(name: str, task: KnownTask, seed: int = 0, share: float = 0.3):
    search = search_of(name, task, seed)
    budget = share * float(task.table.cost_usd.sum())
    return search, run(task.problem, search, TableEvaluator(task.table), budget)


def answers(result: RunResult) -> dict[tuple[int, ...], dict[int, tuple[float, float]]]:
    seen: dict[tuple[int, ...], dict[int, tuple[float, float]]] = {}
    for o in result.history:
        seen.setdefault(o.theta, {})[o.query] = o.cost_usd, o.quality
    return seen


def betting(qualities: list[float], threshold: float, delta: float, Q: int) -> bool:
    """Waudby-Smith and Ramdas, without replacement, retyped."""
    capital, missing = [1.0] * len(FRACTIONS), Q * threshold
    for t, x in enumerate(qualities):
        most = missing / (Q - t)
        missing -= x
        if missing <= 1e-12 * (Q - t - 1) + 1e-12:
            return True
        capital = [k * (1 + f * (x / most - 1)) for k, f in zip(capital, FRACTIONS, strict=True)]
        if sum(capital) / len(capital) >= 1 / delta:
            return True
    return False


def certified(result: RunResult, threshold: float, delta: float = 0.05) -> set[tuple[int, ...]]:
    """The configurations whose sequence certifies a threshold."""
    begun = [row for row in result.trace if row.event == "selected"]
    certified = set()
    for k, row in enumerate(begun, 1):
        end = begun[k].t if k < len(begun) else len(result.history)
        qualities = [result.history[t].quality for t in range(row.t, end)]
        share = delta / (2.11 * (k + 1) * math.log(k + 1) ** 2)
        if betting(qualities, threshold, share, result.problem.num_queries):
            certified.add(row.theta_cand)
    if result.recommendation.basis == "certified" and threshold <= result.problem.s_0:
        certified.add(result.recommendation.theta)
    return certified


@pytest.mark.parametrize("name", ["random", "scope", "scope_joint", "scope_front"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.slow
def test_the_safe_rows_are_those_of_a_naive_computation(name, seed):
    task = make_task(seed)
    search, result = found(name, task, seed)
    p, Q = task.problem, task.problem.num_queries
    seen = answers(result)
    complete = {t: np.mean(list(a.values()), 0) for t, a in seen.items() if len(a) == Q}
    safe = {r.epsilon: r for r in result.pareto().by_loss if r.basis != "estimated"}
    assert list(safe) == list(LOSSES)
    for loss, row in safe.items():
        threshold = (1 - loss) * p.reference_quality
        assert row.threshold == pytest.approx(threshold)
        costs = {t: c for t, (c, q) in complete.items() if q >= threshold - 1e-12}
        if name == "scope_joint":
            mean_c = search.estimates().mean_c
            for theta in certified(result, threshold) - costs.keys():
                costs[theta] = float(mean_c[p.space.index_of(theta)])
        least = min([p.reference_cost_usd, *costs.values()])
        assert row.cost_usd == pytest.approx(least, rel=1e-9)
        if row.basis == "observed":
            assert row.cost_interval == (row.cost_usd, row.cost_usd)
            assert task.mean_quality[p.space.index_of(row.theta)] == pytest.approx(row.quality)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scope", "scope_joint", "scope_front"])
def test_the_rows_that_look_best_are_those_of_the_means(name):
    task = make_task(1)
    search, result = found(name, task, share=0.1)
    p = task.problem
    estimates = search.estimates()
    cost, quality = estimates.mean_c.numpy(), p.s_0 - estimates.mean_g.numpy()
    rows = [row for row in result.pareto().by_loss if row.epsilon == 0.2]
    good = np.where(quality >= 0.8 * p.reference_quality - 1e-12, cost, np.inf)
    good[p.space.index_of(p.theta_ref)] = np.inf  # what it costs is known
    best = int(good.argmin())
    if rows[-1].basis == "estimated":
        assert p.space.index_of(rows[-1].theta) == best
        assert rows[-1].cost_usd == pytest.approx(cost[best])
        assert rows[-1].cost_interval[0] <= rows[-1].cost_usd <= rows[-1].cost_interval[1]
        assert rows[-1].quality_interval[0] <= rows[-1].quality <= rows[-1].quality_interval[1]
    else:
        assert rows[0].cost_usd <= good[best] * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "seed", "num_queries", "epsilon", "budget"),
    [(make_scope, 19, 20, 0.2, 1.8), (make_scope_joint, 14, 40, 0.05, 1.3)],
)
def test_the_reference_is_known_and_never_estimated(make, seed, num_queries, epsilon, budget):
    task = synthetic_task(
        num_modules=1 + seed % 2, num_queries=num_queries, world_seed=seed, epsilon=epsilon
    )
    result = run(task.problem, make(task.problem, base="nano", seed=seed), task.evaluator, budget)
    front, theta_ref = result.pareto(), task.problem.theta_ref
    rows = [row for row in (*front.by_loss, *front.points) if row.theta == theta_ref]
    assert {row.basis for row in rows} == {"reference"}


@pytest.mark.slow
def test_no_estimate_is_outside_its_interval():
    """Also where the model extrapolates to a cost below 0, as of free configurations."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        cost = np.array([0.0, 0.0003, 0.002, 0.01])[:, None] * rng.lognormal(0, 0.3, (4, 30))
        quality = rng.random((4, 30)) < np.linspace(0.4, 0.98, 4)[:, None]
        task = KnownTask.of(cost, quality.astype(float), (3,), epsilon=0.1)
        search = make_scope_joint(task.problem, base="llm0", seed=seed)
        budget = 30 * task.problem.reference_cost_usd
        front = run(task.problem, search, TableEvaluator(task.table), budget).pareto()
        estimates = search.estimates()
        assert estimates is not None
        assert float(estimates.mean_c.min()) > 0
        for row in (*front.by_loss, *front.points):
            assert row.cost_usd >= 0
            for value, interval in (
                (row.cost_usd, row.cost_interval),
                (row.quality, row.quality_interval),
            ):
                if interval is not None:
                    assert interval[0] <= value <= interval[1]


@pytest.mark.slow
def test_no_estimate_is_what_the_answers_of_its_configuration_exclude():
    """The model may expect more of the open queries than all of them right."""
    task = KnownTask.random(4, (3, 3), 12, graded=False, epsilon=0.1)
    search = make_scope_front(task.problem, base="llm0", seed=4, in_flight=16)
    budget = float(task.mean_cost.sum()) * 12 * 0.3
    result = run(task.problem, search, TableEvaluator(task.table), budget)
    mean_q = task.problem.s_0 - search.estimates().mean_g
    num_beyond = 0
    for theta, seen in answers(result).items():
        right = sum(quality for _, quality in seen.values())
        least, most = right / 12, (right + 12 - len(seen)) / 12
        num_beyond += most < 0.999 * float(mean_q[task.problem.space.index_of(theta)])
        for row in (*result.pareto().by_loss, *result.pareto().points):
            if row.theta == theta and row.basis == "estimated":
                low, high = row.quality_interval
                assert least - 1e-9 <= low <= row.quality <= high <= most + 1e-9
                assert row.threshold is None or most > row.threshold - 1e-9
    assert num_beyond


@pytest.mark.slow
def test_the_points_are_those_that_no_other_beats():
    task = make_task(2)
    search, result = found("scope_joint", task)
    p, estimates = task.problem, search.estimates()
    points = {p.theta_ref: (p.reference_cost_usd, p.reference_quality)}
    for theta, seen in answers(result).items():
        at = p.space.index_of(theta)
        cost, quality = float(estimates.mean_c[at]), p.s_0 - float(estimates.mean_g[at])
        if len(seen) == p.num_queries:
            cost, quality = np.mean(list(seen.values()), 0)
        if theta != p.theta_ref:
            points[theta] = max(0.0, cost), min(1.0, max(0.0, quality))
    expected = {
        t
        for t, (c, q) in points.items()
        if not any((a, b) != (c, q) and a <= c and b >= q for a, b in points.values())
    }
    assert {row.theta for row in result.pareto().points} == expected


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 20))]
)
def test_certified_rows_are_true(seed):
    """At delta = 0.05, 20 searches with 7 thresholds each; the chance of two errors is 0.26."""
    task = make_task(seed)
    _, result = found("scope_joint", task, seed)
    for row in result.pareto().by_loss:
        if row.basis == "certified":
            at = task.problem.space.index_of(row.theta)
            assert task.mean_quality[at] >= row.threshold - 1e-12


@pytest.mark.slow
@pytest.mark.usefixtures("as_if_drawn")
def test_answers_that_flip_leave_theta_out_alone_certified():
    task = make_task(0)
    search = make_scope_joint(task.problem, base="llm0", seed=0, certificate_flips=0.01)
    budget = 0.5 * float(task.table.cost_usd.sum())
    result = run(task.problem, search, TableEvaluator(task.table), budget)
    rows = result.pareto().by_loss
    assert {row.basis for row in rows} <= {"reference", "certified", "estimated"}
    certified_rows = {row.theta for row in rows if row.basis == "certified"}
    assert certified_rows <= {result.recommendation.theta}
    assert "observed" not in {row.basis for row in result.pareto().points}


@pytest.mark.slow
def test_a_space_that_is_not_enumerated_has_no_row_that_looks_best():
    task = make_task(0)
    search = make_scope_joint(task.problem, base="llm0", seed=0, space_search="branch_and_bound")
    budget = 0.3 * float(task.table.cost_usd.sum())
    result = run(task.problem, search, TableEvaluator(task.table), budget)
    estimates = search.estimates()
    assert isinstance(estimates, Estimates)
    assert estimates.mean_c is None
    assert {row.basis for row in result.pareto().by_loss} <= {"reference", "observed", "certified"}


@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_a_search_that_ended_in_calibrate_has_no_estimates(make):
    task = make_task(0)
    search = make(task.problem, base="llm0", seed=0)
    result = run(task.problem, search, TableEvaluator(task.table), 1e-9)
    assert search.estimates() is None
    assert [row.basis for row in result.pareto().by_loss] == ["reference"] * len(LOSSES)


@pytest.mark.slow
def test_result_json_has_the_table(tmp_path):
    task = make_task(0)
    budget = 0.2 * float(task.table.cost_usd.sum())
    search = search_of("scope_joint", task)
    result = run(task.problem, search, TableEvaluator(task.table), budget, run_dir=tmp_path / "a")
    written = json.loads((tmp_path / "a/result.json").read_text())["pareto"]
    by_loss = result.pareto().by_loss
    assert [row["basis"] for row in written["by_loss"]] == [row.basis for row in by_loss]
    assert [row["epsilon"] for row in written["by_loss"]] == [row.epsilon for row in by_loss]
    assert written["by_loss"][0]["llms"] == by_loss[0].llms
    assert written["points"][-1]["quality"] == result.pareto().points[-1].quality
    assert "epsilon" not in written["points"][0]
    text = str(result.pareto())
    assert text.splitlines()[1].startswith("   0%  ")


@pytest.mark.slow
def test_other_losses_can_be_asked_for():
    task = make_task(0)
    search, result = found("scope_joint", task)
    table = front_of(task.problem, search, result.history, losses=(0.5,))
    assert {row.epsilon for row in table.by_loss} == {0.5}
    assert table.by_loss[0].threshold == pytest.approx(0.5 * task.problem.reference_quality)


def test_a_result_without_its_front_says_so():
    task = make_task(0)
    _, result = found("random", task)
    values = {name: value for name, value in result.__dict__.items() if name != "front"}
    with pytest.raises(InputError, match="this result has no front"):
        RunResult(**values).pareto()
