"""The upper bound on an average of all from a random sample: how often it is wrong, how wide."""

import numpy as np
import pytest
from scipy.stats import binom, hypergeom

from scope_torch.bounds.betting import upper_average

DELTA, DRAWS = 0.2, 100  # a small delta would never be seen to fail
POPULATIONS = {
    "half": np.arange(60) % 2 == 0,
    "most": np.arange(60) % 10 > 0,
    "few": np.arange(60) % 20 == 0,
    "grades": (np.arange(60) % 5) / 4,
    "one grade": np.full(60, 0.7),
    "nearly 1": np.where(np.arange(60) % 3 == 0, 0.9, 1.0),
}


@pytest.mark.parametrize("name", POPULATIONS)
@pytest.mark.slow
def test_it_is_wrong_as_seldom_as_it_says(name):
    outcomes = POPULATIONS[name].astype(float)
    rng = np.random.default_rng(7)
    bounds = [
        upper_average(rng.choice(outcomes, 20, replace=False), 60, DELTA) for _ in range(DRAWS)
    ]
    wrong = sum(bound < outcomes.mean() - 1e-9 for bound in bounds)
    assert wrong <= binom.ppf(0.999, DRAWS, DELTA)
    assert np.mean(bounds) < outcomes.mean() + 0.25


def test_of_0_and_1_it_is_exact():
    for count in (0, 3, 12, 20):
        sample = [1.0] * count + [0.0] * (20 - count)
        most = round(60 * upper_average(sample, 60, DELTA))
        share = 0.8 * DELTA
        assert most == 60 - (20 - count) or hypergeom.cdf(count, 60, most + 1, 20) <= share
        assert hypergeom.cdf(count, 60, most, 20) > share


def test_all_answers_say_all():
    assert upper_average([1.0, 0.25, 0.0, 0.5], 4, 0.05) == 0.4375


def test_more_answers_say_more():
    sample = ([1.0] * 17 + [0.0] * 3) * 40
    bounds = [upper_average(sample[:n], 2293, 0.025) for n in (100, 200, 400, 800)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 0.89
