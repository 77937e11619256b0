"""The guess of the cost of every configuration."""

import itertools

import numpy as np
import pytest
import torch

from scope_torch.model.cost_scale import fit_cost_scale
from scope_torch.space import ConfigSpace

SPACE = ConfigSpace((3, 4))
TERMS = (np.array([1e-5, 2e-4, 3e-2]), np.array([5e-5, 1e-4, 1e-3, 1e-2]))


def neighbours():
    yield 0, 0
    yield from ((i, 0) for i in (1, 2))
    yield from ((0, j) for j in (1, 2, 3))


def test_finds_an_additive_cost_from_the_neighbours_of_one_configuration():
    """Also where it was not observed, and whatever the queries cost."""
    factor = [0.5, 1.0, 1.5]
    costs = [
        ((i, j), q, float((TERMS[0][i] + TERMS[1][j]) * factor[q]))
        for (i, j), q in itertools.product(neighbours(), range(3))
    ]
    scale = fit_cost_scale(SPACE, costs)
    expected = (TERMS[0][:, None] + TERMS[1]).flatten()
    np.testing.assert_allclose(scale.everywhere().numpy(), expected, rtol=0.05)


def test_everywhere_is_at():
    scale = fit_cost_scale(SPACE, [((0, 1), 0, 0.2), ((1, 2), 1, 0.1)])
    each = [scale.at(theta) for theta in itertools.product(range(3), range(4))]
    np.testing.assert_allclose(scale.everywhere().numpy(), each, rtol=1e-15)


def test_what_was_never_observed_costs_what_is_usual():
    costs = [((0, j), 0, c) for j, c in enumerate((0.1, 0.2, 0.9))]
    scale = fit_cost_scale(SPACE, costs)
    assert scale.terms[1][3] == scale.terms[1][:3].median()
    assert torch.equal(scale.terms[0], scale.terms[0][:1].expand(3))


@pytest.mark.parametrize("usd", [0.0, 1e-12, 1e6])
def test_is_positive(usd):
    scale = fit_cost_scale(SPACE, [((0, 0), 0, usd), ((1, 1), 0, 0.0)])
    assert (scale.everywhere() > 0).all()
    assert scale.everywhere().isfinite().all()


@pytest.mark.parametrize(("usd", "expected"), [(0.0, 0.02), (1e-9, 1e-9)])
def test_the_scale_of_free_observations_is_given(usd, expected):
    scale = fit_cost_scale(SPACE, [((0, 0), 0, usd), ((1, 1), 0, usd)], scale_if_free=0.02)
    np.testing.assert_allclose(scale.everywhere().numpy(), expected, rtol=1e-6)
