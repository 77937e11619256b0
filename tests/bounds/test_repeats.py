"""What repeated answers of the reference say."""

import math

import numpy as np
import pytest

from scope_torch.bounds.repeats import Repeats
from scope_torch.errors import InputError


def tail(n, p, least):
    """P(at least `least` of n)."""
    return math.fsum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(least, n + 1))


def changed(number, asked):
    first = tuple(float(i % 2) for i in range(asked))
    second = tuple(1 - x if i < number else x for i, x in enumerate(first))
    return Repeats(first, second)


@pytest.mark.parametrize(("number", "asked"), [(0, 30), (3, 30), (30, 30), (1, 1), (0, 1), (8, 80)])
def test_counts_and_their_interval(number, asked):
    repeats = changed(number, asked)
    assert (repeats.asked, repeats.changed) == (asked, number)
    assert repeats.rate == number / asked
    low, high = repeats.interval
    assert 0 <= low <= repeats.rate <= high <= 1
    # The ends are where what was seen, or more (less) of it, has a chance of 2.5%.
    if number > 0:
        assert tail(asked, low, number) == pytest.approx(0.025, rel=1e-6)
    else:
        assert low == 0
    if number < asked:
        assert 1 - tail(asked, high, number + 1) == pytest.approx(0.025, rel=1e-6)
    else:
        assert high == 1


def test_the_variance_is_that_within_queries():
    rng = np.random.default_rng(0)
    mean = rng.choice([0.0, 0.2, 0.5, 1.0], 40_000)
    first, second = (rng.random((2, len(mean))) < mean).astype(float)
    estimate = Repeats(tuple(first), tuple(second)).variance
    assert estimate == pytest.approx((mean * (1 - mean)).mean(), rel=0.03)


def test_graded_answers():
    repeats = Repeats((0.5, 0.25, 1.0), (0.5 + 1e-12, 0.75, 1.0))
    assert repeats.changed == 1
    assert repeats.variance == pytest.approx(0.25 / 6, rel=1e-9)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ((), (), "0 first and 0 second grades; give both grades"),
        ((1.0, 0.0), (1.0,), "2 first and 1 second grades"),
        ((1.0,), (1.2,), "the grade 1.2 of a repeated answer must lie in"),
        ((-0.1,), (0.0,), "the grade -0.1"),
        ((math.nan,), (0.0,), "the grade nan"),
    ],
)
def test_impossible_grades(first, second, message):
    with pytest.raises(InputError, match=message):
        Repeats(first, second)
