"""Counts the work of a GPU in a search, on a device that is not there.

From one selection of a candidate to the next is a step. Most steps are alike; `KINDS` names the
others. It takes some minutes, because all sums are made on the CPU.

    python scripts/count_launches.py
"""

from __future__ import annotations

import importlib
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run without installing
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from scope_torch.constraints import at_most
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.observation import Request
from scope_torch.runs.runner import run
from scope_torch.tasks import Task
from scope_torch.tasks.simulated import simulated_task

MAKE = {"scope": make_scope, "scope_joint": make_scope_joint}
# World, what it is, and for both methods budget in USD and seed: each comes to a theta_out soon.
WORLDS = {
    "data_imputation": ("N = 3, 156 queries", {"scope": (0.6, 1), "scope_joint": (0.15, 1)}),
    "data_transformation": ("N = 5, 102 queries", {"scope": (1.0, 1), "scope_joint": (0.8, 3)}),
}
BASE = "Gemini 2.5 Flash-Lite"
KINDS = ("ordinary", "theta_0 only", "asks what pays", "fits anew", "factors anew", "first")
KINDS += ("moves memory",)
TOLD = ("theta_0 only", "first")  # beside the mean of all
HEADER = """\
| task | method | steps | how many | launches | waits | GB | MB to the CPU | modelled [ms] |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


class Steps(NamedTuple):
    """What the device was asked to do in each step of a search.

    Args:
        work: Launches, waits of the host, bytes, bytes to the CPU, and modelled seconds of each
            step: `steps x 5`.
        kinds: One of `KINDS` for each step.
        improved: Whether it found a better theta_out.
        errors: What CUDA would have refused.
    """

    work: NDArray[np.float64]
    kinds: list[str]
    improved: list[bool]
    errors: list[str]

    def of(self, kind: str) -> NDArray[np.float64]:
        """The work of all steps of a kind."""
        return self.work[[one == kind for one in self.kinds]]


def count_steps(world: str, method: str, task: Task | None = None) -> Steps:
    """Runs a search on the device that is not there.

    Args:
        world: A key of `WORLDS`.
        method: A key of `MAKE`.
        task: Another form of it; None for the simulated task as it is.
    """
    pretended: Any = importlib.import_module("pretend_gpu")
    task = task or simulated_task(name="simulated", world=world)
    budget_usd, seed = WORLDS[world][1][method]
    with pretended.PretendGpu() as log:
        optimizer = MAKE[method](task.problem, base=BASE, seed=seed, device="gpu")
        marks = _mark_updates(optimizer, log)
        run(task.problem, optimizer, task.evaluator, budget_usd)
    work, states = zip(*marks, strict=True)
    pairs = itertools.pairwise(states)
    theta_ref = task.problem.theta_ref
    kinds, improved = zip(*(_kind(*pair, theta_ref) for pair in pairs), strict=True)
    return Steps(np.diff(np.array(work), axis=0), ["first", *kinds[1:]], [*improved], log.errors)


def with_three_constraints(world: str) -> Task:
    """A simulated task of a world, with limits on latency and output beside the quality."""
    task = simulated_task(name="simulated", world=world, outcomes=True)
    problem, limits, averages = task.problem, list[Any](), dict[str, float]()
    asked = [Request(problem.theta_ref, query) for query in range(problem.num_queries)]
    answers = list(task.evaluator.evaluate(asked))
    for name in ("latency_s", "output_tokens"):
        of_answers = np.array([answer.outcome(name) for answer in answers], dtype=float)
        averages[name] = float(of_answers.mean())
        limits.append(at_most(name, 1.5 * averages[name], cap=8 * averages[name]))
    problem = replace(problem, constraints=tuple(limits), reference_outcomes=averages)
    return task._replace(problem=problem)


def rows(world: str, method: str, steps: Steps) -> list[str]:
    """The lines of the table for one search, which the first one names."""
    parts = [(kind, steps.of(kind)) for kind in TOLD]
    summary = [("all, mean", steps.work.mean(0), len(steps.work))]
    summary += [(kind, np.median(part, 0), len(part)) for kind, part in parts if len(part)]
    names = [f"{world}, {WORLDS[world][0]} | `{method}`", *[" | "] * (len(summary) - 1)]
    return [
        f"| {name} | {kind} | {count} | {launches:.0f} | {waits:.0f} "
        f"| {moved / 1e9:.2f} | {to_cpu / 1e6:.1f} | {1e3 * seconds:.2f} |\n"
        for name, (kind, (launches, waits, moved, to_cpu, seconds), count) in zip(
            names, summary, strict=True
        )
    ]


def main() -> None:
    """Prints the table; see the module's documentation."""
    lines = [HEADER]
    for world, method in itertools.product(WORLDS, MAKE):
        print(f"{world}, {method} ...", file=sys.stderr)
        lines += rows(world, method, count_steps(world, method))
    print(f"{''.join(lines)}\nCounted with torch {torch.__version__.split('+')[0]}.")


def _mark_updates(optimizer: Any, log: Any) -> list[tuple[list[float], list[Any]]]:
    """Notes the work so far, and the state of the search, before each update of the posterior."""
    marks: list[tuple[list[float], list[Any]]] = []
    posterior, surrogate = optimizer.belief.posterior, optimizer.belief.surrogate
    update = posterior.update

    def marked() -> None:
        of_queries = getattr(surrogate, "queries", surrogate)
        fitted, anew = getattr(surrogate, "hyperparameters", None), of_queries.times_conditioned
        counts = (log.launches.total(), log.waits.total(), log.bytes.total(), log.bytes_to_cpu)
        moved, asked = log.launches["constant_pad_nd"], log.launches["max"]
        state = [fitted, anew, asked, moved, optimizer.recommend().theta]
        marks.append(([*counts, log.seconds()], state))
        update()

    posterior.update = marked
    return marks


def _kind(before: list[Any], after: list[Any], theta_ref: Any) -> tuple[str, bool]:
    """The kind of a step, and whether it found a better theta_out."""
    *changed, improved = [one != other for one, other in zip(before, after, strict=True)]
    names = ("fits anew", "factors anew", "asks what pays", "moves memory")
    usual = "theta_0 only" if after[-1] == theta_ref else "ordinary"
    kind = next((name for name, did in zip(names, changed, strict=True) if did), usual)
    return kind, improved


if __name__ == "__main__":
    main()
