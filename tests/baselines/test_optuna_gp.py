"""Optuna's sampler behind the ask/tell protocol."""

import importlib
import logging
import sys
from dataclasses import replace

import pytest
from constrained import constrained_task
from gp_reference import best_feasible, choices, flat, reference_row
from hydra import compose, initialize_config_dir
from tables import make_task

from scope_torch.baselines.optuna_gp import OptunaGP, import_optuna
from scope_torch.cli.registry import config_dir
from scope_torch.cli.run import build
from scope_torch.errors import InputError
from scope_torch.runs.runner import run
from scope_torch.testing import OptimizerConformance, drive

try:
    importlib.import_module("optuna")
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True
needs_optuna = pytest.mark.skipif(not INSTALLED, reason="the extra `peers` is not installed")


@needs_optuna
class TestOptunaGP(OptimizerConformance):
    count = 30

    @pytest.fixture
    def make_optimizer(self):
        # Fitting is slow; the tests below fit.
        return lambda problem, seed: OptunaGP(problem, seed=seed, n_startup_trials=20)


@pytest.mark.slow
@needs_optuna
def test_fitted_choices_follow_from_the_seed_and_the_observations():
    task = make_task(2, (4, 3, 3), 6)
    runs = []
    for seed in (0, 0, 1):
        optimizer = OptunaGP(task.problem, seed=seed, n_startup_trials=2)
        runs.append([theta for _, theta in choices(optimizer, task, 5)])
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.slow
@needs_optuna
def test_tells_optuna_what_was_observed(monkeypatch):
    """The study holds theta_0 and every evaluation, with relative cost and g; some again."""
    studies = []
    optuna = import_optuna()
    create_study = optuna.create_study

    def watched(**arguments):
        studies.append(create_study(**arguments))
        return studies[-1]

    monkeypatch.setattr(optuna, "create_study", watched)
    task = make_task(2, (4, 3, 1), 6)
    problem = task.problem
    optimizer = OptunaGP(problem, seed=0, n_startup_trials=4)
    rows = [reference_row(problem)]
    for done, _ in choices(optimizer, task, 7):
        expected = rows + done
        (study,) = studies
        assert study.direction.name == "MINIMIZE"
        trials = [t for t in study.get_trials() if t.state.name == "COMPLETE"]
        thetas = [tuple(trial.params[m] for m in problem.modules) for trial in trials]
        assert list(dict.fromkeys(thetas)) == [row[0] for row in expected]
        of = {row[0]: row[1:] for row in expected}
        for trial, (cost, g) in zip(trials, map(of.get, thetas), strict=True):
            assert trial.value == pytest.approx(cost / problem.reference_cost_usd)
            assert trial.constraints == {"g": pytest.approx(g)}
        assert optimizer.recommend().theta == best_feasible(problem, done)[0]


@needs_optuna
@pytest.mark.parametrize("theta0_obs", ["free", "charged", "none"])
def test_the_reference_is_free_charged_or_no_trial(theta0_obs):
    task = make_task(2, (4, 3), 6)
    optimizer = OptunaGP(task.problem, seed=0, theta0_obs=theta0_obs)
    asked = optimizer.ask()[0].theta
    assert (asked == task.problem.theta_ref) == (theta0_obs == "charged")
    assert optimizer.spend_usd == 0.0


@needs_optuna
def test_the_gp_takes_over_after_the_startup_trials(monkeypatch):
    optuna = import_optuna()
    calls = []
    original = optuna.samplers.GPSampler._sample_relative_impl

    def counted(self, study, completed, *rest):
        calls.append(len(completed))
        return original(self, study, completed, *rest)

    monkeypatch.setattr(optuna.samplers.GPSampler, "_sample_relative_impl", counted)
    task = make_task(2, (4, 3), 6)
    drive(OptunaGP(task.problem, seed=0, n_startup_trials=3), task, 24)
    assert calls == [3, 4]


@needs_optuna
def test_nothing_is_logged_and_the_verbosity_is_left_alone():
    """Not even for a module with one candidate, which the GP leaves out."""
    optuna, messages = import_optuna(), []
    handler = logging.Handler()
    handler.emit = messages.append
    logger, verbosity = logging.getLogger("optuna"), optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    logger.addHandler(handler)
    try:
        task = make_task(2, (4, 3, 1), 6)
        drive(OptunaGP(task.problem, seed=0, n_startup_trials=2), task, 18)
        assert optuna.logging.get_verbosity() == optuna.logging.INFO
    finally:
        logger.removeHandler(handler)
        optuna.logging.set_verbosity(verbosity)
    assert messages == []


@pytest.mark.slow
@needs_optuna
def test_finds_something_cheaper_that_is_feasible():
    task = make_task(1, (4, 3, 3), 6)
    optimizer = OptunaGP(task.problem, seed=0, n_startup_trials=8)
    run(task.problem, optimizer, task.evaluator(), task.budget(14))
    index = flat(optimizer.recommend().theta, (4, 3, 3))
    assert task.mean_quality[index] >= task.problem.s_0
    assert task.mean_cost[index] < 0.9 * task.problem.reference_cost_usd


@pytest.mark.slow
@needs_optuna
@pytest.mark.parametrize("theta0_obs", ["free", "charged", "none"])
def test_what_is_suggested_again_is_told_again_for_nothing(theta0_obs):
    task = make_task(2, (3, 2), 6)
    optimizer = OptunaGP(task.problem, seed=0, n_startup_trials=2, theta0_obs=theta0_obs)
    result = run(task.problem, optimizer, task.evaluator(), task.budget(50))
    tried = [evaluation.theta for evaluation in optimizer.evaluations]
    assert len(tried) == len(set(tried)) == 6 - (theta0_obs == "free")
    assert (task.problem.theta_ref in tried) == (theta0_obs != "free")
    assert result.stop_reason == "nothing new is suggested"


@needs_optuna
def test_an_unfinished_evaluation_is_no_observation():
    task = make_task(2, (4, 3), 6)
    optimizer = OptunaGP(task.problem, seed=0)
    drive(optimizer, task, 12)
    requests = optimizer.ask()
    optimizer.tell([task.observe(request) for request in requests[:2]])
    assert len(optimizer.evaluations) == 2
    assert list(optimizer.ask()) == []


@needs_optuna
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_startup_trials": 0}, "n_startup_trials=0 must be a whole number >= 1"),
        ({"n_startup_trials": float("inf")}, "n_startup_trials=inf must be a whole number >= 1"),
        ({"theta0_obs": "never"}, "theta0_obs='never' must be free, charged or none"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        OptunaGP(make_task(1, (4, 3), 6).problem, seed=0, **settings)


@needs_optuna
def test_settings_tell_everything_apart():
    problem = make_task(1, (4, 3), 6).problem
    default = OptunaGP(problem, seed=0).settings()
    for name, value in {"n_startup_trials": 3, "theta0_obs": "none"}.items():
        assert OptunaGP(problem, seed=0, **{name: value}).settings() != default


@needs_optuna
def test_the_config_file_is_the_default():
    problem = make_task(1, (4, 3), 6).problem
    with initialize_config_dir(config_dir(), version_base="1.3"):
        cfg = compose("config", overrides=["method=optuna_gp"])
    built = build(cfg.method, problem=problem, seed=3, kernel=None, device="cpu")
    assert built.settings() == OptunaGP(problem, seed=3).settings()


@pytest.mark.parametrize("missing", ["optuna", "scipy"])
def test_a_missing_package_is_named_with_the_extra(monkeypatch, missing):
    if missing == "scipy" and not INSTALLED:
        pytest.skip("the extra `peers` is not installed")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=r"pip install 'scope-torch\[peers\]'") as error:
        OptunaGP(make_task(1, (4, 3), 6).problem, seed=0)
    assert "\n" not in str(error.value)


@needs_optuna
def test_a_mean_and_a_quantile_of_one_outcome_are_two_constraints():
    problem, _ = constrained_task(0)
    limits = ["latency_s <= 1 cap 4", "p60(latency_s) <= 1"]
    known = {"latency_s": 0.5, limits[1]: 0.75}
    problem = replace(problem, constraints=limits, reference_outcomes=known)
    (trial,) = OptunaGP(problem, seed=0)._study().trials
    assert list(trial.constraints) == ["g", "latency_s", "p60(latency_s) <= 1"]
    assert list(trial.constraints.values())[1:] == pytest.approx([-0.125, -0.15])


@needs_optuna
def test_an_optuna_without_constraints_of_trials_is_refused(monkeypatch):
    optuna = import_optuna()
    for owner in (optuna.trial.Trial, optuna.trial.BaseTrial):
        monkeypatch.delattr(owner, "set_constraint", raising=False)
    with pytest.raises(InputError, match="too old"):
        OptunaGP(make_task(1, (4, 3), 6).problem, seed=0)
