"""Bounds on averages over all queries of a distribution, from the answers to a sample of them.

| symbol | here | |
| --- | --- | --- |
| a = 1 - epsilon | `a` | |
| d_t = s(theta, q_t) - a s(theta_0, q_t) in [-a, 1] | `differences` | paired answers of a query |
| y_t >= -1, mean at most 0 under H0 | `gains` | what a gambler wins for each unit staked |
| K_t = mean over f of prod_{i<=t} (1 + f y_i) | `log_capital` | capital of the gambler |

If y_1, y_2, ... are independent draws with a mean of at most 0, K_t exceeds 1 / delta at any t with
probability at most delta (Ville's inequality). A bound is the end of the interval of all means that
no bet refutes. After Waudby-Smith and Ramdas, Estimating means of bounded random variables by
betting, section on hedged capital (doi:10.1093/jrsssb/qkad009); with replacement, one-sided, and
mixed over fractions. `scope_torch.bounds.betting` is about the sampled queries themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

# f, share of the capital staked; mixed with equal weights. The best is about mean(y) / mean(y^2).
FRACTIONS = np.arange(1, 20) / 20
COST_CAP = 4.0  # a query's cost counts up to this many c(theta_0)
_STEPS = 60  # halvings of an interval
_MOST_QUERIES = 10**9
_LARGEST_RATIO = 1e6  # of two average costs


def in_random_order(values: np.ndarray) -> np.ndarray:
    """The values (along the first axis) in an order that depends on their number alone.

    A data set may be sorted by difficulty: then its order depends on the answers, and no bet holds.
    """
    return values[np.random.default_rng(len(values)).permutation(len(values))]


class PairedSequence:
    """Whether the mean of d over all queries of the distribution is at least 0.

    If it is below 0, the chance that `update` ever returns True is at most `delta`.

    Args:
        epsilon: Tolerated relative loss of quality, in (0, 1).
        delta: Failure probability, in (0, 1).

    Attributes:
        log_capital: log K_t, of the differences so far.

    Examples:
        >>> sequence = PairedSequence(epsilon=0.1, delta=0.05)
        >>> [sequence.update(d) for d in (1.0, 1.0, 0.1, 1.0, 1.0, 1.0, 1.0, -0.9)].index(True)
        6
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        self.log_capital = 0.0
        self._a, self._enough = 1 - epsilon, math.log(1 / delta)
        self._of_fractions = np.zeros_like(FRACTIONS)
        self._certified = False

    def update(self, difference: float) -> bool:
        """Takes in the next difference; returns whether the mean is certified to be >= 0.

        A certificate stays: a capital above 1 / delta at any time is evidence enough.
        """
        self._of_fractions += np.log1p(FRACTIONS * (difference / self._a))
        self.log_capital = float(log_mean(self._of_fractions))
        self._certified = self._certified or self.log_capital >= self._enough
        return self._certified


def most_log_capital(gains: np.ndarray) -> float:
    """The largest log K_t over all t >= 0; 0 without gains.

    Args:
        gains: `n` numbers >= -1, in the order of the bets (float64).
    """
    if not len(gains):
        return 0.0
    of_fractions = np.log1p(np.multiply.outer(gains, FRACTIONS)).cumsum(0)
    return max(0.0, float(log_mean(of_fractions).max()))


def lower_difference(differences: np.ndarray, epsilon: float, delta: float) -> float:
    """Lower bound on the mean of d, at all times at once.

    Args:
        differences: `n` differences in [-(1 - epsilon), 1], in random order (float64). A smaller
            number in the place of an unknown one is safe.
        epsilon: In (0, 1).
        delta: Failure probability of this bound, in (0, 1).

    Examples:
        >>> d = np.tile([0.1, 0.1, 1.0, 0.1, 0.0, 0.1, -0.9, 0.1], 50)
        >>> round(lower_difference(d, 0.1, 0.05), 3), round(upper_difference(d, 0.1, 0.05), 3)
        (0.005, 0.147)
    """
    a = 1 - epsilon

    def refuted(mean: float) -> bool:
        if (room := mean + a) <= 0:  # after many halvings
            return False
        return most_log_capital((differences - mean) / room) >= math.log(1 / delta)

    # At mean = -a every gain is infinite: nothing is refuted without a bet.
    return _last(refuted, -a, 1.0)


def upper_difference(differences: np.ndarray, epsilon: float, delta: float) -> float:
    """Upper bound on the mean of d; see `lower_difference`.

    Args:
        differences: See `lower_difference`; here a larger number is safe.
        epsilon: In (0, 1).
        delta: Failure probability of this bound, in (0, 1).
    """
    a = 1 - epsilon

    def refuted(mean: float) -> bool:
        if (room := 1 + mean) <= 0:
            return False
        return most_log_capital((-mean - differences) / room) >= math.log(1 / delta)

    return -_last(refuted, -1.0, a)


def mean_interval(values: Sequence[float], delta: float = 0.05) -> tuple[float, float]:
    """Bounds on the mean of a distribution on [0, 1]; each is wrong with probability delta / 2.

    Args:
        values: `n` independent draws, in any order; see `in_random_order`.
        delta: Failure probability, in (0, 1).

    Examples:
        >>> low, high = mean_interval([1.0, 1.0, 1.0, 0.0, 1.0] * 8)
        >>> round(low, 2), round(high, 2)
        (0.63, 0.95)
    """
    x = in_random_order(np.asarray(values, dtype=np.float64))
    least = 1 - 1e-9  # losses of more than 1 - epsilon do not happen: values are not negative
    low = lower_difference(x, least, delta / 2)
    high = 1 - lower_difference(1 - x, least, delta / 2)
    return max(0.0, low), min(1.0, high)


def difference_interval(differences: np.ndarray, delta: float = 0.05) -> tuple[float, float]:
    """Bounds on the mean of a distribution on [-1, 1]; each is wrong with probability delta / 2.

    Args:
        differences: `n` independent draws, in any order; see `in_random_order` (float64).
        delta: Failure probability, in (0, 1).

    Examples:
        >>> low, high = difference_interval(np.array([0.0, 0.0, -1.0, 0.0, 0.0] * 8))
        >>> round(low, 2), round(high, 2)
        (-0.41, -0.01)
    """
    differences = in_random_order(differences)
    low, high = (lower_difference(d, 0.0, delta / 2) for d in (differences, -differences))
    return low, -high  # a of epsilon = 0 is 1


def upper_ratio(costs: np.ndarray, references: np.ndarray, delta: float) -> float:
    """Upper bound on mean(c) / mean(c_0); `math.inf` if nothing is known.

    Under H0, that the ratio is r or more, r c_0 - c has a mean of at most 0, and is at least -cap.

    Args:
        costs: `n` costs c of the configuration, in units of the cap, in [0, 1] (float64).
        references: `n` costs c_0 of the reference on the same queries, likewise.
        delta: Failure probability of this bound, in (0, 1).

    Examples:
        >>> c_0 = np.full(400, 0.25)
        >>> round(lower_ratio(c_0 / 5, c_0, 0.05), 2), round(upper_ratio(c_0 / 5, c_0, 0.05), 2)
        (0.19, 0.25)
    """

    def possible(ratio: float) -> bool:
        return most_log_capital(ratio * references - costs) < math.log(1 / delta)

    last = _last(possible, 0.0, _LARGEST_RATIO)
    return math.inf if last >= _LARGEST_RATIO else last


def lower_ratio(costs: np.ndarray, references: np.ndarray, delta: float) -> float:
    """Lower bound on mean(c) / mean(c_0); see `upper_ratio`.

    Under H0, that the ratio is at most r, c - r c_0 has a mean of at most 0, and is at least -r.
    """

    def refuted(ratio: float) -> bool:
        return most_log_capital(costs / ratio - references) >= math.log(1 / delta)

    return _last(refuted, 0.0, _LARGEST_RATIO)


def _last(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The last place in [low, high] where `holds`, if it holds up to some place; at least `low`."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def queries_needed(differences: np.ndarray, epsilon: float, delta: float) -> int | None:
    """About how many queries certify that the mean of d is at least 0.

    If more differences come as these came, log(1 + f d / a) grows by its average with each of them.
    Where the mean is small, that is about 2 log(1 / delta) var(d) / mean(d)^2.

    Args:
        differences: `n` differences in [-(1 - epsilon), 1] (float64).
        epsilon: In (0, 1).
        delta: Failure probability of the certificate, in (0, 1).

    Returns:
        The number of all queries, not only of those that are missing; None if the mean is not
        positive, or so small that even the smallest stake would lose.

    Examples:
        >>> queries_needed(np.tile([0.1, 0.1, 1.0, 0.1, 0.0, 0.1, -0.9, 0.1], 50), 0.1, 0.05)
        373
    """
    if not len(differences) or differences.mean() <= 0:
        return None
    growth = np.log1p(np.multiply.outer(differences / (1 - epsilon), FRACTIONS)).mean(0)
    return _time_to(growth, math.log(1 / delta))


def least_mean(num_queries: int, epsilon: float, delta: float) -> float:
    """No average of d below this can be certified by so many queries; 1 if none can.

    Of all differences with the same average, equal ones make the capital largest.

    Args:
        num_queries: Q.
        epsilon: In (0, 1).
        delta: Failure probability of the certificate, in (0, 1).

    Examples:
        >>> round(least_mean(156, 0.05, 0.05 / 12167), 3)
        0.099
    """

    def too_small(mean: float) -> bool:
        of_fractions = num_queries * np.log1p(FRACTIONS * mean / (1 - epsilon))
        return float(log_mean(of_fractions)) < math.log(1 / delta)

    return _last(too_small, 0.0, 1.0)


def _time_to(growth: np.ndarray, enough: float) -> int | None:
    """The least n with log mean exp(n growth) >= enough."""
    low, high = 0, _MOST_QUERIES
    if float(log_mean(high * growth)) < enough:
        return None
    while high - low > 1:  # convex in n and 0 at n = 0: it is crossed once
        n = (low + high) // 2
        reached = float(log_mean(n * growth)) >= enough
        low, high = (low, n) if reached else (n, high)
    return high


def log_mean(logarithms: np.ndarray) -> np.ndarray:
    """The log of the mean of exp over the last axis."""
    largest = logarithms.max(-1)
    return largest + np.log(np.exp(logarithms - largest[..., None]).mean(-1))
