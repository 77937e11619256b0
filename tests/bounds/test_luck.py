"""Answers that flip: how far luck lifts an average, and a bound on flips made of repeats."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from scope_torch.bounds.betting import (
    BettingSequence,
    flips_of_repeats,
    luck,
    margin,
    share_of_delta,
)
from scope_torch.errors import InputError


def tail_of(mu):
    """P(S >= n), n = 0 .. Q, of the number S of ones."""
    pmf = np.ones(1)
    for m in mu:
        pmf = np.convolve(pmf, [1 - m, m])
    return pmf[::-1].cumsum()[::-1]


def enough(num, s_0, margin_):
    """The fewest ones whose average reaches s_0 + margin."""
    return math.ceil(num * (s_0 + margin_) - 1e-9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("delta", [0.2, 0.02, 0.001])
def test_no_expectations_below_the_threshold_beat_the_margin(seed, delta):
    """Random ones: the most flips, other flips for every query, and lower averages."""
    rng, tried = np.random.default_rng(seed), 0
    for _ in range(150):
        num, p, s_0 = int(rng.integers(4, 25)), rng.uniform(0.01, 0.45), rng.uniform(0.1, 0.95)
        m, probability = luck(num, s_0, delta, p)
        assert probability <= delta
        assert m <= margin(num, delta, p)
        n = enough(num, s_0, m)
        for power, usual in itertools.product((0.0, 0.2, 1.0), range(num + 1)):
            flips = p * rng.random(num) ** power
            mu = np.where(np.arange(num) < usual, 1 - flips, flips)
            if mu.mean() <= s_0 and n <= num:
                assert tail_of(mu)[n] <= probability + 1e-12
                tried += 1
    assert tried > 500


@pytest.mark.parametrize(("p", "num"), [(0.02, 60), (0.1, 40), (0.3, 30)])
@pytest.mark.parametrize("s_0", [0.2, 0.72, 0.9])
def test_one_answer_less_would_be_too_likely(p, num, s_0):
    """Of expectations with two values, some exceed the promise by one answer less."""
    delta = 0.003
    m, probability = luck(num, s_0, delta, p)
    n, worst = enough(num, s_0, m), np.zeros(num + 2)
    for usual in range(num + 1):
        rest, values = num - usual, [(1.0, p)] if usual + p * (num - usual) <= num * s_0 else []
        if usual:
            values += [((num * s_0 - rest * y) / usual, y) for y in np.linspace(0, p, 11)]
        if rest:
            values += [(z, (num * s_0 - usual * z) / rest) for z in np.linspace(1 - p, 1, 11)]
        for z, y in values:
            if 1 - p <= z <= 1 and 0 <= y <= p:
                worst[:-1] = np.maximum(worst[:-1], tail_of([z] * usual + [y] * rest))
    assert probability <= delta
    assert worst[n] == pytest.approx(probability, rel=1e-9)
    assert worst[n - 1] > delta or n == math.floor(num * s_0) + 3


def test_large_tasks_and_graded_answers_have_the_older_margin():
    assert luck(20_000, 0.7, 0.01, 0.3) == (margin(20_000, 0.01, 0.3), 0.01)
    assert luck(60, 0.7, 0.01, 0.5) == (margin(60, 0.01, 0.5), 0.01)
    assert luck(100, 0.7, 0.01, 1e-9)[0] == margin(100, 0.01, 1e-9)  # below three answers
    m, probability = luck(5, 0.7, 0.001, 0.3)
    assert 0.7 + m > 1  # nothing can be certified
    assert probability == 0


@pytest.mark.parametrize("p", [0.02, 0.1])
def test_errors_are_as_rare_as_promised_at_the_worst_expectations(p):
    rng, runs, num, s_0, delta = np.random.default_rng(5), 2000, 60, 0.7, 0.1
    usual = math.ceil((s_0 - p) * num / (1 - 2 * p) - 1e-9) - 1
    mu = np.where(np.arange(num) < usual, 1 - p, p)
    assert s_0 - 1 / num <= mu.mean() < s_0
    wrong = 0
    for _ in range(runs):
        sequence = BettingSequence(num, s_0, delta, p)
        outcomes = rng.permutation((rng.random(num) < mu).astype(float))
        wrong += any(sequence.update(x) for x in outcomes)
    assert 0 < wrong / runs <= delta + 3 * math.sqrt(delta * (1 - delta) / runs)


def test_a_number_of_ones_is_enough_or_not_to_the_answer():
    """With n ones it certifies at the last answer at the latest, with n - 1 never by arithmetic."""
    for num in (40, 156, 2293):
        sequence = BettingSequence(num, 0.7, 0.05, 0.02)
        n = enough(num, 0.7, sequence.margin)
        told = [sequence.update(x) for x in [0.0] * (num - n) + [1.0] * n]
        assert told[-1]
        sequence = BettingSequence(num, 0.7, 0.05, 0.02)
        told = [sequence.update(x) for x in [0.0] * (num - n + 1) + [1.0] * (n - 1)]
        assert not any(told)


@pytest.mark.parametrize(("pairs", "delta"), [(30, 0.1), (156, 0.005)])
def test_repeats_bound_the_flips_as_rarely_wrong_as_promised(pairs, delta):
    bounds = [flips_of_repeats(d, pairs, delta) for d in range(pairs + 1)]
    assert bounds == sorted(bounds)
    assert bounds[-1] == 0.5
    for p in np.linspace(0.001, 0.499, 40):
        differ = 2 * p * (1 - p)
        pmf = tail_of([differ] * pairs) - np.append(tail_of([differ] * pairs)[1:], 0.0)
        assert pmf[[bound < p for bound in bounds]].sum() <= delta + 1e-12
    assert bounds[0] < 1.2 * math.log(1 / delta) / pairs / 2 + 1 / pairs**2


@pytest.mark.parametrize("repeats", [(3, 2), (-1, 5), (0, 0), (1.5, 4), (2, 4.5)])
def test_impossible_repeats(repeats):
    with pytest.raises(InputError, match=r"reference_repeats=\[.*\] must be two whole numbers"):
        flips_of_repeats(*repeats, 0.05)


@pytest.mark.parametrize("later", [2, 20, 100])
def test_later_shares_add_up_too(later):
    last = 200_000
    shares = [share_of_delta(k, 0.1, later) for k in range(1, last)]
    constant = shares[0] * (1 + later) * math.log(1 + later) ** 2
    assert 0.097 < sum(shares) + constant / math.log(last + later - 0.5) <= 0.1
    assert shares == sorted(shares, reverse=True)


def test_the_table_of_the_page_about_guarantees():
    page = Path(__file__).parents[2] / "docs" / "explanation" / "guarantees.md"
    (line,) = [line for line in page.read_text().splitlines() if line.startswith("| p = 2% |")]
    shown = [float(cell) for cell in line.split("|")[2:-1]]
    shares = (0.01, 0.001, 0.0001, 0.00001)
    margins = [luck(156, 0.72, 0.9 * delta_k, 0.02)[0] for delta_k in shares]
    ones = [math.floor((margin + 0.72) * 156) for margin in margins]  # n - 1
    assert shown == [round(n / 156 - 0.72, 3) for n in ones]
