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

import numpy as np

from scope_torch.errors import InputError

_FRACTIONS = np.arange(1, 20) / 20  # f, share of the capital staked; mixed with equal weights
_SUM = 2.11  # of 1 / ((k + 1) log(k + 1)^2) over k >= 1
_ROUNDING = 1e-12  # of s_0: an average of exactly s_0 is feasible, as everywhere


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
