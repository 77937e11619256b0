"""When outcomes have become worse than they may be, looked at for ever.

| symbol | here | |
| --- | --- | --- |
| d_t >= -worst | `differences` | mean above 0 once the outcomes are too bad, see `Outcomes.bet` |
| L_t = 1 + f d_t / worst | | what a gambler with fraction f wins on the t-th draw |
| M_t = (1 + M_{t-1}) L_t, averaged over f | `log_detector` | Shiryaev and Roberts |

Nobody knows on which draw the outcomes changed, so a new gambler starts with 1 at every draw, and
M_t is what all of them have. As long as the mean of d is at most 0, M_t - t falls in expectation.
So until M_t first reaches C, C draws are made on average, at least; and within n draws it reaches
C with probability at most n / C. After Shin, Ramdas and Rinaldo, E-detectors
(doi:10.51387/23-NEJSDS51).
"""

from __future__ import annotations

import numpy as np

from scope_torch.bounds.population import FRACTIONS, log_mean


def log_detector(differences: np.ndarray, worst: float) -> np.ndarray:
    """Log M_t after each difference.

    Args:
        differences: `T` differences, each at least -worst (float64), in the order of the draws.
        worst: Positive.

    Examples:
        >>> log_detector(np.array([-0.1] * 50 + [0.9] * 5), worst=0.1)[[0, 49, 54]].round(1)
        array([-0.7,  1. , 10.1])
    """
    if not len(differences):
        return np.empty(0)
    steps = np.log1p(np.multiply.outer(differences / worst, FRACTIONS))
    total = steps.cumsum(0)
    # Who starts with 1 at draw j has exp(total_t - total_{j-1}) at draw t.
    return log_mean(total + np.logaddexp.accumulate(steps - total, 0))


def changed_at(differences: np.ndarray, worst: float) -> int:
    """The draw at which the outcomes most likely became worse: where the richest gambler began.

    Args:
        differences: See `log_detector`; up to the alarm.
        worst: Positive.
    """
    steps = np.log1p(np.multiply.outer(differences / worst, FRACTIONS))
    since = steps[::-1].cumsum(0)[::-1]  # what each gambler won from its start to the end
    return int(np.unravel_index(since.argmax(), since.shape)[0])
