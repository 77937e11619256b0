"""Fronts of cost and quality, the area under them, and how much a configuration may add to it.

| symbol | here | unit |
| --- | --- | --- |
| (l_i, q_i), i = 1..m, the front by rising cost | `Front.cost`, `Front.quality` | axis, quality |
| r, cost beyond which nothing counts; q_0 = 0, l_0 = -inf, l_{m+1} = r | `Front.worst` | axis |
| area = sum_i (l_{i+1} - l_i) q_i | `Front.area` | axis x quality |
| psi(u) = E[(u - l)+] | `Costs.below` | axis |
| E[(min(q, cap) - q_i)+] | `Qualities.above` | quality |

Costs are on one of two axes: USD, or log USD, on which halving a cost always counts the same. A new
point (l, q) adds to the strip of costs from l_i to l_{i+1} its overlap with [l, r], times
(q - q_i)+. Cost and quality of a configuration are independent here, so the expectation is a sum of
products:

    E[improvement] = sum_{i=0..m} (psi(l_{i+1}) - psi(l_i)) E[(min(q, cap) - q_i)+].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from scope_torch.errors import InputError

Axis = Literal["log", "usd"]
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


def on_axis(cost_usd: float, axis: Axis, least_usd: float = 0.0) -> float:
    """A cost on the axis.

    Args:
        cost_usd: In USD.
        axis: `log` or `usd`.
        least_usd: Costs below it count as it, because free LLMs have no logarithm.
    """
    cost_usd = max(cost_usd, least_usd)
    return cost_usd if axis == "usd" else math.log(cost_usd)


def check_axis(axis: str) -> Axis:
    """Returns the axis.

    Raises:
        InputError: If it is not known.
    """
    if axis not in ("log", "usd"):
        raise InputError(f"axis={axis!r} must be log or usd")
    return axis


class Front:
    """A front on an axis, up to the cost `worst`.

    Args:
        points: (cost on the axis, quality); those that another beats, or that cost `worst` or more,
            are left out.
        worst: r on the axis.

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

    def below(self, u: Tensor, axis: Axis) -> Tensor:
        """psi(u) = E[(u - l)+] for `m` values of u on the axis: `... x m`."""
        mean, sd = self.mean[..., None], self.sd[..., None].clamp_min(_LEAST_SD)
        if axis == "log":
            return _mean_excess(u - mean, sd)
        z = (u.log() - mean) / sd
        return u * torch.special.ndtr(z) - torch.exp(mean + sd**2 / 2) * torch.special.ndtr(z - sd)

    def probability_below(self, u: Tensor, axis: Axis) -> Tensor:
        """P(l < u) for `m` values of u on the axis: `... x m`."""
        log_u = u if axis == "log" else u.log()
        sd = self.sd[..., None].clamp_min(_LEAST_SD)
        return torch.special.ndtr((log_u - self.mean[..., None]) / sd)


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


def expected_improvement(
    front: Front, costs: Costs, qualities: Qualities, axis: Axis
) -> tuple[Tensor, Tensor]:
    """What each configuration is expected to add to the area, and the chance that it adds any.

    Args:
        front: On the axis.
        costs: Of the configurations.
        qualities: Of the same.
        axis: Of the front.

    Returns:
        Areas (axis x quality) and probabilities, of the shape of the means.
    """
    ends = costs.mean.new_tensor([*front.cost, front.worst])
    q = costs.mean.new_tensor([0.0, *front.quality])
    width = _differences(costs.below(ends, axis))
    area = (width * qualities.above(q)).sum(-1)
    within = _differences(costs.probability_below(ends, axis))
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
