"""How often the returned configuration is infeasible, against what its method promises.

Every search has its own `synthetic` world: a small random system whose answers are 0 or 1. Each
answer is flipped with some probability before the optimizer sees it. The true quality is the
expected one, flips included, and s_0 is relative to the expected quality of theta_0. `theory`
receives the true norms and the smallest R valid for the flips, `sequence` their probability.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.results.planned import Planned, numbers_text
from scope_torch.evaluators.table import TableEvaluator
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.observation import Observation, Request
from scope_torch.runs.runner import run
from scope_torch.tasks import Task
from scope_torch.tasks.synthetic import synthetic_task

DELTA = 0.1
BASE = "small"
RHO = 0.5
EPSILON, QUERIES = 0.1, 24
FLIPS = (0.0, 0.02, 0.1)  # chance that an answer is the other one
_THEORY = {"mode": "theory", "delta": DELTA}
_SEQUENCE = {"certificate": "sequence", "bounds": {"delta": DELTA}}
CERTIFICATES: dict[str, tuple[Any, dict[str, Any]]] = {
    "scope, tuned": (make_scope, {}),
    "scope, theory (realised gain)": (make_scope, {"bounds": {**_THEORY, "gain": "realised"}}),
    "scope, sequence": (make_scope, {**_SEQUENCE, "told": True}),
    "scope_joint, credible": (make_scope_joint, {"certificate": "bounds"}),
    "scope_joint, theory (rho = 0.5)": (
        make_scope_joint,
        {"bounds": _THEORY, "rho": RHO},
    ),
    "scope_joint, sequence": (make_scope_joint, {**_SEQUENCE, "told": True}),
    "scope_joint, sequence, flips not declared": (make_scope_joint, _SEQUENCE),
}


@dataclass(frozen=True)
class CoverageCell(Planned):
    """Some searches with one certificate, each in a world of its own.

    The seed is that of the first world; the next search has the next one.

    Args:
        flips: Chance that an answer is the other one.
        searches: How many.
    """

    flips: float
    searches: int = 100

    def measured(self) -> dict[str, Any]:
        """Counts, and c(theta_out) / c(theta_star) - 1 of the searches that end feasible."""
        seeds = range(self.seed, self.seed + self.searches)
        found = [one_run(seed, self.method, self.flips) for seed in seeds]
        return {
            "flips": self.flips,
            "searches": self.searches,
            "infeasible": sum(o.infeasible for o in found),
            "ever_infeasible": sum(o.ever_infeasible for o in found),
            "left_theta_0": sum(o.basis != "reference" for o in found),
            "excess_cost": numbers_text(o.excess_cost for o in found if not o.infeasible),
        }


def cells(seeds: Iterable[int]) -> list[CoverageCell]:
    """All certificates at all `FLIPS`, each with a block of searches from every seed on."""
    return [
        CoverageCell(f"synthetic, flips {flips:g}", name, seed, None, flips)
        for seed, name, flips in product(seeds, CERTIFICATES, FLIPS)
    ]


class Outcome(NamedTuple):
    """The result of one run: whether theta_out is, or ever was, infeasible, and its excess cost."""

    basis: str
    infeasible: bool
    ever_infeasible: bool
    excess_cost: float  # c(theta_out) / c(theta_star) - 1


class Flipped:
    """A task's evaluator that flips its 0/1 answers with probability `flips`."""

    concurrency = 1

    def __init__(self, task: Task, flips: float, seed: int) -> None:
        self._task, self._flips = task, flips
        self._rng = np.random.default_rng([seed, 1])

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        """Observations of the task, some with the other answer."""
        for observation in self._task.evaluator.evaluate(requests):
            flip = self._rng.random() < self._flips
            yield replace(observation, quality=1 - observation.quality) if flip else observation

    def fingerprint(self) -> str:
        """The task's, with the probability of a flip."""
        return f"{self._task.evaluator.fingerprint()} flipped {self._flips}"


def one_run(seed: int, certificate: str, flips: float) -> Outcome:
    """Runs one search in the world `seed`."""
    task = synthetic_task(num_queries=QUERIES, world_seed=seed, epsilon=EPSILON)
    assert isinstance(task.evaluator, TableEvaluator)
    table = task.evaluator.table
    cost, quality = (truth.flatten() for truth in task.evaluator.truth())
    quality = flips + (1 - 2 * flips) * quality
    at = task.problem.space.index_of(task.problem.theta_ref)
    s_of_reference = float(quality[at])
    problem = replace(task.problem, reference_quality=s_of_reference, reference_answers=None)
    make, settings = CERTIFICATES[certificate]
    settings: dict[str, Any] = {**settings, "bounds": {**settings.get("bounds", {})}}
    if settings["bounds"].get("mode") == "theory":
        rho: float | None = settings.get("rho")
        answers = flips + (1 - 2 * flips) * torch.from_numpy(table.quality)
        settings["bounds"] |= {
            "R_g": max(flip_constant(flips), 1e-3),
            "B_c": norm(torch.from_numpy(table.cost_usd) / problem.reference_cost_usd, rho),
            "B_g": norm(problem.s_0 - answers, rho),
        }
    if settings.pop("told", False):
        settings["certificate_flips"] = flips
    optimizer = make(problem, base=BASE, seed=seed, device="cpu", **settings)
    evaluator = Flipped(task, flips, seed)
    budget_usd = 0.6 * QUERIES * problem.reference_cost_usd
    result = run(problem, optimizer, evaluator, budget_usd=budget_usd)
    feasible = quality >= problem.s_0 - 1e-12
    rank = [problem.space.index_of(row.theta_out) for row in result.trace]
    out = problem.space.index_of(result.recommendation.theta)
    return Outcome(
        result.recommendation.basis,
        not bool(feasible[out]),
        not bool(feasible[rank].all()),
        float(cost[out] / cost[feasible].min()) - 1,
    )


def flip_constant(p: float) -> float:
    """The smallest sub-Gaussian constant R of a 0/1 answer that flips with probability p.

    Kearns and Saul: sqrt((1 - 2 p) / (2 log((1 - p) / p))); 1/2 at p = 1/2, 0 at p = 0.
    """
    p = min(p, 1 - p)
    if p <= 0:
        return 0.0
    return 0.5 if p > 0.4999 else math.sqrt((1 - 2 * p) / (2 * math.log((1 - p) / p)))


def norm(values: Tensor, rho: float | None) -> float:
    """RKHS norm of l(theta, q): the largest over queries or, with rho, in the joint kernel.

    Args:
        values: `M x ... x M x Q`.
        rho: Correlation of queries in the joint kernel. Its squared norm is the sum over q, q' of
            (P^-1)_qq' <l_q, l_q'>, where P = rho 1 1^T + (1 - rho) I.
    """
    functions = values.flatten(0, -2).double()
    codes = torch.cartesian_prod(*(torch.arange(n) for n in values.shape[:-1])).double()
    gram = HammingMatern52Kernel()(codes, codes).to_dense()
    inner = functions.T @ torch.linalg.solve(gram, functions)
    if rho is None:
        return math.sqrt(float(inner.diagonal().max()))
    mixture = rho + (1 - rho) * torch.eye(len(inner), dtype=torch.float64)
    return math.sqrt(float((torch.linalg.inv(mixture) * inner).sum()))
