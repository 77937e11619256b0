"""Fronts and areas, against brute force, Monte Carlo and BoTorch."""

import math

import numpy as np
import pytest
import torch
from botorch.utils.multi_objective.hypervolume import Hypervolume

from scope_torch.search.hypervolume import (
    Costs,
    Front,
    Qualities,
    expected_improvement,
    non_dominated,
)


def random_points(seed: int, number: int = 12) -> list[tuple[float, float]]:
    rng = np.random.default_rng(seed)
    return [
        (float(c), float(q))
        for c, q in zip(rng.normal(0, 1, number), rng.random(number), strict=False)
    ]


def one(*values: float) -> list[torch.Tensor]:
    return list(torch.tensor(values, dtype=torch.float64)[:, None])


@pytest.mark.parametrize("seed", range(20))
def test_non_dominated_is_what_no_point_beats(seed):
    rng = np.random.default_rng(seed)
    cost, quality = rng.integers(0, 6, 15), rng.integers(0, 6, 15)  # with ties
    kept = non_dominated(cost.tolist(), quality.tolist())
    points = list(zip(cost.tolist(), quality.tolist(), strict=False))
    beaten = {p for p in points for o in points if o != p and o[0] <= p[0] and o[1] >= p[1]}
    assert [points[i] for i in kept] == sorted(set(points) - beaten)
    assert kept == [points.index(points[i]) for i in kept]  # of equal ones the first


@pytest.mark.parametrize("seed", range(10))
def test_the_area_is_botorchs_hypervolume(seed):
    points, worst = random_points(seed), 0.8
    expected = Hypervolume(torch.tensor([-worst, 0.0], dtype=torch.float64)).compute(
        torch.tensor([(-c, q) for c, q in points], dtype=torch.float64)
    )
    assert Front(points, worst).area == pytest.approx(expected, rel=1e-12)


def test_points_beyond_the_worst_cost_add_nothing():
    assert Front([(2.0, 0.9), (1.0, 0.0)], worst=2.0).area == 0.0
    front = Front([(0.0, 0.5)], worst=2.0)
    cost, quality = (
        torch.tensor([0.0, -1.0, 0.5, 2.0, 0.5]),
        torch.tensor([0.5, 0.4, 0.6, 0.9, 0.5]),
    )
    assert front.beats(cost, quality).tolist() == [True, False, False, True, True]


@pytest.mark.slow
@pytest.mark.parametrize("cap", [1.0, 0.62])
@pytest.mark.parametrize("mean_q", [0.3, 0.6])
def test_the_expected_improvement_is_that_of_monte_carlo(cap, mean_q):
    points = [(-1.0, 0.2), (0.0, 0.4), (1.0, 0.6)]
    worst = 2.0
    front = Front(points, worst)
    m, s, q, d, k = one(0.3, 0.8, mean_q, 0.15, cap)
    area, chance = expected_improvement(front, Costs(m, s), Qualities(q, d, k))
    rng = np.random.default_rng(0)
    cost = rng.normal(0.3, 0.8, 40_000)
    quality = np.minimum(rng.normal(mean_q, 0.15, 40_000), cap)
    added = []
    for c, x in zip(cost.tolist(), quality.tolist(), strict=False):
        more = 0.0
        for start, end, level in zip(
            [-math.inf, *front.cost], [*front.cost, worst], [0.0, *front.quality], strict=False
        ):
            more += max(0.0, end - max(c, start)) * max(0.0, x - level)
        added.append(more)
    error = 4 * np.std(added) / math.sqrt(len(added))
    assert float(area) == pytest.approx(np.mean(added), abs=error)
    assert float(chance) == pytest.approx(np.mean(np.array(added) > 0), abs=0.01)


def test_the_area_added_by_monte_carlo_is_a_difference_of_areas():
    """The increment that the test above retypes, against the areas of two fronts."""
    points = [(-1.0, 0.2), (0.0, 0.4), (1.0, 0.6)]
    front = Front(points, 2.0)
    for c, x in random_points(3, 50):
        m, s, q, d, k = one(c, 0.0, x, 0.0, 1.0)
        area, chance = expected_improvement(front, Costs(m, s), Qualities(q, d, k))
        more = Front([*points, (c, x)], 2.0).area - front.area
        assert float(area) == pytest.approx(more, abs=1e-9)
        assert float(chance) == pytest.approx(float(more > 0))


def test_what_cannot_exceed_the_front_adds_nothing():
    front = Front([(-5.0, 0.6)], 2.0)
    m, s, q, d, k = one(0.0, 1.0, 0.6, 0.2, 0.6)
    area, chance = expected_improvement(front, Costs(m, s), Qualities(q, d, k))
    assert float(area) < 1e-6  # of costs below e^-5
    assert float(chance) < 1e-6
