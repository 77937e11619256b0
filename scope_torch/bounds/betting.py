"""Certificates that assume nothing of cost and quality but that answers are graded in [0, 1].

Queries of a candidate are observed in a uniformly random order. Whether the average of all Q
outcomes is below s_0 is then a bet: capital staked on the next outcome being larger than it could
be on average if that were so grows beyond 1 / delta with probability at most delta (Ville), however
often one looks. After Waudby-Smith and Ramdas, Estimating means of bounded random variables by
betting, section on sampling without replacement (doi:10.1093/jrsssb/qkad009).
"""

from __future__ import annotations

import math

import numpy as np

from scope_torch.errors import InputError

_FRACTIONS = np.arange(1, 20) / 20  # of the capital staked, mixed with equal weights
_SUM = 2.11  # of 1 / ((k + 1) log(k + 1)^2) over k >= 1
_ROUNDING = 1e-12  # of s_0: what meets it exactly is feasible, as everywhere


class BettingSequence:
    """Whether the average of `num_outcomes` outcomes is at least s_0, told in random order.

    If it is not, `update` ever says so with probability at most `delta`. With flips = 0 the average
    is that of the outcomes. If answers change from call to call, it is the average of the expected
    outcomes, which luck can lift by more than `margin` with probability at most delta / 2: as much
    more is demanded, at the other half of delta.

    Args:
        num_outcomes: Q.
        s_0: Threshold, in units of quality.
        delta: Failure probability, in (0, 1).
        flips: See `margin`.
    """

    def __init__(self, num_outcomes: int, s_0: float, delta: float, flips: float = 0.0) -> None:
        if flips > 0:
            delta /= 2
            s_0 += margin(num_outcomes, delta, flips)
        self._left, self._missing = num_outcomes, num_outcomes * s_0
        self._enough = math.log(len(_FRACTIONS) / delta)
        self._log_capital = np.zeros_like(_FRACTIONS)
        self._certified = False

    def update(self, outcome: float) -> bool:
        """Takes in the next outcome; returns whether the average is certified to be >= s_0.

        Once it is, it stays so: capital that was there at any time is evidence enough.
        """
        self._certified = self._certified or self._is_enough(outcome)
        return self._certified

    def _is_enough(self, outcome: float) -> bool:
        # What an outcome still to come is on average at most, if the average of all is below s_0.
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
    """What the average outcome exceeds its expectation by with probability at most `delta`.

    Args:
        num_outcomes: Q independent outcomes.
        delta: In (0, 1).
        flips: Outcomes are 0 or 1, and each comes out otherwise than usually with at most this
            probability p < 1/2: then the sum is no more spread upwards than Q draws of p, and
            Chernoff's bound is exp(-Q kl(p + margin, p)). 1/2: any independent outcomes in [0, 1],
            by Hoeffding's inequality.
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


def check_sequence(delta: float | None, flips: float) -> None:
    """Raises InputError if the constants of sequences are outside their ranges."""
    if delta is not None and not 0 < delta < 1:
        raise InputError(f"delta={delta} must lie in (0, 1)")
    if not 0 <= flips <= 0.5:
        raise InputError(f"certificate_flips={flips} must lie in [0, 1/2]")


def share_of_delta(k: int, delta: float) -> float:
    """Delta of the k-th candidate, k >= 1, so that those of all add up to at most delta."""
    return delta / (_SUM * (k + 1) * math.log(k + 1) ** 2)
