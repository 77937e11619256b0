"""Cost and quality of a configuration on held-out queries (RQ2)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from scope_torch.observation import Observation, Request
from scope_torch.runs.evaluator import Evaluator

_Z = statistics.NormalDist().inv_cdf(0.975)  # of a 95% interval


class HeldOutQueries(NamedTuple):
    """Queries that the search never sees, to measure the configuration that it found (RQ2).

    Attributes:
        evaluator: Runs configurations on these queries.
        num_queries: Their number.
    """

    evaluator: Evaluator
    num_queries: int


def deploy(held_out: HeldOutQueries, theta: Sequence[int]) -> dict[str, Any]:
    """Runs a configuration once on every held-out query.

    With a live system this costs money, which is not part of any search budget.

    Args:
        held_out: The queries.
        theta: Codes of the configuration.

    Returns:
        The averages `cost_usd` (USD a query) and `quality` (in [0, 1]), their standard errors
        `cost_se_usd` and `quality_se`, and `num_queries`; JSON-serialisable.

    Examples:
        >>> from scope_torch.tasks.simulated import simulated_task
        >>> task = simulated_task(name="imputation (simulated)", world="data_imputation")
        >>> measured = deploy(task.held_out(), task.problem.theta_ref)
        >>> measured["num_queries"], round(measured["quality"], 3)
        (86, 0.744)
    """
    observations = _observe(held_out, theta)
    costs = [o.cost_usd for o in observations]
    qualities = [o.quality for o in observations]
    return {
        "num_queries": held_out.num_queries,
        "cost_usd": statistics.fmean(costs),
        "cost_se_usd": standard_error(costs),
        "quality": statistics.fmean(qualities),
        "quality_se": standard_error(qualities),
    }


def compare(
    held_out: HeldOutQueries, theta: Sequence[int], theta_ref: Sequence[int]
) -> dict[str, Any]:
    """Runs two configurations once on every held-out query, with 95% confidence intervals.

    Costs have normal intervals, which are approximate. Average qualities have Wilson intervals,
    which are wider than needed if qualities are not 0 or 1; their difference, paired by query, one
    by betting (`scope_torch.bounds.population`), which holds for any number of queries.

    Args:
        held_out: The queries.
        theta: Codes of a configuration.
        theta_ref: Codes of the configuration to compare it with.

    Returns:
        `num_queries`, and `results` for `theta`, `reference` and `difference` (theta - reference),
        each with `cost_usd`, `quality`, `cost_usd_interval` and `quality_interval`. The first two
        also have `module_cost_usd`, the average cost of each module, where it is known.
    """
    import numpy as np

    from scope_torch.bounds.population import difference_interval  # imports gpytorch

    observations, references = _observe(held_out, theta), _observe(held_out, theta_ref)
    results = {"theta": _averages(observations), "reference": _averages(references)}
    pairs = list(zip(observations, references, strict=True))
    costs = [a.cost_usd - b.cost_usd for a, b in pairs]
    qualities = [a.quality - b.quality for a, b in pairs]
    results["difference"] = {
        "cost_usd": statistics.fmean(costs),
        "cost_usd_interval": _normal_interval(costs),
        "quality": statistics.fmean(qualities),
        "quality_interval": list(difference_interval(np.array(qualities))),
    }
    return {"num_queries": held_out.num_queries, "results": results}


def _observe(held_out: HeldOutQueries, theta: Sequence[int]) -> list[Observation]:
    """One observation of each query, in the order of the queries."""
    requests = [Request(tuple(theta), query) for query in range(held_out.num_queries)]
    return sorted(held_out.evaluator.evaluate(requests), key=lambda o: o.query)


def _averages(observations: Sequence[Observation]) -> dict[str, Any]:
    costs = [o.cost_usd for o in observations]
    quality = statistics.fmean(o.quality for o in observations)
    averages: dict[str, Any] = {
        "cost_usd": statistics.fmean(costs),
        "cost_usd_interval": _normal_interval(costs),
        "quality": quality,
        "quality_interval": _wilson_interval(quality, len(observations)),
    }
    if (of_modules := module_costs(observations)) is not None:
        averages["module_cost_usd"] = list(of_modules)
    return averages


def module_costs(observations: Sequence[Observation]) -> tuple[float, ...] | None:
    """Average cost of each module in USD; None if an observation does not tell."""
    costs = [o.module_cost_usd for o in observations]
    if not all(costs):
        return None
    return tuple(map(statistics.fmean, zip(*(cost or () for cost in costs), strict=True)))


def _normal_interval(values: Sequence[float]) -> list[float]:
    mean, error = statistics.fmean(values), standard_error(values)
    half_width = math.inf if error is None else _Z * error
    return [mean - half_width, mean + half_width]


def _wilson_interval(mean: float, n: int) -> list[float]:
    centre = (mean + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half_width = _Z / (1 + _Z**2 / n) * math.sqrt(mean * (1 - mean) / n + _Z**2 / (4 * n**2))
    return [max(0.0, centre - half_width), min(1.0, centre + half_width)]


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean of independent values; None for a single value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
