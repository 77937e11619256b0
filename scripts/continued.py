"""A search that knows what an older one observed, before one LLM was added, against a fresh one.

    python scripts/continued.py task=hotpotqa --seeds 0-2 --to benchmarks/continued.csv

For each LLM that neither theta_0 nor theta_base uses: a search without it, in any module, to its
end; then one with all LLMs that continues from it, and one with all LLMs that knows nothing. Spend
counts the second search alone.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run without installing

from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.methods import make_scope_joint
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.runs.evaluator import Evaluator, HasTruth
from scope_torch.runs.finished import NEAR, first_within
from scope_torch.runs.metrics import optimal_cost
from scope_torch.runs.result import RunResult
from scope_torch.runs.runner import run
from scope_torch.tasks import Task

_ROUNDING = 1e-12
COLUMNS: tuple[str, ...] = (
    "task", "world_seed", "llm", "seed", "search", "calls", "spend_usd", "near_usd", "of_optimum",
    "feasible",
)  # fmt: skip


class Without:
    """An evaluator of a problem that lacks one LLM: the larger one, under other codes.

    Args:
        problem: With all LLMs.
        evaluator: Of that problem.
        llm: The name of the LLM that is left out of every module.
    """

    concurrency, free = 1, True

    def __init__(self, problem: SelectionProblem, evaluator: Evaluator, llm: str) -> None:
        kept = [[name for name in names if name != llm] for names in problem.llms]
        self._evaluator, self._whole = evaluator, problem
        theta_ref: Any = list(problem.names(problem.theta_ref).values())
        llms = tuple(map(tuple, kept))
        self.problem = replace(problem, llms=llms, theta_ref=theta_ref)

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        """Observes the requests in the larger problem."""
        for theta, query, replicate in requests:
            request = Request(self.code(theta), query, replicate)
            (observation,) = self._evaluator.evaluate([request])
            yield replace(observation, theta=theta)

    def code(self, theta: tuple[int, ...]) -> tuple[int, ...]:
        """Codes in the larger problem."""
        return self._whole.codes(list(self.problem.names(theta).values()))

    def fingerprint(self) -> str:
        """See `Evaluator`."""
        return f"without-{self._evaluator.fingerprint()}"


def compare(task: Task, base: str, llm: str, seed: int, budget_usd: float) -> dict[str, RunResult]:
    """The older search, the one that continues it, and a fresh one."""
    problem, evaluator = task.problem, task.evaluator
    old = Without(problem, evaluator, llm)
    search = make_scope_joint(old.problem, seed=seed, base=base, budget_usd=budget_usd)
    before = run(old.problem, search, old, budget_usd)
    known = [replace(o, theta=old.code(o.theta)) for o in before.history]
    found = {"older": before}
    for name, observations in (("continued", known), ("fresh", [])):
        search = make_scope_joint(
            problem, seed=seed, base=base, budget_usd=budget_usd, known=observations
        )
        found[name] = run(problem, search, evaluator, budget_usd)
    return found


def optimal_llms(task: Task) -> list[str]:
    """The LLMs of the cheapest feasible configuration."""
    assert isinstance(task.evaluator, HasTruth), "the truth of this task is not known"
    cost, quality = task.evaluator.truth()
    costs = cost.where(quality >= task.problem.s_0 - _ROUNDING, math.inf)
    return list(task.problem.names(task.problem.space.theta_at(int(costs.argmin()))).values())


def row(result: RunResult) -> dict[str, Any]:
    """What is measured of a search, relative to the optimum of the problem."""
    values: dict[str, Any] = {"calls": len(result.history), "spend_usd": result.history.spend_usd}
    if result.truth is None or result.curve is None:
        return values
    optimum = optimal_cost(result.problem, result.truth)
    near = first_within(result.curve, NEAR * optimum, math.inf)
    cost = float(result.curve.best_feasible_cost(math.inf))
    feasible = bool(result.summary()["feasible"])
    return {**values, "near_usd": near, "of_optimum": cost / optimum, "feasible": feasible}


def _numbers(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line; see above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("overrides", nargs="+", help="such as task=hotpotqa")
    parser.add_argument("--seeds", type=_numbers, default=[0], help="such as 0-4")
    parser.add_argument(
        "--llms",
        nargs="*",
        help="added; default: all that can be; `optimal`: those of the optimum; `any`: one",
    )
    parser.add_argument("--to", type=Path, required=True, help="CSV file, added to")
    given = parser.parse_args(arguments)
    cfg = compose([*given.overrides, "method=scope_joint"])
    task: Task = build(cfg.task)
    names = task.problem.llms[0]
    used = {cfg.base, *task.problem.names(task.problem.theta_ref).values()}
    is_new = not given.to.exists()
    with given.to.open("a", newline="") as file:
        writer: csv.DictWriter[str] = csv.DictWriter(file, COLUMNS)
        if is_new:
            writer.writeheader()
        others = [name for name in names if name not in used]
        llms = given.llms or others
        if given.llms == ["optimal"]:
            llms = [llm for llm in optimal_llms(task) if llm not in used]
        if given.llms == ["any"]:
            llms = [others[int(cfg.task.get("world_seed", 0)) % len(others)]]
        for llm in dict.fromkeys(llms):
            for seed in given.seeds:
                found = compare(task, cfg.base, llm, seed, cfg.budget_usd)
                about = {"task": task.problem.name, "llm": llm, "seed": seed}
                about["world_seed"] = cfg.task.get("world_seed", "")
                for name, result in found.items():
                    writer.writerow({**about, "search": name, **row(result)})
                file.flush()


if __name__ == "__main__":
    main()
