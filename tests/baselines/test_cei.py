"""CEI against EI x PoF retyped on all of Theta, and against BoTorch's own discrete search."""

import math

import naive
import numpy as np
import pytest
import torch
from botorch.acquisition.analytic import (
    LogConstrainedExpectedImprovement,
    LogProbabilityOfFeasibility,
)
from botorch.optim import optimize_acqf_discrete
from gp_reference import (
    all_codes,
    choices,
    flat,
    log_ei,
    log_pof,
    merged,
    pick,
    posterior,
    reference_row,
    tie_key,
)
from tables import make_task
from test_gp import random_rows

from scope_torch.baselines.cei import CEI
from scope_torch.baselines.dataset_level import Evaluation
from scope_torch.baselines.dataset_model import maximum
from scope_torch.baselines.gp import GPSettings
from scope_torch.errors import InputError
from scope_torch.model.kernels import HammingRBFKernel
from scope_torch.testing import OptimizerConformance, drive


class TestCEI(OptimizerConformance):
    @pytest.fixture
    def make_optimizer(self):
        return lambda problem, seed: CEI(problem, seed=seed, device="cpu")


def expected_choice(optimizer, problem, done, settings) -> tuple[tuple[int, ...], float | None]:
    """Argmax of log EI + log PoF over Theta, and its value with EI in units of z_c."""
    gp = optimizer.gp_settings
    known = [reference_row(problem)] if gp.theta0_obs == "free" else []
    kernel = naive.rbf if isinstance(optimizer.gp.kernel, HammingRBFKernel) else naive.matern52
    belief = posterior([*known, *done], problem, gp, kernel)
    data, sizes = [*known, *merged(done)], problem.space.sizes
    if settings.get("incumbent") == "posterior_mean":
        at = [flat(row[0], sizes) for row in data]
        best = [belief.mean_c[i] for i in at if belief.mean_g[i] <= 0]
    else:
        best = [row[1] / belief.unit_c for row in data if row[2] <= 0]
    values = log_pof(belief.mean_g, belief.sigma_g)
    if best:
        # The library ties values of the GP in units of amp.
        values = values + log_ei(belief.mean_c, belief.sigma_c, min(best)) - math.log(gp.amp_c)
    if settings.get("mask_repeats"):
        values[[flat(row[0], sizes) for row in data]] = -math.inf
    index = pick(-values, 1.0, optimizer.seed)
    return tuple(all_codes(sizes)[index].tolist()), values[index] + math.log(gp.amp_c)


SETTINGS = [
    ({}, {}),
    ({"amp_c": 0.2, "amp_g": 0.05}, {}),
    ({"units": "raw", "amp_c": 0.005, "amp_g": 0.2, "lam": 1e-3}, {"incumbent": "posterior_mean"}),
    ({"theta0_obs": "none", "n_init": 2}, {"mask_repeats": True}),
    ({"theta0_obs": "charged", "lam": 1e-2}, {"kernel": HammingRBFKernel()}),
    ({"theta0_obs": "none", "amp_g": 0.3}, {"incumbent": "posterior_mean"}),
]


@pytest.mark.parametrize(("gp", "settings"), SETTINGS)
@pytest.mark.parametrize("graded", [True, False])
def test_every_choice_is_the_formula_s(gp, settings, graded):
    compared = 0
    for seed in range(2):
        task = make_task(seed, (4, 3, 3), 6, graded)
        optimizer = CEI(task.problem, seed=seed, gp=gp, device="cpu", **settings)
        given = optimizer.gp_settings.n_init + (gp.get("theta0_obs") == "charged")
        for done, asked in choices(optimizer, task, 12):
            if len(done) >= given:
                expected, _ = expected_choice(optimizer, task.problem, done, settings)
                assert asked == expected, len(done)
                compared += 1
    assert compared >= 20


def acquisition_of(problem, rows, best_f, **gp):
    """Values of the acquisition on all of Theta, with the data of `rows`, and the optimizer."""
    optimizer = CEI(problem, seed=0, gp=GPSettings(theta0_obs="none", **gp), device="cpu")
    for theta, cost, g in rows:
        optimizer.gp.observe(Evaluation(theta, cost, g, ()))
    model = optimizer.gp.model()
    reduced = model.reduced
    _, values = maximum(optimizer._acquisition(model, best_f), reduced)
    return reduced.expand(values).numpy(), optimizer


@pytest.mark.parametrize("seed", range(3))
def test_acquisition_is_log_of_ei_times_pof(seed):
    problem = make_task(seed, (4, 3, 3), 4).problem
    rows = random_rows(problem, 8, seed, repeats=False)
    belief = posterior(rows, problem, GPSettings())
    for best in (rows[0][1] / belief.unit_c, 0.7, 1.3):
        values, _ = acquisition_of(problem, rows, best)
        expected = log_ei(belief.mean_c, belief.sigma_c, best)
        expected += log_pof(belief.mean_g, belief.sigma_g)
        np.testing.assert_allclose(values, expected, rtol=1e-7, atol=1e-7)
        u = (best - belief.mean_c) / belief.sigma_c
        textbook = [
            sigma * (math.exp(-x * x / 2) / math.sqrt(2 * math.pi) + x * cdf(x)) * cdf(-g / s)
            for x, sigma, g, s in zip(u, belief.sigma_c, belief.mean_g, belief.sigma_g, strict=True)
        ]
        np.testing.assert_allclose(np.exp(values), textbook, rtol=1e-6, atol=1e-12)
    values, _ = acquisition_of(problem, rows, None)
    pof = log_pof(belief.mean_g, belief.sigma_g)
    np.testing.assert_allclose(values, pof, rtol=1e-7, atol=1e-12)


def cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def test_f_plus_is_not_rounded_to_single_precision():
    """At an observed configuration sigma is 1e-3: an error of 1e-8 in f+ shows."""
    problem = make_task(0, (4, 3, 3), 4).problem
    rows = random_rows(problem, 8, 0, repeats=False)
    belief = posterior(rows, problem, GPSettings())
    at, best = flat(rows[0][0], (4, 3, 3)), 1 / 3
    rows[0] = (rows[0][0], best * problem.reference_cost_usd, -0.2)
    belief = posterior(rows, problem, GPSettings())
    values, _ = acquisition_of(problem, rows, best)
    expected = log_ei(belief.mean_c[at], belief.sigma_c[at], best)
    expected += log_pof(belief.mean_g[at], belief.sigma_g[at])
    assert values[at] == pytest.approx(expected, abs=1e-7)
    assert float(np.float32(best)) != best


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("feasible", [True, False])
def test_the_choice_is_as_good_as_botorch_s_over_all_of_theta(seed, feasible):
    problem = make_task(seed, (5, 4, 3), 4).problem
    rows = random_rows(problem, 3 + 5 * seed, seed)
    rows = [(theta, c, (-0.1 if feasible else 0.1) + 0.05 * g) for theta, c, g in rows]
    best = min(row[1] for row in rows) / problem.reference_cost_usd if feasible else None
    gp = GPSettings(theta0_obs="none")  # amplitudes of 1: the model's units are those of z
    optimizer = CEI(problem, seed=seed, gp=gp, device="cpu")
    for theta, cost, g in rows:
        evaluation = Evaluation(theta, cost, g, ())
        optimizer.gp.observe(evaluation)
        optimizer.evaluations.append(evaluation)
    if feasible:  # repeats are averaged
        best = min(row[1] for row in merged(rows) if row[2] <= 0) / problem.reference_cost_usd
    chosen = optimizer.ask()[0].theta
    model = optimizer.gp.surrogate.as_botorch_model()
    if best is None:
        acquisition = LogProbabilityOfFeasibility(model, {1: (None, 0.0)})
    else:
        acquisition = LogConstrainedExpectedImprovement(
            model, torch.tensor(best).double(), 0, {1: (None, 0.0)}, maximize=False
        )
    theta = torch.tensor(all_codes((5, 4, 3))).double()
    _, value = optimize_acqf_discrete(acquisition, q=1, choices=theta)
    own = acquisition(torch.tensor(chosen).double().view(1, 1, -1))
    assert float(own) == pytest.approx(float(value), rel=1e-9, abs=1e-9)


def test_ties_go_by_the_seed_not_by_the_order_of_the_llms():
    """Without data every configuration has the same value."""
    for seed in range(5):
        problem = make_task(0, (4, 3, 3), 4).problem
        optimizer = CEI(problem, seed=seed, gp={"theta0_obs": "none"}, device="cpu")
        first = min(range(36), key=lambda index: tie_key(index, seed))
        assert flat(optimizer.ask()[0].theta, (4, 3, 3)) == first


def test_nothing_feasible_is_reported():
    task = make_task(1, (4, 3), 6)
    optimizer = CEI(task.problem, seed=0, gp={"theta0_obs": "none"}, device="cpu")
    drive(optimizer, task, 1)
    assert optimizer.report()["choices_without_incumbent"] == 1
    optimizer = CEI(task.problem, seed=0, device="cpu")
    drive(optimizer, task, 24)
    assert optimizer.report()["choices_without_incumbent"] == 0


def test_masked_repeats_end_when_all_is_evaluated():
    task = make_task(1, (4, 3), 6)
    optimizer = CEI(task.problem, seed=0, mask_repeats=True, device="cpu")
    thetas = {o.theta for o in drive(optimizer, task, 1000)}
    assert len(thetas) == 11
    assert optimizer.t == 66
    assert optimizer.stop_reason == "every configuration was evaluated"
    permitted = CEI(task.problem, seed=0, device="cpu")
    drive(permitted, task, 13 * 6)
    assert permitted.t == 13 * 6


@pytest.mark.parametrize("gp", [{}, {"amp_c": 1e-2}])
def test_stops_when_max_ei_pof_over_what_is_left_is_small(gp):
    task = make_task(1, (3, 3), 6)
    values = []
    optimizer = CEI(task.problem, seed=0, gp=gp, device="cpu")
    settings = {"mask_repeats": True}
    for done, _ in choices(optimizer, task, 7):
        values.append(math.exp(expected_choice(optimizer, task.problem, done, settings)[1]))
    assert values[-1] < min(values[:-1])
    threshold = math.sqrt(values[-1] * min(values[:-1]))
    stopping = CEI(task.problem, seed=0, gp=gp, stop_below=threshold, device="cpu")
    drive(stopping, task, 1000)
    assert stopping.t == 36
    assert "max EI PoF" in stopping.stop_reason


def test_what_was_evaluated_does_not_keep_the_search_from_stopping():
    """Under strong noise EI is large at the incumbent itself."""
    problem = make_task(0, (4, 3, 3), 4).problem
    gp = GPSettings(lam=1.0, theta0_obs="none")
    rows = [((0, 0, 0), 0.1 * problem.reference_cost_usd, -0.5)] * 2
    others = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 2, 2), (1, 1, 1), (2, 2, 0), (3, 0, 1)]
    rows += [(theta, problem.reference_cost_usd, 3.0) for theta in others]
    belief = posterior(rows, problem, gp)
    values = log_ei(belief.mean_c, belief.sigma_c, 0.1) + log_pof(belief.mean_g, belief.sigma_g)
    at = [flat(theta, (4, 3, 3)) for theta, _, _ in rows]
    fresh = np.delete(values, at).max()
    assert fresh < values.max() - 0.01
    for shift, stops in ((0.005, True), (-0.005, False)):
        optimizer = CEI(problem, seed=0, gp=gp, stop_below=math.exp(fresh + shift), device="cpu")
        for row in rows:
            evaluation = Evaluation(*row, ())
            optimizer.gp.observe(evaluation)
            optimizer.evaluations.append(evaluation)
        assert (list(optimizer.ask()) == []) == stops


@pytest.mark.slow
def test_finds_something_cheaper_that_is_feasible():
    for seed in range(3):
        task = make_task(seed, (4, 4, 4), 8)
        optimizer = CEI(task.problem, seed=seed, device="cpu")
        drive(optimizer, task, 20 * 8)
        index = flat(optimizer.recommend().theta, (4, 4, 4))
        assert task.mean_quality[index] >= task.problem.s_0
        assert task.mean_cost[index] < 0.9 * task.problem.reference_cost_usd


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"incumbent": "best"}, "incumbent='best' must be observed or posterior_mean"),
        ({"stop_below": -1.0}, "stop_below=-1.0 must be a number >= 0"),
        ({"stop_below": math.nan}, "stop_below=nan"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        CEI(make_task(1, (4, 3), 6).problem, seed=0, **settings)


def test_settings_tell_everything_apart():
    problem = make_task(1, (4, 3), 6).problem
    default = CEI(problem, seed=0).settings()
    changed = {"incumbent": "posterior_mean", "stop_below": 0.1, "mask_repeats": True}
    for name, value in changed.items():
        assert CEI(problem, seed=0, **{name: value}).settings() != default
