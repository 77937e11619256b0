"""Sums over Theta in few launches against the definition."""

import pytest
import torch
from test_per_query import MATERN, RBF

from scope_torch.model.device_sums import DeviceSums
from scope_torch.model.direct_sums import DirectGrid
from scope_torch.model.gpytorch_model import with_room
from scope_torch.space import ConfigSpace


@pytest.mark.parametrize("kernel", [MATERN[0], RBF[0]])
@pytest.mark.parametrize("sizes", [(4,), (1,), (4, 3), (3, 4, 2), (3, 1, 4, 2), (3, 2, 3, 2, 3)])
def test_equal_the_definition(sizes, kernel, device):
    """With few, more and all configurations, past the first 64 of them."""
    space = ConfigSpace(sizes)
    direct, sums = DirectGrid(space, kernel, device), DeviceSums(space, kernel, device)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(space.size, generator=generator)
    for n in sorted({0, 1, min(3, space.size), min(70, space.size), space.size}):
        codes = space.unrank(order[:n])
        sums.add_configurations(codes)
        assert sums.columns == with_room(n)
        x = torch.randn(3, n, sums.columns, dtype=torch.float64, generator=generator)
        rows = x[:2, 0] if n else torch.zeros(2, sums.columns, dtype=torch.float64)
        matrices = x.mT[:2] @ x[:2] / sums.columns  # columns without a configuration do not count
        on_device = codes.to(device), rows.to(device), matrices.to(device)
        expected = direct.weighted_sums(on_device[0], on_device[1][:, :n])
        torch.testing.assert_close(sums.sums(on_device[1]), expected, rtol=0, atol=1e-12)
        constants = torch.tensor([1.0, 2.0], dtype=torch.float64, device=device)
        forms = [direct.quadratic_form(on_device[0], V[:n, :n]) for V in on_device[2]]
        expected = constants[:, None] - 0.5 * torch.stack(forms)
        found = sums.forms(on_device[2], constants, -0.5)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
