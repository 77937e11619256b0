"""The upper bound on an average of all from a random sample: how often it is wrong, how wide."""

import numpy as np
import pytest
from scipy.stats import beta, binom, hypergeom

from scope_torch.bounds.betting import upper_average, upper_expectation

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


@pytest.mark.slow
def test_more_answers_say_more():
    sample = ([1.0] * 17 + [0.0] * 3) * 40
    bounds = [upper_average(sample[:n], 2293, 0.025) for n in (100, 200, 400, 800)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 0.89


EXPECTED = {
    "coins": np.full(60, 0.6),
    "from 0.2 to 1": np.linspace(0.2, 1, 60),
    "fixed": POPULATIONS["half"].astype(float),
}


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [20, 54, 60])
@pytest.mark.parametrize("name", EXPECTED)
def test_of_answers_that_vary_it_bounds_what_is_expected(name, drawn):
    """The other bound is of the answers themselves, and is wrong of coins far too often."""
    expected, draws = EXPECTED[name], 200
    is_compared = name == "coins" and drawn > 20
    rng = np.random.default_rng(drawn)
    wrong = wrong_of_fixed = 0
    for _ in range(draws):
        sample = rng.random(drawn) < rng.permutation(expected)[:drawn]
        sample = sample.astype(float).tolist()
        wrong += upper_expectation(sample, DELTA) < expected.mean() - 1e-9
        if is_compared:
            wrong_of_fixed += upper_average(sample, 60, DELTA) < expected.mean() - 1e-9
    assert wrong <= binom.ppf(0.999, draws, DELTA)
    if is_compared:
        assert wrong_of_fixed > binom.ppf(0.999, draws, DELTA)


def test_of_grades_that_vary_it_is_wrong_as_seldom_as_it_says():
    means = np.linspace(0.3, 0.95, 60)
    rng = np.random.default_rng(3)
    bounds = []
    for _ in range(100):
        drawn = rng.permutation(means)[:40]
        bounds.append(upper_expectation(rng.beta(6 * drawn, 6 * (1 - drawn)).tolist(), DELTA))
    assert sum(bound < means.mean() for bound in bounds) <= binom.ppf(0.999, 100, DELTA)
    assert means.mean() < np.mean(bounds) < means.mean() + 0.15


def test_the_bound_on_what_is_expected_is_one_of_the_two():
    """Clopper and Pearson where all are 0 or 1; bets, retyped, where all are 0.7."""
    sample = [1.0] * 30 + [0.0] * 10
    assert upper_expectation(sample, DELTA) == pytest.approx(beta.ppf(1 - 0.8 * DELTA, 31, 10))
    assert upper_expectation([1.0] * 5, DELTA) == 1.0
    missing = 1 - upper_expectation([0.7] * 50, DELTA)
    for m, is_possible in ((missing - 1e-6, False), (missing + 1e-6, True)):
        capital = np.mean([(1 + f / 20 * (0.3 / m - 1)) ** 50 for f in range(1, 20)])
        assert (capital < 1 / (0.2 * DELTA)) == is_possible
