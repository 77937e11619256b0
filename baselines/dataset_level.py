"""What the dataset-level methods share: they observe a configuration on all queries at a time."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.optimizer import Basis, Recommendation, SequentialOptimizer, TraceRow
from scope_torch.space import check_seed, tie_rank


@dataclass(frozen=True)
class Evaluation:
    """A configuration observed once on every query.

    Args:
        theta: Codes of the configuration.
        cost_usd: Average observed cost of a query in USD.
        g: s_0 minus the average observed quality; at most 0 is feasible.
        qualities: `num_queries` observed qualities, by query index.
    """

    theta: tuple[int, ...]
    cost_usd: float
    g: float
    qualities: tuple[float, ...]


EvaluationSteps = Generator[Sequence[Request], Sequence[Observation], Evaluation | None]


class DatasetLevelOptimizer(SequentialOptimizer):
    """Observes whole configurations; recommends the best that was observed to be feasible.

    theta_out is, among theta_0 and all completed evaluations (repeats averaged), the one with
    average g <= 0 of least average cost; of equal ones the earliest.

    Args:
        problem: What to search.
        seed: Decides the query order and all ties.
        name: Name in results.

    Raises:
        InputError: If the seed does not fit into 64 bits.
    """

    def __init__(self, problem: SelectionProblem, *, seed: int, name: str) -> None:
        check_seed(seed)
        self.name, self.problem, self.seed = name, problem, seed
        self._generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(problem.num_queries, generator=self._generator)
        self._query_order: list[int] = order.tolist()
        self.evaluations: list[Evaluation] = []
        self._theta_out: tuple[int, ...] = problem.theta_ref
        self._basis: Basis = "reference"
        super().__init__()

    @property
    def reference(self) -> Evaluation:
        """theta_0 with its known averages; it is never charged."""
        problem = self.problem
        g = -problem.epsilon * problem.reference_quality
        return Evaluation(problem.theta_ref, problem.reference_cost_usd, g, ())

    def _evaluate(self, theta: tuple[int, ...]) -> EvaluationSteps:
        """Observes `theta` on every query; None if the budget ended before the last of them."""
        self._trace("selected", theta, 0)
        observations = yield [Request(theta, query) for query in self._query_order]
        for observation in observations:
            self._record(observation)
        if len(observations) < self.problem.num_queries:
            return None
        qualities = {o.query: o.quality for o in observations}
        num_queries = self.problem.num_queries
        evaluation = Evaluation(
            theta,
            math.fsum(o.cost_usd for o in observations) / num_queries,
            self.problem.s_0 - math.fsum(qualities.values()) / num_queries,
            tuple(qualities[q] for q in range(num_queries)),
        )
        self.evaluations.append(evaluation)
        self._completed(evaluation)
        return evaluation

    def _completed(self, evaluation: Evaluation) -> None:
        """Updates theta_out after an evaluation."""
        best = self.best_observed_feasible()
        improved = best.theta != self._theta_out
        self._theta_out = best.theta
        self._basis = "reference" if best.theta == self.problem.theta_ref else "observed"
        event = "improved" if improved else "completed"
        self._trace(event, evaluation.theta, self.problem.num_queries)

    def best_observed_feasible(self) -> Evaluation:
        """theta_out and its observed averages; theta_0 while nothing better was observed."""
        merged = [self.reference, *self.merged_evaluations()]
        feasible = [e for e in merged if e.g <= 0]
        return min(feasible, key=lambda e: e.cost_usd)  # the earliest of equal ones

    def merged_evaluations(self) -> list[Evaluation]:
        """Completed evaluations in the order first made, repeats averaged."""
        repeats: dict[tuple[int, ...], list[Evaluation]] = {}
        for evaluation in self.evaluations:
            repeats.setdefault(evaluation.theta, []).append(evaluation)
        return [_average(group) for group in repeats.values()]

    def tie_order(self) -> Tensor:
        """pi: all flat indices in the seeded order in which ties are broken (int64)."""
        keys = tie_rank(torch.arange(self.problem.space.size), self.seed)
        return keys.argsort()

    def _trace(
        self,
        event: str,
        theta_cand: tuple[int, ...] | None = None,
        num_queries: int | None = None,
    ) -> None:
        self.trace.append(
            TraceRow(
                self.t,
                self.from_budget_usd,
                self.spend_usd,
                event,
                self._theta_out,
                iteration=len(self.evaluations),
                theta_cand=theta_cand,
                num_queries=num_queries,
            )
        )

    def _stop(self, reason: str) -> None:
        self.stop_reason = reason
        self._trace("stopped")

    def recommend(self) -> Recommendation:
        """See `Optimizer`."""
        return Recommendation(self._theta_out, self._basis)

    def settings(self) -> dict[str, Any]:
        """See `Optimizer`."""
        return {"name": self.name, "seed": self.seed}

    def report(self) -> dict[str, Any]:
        """See `Optimizer`."""
        return {"evaluations": len(self.evaluations)}


def _average(group: Sequence[Evaluation]) -> Evaluation:
    if len(group) == 1:
        return group[0]
    n = len(group)
    return Evaluation(
        group[0].theta,
        math.fsum(e.cost_usd for e in group) / n,
        math.fsum(e.g for e in group) / n,
        tuple(math.fsum(values) / n for values in zip(*(e.qualities for e in group), strict=True)),
    )
