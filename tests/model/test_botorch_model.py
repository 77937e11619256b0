"""The aggregate as a BoTorch model, against naive regression and textbook acquisitions."""

import math

import naive
import numpy as np
import pytest
import torch
from botorch.acquisition.analytic import LogConstrainedExpectedImprovement
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.acquisition.objective import LinearMCObjective, ScalarizedPosteriorTransform
from botorch.optim import optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler
from test_per_query import all_codes, random_history, surrogate_of

from scope_torch.model.kernels import HammingMatern52Kernel, HammingRBFKernel
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.space import ConfigSpace

CASES = [  # sizes, num_queries, number of observations, lam, kernel
    ((4, 3), 1, 20, 1e-6, (HammingMatern52Kernel(), naive.matern52)),
    ((3, 2, 3), 6, 60, 1e-4, (HammingRBFKernel(), naive.rbf)),
    ((3, 3, 3), 11, 90, 1e-6, (HammingMatern52Kernel(), naive.matern52)),
    ((3, 3), 4, 0, 1e-6, (HammingMatern52Kernel(), naive.matern52)),
]


@pytest.fixture(params=CASES, ids=lambda case: str(case[:4]))
def case(request):
    return request.param


def setting(case, device="cpu", seed=0):
    """History, all of Theta as a float64 tensor `|Theta| x N`, and the model."""
    sizes, num_queries, count, lam, (kernel, _) = case
    history = random_history(sizes, num_queries, count, seed)
    model = surrogate_of(history, sizes, num_queries, lam, kernel, device).as_botorch_model()
    theta = torch.tensor(all_codes(sizes), dtype=torch.float64, device=device)
    return history, theta, model


def naive_covariance(history, points, num_queries, lam, kernel) -> np.ndarray:
    """1/Q^2 sum_q of the posterior covariances of the queries at points; P x P."""
    total = np.zeros((len(points), len(points)))
    for query in range(num_queries):
        x = np.array([row[0] for row in history if row[1] == query]).reshape(-1, points.shape[1])
        distance = [(a[:, None] != b[None]).sum(-1) for a, b in [(x, x), (x, points)]]
        gram, cross = (kernel(h.astype(float)) for h in distance)
        prior = kernel((points[:, None] != points[None]).sum(-1).astype(float))
        total += prior - cross.T @ np.linalg.solve(gram + lam * np.eye(len(x)), cross)
    return total / num_queries**2


def test_marginals_are_the_aggregate(case, device):
    sizes, num_queries, _, lam, (_, kernel) = case
    history, theta, model = setting(case, device)
    posterior = model.posterior(theta[:, None])
    mean_c, mean_g, variance = naive.aggregate(history, all_codes(sizes), num_queries, lam, kernel)
    assert posterior.mean.shape == posterior.variance.shape == (len(theta), 1, 2)
    assert posterior.mean.dtype == torch.float64
    assert posterior.mean.device.type == device
    means = np.stack([mean_c, mean_g], -1)
    np.testing.assert_allclose(posterior.mean[:, 0].cpu(), means, rtol=0, atol=1e-9)
    for zeta in (0, 1):
        np.testing.assert_allclose(posterior.variance[:, 0, zeta].cpu(), variance, atol=1e-12)


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_joint_covariance_of_each_batch(case, batch, device):
    sizes, num_queries, _, lam, (_, kernel) = case
    history, theta, model = setting(case, device)
    q_batch, generator = 5, torch.Generator().manual_seed(0)
    scores = torch.rand(*batch, len(theta), generator=generator)
    index = scores.argsort(-1)[..., :q_batch]  # distinct points
    posterior = model.posterior(theta[index])
    assert posterior.mean.shape == (*batch, q_batch, 2)
    covariance = posterior.distribution.covariance_matrix.cpu()
    for b in np.ndindex(*batch):
        points = all_codes(sizes)[index[b].numpy()]
        expected = naive_covariance(history, points, num_queries, lam, kernel)
        blocks = covariance[b].reshape(2, q_batch, 2, q_batch)  # c and g are independent
        for zeta in (0, 1):
            np.testing.assert_allclose(blocks[zeta, :, zeta], expected, rtol=0, atol=1e-11)
            assert float(blocks[zeta, :, 1 - zeta].abs().max()) == 0.0
    samples = posterior.rsample(torch.Size([7]))
    assert samples.shape == (7, *batch, q_batch, 2)


def test_points_may_repeat_in_a_batch():
    """As in SingleTaskGP's posterior: the covariance is singular, the distribution is not void."""
    _, theta, model = setting(CASES[1])
    posterior = model.posterior(theta[[3, 3, 5]])
    alone = model.posterior(theta[[3, 5]])
    assert torch.allclose(posterior.mean[1:], alone.mean, rtol=0, atol=1e-14)
    assert torch.allclose(posterior.variance[1:], alone.variance, rtol=0, atol=1e-14)
    covariance = posterior.distribution.covariance_matrix[:3, :3]
    assert torch.allclose(covariance[0], covariance[1], rtol=0, atol=1e-15)


def test_output_indices(case):
    _, theta, model = setting(case)
    both = model.posterior(theta[:, None])
    for outputs in ([0], [1], [0, 1], [1, 0]):
        some = model.posterior(theta[:, None], output_indices=outputs)
        assert torch.equal(some.mean, both.mean[..., outputs])
        assert torch.allclose(some.variance, both.variance[..., outputs], rtol=0, atol=1e-15)
    assert model.num_outputs == 2
    assert model.batch_shape == torch.Size()


def test_posterior_transform(case):
    _, theta, model = setting(case)
    weights = torch.tensor([2.0, -1.0], dtype=torch.float64)
    both = model.posterior(theta[:, None])
    scalar = model.posterior(
        theta[:, None], posterior_transform=ScalarizedPosteriorTransform(weights)
    )
    assert torch.allclose(scalar.mean[..., 0], both.mean @ weights, rtol=0, atol=1e-14)
    expected = both.variance @ weights.square()  # c and g are independent given the data
    assert torch.allclose(scalar.variance[..., 0], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("noise", [True, torch.ones(1, 1, 2)])
def test_observation_noise_is_refused(noise):
    _, theta, model = setting(CASES[0])
    with pytest.raises(ValueError, match="observation_noise=False"):
        model.posterior(theta[:, None], observation_noise=noise)


def test_is_fixed_at_construction():
    sizes, num_queries, _, lam, (kernel, _) = CASES[1]
    surrogate = surrogate_of(
        random_history(sizes, num_queries, 30, 0), sizes, num_queries, lam, kernel
    )
    model = surrogate.as_botorch_model()
    theta = torch.tensor(all_codes(sizes), dtype=torch.float64)[:, None]
    before = model.posterior(theta).mean
    surrogate.observe((0, 0, 0), 0, 3.0, -1.0)
    assert torch.equal(model.posterior(theta).mean, before)
    assert not torch.equal(surrogate.as_botorch_model().posterior(theta).mean, before)


def log_constrained_ei(mean_c, mean_g, variance, best) -> np.ndarray:
    """Log of EI for minimisation times the probability of feasibility, from the textbook."""

    def cdf(z):
        return 0.5 * math.erfc(-z / math.sqrt(2))

    out = []
    for m, g, sigma in zip(mean_c, mean_g, np.sqrt(variance), strict=True):
        z = (best - m) / sigma
        density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        improvement = (best - m) * cdf(z) + sigma * density
        product = improvement * cdf(-g / sigma)
        out.append(math.log(product) if product > 0 else -math.inf)
    return np.array(out)


@pytest.mark.parametrize("case", [CASES[1], CASES[2]])
@pytest.mark.parametrize("seed", range(3))
def test_constrained_ei_and_its_maximiser(case, seed):
    sizes, num_queries, _, lam, (_, kernel) = case
    history, theta, model = setting(case, seed=seed)
    mean_c, mean_g, variance = naive.aggregate(history, all_codes(sizes), num_queries, lam, kernel)
    best = float(np.median(mean_c))
    expected = log_constrained_ei(mean_c, mean_g, variance, best)
    acquisition = LogConstrainedExpectedImprovement(
        model, best_f=best, objective_index=0, constraints={1: (None, 0.0)}, maximize=False
    )
    observed = acquisition(theta[:, None]).numpy()
    tractable = expected > -15  # below, the textbook formula cancels
    assert tractable.sum() >= 5
    np.testing.assert_allclose(observed[tractable], expected[tractable], rtol=0, atol=1e-6)
    assert observed[~tractable].max(initial=-math.inf) < -14
    chosen, value = optimize_acqf_discrete(acquisition, q=1, choices=theta)
    assert chosen.shape == (1, len(sizes))
    assert float(value) == pytest.approx(expected.max(), abs=1e-6)
    ties = np.flatnonzero(expected > expected.max() - 1e-6)
    assert chosen[0].long().tolist() in all_codes(sizes)[ties].tolist()


def test_small_variances_are_exact(recwarn):
    """GPyTorch alone would raise them to 1e-10, with a warning."""
    space, kernel, lam = ConfigSpace((4, 3)), HammingMatern52Kernel(), 1e-9
    surrogate = QuerySurrogate(space, kernel, 1, lam)
    for _ in range(50):
        surrogate.observe((2, 1), 0, 0.3, 0.1)
    X = torch.tensor([[[2.0, 1.0]]], dtype=torch.float64)
    expected = lam / 50 / (1 + lam / 50)
    for outputs in (None, [0], [1, 0]):
        variance = surrogate.as_botorch_model().posterior(X, output_indices=outputs).variance
        assert variance.flatten().tolist() == pytest.approx([expected] * variance.numel(), rel=1e-4)
    pair = surrogate.as_botorch_model().posterior(X.expand(1, 2, 2)).variance
    assert pair.flatten().tolist() == pytest.approx([expected] * 4, rel=1e-4)
    assert expected < 1e-10
    assert not [warning for warning in recwarn if "variance" in str(warning.message)]


def test_two_points_at_a_time_by_monte_carlo():
    """An acquisition that samples: the second point is another one than the first."""
    _, theta, model = setting(CASES[1])
    acquisition = qLogExpectedImprovement(
        model,
        best_f=-0.5,
        sampler=SobolQMCNormalSampler(torch.Size([64]), seed=0),
        objective=LinearMCObjective(torch.tensor([-1.0, 0.0]).double()),
        constraints=[lambda Y: Y[..., 1]],
    )
    chosen, _ = optimize_acqf_discrete(acquisition, q=2, choices=theta)
    assert chosen.shape == (2, 3)
    assert not torch.equal(chosen[0], chosen[1])
    singles = acquisition(theta[:, None])
    assert float(acquisition(chosen[None])) > float(singles.max())
