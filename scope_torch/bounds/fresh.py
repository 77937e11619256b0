"""Certificates for answers that vary: bets that fresh answers settle, one pass at a time.

A pass asks each of the Q queries once more. Nothing is assumed about how much answers vary.

| symbol | here | |
| --- | --- | --- |
| x_q in [0, 1] | `answers` | fresh outcomes: independent of each other and of the past, mean mu_q |
| h_q in [0, 1] | `forecast` | what x_q is expected to be, by earlier answers |
| f in (0, 1) | `_FRACTIONS` | share of the capital staked; mixed with equal weights |
| K | `log_capital` | mean over f of all passes' prod_q e^(f (h_q - s_0)) (1 + f (x_q - h_q)) |

If the mu_q average less than s_0, a pass multiplies K by 1 at most, in expectation: 1 + y <= e^y,
and so

    E prod_q e^(f (h_q - s_0)) (1 + f (x_q - h_q)) <= prod_q e^(f (h_q - s_0)) e^(f (mu_q - h_q)),

which is e^(f (sum_q mu_q - Q s_0)). A good forecast makes the bet grow fast: what is lost is the
variance of an answer from call to call, not the variance of the averages over queries.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

PASSES = 6  # after the first, at most; with 2 a bet needs about half as much excess again
_PLANNED = 3  # passes that a candidate worth trying should need
_FRACTIONS = np.array([0.1, 0.2, 0.4, 0.8])
_SHRINK = 0.2  # answers that the average over all queries counts as, in the forecast of one
_STAKED = 0.75  # part of the purse: more needs less capital, but leaves less after a lost bet


class FreshBet:
    """A bet that the expected average of the outcomes of Q queries is at least s_0.

    If it is below s_0, every pass multiplies the capital by 1 at most, in expectation.

    Args:
        s_0: Threshold, in units of quality.
        first: `Q` outcomes in [0, 1] of the past (float64); they only make the forecast.

    Attributes:
        log_capital: log K; 0 before the first pass.

    Examples:
        >>> answers = np.array([1.0] * 90 + [0.0] * 10)
        >>> bet = FreshBet(0.8, answers)
        >>> bet.settle(answers)
        >>> round(bet.log_capital, 1)
        6.6
    """

    def __init__(self, s_0: float, first: np.ndarray) -> None:
        self.log_capital = 0.0
        self._s_0, self._sum, self._number = s_0, first.astype(np.float64), 1
        self._of_fractions = np.zeros_like(_FRACTIONS)

    @property
    def forecast(self) -> np.ndarray:
        """`Q` averages of the answers so far, each drawn a little to that of all queries."""
        mean = self._sum.mean() / self._number
        return (self._sum + _SHRINK * mean) / (self._number + _SHRINK)

    def settle(self, answers: np.ndarray) -> None:
        """Takes in one pass.

        Args:
            answers: `Q` fresh outcomes in [0, 1], in the order of `first` (float64).
        """
        forecast, f = self.forecast, _FRACTIONS[:, None]
        gains = f * (forecast - self._s_0) + np.log1p(f * (answers - forecast))
        self._of_fractions += gains.sum(1)
        self._sum += answers
        self._number += 1
        self.log_capital = _log_mean_exp(self._of_fractions)


class Purse:
    """What a search may stake on its candidates, all together: delta.

    A bet takes three quarters of what is left. It certifies once stake times capital is 1 (`wins`).
    When it ends, it gives back its stake, or what its capital left of it. Then the chance that
    anything whose average is below s_0 is certified is at most delta, however many are tried:

    Let V be the purse, plus for each open bet stake times capital if its candidate's average is
    below s_0, and the stake alone if it is not. V starts at delta. To stake moves money. A pass
    does not raise V in expectation. To give back does not raise it either: what comes back is at
    most stake times capital, and at most the stake. So V is a supermartingale and never negative,
    and it is 1 when something is certified wrongly: that has probability at most delta (Ville's
    inequality).

    Args:
        delta: In (0, 1).

    Attributes:
        left: What is in it.
    """

    def __init__(self, delta: float) -> None:
        self.left = delta

    @property
    def stake(self) -> float:
        """What the next bet takes."""
        return _STAKED * self.left

    def take(self) -> float:
        """Takes out the stake of a bet."""
        stake = self.stake
        self.left -= stake
        return stake

    def give_back(self, stake: float, log_capital: float) -> None:
        """Ends a bet; the capital of one that ends in the middle of a pass is 0 (-inf)."""
        self.left += stake * math.exp(min(0.0, log_capital))


def wins(stake: float, log_capital: float) -> bool:
    """Whether a bet certifies: stake times capital is at least 1."""
    return stake > 0 and log_capital >= -math.log(stake)  # many lost bets leave a stake of 0


@lru_cache(64)
def excess(num_queries: int, stake: float, variance: float, passes: int = _PLANNED) -> float:
    """About what the expected average must exceed s_0 by, if every second bet is to win.

    No certificate rests on it: it tells the search what is worth trying. In pass j the forecast
    rests on j answers, and f (x - h) has a variance of about f^2 variance (1 + 1 / j).

    Args:
        num_queries: Q.
        stake: Of the bet, in (0, 1).
        variance: Of an answer from call to call, averaged over queries.
        passes: After how many passes.

    Returns:
        In units of quality, at most 1.

    Examples:
        >>> [round(excess(156, 0.025, variance), 3) for variance in (0.0, 0.01, 0.065)]
        [0.013, 0.019, 0.046]
    """
    lost = math.fsum(1 + 1 / j for j in range(1, passes + 1)) * variance / 2
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        growth = passes * _FRACTIONS * middle - lost * _FRACTIONS**2
        is_enough = wins(stake, _log_mean_exp(num_queries * growth))
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def _log_mean_exp(logarithms: np.ndarray) -> float:
    largest = float(logarithms.max())
    return largest + math.log(float(np.exp(logarithms - largest).mean()))
