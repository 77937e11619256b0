"""Kernels of the Hamming distance, and one that is not."""

import math

import naive
import numpy as np
import pytest
import torch
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel

from scope_torch.baselines.cei import CEI
from scope_torch.errors import InputError
from scope_torch.front_method import make_scope_front
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.model.kernels import HammingKernel, HammingMatern52Kernel, HammingRBFKernel
from scope_torch.testing import HammingKernelConformance, KernelConformance, drive
from scope_torch.testing.kernels import krawtchouk_eigenvalues
from scope_torch.testing.problems import KnownTask


class TestHammingMatern52(HammingKernelConformance):
    rtol = 1e-15

    @pytest.fixture
    def kernel(self):
        return HammingMatern52Kernel()

    @pytest.fixture
    def reference(self):
        return lambda h: naive.matern52(np.asarray(h, dtype=np.float64))

    def test_published_values(self, kernel):
        """scope_torch.baselines.md, section 2."""
        values = [1, 0.52399, 0.31728, 0.20532, 0.13866, 0.09658]
        np.testing.assert_allclose(kernel.profile(5), values, atol=5e-6)

    @pytest.mark.parametrize(("n", "smallest"), [(3, 0.1745), (4, 0.1251), (5, 0.0964)])
    def test_smallest_eigenvalue_of_23_llms(self, kernel, n, smallest):
        eigenvalues = krawtchouk_eigenvalues(kernel.profile(n).tolist(), 23)
        assert min(eigenvalues) == pytest.approx(smallest, abs=5e-5)


class TestHammingRBF(HammingKernelConformance):
    rtol = 1e-15

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


class Twins(Kernel):
    """Matern 5/2 under which LLMs 0 and 1, 2 and 3, ... are the same: its matrices are singular."""

    has_lengthscale = False

    def forward(self, x1, x2, diag=False, **params):
        return HammingMatern52Kernel().forward(x1 // 2, x2 // 2, diag, **params)


def test_at_distance_is_what_a_subclass_supplies():
    with pytest.raises(TypeError, match="at_distance"):
        HammingKernel()


class Fitted(HammingKernel):
    """Has a parameter with a gradient."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(scale, dtype=torch.float64))

    def at_distance(self, h):
        return torch.exp(-h / self.scale)


class Times(HammingKernel):
    """A kernel of Hamming distances, times a number, in some type."""

    def __init__(self, factor=1.0, dtype=torch.float64):
        super().__init__()
        self.factor, self.dtype_of = factor, dtype

    def at_distance(self, h):
        return self.factor * torch.exp(-h).to(self.dtype_of)


@pytest.mark.parametrize("make", [make_scope, make_scope_joint, make_scope_front, CEI])
@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (Times(4.0), r"must be 1"),
        (Times(0.5), r"must be 1"),
        (Times(dtype=torch.float32), r"float32; let it give float64"),
        (Fitted(0.0), r"kernel=Fitted: .* is nan"),
        (ScaleKernel(RBFKernel()).double(), r"must be 1"),
        (Times, "must be an instance"),
        ("matern", "must be an instance"),
    ],
)
def test_a_kernel_that_variances_would_be_wrong_with_is_refused_at_once(make, kernel, words):
    base = {} if make is CEI else {"base": "llm0"}
    with pytest.raises(InputError, match=words):
        make(KnownTask.random(1, (3, 2), 4).problem, seed=0, kernel=kernel, **base)


@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
@pytest.mark.parametrize("surrogate", ["incremental", "tensor"])
@pytest.mark.parametrize("kernel", [Fitted(), RBFKernel().double()])
def test_a_kernel_may_have_parameters_which_nobody_fits(make, surrogate, kernel):
    task = KnownTask.random(1, (3, 2), 4)
    search = make(task.problem, base="llm0", seed=0, kernel=kernel, surrogate=surrogate)
    assert len(drive(search, task, 40)) > 10
    assert all(one.grad is None for one in kernel.parameters())
