"""Sums of a kernel over all of Theta against the sums written out."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import WeightedOverlap

from scope_torch.errors import InputError
from scope_torch.model import hamming_sums as hamming_grid
from scope_torch.model.direct_sums import MAX_ENUMERATED, DirectGrid
from scope_torch.model.hamming_sums import HammingGrid, make_grid
from scope_torch.model.kernels import HammingKernel, HammingMatern52Kernel, HammingRBFKernel
from scope_torch.space import ConfigSpace

KERNELS = [HammingMatern52Kernel, HammingRBFKernel]
SPACES = [(5,), (1,), (4, 1), (3, 2), (3, 3, 3), (1, 4, 2), (3, 2, 3, 2), (2, 3, 1, 2, 3)]


class ArbitraryKernel(HammingKernel):
    """Any function of h, not positive definite: the identity does not need it."""

    def __init__(self, seed=0):
        super().__init__()
        self.values = np.random.default_rng(seed).uniform(-1, 1, size=12)
        self.values[0] = 1.0

    def at_distance(self, h):
        return torch.tensor(self.values, device=h.device)[h.long()]


def theta_grid(sizes) -> np.ndarray:
    return np.array(list(itertools.product(*(range(size) for size in sizes))))


def cross(kernel, sizes, codes) -> np.ndarray:
    """|Theta| x n kernel values from the distances, without the kernel's own code for them."""
    distance = (theta_grid(sizes)[:, None, :] != codes[None]).sum(-1)
    return kernel.profile(len(sizes)).numpy()[distance]


def tolerance(kernel, num_modules) -> float:
    """1e-12, or the rounding of a sum over subsets whose terms cancel.

    The subset coefficients a_s of the library's kernels are positive and add up to 1; those of an
    arbitrary function of h alternate and add up to hundreds.
    """
    by_matches = kernel.profile(num_modules).numpy()[::-1]
    absolute = sum(
        math.comb(num_modules, s) * abs(np.diff(by_matches, s)[0]) for s in range(num_modules + 1)
    )
    return max(1e-12, 1e-14 * absolute**2)


def case(sizes, n, seed=0):
    """Up to n distinct configurations, weights and a symmetric matrix of magnitude 1."""
    rng = np.random.default_rng(seed)
    codes = theta_grid(sizes)[rng.permutation(np.prod(sizes))[:n]]
    matrix = rng.normal(size=(len(codes), len(codes))) / max(1, n)
    return codes, rng.normal(size=len(codes)) / max(1, n), matrix + matrix.T


def check(grid, kernel, sizes, n, device, seed=0):
    codes, weights, matrix = case(sizes, n, seed)
    k = cross(kernel, sizes, codes)
    on = [torch.tensor(array, device=device) for array in (codes, weights, matrix)]
    total, form = grid.weighted_sum(*on[:2]), grid.quadratic_form(on[0], on[2])
    for result in (total, form):
        assert result.dtype == torch.float64
        assert result.shape == (np.prod(sizes),)
        assert result.device.type == device
    atol = tolerance(kernel, len(sizes))
    np.testing.assert_allclose(total.cpu(), k @ weights, rtol=0, atol=atol)
    np.testing.assert_allclose(form.cpu(), ((k @ matrix) * k).sum(1), rtol=0, atol=atol)


@pytest.mark.parametrize("kernel", [*(make() for make in KERNELS), ArbitraryKernel()], ids=repr)
@pytest.mark.parametrize("sizes", SPACES, ids=str)
def test_hamming_grid_is_the_direct_sum(kernel, sizes, device):
    for n in (0, 1, 2, 7, 1000):
        check(HammingGrid(ConfigSpace(sizes), kernel, device), kernel, sizes, n, device)


@pytest.mark.parametrize("sizes", SPACES, ids=str)
@pytest.mark.parametrize("chunk", [1, 5, 1 << 16])
def test_direct_grid_is_the_direct_sum(sizes, chunk, device):
    kernel = ArbitraryKernel(1)
    grid = DirectGrid(ConfigSpace(sizes), kernel, device, chunk)
    for n in (0, 1, 2, 7, 1000):
        check(grid, kernel, sizes, n, device)


# Only the Hamming grid takes some rows at a time where there are many.
GRIDS = [(HammingGrid, large) for large in (0, 4, 4096, 1 << 20)] + [(DirectGrid, 1 << 20)]


@pytest.mark.parametrize("sizes", SPACES, ids=str)
@pytest.mark.parametrize("m", [0, 1, 5])
@pytest.mark.parametrize(("make", "large"), GRIDS[1:])
def test_squares_are_the_direct_squares(make, sizes, m, large, monkeypatch, device):
    """All rows at once, some at a time, and one at a time."""
    monkeypatch.setattr(hamming_grid, "_LARGE", large)
    kernel = HammingMatern52Kernel()
    codes, _, matrix = case(sizes, 7)
    rows, v = np.resize(matrix, (m, len(codes))), np.linspace(-1, 1, m)
    on = [torch.tensor(array, device=device) for array in (codes, rows, v)]
    to = torch.arange(math.prod(sizes), dtype=torch.float64, device=device)
    expected = to.cpu().numpy() + (cross(kernel, sizes, codes) @ rows.T) ** 2 @ v
    grid = make(ConfigSpace(sizes), kernel, device)
    grid.add_squares(*on, to=to, scratch=torch.empty_like(to))
    np.testing.assert_allclose(to.cpu(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sizes", SPACES, ids=str)
@pytest.mark.parametrize("m", [0, 1, 3])
@pytest.mark.parametrize(("make", "large"), [GRIDS[0], *GRIDS[-2:]])
def test_sums_of_rows_are_the_direct_sums(make, sizes, m, large, monkeypatch, device):
    """All rows at once, or one at a time; put into some rows of larger memory, again and again."""
    monkeypatch.setattr(hamming_grid, "_LARGE", large)
    kernel = HammingMatern52Kernel()
    codes, _, matrix = case(sizes, 7)
    rows = np.resize(matrix, (m, len(codes)))
    expected = rows @ cross(kernel, sizes, codes).T
    on = [torch.tensor(array, device=device) for array in (codes, rows)]
    grid = make(ConfigSpace(sizes), kernel, device)
    memory = torch.full((m + 1, math.prod(sizes)), math.nan, dtype=torch.float64, device=device)
    for out in (None, memory[:m], memory[:m]):
        got = grid.weighted_sums(*on, out=out)
        np.testing.assert_allclose(got.cpu(), expected, rtol=0, atol=1e-12)
        assert out is None or got.data_ptr() == out.data_ptr()
    assert memory[m].isnan().all()


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple),
    st.integers(0, 12),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 9, 100, 1 << 22]),
)
def test_any_space_any_chunk(sizes, n, seed, chunk):
    kernel = ArbitraryKernel(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hamming_grid, "_SCATTERED", chunk)
        check(HammingGrid(ConfigSpace(sizes), kernel), kernel, sizes, n, "cpu", seed)


def test_configurations_may_repeat():
    """Nothing in the sums needs D to be distinct."""
    kernel, sizes = HammingMatern52Kernel(), (3, 3)
    codes = torch.tensor([[0, 1], [0, 1], [2, 2]])
    weights = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    k = cross(kernel, sizes, codes.numpy())
    grid = HammingGrid(ConfigSpace(sizes), kernel)
    np.testing.assert_allclose(grid.weighted_sum(codes, weights), k @ weights.numpy(), atol=1e-14)
    matrix = weights.outer(weights)
    squared = (k @ weights.numpy()) ** 2
    np.testing.assert_allclose(grid.quadratic_form(codes, matrix), squared, atol=1e-13)


def test_arguments_are_left_alone():
    codes, weights, matrix = (torch.tensor(array) for array in case((3, 3, 2), 6))
    before = [codes.clone(), weights.clone(), matrix.clone()]
    for make in (HammingGrid, DirectGrid):
        grid = make(ConfigSpace((3, 3, 2)), HammingMatern52Kernel())
        first = grid.weighted_sum(codes, weights), grid.quadratic_form(codes, matrix)
        first[0].zero_()
        first[1].zero_()
        again = grid.weighted_sum(codes, weights), grid.quadratic_form(codes, matrix)
        assert all(float(result.abs().max()) > 0 for result in again)
    assert all(torch.equal(*pair) for pair in zip(before, (codes, weights, matrix), strict=True))


def test_a_space_like_the_papers(device):
    """Three modules of 23 LLMs, 60 configurations, entries as in a fitted surrogate (large)."""
    sizes, kernel = (23, 23, 23), HammingMatern52Kernel()
    codes = torch.tensor(case(sizes, 60)[0], device=device)
    gram = kernel(codes.double(), codes.double()).to_dense()
    inverse = torch.linalg.inv(gram + 1e-6 * torch.eye(60, dtype=torch.float64, device=device))
    fast, direct = (
        make(ConfigSpace(sizes), kernel, device).quadratic_form(codes, inverse)
        for make in (HammingGrid, DirectGrid)
    )
    assert float((fast - direct).abs().max()) < 1e-12
    at_codes = fast[ConfigSpace(sizes).rank(codes)]  # k^T (K + lam)^-1 k = 1 - lam + O(lam^2)
    np.testing.assert_allclose(at_codes.cpu(), 1 - 1e-6, atol=1e-11)


@pytest.mark.parametrize("make", KERNELS)
def test_subset_coefficients_are_positive(make):
    assert all(tolerance(make(), n) == 1e-12 for n in range(1, 9))


@pytest.mark.parametrize("make", [HammingGrid, make_grid])
def test_too_many_configurations(make):
    sizes = (600, 600, 600)
    assert ConfigSpace(sizes).size > MAX_ENUMERATED == 200_000_000
    with pytest.raises(InputError, match="fewer candidate LLMs"):
        make(ConfigSpace(sizes), HammingMatern52Kernel())


def test_make_grid_takes_the_direct_way_for_other_kernels(device):
    sizes, kernel = (3, 2, 4), WeightedOverlap()
    grid = make_grid(ConfigSpace(sizes), kernel, device)
    assert isinstance(grid, DirectGrid)
    codes, weights, matrix = case(sizes, 9)
    differs = theta_grid(sizes)[:, None, :] != codes[None]
    k = np.exp(-(differs @ (1 / np.arange(1, 4))))
    on = [torch.tensor(array, device=device) for array in (codes, weights, matrix)]
    np.testing.assert_allclose(grid.weighted_sum(*on[:2]).cpu(), k @ weights, atol=1e-12)
    form = grid.quadratic_form(on[0], on[2]).cpu()
    np.testing.assert_allclose(form, ((k @ matrix) * k).sum(1), atol=1e-12)


@pytest.mark.parametrize("make", KERNELS)
def test_make_grid_takes_the_fast_way_for_hamming_kernels(make, device):
    grid = make_grid(ConfigSpace((3, 2)), make(), device)
    assert isinstance(grid, HammingGrid)
    assert grid.device.type == device


@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("sizes", [(5,), (3, 4), (3, 2, 4)])
def test_sums_in_the_same_memory_and_whether_they_are_above(monkeypatch, sizes, large):
    """Tables that are folded by slabs are emptied entry by entry."""
    monkeypatch.setattr(hamming_grid, "_LARGE", 1 if large else 1 << 20)
    kernel, space = HammingMatern52Kernel(), ConfigSpace(sizes)
    grid, direct = HammingGrid(space, kernel), DirectGrid(space, kernel)
    for seed in range(4):
        codes, weights, matrix = map(torch.tensor, case(sizes, 9, seed))
        expected = direct.weighted_sum(codes, weights)
        for _ in range(2):
            torch.testing.assert_close(grid.weighted_sum(codes, weights), expected)
            assert grid.is_above(codes, weights, expected - 1e-9)
            at = torch.arange(space.size) == space.size - 1 - seed
            assert not grid.is_above(codes, weights, expected - 1e-9 + 2e-9 * at)
        form = grid.quadratic_form(codes, matrix)
        torch.testing.assert_close(form, direct.quadratic_form(codes, matrix))
        assert grid.is_above(codes, weights, torch.full_like(expected, -math.inf))
        rows = torch.stack([weights, -weights, 2 * weights])
        sums = grid.weighted_sums(codes, rows)
        torch.testing.assert_close(sums, torch.stack([expected, -expected, 2 * expected]))
