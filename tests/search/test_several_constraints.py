"""Searches with three constraints: the model's outputs, the bounds, every method, the guarantee."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from constrained import CAP, constrained_task, feasible
from long_runs import among_others

from scope_torch.baselines.cei import CEI
from scope_torch.baselines.config_bo import CONFIG
from scope_torch.baselines.llmselector import LLMSelector
from scope_torch.baselines.optuna_gp import OptunaGP
from scope_torch.baselines.random_search import RandomSearch
from scope_torch.baselines.safeopt import SafeOpt
from scope_torch.bounds import Beta, TheoryBounds, TunedBounds
from scope_torch.bounds.information_gain import RealisedGain
from scope_torch.constraints import at_most
from scope_torch.errors import InputError
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.model.device_sums import DeviceSums
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.model.tensor_joint import TensorJointSurrogate
from scope_torch.model.tensor_surrogate import TensorSurrogate
from scope_torch.runs.runner import run
from scope_torch.search.candidate import QueryCandidate
from scope_torch.search.joint_candidate import JointCandidate
from scope_torch.space import ConfigSpace
from scope_torch.space_search.device_grid import DevicePosterior
from scope_torch.space_search.device_joint import DeviceJointPosterior, make_joint_posterior
from scope_torch.space_search.grid import GridPosterior

KERNEL, SPACE, Q = HammingMatern52Kernel(), ConfigSpace((3, 4)), 6
THETA = list(itertools.product(range(3), range(4)))


def history(seed, count=40):
    """(theta, query, y_c, (y_g of three constraints)), with repeats."""
    rng = np.random.default_rng(seed)
    return [
        (THETA[rng.integers(12)], int(rng.integers(Q)), rng.uniform(0.1, 1), rng.normal(size=3))
        for _ in range(count)
    ]


@pytest.mark.parametrize("kind", [QuerySurrogate, TensorSurrogate])
@pytest.mark.parametrize("seed", range(3))
def test_each_output_of_the_queries_is_that_of_a_model_of_its_own(seed, kind):
    together = kind(SPACE, KERNEL, Q, 1e-4, num_constraints=3)
    alone = [QuerySurrogate(SPACE, KERNEL, Q, 1e-4) for _ in range(3)]
    for theta, query, y_c, y_g in history(seed):
        together.observe(theta, query, y_c, *y_g)
        for one, y in zip(alone, y_g, strict=True):
            one.observe(theta, query, y_c, y)
    for theta in THETA:
        mean, variance = together.moments(theta)
        for k, one in enumerate(alone):
            of_c, of_g = one.moments(theta)[0]
            np.testing.assert_allclose(mean[0], of_c, rtol=0, atol=1e-12)
            np.testing.assert_allclose(mean[1 + k], of_g, rtol=0, atol=1e-12)
            np.testing.assert_allclose(variance, one.moments(theta)[1], rtol=0, atol=1e-12)
    for k, one in enumerate(alone):
        torch.testing.assert_close(together.weights()[1 + k], one.weights()[1], rtol=0, atol=1e-12)
    botorch = together.as_botorch_model()
    X = torch.tensor(THETA, dtype=torch.float64).unsqueeze(-2)
    assert botorch.posterior(X).mean.shape == (12, 1, 4)
    for k, one in enumerate(alone):
        expected = one.as_botorch_model().posterior(X).mean[..., 1]
        torch.testing.assert_close(botorch.posterior(X).mean[..., 1 + k], expected)


@pytest.mark.parametrize("kind", [JointSurrogate, TensorJointSurrogate])
@pytest.mark.parametrize("seed", range(3))
def test_each_output_of_the_joint_model_is_that_of_a_model_of_its_own(seed, kind):
    """At the hyperparameters that were fitted to all of them."""
    together = kind(SPACE, KERNEL, Q, 1e-4, num_constraints=3)
    rows = history(seed)
    for number, (theta, query, y_c, y_g) in enumerate(rows):
        together.observe(theta, query, y_c, *(y_g * (1, 5, 0.2)))
        if number == len(rows) // 2:
            together.refit()
            together.aggregates()  # the others are taken in row by row
    rho = together.hyperparameters[1].rho
    assert [h.rho for h in together.hyperparameters[1:]] == [rho] * 3
    assert together.units()[1] > 2 > 0.5 > together.units()[2] > 0
    for k in range(3):
        amplitude = together.hyperparameters[1 + k].amplitude
        alone = JointSurrogate(SPACE, KERNEL, Q, 1e-4, rho=rho, amplitude=amplitude)
        for number, (theta, query, y_c, y_g) in enumerate(rows):
            alone.observe(theta, query, y_c, y_g[k] * (1, 5, 0.2)[k])
            if number == len(rows) // 2:
                alone.refit()
        assert alone.hyperparameters[1] == together.hyperparameters[1 + k]
        expected, got = alone.aggregates()[1], together.aggregates()[1]
        scale = float(expected.weights[1].abs().max())
        difference = (got.weights[1 + k] - expected.weights[1]).abs().max()
        assert float(difference) <= 1e-9 * scale
        unit = together.units()[k]
        torch.testing.assert_close(got.matrix * unit**2, expected.matrix, rtol=1e-9, atol=1e-12)
        order = list(range(Q))
        beta = Beta(2.0, 3.0)
        for theta in THETA[:4]:
            one, all_of_them = (JointCandidate(s, theta, order) for s in (alone, together))
            for candidate in (one, all_of_them):
                assert len(candidate.next_queries(3)) == 3
            constraint = all_of_them._posterior.constraints[k]
            assert constraint.mean == pytest.approx(one.mean_g, abs=1e-10)
            assert constraint.sigma == pytest.approx(
                (one.mean_g - one.lower_g(beta)) / beta.g, abs=1e-10
            )


def test_the_grid_has_the_bounds_of_the_worst_constraint():
    """L_g <= 0 exactly where every L_{g,k} = mu_k - beta_k sigma is, and the candidate agrees."""
    surrogate = QuerySurrogate(SPACE, KERNEL, Q, 1e-4, num_constraints=3)
    for theta, query, y_c, y_g in history(5):
        surrogate.observe(theta, query, y_c, *y_g)
    posterior = GridPosterior(surrogate, make_grid(SPACE, KERNEL))
    posterior.update()
    for units in ((), (1.0, 0.2, 3.0)):
        beta = Beta(0.1, 0.7, units=units)
        bounds = posterior.lower_bounds(beta, math.inf, None)
        posterior.make_exact(torch.arange(12))
        sigma = posterior.variance.sqrt().numpy()
        for index, theta in enumerate(THETA):
            mean, variance = surrogate.moments(theta)
            assert sigma[index] == pytest.approx(math.sqrt(variance.sum()) / Q, abs=1e-10)
            each = [units[k] if units else 1.0 for k in range(3)]
            lower = [mean[1 + k].mean() - beta.g * each[k] * sigma[index] for k in range(3)]
            worst = max(one / unit for one, unit in zip(lower, each, strict=True))
            candidate = QueryCandidate(surrogate, theta, range(Q))
            assert candidate.lower_g(beta) == pytest.approx(worst, abs=1e-10)
            assert (candidate.lower_g(beta) <= 0) == all(one <= 0 for one in lower)
            assert posterior.mean_g[index] - beta.g * sigma[index] == pytest.approx(worst, abs=1e-9)
            assert float(bounds.g[index]) <= worst + 1e-9


def test_the_joint_grid_and_candidate_agree():
    surrogate = JointSurrogate(SPACE, KERNEL, Q, 1e-4, num_constraints=3)
    for theta, query, y_c, y_g in history(6):
        surrogate.observe(theta, query, y_c, *(y_g * (1, 4, 0.3)))
    posterior = GridPosterior(surrogate, make_grid(SPACE, KERNEL))
    posterior.update()
    sigma = posterior.upper_variance_g.clone()
    beta = Beta(2.0, 3.0)
    posterior.make_exact(torch.arange(12))
    _ = posterior.variance
    sigma = posterior.upper_variance_g.sqrt()
    for index, theta in enumerate(THETA):
        candidate = JointCandidate(surrogate, theta, list(range(Q)))
        assert candidate.mean_g == pytest.approx(float(posterior.mean_g[index]), abs=1e-10)
        lower = float(posterior.mean_g[index] - beta.g * sigma[index])
        assert candidate.lower_g(beta) == pytest.approx(lower, abs=1e-9)


def posteriors_of(kinds, makes, rows, device):
    """On the CPU and on the device, with the answers of three constraints on different scales."""
    surrogates = []
    for kind, own in zip(kinds, ({}, {"device": device}), strict=True):
        surrogate = kind(SPACE, KERNEL, Q, 1e-4, num_constraints=3, **own)
        for theta, query, y_c, y_g in rows:
            surrogate.observe(theta, query, y_c, *(y_g * (1, 4, 0.3) - 0.3))
        surrogates.append(surrogate)
    made = [make(surrogate) for make, surrogate in zip(makes, surrogates, strict=True)]
    for posterior in made:
        posterior.update()
    return surrogates, made


def of_joint(surrogate):
    surrogate.refit(now=True)
    return make_joint_posterior(surrogate, has_margin=True)


OF_QUERIES = (
    (QuerySurrogate, TensorSurrogate),
    (
        lambda surrogate: GridPosterior(surrogate, make_grid(SPACE, KERNEL)),
        lambda surrogate: DevicePosterior(surrogate, DeviceSums(SPACE, KERNEL, surrogate.device)),
    ),
)
OF_JOINT = (JointSurrogate, TensorJointSurrogate), (of_joint, of_joint)


@pytest.mark.parametrize(
    ("of", "units"), [(OF_QUERIES, ()), (OF_QUERIES, (1.0, 0.2, 3.0)), (OF_JOINT, ())]
)  # the units of the joint model are its amplitudes
@pytest.mark.parametrize("seed", range(3))
def test_the_device_has_the_bounds_and_the_choices_of_the_cpu(of, units, seed, device):
    (plain, other), (cpu, there) = posteriors_of(*of, history(seed, 60), device)
    assert isinstance(there, DevicePosterior | DeviceJointPosterior)
    torch.testing.assert_close(there.mean_c.cpu(), cpu.mean_c, rtol=0, atol=1e-10)
    torch.testing.assert_close(there.mean_g.cpu(), cpu.mean_g, rtol=0, atol=1e-10)
    assert there.least_slope() == pytest.approx(cpu.least_slope(), abs=1e-9)
    beta = Beta(2.0 if of is OF_JOINT else 0.1, 1.5, units=units)
    for u_out, theta_out in ((math.inf, None), (0.6, 5)):
        one, two = (posterior.lower_bounds(beta, u_out, theta_out) for posterior in (cpu, there))
        torch.testing.assert_close(there.mean_g.cpu(), cpu.mean_g, rtol=0, atol=1e-10)
        assert two.least_c == pytest.approx(one.least_c, abs=1e-9)
        if math.isfinite(one.least_c):
            assert two.argmin_c(0.0, 1e-6, seed) == one.argmin_c(0.0, 1e-6, seed)
            if u_out < math.inf:
                promising = [m.most_promising(0.0, 1e-9, seed) for m in (one, two)]
                assert promising[0] == promising[1]
    assert other.information() == pytest.approx(plain.information(), abs=1e-9)
    for theta in THETA[:4]:
        if of is OF_JOINT:
            there.lower_bounds(beta, 0.6, 5)  # theta_out is looked at beside theta_cand
            candidates = [JointCandidate(s, theta, [*range(Q)]) for s in (plain, other)]
        else:
            candidates = [QueryCandidate(s, theta, range(Q)) for s in (plain, other)]
        for _ in range(2):
            asked = [candidate.next_queries(2) for candidate in candidates]
            assert asked[0] == asked[1]
            for query, surrogate in itertools.product(asked[0], (plain, other)):
                surrogate.observe(theta, query, 0.3, 0.1, -0.2, 0.05)
            for query, candidate in itertools.product(asked[0], candidates):
                candidate.update(query, 0.3, 0.1, -0.2, 0.05)
            lower = [candidate.lower_g(beta) for candidate in candidates]
            assert lower[0] == pytest.approx(lower[1], abs=1e-9)
        out = [averages_of(surrogate, SPACE.theta_at(5)) for surrogate in (plain, other)]
        np.testing.assert_allclose(*out, rtol=0, atol=1e-9)


def averages_of(surrogate, theta):
    """Of theta_out in the middle of the j-loop of another: means and standard deviations."""
    if isinstance(surrogate, JointSurrogate):
        of = surrogate.at(theta)
        return [(o.mean, o.sigma) for o in (of.cost, *of.constraints)]
    mean, variance = surrogate.moments(theta)
    return [*mean.mean(1), math.sqrt(variance.sum()) / Q]


def methods(problem):
    base = problem.theta_ref
    names = [names[code] for names, code in zip(problem.llms, base, strict=True)]
    yield make_scope(problem, base=names, seed=0)
    yield make_scope(problem, base=names, seed=0, certificate="sequence", bounds={"delta": 0.1})
    yield make_scope_joint(problem, base=names, seed=0)
    yield make_scope_joint(problem, base=names, seed=0, certificate="bounds")
    yield CEI(problem, seed=0, mask_repeats=True)
    yield CEI(problem, seed=0, incumbent="posterior_mean")
    yield CONFIG(problem, seed=0)
    yield SafeOpt(problem, seed=0)
    yield SafeOpt(problem, seed=0, lipschitz=0.02)
    yield RandomSearch(problem, seed=0)
    yield OptunaGP(problem, seed=0, n_startup_trials=3)


@pytest.mark.parametrize("which", [*range(8), *map(among_others, range(8, 11))])
@pytest.mark.slow
def test_every_method_ends_at_something_feasible(which):
    """What it evaluated completely or certified satisfies every constraint, on the table."""
    improved = 0
    for seed in (3, 5, 8):
        problem, evaluator = constrained_task(seed)
        method = list(methods(problem))[which]
        result = run(problem, method, evaluator, budget_usd=300 * float(evaluator.cost.mean()))
        out = problem.space.index_of(result.recommendation.theta)
        ok = feasible(problem, evaluator)
        summary = result.summary()
        if result.recommendation.basis in ("certified", "observed"):
            assert ok[out], (method.name, seed)
        assert summary["feasible"] == ok[out]
        assert summary["constraints"][1:] == ["latency_s <= 1 cap 4", "safety >= 0.7"]
        cost = evaluator.cost.mean(-1).ravel()
        if ok.any():
            assert summary["optimal_cost_usd"] == pytest.approx(cost[ok].min())
        improved += result.recommendation.basis != "reference"
        if isinstance(method, RandomSearch) and ok[problem.space.index_of(problem.theta_ref)]:
            assert cost[out] == pytest.approx(cost[ok].min())  # it evaluated everything
    assert improved


def test_the_curve_has_every_violation():
    problem, evaluator = constrained_task(8)
    # Without the other constraints it ends at the cheapest of sufficient quality.
    careless = replace(problem, constraints=(), reference_outcomes={})
    method = RandomSearch(careless, seed=0)
    result = run(careless, method, evaluator, budget_usd=300 * float(evaluator.cost.mean()))
    truth = (*evaluator.truth(), *evaluator.true_outcomes(problem.limits[1:]))
    curve = replace(result, problem=problem, truth=truth).curve
    assert curve is not None
    out = problem.space.theta_at(problem.space.index_of(result.recommendation.theta))
    latency = np.minimum(evaluator.latency[out], CAP).mean()
    safety = evaluator.safety[out].mean()
    at = len(curve.budget_usd) - 1
    assert curve.others is not None
    expected = [max(latency - 1.0, 0) / 1.0, max(0.7 - safety, 0) / 0.7]
    assert curve.others[at] == pytest.approx(expected)
    assert sum(expected) > 0
    assert not curve.feasible[at]
    far = 1e9 * float(curve.budget_usd[-1] + 1)
    each = [float(curve.violation(far, which)) for which in range(3)]
    assert each[1:] == pytest.approx(expected, rel=1e-6)
    assert float(curve.violation(far)) == pytest.approx(sum(each))


def test_methods_with_one_constraint_say_so():
    problem, _ = constrained_task(0)
    with pytest.raises(InputError, match="llmselector knows a bound on quality only"):
        LLMSelector(problem, seed=0)
    with pytest.raises(InputError, match="3 constraints: branch and bound takes one"):
        make_scope_joint(problem, base=list(problem.names(problem.theta_ref).values()),
                         space_search="branch_and_bound")  # fmt: skip
    unknown = replace(problem, reference_outcomes={})
    with pytest.raises(InputError, match="theta_0's average latency_s is not known"):
        CEI(unknown, seed=0)


def test_theory_takes_the_union_over_constraints():
    problem, _ = constrained_task(0, num_queries=12)
    lam, delta = 1e-2, 0.05
    bounds = TheoryBounds(problem, RealisedGain(KERNEL, lam), R_g=0.1, B_g=2.0, delta=delta)
    information = [0.3] * 12
    b = 2.0 + 0.1 / math.sqrt(lam) * math.sqrt(2 * (0.3 + math.log((1 + 3) * 12 / delta)))
    assert bounds.beta(1, information).g == pytest.approx(math.sqrt(12) * b)


def test_tuned_half_widths_are_each_constraints_own():
    problem, evaluator = constrained_task(2, num_queries=16)
    bounds = TunedBounds(problem, b_g="loo")
    surrogate = QuerySurrogate(problem.space, KERNEL, 16, 1e-6, num_constraints=3)
    for theta in THETA[:7]:
        for observation in evaluator.evaluate([(theta, q, 0) for q in range(16)]):
            g = problem.violations(problem.grades(observation))
            surrogate.observe(theta, observation.query, observation.cost_usd, *g)
    bounds.fit(surrogate, lambda: 1.0)
    loo = surrogate.leave_one_out(6)[1:].amax(1)
    beta = bounds.beta(0)
    assert [beta.g * unit / 4 for unit in beta.units] == pytest.approx(loo.tolist())
    assert bounds.report()["b_g_units"] == list(beta.units)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["cost", "quality"])
def test_a_search_that_was_interrupted_ends_the_same(tmp_path, objective):
    """Outcomes are in the journal: half of it is enough to go on from."""
    problem, evaluator = constrained_task(8)
    if objective == "quality":
        bound = at_most(
            "cost_usd", float(np.median(evaluator.cost)), cap=float(evaluator.cost.max())
        )
        limits = (bound, *problem.constraints)
        problem = replace(problem, objective="quality", epsilon=None, constraints=limits)
    base = list(problem.names(problem.theta_ref).values())

    def search():
        method = make_scope_joint(problem, base=base, seed=1)
        budget = 300 * float(evaluator.cost.mean())
        return run(problem, method, evaluator, budget_usd=budget, run_dir=tmp_path / "run")

    first = search()
    journal = tmp_path / "run" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    assert b'"outcomes":{"safety":' in lines[0]
    (tmp_path / "run" / "result.json").unlink()
    journal.write_bytes(b"".join(lines[: len(lines) // 2]))
    again = search()
    assert journal.read_bytes() == b"".join(lines)
    assert again.replayed == len(lines) // 2
    assert again.recommendation == first.recommendation
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())["problem"]
    assert settings["constraints"] == [str(one) for one in problem.constraints]
