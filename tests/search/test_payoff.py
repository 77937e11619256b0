"""Whether a search still pays, by its definition, and what it does to a search."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import lognorm, norm
from tables import make_task

from scope_torch.bounds.base import Beta
from scope_torch.errors import InputError
from scope_torch.methods import make_scope_joint
from scope_torch.model.cost_scale import CostScale, expected_saving
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.model.tensor_joint import TensorJointSurrogate
from scope_torch.runs.runner import run
from scope_torch.search.joint_candidate import JointCandidate
from scope_torch.search.payoff import ExpectedReturn, derived_deployment
from scope_torch.search.stopping import NO_LONGER_PAYS
from scope_torch.space import ConfigSpace
from scope_torch.space_search.device_joint import make_joint_posterior
from scope_torch.tasks.synthetic import synthetic_task

BETA = Beta(3.0, 2.0)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("sd", [0.05, 0.4, 1.5])
@pytest.mark.parametrize("mean", [0.2, 1.0, 3.0])
def test_expected_saving_is_the_integral(mean, sd):
    """E[(u - c)+] of a cost whose lower bound is 3 standard deviations from its mean."""
    u = 1.3
    # The logarithm of c is normal with this standard deviation, and c has this mean.
    cost = lognorm(sd, scale=mean * math.exp(-(sd**2) / 2))
    lower = math.exp(math.log(mean) - sd**2 / 2 - 3 * sd)
    expected, _ = quad(lambda c: (u - c) * cost.pdf(c), 0, u, points=[min(mean, u / 2)])
    found = float(expected_saving(tensor(mean), tensor(lower), 3.0, u))
    assert found == pytest.approx(expected, rel=1e-7, abs=1e-12)

    cost = norm(mean, sd)
    expected, _ = quad(lambda c: (u - c) * cost.pdf(c), mean - 12 * sd, u)
    found = float(expected_saving(tensor(mean), tensor(mean - 3 * sd), 3.0, u, lognormal=False))
    assert found == pytest.approx(expected if mean - 12 * sd < u else 0.0, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("sd", [0.4, 0.9, 1.5])
@pytest.mark.parametrize("mean", [0.2, 1.0, 3.0])
def test_expected_saving_is_the_same_however_wide_the_bounds_are(mean, sd):
    """Bounds are widened to 34 standard deviations; the cost has the same distribution."""
    lowers = [math.exp(math.log(mean) - sd**2 / 2 - b * sd) for b in (3.0, 34.0)]
    few, many = (
        float(expected_saving(tensor(mean), tensor(lower), b, 1.3))
        for lower, b in zip(lowers, (3.0, 34.0), strict=True)
    )
    assert many == pytest.approx(few, rel=1e-9)


def naive_return(H, Q, margin, u, mean_c, lower_c, mean_g, lower_g):
    """H P E[(u - c)+] / (n E[c]), n = P Q + 2 (1 - P), of a lognormal cost and a normal g."""
    P = min(0.5, norm.cdf(-margin, mean_g, (mean_g - lower_g) / BETA.g))
    sd = math.sqrt(BETA.c**2 + 2 * math.log(mean_c / lower_c)) - BETA.c
    cost = lognorm(sd, scale=mean_c * math.exp(-(sd**2) / 2))
    saving, _ = quad(lambda c: (u - c) * cost.pdf(c), 0, u, points=[min(mean_c, u / 2)])
    return H * P * saving / ((P * Q + 2 * (1 - P)) * mean_c)


@pytest.mark.parametrize("margin", [0.0, 0.03])
@pytest.mark.parametrize("mean_g", [-0.1, 0.0, 0.05, 0.2])
@pytest.mark.parametrize("mean_c", [0.001, 0.004])
def test_return_by_its_definition(mean_c, mean_g, margin):
    payoff = ExpectedReturn(156, 1e4, margin=lambda: margin)
    values = mean_c, 0.6 * mean_c, mean_g, mean_g - 0.11
    moments = ExpectedReturnOf(payoff).of(*values)
    assert moments == pytest.approx(naive_return(1e4, 156, margin, 0.003, *values), rel=1e-6)


@pytest.mark.parametrize("kind", [JointSurrogate, TensorJointSurrogate])
def test_theta_has_the_mean_costs_of_candidates(kind):
    """A mean near 0, or below, would make a configuration return more than as theta_cand."""
    space = ConfigSpace((2, 2))
    settings = {"rho": 0.5, "amplitude": 1.0, "fit_scale": lambda *_: CostScale.one(space)}
    joint = kind(space, HammingMatern52Kernel(), 2, 1e-6, **settings, device="cpu")
    for theta, usd in {(0, 0): 1.0, (0, 1): 1e-9, (1, 0): 1e-9}.items():
        for query in (0, 1):
            joint.observe(theta, query, usd, 0.0)
    posterior = make_joint_posterior(joint)
    posterior.update()
    thetas = map(space.theta_at, range(space.size))
    expected = [JointCandidate(joint, theta, [0, 1]).mean_c for theta in thetas]
    assert posterior.mean_c.tolist() == pytest.approx(expected)
    bounds = posterior.lower_bounds(BETA, 1.0, None)
    found = [bounds.whole.value(lambda moments: moments.mean_c, i) for i in range(space.size)]
    assert found == pytest.approx(expected)


class ExpectedReturnOf:
    """Returns of configurations with given moments, at u_out = 0.003 USD."""

    def __init__(self, payoff):
        self.payoff = payoff

    def of(self, mean_c, lower_c, mean_g, lower_g):
        from scope_torch.space_search.minima import Moments

        moments = Moments(tensor(mean_c), tensor(lower_c), tensor(mean_g), tensor(lower_g))
        return float(self.payoff.returns(moments, BETA, 0.003))


def test_certainty_and_free_llms():
    of = ExpectedReturnOf(ExpectedReturn(100, 1e3)).of
    # Certainly feasible at a third of u_out: P counts as 1/2, and n is 51.
    assert of(0.001, 0.001, -0.1, -0.1) == pytest.approx(1e3 * 0.5 * 0.002 / (51 * 0.001))
    assert of(0.001, 0.001, 0.1, 0.1) == 0.0  # certainly infeasible
    assert of(0.004, 0.004, -0.1, -0.1) == pytest.approx(0.0, abs=1e-12)  # certainly dearer
    assert of(0.001, math.inf, -0.1, -0.1) == 0.0  # theta_out
    # A free configuration counts as a millionth of u_out: the return is large, and finite.
    free = 1e3 * 0.5 * 0.003 / (51 * 1e-6 * 0.003)
    assert of(0.0, 0.0, -0.1, -0.1) == pytest.approx(free)


def searched(deployment_queries, budget_usd=50.0, seed=0, budget_known=False, **settings):
    task = synthetic_task(num_queries=40, num_modules=3)
    problem = replace(task.problem, deployment_queries=deployment_queries)
    given = {"budget_usd": budget_usd} if budget_known else {}
    optimizer = make_scope_joint(
        problem, base="small", seed=seed, device="cpu", **given, **settings
    )
    return run(problem, optimizer, task.evaluator, budget_usd=budget_usd)


@pytest.mark.slow
def test_more_runs_pay_for_more_search():
    """A larger H goes on where a smaller one stopped: nothing before is decided otherwise."""
    results = [searched(H) for H in (1.0, 1e3, 1e5, 1e9)]
    asked = [[(o.theta, o.query) for o in result.history] for result in results]
    for less, more in pairwise(asked):
        assert more[: len(less)] == less
    assert len(asked[0]) < len(asked[1]) < len(asked[3])
    assert results[0].stop_reason == results[1].stop_reason == NO_LONGER_PAYS
    assert results[0].report["expected_return"] <= 1
    assert results[3].recommendation.basis == "certified"


@pytest.mark.slow
def test_the_largest_return_on_theta_is_found():
    """With variances that are bounds only, and at every step of a search."""
    task = make_task(5, (4, 3, 5), 20, graded=False)
    problem = replace(task.problem, deployment_queries=1e4)
    optimizer = make_scope_joint(problem, base="llm0", seed=1, device="cpu")
    looked = []
    goes_on = optimizer.rules._payoff.goes_on

    def checked(candidate, minima):
        went_on = goes_on(candidate, minima)
        payoff, surrogate, beta = optimizer.rules._payoff, optimizer.belief.surrogate, minima.beta
        fresh = make_joint_posterior(surrogate)
        fresh.update()
        _ = fresh.variance  # all exact
        theta_out = problem.space.index_of(optimizer.recommend().theta)
        c, g = torch.empty(2, problem.space.size, dtype=torch.float64)
        fresh.fill_lower(slice(None), beta, c, g)
        mean_c, mean_g = fresh.mean_c.tolist(), fresh.mean_g.tolist()
        returns = [
            naive(payoff, minima.u_out, beta, *values)
            for k, values in enumerate(zip(mean_c, c.tolist(), mean_g, g.tolist(), strict=True))
            if k != theta_out
        ]
        assert went_on == (max(returns) > 1)
        value, index = minima.largest(lambda m: payoff.returns(m, beta, minima.u_out))
        assert value == pytest.approx(max(returns), rel=1e-6)
        assert index != theta_out
        looked.append(went_on)
        return went_on

    optimizer.rules._payoff.goes_on = checked
    while requests := optimizer.ask():
        optimizer.tell([task.observe(request) for request in requests])
    assert looked.count(True) > 3
    assert looked[-1] is False


def naive(payoff, u, beta, mean_c, lower_c, mean_g, lower_g):
    """As `naive_return`, with the closed form of the put option for speed."""
    P = min(0.5, norm.cdf(0.0, mean_g, (mean_g - lower_g) / beta.g))
    sd = math.sqrt(beta.c**2 + 2 * math.log(mean_c / lower_c)) - beta.c
    d = (math.log(u / mean_c) + sd**2 / 2) / sd
    saving = u * norm.cdf(d) - mean_c * norm.cdf(d - sd)
    n = P * 20 + 2 * (1 - P)
    return payoff.deployment_queries * P * saving / (n * mean_c)


@pytest.mark.slow
def test_the_same_on_a_device():
    """All moments are on the device there, and exact."""
    task = make_task(2, (4, 3, 3), 16, graded=False)
    problem = replace(task.problem, deployment_queries=3e3)
    asked = {}
    for surrogate in ("incremental", "tensor"):
        optimizer = make_scope_joint(problem, base="llm0", surrogate=surrogate, device="cpu")
        assert isinstance(optimizer.belief.surrogate, TensorJointSurrogate) == (
            surrogate == "tensor"
        )
        asked[surrogate] = []
        while requests := optimizer.ask():
            asked[surrogate] += [(r.theta, r.query) for r in requests]
            optimizer.tell([task.observe(request) for request in requests])
        assert optimizer.stop_reason == NO_LONGER_PAYS
    assert asked["incremental"] == asked["tensor"]


@pytest.mark.slow
def test_where_theta_is_too_large_the_candidate_stands_for_all():
    """At its L_c it returns more than at its mean: the search goes on at least as long."""
    task = make_task(2, (4, 3, 3), 16, graded=False)
    lengths = {}
    for space_search in ("grid", "branch_and_bound"):
        for H in (1.0, 1e7):
            problem = replace(task.problem, deployment_queries=H)
            optimizer = make_scope_joint(problem, base="llm0", space_search=space_search)
            while requests := optimizer.ask():
                optimizer.tell([task.observe(request) for request in requests])
            lengths[space_search, H] = optimizer.t
            if space_search == "branch_and_bound" and H == 1.0:
                assert optimizer.stop_reason == NO_LONGER_PAYS
    branched = [lengths["branch_and_bound", H] for H in (1.0, 1e7)]
    assert branched[0] == lengths["grid", 1.0]  # both stop after Calibrate
    assert branched[0] < branched[1]


@pytest.mark.slow
def test_bounds_are_widened_as_long_as_it_pays():
    wide = searched(1e12, budget_usd=1e3)
    assert wide.report["widened"] > 1  # not once only
    assert wide.stop_reason == NO_LONGER_PAYS
    assert searched(None).report["widened"] <= 1
    assert searched(1e12, budget_usd=1e3, bounds={"widenings": 0}).report["widened"] == 0


@pytest.mark.slow
def test_the_budget_says_what_nobody_says():
    known = searched(None, budget_usd=0.5, budget_known=True)
    c_0 = known.problem.reference_cost_usd
    assert known.report["deployment_queries"] == derived_deployment(0.5, c_0) == 100 * 0.5 / c_0
    said = searched(77.0, budget_usd=0.5, budget_known=True)
    assert said.report["deployment_queries"] == 77.0
    assert "deployment_queries" not in searched(None).report
    letter = searched(77.0, budget_usd=0.5, gap_tolerance=None)  # to the letter of the paper
    assert letter.stop_reason == "budget"


@pytest.mark.slow
def test_a_larger_budget_goes_on(tmp_path):
    """H derived from a larger budget is larger, so the journal is its beginning."""
    task = synthetic_task(num_queries=40, num_modules=3)
    results = []
    for budget in (0.02, 2.0):
        optimizer = make_scope_joint(task.problem, base="small", device="cpu", budget_usd=budget)
        results.append(run(task.problem, optimizer, task.evaluator, budget, run_dir=tmp_path))
    assert results[1].replayed == len(results[0].history) > 0
    assert len(results[1].history) > len(results[0].history)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
def test_wrong_deployments(value):
    with pytest.raises(InputError, match=f"deployment_queries={value} must be a positive number"):
        replace(synthetic_task().problem, deployment_queries=value)
