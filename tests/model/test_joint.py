"""The joint surrogate against one naive Gaussian process on all (theta, query) pairs."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_torch.bounds import Beta
from scope_torch.errors import InputError
from scope_torch.model.cost_scale import CostScale, lognormal_bound
from scope_torch.model.hamming_sums import make_grid
from scope_torch.model.joint import Hyperparameters, JointSurrogate
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.observation import Observation
from scope_torch.search import joint_candidate
from scope_torch.search.choice import MostPromising
from scope_torch.search.joint_candidate import JointCandidate
from scope_torch.space import ConfigSpace
from scope_torch.space_search.grid import GridPosterior

KERNEL = HammingMatern52Kernel()
SIZES, Q, LAM, AMPLITUDE = (3, 4, 2), 5, 1e-3, 0.7
SPACE = ConfigSpace(SIZES)
THETA = np.array(list(itertools.product(*map(range, SIZES))))
RHOS = (0.0, 0.3, 0.8)


def matern(a, b):
    d = np.sqrt((a[:, None, :] != b[None, :, :]).sum(-1))
    return (1 + math.sqrt(5) * d + 5 / 3 * d**2) * np.exp(-math.sqrt(5) * d)


def naive(history, rho, zeta, amplitude=AMPLITUDE):
    """Mean and covariance of f at all (theta, q), theta major, and log p(y): repeats repeated."""
    theta = np.array([row[0] for row in history])
    query = np.array([row[1] for row in history])
    y = np.array([row[2 + zeta] for row in history])

    def k(t1, q1, t2, q2):
        same = q1[:, None] == q2[None, :]
        return amplitude**2 * matern(t1, t2) * (rho + (1 - rho) * same)

    gram = k(theta, query, theta, query)
    gram += amplitude**2 * (1 - rho) * LAM * np.eye(len(y))
    all_theta, all_q = np.repeat(THETA, Q, axis=0), np.tile(np.arange(Q), len(THETA))
    cross = k(all_theta, all_q, theta, query)
    mean = cross @ np.linalg.solve(gram, y)
    cov = k(all_theta, all_q, all_theta, all_q) - cross @ np.linalg.solve(gram, cross.T)
    evidence = -0.5 * (y @ np.linalg.solve(gram, y) + np.linalg.slogdet(gram)[1])
    return mean, cov, evidence - 0.5 * len(y) * math.log(2 * math.pi)


def averages(mean, cov):
    over_q = np.kron(np.eye(len(THETA)), np.full((1, Q), 1 / Q))
    return over_q @ mean, np.diag(over_q @ cov @ over_q.T)


def random_history(seed, count=30, repeats=True):
    rng = np.random.default_rng(seed)
    rows = {}
    for _ in range(count):
        theta, q = tuple(int(rng.integers(n)) for n in SIZES), int(rng.integers(Q))
        key = (theta, q, len(rows)) if repeats else (theta, q)
        rows[key] = (theta, q, float(rng.random()), float(rng.normal()))
    return list(rows.values())


def surrogate_of(history, rho, **settings_):
    arguments = {"rho": rho, "amplitude": AMPLITUDE, "relative_cost": False, **settings_}
    surrogate = JointSurrogate(SPACE, KERNEL, Q, LAM, **arguments)
    for row in history:
        surrogate.observe(*row)
    return surrogate


def on_theta(surrogate, zeta):
    posterior = surrogate.aggregates()[zeta]
    k = torch.tensor(matern(THETA, posterior.codes.numpy()))
    variance = posterior.constant - ((k @ posterior.matrix) * k).sum(-1)
    return (k @ posterior.weights[zeta]).numpy(), variance.numpy()


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("zeta", [0, 1])
def test_averages_are_those_of_one_process_on_all_pairs(rho, zeta):
    history = random_history(1)
    mean, variance = on_theta(surrogate_of(history, rho), zeta)
    expected_mean, cov, _ = naive(history, rho, zeta)
    expected = averages(expected_mean, cov)
    np.testing.assert_allclose(mean, expected[0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(variance, expected[1], rtol=0, atol=1e-12)


def test_at_rho_0_it_is_the_surrogate_of_the_paper():
    history = random_history(2)
    joint = surrogate_of(history, 0.0, amplitude=1.0)
    paper = QuerySurrogate(SPACE, KERNEL, Q, LAM)
    for row in history:
        paper.observe(*row)
    aggregate = paper.aggregate()
    for posterior in joint.aggregates():
        torch.testing.assert_close(posterior.weights, aggregate.weights, rtol=0, atol=1e-11)
        torch.testing.assert_close(posterior.matrix, aggregate.matrix, rtol=0, atol=1e-12)
        assert posterior.constant == pytest.approx(aggregate.constant, abs=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("rho", RHOS)
def test_columns_are_taken_in_exactly(rho):
    """What one observation after the other leaves is what all at once give, and the variances."""
    history = random_history(12, count=16, repeats=False)
    pairs = {row[:2] for row in history}
    surrogate = surrogate_of(history, rho)
    posterior = GridPosterior(surrogate, make_grid(SPACE, KERNEL))
    posterior.update()
    assert (posterior.variance >= 0).all()  # all are made exact
    made = surrogate.collapsed()
    num_kept = 0
    for row in random_history(13, count=60, repeats=False):
        if row[:2] in pairs:
            continue
        surrogate.observe(*row)
        history.append(row)
        posterior.update()
        all_exact = bool(posterior.is_exact(torch.arange(len(THETA))).all())
        num_kept += surrogate.collapsed() is made and all_exact
        made = surrogate.collapsed()
        r = rho / (1 - rho)
        S, T = (
            torch.from_numpy(part)
            for part in (surrogate.queries.sum_of_inverses(), surrogate.queries.total())
        )
        K = torch.from_numpy(matern(*(surrogate.queries.observed().numpy(),) * 2))
        inner = torch.eye(len(K), dtype=torch.float64) + r * S @ K
        for zeta, one in enumerate(made):
            torch.testing.assert_close(one.B, torch.linalg.solve(inner, S), rtol=0, atol=1e-12)
            (t,) = one.t
            torch.testing.assert_close(t, torch.linalg.solve(inner, T[zeta]), rtol=0, atol=1e-11)
            assert one.log_det == pytest.approx(float(torch.logdet(inner)), abs=1e-10)
        upper = posterior.upper_variance, posterior.upper_variance_g
        for zeta in (0, 1):
            exact = averages(*naive(history, rho, zeta)[:2])[1]
            assert (upper[zeta].numpy() >= exact - 1e-12).all()
            if all_exact:
                np.testing.assert_allclose(upper[zeta], exact, rtol=0, atol=1e-12)
    assert num_kept > 10


@pytest.mark.slow
@given(seed=st.integers(0, 10_000), u_out=st.sampled_from([0.002, 0.02, 0.3]))
@settings(max_examples=15)
def test_the_most_promising(seed, u_out):
    """Of all with L_g <= 0 and L_c <= u_out: P(g <= 0), at most 1/2, times (u_out - L_c) / L_c."""
    history = [(t, q, 10.0 ** -(1 + t[0]) * (1 + y), g) for t, q, y, g in random_history(seed)]
    surrogate = surrogate_of(history, None, amplitude=None, relative_cost=True)
    posterior = GridPosterior(surrogate, make_grid(SPACE, KERNEL))
    beta, theta_out = Beta(2.0, 2.5), seed % len(THETA)
    for extra in random_history(seed + 1, count=6):
        posterior.update()
        lower = posterior.lower_bounds(beta, u_out, theta_out)
        value = []
        for codes in THETA.tolist():
            candidate = JointCandidate(surrogate, tuple(codes), range(Q))
            L_c, L_g = candidate.lower_c(beta), candidate.lower_g(beta)
            mean = (L_g + candidate.upper_g(beta)) / 2
            sigma = (candidate.upper_g(beta) - mean) / 2.5
            probability = min(0.5, 0.5 * math.erfc(mean / sigma / math.sqrt(2)))
            improvement = probability * (u_out - L_c) / L_c
            value.append(improvement if L_g <= 0 and L_c <= u_out else -math.inf)
        value[theta_out] = -math.inf
        if max(value) > 0:
            assert value[MostPromising().select(1, lower, 0.0, seed)] == pytest.approx(
                max(value), rel=1e-7
            )
        surrogate.observe(*extra)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("theta", [5, 11])
@pytest.mark.parametrize(("in_order", "first"), [(False, 1), (True, 1), (True, 2), (True, 100)])
def test_the_candidate_follows_the_process(rho, batch, theta, in_order, first, monkeypatch):
    """With queries chosen or given, and groups opened as they are needed, or at once."""
    monkeypatch.setattr(joint_candidate, "_FIRST", first)
    history, rng = random_history(3), np.random.default_rng(4)
    codes = tuple(THETA[theta].tolist())
    candidate = JointCandidate(surrogate_of(history, rho), codes, [3, 1, 4, 0, 2], in_order)
    asked, beta = [], Beta(1.0, 1.0, 2.0)
    while queries := candidate.next_queries(batch):
        for q in queries:
            observation = Observation(codes, q, float(rng.random()), float(rng.random()))
            candidate.update(observation.query, observation.cost_usd, 0.5 - observation.quality)
            history.append((codes, q, observation.cost_usd, 0.5 - observation.quality))
            c = candidate.lower_c(beta), candidate.upper_c(beta)
            g = candidate.lower_g(beta), candidate.upper_g(beta)
            assert {type(bound) for bound in (*c, *g)} == {float}  # they are shown to users
            for zeta, (lower, upper), wide in ((0, c, 1.0), (1, g, 2.0)):
                mean, variance = averages(*naive(history, rho, zeta)[:2])
                sigma = math.sqrt(variance[theta])
                assert lower == pytest.approx(mean[theta] - sigma, abs=1e-9)
                assert upper == pytest.approx(mean[theta] + wide * sigma, abs=1e-9)
        asked += queries
    assert sorted(asked) == list(range(Q))


@pytest.mark.parametrize("rho", RHOS)
def test_the_next_query_lowers_the_variance_most(rho):
    history, codes = random_history(5, count=14), (1, 2, 0)
    candidate = JointCandidate(surrogate_of(history, rho), codes, list(range(Q)))
    at = THETA.tolist().index(list(codes))
    left = set(range(Q))
    for _ in range(Q):
        (chosen,) = candidate.next_queries(1)
        after = {q: averages(*naive([*history, (codes, q, 0.0, 0.0)], rho, 1)[:2])[1] for q in left}
        assert after[chosen][at] <= min(v[at] for v in after.values()) + 1e-12
        candidate.update(chosen, 0.1, 0.0)
        history.append((codes, chosen, 0.1, 0.0))
        left.remove(chosen)


@pytest.mark.parametrize("zeta", [0, 1])
def test_marginal_likelihood(zeta):
    history = random_history(6, repeats=False)  # repeats are merged: their scatter is left out
    surrogate = surrogate_of(history, None, amplitude=None)
    rho = torch.tensor([0.05, 0.3, 0.8], dtype=torch.float64)
    observed, amplitude2 = surrogate.log_marginal_likelihood(rho)[zeta]
    expected = [
        naive(history, float(r), zeta, math.sqrt(float(a)))[2]
        for r, a in zip(rho, amplitude2, strict=True)
    ]
    np.testing.assert_allclose(np.diff(observed), np.diff(expected), rtol=0, atol=1e-8)
    for r, a, best in zip(rho, amplitude2, expected, strict=True):
        for factor in (0.98, 1.02):
            assert naive(history, float(r), zeta, factor * math.sqrt(float(a)))[2] < best


@pytest.mark.slow
@given(seed=st.integers(0, 10_000))
@settings(max_examples=6)
def test_bounds_on_all_of_theta(seed):
    """L_c and L_g of the grid are those of the candidates, at fitted hyperparameters."""
    history = [(t, q, 10.0 ** -(1 + t[0]) * (1 + y), g) for t, q, y, g in random_history(seed)]
    surrogate = surrogate_of(history, None, amplitude=None, relative_cost=True)
    posterior = GridPosterior(surrogate, make_grid(SPACE, KERNEL))
    beta = Beta(2.0, 2.0)
    for extra in random_history(seed + 1, count=6):
        posterior.update()
        lower = posterior.lower_bounds(beta, math.inf, None)
        candidates = [JointCandidate(surrogate, tuple(t), range(Q)) for t in THETA.tolist()]
        lower_c = np.array([c.lower_c(beta) for c in candidates])
        lower_g = np.array([c.lower_g(beta) for c in candidates])
        assert (lower.c.numpy() <= lower_c + 1e-9).all()
        assert (lower.g.numpy() <= lower_g + 1e-9).all()
        assert lower.least_g == pytest.approx(lower_g.min(), abs=1e-9)
        may_be = lower_c[lower_g <= 0]
        assert lower.least_c == pytest.approx(may_be.min() if len(may_be) else math.inf, rel=1e-9)
        assert (lower_c > 0).all()  # costs are positive
        surrogate.observe(*extra)


def test_relative_costs_are_those_of_the_scaled_process():
    history = random_history(7)
    surrogate = surrogate_of(history, 0.3, relative_cost=True)
    assert surrogate.refit()
    a = np.array([surrogate.scale.at(theta) for theta in THETA.tolist()])
    index = {tuple(theta): i for i, theta in enumerate(THETA.tolist())}
    relative = [(t, q, c / a[index[t]] - 1, g) for t, q, c, g in history]
    mean, variance = averages(*naive(relative, 0.3, 0)[:2])
    posterior = GridPosterior(surrogate, make_grid(SPACE, KERNEL))
    posterior.update()
    np.testing.assert_allclose(posterior.mean_c.numpy(), a * (1 + mean), rtol=0, atol=1e-9)
    lower = posterior.lower_bounds(Beta(2.0, 2.0), math.inf, None)
    posterior.make_exact(torch.arange(len(THETA)))
    posterior.fill_lower(slice(None), Beta(2.0, 2.0), lower.c, lower.g)
    expected = a * [
        lognormal_bound(m, math.sqrt(v), -2.0) for m, v in zip(mean, variance, strict=True)
    ]
    np.testing.assert_allclose(lower.c.numpy(), expected, rtol=1e-9)


def test_the_lognormal_bound_has_the_right_moments():
    mean, sigma = 0.3, 0.6  # of c / a - 1
    log_sigma = math.log(lognormal_bound(mean, sigma, 1.0)) - math.log(
        lognormal_bound(mean, sigma, 0.0)
    )
    log_mean = math.log(lognormal_bound(mean, sigma, 0.0))
    assert math.exp(log_mean + log_sigma**2 / 2) == pytest.approx(1 + mean)
    spread = (math.exp(log_sigma**2) - 1) * math.exp(2 * log_mean + log_sigma**2)
    assert math.sqrt(spread) == pytest.approx(sigma)
    assert lognormal_bound(mean, sigma, 1e9) == math.inf
    assert lognormal_bound(mean, sigma, -1e9) == 0


def test_refits_when_the_observations_have_doubled():
    surrogate = surrogate_of([], None, amplitude=None, relative_cost=True)
    assert not surrogate.refit()
    fitted = []
    for count, row in enumerate(random_history(8, count=40), start=1):
        surrogate.observe(*row)
        if surrogate.refit():
            fitted.append(count)
    assert fitted == [1, 2, 4, 8, 16, 32]


def test_rho_is_found():
    """Draws of the model: the estimate of rho tells 0.1 from 0.7."""
    rng, num_queries = np.random.default_rng(9), 30
    codes = THETA
    root = np.linalg.cholesky(matern(codes, codes))
    found = {}
    for rho in (0.1, 0.7):
        shared = math.sqrt(rho) * root @ rng.normal(size=len(codes))
        own = math.sqrt(1 - rho) * root @ rng.normal(size=(len(codes), num_queries))
        surrogate = JointSurrogate(SPACE, KERNEL, num_queries, 1e-6, relative_cost=False)
        for i, q in itertools.product(range(len(codes)), range(num_queries)):
            surrogate.observe(tuple(codes[i].tolist()), q, 0.0, 0.2 * float(shared[i] + own[i, q]))
        surrogate.refit()
        found[rho] = surrogate.hyperparameters[1]
    assert found[0.1].rho < 0.25 < 0.45 < found[0.7].rho
    assert found[0.7].amplitude == pytest.approx(0.2, rel=0.5)


@pytest.mark.parametrize("margin", [0.0, -0.01])
def test_a_constraint_that_is_always_met_by_as_much_decides_no_rho(margin):
    """As "valid output" >= 1 or 0.99, where every output is valid: it has no rho, or rho = 1."""
    alone, beside = (surrogate_of([], None, amplitude=None, num_constraints=k) for k in (1, 2))
    for row in random_history(9):
        alone.observe(*row)
        beside.observe(*row, margin)
    for surrogate in (alone, beside):
        surrogate.refit()
    assert beside.hyperparameters[1] == alone.hyperparameters[1]
    assert beside.hyperparameters[2].rho == alone.hyperparameters[1].rho
    assert 1e-6 <= beside.hyperparameters[2].amplitude <= max(1e-6, 3 * abs(margin))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rho": 1.0}, r"rho=1.0 must lie in \[0, 1\)"),
        ({"rho": -0.1}, "rho=-0.1"),
        ({"rho": math.nan}, "rho=nan"),
        ({"amplitude": 0.0}, "amplitude=0.0 must be a positive number"),
        ({"lam": 0.0}, "lam=0.0 must be at least"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        JointSurrogate(SPACE, KERNEL, Q, **{"lam": LAM, **arguments})


def test_before_any_fit_the_scale_is_one():
    assert CostScale.one(SPACE).at((0, 0, 0)) == 1.0
    assert surrogate_of([], 0.0).hyperparameters == (Hyperparameters(0.0, AMPLITUDE),) * 2
