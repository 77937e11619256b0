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
from scipy.stats import beta, binom

from scope_torch.errors import InputError

_FRACTIONS = np.arange(1, 20) / 20  # f, share of the capital staked; mixed with equal weights
_SUM = 2.11  # of 1 / ((k + 1) log(k + 1)^2) over k >= 1
_LUCK = 0.9  # part of delta that luck may take; a bet at the rest only ends later
_MOST_WORK = 1e9  # operations of the exact tail, Q^3 p
_LESS_THAN_ONE = 1e-6  # far above rounding: n - 1 ones are not enough, n are
_ROUNDING = 1e-12  # of s_0: an average of exactly s_0 is feasible, as everywhere


class BettingSequence:
    """Whether the average of `num_outcomes` outcomes is at least s_0, seen in random order.

    If it is not, the chance that `update` ever returns True is at most `delta`. With flips = 0 this
    speaks of the outcomes themselves. If answers change from call to call, it speaks of their
    expectations. If they average less than s_0, luck lifts the outcomes' average above s_0 + margin
    with a probability of at most 0.9 delta (`luck`); if it does not, a bet at the rest of delta
    against s_0 + margin is lost as rarely as without flips.

    Args:
        num_outcomes: Q.
        s_0: Threshold, in units of quality.
        delta: Failure probability, in (0, 1).
        flips: See `margin`.

    Attributes:
        margin: What the average has to exceed s_0 by, in units of quality.
    """

    def __init__(self, num_outcomes: int, s_0: float, delta: float, flips: float = 0.0) -> None:
        self.margin = 0.0
        if flips > 0:
            self.margin, taken = luck(num_outcomes, s_0, _LUCK * delta, flips)
            delta -= taken
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
            at most p. 1/2: any independent outcomes in [0, 1].

    For p < 1/2 it is Chernoff's: exp(-Q kl(p + margin, p)). It holds if no rate below p makes
    exp(l (x - E x)) larger on average than p does, for the l that is best at p. That is so for
    p <= 1/l - 1/(e^l - 1). Elsewhere, and for p = 1/2, it is Hoeffding's: sqrt(log(1/delta) / 2 Q).
    """
    rate = math.log(1 / delta) / num_outcomes
    hoeffding = min(1.0, math.sqrt(rate / 2))
    if flips >= 0.5 or rate >= math.log(1 / flips):
        return hoeffding
    low, high = flips, 1.0
    while high - low > 1e-12:
        x = (low + high) / 2
        kl = x * math.log(x / flips) + (1 - x) * math.log((1 - x) / (1 - flips))
        low, high = (x, high) if kl < rate else (low, x)
    if high >= 1:
        return hoeffding
    best = math.log(high * (1 - flips) / (flips * (1 - high)))
    return high - flips if flips <= 1 / best - 1 / math.expm1(best) else hoeffding


def luck(num_outcomes: int, s_0: float, delta: float, flips: float) -> tuple[float, float]:
    """How far luck lifts the average above s_0, and the probability that it lifts it further.

    Of Q outcomes whose expectations average less than s_0, the average exceeds s_0 + margin with a
    probability of at most `delta`. It is `margin`, or less: the exact tail (`_tail`) where that
    is quickly computed.

    Args:
        num_outcomes: Q independent outcomes.
        s_0: Threshold, in units of quality.
        delta: In (0, 1).
        flips: See `margin`.

    Returns:
        The margin in units of quality, and a bound on the probability, at most `delta`.

    Examples:
        >>> round(margin(156, 0.02, 0.02), 3)
        0.039
        >>> [round(x, 3) for x in luck(156, 0.72, 0.02, 0.02)]
        [0.017, 0.018]
    """
    bound = margin(num_outcomes, delta, flips)
    if flips >= 0.5 or num_outcomes**3 * flips > _MOST_WORK:
        return bound, delta
    first, tail = _tail(num_outcomes, s_0, flips)
    more = next((i for i, probability in enumerate(tail) if probability <= delta), len(tail))
    ones = first + more  # so many or more are too rare
    exact = (ones - 1 + _LESS_THAN_ONE) / num_outcomes - s_0
    if exact >= bound:
        return bound, delta
    return exact, tail[more] if more < len(tail) else 0.0


@lru_cache(16)
def _tail(num_outcomes: int, s_0: float, flips: float) -> tuple[int, tuple[float, ...]]:
    """The largest P(S >= n) of S, the number of ones, if their expectations average below s_0.

    An outcome is 1 with probability mu_q in [0, p] or [1 - p, 1], and sum_q mu_q <= Q s_0. Take
    n >= floor(Q s_0) + 3. These mu maximise P(S >= n), by the argument of Hoeffding (1956,
    doi:10.1214/aoms/1177728178):

    1. P(S >= n) rises in every mu_q, so the sum is Q s_0, or all are 1 or p. Of the latter only the
       largest number of ones matters.
    2. Given mu_i + mu_j, it is a constant plus mu_i mu_j (P(S' = n - 2) - P(S' = n - 1)), where S'
       counts the others. S' is unimodal with mode at most floor(Q s_0) + 1 <= n - 2 (Darroch 1964,
       doi:10.1214/aoms/1177703287), so the bracket is not negative: bringing mu_i and mu_j closer
       together never lowers P(S >= n).
    3. So the A outcomes with mu_q >= 1 - p share one value z, the Q - A others one value y, and
       z = 1 - p or y = p: S is a sum of two binomials. All A that are possible are tried.

    Returns:
        The first n, and P(S >= n) from there to n = Q.
    """
    total = num_outcomes * s_0
    least = math.ceil((total - flips * num_outcomes) / (1 - flips)) - 1
    most = math.floor(total / (1 - flips))
    tail = np.zeros(num_outcomes + 1)
    for a in range(max(least, 0), min(most, num_outcomes) + 1):
        b = num_outcomes - a
        z = min(1.0, max(1 - flips, (total - b * flips) / a)) if a else 1.0
        y = min(flips, max(0.0, (total - a * z) / b)) if b else 0.0
        pmf = np.convolve(binom.pmf(np.arange(a + 1), a, z), binom.pmf(np.arange(b + 1), b, y))
        np.maximum(tail, pmf[::-1].cumsum()[::-1], out=tail)
    first = math.floor(total + 1e-9) + 3
    return first, tuple(tail[first:].tolist())


def flips_of_repeats(differing: int, pairs: int, delta: float) -> float:
    """Upper bound on p, if `differing` of `pairs` repeated calls were answered otherwise.

    Two answers to the same call differ with probability 2 p (1 - p). The bound is that of Clopper
    and Pearson, wrong with probability at most `delta`; at most 1/2.

    Args:
        differing: Number of queries that were answered otherwise the second time.
        pairs: Number of queries that were answered twice.
        delta: In (0, 1).

    Raises:
        InputError: If the numbers are not whole, or not 0 <= differing <= pairs, pairs >= 1.

    Examples:
        >>> round(flips_of_repeats(6, 156, 0.005), 3), round(flips_of_repeats(0, 156, 0.005), 3)
        (0.051, 0.017)
    """
    if differing % 1 or pairs % 1 or not 0 <= differing <= pairs or pairs < 1:
        raise InputError(
            f"reference_repeats=[{differing}, {pairs}] must be two whole numbers: how many queries "
            "were answered otherwise the second time, of how many answered twice"
        )
    if differing == pairs:
        return 0.5
    differ = float(beta.ppf(1 - delta, differing + 1, pairs - differing))
    return (1 - math.sqrt(max(0.0, 1 - 2 * differ))) / 2


def check_sequence(delta: float | None, flips: float) -> None:
    """Raises InputError if delta or flips are outside their ranges."""
    if delta is not None and not 0 < delta < 1:
        raise InputError(f"delta={delta} must lie in (0, 1)")
    if not 0 <= flips <= 0.5:
        raise InputError(f"certificate_flips={flips} must lie in [0, 1/2]")


def share_of_delta(k: int, delta: float, later: int = 1) -> float:
    """Share of the k-th candidate, k >= 1; the shares of all candidates add up to delta at most.

    delta / (C (k + later) log(k + later)^2). C is 2.11 for later = 1, else 1 / log(later + 1/2),
    which is the integral of a convex function from later + 1/2 on, and so no less than the sum.

    Args:
        k: Number of the candidate.
        delta: Failure probability of all candidates together.
        later: A larger number leaves less for the first candidates, and more for those after them.
    """
    total = _SUM if later == 1 else 1 / math.log(later + 0.5)
    return delta / (total * (k + later) * math.log(k + later) ** 2)
