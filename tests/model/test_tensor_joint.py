"""The joint surrogate on a device against one naive process on all pairs, and against the CPU's."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_joint import (
    AMPLITUDE,
    KERNEL,
    LAM,
    RHOS,
    SPACE,
    THETA,
    Q,
    averages,
    naive,
    random_history,
    surrogate_of,
)

from scope_torch.bounds import Beta
from scope_torch.model.device_sums import DeviceSums
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.model.tensor_joint import TensorJointSurrogate
from scope_torch.search.choice import LeastCost, MostPromising
from scope_torch.search.joint_candidate import JointCandidate
from scope_torch.space import ConfigSpace, first_tied
from scope_torch.space_search import device_joint
from scope_torch.space_search.device_grid import Ties
from scope_torch.space_search.device_joint import (
    DeviceJointPosterior,
    FewMinima,
    make_joint_posterior,
)
from scope_torch.space_search.minima import Moments


def on_device(history, rho, device="cpu", **settings_):
    arguments = {"rho": rho, "amplitude": AMPLITUDE, "relative_cost": False, **settings_}
    surrogate = TensorJointSurrogate(SPACE, KERNEL, Q, LAM, device=device, **arguments)
    for row in history:
        surrogate.observe(*row)
    return surrogate


def steps(history):
    """The first observations at once, then the others by configuration."""
    yield history[:8]
    for row in history[8:]:
        yield [row]


@pytest.mark.slow
@pytest.mark.parametrize("rho", RHOS)
def test_averages_step_by_step(rho, device):
    history = random_history(1, count=100)
    surrogate, told = on_device([], rho, device), []
    posterior = make_joint_posterior(surrogate)
    assert isinstance(posterior, DeviceJointPosterior)
    for rows in steps(history):
        for row in rows:
            surrogate.observe(*row)
            told.append(row)
        posterior.update()
        if len(told) % 7:
            continue
        for zeta, mean in enumerate((posterior.mean_c, posterior.mean_g)):
            expected = averages(*naive(told, rho, zeta)[:2])
            np.testing.assert_allclose(mean.cpu(), expected[0], rtol=0, atol=1e-9)
            variance = posterior.variance[zeta].cpu()
            np.testing.assert_allclose(variance, expected[1], rtol=0, atol=1e-12)
    # 100 answers would be 100 rows; with twice as many as configurations W is made anew.
    assert surrogate.queries.of_queries().rows <= 2 * len(THETA)
    plain = surrogate_of(history, rho)
    assert surrogate.information() == pytest.approx(plain.information(), abs=1e-9)
    for one, other in zip(surrogate.aggregates(), plain.aggregates(), strict=True):
        close = {"rtol": 0, "atol": 1e-9}
        torch.testing.assert_close(one.weights.cpu(), other.weights, **close)
        torch.testing.assert_close(one.matrix.cpu(), other.matrix, **close)
        assert one.constant == pytest.approx(other.constant)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("theta", [5, 11])
@pytest.mark.parametrize("in_order", [False, True])
def test_the_candidate_follows_the_process(rho, batch, theta, in_order, device):
    history, rng = random_history(3), np.random.default_rng(4)
    codes = tuple(THETA[theta].tolist())
    surrogate = on_device(history, rho, device)
    candidate = JointCandidate(surrogate, codes, [3, 1, 4, 0, 2], in_order)
    assert candidate.information == surrogate.information()
    beta, asked = Beta(1.0, 1.0, 2.0), 0
    while queries := candidate.next_queries(batch):
        for q in queries:
            y_c, y_g = rng.random(2).tolist()
            candidate.update(q, y_c, y_g)
            surrogate.observe(codes, q, y_c, y_g)
            history.append((codes, q, y_c, y_g))
            c = candidate.lower_c(beta), candidate.upper_c(beta)
            g = candidate.lower_g(beta), candidate.upper_g(beta)
            for zeta, (lower, upper), wide in ((0, c, 1.0), (1, g, 2.0)):
                mean, variance = averages(*naive(history, rho, zeta)[:2])
                sigma = math.sqrt(variance[theta])
                assert lower == pytest.approx(mean[theta] - sigma, abs=1e-9)
                assert upper == pytest.approx(mean[theta] + wide * sigma, abs=1e-9)
        asked += len(queries)
    assert asked == Q
    assert candidate.information == pytest.approx(surrogate.information(), abs=1e-9)


def test_queries_that_tell_as_much_are_asked_in_the_random_order(device):
    """Of a data set that is sorted, the first ones would be the easy ones."""
    codes, order = tuple(THETA[5].tolist()), [3, 1, 4, 0, 2]
    for surrogate in (on_device([], 0.3, device), surrogate_of([], 0.3)):
        candidate = JointCandidate(surrogate, codes, order)
        asked = [q for _ in range(Q) for q in candidate.next_queries(1)]
        assert asked == order


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("of_out", [3, 5])  # another configuration, or theta_cand itself
def test_the_averages_of_theta_out_in_the_middle_of_the_j_loop(rho, of_out, device):
    """They follow the answers of theta_cand, and nothing is taken in on the device."""
    history, rng = random_history(3), np.random.default_rng(5)
    theta_cand, theta_out = (tuple(THETA[i].tolist()) for i in (5, of_out))
    surrogate, beta = on_device(history, rho, device), Beta(1.0, 1.0, 2.0)
    surrogate.queries.look_beside(theta_out)
    candidate = JointCandidate(surrogate, theta_cand, [3, 1, 4, 0, 2], in_order=True)
    rows = surrogate.queries.gps.rows
    for q in candidate.next_queries(Q):
        y_c, y_g = rng.random(2).tolist()
        candidate.update(q, y_c, y_g)
        surrogate.observe(theta_cand, q, y_c, y_g)
        history.append((theta_cand, q, y_c, y_g))
        beside = JointCandidate(surrogate, theta_out, [0])
        assert surrogate.queries.gps.rows == rows
        assert beside.information == pytest.approx(candidate.information, abs=1e-9)
        of_c, of_g = (beside.lower_c, beside.upper_c, 1.0), (beside.lower_g, beside.upper_g, 2.0)
        for zeta, (lower, upper, wide) in enumerate((of_c, of_g)):
            mean, variance = averages(*naive(history, rho, zeta)[:2])
            sigma = math.sqrt(variance[of_out])
            assert lower(beta) == pytest.approx(mean[of_out] - sigma, abs=1e-9)
            assert upper(beta) == pytest.approx(mean[of_out] + wide * sigma, abs=1e-9)
    surrogate.observe(theta_out, 0, 0.5, 0.5)  # taken in, with all before
    history.append((theta_out, 0, 0.5, 0.5))
    mean, variance = averages(*naive(history, rho, 0)[:2])
    lower = JointCandidate(surrogate, theta_out, range(Q)).lower_c(beta)
    assert lower == pytest.approx(mean[of_out] - math.sqrt(variance[of_out]), abs=1e-9)


@pytest.mark.slow
@given(
    seed=st.integers(0, 10_000),
    u_out=st.sampled_from([0.002, 0.02, 0.3, math.inf]),
    few=st.sampled_from([1, 3, 1 << 16]),
)
@settings(max_examples=25)
def test_minima_and_choices_are_those_of_the_cpu(seed, u_out, few):
    """However few are brought to the CPU at first; costs are relative, hyperparameters fitted."""
    history = [(t, q, 10.0 ** -(1 + t[0]) * (1 + y), g) for t, q, y, g in random_history(seed)]
    fitted = {"amplitude": None, "relative_cost": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_joint, "_FEW", few)
        tensor = on_device(history, None, **fitted)
        plain = surrogate_of(history, None, **fitted)
        ours, theirs = make_joint_posterior(tensor), make_joint_posterior(plain)
        beta, theta_out = Beta(2.0, 2.5), seed % len(THETA)
        for extra in random_history(seed + 1, count=6):
            ours.update()
            theirs.update()
            for one, other in zip(tensor.hyperparameters, plain.hyperparameters, strict=True):
                assert one == pytest.approx(other, rel=1e-9)
            one = ours.lower_bounds(beta, u_out, theta_out)
            other = theirs.lower_bounds(beta, u_out, theta_out)
            can_improve = other.least_g < 0
            assert (one.least_g < 0) == can_improve
            if can_improve:
                assert one.least_c == pytest.approx(other.least_c, rel=1e-9)
                for choice in (LeastCost(None), *([MostPromising()] if u_out < 1 else [])):
                    one = ours.lower_bounds(beta, u_out, theta_out)
                    found = choice.select(1, one, 1e-3, seed)
                    assert found == choice.select(1, other, 1e-3, seed)
            tensor.observe(*extra)
            plain.observe(*extra)


SIZES = (5, 4, 5)


def few_minima(c, mean_g, g, u_out, theta_out=None):
    def moments(at):
        return Moments(c[at], c[at], mean_g[at], g[at])

    sums = DeviceSums(ConfigSpace(SIZES), HammingMatern52Kernel(), "cpu")
    eligible = torch.where(g <= 0, c, math.inf)
    return FewMinima([eligible, mean_g, g], Beta(4.0, 4.0), u_out, theta_out, moments, Ties(sums))


@pytest.mark.parametrize("best", [0, 20, 99])
@pytest.mark.parametrize("few", [1, 4, 64, 512])
def test_the_best_is_found_though_few_are_brought(best, few, monkeypatch):
    """All that are cheaper than the best are hardly probable."""
    monkeypatch.setattr(device_joint, "_FEW", few)
    c = torch.linspace(0.01, 0.02, 100, dtype=torch.float64)
    mean_g = torch.full_like(c, 3.9)
    mean_g[best] = 0.0
    minima = few_minima(c, mean_g, mean_g - 4, 1.0)
    assert (minima.least_c, minima.least_g) == (0.01, -4.0)
    assert MostPromising().select(1, minima, 1e-3, seed=0) == best
    assert LeastCost(None).select(1, minima, 1e-3, seed=0) == 0
    without = few_minima(c, mean_g, mean_g - 4, 1.0, theta_out=best)
    assert MostPromising().select(1, without, 1e-3, seed=0) == (0 if best else 1)


@pytest.mark.parametrize("few", [1, 2, 7, 100])
@pytest.mark.parametrize("seed", range(5))
def test_ties_are_decided_as_on_the_cpu(few, seed, monkeypatch):
    """Three in ten tie; as many again are better on the device than they are, by its rounding."""
    monkeypatch.setattr(device_joint, "_FEW", few)
    rng = np.random.default_rng(seed)
    kind = torch.tensor(rng.choice(3, p=[0.3, 0.3, 0.4], size=100))
    c = torch.tensor([0.01, 0.01 * (1 + 1.5e-9), 0.02], dtype=torch.float64)[kind]
    c *= 1 + torch.tensor(rng.uniform(-1e-13, 1e-13, size=100))
    g = torch.full_like(c, -1.0)
    tied = (c <= float(c.min()) * (1 + 1e-9)).nonzero()[:, 0]
    expected = first_tied(tied, seed)
    assert set(tied.tolist()) == set((kind == 0).nonzero()[:, 0].tolist())
    assert LeastCost(None).select(1, few_minima(c, g, g, 1.0), 0.0, seed) == expected
    if few < len(tied):  # the device sees those of the second kind as tied
        rough = few_minima(torch.where(kind == 1, 0.01, c), g, g, 1.0)
        brought = rough._brought

        def exact(index, *rest):
            index, _ = brought(index, *rest)
            return index, c[index]

        monkeypatch.setattr(rough, "_brought", exact)
        assert LeastCost(None).select(1, rough, 0.0, seed) == expected


def test_what_is_not_positive_definite_is_an_error():
    surrogate = on_device(random_history(2), 0.3)
    surrogate.refit()
    surrogate.on_device().forms.fill_(math.nan)
    with pytest.raises(RuntimeError, match="not positive definite"):
        surrogate.products_at((0, 0, 0))
    posterior = make_joint_posterior(surrogate)
    surrogate.on_device().weights.fill_(math.nan)
    posterior.update()
    with pytest.raises(RuntimeError, match="not positive definite"):
        posterior.lower_bounds(Beta(1.0, 1.0), 1.0, None)
