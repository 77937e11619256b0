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
from functools import lru_cache

import numpy as np
from scipy.stats import binom

from scope_torch.errors import InputError

_FRACTIONS = np.arange(1, 20) / 20  # f, share of the capital staked; mixed with equal weights
_SUM = 2.11  # of 1 / ((k + 1) log(k + 1)^2) over k >= 1
LUCK = 0.9
_MOST_EXACT = 3000
_ROUNDING = 1e-12  # of s_0: an average of exactly s_0 is feasible, as everywhere


class BettingSequence:
    """Whether the average of `num_outcomes` outcomes is at least s_0, seen in random order.

    If it is not, the chance that `update` ever returns True is at most `delta`. With flips = 0 this
    speaks of the outcomes themselves. If answers change from call to call, it speaks of their
    expectations: luck lifts the average by more than `margin` with probability at most delta / 2,
    so s_0 + margin is asked for, at the other half of delta.

    Args:
        num_outcomes: Q.
        s_0: Threshold, in units of quality.
        delta: Failure probability, in (0, 1).
        flips: See `margin`.
    """

    def __init__(self, num_outcomes: int, s_0: float, delta: float, flips: float = 0.0) -> None:
        self.margin = 0.0
        if flips > 0:
            self.margin, delta = margin_at(num_outcomes, s_0, delta, flips)
        self._left, self._missing = num_outcomes, num_outcomes * (s_0 + self.margin)
        self._enough = math.log(len(_FRACTIONS) / delta)
        self._log_capital = np.zeros_like(_FRACTIONS)
        self._certified = False

    def update(self, outcome: float) -> bool:
        """Takes in the next outcome; returns whether the average is certified to be >= s_0.

        A certificate stays: a capital above 1 / delta at any time is evidence enough.
        """
        self._certified = self._certified or self._is_enough(outcome)
        return self._certified

    def _is_enough(self, outcome: float) -> bool:
        most = self._missing / self._left
        self._left -= 1
        self._missing -= outcome
        if self._missing <= _ROUNDING * self._left + _ROUNDING:
            return True
        self._log_capital += np.log1p(_FRACTIONS * (outcome / most - 1))
        largest = float(self._log_capital.max())
        total = largest + math.log(float(np.exp(self._log_capital - largest).sum()))
        return total >= self._enough


def margin(num_outcomes: int, delta: float, flips: float) -> float:
    """The average outcome exceeds its expectation by more than this with probability <= `delta`.

    Args:
        num_outcomes: Q independent outcomes.
        delta: In (0, 1).
        flips: p < 1/2: outcomes are 0 or 1, and each differs from its usual value with probability
            at most p. Then the sum is no more spread upwards than Q draws of p, and Chernoff's
            bound is exp(-Q kl(p + margin, p)). 1/2: any independent outcomes in [0, 1], by
            Hoeffding's inequality.
    """
    rate = math.log(1 / delta) / num_outcomes
    if flips >= 0.5:
        return math.sqrt(rate / 2)
    low, high = flips, 1.0
    if rate >= math.log(1 / flips):  # even all of them by luck
        return 1 - flips
    while high - low > 1e-12:
        x = (low + high) / 2
        kl = x * math.log(x / flips) + (1 - x) * math.log((1 - x) / (1 - flips))
        low, high = (x, high) if kl < rate else (low, x)
    return high - flips


def margin_at(num_outcomes: int, s_0: float, delta: float, flips: float) -> tuple[float, float]:
    """Margin above s_0 for a sequence, and the rest of delta for its bet."""
    most = LUCK * delta
    if flips >= 0.5 or num_outcomes > _MOST_EXACT:
        return margin(num_outcomes, most, flips), delta - most
    tail = luck_tail(num_outcomes, s_0, flips)
    first = math.floor(num_outcomes * s_0 + 1e-9) + 3
    n = first
    while tail[n] > most:
        n += 1
    return max((n - 1 + 1e-9) / num_outcomes - s_0, 0.0), delta - tail[n]


@lru_cache(16)
def luck_tail(num_outcomes: int, s_0: float, flips: float) -> list[float]:
    """P(S >= n), n = 0 .. Q + 1."""
    Q, p = num_outcomes, flips
    total = Q * s_0
    low, high = math.ceil((total - p * Q) / (1 - p)) - 1, math.floor(total / (1 - p))
    best = np.zeros(Q + 4)
    k = np.arange(Q + 1)
    for A in range(max(low, 0), min(high, Q) + 1):
        z = min(1.0, max(1 - p, (total - (Q - A) * p) / A)) if A else 1.0
        y = min(p, max(0.0, (total - A * z) / (Q - A))) if A < Q else 0.0
        pmf = np.convolve(binom.pmf(k[: A + 1], A, z), binom.pmf(k[: Q - A + 1], Q - A, y))
        best[: Q + 1] = np.maximum(best[: Q + 1], pmf[::-1].cumsum()[::-1])
    return best.tolist()


def check_sequence(delta: float | None, flips: float) -> None:
    """Raises InputError if delta or flips are outside their ranges."""
    if delta is not None and not 0 < delta < 1:
        raise InputError(f"delta={delta} must lie in (0, 1)")
    if not 0 <= flips <= 0.5:
        raise InputError(f"certificate_flips={flips} must lie in [0, 1/2]")


def share_of_delta(k: int, delta: float) -> float:
    """Share of the k-th candidate, k >= 1; the shares of all candidates add up to delta at most."""
    return delta / (_SUM * (k + 1) * math.log(k + 1) ** 2)
