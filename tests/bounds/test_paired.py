"""Tests in pairs, decided either way: the capital retyped, verdicts, intervals, wrong ones."""

import math
import random

import numpy as np
import pytest

from scope_torch.bounds.paired import Outcomes, log_capital

FRACTIONS = [0.05 * k for k in range(1, 20)]


def naive_log_capital(differences, worst, num_queries):
    """Bet by bet, as the table of the module has it."""
    capital, found, total = dict.fromkeys(FRACTIONS, 1.0), [], 0.0
    for t, d in enumerate(differences):
        rest = 0.0 if num_queries is None else -total / (num_queries - t)
        for f in FRACTIONS:
            capital[f] *= 1 + f * (d - rest) / (worst + rest)
        total += d
        found.append(math.log(math.fsum(capital.values()) / len(capital)))
    return found


def quality(new, reference, num_queries=None):
    old = None if reference is None else np.array(reference, dtype=float)
    return Outcomes(np.array(new, dtype=float), old, 0.0, 1.0, False, num_queries)


@pytest.mark.parametrize("num_queries", [None, 60])
def test_the_capital_is_that_of_the_gambler(num_queries):
    rng = np.random.default_rng(3)
    for worst in (0.3, 1.0, 30.0):
        d = worst * rng.uniform(-1, 1, 40)
        d[rng.random(40) < 0.3] = 0.02 * worst
        found = log_capital(d, worst, num_queries)
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, naive_log_capital(d, worst, num_queries), atol=1e-10)


def test_all_queries_decide_whatever_the_capital():
    rng = random.Random(0)
    for _ in range(300):
        Q = rng.randrange(1, 9)
        new, old = ([float(rng.random() < 0.7) for _ in range(Q)] for _ in range(2))
        level = rng.choice([0.5, 0.8, 0.9, 1.0])
        verdict, number = quality(new, old, Q).verdict(level, 1e-6, 1e-6)
        assert verdict is (math.fsum(new) >= level * math.fsum(old))
        assert number <= Q


def test_it_is_sure_as_soon_as_the_rest_cannot_change_it():
    ones, level = [1.0] * 10, 0.5
    # 7 of 10 right, at least 5 wanted: sure after the fifth
    assert quality([*ones[:7], 0, 0, 0], None, 10).verdict(level, 1e-9, 1e-9) == (True, 5)
    # 4 of 10 right: sure that 5 cannot be reached after the sixth wrong answer
    assert quality([0, 0, 0, 0, 0, 0, 1, 1, 1, 1], None, 10).verdict(level, 1e-9, 1e-9) == (
        False,
        6,
    )
    # A mean equal to the level is good enough, in any order
    assert quality([0, 0, 1, 1], None, 4).verdict(level, 1e-9, 1e-9)[0] is True
    assert quality([1, 1, 0, 0], None, 4).verdict(level, 1e-9, 1e-9)[0] is True


def test_independent_draws_are_never_sure():
    assert quality([1.0] * 20, [1.0] * 20).verdict(0.99, 0.05, 0.05) == (None, 20)


def test_a_level_that_every_outcome_reaches_needs_no_bet():
    assert quality([0.0], None).verdict(0.0, 0.05, 0.05) == (True, 1)
    # and one that only perfect ones reach is refuted by the first that is not
    assert quality([1.0, 0.5], None).verdict(1.0, 0.05, 0.05) == (False, 2)


@pytest.mark.slow
@pytest.mark.parametrize("keeps_low", [False, True])
@pytest.mark.parametrize("num_queries", [None, 200])
@pytest.mark.parametrize("is_relative", [False, True])
def test_the_interval_says_what_any_verdict_says(keeps_low, num_queries, is_relative):
    rng = np.random.default_rng(5)
    for _ in range(10):
        old = rng.uniform(0, 4, 150)
        new = np.clip(old * rng.uniform(0.6, 1.3) + rng.normal(0, 0.3, 150), 0, 4)
        both = Outcomes(new, old if is_relative else None, 0.0, 4.0, keeps_low, num_queries)
        low, high = both.interval(0.05, 0.02, 4.0)
        assert 0 <= low <= high <= 4
        for level in (0.999 * low, 1.001 * low, 0.999 * high, 1.001 * high):
            if not 0 < level < 4:
                continue
            kept = _ever(both, level, 0.05, kept=True)
            broken = _ever(both, level, 0.02, kept=False)
            within = level >= high if keeps_low else level <= low
            beyond = level <= low if keeps_low else level >= high
            assert (kept, broken) == (within, beyond)


def _ever(both, level, delta, kept):
    verdict, _ = both.verdict(level, *((delta, 1e-300) if kept else (1e-300, delta)))
    return verdict is kept


def test_the_interval_of_all_queries_is_their_average():
    rng = np.random.default_rng(8)
    new, old = rng.random(50) < 0.8, rng.random(50) < 0.8
    low, high = quality(new, old, 50).interval(0.05, 0.05, 2.0)
    assert low == pytest.approx(new.mean() / old.mean(), abs=1e-9)
    assert high == pytest.approx(low, abs=1e-9)


def test_prefixes_agree():
    """What was decided stays decided, whatever comes later."""
    rng = np.random.default_rng(2)
    new, old = rng.random(300) < 0.7, rng.random(300) < 0.9
    verdict, number = quality(new, old).verdict(0.95, 0.05, 0.05)
    assert verdict is False
    for n in (number - 1, number, number + 1, 300):
        told, at = quality(new[:n], old[:n]).verdict(0.95, 0.05, 0.05)
        assert (told, at) == ((None, n) if n < number else (verdict, number))


def draws(rng, number, flips, loss, num_queries):
    """Answers of both on queries drawn with replacement; some flip from call to call.

    The reference knows 85% of the queries. The new one does not know some of these; how many
    decides that its expected quality is just 1 - loss of the reference's.
    """
    knows = np.arange(num_queries) < round(0.85 * num_queries)
    expected = np.where(knows, 1 - flips, flips)
    target = (1 - loss) * expected.mean()
    # of queries that the reference knows, those that the new one does not: each costs 1 - 2 flips
    share = (expected.mean() - target) * num_queries / (1 - 2 * flips)
    lost, part = int(share), share % 1
    chance = expected.copy()
    chance[:lost] = flips
    chance[lost] += part * (2 * flips - 1)
    assert chance.mean() == pytest.approx(target, abs=1e-12)
    query = rng.integers(num_queries, size=number)
    return rng.random(number) < chance[query], rng.random(number) < expected[query]


@pytest.mark.slow
@pytest.mark.parametrize("flips", [0.0, 0.05, 0.15])
def test_wrong_verdicts_are_rare_where_the_loss_is_just_the_tolerated_one(flips):
    """At the boundary both verdicts are as likely to be wrong as they can be."""
    rng, delta, number = np.random.default_rng(11), 0.05, 400
    kept = broken = 0
    for _ in range(number):
        new, old = draws(rng, 600, flips, 0.05, 200)
        verdict, _ = quality(new, old).verdict(0.95, delta, delta)
        kept, broken = kept + (verdict is True), broken + (verdict is False)
    margin = 3 * math.sqrt(delta * (1 - delta) / number)
    assert kept / number <= delta + margin
    assert broken / number <= delta + margin
    assert kept + broken > 0  # the bets are worth something


@pytest.mark.slow
def test_answers_in_random_order_are_wrong_as_rarely():
    rng, delta, number, Q = np.random.default_rng(4), 0.05, 400, 200
    old = np.arange(Q) < 170
    wrong = {True: 0, False: 0}
    for loss, truth in ((0.04, True), (0.06, False)):
        new = np.arange(Q) < round(170 * (1 - loss))
        for _ in range(number):
            order = rng.permutation(Q)
            verdict, _ = quality(new[order], old[order], Q).verdict(0.95, delta, delta)
            assert verdict is not None
            wrong[truth] += verdict is not truth
    assert max(wrong.values()) / number <= delta + 3 * math.sqrt(delta * (1 - delta) / number)


@pytest.mark.parametrize("unit", [1e-9, 1e6])
@pytest.mark.parametrize("num_queries", [None, 120])
def test_verdicts_do_not_depend_on_the_unit(unit, num_queries):
    """USD of a query may be as small as tokens are many."""
    rng = np.random.default_rng(6)
    old = rng.uniform(0, 1, 120)
    for share in (0.7, 1.0, 1.4):
        new = np.clip(old * share + rng.normal(0, 0.05, 120), 0, 1)
        found = [
            Outcomes(new * one, old * one, 0.0, one, True, num_queries).verdict(1.1, 0.05, 0.05)
            for one in (1.0, unit)
        ]
        assert found[0] == found[1]


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e6])
def test_a_small_excess_is_no_rounding(unit):
    """All queries answered, 0.05% too much: whatever the unit, it is too much."""
    old = np.linspace(0.1, 0.9, 120) * unit
    both = Outcomes(1.0005 * old, old, 0.0, unit, True, 120)
    assert both.verdict(1.0, 1e-6, 1e-6)[0] is False
    assert Outcomes(old, old, 0.0, unit, True, 120).verdict(1.0, 1e-6, 1e-6)[0] is True
