"""SCOPE's closed forms, its gap, its stops and what it refuses."""

import math

import naive
import numpy as np
import pytest
import torch
from tables import CountingEvaluator, Task, make_task, task_of

from scope_torch.bounds import Beta, TunedBounds
from scope_torch.errors import InputError
from scope_torch.history import Observation
from scope_torch.kernels import HammingMatern52Kernel
from scope_torch.runner import run
from scope_torch.scope import SCOPE, _Candidate
from scope_torch.space import ConfigSpace
from scope_torch.surrogate import QuerySurrogate

SPACE, Q, S_0, LAM = ConfigSpace((3, 2, 3)), 5, 0.6, 1e-4


def surrogate_of(history: list[naive.Record]) -> QuerySurrogate:
    surrogate = QuerySurrogate(SPACE, HammingMatern52Kernel(), Q, LAM)
    for record in history:
        surrogate.observe(*record)
    return surrogate


def random_records(rng: np.random.Generator, count: int, theta=None) -> list[naive.Record]:
    """Observations of random pairs, or of one configuration; few queries, so that some repeat."""
    records = []
    for _ in range(count):
        at = theta or tuple(int(rng.integers(size)) for size in SPACE.sizes)
        records.append((at, int(rng.integers(Q)), rng.lognormal(), S_0 - rng.random()))
    return records


@pytest.mark.parametrize("seed", range(6))
def test_inner_updates_equal_a_fit_from_scratch(seed):
    rng = np.random.default_rng(seed)
    history = random_records(rng, 8 * seed)
    theta = (2, 1, 0) if seed % 2 or not history else history[0][0]
    candidate = _Candidate(surrogate_of(history), theta)
    beta = Beta(c=0.7 * math.sqrt(Q), g=0.3 * math.sqrt(Q))
    for record in random_records(rng, 15, theta):
        history.append(record)
        observation = Observation(theta, record[1], record[2], S_0 - record[3])
        candidate.update(observation, S_0, LAM)
        at = surrogate_of(history).at(theta)
        sigma = math.sqrt(at.variance.sum()) / Q
        fast = [candidate.lower_c(beta), candidate.upper_c(beta)]
        fast += [candidate.lower_g(beta), candidate.upper_g(beta)]
        c, g = float(at.mean_c.mean()), float(at.mean_g.mean())
        half = (beta.c * sigma, beta.g * sigma)
        np.testing.assert_allclose(
            fast, [c - half[0], c + half[0], g - half[1], g + half[1]], rtol=1e-10, atol=1e-10
        )
        c, g, variance = naive.aggregate(history, np.array([theta]), Q, LAM, naive.matern52)
        half = (beta.c * np.sqrt(variance), beta.g * np.sqrt(variance))
        slow = np.concatenate([c - half[0], c + half[0], g - half[1], g + half[1]])
        np.testing.assert_allclose(fast, slow, rtol=1e-10, atol=1e-10)


def test_queries_are_sorted_by_uncertainty_with_ties_in_random_order():
    theta, far, order = (0, 0, 0), (0, 0, 1), [3, 1, 4, 0, 2]
    assert _Candidate(surrogate_of([]), theta).by_uncertainty(order) == order
    seen = [(theta, 4, 1.0, 0.1), (theta, 3, 1.0, 0.1), (theta, 3, 2.0, 0.1), (far, 1, 1.0, 0.1)]
    assert _Candidate(surrogate_of(seen), theta).by_uncertainty(order) == [0, 2, 1, 4, 3]


def permuted(task: Task, seed: int) -> tuple[Task, list[np.ndarray]]:
    """The same task with the LLMs of every module listed in another order; new code -> old."""
    rng = np.random.default_rng(seed)
    old = [rng.permutation(size) for size in task.sizes]
    cost, quality = (
        values[np.ix_(*old, range(values.shape[-1]))]
        for values in (task.table.cost_usd, task.table.quality)
    )
    reference = tuple(
        int(np.flatnonzero(codes == code)[0])
        for codes, code in zip(old, task.problem.theta_ref, strict=True)
    )
    return task_of(cost, quality, reference), old


@pytest.mark.parametrize("graded", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_the_order_in_which_llms_are_listed_decides_nothing_but_ties(seed, graded):
    task = make_task(seed, (4, 3, 4), 9, graded)
    other, old = permuted(task, seed)

    def observed(at: Task, base: tuple[int, ...]) -> list:
        optimizer = SCOPE(at.problem, TunedBounds(at.problem), seed=seed, base=base, device="cpu")
        result = run(at.problem, optimizer, at.evaluator(), task.budget(6.5))
        assert result.stop_reason == "budget"
        assert result.recommendation.gap_usd >= 0
        return [(o.theta, o.query) for o in result.history]

    base = tuple(int(np.flatnonzero(codes == 0)[0]) for codes in old)
    mapped = [
        (tuple(int(codes[code]) for codes, code in zip(old, theta, strict=True)), q)
        for theta, q in observed(other, base)
    ]
    original = observed(task, task.base)
    assert sorted(mapped[:9]) == sorted(original[:9])  # Calibrate's first round, in another order
    if graded:  # no ties in quality, and every LLM was observed: the same run
        t_0 = 9 + 5 + 6 + 8 + 1
        assert sorted(mapped[:t_0]) == sorted(original[:t_0])
        assert mapped[t_0:] == original[t_0:]


class Watched(SCOPE):
    """Notes whether the bounds hold at every time at which they are computed over Theta."""

    held = True
    truth: Task

    def _posterior(self):
        mean_c, mean_g, sigma = super()._posterior()
        beta, problem = self.bounds.beta(self._j_max), self.problem
        g = problem.s_0 - torch.from_numpy(self.truth.mean_quality)
        holds_c = (torch.from_numpy(self.truth.mean_cost) - mean_c).abs() <= beta.c * sigma
        self.held &= bool((holds_c & ((g - mean_g).abs() <= beta.g * sigma)).all())
        return mean_c, mean_g, sigma


class GivenBounds(TunedBounds):
    """Half-widths that are there before `fit`."""

    def __init__(self, problem, b_g: float, b_c: float) -> None:
        super().__init__(problem, b_g=b_g, b_c=b_c)
        self._b = Beta(b_c, b_g)


def watched(task: Task, seed: int, **settings) -> Watched:
    bounds = GivenBounds(task.problem, 2.5, 3 * task.problem.reference_cost_usd)
    optimizer = Watched(
        task.problem, bounds, seed=seed, base=task.base, lam=1e-4, device="cpu", **settings
    )
    optimizer.truth = task
    return optimizer


def true_cost(task: Task, theta: tuple[int, ...]) -> float:
    return float(task.table.cost_usd[theta].mean())


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_gap_and_certificate_are_valid_while_the_bounds_hold(seed, batch_size):
    task = make_task(seed, (3, 3), 6, graded=bool(seed % 2))
    optimizer = watched(task, seed, batch_size=batch_size)
    result = run(task.problem, optimizer, task.evaluator(), task.budget(30))
    assert optimizer.held
    rows = [row for row in result.trace if row.gap_usd is not None]
    assert len(rows) > 20
    for row in rows:
        assert row.gap_usd >= true_cost(task, row.theta_out) - task.best_cost
        assert row.u_out_usd >= true_cost(task, row.theta_out)
        if row.theta_out != task.problem.theta_ref:
            assert task.table.quality[row.theta_out].mean() >= task.problem.s_0
    assert result.recommendation.theta != task.problem.theta_ref
    assert rows[-1].gap_usd < 0.5 * rows[0].gap_usd


def test_gap_tolerance_stops_the_same_run_early():
    task = make_task(1, (3, 3), 6)
    budget = task.budget(30)
    full = run(task.problem, watched(task, 1), task.evaluator(), budget)
    tight = run(task.problem, watched(task, 1, gap_tolerance=1e-12), task.evaluator(), budget)
    early = run(task.problem, watched(task, 1, gap_tolerance=0.5), task.evaluator(), budget)
    assert list(tight.history) == list(full.history)
    assert 0 < len(early.history) < len(full.history)
    assert list(early.history) == list(full.history)[: len(early.history)]
    assert early.stop_reason == "optimality gap within gap_tolerance"
    assert early.trace[-1].event == "stopped"
    out = early.recommendation
    assert out.gap_usd <= 0.5 * out.u_out_usd
    assert true_cost(task, out.theta) - task.best_cost <= out.gap_usd
    earlier = [row for row in early.trace[:-2] if row.event == "selected"]
    assert all(row.gap_usd > 0.5 * row.u_out_usd for row in earlier)


@pytest.mark.parametrize("batch_size", [1, 2, None])
@pytest.mark.parametrize("make", [Task.scope, Task.rand, Task.coarse])
@pytest.mark.parametrize("all_free", [False, True])
def test_a_search_with_free_configurations_ends(make, batch_size, all_free):
    cost = np.array(make_task(2, (3, 3), 5).table.cost_usd)
    quality = make_task(2, (3, 3), 5).table.quality.clip(0.55, 1.0)
    cost[:, 0], quality[:, 0] = 0.0, 0.9
    if all_free:
        cost[:] = 0.0
        cost[2, 2] = 1e-3
    task = task_of(cost, quality, (2, 2))
    optimizer = make(task, 0, batch_size=batch_size)
    evaluator = CountingEvaluator(task, crash_after=500)
    result = run(task.problem, optimizer, evaluator, task.budget(1000))
    assert "free" in result.stop_reason
    assert true_cost(task, result.recommendation.theta) == 0
    assert result.recommendation.basis == "certified"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"alpha": 0.0}, "alpha=0.0 must lie in"),
        ({"alpha": 0.5}, "alpha=0.5 must lie in"),
        ({"alpha": math.nan}, "alpha=nan must lie in"),
        ({"batch_size": 0}, "batch_size=0 must be a whole number >= 1"),
        ({"gap_tolerance": -0.1}, "gap_tolerance=-0.1 must be at least 0"),
        ({"gap_tolerance": math.nan}, "gap_tolerance=nan"),
        ({"initial_pool": "half"}, "initial_pool='half' must be base, random or none"),
        ({"base": None}, "base=None: Calibrate needs a base LLM"),
        ({"base": (0, 9)}, r"base=\[0, 9\] is not a configuration"),
        ({"base": (0,)}, r"base=\[0\] is not a configuration"),
        ({"lam": 0.0}, "lam=0.0 must be at least 1e-09"),
        ({"lam": math.nan}, "lam=nan must be at least"),
    ],
)
def test_refuses_settings_outside_their_range(settings, words):
    problem = make_task(0, (3, 3), 4).problem
    settings = {"base": (0, 0), "device": "cpu", **settings}
    with pytest.raises(InputError, match=words):
        SCOPE(problem, TunedBounds(problem), seed=0, **settings)


def test_refuses_a_space_too_large_to_enumerate():
    problem = make_task(0, (3, 3), 4).problem
    modules = tuple(f"m{i}" for i in range(9))
    llms = (tuple("abcdefghij"),) * 9
    values = {**vars(problem), "modules": modules, "llms": llms, "theta_ref": (0,) * 9}
    huge = type(problem)(**values)
    with pytest.raises(InputError, match="1e\\+09 configurations are more than"):
        SCOPE(huge, TunedBounds(huge), seed=0, base=(0,) * 9, device="cpu")


def test_a_device_makes_no_difference(device):
    task = make_task(1, (4, 3), 6)
    runs = []
    for at in ("cpu", device):
        bounds = TunedBounds(task.problem)
        optimizer = SCOPE(task.problem, bounds, seed=1, base=task.base, device=at)
        runs.append(run(task.problem, optimizer, task.evaluator(), task.budget(6.5)))
    assert list(runs[0].history) == list(runs[1].history)
    assert runs[0].recommendation.theta == runs[1].recommendation.theta
