"""The cheapest plan above a quality threshold, when costs add up and qualities multiply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Option(NamedTuple):
    """An LLM in a module.

    Args:
        llm: Its code.
        cost_usd: Its contribution to the cost of a plan, in USD; may be negative.
        quality: Positive factor of the quality of a plan.
    """

    llm: int
    cost_usd: float
    quality: float


class PhysicalPlan(NamedTuple):
    """LLMs of the first modules, or of all, with the estimated cost (USD) and quality."""

    theta: tuple[int, ...]
    cost_usd: float
    quality: float


def cheapest_plan(
    options: Sequence[Sequence[Option]], quality: float, threshold: float
) -> PhysicalPlan | None:
    """The plan of least total cost whose quality exceeds the threshold; of equal costs the best.

    An exact dynamic programme over prefixes. Cost and quality of a plan grow with those of its
    prefix, so a prefix that is neither cheaper nor better than another is never needed.

    Args:
        options: For each module its LLMs, in the order in which ties are broken.
        quality: Factor common to all plans.
        threshold: The quality of the plan must be above it.

    Returns:
        The plan, or None if no plan exceeds the threshold.

    Examples:
        >>> cheap, good = Option(0, 1.0, 0.5), Option(1, 3.0, 1.0)
        >>> cheapest_plan([[cheap, good], [cheap, good]], 0.8, 0.3)
        PhysicalPlan(theta=(0, 1), cost_usd=4.0, quality=0.4)
    """
    plans = [PhysicalPlan((), 0.0, quality)]
    for of_module in options:
        plans = _pareto(
            [
                PhysicalPlan((*plan.theta, option.llm), plan.cost_usd + option.cost_usd,
                     plan.quality * option.quality)
                for plan in plans
                for option in of_module
            ]
        )  # fmt: skip
    return next((plan for plan in plans if plan.quality > threshold), None)


def cheapest_allowed_plan(
    options: Sequence[Sequence[Option]], quality: float, threshold: float, allowed: np.ndarray
) -> PhysicalPlan | None:
    """As `cheapest_plan`, of the plans that may be chosen; looks at all of them.

    Args:
        options: See `cheapest_plan`.
        quality: See `cheapest_plan`.
        threshold: See `cheapest_plan`.
        allowed: `M_1 x ... x M_N` booleans, by the codes of the LLMs.

    Examples:
        >>> cheap, good = Option(0, 1.0, 0.5), Option(1, 3.0, 1.0)
        >>> differ = np.array([[False, True], [True, False]])
        >>> cheapest_allowed_plan([[cheap, good], [cheap, good]], 0.8, 0.1, differ)
        PhysicalPlan(theta=(0, 1), cost_usd=4.0, quality=0.4)
    """
    cost, qualities = np.zeros(()), np.array(quality)
    for of_module in options:
        cost = cost[..., None] + np.array([option.cost_usd for option in of_module])
        qualities = qualities[..., None] * np.array([option.quality for option in of_module])
    may = allowed[np.ix_(*([option.llm for option in of_module] for of_module in options))]
    cost = np.where(may & (qualities > threshold), cost, np.inf)
    if not np.isfinite(cost).any():
        return None
    cheapest = np.where(cost == cost.min(), qualities, -np.inf)
    at = np.unravel_index(int(cheapest.argmax()), cost.shape)
    theta = tuple(of_module[int(j)].llm for of_module, j in zip(options, at, strict=True))
    return PhysicalPlan(theta, float(cost[at]), float(qualities[at]))


def _pareto(plans: list[PhysicalPlan]) -> list[PhysicalPlan]:
    """Plans that no other beats in both, in increasing cost; of equal ones the first."""
    front: list[PhysicalPlan] = []
    for plan in sorted(plans, key=lambda p: (p.cost_usd, -p.quality)):
        if not front or plan.quality > front[-1].quality:
            front.append(plan)
    return front
