"""Choice and reference on queries that the search has not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scope_torch.constraints import Constraint
from scope_torch.html_table import html_table
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.results.bill import cost_of
from scope_torch.results.digits import per_thousand, plain, quality
from scope_torch.results.estimate import Estimate

if TYPE_CHECKING:
    import numpy as np

_DELTA = 0.05  # of both ends together


@dataclass(frozen=True)
class HeldOut:
    """What theta_out and theta_0 did on held-out queries.

    Args:
        num_queries: How many there are.
        choice: The observations of theta_out, one for each query, in their order.
        reference: Those of theta_0.
        known: Observations of earlier searches; they were not paid for again.
        regraded_usd: What grading them anew has cost, in USD, if the metric is another one.

    Examples:
        >>> choice = [Observation((0,), q, cost_usd=0.01, quality=1.0) for q in range(40)]
        >>> reference = [Observation((1,), q, cost_usd=0.1, quality=q > 3) for q in range(40)]
        >>> held_out = HeldOut(40, choice, reference)
        >>> round(held_out.difference.value, 3), round(held_out.difference.lower, 2)
        (0.1, -0.06)
    """

    num_queries: int
    choice: Sequence[Observation]
    reference: Sequence[Observation]
    known: Sequence[Observation] = ()
    regraded_usd: float = 0.0

    @property
    def quality(self) -> float:
        """Average quality of theta_out."""
        return _mean([o.quality for o in self.choice])

    @property
    def reference_quality(self) -> float:
        """Average quality of theta_0."""
        return _mean([o.quality for o in self.reference])

    @property
    def choice_usd(self) -> float:
        """Average cost of a query with theta_out, in USD."""
        return cost_of(self.choice) / self.num_queries

    @property
    def reference_usd(self) -> float:
        """Average cost of a query with theta_0, in USD."""
        return cost_of(self.reference) / self.num_queries

    @property
    def cost_usd(self) -> float:
        """What the comparison has cost in USD; the same configuration is paid for once."""
        return cost_of(self.paid)

    @property
    def paid(self) -> list[Observation]:
        """The observations that were paid for."""
        known = set(self.known)
        both = [*self.reference, *([] if self._is_same else self.choice)]
        return [observation for observation in both if observation not in known]

    @property
    def _is_same(self) -> bool:
        return self.choice[0].theta == self.reference[0].theta

    @property
    def difference(self) -> Estimate:
        """Quality of theta_out minus that of theta_0, paired by query.

        The interval is about the distribution of the queries: it contains the expected difference
        with probability 95%, if these queries are independent draws from it. It is by betting, as
        in `scope_torch.bounds.population`, and holds for any number of queries.
        """
        import numpy as np

        from scope_torch.bounds.population import difference_interval  # slow to import

        pairs = zip(self.choice, self.reference, strict=True)
        differences = np.array([mine.quality - theirs.quality for mine, theirs in pairs])
        if self._is_same:
            return Estimate(0.0, 0.0, 0.0, "the choice is the reference")
        basis = "95% confidence on queries like these"
        return Estimate(
            _mean(differences.tolist()), *difference_interval(differences, _DELTA), basis
        )

    def excess(self, problem: SelectionProblem) -> Estimate:
        """Quality of theta_out above the threshold: (1 - epsilon) of theta_0's, or the least one.

        The interval is as that of `difference`; below 0 the choice is not good enough.
        """
        import numpy as np

        from scope_torch.bounds.population import (
            in_random_order,
            lower_difference,
            mean_interval,
            upper_difference,
        )

        basis = "95% confidence on queries like these"
        epsilon = problem.relative_loss
        if epsilon is None:
            low, high = mean_interval([o.quality for o in self.choice], _DELTA)
            return Estimate(
                self.quality - problem.s_0, low - problem.s_0, high - problem.s_0, basis
            )
        pairs = zip(self.choice, self.reference, strict=True)
        above = np.array([mine.quality - (1 - epsilon) * theirs.quality for mine, theirs in pairs])
        above = in_random_order(above)
        lower = lower_difference(above, epsilon, _DELTA / 2)
        upper = upper_difference(above, epsilon, _DELTA / 2)
        return Estimate(_mean(above.tolist()), lower, upper, basis)

    def broken(self, problem: SelectionProblem) -> list[tuple[Constraint, float]]:
        """The other constraints that theta_out breaks, and its average of what counts for each.

        With 95% confidence on queries like these, as `excess`. One that is relative to theta_0 is
        compared in pairs. What lies outside the range of a constraint counts as its nearer end, and
        a failed run without the outcome as the worst.
        """
        from scope_torch.bounds.population import mean_interval  # slow to import

        found: list[tuple[Constraint, float]] = []
        relative = {limit.name: limit for limit in problem.constraints if limit.is_relative}
        for limit in problem.others:
            stated = relative.get(limit.name, limit)
            mine, theirs = _counted(limit, self.choice), _counted(limit, self.reference)
            if mine is None or (stated.is_relative and theirs is None):
                continue  # nobody knows
            bound, ends = limit.value, (limit.value, limit.value)
            if stated.is_relative:
                assert theirs is not None
                bound = stated.value * theirs.clip(limit.low, limit.high)
                ends = stated.value * limit.low, stated.value * limit.high
            left = bound - mine.clip(limit.low, limit.high)
            least, most = ends[0] - limit.high, ends[1] - limit.low
            if limit.kind == ">=":
                left, least, most = -left, -most, -least
            shares = (left - least) / (most - least)
            if mean_interval(shares.tolist(), _DELTA)[1] < -least / (most - least):
                found.append((stated, _mean(mine.tolist())))
        return found

    def is_dearer(self, problem: SelectionProblem) -> bool:
        """Whether theta_out costs more, with 95% confidence on queries like these.

        The costs of a query count up to four times c(theta_0), as in `tomorrow`.
        """
        import numpy as np

        from scope_torch.bounds.population import COST_CAP, in_random_order, lower_ratio

        costs = [
            (mine.cost_usd, own.cost_usd)
            for mine, own in zip(self.choice, self.reference, strict=True)
        ]
        capped = in_random_order(np.array(costs) / (COST_CAP * problem.reference_cost_usd)).clip(
            max=1
        )
        mine, theirs = capped.T
        return lower_ratio(mine, theirs, _DELTA) > 1

    def _repr_html_(self) -> str:
        """For notebooks."""
        found = self.difference
        ends = f"{plain(found.lower or 0.0, side='down')} to {plain(found.upper or 0.0, side='up')}"
        rows = [
            ("choice", quality(self.quality), per_thousand(self.choice_usd)),
            ("reference", quality(self.reference_quality), per_thousand(self.reference_usd)),
            ("difference", f"{plain(found.value or 0.0)} ({ends}, {found.basis})", ""),
        ]
        head = f"{self.num_queries} held-out queries", "quality", "USD per 1,000 queries"
        return html_table(rows, head)

    def to_json(self) -> dict[str, Any]:
        """As in `result.json`."""
        difference = self.difference
        return {
            "num_queries": self.num_queries,
            "quality": self.quality,
            "reference_quality": self.reference_quality,
            "quality_difference": difference.value,
            "quality_difference_interval": [difference.lower, difference.upper],
            "cost_usd_per_query": self.choice_usd,
            "reference_cost_usd_per_query": self.reference_usd,
            "cost_usd": self.cost_usd,
        }


def _counted(limit: Constraint, runs: Sequence[Observation]) -> np.ndarray | None:
    """What counts of each run for a constraint (float64); None if nobody knows."""
    import numpy as np

    outcomes = [one.outcome(limit.outcome) for one in runs]
    if any(one.failed is None and y is None for one, y in zip(runs, outcomes, strict=True)):
        return None
    counted = limit.counted_all(np.array(outcomes, dtype=np.float64))
    return np.nan_to_num(counted, nan=limit.outcome_of(0.0))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
