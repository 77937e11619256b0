"""Whether one configuration is good enough beside another one, decided either way.

| symbol | here | |
| --- | --- | --- |
| a | `level` | tolerated factor: 1 - epsilon of theta_0's quality, or a number beside x_0 = 1 |
| x_t, x_0t | | outcomes of both configurations on the t-th query |
| d_t = x_t - a x_0t >= -worst | `differences` | or a x_0t - x_t, of an outcome to be kept low |
| m_t | `rest` | mean of d_t if the mean of all d is 0 |
| K_t = mean over f of prod_{i<=t} (1 + f (d_i - m_i) / (worst + m_i)) | `log_capital` | |

A gambler bets that the mean of d is at least 0, and another one bets against it. If the mean is
below 0, the capital of the first one ever exceeds 1 / delta with probability at most delta (Ville's
inequality), and likewise for the other. So both may be looked at after every query. The queries are
drawn independently of each other (m_t = 0), or they are all Q queries in random order
(m_t = -sum_{i<t} d_i / (Q - t + 1)), whose average is known once all are answered. After
Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting
(doi:10.1093/jrsssb/qkad009).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scope_torch.bounds.population import FRACTIONS, log_mean

_ROUNDING = 1e-12  # of the largest difference, for each query: a mean of 0 is good enough
_HALVINGS = 40  # of an interval of levels


def log_capital(
    differences: np.ndarray, worst: float, num_queries: int | None = None, above: bool = False
) -> np.ndarray:
    """Log K_t of a gambler who bets that the mean of d is at least 0, after each difference.

    Args:
        differences: `T` differences, each at least -worst (float64), in the order of the draws.
        worst: At least 0.
        num_queries: Q, if the differences are those of Q queries in random order; None if they are
            independent draws.
        above: Whether the bet is that the mean is above 0, and not 0.

    Returns:
        `T` logarithms; infinite once what is still unknown cannot make the bet wrong.

    Examples:
        >>> log_capital(np.array([0.1, 0.1, -0.2, 0.1]), worst=0.9, num_queries=4).round(2)
        array([0.05, 0.13, 0.06,  inf])
    """
    total = differences.cumsum()
    tiny = _ROUNDING * np.abs(differences).max(initial=worst)  # in the unit of the outcome
    rounding = tiny * (num_queries or len(differences))
    if num_queries is None:
        rest, unknown = np.zeros_like(differences), np.where(worst > 0, np.inf, 0.0)
    else:
        asked = np.arange(len(differences))
        rest = -(total - differences) / (num_queries - asked)
        unknown = worst * (num_queries - asked - 1)
    room = worst + rest
    has_room = room > tiny
    gains = np.where(has_room, (differences - rest) / np.where(has_room, room, 1.0), 0.0)
    of_fractions = np.log1p(np.multiply.outer(np.maximum(gains, -1.0), FRACTIONS)).cumsum(0)
    found = log_mean(of_fractions)
    is_sure = total - unknown > rounding if above else total - unknown >= -rounding
    found[np.logical_or.accumulate(is_sure)] = np.inf
    return found


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of two configurations on the same queries, in the order in which they were drawn.

    Args:
        new: `T` outcomes in [low, high], in their own unit (float64).
        reference: Those of theta_0; None if a level is a bound by itself, as if they all were 1.
        low: Least possible outcome.
        high: Largest possible outcome.
        keeps_low: Whether the outcome is to be kept low, as a latency, or high, as quality.
        num_queries: Q, if they are those of Q queries in random order; None if the draws are
            independent.

    Examples:
        >>> both = np.ones(100)
        >>> Outcomes(both, both, 0.0, 1.0, keeps_low=False).verdict(0.9, 0.05, 0.05)
        (True, 44)
    """

    new: np.ndarray
    reference: np.ndarray | None
    low: float
    high: float
    keeps_low: bool
    num_queries: int | None = None

    def verdict(self, level: float, delta: float, delta_broken: float) -> tuple[bool | None, int]:
        """Whether the new one's average is within `level` times that of theta_0.

        Args:
            level: a, the factor.
            delta: Probability of a wrong True, at most.
            delta_broken: Probability of a wrong False, at most.

        Returns:
            The verdict, None if there is none yet, and after how many queries.
        """
        kept = _first(self._for(level, kept=True), delta)
        broken = _first(self._for(level, kept=False), delta_broken)
        if kept is None and broken is None:
            return None, len(self.new)
        if broken is None or (kept is not None and kept <= broken):
            return True, (kept or 0) + 1
        return False, broken + 1

    def interval(self, delta: float, delta_broken: float, most: float) -> tuple[float, float]:
        """The levels that neither gambler refutes, among those from `least` to `most`.

        The verdict on any level in advance says the same: it is kept or broken outside of them.
        Of lower and higher levels nothing is said. `least` is the least outcome; with a reference,
        whose levels are ratios, at most 0.

        Args:
            delta: Of the end that shows that a level is kept.
            delta_broken: Of the other end.
            most: The largest level of interest.
        """
        ends = (self.low if self.reference is None else min(self.low, 0.0)), most

        def is_kept(level: float) -> bool:
            return _first(self._for(level, kept=True), delta) is not None

        def is_broken(level: float) -> bool:
            return _first(self._for(level, kept=False), delta_broken) is not None

        if self.keeps_low:  # kept from some level on, broken up to some other
            return _last(is_broken, *ends), _last(is_kept, *ends[::-1])
        return _last(is_kept, *ends), _last(is_broken, *ends[::-1])

    def bet(self, level: float, kept: bool) -> tuple[np.ndarray, float]:
        """The differences of the gambler for or against a level, and `worst`."""
        ends = (1.0, 1.0) if self.reference is None else (self.low, self.high)
        excess = self.new - level * (1.0 if self.reference is None else self.reference)
        if kept == self.keeps_low:  # it bets on a low outcome
            return -excess, max(0.0, self.high - level * ends[0])
        return excess, max(0.0, level * ends[1] - self.low)

    def _for(self, level: float, kept: bool) -> np.ndarray:
        """Log K_t of the gambler for or against the level."""
        return log_capital(*self.bet(level, kept), self.num_queries, above=not kept)


def _first(log_capitals: np.ndarray, delta: float) -> int | None:
    """The first bet after which the capital is 1 / delta."""
    reached = np.flatnonzero(log_capitals >= math.log(1 / delta))
    return int(reached[0]) if len(reached) else None


def _last(holds: Callable[[float], bool], sure: float, other: float) -> float:
    """The level nearest to `other` for which something holds, as it does towards `sure`."""
    if holds(other):
        return other
    if not holds(sure):
        return sure
    for _ in range(_HALVINGS):
        middle = (sure + other) / 2
        sure, other = (middle, other) if holds(middle) else (sure, middle)
    return sure
