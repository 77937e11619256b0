"""Kernels of the Hamming distance, and what any kernel on configurations must satisfy."""

import itertools
import math

import gpytorch
import naive
import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean

from scope_torch.model.kernels import (
    HammingKernel,
    HammingMatern52Kernel,
    HammingRBFKernel,
    hamming_distance,
)


def grid(sizes, device="cpu") -> torch.Tensor:
    codes = list(itertools.product(*(range(size) for size in sizes)))
    return torch.tensor(codes, dtype=torch.float64, device=device)


def random_codes(*shape, num_llms=4, seed=0) -> torch.Tensor:
    return torch.randint(num_llms, shape, generator=torch.Generator().manual_seed(seed))


class KernelConformance:
    """Inherit and supply a `kernel` fixture: a fixed kernel on codes with k(x, x) = 1."""

    @pytest.fixture
    def kernel(self) -> Kernel:
        raise NotImplementedError

    def test_symmetric_with_unit_diagonal(self, kernel, device):
        x = grid((3, 2, 4), device)
        gram = kernel.to(device)(x, x).to_dense()
        assert gram.device.type == device
        assert torch.equal(gram, gram.T)
        assert torch.equal(gram.diagonal(), torch.ones_like(gram.diagonal()))
        assert float(gram.abs().max()) <= 1.0

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.int32])
    def test_float64_whatever_the_codes(self, kernel, dtype):
        x1, x2 = random_codes(5, 3), random_codes(4, 3, seed=1)
        reference = kernel(x1.double(), x2.double()).to_dense()
        values = kernel(x1.to(dtype), x2.to(dtype)).to_dense()
        assert values.dtype == torch.float64
        assert torch.equal(values, reference)
        assert kernel(x1.to(dtype), diag=True).dtype == torch.float64

    def test_diag_is_the_diagonal(self, kernel):
        x1, x2 = random_codes(2, 6, 3).double(), random_codes(2, 6, 3, seed=1).double()
        dense = kernel(x1, x2).to_dense()
        assert torch.equal(kernel(x1, x2, diag=True), dense.diagonal(dim1=-2, dim2=-1))
        assert torch.equal(kernel(x1, diag=True), torch.ones(2, 6, dtype=torch.float64))

    @pytest.mark.parametrize(
        ("batch1", "batch2"), [((), ()), ((3,), (3,)), ((2, 3), (2, 3)), ((2, 1), (1, 3))]
    )
    def test_batches_are_independent(self, kernel, batch1, batch2):
        x1, x2 = random_codes(*batch1, 5, 3).double(), random_codes(*batch2, 4, 3, seed=1).double()
        values = kernel(x1, x2).to_dense()
        batch = torch.broadcast_shapes(batch1, batch2)
        assert values.shape == (*batch, 5, 4)
        x1, x2 = x1.expand(*batch, 5, 3), x2.expand(*batch, 4, 3)
        for index in itertools.product(*(range(size) for size in batch)):
            assert torch.equal(values[index], kernel(x1[index], x2[index]).to_dense())

    def test_empty_sets(self, kernel):
        x = random_codes(5, 3).double()
        assert kernel(x[:0], x).to_dense().shape == (0, 5)
        assert kernel(x, x[:0]).to_dense().shape == (5, 0)

    @pytest.mark.parametrize("sizes", [(5,), (2, 2, 2, 2), (3, 1, 4), (4, 4, 4)])
    def test_strictly_positive_definite_on_theta(self, kernel, sizes):
        gram = kernel(grid(sizes), grid(sizes)).to_dense()
        assert float(torch.linalg.eigvalsh(gram).min()) > 1e-3
        torch.linalg.cholesky(gram)

    def test_nothing_to_fit(self, kernel):
        assert list(kernel.parameters()) == []

    def test_exact_gp_matches_the_closed_form(self, kernel):
        x, test = grid((3, 3))[::2], grid((3, 3))
        y = torch.sin(torch.arange(len(x), dtype=torch.float64))
        gram = kernel(x, x).to_dense().numpy() + 1e-6 * np.eye(len(x))
        cross = kernel(test, x).to_dense().numpy()
        mean = cross @ np.linalg.solve(gram, y.numpy())
        variance = 1 - (cross.T * np.linalg.solve(gram, cross.T)).sum(0)
        likelihood = GaussianLikelihood(noise_constraint=GreaterThan(1e-9)).double()
        likelihood.noise = 1e-6
        surrogate = SingleTaskGP(
            x,
            y[:, None],
            likelihood=likelihood,
            covar_module=kernel,
            mean_module=ZeroMean(),
            outcome_transform=None,
        )
        with gpytorch.settings.fast_pred_var(False):
            posterior = surrogate.posterior(test[:, None])
        np.testing.assert_allclose(posterior.mean.squeeze().detach(), mean, atol=1e-11)
        np.testing.assert_allclose(posterior.variance.squeeze().detach(), variance, atol=1e-11)


def krawtchouk_eigenvalues(values, num_llms) -> list[float]:
    """Eigenvalues of the Gram matrix over [M]^N of kappa(0..N): sum_h kappa(h) K_h(j)."""
    n = len(values) - 1
    return [
        math.fsum(
            (-1) ** s * (num_llms - 1) ** (h - s) * math.comb(j, s) * math.comb(n - j, h - s) * k_h
            for h, k_h in enumerate(values)
            for s in range(h + 1)
        )
        for j in range(n + 1)
    ]


class HammingConformance(KernelConformance):
    """For kernels of the Hamming distance: also a `reference` fixture, kappa(h) in numpy."""

    @pytest.fixture
    def reference(self):
        raise NotImplementedError

    def test_profile(self, kernel, reference, device):
        profile = kernel.profile(5, device)
        assert profile.dtype == torch.float64
        assert profile.device.type == device
        np.testing.assert_allclose(profile.cpu(), reference(np.arange(6)), rtol=1e-15)

    def test_matrix_is_the_profile_of_the_distance(self, kernel, reference):
        x1, x2 = random_codes(7, 4), random_codes(6, 4, seed=1)
        distance = (x1.numpy()[:, None] != x2.numpy()[None]).sum(-1)
        assert torch.equal(hamming_distance(x1, x2), torch.tensor(distance))
        values = kernel(x1.double(), x2.double()).to_dense()
        np.testing.assert_allclose(values, reference(distance), rtol=1e-15)

    def test_a_module_alone_has_no_kernel(self, kernel):
        with pytest.raises(ValueError, match="last_dim_is_batch"):
            kernel.forward(random_codes(2, 3), random_codes(2, 3), last_dim_is_batch=True)

    @pytest.mark.parametrize(("num_modules", "num_llms"), [(1, 5), (2, 4), (3, 3), (4, 2)])
    def test_krawtchouk_eigenvalues_are_those_of_the_matrix(self, kernel, num_modules, num_llms):
        x = grid((num_llms,) * num_modules)
        exact = krawtchouk_eigenvalues(kernel.profile(num_modules).tolist(), num_llms)
        multiplicity = [math.comb(num_modules, j) * (num_llms - 1) ** j for j in range(len(exact))]
        expected = sorted(np.repeat(exact, multiplicity))
        observed = torch.linalg.eigvalsh(kernel(x, x).to_dense())
        np.testing.assert_allclose(observed, expected, atol=1e-12)


class TestHammingMatern52(HammingConformance):
    @pytest.fixture
    def kernel(self):
        return HammingMatern52Kernel()

    @pytest.fixture
    def reference(self):
        return lambda h: naive.matern52(np.asarray(h, dtype=np.float64))

    def test_published_values(self, kernel):
        """baselines.md, section 2."""
        values = [1, 0.52399, 0.31728, 0.20532, 0.13866, 0.09658]
        np.testing.assert_allclose(kernel.profile(5), values, atol=5e-6)

    @pytest.mark.parametrize(("n", "smallest"), [(3, 0.1745), (4, 0.1251), (5, 0.0964)])
    def test_smallest_eigenvalue_of_23_llms(self, kernel, n, smallest):
        eigenvalues = krawtchouk_eigenvalues(kernel.profile(n).tolist(), 23)
        assert min(eigenvalues) == pytest.approx(smallest, abs=5e-5)


class TestHammingRBF(HammingConformance):
    @pytest.fixture
    def kernel(self):
        return HammingRBFKernel()

    @pytest.fixture
    def reference(self):
        return naive.rbf

    @pytest.mark.parametrize(("n", "smallest"), [(3, 0.0609), (4, 0.0240), (5, 0.0094)])
    def test_smallest_eigenvalue_of_23_llms(self, kernel, n, smallest):
        eigenvalues = krawtchouk_eigenvalues(kernel.profile(n).tolist(), 23)
        assert min(eigenvalues) == pytest.approx(smallest, abs=5e-5)

    def test_is_a_product_over_modules(self, kernel):
        """Each module contributes exp(-1/2) per mismatch, so (1 - exp(-1/2))^N is the least."""
        n = 4
        least = min(krawtchouk_eigenvalues(kernel.profile(n).tolist(), 23))
        assert least == pytest.approx((1 - math.exp(-0.5)) ** n, rel=1e-9)


class TestUserKernel(KernelConformance):
    """A kernel that is no function of the Hamming distance: modules weigh differently."""

    @pytest.fixture
    def kernel(self):
        return WeightedOverlap()


class WeightedOverlap(Kernel):
    """exp(-sum_i w_i [x_i != x'_i]), w = 1, 1/2, 1/3, ..."""

    has_lengthscale = False

    def forward(self, x1, x2, diag=False, **params):
        weights = 1 / torch.arange(1, x1.shape[-1] + 1, dtype=torch.float64, device=x1.device)
        if not diag:
            x1, x2 = x1[..., :, None, :], x2[..., None, :, :]
        return torch.exp(-((x1 != x2) * weights).sum(-1))


def test_at_distance_is_what_a_subclass_supplies():
    with pytest.raises(TypeError, match="at_distance"):
        HammingKernel()
