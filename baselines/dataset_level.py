"""The base of dataset-level methods, which observe a configuration on all queries at a time."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.results.metrics import ROUNDING
from scope_torch.search.optimizer import Basis, Recommendation, SequentialOptimizer
from scope_torch.space import check_seed, tie_rank


@dataclass(frozen=True)
class Evaluation:
    """A configuration observed once on every query.

    Args:
        theta: Codes of the configuration.
        cost_usd: Average observed cost of a query in USD.
        g: s_0 minus the average observed quality; at most 0 is feasible.
        qualities: `num_queries` observed qualities, by query index; NaN where it has none.
        others: As `g`, of the further constraints: threshold minus average grade.
    """

    theta: tuple[int, ...]
    cost_usd: float
    g: float
    qualities: tuple[float, ...]
    others: tuple[float, ...] = ()

    @property
    def violations(self) -> tuple[float, ...]:
        """G of all constraints."""
        return (self.g, *self.others)

    @property
    def is_feasible(self) -> bool:
        """Whether all constraints hold on average."""
        return max(self.violations) <= 0


EvaluationSteps = Generator[Sequence[Request], Sequence[Observation], Evaluation | None]


class DatasetLevelOptimizer(SequentialOptimizer):
    """Observes whole configurations; recommends the cheapest that was observed to be feasible.

    theta_out has the least average cost among theta_0 and the evaluations with average g <= 0.
    Repeats of a configuration are averaged; of equal costs the earliest counts.

    A subclass writes `_search`: it calls `yield from self._evaluate(theta)`, which gives None when
    the budget has ended, and `self._stop(reason)` before it returns on its own account.

    Args:
        problem: What to search.
        seed: Decides the query order and all ties.
        name: Name in results.

    Raises:
        InputError: If the seed does not fit into 64 bits.

    Examples:
        >>> class InOrder(DatasetLevelOptimizer):
        ...     def _search(self):
        ...         for index in range(self.problem.space.size):
        ...             if (yield from self._evaluate(self.problem.space.theta_at(index))) is None:
        ...                 return
        ...         self._stop("every configuration was evaluated")
    """

    def __init__(self, problem: SelectionProblem, *, seed: int, name: str) -> None:
        problem.check_objective_is_cost(name)
        self.name, self.problem, self.seed = name, problem, check_seed(seed)
        self._generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(problem.num_queries, generator=self._generator)
        self._query_order: list[int] = order.tolist()
        self.evaluations: list[Evaluation] = []
        self._theta_out: tuple[int, ...] = problem.theta_ref
        self._basis: Basis = "reference"
        super().__init__()

    @property
    def reference(self) -> Evaluation:
        """theta_0 with its known averages, as if it had been evaluated at no charge."""
        problem = self.problem
        g = problem.s_0 - problem.reference_quality
        if problem.epsilon is not None:
            g = -problem.epsilon * problem.reference_quality
        others = problem.reference_violations()
        return Evaluation(problem.theta_ref, problem.reference_cost_usd, g, (), others)

    def _evaluate(self, theta: tuple[int, ...]) -> EvaluationSteps:
        """Observes `theta` on all of its queries; returns None if the budget ends before."""
        self._trace("selected", theta_cand=theta, num_queries=0)
        offered = set(self.problem.queries_of(theta))
        order = [query for query in self._query_order if query in offered]
        observations = yield [Request(theta, query) for query in order]
        for observation in observations:
            self._record(observation)
        if len(observations) < len(order):
            return None
        qualities = {o.query: o.quality for o in observations}
        num_queries = len(order)
        evaluation = Evaluation(
            theta,
            math.fsum(o.cost_usd for o in observations) / num_queries,
            _exactly(self.problem.constraint(math.fsum(qualities.values()) / num_queries)),
            tuple(qualities.get(q, math.nan) for q in range(self.problem.num_queries)),
            self._others(observations),
        )
        self.evaluations.append(evaluation)
        self._completed(evaluation)
        return evaluation

    def _others(self, observations: Sequence[Observation]) -> tuple[float, ...]:
        """G of the further constraints, on average."""
        grades = [self.problem.grades(observation) for observation in observations]
        averages = [math.fsum(of_one) / len(grades) for of_one in zip(*grades, strict=True)]
        return tuple(map(_exactly, self.problem.violations(averages)[1:]))

    def _completed(self, evaluation: Evaluation) -> None:
        """Updates theta_out after an evaluation; a subclass may do it by another rule."""
        self._conclude(self.best_observed_feasible().theta, "observed", evaluation)

    def _conclude(self, theta_out: tuple[int, ...], basis: Basis, evaluation: Evaluation) -> None:
        """Sets theta_out, and adds the evaluation to the trace."""
        event = "completed" if theta_out == self._theta_out else "improved"
        self._set_theta_out(theta_out, basis)
        self._trace(event, theta_cand=evaluation.theta, num_queries=self.problem.num_queries)

    def _set_theta_out(self, theta_out: tuple[int, ...], basis: Basis) -> None:
        self._theta_out = theta_out
        self._basis = "reference" if theta_out == self.problem.theta_ref else basis

    def best_observed_feasible(self) -> Evaluation:
        """The cheapest feasible evaluation, or theta_0 if that is cheaper."""
        merged = [self.reference, *self.merged_evaluations()]
        feasible = [e for e in merged if e.is_feasible]
        # Of equal costs the earliest. theta_0 may violate a constraint other than that on quality.
        return min(feasible, key=lambda e: e.cost_usd, default=self.reference)

    def merged_evaluations(self) -> list[Evaluation]:
        """Completed evaluations by first occurrence, repeats of a configuration averaged."""
        repeats: dict[tuple[int, ...], list[Evaluation]] = {}
        for evaluation in self.evaluations:
            repeats.setdefault(evaluation.theta, []).append(evaluation)
        return [_average(group) for group in repeats.values()]

    def tie_order(self) -> Tensor:
        """pi, the seeded order in which ties are broken: flat indices of what may be chosen."""
        index = None if self.problem.rule is None else self.problem.rule.index
        index = torch.arange(self.problem.space.size) if index is None else index
        return index[tie_rank(index, self.seed).argsort()]

    def allowed_near(self, theta: tuple[int, ...]) -> tuple[int, ...]:
        """`theta` itself if it may be chosen, else the nearest that may.

        One that was not evaluated yet, as long as there is one.
        """
        rule = self.problem.rule
        if rule is None or rule(theta):
            return theta
        evaluated = {evaluation.theta for evaluation in self.evaluations}
        near = rule.nearest(theta, lambda one: one not in evaluated) or rule.nearest(theta)
        return self.problem.theta_ref if near is None else near

    def _trace(self, event: str, **values: Any) -> None:
        super()._trace(event, iteration=len(self.evaluations), **values)

    def recommend(self) -> Recommendation:
        """theta_out and its basis."""
        return Recommendation(self._theta_out, self._basis)

    def settings(self) -> dict[str, Any]:
        """Name and seed; a subclass adds the settings that decide its requests."""
        return {"name": self.name, "seed": self.seed}

    def report(self) -> dict[str, Any]:
        """The number of completed evaluations; a subclass may add more."""
        return {"evaluations": len(self.evaluations)}


def _average(group: Sequence[Evaluation]) -> Evaluation:
    """The average of evaluations of the same configuration."""
    if len(group) == 1:
        return group[0]
    n = len(group)
    return Evaluation(
        group[0].theta,
        math.fsum(e.cost_usd for e in group) / n,
        _exactly(math.fsum(e.g for e in group) / n),
        tuple(math.fsum(values) / n for values in zip(*(e.qualities for e in group), strict=True)),
        tuple(_exactly(math.fsum(ys) / n) for ys in zip(*(e.others for e in group), strict=True)),
    )


def _exactly(g: float) -> float:
    """G of an average; 0 where only rounding keeps it from the threshold, which is then met."""
    return 0.0 if abs(g) <= ROUNDING else g
