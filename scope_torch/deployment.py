"""How a configuration does on queries that the search has not seen (RQ2)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from scope_torch.history import Request
from scope_torch.tasks import HeldOut


def deploy(held_out: HeldOut, theta: Sequence[int]) -> dict[str, Any]:
    """Runs a configuration once on every held-out query.

    With a live system this costs money; it is not part of any search budget.

    Args:
        held_out: The queries.
        theta: Codes of the configuration.

    Returns:
        `cost_usd` and `quality`, the averages, with their standard errors `cost_se_usd` and
        `quality_se`, and `num_queries`; JSON-serialisable.
    """
    requests = [Request(tuple(theta), query) for query in range(held_out.num_queries)]
    observations = list(held_out.evaluator.evaluate(requests))
    costs = [o.cost_usd for o in observations]
    qualities = [o.quality for o in observations]
    return {
        "num_queries": held_out.num_queries,
        "cost_usd": statistics.fmean(costs),
        "cost_se_usd": _standard_error(costs),
        "quality": statistics.fmean(qualities),
        "quality_se": _standard_error(qualities),
    }


def _standard_error(values: Sequence[float]) -> float | None:
    """None for a single value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
