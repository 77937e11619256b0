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

_FRACTIONS = np.arange(1, 20) / 20  # of the capital staked, mixed with equal weights
_ROUNDING = 1e-12


class BettingSequence:
    """Whether the average of `num_outcomes` outcomes is at least s_0, told in random order.

    If it is not, `update` ever says so with probability at most `delta`. The outcomes are those
    that the queries have in this evaluation: of answers that change from call to call, the
    expected quality may differ from their average by about R / sqrt(Q).

    Args:
        num_outcomes: Q.
        s_0: Threshold, in units of quality.
        delta: Failure probability, in (0, 1).
    """

    def __init__(self, num_outcomes: int, s_0: float, delta: float) -> None:
        self._left, self._missing = num_outcomes, num_outcomes * s_0
        self._enough = math.log(len(_FRACTIONS) / delta)
        self._log_capital = np.zeros_like(_FRACTIONS)

    def update(self, outcome: float) -> bool:
        """Takes in the next outcome; returns whether the average is certified to be >= s_0."""
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


def share_of_delta(k: int, delta: float) -> float:
    """Delta of the k-th candidate, k >= 1, so that those of all add up to delta."""
    return 6 * delta / (math.pi * k) ** 2


def sequence_assumptions(delta: float) -> list[str]:
    """What "certified" rests on then."""
    return [
        f"with probability at least 1 - {delta:g}, whatever costs and qualities are, every "
        "configuration certified had outcomes whose average over these queries is at least s_0",
        "outcomes lie in [0, 1], and those of a candidate do not depend on the order in which its "
        "queries are asked; where the same call may be answered differently next time, the "
        "expected quality may be below that average by about R_g / sqrt(Q)",
    ]
