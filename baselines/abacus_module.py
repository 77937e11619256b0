"""Abacus in one module: estimates of its LLMs, and the LLMs still under measurement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class LLMEstimate(NamedTuple):
    """Estimated cost and quality of an LLM in a module.

    Args:
        cost_usd: Estimated contribution to the cost of a query, in USD.
        quality: Estimated factor of the quality, relative to the reference LLM of the module.
        n: Number of pairs of runs behind it; 0 for the reference LLM, whose factor is 1.
    """

    cost_usd: float
    quality: float
    n: int


@dataclass
class PairTotals:
    """Sums over the queries on which an LLM ran against one base LLM of the module.

    Args:
        n: Number of queries.
        quality: Summed quality of the runs with the LLM.
        base_quality: Summed quality of the runs with the base LLM.
        cost_usd: Summed cost of the runs with the LLM, in USD.
        base_cost_usd: Summed cost of the runs with the base LLM, in USD.
    """

    n: int = 0
    quality: float = 0.0
    base_quality: float = 0.0
    cost_usd: float = 0.0
    base_cost_usd: float = 0.0


class ModuleFrontier:
    """The LLMs of a module: at most k under measurement, the others set aside or still to enter.

    Args:
        reference: Code of the module's LLM in theta_0.
        reference_cost_usd: Its assumed contribution to the cost of a query, until metered (USD).
        order: Codes of the other LLMs in the seeded order in which they enter.
        k: Largest number of LLMs under measurement.
        num_queries: Q.
        remeasure_base: Whether to measure the base further, against the reference LLM.
    """

    def __init__(
        self,
        reference: int,
        reference_cost_usd: float,
        order: Sequence[int],
        k: int,
        num_queries: int,
        *,
        remeasure_base: bool,
    ) -> None:
        self.reference = reference
        self.base = reference
        self.order = list(order)
        self.frontier = self.order[:k]
        self.estimates = {reference: LLMEstimate(reference_cost_usd, 1.0, 0)}
        self._k, self._num_queries = k, num_queries
        self._remeasure_base = remeasure_base
        self._reference_cost_usd = reference_cost_usd
        self._reservoir = self.order[k:]
        self._off_frontier: list[int] = []
        self._pairs: dict[tuple[int, int], PairTotals] = {}  # by (LLM, base LLM)

    def next_pair(self) -> tuple[int, int] | None:
        """The frontier's least measured LLM, and the LLM to measure it against; None if empty.

        Others are measured against the base, the base against the reference LLM; without
        `remeasure_base` the base is not measured.
        """
        llms = [m for m in self.frontier if self._remeasure_base or m != self.base]
        if not llms:
            return None
        llm = min(llms, key=lambda m: (self.num_seen(m), self.order.index(m)))
        return llm, self.reference if llm == self.base else self.base

    def drop(self, llm: int) -> None:
        """Takes an LLM out that cannot be measured; the next one enters in its place."""
        self.frontier = [m for m in self.frontier if m != llm] + self._reservoir[:1]
        self._reservoir = self._reservoir[1:]

    def num_seen(self, llm: int) -> int:
        """Number of queries on which the LLM was measured, against whichever other."""
        return sum(pairs.n for (measured, _), pairs in self._pairs.items() if measured == llm)

    def add(self, llm: int, base: int, pairs: PairTotals) -> None:
        """Adds runs of `llm` against `base`."""
        totals = self._pairs.setdefault((llm, base), PairTotals())
        totals.n += pairs.n
        totals.quality += pairs.quality
        totals.base_quality += pairs.base_quality
        totals.cost_usd += pairs.cost_usd
        totals.base_cost_usd += pairs.base_cost_usd

    def estimate(self, metered_usd: Mapping[int, float]) -> None:
        """Recomputes the estimates.

        Both are means over the bases b of m, weighted by the number of pairs n: q(m) of
        q(b) (S' + 1/2)/(S + 1/2), S' and S the summed qualities of m and b; c(m), unless metered,
        of c(b) + (C' - C)/n, C' and C the summed costs. The pairs are taken in the order in which
        they were first measured. So q(b) and c(b) come from earlier pairs, and there are no cycles.

        Args:
            metered_usd: Average metered cost of the module by LLM in USD; empty without meters.
        """
        reference_cost_usd = metered_usd.get(self.reference, self._reference_cost_usd)
        estimates = {self.reference: LLMEstimate(reference_cost_usd, 1.0, 0)}
        for (llm, base), pairs in self._pairs.items():
            of_base, so_far = estimates[base], estimates.get(llm, LLMEstimate(0.0, 0.0, 0))
            n = so_far.n + pairs.n
            ratio = (pairs.quality + 0.5) / (pairs.base_quality + 0.5)
            quality = so_far.n * so_far.quality + pairs.n * of_base.quality * ratio
            cost = so_far.n * so_far.cost_usd + pairs.n * of_base.cost_usd
            cost += pairs.cost_usd - pairs.base_cost_usd
            estimates[llm] = LLMEstimate(cost / n, quality / n, n)
        self.estimates = {
            llm: estimate._replace(cost_usd=metered_usd.get(llm, estimate.cost_usd))
            for llm, estimate in estimates.items()
        }

    def update_base(self) -> None:
        """Makes the LLM of highest estimated quality the base.

        Of equal ones the present base, then the first in the seeded order.
        """
        candidates = [self.base, *(m for m in [self.reference, *self.order] if m in self.estimates)]
        self.base = max(candidates, key=lambda llm: self.estimates[llm].quality)

    def update_frontier(self) -> list[int]:
        """Removes LLMs that are confidently dominated, or measured on every query.

        Their places go to LLMs set aside that are no longer dominated, then to new ones.

        Returns:
            The LLMs that are set aside because they are dominated.
        """
        kept = keepers(self.estimates)
        kept |= {llm for llm in self.frontier if llm not in self.estimates}
        open_ = [m for m in self.frontier if self.num_seen(m) < self._num_queries]
        left = [llm for llm in open_ if llm not in kept]
        returning = [llm for llm in self._off_frontier if llm in kept]
        stay = [llm for llm in open_ if llm in kept]
        self.frontier = [*stay, *returning, *self._reservoir][: self._k]
        entered = set(self.frontier)
        self._off_frontier = [m for m in [*self._off_frontier, *left] if m not in entered]
        self._reservoir = [llm for llm in self._reservoir if llm not in entered]
        return left


def keepers(estimates: Mapping[int, LLMEstimate]) -> set[int]:
    """LLMs that may still belong to the Pareto set of low cost and high quality.

    Half-widths are alpha sqrt(ln(n_total) / n), where alpha is half the range of the means and
    n_total the number of pairs in the module; the reference LLM (n = 0) has none. An LLM is dropped
    if an LLM of the Pareto set of the means has a pessimistic corner that is better in both cost
    and quality than its optimistic corner. So the Pareto set itself is always kept.

    Args:
        estimates: By LLM.
    """
    n_total = sum(e.n for e in estimates.values())
    costs = [e.cost_usd for e in estimates.values()]
    qualities = [e.quality for e in estimates.values()]
    alpha_c, alpha_q = (max(costs) - min(costs)) / 2, (max(qualities) - min(qualities)) / 2

    def corner(e: LLMEstimate, sign: int) -> tuple[float, float]:
        width = math.sqrt(math.log(n_total) / e.n) if e.n else 0.0
        return e.cost_usd - sign * alpha_c * width, e.quality + sign * alpha_q * width

    means = [corner(e, 0) for e in estimates.values()]
    pareto = [e for e in estimates.values() if not _dominated(corner(e, 0), means)]
    pessimistic = [corner(e, -1) for e in pareto]
    return {m for m, e in estimates.items() if not _dominated(corner(e, +1), pessimistic)}


def _dominated(point: tuple[float, float], others: Iterable[tuple[float, float]]) -> bool:
    """Whether one of the others is strictly cheaper and strictly better."""
    cost, quality = point
    return any(c < cost and q > quality for c, q in others)
