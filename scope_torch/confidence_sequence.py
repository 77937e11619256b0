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
_ROUNDING = 1e-12


class BettingSequence:
    """Whether the average of `num_outcomes` outcomes is at least s_0, told in random order.

    If it is not, `update` ever says so with probability at most `delta`. With R = 0 the average is
    that of the outcomes in this evaluation. If answers change from call to call, it is the average
    expected outcome: that is below the average outcome by more than R sqrt(2 log(2 / delta) / Q)
    with probability at most delta / 2, so as much more is demanded, at the other half of delta.

    Args:
        num_outcomes: Q.
        s_0: Threshold, in units of quality.
        delta: Failure probability, in (0, 1).
        R: Outcomes differ from their expectations by independent, R-sub-Gaussian noise.
    """

    def __init__(self, num_outcomes: int, s_0: float, delta: float, R: float = 0.0) -> None:
        if R > 0:
            delta /= 2
            s_0 += R * math.sqrt(2 * math.log(1 / delta) / num_outcomes)
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


def check_sequence(delta: float | None, R: float) -> None:
    """Raises InputError if the constants of sequences are outside their ranges."""
    if delta is not None and not 0 < delta < 1:
        raise InputError(f"delta={delta} must lie in (0, 1)")
    if not 0 <= R <= 0.5:
        raise InputError(f"certificate_R={R} must lie in [0, 1/2]")


def share_of_delta(k: int, delta: float) -> float:
    """Delta of the k-th candidate, k >= 1, so that those of all add up to delta."""
    return 6 * delta / (math.pi * k) ** 2


def flip_constant(p: float) -> float:
    """The least R of a 0/1 answer that comes out otherwise with probability p, or 1 - p.

    Kearns and Saul: sqrt((1 - 2 p) / (2 log((1 - p) / p))); 1/2 at p = 1/2, 0 at p = 0.
    """
    p = min(p, 1 - p)
    if p <= 0:
        return 0.0
    return 0.5 if p > 0.4999 else math.sqrt((1 - 2 * p) / (2 * math.log((1 - p) / p)))


def sequence_assumptions(delta: float, R: float) -> list[str]:
    """What "certified" rests on then."""
    noise = (
        "the same call is always answered the same"
        if R == 0
        else f"answers vary about their expectation with independent, {R:g}-sub-Gaussian noise"
    )
    return [
        f"with probability at least 1 - {delta:g}, whatever costs and qualities are, every "
        "configuration certified has an average quality over these queries of at least s_0",
        f"if outcomes lie in [0, 1], do not depend on the order of the calls, and {noise}",
    ]
