"""The collapsed aggregate of Q GPs against naive regression and against batched GPyTorch."""

import itertools
import math

import gpytorch
import naive
import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import WeightedOverlap

from scope_torch.errors import InputError
from scope_torch.model.hamming_sums import DirectGrid, HammingGrid
from scope_torch.model.kernels import HammingMatern52Kernel, HammingRBFKernel
from scope_torch.model.per_query import QuerySurrogate
from scope_torch.space import ConfigSpace

MATERN, RBF = (HammingMatern52Kernel(), naive.matern52), (HammingRBFKernel(), naive.rbf)
SIZES = st.lists(st.integers(1, 3), min_size=1, max_size=5).map(tuple)
CASES = [  # sizes, num_queries, number of observations, lam, kernel
    ((4,), 1, 12, 1e-6, MATERN),
    ((3, 2), 2, 0, 1e-6, MATERN),
    ((3, 2), 40, 1, 1e-3, RBF),
    ((4, 3, 3), 7, 90, 1e-6, RBF),
    ((3, 1, 4, 2), 40, 150, 1e-6, MATERN),
    ((2, 3, 2, 3, 2), 13, 120, 0.25, MATERN),
    ((3, 3, 3, 3, 3), 20, 200, 1e-6, MATERN),
]


def all_codes(sizes) -> np.ndarray:
    return np.array(list(itertools.product(*(range(size) for size in sizes))))


def random_history(sizes, num_queries, count, seed) -> list[naive.Record]:
    """Observations of few configurations, so that pairs repeat; costs and qualities of order 1."""
    rng = np.random.default_rng(seed)
    pool = all_codes(sizes)[rng.permutation(math.prod(sizes))[: 2 + count // 8]]
    level = rng.normal(size=(len(pool), num_queries))
    history = []
    for _ in range(count):
        config, query = rng.integers(len(pool)), int(rng.integers(num_queries))
        y_c = float(level[config, query] + 0.01 * rng.normal())
        y_g = float(np.clip(level[config, query] / 3 + 0.1 * rng.normal(), -1, 1))
        history.append((tuple(pool[config].tolist()), query, y_c, y_g))
    return history


def surrogate_of(history, sizes, num_queries, lam, kernel, device="cpu") -> QuerySurrogate:
    surrogate = QuerySurrogate(ConfigSpace(sizes), kernel, num_queries, lam, device)
    for row in history:
        surrogate.observe(*row)
    return surrogate


def on_theta(surrogate, grid) -> np.ndarray:
    """mu_bar_c, mu_bar_g and sigma_bar^2 on all of Theta: 3 x |Theta|."""
    posterior = surrogate.aggregate()
    means = [grid.weighted_sum(posterior.codes, w) for w in posterior.weights]
    form = grid.quadratic_form(posterior.codes, posterior.matrix)
    return torch.stack([*means, posterior.constant - form]).cpu().numpy()


def assert_close(observed, expected, variance=1e-12) -> None:
    """Two means and a variance, the latter to `variance`; it is compared with lam in the bounds."""
    np.testing.assert_allclose(observed[:2], expected[:2], rtol=0, atol=1e-9)
    np.testing.assert_allclose(observed[2], expected[2], rtol=0, atol=variance)


class MaskedKernel(Kernel):
    """`base` on real rows; a row of negative codes is padding: a 1 on the diagonal, else zeros."""

    has_lengthscale = False

    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, x1, x2, diag=False, **params):
        assert not diag
        real = (x1[..., :, None, 0] >= 0) & (x2[..., None, :, 0] >= 0)
        same = (x1[..., :, None, :] == x2[..., None, :, :]).all(-1)
        return self.base.forward(x1, x2) * real + (same & ~real)


class BatchedGP(gpytorch.models.ExactGP):
    """Zero-mean exact GPs of all queries, one batch; repeats stay repeated rows."""

    def __init__(self, x, y, lam, kernel):
        likelihood = GaussianLikelihood(noise_constraint=GreaterThan(1e-10)).double()
        likelihood.noise = lam
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean(batch_shape=x.shape[:1])
        self.covar_module = MaskedKernel(kernel)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def gpytorch_reference(history, targets, num_queries, lam, kernel) -> np.ndarray:
    """Mean of c, mean of g and variance of every query at targets: 3 x Q x T."""
    rows = [[row for row in history if row[1] == q] for q in range(num_queries)]
    longest = max(1, max(map(len, rows)))
    pad = -1.0 - torch.arange(longest, dtype=torch.float64)
    x = pad[None, :, None].repeat(num_queries, 1, targets.shape[1])
    y = torch.zeros(2, num_queries, longest, dtype=torch.float64)
    for q, own in enumerate(rows):
        for j, (theta, _, y_c, y_g) in enumerate(own):
            x[q, j], y[0, q, j], y[1, q, j] = torch.tensor(theta), y_c, y_g
    test = torch.tensor(targets, dtype=torch.float64).expand(num_queries, *targets.shape)
    out = []
    with (
        torch.no_grad(),
        gpytorch.settings.fast_pred_var(False),
        gpytorch.settings.max_cholesky_size(4096),
        gpytorch.settings.cholesky_max_tries(1),
        gpytorch.settings.lazily_evaluate_kernels(False),
    ):
        for zeta in range(2):
            posterior = BatchedGP(x, y[zeta], lam, kernel).eval()(test)
            out.append(posterior.mean.numpy())
        out.append(posterior.covariance_matrix.diagonal(dim1=1, dim2=2).numpy())
    return np.stack(out)


@pytest.mark.parametrize(("sizes", "num_queries", "count", "lam", "kernel"), CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_aggregate_equals_naive(sizes, num_queries, count, lam, kernel, seed, device):
    history = random_history(sizes, num_queries, count, seed)
    surrogate = surrogate_of(history, sizes, num_queries, lam, kernel[0], device)
    expected = naive.aggregate(history, all_codes(sizes), num_queries, lam, kernel[1])
    for grid in (HammingGrid, DirectGrid):
        observed = on_theta(surrogate, grid(ConfigSpace(sizes), kernel[0], device))
        assert_close(observed, expected)
    assert surrogate.aggregate().constant == 1 / num_queries


@pytest.mark.parametrize(("sizes", "num_queries", "count", "lam", "kernel"), CASES)
def test_at_equals_naive(sizes, num_queries, count, lam, kernel, device):
    history = random_history(sizes, num_queries, count, 2)
    surrogate = surrogate_of(history, sizes, num_queries, lam, kernel[0], device)
    for theta in all_codes(sizes)[:: max(1, math.prod(sizes) // 9)]:
        posterior = surrogate.at(tuple(theta.tolist()))
        assert {t.device.type for t in posterior} == {"cpu"}
        queries = range(num_queries)
        by_query = [naive.query_gp(history, q, theta[None], lam, kernel[1]) for q in queries]
        expected = np.array(by_query)[..., 0].T
        assert_close(posterior, expected)


@pytest.mark.slow
@settings(max_examples=40)
@given(SIZES, st.integers(1, 12), st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_any_shape_equals_naive(sizes, num_queries, count, seed):
    history = random_history(sizes, num_queries, count, seed)
    surrogate = surrogate_of(history, sizes, num_queries, 1e-4, MATERN[0])
    observed = on_theta(surrogate, HammingGrid(ConfigSpace(sizes), MATERN[0]))
    expected = naive.aggregate(history, all_codes(sizes), num_queries, 1e-4, MATERN[1])
    assert_close(observed, expected)


@pytest.mark.parametrize(("sizes", "num_queries", "count", "lam", "kernel"), CASES)
def test_equals_batched_gpytorch(sizes, num_queries, count, lam, kernel, device):
    history = random_history(sizes, num_queries, count, 3)
    targets = all_codes(sizes)
    reference = gpytorch_reference(history, targets, num_queries, lam, kernel[0])
    surrogate = surrogate_of(history, sizes, num_queries, lam, kernel[0], device)
    observed = on_theta(surrogate, HammingGrid(ConfigSpace(sizes), kernel[0], device))
    expected = [*reference[:2].mean(1), reference[2].sum(0) / num_queries**2]
    assert_close(observed, expected)
    for index in range(0, len(targets), max(1, len(targets) // 5)):
        posterior = surrogate.at(tuple(targets[index].tolist()))
        assert_close(posterior, reference[:, :, index], variance=1e-9)


def test_any_kernel_equals_batched_gpytorch(device):
    sizes, kernel = (3, 2, 4), WeightedOverlap()
    history = random_history(sizes, 9, 70, 4)
    reference = gpytorch_reference(history, all_codes(sizes), 9, 1e-4, kernel)
    surrogate = surrogate_of(history, sizes, 9, 1e-4, kernel, device)
    observed = on_theta(surrogate, DirectGrid(ConfigSpace(sizes), kernel, device))
    expected = np.stack([*reference[:2].mean(1), reference[2].sum(0) / 81])
    assert_close(observed, expected)


def test_smallest_lam_on_all_of_theta():
    """Noise 1e-9, every configuration of Theta observed: no jitter is needed or added."""
    sizes, rng = (4, 4, 4), np.random.default_rng(0)
    targets = all_codes(sizes)
    history = [(tuple(t), 0, y, -y) for t in targets.tolist() for y in rng.normal(size=1).tolist()]
    surrogate = surrogate_of(history, sizes, 1, 1e-9, MATERN[0])
    mean_c, mean_g, variance = on_theta(surrogate, HammingGrid(ConfigSpace(sizes), MATERN[0]))
    np.testing.assert_allclose(mean_c, [row[2] for row in history], atol=1e-7)
    np.testing.assert_allclose(mean_g, -mean_c, atol=1e-12)
    assert np.all(np.abs(variance - 1e-9) < 1e-12)
    at = surrogate.at((1, 2, 3))
    assert float(at.variance) == pytest.approx(1e-9, rel=1e-5)


def loo_ratios(history, min_queries, lam, kernel) -> list[tuple[float, float]]:
    """By refitting without each configuration, in order of first observation."""
    out = []
    for left_out in dict.fromkeys(row[0] for row in history):
        own = [row for row in history if row[0] == left_out]
        queries = sorted({row[1] for row in own})
        if len(queries) < min_queries:
            continue
        rest = [row for row in history if row[0] != left_out]
        fits = [naive.query_gp(rest, q, np.array([left_out]), lam, kernel) for q in queries]
        rms = math.sqrt(np.mean([variance[0] for *_, variance in fits]))
        ratio = []
        for zeta in (0, 1):
            seen = [np.mean([row[2 + zeta] for row in own if row[1] == q]) for q in queries]
            residuals = [y - fit[zeta][0] for y, fit in zip(seen, fits, strict=True)]
            ratio.append(abs(np.mean(residuals)) / rms)
        out.append(tuple(ratio))
    return out


@pytest.mark.parametrize(("sizes", "num_queries", "count", "lam", "kernel"), CASES)
@pytest.mark.parametrize("min_queries", [1, 3, 6])
def test_leave_one_out_equals_refitting(
    sizes, num_queries, count, lam, kernel, min_queries, device
):
    history = random_history(sizes, num_queries, count, 5)
    surrogate = surrogate_of(history, sizes, num_queries, lam, kernel[0], device)
    observed = surrogate.leave_one_out(min_queries)
    expected = loo_ratios(history, min_queries, lam, kernel[1])
    assert observed.shape == (2, len(expected))
    assert observed.device.type == "cpu"
    np.testing.assert_allclose(observed.T, np.reshape(expected, (-1, 2)), atol=1e-9)
    if min_queries == 6:
        for zeta, row in zip("cg", observed, strict=True):
            scale = naive.loo_scale(history, zeta, lam, kernel[1])
            assert (float(row.max()) if len(row) else None) == (scale and pytest.approx(scale))


def test_nothing_to_leave_out():
    lonely = surrogate_of(random_history((3, 2), 5, 40, 5), (3, 2), 5, 1e-6, MATERN[0])
    assert lonely.leave_one_out().shape == (2, 0)
    assert lonely.leave_one_out(3).shape[1] > 0


@settings(max_examples=30)
@given(SIZES, st.integers(1, 8), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_counts(sizes, num_queries, count, seed):
    history = random_history(sizes, num_queries, count, seed)
    surrogate = surrogate_of(history, sizes, num_queries, 1e-4, MATERN[0])
    per_query = surrogate.num_observations()
    assert per_query.tolist() == [sum(row[1] == q for row in history) for q in range(num_queries)]
    for theta in itertools.product(*(range(size) for size in sizes)):
        assert surrogate.num_observed(theta) == len({r[1] for r in history if r[0] == theta})


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 20), min_size=1, max_size=6), st.data())
def test_chunks_equal_all_at_once(seed, chunks, data):
    sizes, num_queries, grid = (3, 2, 3), 6, HammingGrid(ConfigSpace((3, 2, 3)), MATERN[0])
    history = random_history(sizes, num_queries, sum(chunks), seed)
    growing, start = surrogate_of([], sizes, num_queries, 1e-6, MATERN[0]), 0
    for chunk in chunks:
        for row in history[start : start + chunk]:
            growing.observe(*row)
        start += chunk
        if data.draw(st.booleans()):
            targets = all_codes(sizes)
            expected = naive.aggregate(history[:start], targets, num_queries, 1e-6, MATERN[1])
            assert_close(on_theta(growing, grid), expected)
    at_once = surrogate_of(history, sizes, num_queries, 1e-6, MATERN[0])
    np.testing.assert_allclose(on_theta(growing, grid), on_theta(at_once, grid), atol=1e-11)
    assert torch.equal(growing.aggregate().codes, at_once.aggregate().codes)
    ratios = growing.leave_one_out(1), at_once.leave_one_out(1)
    np.testing.assert_allclose(*ratios, atol=1e-9)


@pytest.mark.slow
def test_long_sequences_do_not_drift(device):
    """Read after every observation, the sums over queries are carried along incrementally."""
    sizes, num_queries, (kernel, reference) = (3, 3, 2), 4, RBF
    history = random_history(sizes, num_queries, 260, 8)
    grid = HammingGrid(ConfigSpace(sizes), kernel, device)
    surrogate = surrogate_of([], sizes, num_queries, 1e-3, kernel, device)
    for t, row in enumerate(history, start=1):
        surrogate.observe(*row)
        surrogate.aggregate()
        if t % 20 == 0 or t > 250:
            expected = naive.aggregate(history[:t], all_codes(sizes), num_queries, 1e-3, reference)
            assert_close(on_theta(surrogate, grid), expected, variance=1e-13)


def test_posteriors_taken_earlier_do_not_change(device):
    history = random_history((3, 3), 5, 40, 6)
    surrogate = surrogate_of(history[:20], (3, 3), 5, 1e-6, MATERN[0], device)
    aggregate, at, counts = (
        surrogate.aggregate(),
        surrogate.at((1, 1)),
        surrogate.num_observations(),
    )
    tensors = [aggregate.codes, aggregate.weights, aggregate.matrix, *at, counts]
    copies = [tensor.clone() for tensor in tensors]
    for row in history[20:]:
        surrogate.observe(*row)
    surrogate.aggregate()
    assert all(torch.equal(*pair) for pair in zip(tensors, copies, strict=True))


@pytest.mark.parametrize("lam", [1e-6, 1e-3, 0.25])
def test_one_more_observation_in_closed_form(lam):
    """M' = m + v / (v + lam) (y - m) and v' = lam v / (v + lam), the inner step of the j-loop."""
    surrogate = surrogate_of(random_history((3, 3, 2), 4, 50, 7), (3, 3, 2), 4, lam, MATERN[0])
    for theta in [(0, 0, 0), (2, 1, 1), (2, 1, 1)]:
        before = surrogate.at(theta)
        surrogate.observe(theta, 2, 0.7, -0.3)
        after = surrogate.at(theta)
        v = float(before.variance[2])
        assert float(after.variance[2]) == pytest.approx(lam * v / (v + lam), rel=1e-6, abs=1e-13)
        for m_before, m_after, y in zip(before[:2], after[:2], (0.7, -0.3), strict=True):
            m = float(m_before[2])
            assert float(m_after[2]) == pytest.approx(m + v / (v + lam) * (y - m), abs=1e-9)
        others = [0, 1, 3]
        for b, a in zip(before, after, strict=True):
            np.testing.assert_allclose(a[others], b[others], atol=1e-12)


@pytest.mark.parametrize("lam", [0.0, -1.0, 0.99e-9, math.nan])
def test_lam_below_the_papers_floor_is_refused(lam):
    with pytest.raises(InputError, match="lam="):
        QuerySurrogate(ConfigSpace((2, 2)), MATERN[0], 1, lam)


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_the_names_of_llms_and_queries_do_not_matter(seed):
    rng, sizes, num_queries = np.random.default_rng(seed), (4, 2, 3), 6
    relabel = [rng.permutation(size) for size in sizes]
    reorder = rng.permutation(num_queries)
    history = random_history(sizes, num_queries, 50, seed)
    renamed = [
        (tuple(int(p[code]) for p, code in zip(relabel, theta, strict=True)), int(reorder[q]), *y)
        for theta, q, *y in history
    ]
    grid = HammingGrid(ConfigSpace(sizes), MATERN[0])
    before, after = (
        on_theta(surrogate_of(rows, sizes, num_queries, 1e-6, MATERN[0]), grid).reshape(3, *sizes)
        for rows in (history, renamed)
    )
    np.testing.assert_allclose(after[:, *np.ix_(*relabel)], before, rtol=0, atol=1e-11)
