"""The posterior on a device, and its minima, against regression from scratch, step by step."""

import math

import numpy as np
import pytest
import torch
from test_grid import Driven, candidates_one_by_one, records
from test_per_query import MATERN, RBF

from scope_torch.model.device_sums import DeviceSums
from scope_torch.model.tensor_surrogate import TensorSurrogate
from scope_torch.space import ConfigSpace
from scope_torch.space_search import device_grid
from scope_torch.space_search.device_grid import DevicePosterior


class AllExact(DevicePosterior):
    """With the names of `GridPosterior` that `Driven` looks at."""

    @property
    def upper_variance(self):
        return self.variance

    def is_exact(self, index):
        return torch.ones_like(index, dtype=torch.bool)


class DrivenOnDevice(Driven):
    def __init__(self, sizes, num_queries, lam=1e-4, kernel=MATERN, device="cpu"):
        super().__init__(sizes, num_queries, lam, kernel, device)
        space = ConfigSpace(sizes)
        self.surrogate = TensorSurrogate(space, kernel[0], num_queries, lam, device)
        self.sums = DeviceSums(space, kernel[0], device)
        self.posterior = AllExact(self.surrogate, self.sums)


@pytest.mark.parametrize("kernel", [MATERN, RBF])
@pytest.mark.parametrize("sizes", [(4,), (1,), (3, 1), (2, 4, 3), (1, 3, 1, 2)])
def test_random_sequences(sizes, kernel, device):
    """Single observations, batches, repeats, nothing new, late configurations on old queries."""
    rng = np.random.default_rng(math.prod(sizes))
    driven = DrivenOnDevice(sizes, 5, 1e-4, kernel, device)
    for step in range(15):
        batch = [1, 1, 4, 0, 1, 9][step % 6]
        driven.tell(records(rng, sizes, 5, batch, fresh=0.2 if step < 8 else 0.9))
        driven.check()
    driven.check_each_query()


@pytest.mark.slow
@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize("lam", [1e-6, 1e-2])
def test_variances_made_anew_or_followed(lam, followed, monkeypatch, device):
    """Whether they are followed depends on the bytes; neither way do they drift."""
    monkeypatch.setattr(DeviceSums, "bytes_of_squares", lambda *_: 0 if followed else math.inf)
    monkeypatch.setattr(device_grid, "_MOST_FOLLOWED", 1000 if followed else 64)
    driven = DrivenOnDevice((5, 4, 5), 12, lam, MATERN, device)
    made = 0
    forms = DeviceSums.forms

    def counted(*arguments):
        nonlocal made
        made += 1
        return forms(*arguments)

    monkeypatch.setattr(DeviceSums, "forms", counted)
    rounds = candidates_one_by_one(driven, np.random.default_rng(1), 90)
    for step, batch in enumerate(rounds):
        driven.tell(batch)
        driven.check() if step % 9 == 8 else driven.posterior.update()
    assert made <= 2 if followed else made == 90
    assert driven.choices > 10
