"""Betting on averages over a distribution: formulas retyped, coverage by simulation."""

import math

import numpy as np
import pytest

from scope_torch.bounds.population import (
    PairedSequence,
    difference_interval,
    in_random_order,
    least_mean,
    lower_difference,
    lower_ratio,
    mean_interval,
    most_log_capital,
    queries_needed,
    upper_difference,
    upper_ratio,
)

EPSILON = 0.1


def paired(rng, number, better, worse, quality=0.7):
    """Differences of a configuration that answers a share of the queries better, or worse."""
    reference = rng.random(number) < quality
    u = rng.random(number)
    answer = np.where(u < better, True, np.where(u < better + worse, False, reference))
    return answer - (1 - EPSILON) * reference


def capital(gains):
    """K_t by its definition: the mean over f of prod(1 + f y)."""
    fractions = [0.05 * k for k in range(1, 20)]
    return sum(np.cumprod(1 + f * np.asarray(gains)) for f in fractions) / 19


def test_the_capital_is_that_of_its_definition():
    d = paired(np.random.default_rng(0), 40, 0.2, 0.1)
    expected = capital(d / 0.9)
    sequence = PairedSequence(EPSILON, 1e-9)
    for value, k in zip(d, expected, strict=True):
        sequence.update(float(value))
        assert sequence.log_capital == pytest.approx(math.log(k), abs=1e-10)
    assert most_log_capital(d / 0.9) == pytest.approx(max(0, math.log(max(expected))))
    assert most_log_capital(np.array([])) == 0.0


def test_a_certificate_stays():
    sequence = PairedSequence(EPSILON, 0.05)
    told = [sequence.update(d) for d in [1.0] * 8 + [-0.9] * 30]
    assert told.index(True) < 8
    assert all(told[told.index(True) :])
    assert sequence.log_capital < 0


@pytest.mark.parametrize("seed", range(3))
def test_bounds_end_where_bets_no_longer_refute(seed):
    """By a scan of all means, with the gains of Waudby-Smith and Ramdas for [-a, 1]."""
    d, a = paired(np.random.default_rng(seed), 60, 0.2, 0.1), 0.9
    means = np.arange(-0.89, 1, 0.01)
    kept_low = [m for m in means if max(capital((d - m) / (m + a))) < 1 / 0.05]
    kept_high = [m for m in means if max(capital((m - d) / (1 - m))) < 1 / 0.05]
    assert lower_difference(d, EPSILON, 0.05) == pytest.approx(min(kept_low), abs=0.01)
    assert upper_difference(d, EPSILON, 0.05) == pytest.approx(max(kept_high), abs=0.01)


@pytest.mark.slow
def test_a_certificate_is_a_lower_bound_of_at_least_zero():
    rng, both = np.random.default_rng(1), set()
    for _ in range(60):
        d = paired(rng, 150, rng.uniform(0, 0.3), 0.05)
        sequence = PairedSequence(EPSILON, 0.05)
        certified = [sequence.update(float(value)) for value in d][-1]
        assert certified == (lower_difference(d, EPSILON, 0.05) >= 0)
        both.add(certified)
    assert both == {True, False}


def test_bounds_widen_with_worse_answers_and_smaller_delta():
    d = paired(np.random.default_rng(2), 100, 0.2, 0.05)
    worse, better = d.copy(), d.copy()
    worse[50:], better[50:] = -0.9, 1.0
    assert lower_difference(worse, EPSILON, 0.05) < lower_difference(d, EPSILON, 0.05) < d.mean()
    assert upper_difference(better, EPSILON, 0.05) > upper_difference(d, EPSILON, 0.05) > d.mean()
    assert lower_difference(d, EPSILON, 0.001) < lower_difference(d, EPSILON, 0.05)
    assert lower_difference(np.array([]), EPSILON, 0.05) == pytest.approx(-0.9)
    assert upper_difference(np.array([]), EPSILON, 0.05) == pytest.approx(1.0)


@pytest.mark.parametrize(("better", "worse"), [(0.05, 0.05), (0.3, 0.1), (0.0, 0.0)])
def test_bounds_are_wrong_at_most_as_often_as_promised(better, worse):
    """At all times at once: the bounds are those of the luckiest time."""
    rng, delta, runs = np.random.default_rng(3), 0.1, 400
    mean = 0.7 * EPSILON + 0.3 * better - 0.7 * worse  # E[answer] - (1 - epsilon) 0.7, by hand
    wrong = np.zeros(2)
    for _ in range(runs):
        d = paired(rng, 120, better, worse)
        wrong += most_log_capital((d - mean) / (mean + 0.9)) >= math.log(1 / delta), 0
        wrong += 0, most_log_capital((mean - d) / (1 - mean)) >= math.log(1 / delta)
    assert (wrong / runs <= delta + 3 * math.sqrt(delta * (1 - delta) / runs)).all()
    assert wrong.sum() > 0 or (better, worse) == (0.0, 0.0)


def test_the_mean_in_that_test():
    d = paired(np.random.default_rng(4), 10**6, 0.3, 0.1)
    assert d.mean() == pytest.approx(0.7 * EPSILON + 0.3 * 0.3 - 0.7 * 0.1, abs=0.003)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.1, 1.0, 3.0])
def test_ratios_of_costs(ratio):
    """Coverage, and by a scan: H0 is refuted by r c_0 - c (upper) and c / r - c_0 (lower)."""
    rng, delta, runs = np.random.default_rng(5), 0.1, 300
    wrong = np.zeros(2)
    for _ in range(runs):
        references = rng.beta(2, 20, 80)
        costs = ratio * references * rng.choice([0.5, 1.5], 80)
        wrong += most_log_capital(ratio * references - costs) >= math.log(1 / delta), 0
        wrong += 0, most_log_capital(costs / ratio - references) >= math.log(1 / delta)
    assert (wrong / runs <= delta + 3 * math.sqrt(delta * (1 - delta) / runs)).all()
    ratios = ratio * np.exp(np.arange(-4, 4, 0.02))
    kept_high = [r for r in ratios if max(capital(r * references - costs)) < 10]
    kept_low = [r for r in ratios if max(capital(costs / r - references)) < 10]
    assert upper_ratio(costs, references, delta) == pytest.approx(max(kept_high), rel=0.03)
    assert lower_ratio(costs, references, delta) == pytest.approx(min(kept_low), rel=0.03)


def test_a_ratio_of_which_nothing_is_known():
    nothing = np.array([])
    assert upper_ratio(nothing, nothing, 0.05) == math.inf
    assert upper_ratio(np.ones(50), np.zeros(50), 0.05) == math.inf
    assert lower_ratio(nothing, nothing, 0.05) == 0.0
    assert lower_ratio(np.zeros(50), np.full(50, 0.2), 0.05) == 0.0


def test_queries_needed_is_near_the_formula_and_near_the_truth():
    """2 log(1/delta) var(d) / mean(d)^2, where the mean is small and the mixture costs little."""
    rng, delta = np.random.default_rng(6), 1e-6
    d = paired(rng, 400_000, 0.15, 0.08)
    needed = queries_needed(d[:200_000], EPSILON, delta)
    formula = 2 * math.log(1 / delta) * d.var() / d.mean() ** 2
    assert formula < needed < 2 * formula
    stops = []
    for start in range(200_000, 400_000, 10_000):
        reached = np.log(capital(d[start : start + 10_000] / 0.9)) >= math.log(1 / delta)
        stops.append(int(reached.argmax()) + 1)
    assert min(stops) > 1
    assert np.mean(stops) == pytest.approx(needed, rel=0.25)


def test_queries_needed_by_equal_differences():
    """Exactly the first n with mean over f of (1 + f d / a)^n >= 1 / delta."""
    needed = queries_needed(np.full(7, 0.2), EPSILON, 0.01)
    reached = [sum((1 + f / 20 * 0.2 / 0.9) ** n for f in range(1, 20)) / 19 for n in range(99)]
    assert needed == next(n for n, k in enumerate(reached) if k >= 100)


@pytest.mark.parametrize("d", [[], [-0.9, 0.1], [0.0, 0.0], [1e-9, 1e-9]])
def test_no_number_of_queries_is_enough(d):
    assert queries_needed(np.array(d), EPSILON, 0.05) is None


def test_the_least_mean_is_reached_by_equal_differences_and_by_no_others():
    least = least_mean(100, EPSILON, 0.01)
    for mean, enough in ((least * 0.999, False), (least * 1.001, True)):
        sequence = PairedSequence(EPSILON, 0.01)
        assert [sequence.update(mean) for _ in range(100)][-1] == enough
    rng = np.random.default_rng(7)
    for _ in range(50):  # orders matter only through time, so the end of the sequence decides
        d = rng.uniform(-0.5, 0.5, 100)
        d += least * 0.999 - d.mean()
        sequence = PairedSequence(EPSILON, 0.01)
        assert not [sequence.update(float(x)) for x in np.sort(d)][-1]
    assert least_mean(2, EPSILON, 1e-9) == pytest.approx(1.0)


def test_the_order_of_a_data_set_is_no_evidence():
    """Sorted by difficulty, the first queries would look like all: the ends even crossed."""
    answers = np.repeat([1.0, 0.0], 100)
    for given in (answers, answers[::-1]):
        low, high = mean_interval(given)
        assert 0.35 < low < 0.5 < high < 0.65
        low, high = difference_interval(given - 1)
        assert -0.65 < low < -0.5 < high < -0.35
    assert sorted(in_random_order(np.arange(50))) == list(range(50))
    assert (in_random_order(answers) == in_random_order(answers.copy())).all()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "share"), [(20, 0.1), (100, 0.02)])
def test_rare_differences_are_in_their_interval(number, share):
    """A normal interval misses the truth in 12%, wherever no difference was seen."""
    rng = np.random.default_rng(number)
    drawn = -(rng.random((400, number)) < share).astype(float)
    found = [difference_interval(one) for one in drawn]
    assert sum(not low <= -share <= high for low, high in found) <= 20


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [1, 2, 40])
@pytest.mark.parametrize("difference", [-1.0, 1.0])
def test_differences_that_are_all_the_largest_there_are(number, difference):
    low, high = difference_interval(np.full(number, difference))
    assert -1 <= low <= difference <= high <= 1
    above = np.full(number, max(difference, -0.9))
    assert lower_difference(above, 0.1, 0.05) <= above[0] <= upper_difference(above, 0.1, 0.05)
