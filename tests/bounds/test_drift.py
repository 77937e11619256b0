"""The detector of a drift: its recursion retyped, false alarms, delays, the place of the change."""

import math

import numpy as np
import pytest

from scope_torch.bounds.drift import changed_at, log_detector

FRACTIONS = [0.05 * k for k in range(1, 20)]


def naive_detector(differences, worst):
    """The sum over all starts of what a gambler who starts there has, averaged over fractions."""
    found = []
    for t in range(len(differences)):
        capitals = [
            math.prod(1 + f * d / worst for d in differences[start : t + 1])
            for f in FRACTIONS
            for start in range(t + 1)
        ]
        found.append(math.log(math.fsum(capitals) / len(FRACTIONS)))
    return found


@pytest.mark.slow
def test_it_is_the_sum_over_all_starts():
    rng = np.random.default_rng(3)
    for worst in (0.2, 1.0, 40.0):
        d = worst * rng.uniform(-1, 2, 30)
        np.testing.assert_allclose(log_detector(d, worst), naive_detector(d, worst), atol=1e-10)


@pytest.mark.slow
def test_false_alarms_within_n_draws_are_as_rare_as_said():
    """At most n / C of the sequences whose mean is just what it may be, and some."""
    rng, draws, every, number = np.random.default_rng(0), 500, 5_000, 300
    alarms = 0
    for _ in range(number):
        right = rng.random(draws) < 0.9
        alarms += log_detector(0.9 - right, 0.1).max() >= math.log(every)
    share = draws / every
    assert alarms / number <= share + 3 * math.sqrt(share * (1 - share) / number)


@pytest.mark.parametrize(("quality", "most"), [(0.6, 60), (0.3, 25)])
def test_a_drop_is_seen_soon_and_where_it_was(quality, most):
    """After hundreds of good draws, as soon as after none."""
    rng = np.random.default_rng(5)
    delays, places = [], []
    for _ in range(40):
        right = np.concatenate([rng.random(400) < 0.97, rng.random(200) < quality])
        found = log_detector(0.9 - right, 0.1)
        alarm = int(np.flatnonzero(found >= math.log(100_000))[0])
        assert alarm >= 400
        delays.append(alarm - 400)
        places.append(changed_at((0.9 - right)[: alarm + 1], 0.1))
    assert np.mean(delays) < most
    assert abs(np.median(places) - 400) <= 5
