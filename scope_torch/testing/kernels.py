"""The suites for kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from torch import Tensor

from scope_torch.model.kernels import HammingKernel, hamming_distance

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


class KernelConformance:
    """What every kernel must do; a subclass overrides the fixture `kernel`.

    It returns the kernel: without parameters to fit, on codes of any number of modules, with
    k(theta, theta) = 1. Run on the CPU, and on CUDA if there is any.

    Examples:
        >>> class TestMyKernel(KernelConformance):
        ...     @pytest.fixture
        ...     def kernel(self):
        ...         return MyKernel()
    """

    @pytest.fixture
    def kernel(self) -> Kernel:
        """The kernel under test."""
        raise NotImplementedError("override the fixture kernel; it returns a kernel")

    @pytest.fixture(params=DEVICES)
    def device(self, request: pytest.FixtureRequest) -> str:
        """Each device of this machine."""
        return request.param

    def test_symmetric_with_unit_diagonal(self, kernel: Kernel, device: str) -> None:
        """On the device of the codes; no value above 1."""
        x = grid((3, 2, 4), device)
        gram = _gram(kernel.to(device), x, x)
        assert gram.device.type == device
        assert torch.equal(gram, gram.T)
        assert torch.equal(gram.diagonal(), torch.ones_like(gram.diagonal()))
        assert float(gram.abs().max()) <= 1.0

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.int32])
    def test_float64_whatever_the_codes(self, kernel: Kernel, dtype: torch.dtype) -> None:
        """Codes of any dtype give the same values in float64."""
        x1, x2 = random_codes(5, 3), random_codes(4, 3, seed=1)
        reference = _gram(kernel, x1.double(), x2.double())
        values = _gram(kernel, x1.to(dtype), x2.to(dtype))
        assert values.dtype == torch.float64
        assert torch.equal(values, reference)
        assert _diagonal(kernel, x1.to(dtype)).dtype == torch.float64

    def test_diag_is_the_diagonal(self, kernel: Kernel) -> None:
        """`diag=True` gives the diagonal of the matrix."""
        x1, x2 = random_codes(2, 6, 3).double(), random_codes(2, 6, 3, seed=1).double()
        dense = _gram(kernel, x1, x2)
        assert torch.equal(_diagonal(kernel, x1, x2), dense.diagonal(dim1=-2, dim2=-1))
        assert torch.equal(_diagonal(kernel, x1), torch.ones(2, 6, dtype=torch.float64))

    @pytest.mark.parametrize(
        ("batch1", "batch2"), [((), ()), ((3,), (3,)), ((2, 3), (2, 3)), ((2, 1), (1, 3))]
    )
    def test_batches_are_independent(
        self, kernel: Kernel, batch1: tuple[int, ...], batch2: tuple[int, ...]
    ) -> None:
        """A batch of matrices holds the matrix of each pair of sets."""
        x1, x2 = random_codes(*batch1, 5, 3).double(), random_codes(*batch2, 4, 3, seed=1).double()
        values = _gram(kernel, x1, x2)
        batch = torch.broadcast_shapes(batch1, batch2)
        assert values.shape == (*batch, 5, 4)
        x1, x2 = x1.expand(*batch, 5, 3), x2.expand(*batch, 4, 3)
        for index in itertools.product(*(range(size) for size in batch)):
            assert torch.equal(values[index], _gram(kernel, x1[index], x2[index]))

    def test_empty_sets(self, kernel: Kernel) -> None:
        """Matrices without rows, or without columns."""
        x = random_codes(5, 3).double()
        assert _gram(kernel, x[:0], x).shape == (0, 5)
        assert _gram(kernel, x, x[:0]).shape == (5, 0)

    @pytest.mark.parametrize("sizes", [(5,), (2, 2, 2, 2), (3, 1, 4), (4, 4, 4)])
    def test_strictly_positive_definite_on_theta(
        self, kernel: Kernel, sizes: tuple[int, ...]
    ) -> None:
        """So it can be factorised without jitter."""
        gram = _gram(kernel, grid(sizes), grid(sizes))
        assert float(torch.linalg.eigvalsh(gram).min()) > 1e-3
        torch.linalg.cholesky(gram)

    def test_nothing_to_fit(self, kernel: Kernel) -> None:
        """The bounds hold for a fixed kernel."""
        assert list(kernel.parameters()) == []

    def test_exact_gp_matches_the_closed_form(self, kernel: Kernel) -> None:
        """BoTorch's posterior with this kernel is the formula's."""
        x, test = grid((3, 3))[::2], grid((3, 3))
        y = torch.sin(torch.arange(len(x), dtype=torch.float64))
        gram = _gram(kernel, x, x).numpy() + 1e-6 * np.eye(len(x))
        cross = _gram(kernel, test, x).numpy()
        mean = cross @ np.linalg.solve(gram, y.numpy())
        variance = 1 - (cross.T * np.linalg.solve(gram, cross.T)).sum(0)
        likelihood = GaussianLikelihood(noise_constraint=GreaterThan(1e-9)).double()
        likelihood.noise = torch.tensor(1e-6, dtype=torch.float64)
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


class HammingKernelConformance(KernelConformance):
    """What every `HammingKernel` must do; a subclass overrides `kernel` and `reference`.

    `reference` returns kappa(h), the kernel at Hamming distance h, written in numpy. The kernel may
    differ from it by `rtol`, relative.

    Examples:
        >>> class TestMyHammingKernel(HammingKernelConformance):
        ...     @pytest.fixture
        ...     def kernel(self):
        ...         return MyHammingKernel()
        ...
        ...     @pytest.fixture
        ...     def reference(self):
        ...         return lambda h: np.exp(-h / 3)
    """

    rtol = 1e-12

    @pytest.fixture
    def kernel(self) -> HammingKernel:
        """The kernel under test."""
        raise NotImplementedError("override the fixture kernel; it returns a HammingKernel")

    @pytest.fixture
    def reference(self) -> Callable[[np.ndarray], np.ndarray]:
        """kappa(h) of an array of distances, in numpy."""
        raise NotImplementedError("override the fixture reference; it returns kappa(h) in numpy")

    def test_profile(
        self, kernel: HammingKernel, reference: Callable[[np.ndarray], np.ndarray], device: str
    ) -> None:
        """`profile` holds kappa(0), ..., kappa(N)."""
        profile = kernel.profile(5, device)
        assert profile.dtype == torch.float64
        assert profile.device.type == device
        np.testing.assert_allclose(profile.cpu(), reference(np.arange(6)), rtol=self.rtol)

    def test_matrix_is_the_profile_of_the_distance(
        self, kernel: HammingKernel, reference: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        """k(x, x') = kappa(number of modules that differ)."""
        x1, x2 = random_codes(7, 4), random_codes(6, 4, seed=1)
        distance = (x1.numpy()[:, None] != x2.numpy()[None]).sum(-1)
        assert torch.equal(hamming_distance(x1, x2), torch.tensor(distance))
        values = _gram(kernel, x1.double(), x2.double())
        np.testing.assert_allclose(values, reference(distance), rtol=self.rtol)

    def test_a_module_alone_has_no_kernel(self, kernel: HammingKernel) -> None:
        """GPyTorch's `last_dim_is_batch` is refused."""
        with pytest.raises(ValueError, match="last_dim_is_batch"):
            kernel.forward(random_codes(2, 3), random_codes(2, 3), last_dim_is_batch=True)

    @pytest.mark.parametrize(("num_modules", "num_llms"), [(1, 5), (2, 4), (3, 3), (4, 2)])
    def test_krawtchouk_eigenvalues_are_those_of_the_matrix(
        self, kernel: HammingKernel, num_modules: int, num_llms: int
    ) -> None:
        """The eigenvalues of the Gram matrix of Theta follow from the profile."""
        x = grid((num_llms,) * num_modules)
        exact = krawtchouk_eigenvalues(kernel.profile(num_modules).tolist(), num_llms)
        multiplicity = [math.comb(num_modules, j) * (num_llms - 1) ** j for j in range(len(exact))]
        expected = sorted(np.repeat(exact, multiplicity))
        observed = torch.linalg.eigvalsh(_gram(kernel, x, x))
        np.testing.assert_allclose(observed, expected, atol=1e-12)


def grid(sizes: tuple[int, ...], device: str = "cpu") -> Tensor:
    """Codes of all configurations: `|Theta| x num_modules` (float64)."""
    codes = list(itertools.product(*(range(size) for size in sizes)))
    return torch.tensor(codes, dtype=torch.float64, device=device)


def random_codes(*shape: int, num_llms: int = 4, seed: int = 0) -> Tensor:
    """Random codes of a shape whose last number is that of modules (int64)."""
    return torch.randint(num_llms, shape, generator=torch.Generator().manual_seed(seed))


def krawtchouk_eigenvalues(values: Sequence[float], num_llms: int) -> list[float]:
    """Eigenvalues of the Gram matrix over [M]^N of kappa(0..N): sum_h kappa(h) K_h(j).

    Args:
        values: kappa(0), ..., kappa(N).
        num_llms: M.

    Returns:
        N + 1 eigenvalues; the j-th has multiplicity (N choose j) (M - 1)^j.
    """
    n = len(values) - 1
    return [
        math.fsum(
            (-1) ** s * (num_llms - 1) ** (h - s) * math.comb(j, s) * math.comb(n - j, h - s) * k_h
            for h, k_h in enumerate(values)
            for s in range(h + 1)
        )
        for j in range(n + 1)
    ]


def _gram(kernel: Kernel, x1: Tensor, x2: Tensor) -> Tensor:
    return kernel(x1, x2).to_dense()


def _diagonal(kernel: Kernel, *codes: Tensor) -> Any:
    return kernel(*codes, diag=True)
