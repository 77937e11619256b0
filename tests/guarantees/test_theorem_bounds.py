"""cla:bounds by simulation: with the paper's beta all confidence bounds hold at once.

Functions of known RKHS norm and noise of known sub-Gaussian constant are drawn, configurations are
chosen from what was observed, and after every observation the bounds of every configuration and of
both metrics are held against the truth. What would let a wrong beta pass is excluded: the bounds
are narrower than the functions' range, and a fraction of beta does not hold in the same runs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from composed import compose_scope
from long_runs import IS_LONG, only_long

from scope_torch.bounds import TheoryBounds
from scope_torch.bounds.information_gain import InformationGain, RealisedGain
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.model.hamming_sums import HammingGrid
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.kernels import HammingMatern52Kernel, hamming_distance
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.problem import SelectionProblem
from scope_torch.runs.callbacks import Callback
from scope_torch.runs.runner import run
from scope_torch.search.joint_candidate import JointCandidate

DELTA = 0.1
KERNEL = HammingMatern52Kernel()
S_0 = 0.5


@cache
def gram(sizes) -> np.ndarray:
    codes = torch.cartesian_prod(*(torch.arange(size) for size in sizes)).reshape(-1, len(sizes))
    return KERNEL.profile(len(sizes))[hamming_distance(codes, codes)].numpy()


@cache
def information_gain(space, lam) -> InformationGain:
    return InformationGain(space, KERNEL, lam)


def with_norm(alpha, sizes, norm) -> np.ndarray:
    """F = sum_i alpha_i k(., theta_i) on Theta, scaled so that its RKHS norm is `norm`."""
    k = gram(sizes)
    return norm * (k @ alpha) / math.sqrt(alpha @ k @ alpha)


def random_function(rng, sizes, norm, _order) -> np.ndarray:
    return with_norm(rng.normal(size=math.prod(sizes)), sizes, norm)


def positive_function(rng, sizes, norm, _order) -> np.ndarray:
    return with_norm(np.abs(rng.normal(size=math.prod(sizes))), sizes, norm)


def steepest_function(rng, sizes, norm, _order) -> np.ndarray:
    """Two configurations as different as the norm allows."""
    return with_norm(rng.permutation([-1.0, 1.0]), sizes, norm)


def hardest_function(rng, sizes, norm, order) -> np.ndarray:
    """Zero where a design of random size observes, and as large as the norm allows elsewhere."""
    count, k = rng.integers(len(order)), gram(sizes)
    alpha, seen, unseen = np.zeros(len(order)), order[:count], order[count]
    alpha[unseen] = 1.0
    alpha[seen] = -np.linalg.solve(k[np.ix_(seen, seen)], k[seen, unseen])
    return with_norm(alpha, sizes, norm)


def gaussian(rng, R) -> float:
    return R * rng.normal()


def two_point(rng, R) -> float:
    return R * rng.choice([-1.0, 1.0])


def problem_of(sizes, num_queries, theta_ref=None, quality=0.8, cost=1.0, epsilon=0.05):
    llms = tuple(tuple(f"llm{k}" for k in range(size)) for size in sizes)
    modules = tuple(f"module{i}" for i in range(len(sizes)))
    theta_ref = (0,) * len(sizes) if theta_ref is None else theta_ref
    return SelectionProblem("t", modules, llms, num_queries, theta_ref, quality, cost, epsilon)


class Watch(Callback):
    """Holds the bounds against the truth after every observation.

    `ratio[t]`: the largest |mu_bar - truth| / (beta sigma_bar) over Theta and both metrics; above 1
    the theorem's event fails.
    """

    def __init__(self, problem, truth, lam, R, B) -> None:
        self.truth, self.problem = truth, problem
        self.model(lam, {"R_c": R[0], "R_g": R[1], "B_c": B[0], "B_g": B[1]})
        self._grid = HammingGrid(problem.space, KERNEL)
        self.ratio = []
        self.observations = [0] * problem.num_queries
        self.look()

    def model(self, lam, constants) -> None:
        problem = self.problem
        self.surrogate = QuerySurrogate(problem.space, KERNEL, problem.num_queries, lam)
        gain = information_gain(problem.space, lam)
        self.bounds = TheoryBounds(problem, gain, delta=DELTA, cost_unit=1.0, **constants)

    def aggregate(self):
        return self.surrogate.aggregate()

    def least_known(self, codes) -> int:
        return int(self.surrogate.at(codes).variance.argmax())

    def look(self) -> None:
        aggregate = self.aggregate()
        means = [self._grid.weighted_sum(aggregate.codes, w) for w in aggregate.weights]
        form = self._grid.quadratic_form(aggregate.codes, aggregate.matrix)
        self.mean = torch.stack(means).numpy()
        sigma = (aggregate.constant - form).sqrt().numpy()
        beta = self.bounds.beta(max(self.observations), self.surrogate.information())
        self.half_width = np.array([beta.c, beta.g])[:, None] * sigma
        self.ratio.append((np.abs(self.mean - self.truth.mean(1)) / self.half_width).max())

    def relative_width(self) -> float:
        """Width of the interval of the median configuration over the range of the true average."""
        width = 2 * np.median(self.half_width, axis=1)
        return float((width / np.ptp(self.truth.mean(1), axis=1)).max())

    def observe(self, theta, query, y_c, y_g) -> None:
        self.observations[query] += 1
        self.surrogate.observe(theta, query, y_c, y_g)
        self.look()

    def observed(self, observation, spend_usd) -> None:
        o = observation
        self.observe(o.theta, o.query, o.cost_usd, self.problem.s_0 - o.quality)


class RealisedWatch(Watch):
    """With the information in what was observed in place of gamma."""

    def model(self, lam, constants) -> None:
        super().model(lam, constants)
        gain = RealisedGain(KERNEL, lam)
        self.bounds = TheoryBounds(self.problem, gain, delta=DELTA, cost_unit=1.0, **constants)


class JointWatch(Watch):
    """One process for all queries; the norms are those of the functions in its RKHS.

    Its noise variance is lam (1 - rho): so that of the others.
    """

    rho = 0.5

    def model(self, lam, constants) -> None:
        problem, lam = self.problem, lam / (1 - self.rho)
        settings = {"rho": self.rho, "amplitude": 1.0, "relative_cost": False}
        queries = problem.num_queries
        self.surrogate = JointSurrogate(problem.space, KERNEL, queries, lam, **settings)
        constants = {**constants, **dict(zip(("B_c", "B_g"), self.norms(), strict=True))}
        gain = RealisedGain(KERNEL, lam)
        self.bounds = TheoryBounds(
            problem, gain, delta=DELTA, cost_unit=1.0, rho=self.rho, **constants
        )

    def norms(self) -> list[float]:
        """Squared: sum over q, q' of (M^-1)_qq' <l_q, l_q'>, M = rho 1 1^T + (1 - rho) I."""
        sizes, queries = self.problem.space.sizes, self.problem.num_queries
        mixture = self.rho + (1 - self.rho) * np.eye(queries)
        inner = (f @ np.linalg.solve(gram(sizes), f.T) for f in self.truth)
        return [math.sqrt((np.linalg.inv(mixture) * products).sum()) for products in inner]

    def aggregate(self):
        return self.surrogate.aggregates()[1]

    def least_known(self, codes) -> int:
        queries = range(self.problem.num_queries)
        return JointCandidate(self.surrogate, tuple(codes), queries).next_queries(1)[0]


def by_design(rng, watch, order, t) -> tuple[int, int]:
    """Not adaptive: configuration by configuration, on every query."""
    return int(order[t // watch.problem.num_queries]), t % watch.problem.num_queries


def by_lower_bound(rng, watch, order, t) -> tuple[int, int]:
    """As SCOPE: the least L_c among those with L_g <= -t^-1/3, on the least known query."""
    lower_c, lower_g = watch.mean - watch.half_width
    eligible = lower_g <= max(lower_g.min(), -((t + 1) ** (-1 / 3)))
    theta = int(np.argmin(np.where(eligible, lower_c, np.inf)))
    codes = watch.problem.space.unrank(torch.tensor(theta)).tolist()
    return theta, watch.least_known(codes)


def at_random(rng, watch, order, t) -> tuple[int, int]:
    return int(rng.integers(len(order))), int(rng.integers(watch.problem.num_queries))


@dataclass(frozen=True)
class Scenario:
    """`too_small`: the factor of beta that must be seen to fail.

    It fails in every run of "hardest functions" and "adaptive", and in a quarter of those of
    "noise", of which a third of `runs` (26) misses it with a chance of 0.0006.
    """

    sizes: tuple[int, ...]
    num_queries: int
    lam: float
    R: float
    B: float
    steps: int
    draw: Callable
    same_for_all_queries: bool
    noise: Callable
    policy: Callable
    runs: int
    too_small: float


SCENARIOS = {
    "hardest functions": Scenario(
        (3, 3), 2, 0.01, 0.005, 1.0, 17, hardest_function, True, two_point, by_design, 60, 0.5
    ),
    "noise": Scenario(
        (2,), 1, 0.01, 0.1, 0.7, 40, steepest_function, False, gaussian, at_random, 80, 0.5
    ),
    "adaptive": Scenario(
        (3, 3),
        2,
        0.0025,
        0.01,
        1.0,
        30,
        random_function,
        False,
        two_point,
        by_lower_bound,
        60,
        0.25,
    ),
}


def simulate(s: Scenario, seed: int, kind: type[Watch] = Watch) -> Watch:
    rng = np.random.default_rng(seed)
    problem = problem_of(s.sizes, s.num_queries)
    order = rng.permutation(problem.space.size)
    draws = 1 if s.same_for_all_queries else s.num_queries
    truth = np.array([[s.draw(rng, s.sizes, s.B, order) for _ in range(draws)] for _ in "cg"])
    truth = np.broadcast_to(truth, (2, s.num_queries, problem.space.size))
    watch = kind(problem, truth, s.lam, (s.R, s.R), (s.B, s.B))
    for t in range(s.steps):
        theta, query = s.policy(rng, watch, order, t)
        y = [float(f[query, theta]) + s.noise(rng, s.R) for f in truth]
        watch.observe(tuple(problem.space.unrank(torch.tensor(theta)).tolist()), query, *y)
    return watch


SLOW = {(name, kind) for name in ("noise", "adaptive") for kind in (RealisedWatch, JointWatch)}
CASES = [
    pytest.param(
        SCENARIOS[name],
        kind,
        id=f"{name}, {kind.__name__}",
        marks=only_long if (name, kind) in SLOW else (),
    )
    for name in SCENARIOS
    for kind in (Watch, RealisedWatch, JointWatch)
]


@pytest.mark.parametrize(("scenario", "kind"), CASES)
@pytest.mark.slow
def test_all_bounds_hold_together(scenario, kind):
    runs = scenario.runs if IS_LONG else scenario.runs // 3
    watches = [simulate(scenario, seed, kind) for seed in range(runs)]
    worst = np.array([max(watch.ratio) for watch in watches])
    assert worst.max() <= 1
    assert np.median([watch.relative_width() for watch in watches]) < 0.8
    assert (worst > scenario.too_small).any()


def scope_instance(seed) -> tuple[np.ndarray, SelectionProblem]:
    """Functions of norm B = (1, 0.4) whose noisy values are costs >= 0 and qualities in [0, 1].

    theta_0 is the dearest of the configurations that are feasible by a margin.
    """
    rng, sizes, num_queries = np.random.default_rng(seed), (3, 3), 2
    while True:
        truth = np.array(
            [
                [positive_function(rng, sizes, 1.0, None) for _ in range(num_queries)],
                [random_function(rng, sizes, 0.4, None) for _ in range(num_queries)],
            ]
        )
        c, g = truth.mean(1)
        theta_ref = int(np.argmax(np.where(g < -0.05, c, 0.0)))
        if g[theta_ref] < -0.05 and c[theta_ref] > c.min() + 0.1:
            break
    quality = S_0 - g[theta_ref]  # so that s_0 = (1 - epsilon) quality
    codes = (theta_ref // 3, theta_ref % 3)
    epsilon = 1 - S_0 / quality
    return truth, problem_of(sizes, num_queries, codes, quality, float(c[theta_ref]), epsilon)


def run_scope(seed, R, believed=1.0):
    """SCOPE with the theory's bounds, R and B multiplied by `believed`."""
    truth, problem = scope_instance(seed)
    rng, space = np.random.default_rng(seed + 10_000), problem.space

    def system(llms, query):
        theta = int(space.rank(torch.tensor(problem.codes(list(llms.values())))))
        y_c, y_g = (float(f[query, theta]) + two_point(rng, R) for f in truth)
        return S_0 - y_g, y_c

    watch = Watch(problem, truth, 0.0025, (believed * R,) * 2, (believed * 1.0, believed * 0.4))
    scope = compose_scope(
        problem, watch.bounds, seed=seed, base=(0, 0), lam=0.0025, kernel=KERNEL, device="cpu"
    )
    evaluator = FunctionEvaluator(problem, system, range(problem.num_queries))
    result = run(problem, scope, evaluator, budget_usd=25.0, callbacks=[watch])
    return watch, result


def broken_promises(watch, result) -> set[str]:
    """What SCOPE says of theta_out at some time and is not true (thm:main-T-ours)."""
    c, g = watch.truth.mean(1).reshape(2, 3, 3)
    optimum, broken = c[g <= 0].min(), set()
    for row in result.trace:
        if g[row.theta_out] > 0:
            broken.add("feasible")
        if row.u_out_usd is not None and c[row.theta_out] > row.u_out_usd + 1e-9:
            broken.add("u_out")
        if row.gap_usd is not None and c[row.theta_out] - optimum > row.gap_usd + 1e-9:
            broken.add("gap")
    return broken


@pytest.mark.slow
def test_scope_keeps_its_word():
    certified = 0
    for seed in range(10):
        watch, result = run_scope(seed, R=0.01)
        assert max(watch.ratio) <= 1
        assert len(watch.ratio) == len(result.history) + 1
        assert broken_promises(watch, result) == set()
        certified += result.recommendation.basis == "certified"
    assert certified > 5


@pytest.mark.slow
def test_understated_assumptions_break_promises():
    """The check above can fail: noise and norms are 20 times those that SCOPE was told."""
    runs = [run_scope(seed, R=0.08, believed=0.05) for seed in range(10)]
    assert all(max(watch.ratio) > 1 for watch, _ in runs)
    broken = [broken_promises(watch, result) for watch, result in runs]
    assert sum(map(bool, broken)) > 5
    assert set.union(*broken) == {"feasible", "u_out", "gap"}
