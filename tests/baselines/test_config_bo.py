"""CONFIG against the constrained lower bound retyped on all of Theta."""

import math

import numpy as np
import pytest
import torch
from botorch.optim import optimize_acqf_discrete
from gp_reference import (
    all_codes,
    best_feasible,
    choices,
    flat,
    pick,
    posterior,
    reference_row,
)
from tables import make_task, task_of
from test_gp import random_rows

from scope_torch.baselines.config_bo import CONFIG, ConstrainedLowerBound
from scope_torch.baselines.dataset_level import Evaluation
from scope_torch.baselines.gp import GPSettings
from scope_torch.bounds.information_gain import InformationGain
from scope_torch.errors import InputError
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.runs.runner import run
from scope_torch.testing import OptimizerConformance, drive


class TestCONFIG(OptimizerConformance):
    @pytest.fixture
    def make_optimizer(self):
        return lambda problem, seed: CONFIG(problem, seed=seed, device="cpu")


def expected_choice(optimizer, problem, done, beta_c, beta_g) -> tuple[int, ...] | None:
    """Argmin of L_c over L_g <= 0; None if there is nothing."""
    gp = optimizer.gp_settings
    known = [reference_row(problem)] if gp.theta0_obs == "free" else []
    belief = posterior([*known, *done], problem, gp)
    lower_c = belief.mean_c - beta_c * belief.sigma_c
    lower_g = belief.mean_g - beta_g * belief.sigma_g
    if not (lower_g <= 0).any():
        return None
    scale = problem.reference_cost_usd / belief.unit_c
    index = pick(np.where(lower_g <= 0, lower_c, np.inf), scale, optimizer.seed)
    return tuple(all_codes(problem.space.sizes)[index].tolist())


@pytest.mark.parametrize(
    ("gp", "beta"),
    [
        ({}, 3.0),
        ({"amp_c": 0.2, "amp_g": 0.02}, 1.0),
        ({"units": "raw", "amp_c": 0.005, "amp_g": 0.05, "lam": 1e-3}, 2.0),
        ({"theta0_obs": "none", "n_init": 2, "amp_g": 0.1}, 0.5),
        ({"theta0_obs": "charged", "amp_c": 0.5, "amp_g": 0.03}, 0.0),
    ],
)
@pytest.mark.parametrize("graded", [True, False])
def test_every_choice_is_the_formula_s(gp, beta, graded):
    compared = excluded = 0
    for seed in range(2):
        task = make_task(seed, (4, 3, 3), 6, graded)
        optimizer = CONFIG(task.problem, seed=seed, beta=beta, gp=gp, device="cpu")
        given = optimizer.gp_settings.n_init + (gp.get("theta0_obs") == "charged")
        for done, asked in choices(optimizer, task, 12):
            if len(done) >= given:
                assert asked == expected_choice(optimizer, task.problem, done, beta, beta)
                unconstrained = expected_choice(optimizer, task.problem, done, beta, 1e9)
                excluded += asked != unconstrained
                compared += 1
    assert compared > 4
    assert excluded or beta >= 2


def test_theory_beta():
    task = make_task(0, (4, 3, 3), 6)
    numbers = {"B_c": 0.7, "B_g": 0.2, "R_c": 2e-3, "R_g": 5e-4, "delta": 0.05}
    optimizer = CONFIG(task.problem, seed=0, beta="theory", gp={"lam": 1e-4}, **numbers)
    gain = InformationGain(task.problem.space, HammingMatern52Kernel(), 1e-4)
    for done, asked in choices(optimizer, task, 8):
        count = 1 + len(done)  # theta_0 is one
        root = math.sqrt(2 * (gain.gamma(count) + 1 + math.log(2 / 0.05))) / math.sqrt(1e-4)
        beta_c, beta_g = 0.7 + 2e-3 * root, 0.2 + 5e-4 * root
        assert optimizer.report()["beta_c"] == pytest.approx(beta_c, rel=1e-12)
        assert optimizer.report()["beta_g"] == pytest.approx(beta_g, rel=1e-12)
        assert asked == expected_choice(optimizer, task.problem, done, beta_c, beta_g)


@pytest.mark.parametrize("seed", range(3))
def test_acquisition_on_botorch_s_model_of_the_data(seed):
    """The mask and the bounds, on any BoTorch model, and its own discrete search."""
    problem = make_task(seed, (5, 4, 3), 4).problem
    gp = GPSettings(theta0_obs="none")  # amplitudes of 1: the model's units are those of z
    optimizer = CONFIG(problem, seed=seed, beta=0.7, gp=gp, device="cpu")
    rows = random_rows(problem, 12, seed)
    for theta, cost, g in rows:
        optimizer.gp.observe(Evaluation(theta, cost, g, ()))
    model = optimizer.gp.surrogate.as_botorch_model()
    acquisition = ConstrainedLowerBound(model, 2.0, 0.1)
    theta = torch.tensor(all_codes((5, 4, 3))).double()
    values = acquisition(theta[:, None]).numpy()
    belief = posterior(rows, problem, optimizer.gp_settings)
    lower_g = belief.mean_g - 0.1 * belief.sigma_g
    assert 0 < (lower_g > 0).sum() < 60
    expected = np.where(lower_g > 0, -np.inf, 2.0 * belief.sigma_c - belief.mean_c)
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-8)
    same_beta = ConstrainedLowerBound(model, 0.7, 0.7)
    _, value = optimize_acqf_discrete(same_beta, q=1, choices=theta)
    own = same_beta(torch.tensor(optimizer.ask()[0].theta).double().view(1, 1, -1))
    assert float(own) == pytest.approx(float(value), abs=1e-9)


def infeasible_task():
    """Only theta_0 is right; the known quality of theta_0 is not in the data."""
    cost = np.full((2, 2, 4), 1.0) + np.arange(4) / 100
    quality = np.zeros((2, 2, 4))
    quality[1, 1] = 1.0
    return task_of(cost, quality, (1, 1), epsilon=0.1)


def test_declares_infeasibility_and_stops():
    task = infeasible_task()
    optimizer = CONFIG(task.problem, seed=2, beta=0.3, gp={"theta0_obs": "none"}, device="cpu")
    result = run(task.problem, optimizer, task.evaluator(), 1000.0)
    assert result.stop_reason.startswith("declared infeasible")
    assert result.report["declared_infeasible_at"] == optimizer.t > 0
    assert result.recommendation.theta == task.problem.theta_ref
    assert optimizer.trace[-1].event == "stopped"
    assert list(optimizer.ask()) == []
    done = [(e.theta, e.cost_usd, e.g) for e in optimizer.evaluations]
    assert all(row[2] > 0 for row in done)
    assert expected_choice(optimizer, task.problem, done, 0.3, 0.3) is None
    for length in range(len(done)):
        assert expected_choice(optimizer, task.problem, done[:length], 0.3, 0.3) is not None


def test_with_theta_0_in_the_data_the_problem_is_never_declared_infeasible():
    task = infeasible_task()
    optimizer = CONFIG(task.problem, seed=2, beta=0.3, device="cpu")
    drive(optimizer, task, 80)
    assert optimizer.t == 80
    assert optimizer.report()["declared_infeasible_at"] is None


@pytest.mark.parametrize("incumbent", ["bof", "last_queried"])
def test_incumbent(incumbent):
    task = make_task(2, (4, 3, 3), 6)
    optimizer = CONFIG(task.problem, seed=1, incumbent=incumbent, device="cpu")
    differ = 0
    for done, _ in choices(optimizer, task, 14):
        best = best_feasible(task.problem, done)[0]
        last = done[-1][0] if done else task.problem.theta_ref
        recommended = optimizer.recommend()
        assert recommended.theta == (best if incumbent == "bof" else last)
        if recommended.theta == task.problem.theta_ref:
            assert recommended.basis == "reference"
        else:
            assert recommended.basis == ("observed" if incumbent == "bof" else "estimated")
        report = optimizer.report()
        assert tuple(report["best_observed_feasible"]) == best
        assert tuple(report["last_queried"]) == last
        differ += best != last
    assert differ > 2


def test_an_unfinished_evaluation_changes_no_rule():
    task = make_task(2, (4, 3, 3), 6)
    optimizer = CONFIG(task.problem, seed=1, incumbent="last_queried", device="cpu")
    drive(optimizer, task, 12)
    before = optimizer.report(), optimizer.recommend()
    last = optimizer.ask()
    assert last[0].theta != before[1].theta
    optimizer.tell([task.observe(request) for request in last[:3]])
    assert optimizer.recommend() == before[1]
    assert optimizer.report()["last_queried"] == before[0]["last_queried"]


@pytest.mark.slow
def test_finds_something_cheaper_that_is_feasible():
    for seed in range(3):
        task = make_task(seed, (4, 4, 4), 8)
        optimizer = CONFIG(task.problem, seed=seed, device="cpu")
        drive(optimizer, task, 45 * 8)
        index = flat(optimizer.recommend().theta, (4, 4, 4))
        assert task.mean_quality[index] >= task.problem.s_0
        assert task.mean_cost[index] < 0.9 * task.problem.reference_cost_usd


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": -1.0}, "beta=-1.0 must be a number >= 0, or theory"),
        ({"beta": "large"}, "beta='large' must be a number >= 0, or theory"),
        ({"beta": math.inf}, "beta=inf"),
        ({"beta": None}, "beta=None"),
        ({"B_c": -0.1}, "B_c=-0.1 must be a number >= 0"),
        ({"R_g": math.nan}, "R_g=nan must be a number >= 0"),
        ({"delta": 0.0}, r"delta=0.0 must lie in \(0, 1\)"),
        ({"incumbent": "latest"}, "incumbent='latest' must be bof or last_queried"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        CONFIG(make_task(1, (4, 3), 6).problem, seed=0, **settings)


def test_settings_tell_everything_apart():
    problem = make_task(1, (4, 3), 6).problem
    default = CONFIG(problem, seed=0).settings()
    changed = {"beta": "theory", "delta": 0.1, "incumbent": "last_queried"}
    changed |= dict.fromkeys(["B_c", "B_g", "R_c", "R_g"], 0.5)
    for name, value in changed.items():
        assert CONFIG(problem, seed=0, **{name: value}).settings() != default
