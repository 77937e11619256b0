"""LLAMBO's scores of candidates, from the costs and qualities that its LLM predicts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

Prediction = tuple[float, float]  # average cost of a query in USD, average quality


def target_cost(best_usd: float, costs_usd: Sequence[float], alpha: float) -> float:
    """The cost to ask for, in USD: best - alpha (max - min).

    alpha is halved until that is positive.

    Args:
        best_usd: Best feasible average cost in USD.
        costs_usd: All known average costs in USD; if all are equal, a tenth of the best serves as
            their range.
        alpha: Share of the range.

    Examples:
        >>> target_cost(1.0, [1.0, 3.0], 0.25)
        0.5
    """
    spread = max(costs_usd) - min(costs_usd) or 0.1 * best_usd
    while best_usd > 0 and best_usd - alpha * spread <= 0:
        alpha /= 2
    return best_usd - alpha * spread if best_usd > 0 else 0.0


def scores_of(
    predictions: Sequence[Sequence[Prediction]],
    *,
    best_cost_usd: float,
    s_0: float,
    cost_scale_usd: float,
) -> list[float]:
    """Expected improvement of the cost times the probability of feasibility.

    EI = std (u Phi(u) + phi(u)) with u = (best - mean) / std, times Phi((mean_s - s_0) / std_s).
    A candidate without predictions gets the average mean and std of the others. A std is at least
    1e-5 of the scale: of `cost_scale_usd`, and of s_0.

    Args:
        predictions: The predicted (cost in USD, quality) pairs of each candidate.
        best_cost_usd: Best observed feasible cost in USD.
        s_0: Quality threshold.
        cost_scale_usd: Scale of costs in USD.

    Returns:
        A score for each candidate, in USD; all 0 if there is no prediction.
    """
    moments = [_moments(drawn) if drawn else None for drawn in predictions]
    known = [m for m in moments if m is not None]
    if not known:
        return [0.0] * len(moments)
    average = tuple(math.fsum(values) / len(known) for values in zip(*known, strict=True))
    scores = []
    for m in moments:
        cost, cost_std, quality, quality_std = m or average
        cost_std = max(cost_std, 1e-5 * cost_scale_usd)
        u = (best_cost_usd - cost) / cost_std
        improvement = cost_std * (u * _cdf(u) + math.exp(-u * u / 2) / math.sqrt(2 * math.pi))
        feasible = _cdf((quality - s_0) / max(quality_std, 1e-5 * s_0))
        scores.append(max(0.0, improvement) * feasible)
    return scores


def _moments(drawn: Sequence[Prediction]) -> tuple[float, float, float, float]:
    """Mean and standard deviation of cost, then of quality."""
    costs, qualities = zip(*drawn, strict=True)
    cost, quality = statistics.fmean(costs), statistics.fmean(qualities)
    return cost, statistics.pstdev(costs), quality, statistics.pstdev(qualities)


def _cdf(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2
