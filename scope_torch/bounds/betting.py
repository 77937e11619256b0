"""Certificates that assume nothing about cost and quality, except that grades lie in [0, 1].

| symbol | here | |
| --- | --- | --- |
| x_1, x_2, ... in [0, 1] | `outcome` | outcomes of the Q queries in uniformly random order |
| m_t = (Q s_0 - sum_{i<t} x_i) / (Q - t + 1) | `most` | largest mean of x_t if mean(x) < s_0 |
| K_t = mean over f of prod_i (1 + f (x_i / m_i - 1)) | `_log_capital` | capital of a gambler |

The gambler bets that the average of all Q outcomes is at least s_0. If it is not, K_t exceeds
1 / delta at any time with probability at most delta (Ville's inequality), however often one looks.
After Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting, section on
sampling without replacement (doi:10.1093/jrsssb/qkad009).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.special import betaincinv, gammaln

from scope_torch.errors import InputError

_FRACTIONS = np.arange(1, 20) / 20  # f, share of the capital staked; mixed with equal weights
_SUM = 2.11  # of 1 / ((k + 1) log(k + 1)^2) over k >= 1
_ROUNDING = 1e-12  # of an average: one of exactly s_0 is feasible, as everywhere
_HALVINGS = 30  # of the search for the largest threshold: exact to 1e-9
_OF_COUNTS = 0.8  # of delta: most qualities are 0 or 1, where counts tell more than bets


class BettingSequence:
    """Whether the average of `num_outcomes` outcomes is at least s_0, seen in random order.

    If it is not, the chance that `update` ever returns True is at most `delta`. This speaks of the
    outcomes themselves. If answers change from call to call, it says nothing about their
    expectations; `scope_torch.bounds.fresh` does.

    Args:
        num_outcomes: Q.
        s_0: Threshold, in units of quality.
        delta: Failure probability, in (0, 1).
    """

    def __init__(self, num_outcomes: int, s_0: float, delta: float) -> None:
        self._left, self._missing = num_outcomes, num_outcomes * s_0
        self._rounding = _ROUNDING * num_outcomes
        self._enough = math.log(len(_FRACTIONS) / delta)
        self._log_capital = np.zeros_like(_FRACTIONS)
        self._certified = False

    def update(self, outcome: float) -> bool:
        """Takes in the next outcome; returns whether the average is certified to be >= s_0.

        A certificate stays, because a capital above 1 / delta at any time is evidence enough; but
        not once the average is known to be less.
        """
        self._certified = self._is_enough(outcome) or self._certified
        return self._certified and not self.refuted

    def certifies(self, outcomes: Iterable[float]) -> bool:
        """Takes in all outcomes; what the last `update` returns."""
        certified = False
        for outcome in outcomes:
            certified = self.update(outcome)
        return certified

    @property
    def refuted(self) -> bool:
        """Whether the average is below s_0 whatever the outcomes that are still out."""
        return self._missing > self._left + self._rounding

    def _is_enough(self, outcome: float) -> bool:
        most = self._missing / self._left
        self._left -= 1
        self._missing -= outcome
        if self._missing <= self._rounding:
            return True
        self._log_capital += np.log1p(_FRACTIONS * (outcome / most - 1))
        largest = float(self._log_capital.max())
        total = largest + math.log(float(np.exp(self._log_capital - largest).sum()))
        return total >= self._enough


def largest_threshold(outcomes: Sequence[float], num_outcomes: int, delta: float) -> float:
    """The largest s_0 that a `BettingSequence` over the outcomes certifies, exact to 1e-9.

    Args:
        outcomes: In uniformly random order.
        num_outcomes: Q.
        delta: Failure probability of this lower bound, in (0, 1).
    """
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        sequence = BettingSequence(num_outcomes, middle, delta)
        low, high = (middle, high) if sequence.certifies(outcomes) else (low, middle)
    return low


def upper_average(sample: Sequence[float], num_outcomes: int, delta: float) -> float:
    """Upper bound on the average of Q outcomes; wrong with probability at most `delta`.

    The smaller one of two bounds. One counts the outcomes above 0 as 1, which makes none smaller;
    it has most of delta, and is exact (hypergeometric) where all are 0 or 1. The other one bets on
    the outcomes as they are.

    Args:
        sample: Of the Q outcomes in [0, 1], drawn uniformly without replacement, in the order in
            which they were drawn.
        num_outcomes: Q.
        delta: In (0, 1).

    Examples:
        >>> upper_average([1.0, 1.0, 0.0, 1.0] * 25, 400, 0.025)
        0.8225
    """
    if len(sample) == num_outcomes:
        return math.fsum(sample) / num_outcomes
    by_bets = 1 - largest_threshold([1 - x for x in sample], num_outcomes, (1 - _OF_COUNTS) * delta)
    count = sum(x > 0 for x in sample)
    return min(
        by_bets, _most_above(count, len(sample), num_outcomes, _OF_COUNTS * delta) / num_outcomes
    )


def upper_expectation(sample: Sequence[float], delta: float) -> float:
    """Upper bound on the average of Q expected outcomes; wrong with probability at most `delta`.

    It is for outcomes that vary from call to call, one of each query drawn. As `upper_average` it
    is the smaller one of a bound by counts, of Clopper and Pearson, and one by bets. Both are those
    for independent draws of queries, and hold without replacement: the count then is a sum of
    independent indicators (the generating function of a symmetric stable polynomial has real roots
    only), whose lower tail is below the binomial one (Hoeffding 1956, doi:10.1214/aoms/1177728178);
    and the expected product of n bets is at most that of n equal ones (Maclaurin's inequality).

    Args:
        sample: Outcomes in [0, 1], each of another query, drawn uniformly; at least one.
        delta: In (0, 1).

    Examples:
        >>> round(upper_expectation([1.0, 1.0, 0.0, 1.0] * 25, 0.025), 4)
        0.8345
    """
    n, count = len(sample), sum(x > 0 for x in sample)
    by_counts = 1.0
    if count < n:
        by_counts = float(betaincinv(count + 1, n - count, 1 - _OF_COUNTS * delta))
    missing = 1 - np.asarray(sample, dtype=np.float64)
    enough = math.log(len(_FRACTIONS) / ((1 - _OF_COUNTS) * delta))
    low, high = 0.0, 1.0  # of the expected average of what is missing
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        gains = np.log1p(_FRACTIONS[:, None] * (missing / middle - 1)).sum(1)
        low, high = (middle, high) if np.logaddexp.reduce(gains) >= enough else (low, middle)
    return min(1 - low, by_counts)


def _most_above(count: int, drawn: int, population: int, delta: float) -> int:
    """The most of a population that may be above 0, if `count` of those drawn are."""
    low, high = count, population - drawn + count  # possible, and the most that the rest admits
    while low < high:
        middle = (low + high + 1) // 2
        is_likely = _chance_of_at_most(count, drawn, middle, population) > delta
        low, high = (middle, high) if is_likely else (low, middle - 1)
    return low


def _chance_of_at_most(count: int, drawn: int, above: int, population: int) -> float:
    """That at most `count` of those drawn are above 0, if `above` of the population are."""
    k = np.arange(max(0, drawn - (population - above)), count + 1)
    log_ways = _log_choose(above, k) + _log_choose(population - above, drawn - k)
    return float(np.exp(log_ways - _log_choose(population, drawn)).sum())


def _log_choose(n: int, k: int | np.ndarray) -> np.ndarray:
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - np.asarray(k) + 1)


def check_delta(delta: float | None) -> None:
    """Raises InputError if delta is outside its range."""
    if delta is not None and not 0 < delta < 1:
        raise InputError(f"delta={delta} must lie in (0, 1)")


def share_of_delta(k: int, delta: float) -> float:
    """Share of the k-th candidate, k >= 1; the shares of all candidates add up to delta at most.

    delta / (2.11 (k + 1) log(k + 1)^2).

    Args:
        k: Number of the candidate.
        delta: Failure probability of all candidates together.
    """
    return delta / (_SUM * (k + 1) * math.log(k + 1) ** 2)
