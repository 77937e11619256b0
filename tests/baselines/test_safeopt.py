"""SafeOpt against loops over all of Theta: refits for expanders, pairs for Lipschitz sets."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from gp_reference import (
    Naive,
    all_codes,
    choices,
    distances,
    flat,
    pick,
    posterior,
    reference_row,
    tie_key,
)
from tables import make_task
from test_gp import gp_of, random_rows

from scope_torch.baselines.dataset_level import Evaluation
from scope_torch.baselines.gp import GPSettings
from scope_torch.baselines.safeopt import Bounds, ConfidenceWidth, SafeOpt, certifies, within_radius
from scope_torch.errors import InputError
from scope_torch.runs.runner import run
from scope_torch.testing import OptimizerConformance, drive

SMALL = {"amp_g": 0.003, "amp_c": 0.1}  # nearly certain of g: the safe set grows


class TestSafeOpt(OptimizerConformance):
    @pytest.fixture(params=[None, 0.02])
    def make_optimizer(self, request):
        def make(problem, seed):
            gp = {**SMALL, "n_init": 3, "theta0_obs": "charged"}
            return SafeOpt(
                problem, seed=seed, beta=1.0, tau=0.0, lipschitz=request.param, gp=gp, device="cpu"
            )

        return make


@dataclass
class Step:
    """What the specification says after some data."""

    theta_out: tuple[int, ...]
    chosen: tuple[int, ...] | None  # None: the search ends
    safe: np.ndarray
    maximisers: np.ndarray
    expanders: list[int]


def rows_of(optimizer, done):
    free = optimizer.gp_settings.theta0_obs == "free"
    return [reference_row(optimizer.problem)] * free + done


def brute_force_expander(optimizer, done, belief: Naive, lower_g, safe, candidates) -> list[int]:
    """The first candidate, the widest first, that would certify something unsafe; by refitting."""
    problem, gp = optimizer.problem, optimizer.gp_settings
    codes = all_codes(problem.space.sizes)
    width = 2 * optimizer.beta * belief.sigma_g / gp.amp_g
    left = sorted(candidates, key=lambda e: tie_key(int(e), optimizer.seed))
    left = sorted(left, key=lambda e: -round(width[e] * 1e7))
    for e in left:
        pretended = (tuple(codes[e].tolist()), 0.0, lower_g[e] * belief.unit_g)
        after = posterior([*rows_of(optimizer, done), pretended], problem, gp)
        upper = after.mean_g + optimizer.beta * after.sigma_g
        if (upper[~safe] <= 0).any():
            return [e]
    return []


def interval_step(optimizer, done) -> Step:
    """Version without a Lipschitz constant."""
    problem, gp, beta = optimizer.problem, optimizer.gp_settings, optimizer.beta
    codes, rows = all_codes(problem.space.sizes), rows_of(optimizer, done)
    belief = posterior(rows, problem, gp)
    lower_c, upper_c = (belief.mean_c + s * beta * belief.sigma_c for s in (-1, 1))
    lower_g, upper_g = (belief.mean_g + s * beta * belief.sigma_g for s in (-1, 1))
    reference = flat(problem.theta_ref, problem.space.sizes)
    safe = upper_g < 0
    safe[reference] = True
    maximisers = safe & (lower_c <= upper_c[safe].min())
    width = np.maximum(2 * beta * belief.sigma_c / gp.amp_c, 2 * beta * belief.sigma_g / gp.amp_g)
    widest = (2 * beta * belief.sigma_c / gp.amp_c)[maximisers].max()
    wide = np.maximum(upper_c - lower_c, upper_g - lower_g) > optimizer.tau * beta
    candidates = np.flatnonzero(safe & ~maximisers & (width > widest + 1e-7) & wide)
    expanders = brute_force_expander(optimizer, done, belief, lower_g, safe, candidates)
    return conclude(optimizer, rows, codes, safe, maximisers, expanders, width, upper_c)


def conclude(optimizer, rows, codes, safe, maximisers, expanders, width, upper_c) -> Step:
    problem = optimizer.problem
    reference = flat(problem.theta_ref, problem.space.sizes)
    scale = problem.reference_cost_usd
    if optimizer.gp_settings.units == "relative":
        scale = 1.0
    eligible = maximisers.copy()
    eligible[expanders] = True
    seen = any(row[0] == problem.theta_ref for row in rows)
    chosen = None
    stalled = seen and eligible.tolist() == [i == reference for i in range(len(codes))]
    if eligible.any() and not stalled:
        index = pick(np.where(eligible, -width, np.inf), 1.0, optimizer.seed)
        chosen = tuple(codes[index].tolist())
    out = pick(np.where(safe, upper_c, np.inf), scale, optimizer.seed)
    return Step(tuple(codes[out].tolist()), chosen, safe, maximisers, expanders)


class LipschitzSteps:
    """Version with a Lipschitz constant: intervals and S of the step before are kept."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.codes = all_codes(optimizer.problem.space.sizes)
        size = len(self.codes)
        self.d = np.sqrt(distances(self.codes, self.codes))
        self.lower_c, self.lower_g = np.full((2, size), -np.inf)
        self.upper_c, self.upper_g = np.full((2, size), np.inf)
        self.reference = flat(optimizer.problem.theta_ref, optimizer.problem.space.sizes)
        self.safe = np.arange(size) == self.reference

    def step(self, done) -> Step:
        optimizer, gp = self.optimizer, self.optimizer.gp_settings
        rows = rows_of(optimizer, done)
        belief = posterior(rows, optimizer.problem, gp)
        half_c, half_g = optimizer.beta * belief.sigma_c, optimizer.beta * belief.sigma_g
        self.lower_c = np.maximum(self.lower_c, belief.mean_c - half_c)
        self.upper_c = np.minimum(self.upper_c, belief.mean_c + half_c)
        self.lower_g = np.maximum(self.lower_g, belief.mean_g - half_g)
        self.upper_g = np.minimum(self.upper_g, belief.mean_g + half_g)
        slope = optimizer.lipschitz * self.d
        certified = (self.upper_g[:, None] + slope <= 0)[self.safe].any(0)
        self.safe = certified | (np.arange(len(self.codes)) == self.reference)
        reach = (self.lower_g[:, None] + slope <= 0)[:, ~self.safe].any(1)
        expanders = np.flatnonzero(self.safe & reach).tolist()
        maximisers = self.safe & (self.lower_c <= self.upper_c[self.safe].min())
        width = np.maximum(
            (self.upper_c - self.lower_c) / gp.amp_c, (self.upper_g - self.lower_g) / gp.amp_g
        )
        return conclude(
            optimizer, rows, self.codes, self.safe, maximisers, expanders, width, self.upper_c
        )


def expand(optimizer, values) -> np.ndarray:
    return optimizer._bounds.reduced.expand(values).numpy()


def follow(optimizer, task, step, count, given=0) -> list[Step]:
    """Runs a search next to the loops; returns what the loops found."""
    steps = []
    for done, asked in choices(optimizer, task, count):
        if not done and given:
            continue
        expected = step(done)
        assert optimizer.recommend().theta == expected.theta_out
        np.testing.assert_array_equal(expand(optimizer, optimizer._bounds.safe), expected.safe)
        maximisers = expand(optimizer, optimizer._bounds.maximisers)
        np.testing.assert_array_equal(maximisers, expected.maximisers)
        if len(done) >= given:
            assert asked == expected.chosen
            if optimizer.lipschitz is None:  # the one found, and what is interchangeable with it
                expanders = np.flatnonzero(expand(optimizer, optimizer._expander()))
                assert set(expected.expanders) <= set(expanders)
                assert (len(expanders) > 0) == (len(expected.expanders) > 0)
            steps.append(expected)
    return steps


@pytest.mark.parametrize(
    ("gp", "settings"),
    [
        (SMALL, {"beta": 1.0, "tau": 0.0}),
        ({"amp_g": 0.03, "amp_c": 0.05}, {}),
        ({"amp_g": 0.1, "amp_c": 0.1, "n_init": 5}, {"tau": 0.15}),
        ({"units": "raw", "amp_g": 0.02, "amp_c": 2e-4, "lam": 1e-3}, {"beta": 0.5, "tau": 0.0}),
        ({"theta0_obs": "charged", **SMALL}, {"beta": 1.5, "tau": 0.002}),
        ({"theta0_obs": "none", "amp_g": 0.02, "amp_c": 0.1, "n_init": 2}, {"beta": 1.0}),
    ],
)
def test_every_step_equals_the_loops(gp, settings):
    for seed in range(2):
        task = make_task(seed, (4, 3, 3), 6)
        optimizer = SafeOpt(task.problem, seed=seed, gp=gp, device="cpu", **settings)
        given = optimizer.gp_settings.n_init + (gp.get("theta0_obs") == "charged")
        follow(optimizer, task, lambda done, o=optimizer: interval_step(o, done), 10, given)


@pytest.mark.slow
def test_expanders_are_chosen_and_refused_in_these_tests():
    """The comparison above would pass without expanders if there were none."""
    found = refused = 0
    for seed in range(4):
        task = make_task(seed, (4, 3, 3), 6)
        gp = {"amp_g": 0.03, "amp_c": 0.05}
        optimizer = SafeOpt(task.problem, seed=seed, tau=0.0, gp=gp, device="cpu")
        steps = follow(optimizer, task, lambda done, o=optimizer: interval_step(o, done), 15)
        found += sum(len(step.expanders) for step in steps)
        refused += sum(not step.expanders for step in steps)
    assert found > 3
    assert refused > 3


@pytest.mark.parametrize(("count", "shift"), [(0, 0.0), (2, -0.1), (4, 0.0), (12, 0.1)])
def test_certifies_equals_refitting(count, shift):
    """Also between a configuration and those that the data do not tell from it."""
    problem, gp_settings = make_task(0, (5, 5, 4), 4).problem, GPSettings(lam=1e-4, amp_g=0.3)
    codes, outcomes = all_codes((5, 5, 4)), []
    for seed in range(25):
        rows = random_rows(problem, count, seed)
        rows = [(theta, c, g + shift) for theta, c, g in rows if theta != problem.theta_ref]
        gp = gp_of(problem, rows, gp_settings)
        model, before = gp.model(), posterior(rows, problem, gp_settings)
        generator = torch.Generator().manual_seed(seed)
        e = int(torch.randint(100, (1,), generator=generator))
        beta, density = torch.rand(2, generator=generator).tolist()
        unsafe = torch.rand(model.reduced.space.size, generator=generator) < density**3
        own = int(model.reduced.rank(torch.tensor(codes[e])))
        unsafe[own] = False
        lower = before.mean_g[e] - beta * before.sigma_g[e]
        pretended = (tuple(codes[e].tolist()), 0.0, lower * before.unit_g)
        after = posterior([*rows, pretended], problem, gp_settings)
        at_risk = model.reduced.expand(unsafe).numpy()
        expected = bool(((after.mean_g + beta * after.sigma_g)[at_risk] <= 0).any())
        assert certifies(gp, model, own, unsafe, beta) == expected
        outcomes.append(expected)
    assert 0 < sum(outcomes) < 25 or count == 0


@pytest.mark.parametrize(
    ("gp", "lipschitz", "sizes"),
    [
        (SMALL, 0.12, {24}),
        ({"amp_c": 0.3, "amp_g": 0.1}, 0.15, {8, 13, 17}),
        ({"units": "raw", "amp_c": 1e-3, "amp_g": 0.05, "lam": 1e-4}, 0.1, {1, 8, 13, 17}),
        ({"amp_c": 0.3, "amp_g": 0.1, "n_init": 3, "theta0_obs": "charged"}, 0.15, {8, 13, 17}),
    ],
)
def test_every_lipschitz_step_equals_the_loops(gp, lipschitz, sizes):
    found = set()
    for seed in range(2):
        task = make_task(seed, (4, 3, 3), 6)
        optimizer = SafeOpt(
            task.problem, seed=seed, beta=1.5, lipschitz=lipschitz, gp=gp, device="cpu"
        )
        reference = LipschitzSteps(optimizer)
        given = optimizer.gp_settings.n_init + (gp.get("theta0_obs") == "charged")
        steps = follow(optimizer, task, reference.step, 12, given)
        found |= {int(step.safe.sum()) for step in steps}
    assert found == sizes


def test_contradictory_intervals_end_the_search():
    """They leave no maximiser, and no reason to evaluate anything."""
    task = make_task(0, (4, 3, 3), 6)
    optimizer = SafeOpt(task.problem, seed=0, beta=1.5, lipschitz=0.12, gp=SMALL, device="cpu")
    drive(optimizer, task, 1000)
    assert "contradict each other" in optimizer.stop_reason
    assert not optimizer._bounds.maximisers.any()
    assert (optimizer._bounds.lower[0] > optimizer._bounds.upper[0]).any()


@pytest.mark.parametrize("sizes", [(4, 3, 3), (5,), (1, 2), (3, 1, 2, 2)])
def test_within_radius_is_a_maximum_over_all_pairs(sizes):
    generator = torch.Generator().manual_seed(0)
    codes = all_codes(sizes)
    for density in (0.05, 0.5):
        radius = torch.randint(0, len(sizes) + 1, (len(codes),), generator=generator)
        mask = torch.rand(len(codes), generator=generator) > density
        radius = radius.masked_fill(mask, -9).to(torch.int8)
        expected = (radius.numpy()[:, None] - distances(codes, codes)).max(0)
        np.testing.assert_array_equal(within_radius(radius, sizes).numpy(), expected)


def test_width_on_botorch_s_model_of_the_data():
    problem = make_task(0, (4, 3, 3), 4).problem
    optimizer = SafeOpt(problem, seed=0, gp=GPSettings(), device="cpu")
    rows = random_rows(problem, 10, 0)
    for theta, cost, g in rows:
        optimizer.gp.observe(Evaluation(theta, cost, g, ()))
    belief = posterior([reference_row(problem), *rows], problem, optimizer.gp_settings)
    theta = torch.tensor(all_codes((4, 3, 3))).double()[:, None]
    values = ConfidenceWidth(optimizer.gp.surrogate.as_botorch_model(), 1.7)(theta)
    np.testing.assert_allclose(values, 3.4 * belief.sigma_g, rtol=0, atol=1e-8)


def test_width_of_intersected_intervals():
    """The acquisition narrows the model's intervals to those known before."""
    problem = make_task(0, (4, 3, 3), 4).problem
    few = gp_of(problem, random_rows(problem, 4, 1), GPSettings()).model()
    many = gp_of(problem, random_rows(problem, 10, 0), GPSettings()).model()
    size, generator = few.reduced.space.size, torch.Generator().manual_seed(0)
    lower, more = torch.rand(2, 2, size, dtype=torch.float64, generator=generator)
    known = Bounds(few.reduced, lower - 1, lower - 1 + more, torch.ones(size, dtype=torch.bool))
    theta = torch.tensor(all_codes((4, 3, 3))).double()[:, None]
    observed = ConfidenceWidth(many, 1.7, known)(theta)
    posterior = many.posterior(theta)
    mean, half = posterior.mean[:, 0].T, 1.7 * posterior.variance[:, 0].T.sqrt()
    bounds = zip(mean - half, mean + half, known.lower, known.upper, strict=True)
    widths = [
        torch.minimum(upper, few.reduced.expand(most))
        - torch.maximum(low, few.reduced.expand(least))
        for low, upper, least, most in bounds
    ]
    torch.testing.assert_close(observed, torch.stack(widths).amax(0), rtol=0, atol=1e-12)
    assert (observed < ConfidenceWidth(many, 1.7)(theta) - 0.1).any()


@pytest.mark.parametrize(
    "settings", [{"gp": {"amp_g": 1.0}}, {"lipschitz": 0.5}, {"gp": {"amp_g": 0.5}}]
)
def test_stalls_where_only_the_reference_can_be_evaluated(settings):
    task = make_task(1, (4, 3, 3), 6, epsilon=0.01)
    optimizer = SafeOpt(task.problem, seed=0, device="cpu", **settings)
    result = run(task.problem, optimizer, task.evaluator(), 1000.0)
    assert result.stop_reason.startswith("stalled")
    assert result.report["stalled"] is True
    assert result.report["safe_set"] == 1
    assert len(result.history) == 0
    assert result.recommendation.theta == task.problem.theta_ref
    assert result.recommendation.basis == "reference"


@pytest.mark.parametrize("theta0_obs", ["charged", "none"])
def test_the_reference_is_evaluated_once_before_the_search_stalls(theta0_obs):
    task = make_task(1, (4, 3, 3), 6, epsilon=0.01)
    gp = {"theta0_obs": theta0_obs, "amp_g": 1.0}
    optimizer = SafeOpt(task.problem, seed=0, gp=gp, device="cpu")
    thetas = [o.theta for o in drive(optimizer, task, 1000)]
    assert thetas == [task.problem.theta_ref] * 6
    assert optimizer.report()["stalled"] is True


def test_with_a_small_amplitude_it_does_not_stall():
    task = make_task(1, (4, 3, 3), 6)
    optimizer = SafeOpt(task.problem, seed=0, beta=1.0, tau=0.0, gp=SMALL, device="cpu")
    drive(optimizer, task, 60)
    assert optimizer.report()["stalled"] is False
    assert optimizer.t >= 60


def test_theta_out_may_never_have_been_evaluated():
    """One step away U_c = 0.524 + 2 x 0.85 amp_c of the reference's cost, without any run."""
    task = make_task(1, (4, 3, 3), 6)
    gp = {"amp_g": 0.001, "amp_c": 0.01}
    optimizer = SafeOpt(task.problem, seed=0, gp=gp, device="cpu")
    assert optimizer.recommend().theta == task.problem.theta_ref
    optimizer.ask()
    assert optimizer.recommend().theta != task.problem.theta_ref
    assert optimizer.recommend().basis == "estimated"
    assert optimizer.trace[0].event == "improved"
    assert optimizer.trace[0].theta_out == optimizer.recommend().theta


def test_an_unfinished_evaluation_changes_nothing():
    task = make_task(1, (4, 3, 3), 6)
    optimizer = SafeOpt(task.problem, seed=0, beta=1.0, tau=0.0, gp=SMALL, device="cpu")
    drive(optimizer, task, 18)
    before, bounds = optimizer.recommend(), optimizer._bounds
    requests = optimizer.ask()
    optimizer.tell([task.observe(request) for request in requests[:-1]])
    assert optimizer.recommend() == before
    assert optimizer._bounds is bounds
    assert list(optimizer.ask()) == []


@pytest.mark.slow
def test_finds_something_cheaper_that_is_feasible():
    for seed in range(2):
        task = make_task(seed, (4, 4, 4), 8)
        optimizer = SafeOpt(task.problem, seed=seed, gp={"amp_g": 0.01}, device="cpu")
        drive(optimizer, task, 25 * 8)
        index = flat(optimizer.recommend().theta, (4, 4, 4))
        assert task.mean_quality[index] >= task.problem.s_0
        assert task.mean_cost[index] < 0.9 * task.problem.reference_cost_usd


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 0.0}, "beta=0.0 must be a positive number"),
        ({"beta": math.nan}, "beta=nan must be a positive number"),
        ({"tau": -0.1}, "tau=-0.1 must be a number >= 0"),
        ({"lipschitz": 0.0}, "lipschitz=0.0 must be a positive number, or null"),
        ({"lipschitz": -1.0}, "lipschitz=-1.0"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        SafeOpt(make_task(1, (4, 3), 6).problem, seed=0, **settings)


def test_settings_tell_everything_apart():
    problem = make_task(1, (4, 3), 6).problem
    default = SafeOpt(problem, seed=0).settings()
    for name, value in {"beta": 1.0, "tau": 0.2, "lipschitz": 0.1}.items():
        assert SafeOpt(problem, seed=0, **{name: value}).settings() != default
