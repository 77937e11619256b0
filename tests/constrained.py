"""Random tasks with three constraints: quality, latency (capped) and safety."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from tables import make_task

from scope_torch.constraints import Constraint, at_least, at_most
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem

CAP = 4.0


class OutcomeEvaluator:
    """Answers a table's cost and quality, and a latency in seconds and a safety beside them.

    Args:
        problem: Which configurations and queries there are.
        cost, quality, latency, safety: `M_1 x ... x M_N x Q` each.
    """

    concurrency = 1
    free = True

    def __init__(self, problem: SelectionProblem, cost, quality, latency, safety) -> None:
        self.problem = problem
        self.cost, self.quality, self.latency, self.safety = cost, quality, latency, safety

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        for theta, query, replicate in requests:
            cell = (*theta, query)
            yield Observation(
                theta, query, float(self.cost[cell]), float(self.quality[cell]), replicate,
                latency_s=float(self.latency[cell]), outcomes={"safety": float(self.safety[cell])},
            )  # fmt: skip

    def truth(self):
        return tuple(torch.from_numpy(a.mean(-1).ravel()) for a in (self.cost, self.quality))

    def true_outcomes(self, limits: Sequence[Constraint]):
        values = {"latency_s": self.latency, "safety": self.safety, "cost_usd": self.cost}
        counted = [limit.counted_all(values[limit.outcome]) for limit in limits]
        return [torch.from_numpy(outcome.mean(-1).ravel()) for outcome in counted]

    def average_outcome(self, theta, limit: Constraint) -> float:
        (averages,) = self.true_outcomes([limit])
        return float(averages[self.problem.space.index_of(theta)])

    def fingerprint(self) -> str:
        return "constrained"


def constrained_task(seed: int, sizes=(3, 4), num_queries=12, most_latency=1.0, least_safety=0.7):
    """(problem, evaluator): a random table with latencies and safeties, smooth over Theta."""
    base = make_task(seed, sizes, num_queries)
    rng = np.random.default_rng([seed, 9])
    shape = base.table.quality.shape
    speed = [rng.lognormal(-1.2, 0.6, size=size) for size in sizes]
    total = np.zeros(sizes)
    for module, seconds in enumerate(speed):
        total = total + seconds.reshape([-1 if i == module else 1 for i in range(len(sizes))])
    latency = total[..., None] * rng.lognormal(0, 0.4, size=shape)
    care = rng.uniform(0.6, 1.0, size=(*sizes, 1))
    safety = (rng.uniform(size=shape) < care).astype(float)
    ref = base.problem.theta_ref
    safety[ref] = 1.0
    known = {
        "latency_s": float(np.minimum(latency[ref], CAP).mean()),
        "safety": float(safety[ref].mean()),
    }
    limits = (at_most("latency_s", most_latency, cap=CAP), at_least("safety", least_safety))
    problem = replace(base.problem, constraints=limits, reference_outcomes=known)
    table = base.table
    evaluator = OutcomeEvaluator(problem, table.cost_usd, table.quality, latency, safety)
    return problem, evaluator


def feasible(problem: SelectionProblem, evaluator: OutcomeEvaluator) -> np.ndarray:
    """Whether each configuration satisfies all constraints, from the tables: `|Theta|`."""
    quality = evaluator.quality.mean(-1) >= problem.s_0
    latency = np.minimum(evaluator.latency, CAP).mean(-1) <= problem.limits[1].value
    if problem.limits[1].per_run is not None:
        share = (evaluator.latency <= problem.limits[1].per_run[1]).mean(-1)
        latency = share >= problem.limits[1].value
    safety = evaluator.safety.mean(-1) >= problem.limits[2].value
    return (quality & latency & safety).ravel()
