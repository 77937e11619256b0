"""A rough guess of the cost of every configuration: a(theta), a sum over modules.

The costs of LLMs differ by orders of magnitude. So the uncertainty about the cost of a
configuration is a fraction of it rather than an amount in USD: the joint surrogate models
c / a - 1.

| symbol | here | unit |
| --- | --- | --- |
| a(theta) = max(least, sum_i terms_i[theta_i]) | `CostScale.at` | USD |
| t_q, cost of a query relative to the others | `fit_cost_scale` | 1 |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from scope_torch.space import ConfigSpace

_ROUNDS = 20
LEAST_OBSERVED = 0.05  # a(theta) is at least this fraction of the least average that is not 0
LEAST_MEAN = 0.05  # of a relative cost, when bounds are made of it
_LEAST_SD = 1e-12  # of a cost whose bounds are equal; relative
_LEAST_BOUND = 1e-300  # in USD: 0 has no logarithm
_MOST_EXPONENT = 700.0  # exp of more is no number
_PSEUDO = 2.0  # observations of ordinary cost that a query starts with


Costs = Sequence[tuple[tuple[int, ...], int, float]]  # theta, query, USD


@dataclass(frozen=True)
class CostScale:
    """a(theta) = max(least, the sum over modules of a term for the module's LLM).

    Args:
        terms: USD for each LLM of each module (float64).
        least: USD.
        variance: Of c / a at a configuration that was not observed; 0: not known.
    """

    terms: tuple[Tensor, ...]
    least: float
    variance: float = 0.0

    @classmethod
    def one(cls, space: ConfigSpace) -> CostScale:
        """A = 1 USD everywhere."""
        return cls(tuple(torch.zeros(size, dtype=torch.float64) for size in space.sizes), 1.0)

    def at(self, theta: Sequence[int]) -> float:
        """a(theta) in USD."""
        total = sum(float(terms[llm]) for terms, llm in zip(self.terms, theta, strict=True))
        return max(self.least, total)

    def of(self, codes: Tensor) -> Tensor:
        """a(theta) in USD of `n x num_modules` codes: `n` values (float64), as `everywhere`."""
        total = torch.zeros(len(codes), dtype=torch.float64)
        for terms, llms in zip(self.terms, codes.T, strict=True):
            total = total + terms[llms]
        return total.clamp_min_(self.least)

    def everywhere(self, device: torch.device | None = None) -> Tensor:
        """a(theta) on all of Theta in USD: `|Theta|` values by flat index (float64)."""
        total = torch.zeros(1, dtype=torch.float64, device=device)
        for terms in self.terms:
            total = (total[:, None] + terms.to(total.device)).flatten()
        return total.clamp_min_(self.least)


def by_configuration(
    costs: Costs,
) -> tuple[list[tuple[int, ...]], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """The distinct configurations, and for each cost its configuration, its query, and USD.

    Both are positions: in the configurations, and in the rising queries that occur.
    """
    row = {theta: d for d, theta in enumerate(dict.fromkeys(theta for theta, _, _ in costs))}
    which = np.array([row[theta] for theta, _, _ in costs])
    query = np.unique([q for _, q, _ in costs], return_inverse=True)[1]
    return list(row), which, query, np.array([usd for _, _, usd in costs])


FitScale = Callable[[ConfigSpace, Costs, float], CostScale]  # the last: USD, if all are free


def fit_cost_scale(space: ConfigSpace, costs: Costs, scale_if_free: float = 1.0) -> CostScale:
    """Fits c(theta, q) = t_q a(theta) by least squares of relative errors, as in version 0.1.0.

    `regress_costs` does better.

    Two steps in turn: the terms by non-negative least squares, given t and with weights 1 / a; then
    t_q as the mean of c / a. LLMs that were never observed in a module get its median term.

    Args:
        space: Theta.
        costs: (theta, query, USD), at least one.
        scale_if_free: `least` in USD if every cost is 0. It must be near the cost of configurations
            that were not observed: free ones are then visibly cheaper.
    """
    distinct, which, query, usd = by_configuration(costs)
    offsets = np.concatenate([[0], np.cumsum(space.sizes)])
    design = np.zeros((len(distinct), offsets[-1]))
    for d, theta in enumerate(distinct):
        design[d, offsets[:-1] + np.array(theta)] = 1.0
    count, per_query = np.bincount(which), np.bincount(query)
    average = np.bincount(which, usd) / count
    positive = average[average > 0]
    least = LEAST_OBSERVED * positive.min() if len(positive) else scale_if_free
    a = np.maximum(average, least)
    t = np.ones(len(per_query))
    terms = np.zeros(offsets[-1])
    for _ in range(_ROUNDS):
        mean = np.bincount(which, usd / t[query]) / count
        weight = np.sqrt(count) / a
        terms, _ = nnls(design * weight[:, None], mean * weight)
        a = np.maximum(design @ terms, least)
        t = (np.bincount(query, usd / a[which]) + _PSEUDO) / (per_query + _PSEUDO)
        t = np.maximum(t / np.average(t, weights=per_query), 1e-3)
    seen = design.sum(0) > 0
    parts = []
    for start, stop in pairwise(offsets):
        part, known = terms[start:stop].copy(), seen[start:stop]
        part[~known] = np.median(part[known])
        parts.append(torch.from_numpy(part))
    return CostScale(tuple(parts), float(least))


def lognormal_bound(mean: float, sigma: float, b: float) -> float:
    """The bound `b` standard deviations from the mean of log(c / a).

    c / a is taken as lognormal with the given mean and standard deviation: costs are positive, and
    where `sigma` is not small, mean - b sigma would be below 0.

    Args:
        mean: Mean of c / a - 1.
        sigma: Standard deviation of c / a.
        b: Below 0 for a lower bound.

    Returns:
        The bound on c / a; infinite if it is too large for a number.
    """
    mean = max(1 + mean, LEAST_MEAN)
    variance = math.log1p((sigma / mean) ** 2)
    exponent = b * math.sqrt(variance) - variance / 2
    return mean * math.exp(exponent) if exponent < _MOST_EXPONENT else math.inf


def expected_saving(
    mean: Tensor, lower: Tensor, b: float, u: float, lognormal: bool = True
) -> Tensor:
    """E[(u - c)+], by how much the cost c is expected to be below `u`.

    Args:
        mean: Means of c, of any shape.
        lower: Lower bounds on c, `b` standard deviations from the mean, by `lognormal_bound` or of
            a normal distribution.
        b: Positive.
        u: In the unit of c.
        lognormal: Which of both distributions c has.

    Returns:
        Savings of the same shape, in the unit of c.

    Examples:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> [round(float(expected_saving(one, lower * one, 3.0, 2.0)), 3) for lower in (1.0, 0.2)]
        [1.0, 1.025]
    """
    if not lognormal:
        sigma = ((mean - lower) / b).clamp_min_(_LEAST_SD * u)
        z = (u - mean) / sigma
        density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        return (u - mean) * torch.special.ndtr(z) + sigma * density
    log_mean = mean.clamp_min(_LEAST_SD * u).log()
    # A bound that was widened to 34 standard deviations may be far below any cost.
    below = (log_mean - lower.clamp_min(_LEAST_BOUND).log()).clamp_min_(0.0)
    sd = (torch.sqrt(b**2 + 2 * below) - b).clamp_min_(_LEAST_SD)  # below = b sd + sd^2 / 2
    z = (math.log(u) - log_mean) / sd
    return u * torch.special.ndtr(z + sd / 2) - mean * torch.special.ndtr(z - sd / 2)
