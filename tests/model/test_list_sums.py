"""Sums over a list of configurations against those over all of Theta."""

import numpy as np
import pytest
import torch
from test_kernels import WeightedOverlap

from scope_torch.allowed import Allowed
from scope_torch.model import list_sums
from scope_torch.model.direct_sums import DirectGrid
from scope_torch.model.hamming_sums import HammingGrid, make_grid
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.model.list_sums import ListGrid
from scope_torch.space import ConfigSpace

SPACE = ConfigSpace((4, 3, 5))
EVERY = torch.arange(SPACE.size)


@pytest.mark.parametrize("kernel", [HammingMatern52Kernel(), WeightedOverlap()])
@pytest.mark.parametrize(
    ("kept", "block"), [(1 << 25, 1 << 22), (0, 1 << 22), (1 << 25, 9), (0, 1)]
)
def test_all_sums_are_those_of_theta(kept, block, kernel, monkeypatch, device):
    """However many columns of K are there at a time, and whether they are kept."""
    monkeypatch.setattr(list_sums, "_KEPT", kept)
    monkeypatch.setattr(list_sums, "_BLOCK", block)
    rng = np.random.default_rng(0)
    index = torch.from_numpy(np.sort(rng.permutation(SPACE.size)[:17]))
    listed, direct = ListGrid(SPACE, kernel, index, device), DirectGrid(SPACE, kernel, device)
    assert listed.size == 17
    for n in (1, 1, 5, 40, 12):  # D grows; and then it is another one
        drawn = np.random.default_rng(n == 12).permutation(SPACE.size)[:n]
        codes = SPACE.unrank(torch.tensor(drawn)).to(device)
        rows = torch.tensor(rng.normal(size=(3, n)), device=device)
        matrix, weights = rows.T @ rows, torch.tensor([0.5, 1.0, 2.0], device=device).double()
        out = torch.full((3, 17), torch.nan, dtype=torch.float64, device=device)
        sums = listed.weighted_sums(codes, rows, out=out)
        assert sums.data_ptr() == out.data_ptr()
        compare(sums, direct.weighted_sums(codes, rows)[:, index])
        compare(listed.weighted_sum(codes, rows[0]), direct.weighted_sum(codes, rows[0])[index])
        form, expected = (one.quadratic_form(codes, matrix) for one in (listed, direct))
        compare(form, expected[index])
        to, other = torch.ones(17).double().to(device), torch.ones(SPACE.size).double().to(device)
        listed.add_squares(codes, rows, weights, to=to, scratch=out[0])
        direct.add_squares(codes, rows, weights, to=other, scratch=torch.empty_like(other))
        compare(to, other[index])
        at = torch.tensor([3, 16, 0], device=device)
        compare(listed.kernel_at(at, codes), direct.kernel_at(index.to(device)[at], codes))
        compare(
            listed.weighted_sum_at(at, codes, rows[1]),
            direct.weighted_sum_at(index.to(device)[at], codes, rows[1]),
        )


def compare(found, expected):
    np.testing.assert_allclose(found.cpu(), expected.cpu(), rtol=0, atol=1e-12)


def allowed(space, count, given=None):
    modules = tuple(f"m{i}" for i in range(space.num_modules))
    llms = [[str(code) for code in range(size)] for size in space.sizes]
    return Allowed(modules, llms, given or tuple(map(space.theta_at, range(count))))


def test_a_list_is_enumerated_where_it_is_much_shorter_than_theta():
    space, matern = ConfigSpace((16, 16, 16)), HammingMatern52Kernel()  # 4,096 configurations

    def made(rule, kernel=matern):
        return type(make_grid(space, kernel, index=list_sums.listed(rule, kernel)))

    assert made(allowed(space, 15)) is ListGrid
    assert made(allowed(space, 16)) is HammingGrid  # 256 times as many are no more
    assert made(allowed(space, 4000), WeightedOverlap()) is ListGrid
    assert made(allowed(space, 4096), WeightedOverlap()) is DirectGrid
    assert made(allowed(space, 0, lambda llm: llm["m0"] == "0")) is HammingGrid  # a rule is no list
    assert made(None) is HammingGrid


def test_in_a_theta_that_cannot_be_enumerated_every_list_is(monkeypatch):
    space = ConfigSpace((1000,) * 5)
    index = list_sums.listed(allowed(space, 300), HammingMatern52Kernel())
    assert make_grid(space, HammingMatern52Kernel(), index=index).size == 300
    monkeypatch.setattr(list_sums, "MAX_LISTED", 299)
    assert list_sums.listed(allowed(space, 300), HammingMatern52Kernel()) is None
