"""Bets that fresh answers settle, retyped; and how rarely they are won wrongly."""

import itertools
import math

import numpy as np
import pytest
from long_runs import among_others

from scope_torch.bounds.fresh import FreshBet, Purse, excess, wins

SHARES = (0.1, 0.2, 0.4, 0.8)
PLACES = ([0.0, 1.0], [0.0, 0.3, 1.0], [0.4, 0.5])  # of grades: 0 or 1, three, close to each other


def factor(f, s_0, forecast, answers):
    pairs = zip(forecast, answers, strict=True)
    return math.prod(math.exp(f * (h - s_0)) * (1 + f * (x - h)) for h, x in pairs)


def test_capital_and_forecast_are_those_of_the_derivation():
    rng, s_0 = np.random.default_rng(0), 0.7
    passes = rng.random((4, 25)).round(2)
    bet, capital = FreshBet(s_0, passes[0]), [1.0] * 4
    for j in range(1, 4):
        so_far = passes[:j]
        forecast = (so_far.sum(0) + so_far.mean() / 5) / (j + 0.2)
        assert bet.forecast == pytest.approx(forecast, rel=1e-12)
        bet.settle(passes[j])
        capital = [K * factor(f, s_0, forecast, passes[j]) for K, f in zip(capital, SHARES)]  # noqa: B905
        assert bet.log_capital == pytest.approx(math.log(sum(capital) / 4), rel=1e-9)


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("seed", range(8))
def test_no_pass_raises_the_expected_capital_below_the_threshold(seed, places):
    """By enumerating all answers of four queries, whatever was answered before."""
    rng = np.random.default_rng(seed)
    chances = rng.dirichlet([0.4] * len(places), 4)
    s_0 = float((chances * places).sum(1).mean()) + 1e-12
    first, second = rng.choice(places, (2, 4))
    before = FreshBet(s_0, first)
    before.settle(second)
    mean = 0.0
    for answers in itertools.product(range(len(places)), repeat=4):
        bet = FreshBet(s_0, first)
        bet.settle(second)
        bet.settle(np.array([places[i] for i in answers]))
        chance = math.prod(chances[q, i] for q, i in enumerate(answers))
        mean += chance * math.exp(bet.log_capital)
    assert mean <= math.exp(before.log_capital) * (1 + 1e-9)
    higher = FreshBet(s_0 - 0.05, first)  # so the test can fail
    higher.settle(second)
    assert higher.log_capital > before.log_capital


def test_a_pass_that_repeats_the_first_wins_fast():
    """Without variance 20 failures in 100 against s_0 = 0.75: f (0.8 - 0.75) 100 in each pass."""
    answers = np.array([1.0] * 80 + [0.0] * 20)
    bet = FreshBet(0.75, answers)
    bet.settle(answers)
    assert 0.8 * 5 - math.log(4) - 0.6 < bet.log_capital < 0.8 * 5 - math.log(4) + 0.6


def test_the_purse_gets_back_what_a_bet_left():
    purse = Purse(0.05)
    stake = purse.stake
    assert purse.take() == stake == pytest.approx(0.0375)
    assert purse.left == pytest.approx(0.0125)
    purse.give_back(stake, math.log(0.4))
    assert purse.left == pytest.approx(0.0275)
    stake = purse.take()
    assert not wins(stake, math.log(0.999 / stake))
    assert wins(stake, math.log(1 / stake) + 1e-12)
    purse.give_back(stake, 50.0)  # a bet that won gives back its stake, not its winnings
    assert purse.left == pytest.approx(0.0275)
    stake = purse.take()
    purse.give_back(stake, -math.inf)
    assert purse.left == pytest.approx(0.0275 / 4)


def test_nothing_is_won_once_all_is_lost():
    """After some 500 lost bets a stake is 0, whose logarithm is none."""
    purse = Purse(0.05)
    for _ in range(600):
        purse.give_back(purse.take(), -math.inf)
    assert purse.take() == 0
    assert not wins(0.0, 1e9)
    assert excess(50, 0.0, 0.1) == 1


@pytest.mark.parametrize("variance", [0.01, 0.065, 0.25])
@pytest.mark.parametrize(("passes", "num"), [(1, 156), (4, 156), (4, 40), (4, 2000)])
def test_about_every_second_bet_wins_at_the_excess(variance, passes, num):
    """Retyped; and by simulation, with every query at chance p or 1 - p."""
    stake, s_0 = 0.025, 0.5
    e = excess(num, stake, variance, passes)
    lost = sum(1 + 1 / j for j in range(1, passes + 1)) * variance / 2

    def grown(at):
        return sum(math.exp(num * (passes * f * at - lost * f * f)) for f in SHARES) / 4

    assert e == 1 or grown(e) == pytest.approx(1 / stake, rel=1e-4)
    p = (1 - math.sqrt(1 - 4 * variance)) / 2
    if e + p > 0.45:
        return
    usual = math.ceil((s_0 + e - p) / (1 - 2 * p) * num)
    mean = np.where(np.arange(num) < usual, 1 - p, p)
    rng, won = np.random.default_rng(1), 0
    for _ in range(100):
        bet = FreshBet(s_0, (rng.random(num) < mean).astype(float))
        for _ in range(passes):
            bet.settle((rng.random(num) < mean).astype(float))
        won += wins(stake, bet.log_capital)
    assert won / 200 > 0.15


@pytest.mark.parametrize("p", [among_others(0.01), 0.07, among_others(0.3)])
@pytest.mark.slow
def test_bets_are_won_wrongly_as_rarely_as_promised(p):
    """At the threshold, of candidates whose first pass was lucky; 12 in a row with one purse."""
    rng, delta, num, s_0, runs = np.random.default_rng(3), 0.2, 40, 0.7, 150
    usual = (s_0 - p) / (1 - 2 * p)
    mean = np.where(np.arange(num) < round(usual * num), 1 - p, p)
    mean *= s_0 / mean.mean()
    assert mean.max() <= 1
    wrong = 0
    for _ in range(runs):
        purse = Purse(delta)
        for _ in range(12):
            first = rng.random(num) < mean
            if first.mean() <= s_0:
                continue
            bet, stake = FreshBet(s_0, first.astype(float)), purse.take()
            while bet.log_capital > math.log(0.05) and not wins(stake, bet.log_capital):
                bet.settle((rng.random(num) < mean).astype(float))
            purse.give_back(stake, bet.log_capital)
            if wins(stake, bet.log_capital):
                wrong += 1
                break
    assert wrong / runs <= delta + 3 * math.sqrt(delta * (1 - delta) / runs)
    assert wrong > 0 or p < 0.2
