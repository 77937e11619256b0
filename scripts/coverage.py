"""Measures how often the returned configuration is infeasible, against what its method promises.

Every run has its own `synthetic` world: a small random system whose answers are 0 or 1. Each answer
is flipped with probability `flips` before the optimizer sees it. The true quality is the expected
one, flips included, and s_0 is relative to the expected quality of theta_0. `theory` receives the
true norms and the smallest R valid for the flips, `sequence` their probability.

    python scripts/coverage.py --runs 1000 --flips 0 0.02 0.1 --jobs 2 --out coverage.csv
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

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
_THEORY = {"mode": "theory", "delta": DELTA}
_SEQUENCE = {"certificate": "sequence", "bounds": {"delta": DELTA}}
CERTIFICATES: dict[str, tuple[Any, dict[str, Any]]] = {
    "scope, tuned": (make_scope, {}),
    "scope, theory": (make_scope, {"bounds": {**_THEORY, "gain": "realised"}}),
    "scope, sequence": (make_scope, {**_SEQUENCE, "told": True}),
    "scope_joint, credible": (make_scope_joint, {"certificate": "bounds"}),
    "scope_joint, theory": (make_scope_joint, {"bounds": _THEORY, "rho": RHO}),
    "scope_joint, sequence": (make_scope_joint, {**_SEQUENCE, "told": True}),
    "scope_joint, sequence, flips = 0": (make_scope_joint, _SEQUENCE),
}


class Outcome(NamedTuple):
    """The result of one run: whether theta_out is, or ever was, infeasible, and its excess cost."""

    basis: str
    infeasible: bool
    ever_infeasible: bool
    excess_cost: float  # c(theta_out) / c(theta_star) - 1
    num_observations: int


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


def one_run(seed: int, certificate: str, flips: float, num_queries: int) -> Outcome:
    """Runs one search in the world `seed`."""
    torch.set_num_threads(1)
    task = synthetic_task(num_queries=num_queries, world_seed=seed, epsilon=0.1)
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
    budget_usd = 0.6 * num_queries * problem.reference_cost_usd
    result = run(problem, optimizer, evaluator, budget_usd=budget_usd)
    feasible = quality >= problem.s_0 - 1e-12
    rank = [problem.space.index_of(row.theta_out) for row in result.trace]
    out = problem.space.index_of(result.recommendation.theta)
    return Outcome(
        result.recommendation.basis,
        not bool(feasible[out]),
        not bool(feasible[rank].all()),
        float(cost[out] / cost[feasible].min()) - 1,
        len(result.history),
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


def _table(rows: list[dict[str, Any]]) -> str:
    names = list(rows[0])
    lines = [" | ".join(names), " | ".join("---" for _ in names)]
    lines += [" | ".join(str(row[name]) for name in names) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _summary(certificate: str, flips: float, outcomes: list[Outcome]) -> dict[str, Any]:
    runs = len(outcomes)
    certified = [o for o in outcomes if o.basis == "certified"]
    excess = [o.excess_cost for o in outcomes if not o.infeasible]
    return {
        "certificate": certificate,
        "flips": flips,
        "runs": runs,
        "infeasible": f"{sum(o.infeasible for o in outcomes) / runs:.3f}",
        "ever": f"{sum(o.ever_infeasible for o in outcomes) / runs:.3f}",
        "certified": f"{len(certified) / runs:.3f}",
        "median excess cost": f"{np.median(excess):.2f}" if excess else "",
        "median observations": f"{np.median([o.num_observations for o in outcomes]):.0f}",
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--flips", type=float, nargs="+", default=[0.0, 0.02, 0.1])
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", choices=CERTIFICATES, nargs="+", default=list(CERTIFICATES))
    parser.add_argument("--out", help="a CSV file for the table")
    options = parser.parse_args()
    rows = []
    with get_context("spawn").Pool(options.jobs) as pool:
        for certificate in options.only:
            for flips in options.flips:
                one = partial(
                    one_run, certificate=certificate, flips=flips, num_queries=options.queries
                )
                outcomes = pool.map(one, range(options.runs), chunksize=5)
                rows.append(_summary(certificate, flips, outcomes))
                print(rows[-1], file=sys.stderr, flush=True)
    print(_table(rows))
    if options.out:
        with open(options.out, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
