"""Fronts of cost and quality, the area under them, and how much a configuration may add to it.

| symbol | here | unit |
| --- | --- | --- |
| (l_i, q_i), i = 1..m, by rising cost | `Front.cost`, `Front.quality` | log USD, quality |
| r, cost beyond which nothing counts; q_0 = 0, l_0 = -inf, l_{m+1} = r | `Front.worst` | log USD |
| area = sum_i (l_{i+1} - l_i) q_i | `Front.area` | log USD x quality |
| psi(u) = E[(u - l)+] | `Costs.below` | log USD |
| E[(min(q, cap) - q_i)+] | `Qualities.above` | quality |

Costs are in log USD, where halving a cost always counts the same. A new point (l, q) adds to the
strip of costs from l_i to l_{i+1} its overlap with [l, r], times (q - q_i)+. Cost and quality of a
configuration are independent here, so the expectation is a sum of products:

    E[improvement] = sum_{i=0..m} (psi(l_{i+1}) - psi(l_i)) E[(min(q, cap) - q_i)+].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_LEAST_SD = 1e-12  # of a distribution that has none


def non_dominated(cost: Sequence[float], quality: Sequence[float]) -> list[int]:
    """Positions of the points that no other point beats, by rising cost; of equal ones the first.

    Args:
        cost: In any unit.
        quality: As many.

    Examples:
        >>> non_dominated([3.0, 1.0, 2.0, 1.0], [0.9, 0.5, 0.4, 0.5])
        [1, 0]
    """
    order = sorted(range(len(cost)), key=lambda i: (cost[i], -quality[i], i))
    front: list[int] = []
    for i in order:
        if not front or quality[i] > quality[front[-1]]:
            front.append(i)
    return front


class Front:
    """A front up to the cost `worst`; costs are on any one axis, for a search in log USD.

    Args:
        points: (cost, quality); those that another beats, or that cost `worst` or more,
            are left out.
        worst: r.

    Attributes:
        cost: `m` costs, rising.
        quality: `m` qualities, rising.

    Examples:
        >>> front = Front([(1.0, 0.5), (2.0, 0.9), (3.0, 0.8)], worst=4.0)
        >>> front.cost, front.quality, front.area
        ([1.0, 2.0], [0.5, 0.9], 2.3)
    """

    def __init__(self, points: Sequence[tuple[float, float]], worst: float) -> None:
        inside = [(c, q) for c, q in points if c < worst and q > 0]
        kept = non_dominated([c for c, _ in inside], [q for _, q in inside])
        self.cost, self.quality = [inside[i][0] for i in kept], [inside[i][1] for i in kept]
        self.worst = worst

    @property
    def area(self) -> float:
        """The area below the front, between its least cost and `worst` and above quality 0."""
        ends = [*self.cost[1:], self.worst]
        strips = zip(self.cost, ends, self.quality, strict=False)
        return math.fsum((end - start) * quality for start, end, quality in strips)

    def beats(self, cost: Tensor, quality: Tensor) -> Tensor:
        """Where a point adds nothing to the area: booleans of the shape of `cost`."""
        beaten = (cost >= self.worst) | (quality <= 0)
        for l_i, q_i in zip(self.cost, self.quality, strict=True):
            beaten |= (cost >= l_i) & (quality <= q_i)
        return beaten


class Costs(NamedTuple):
    """Costs of configurations whose logarithms are normal: means and standard deviations of them.

    Both of any one shape, float64, of log USD.
    """

    mean: Tensor
    sd: Tensor

    def below(self, u: Tensor) -> Tensor:
        """psi(u) = E[(u - l)+] for `m` values of u in log USD: `... x m`."""
        return _mean_excess(u - self.mean[..., None], self.sd[..., None].clamp_min(_LEAST_SD))

    def probability_below(self, u: Tensor) -> Tensor:
        """P(l < u) for `m` values of u in log USD: `... x m`."""
        sd = self.sd[..., None].clamp_min(_LEAST_SD)
        return torch.special.ndtr((u - self.mean[..., None]) / sd)


class Qualities(NamedTuple):
    """Normal average qualities: means, standard deviations, and what they cannot exceed.

    `cap` is the average if all answers that are still out were right. All of one shape, float64.
    """

    mean: Tensor
    sd: Tensor
    cap: Tensor

    def above(self, q: Tensor) -> Tensor:
        """E[(min(quality, cap) - q)+] for `m` values of q: `... x m`."""
        mean, sd = self.mean[..., None], self.sd[..., None].clamp_min(_LEAST_SD)
        beyond = _mean_excess(mean - self.cap[..., None], sd)
        return torch.where(self.cap[..., None] > q, _mean_excess(mean - q, sd) - beyond, 0.0)

    def probability_above(self, q: Tensor) -> Tensor:
        """P(min(quality, cap) > q) for `m` values of q: `... x m`."""
        sd = self.sd[..., None].clamp_min(_LEAST_SD)
        probability = torch.special.ndtr((self.mean[..., None] - q) / sd)
        return torch.where(self.cap[..., None] > q, probability, 0.0)


def expected_improvement(front: Front, costs: Costs, qualities: Qualities) -> tuple[Tensor, Tensor]:
    """What each configuration is expected to add to the area, and the chance that it adds any.

    Args:
        front: In log USD.
        costs: Of the configurations.
        qualities: Of the same.

    Returns:
        Areas (log USD x quality) and probabilities, of the shape of the means.
    """
    ends = costs.mean.new_tensor([*front.cost, front.worst])
    q = costs.mean.new_tensor([0.0, *front.quality])
    width = _differences(costs.below(ends))
    area = (width * qualities.above(q)).sum(-1)
    within = _differences(costs.probability_below(ends))
    chance = (within * qualities.probability_above(q)).sum(-1)
    return area.clamp_min(0.0), chance.clamp(0.0, 1.0)


def _differences(values: Tensor) -> Tensor:
    """Of each value and the one before it, the first of which is 0."""
    return torch.diff(values, dim=-1, prepend=torch.zeros_like(values[..., :1]))


def _mean_excess(margin: Tensor, sd: Tensor) -> Tensor:
    """E[(x)+] of a normal x with mean `margin`."""
    z = margin / sd
    density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return margin * torch.special.ndtr(z) + sd * density
