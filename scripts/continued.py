"""A search that knows what an older one observed, before one LLM was added, against a fresh one.

    python scripts/continued.py all                        # all that the table has, and the table
    python scripts/continued.py task=mathqa --seeds 10-12  # adds to benchmarks/continued.csv
    python scripts/continued.py --write                    # the table of docs/howto/continue.md

A pair that the file has is not made again.

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
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run without installing

from benchmarks.results.origin import note_run, notes_of, when
from benchmarks.results.planned import read_rows
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.methods import make_scope_joint
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.results.metrics import optimal_cost
from scope_torch.results.result import RunResult
from scope_torch.runs.evaluator import Evaluator, HasTruth
from scope_torch.runs.finished import NEAR, first_within
from scope_torch.runs.runner import run
from scope_torch.tasks import Task

_ROUNDING = 1e-12
ROOT = Path(__file__).resolve().parents[1]
FILE, PAGE = ROOT / "benchmarks" / "continued.csv", ROOT / "docs" / "howto" / "continue.md"
BEGIN, END = "<!-- begin: scripts/continued.py -->\n", "<!-- end -->"
COMPARED = "continued", "fresh"
ADDED = {"each": "each in turn", "any": "any one", "optimal": "one that the optimum uses"}
PAIR = ("task", "world_seed", "added", "llm", "seed")
COLUMNS: tuple[str, ...] = (
    *PAIR, "search", "calls", "spend_usd", "near_usd",
    "of_optimum", "feasible",
)  # fmt: skip
Row = dict[str, str]
# Overrides, seeds and `ADDED` of all that the table has. On HotpotQA rules were chosen.
PLAN: list[tuple[list[str], Sequence[int], str]] = [
    (["task=hotpotqa"], range(3), "each"),
    (["task=mathqa"], range(10, 13), "each"),
]
PLAN += [
    (["task=data_imputation", f"task.world_seed={world}"], [10], added)
    for added in ("any", "optimal")
    for world in range(100, 110)
]


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


def added_llms(which: str, task: Task, base: str, world_seed: int) -> list[str]:
    """The LLMs that are added, of those that neither theta_0 nor theta_base uses."""
    used = {base, *task.problem.names(task.problem.theta_ref).values()}
    others = [name for name in task.problem.llms[0] if name not in used]
    if which == "any":
        return [others[world_seed % len(others)]]
    if which == "optimal":
        return [name for name in dict.fromkeys(optimal_llms(task)) if name not in used]
    return others


def measure(overrides: Sequence[str], seeds: Iterable[int], which: str, path: Path) -> None:
    """Adds the runs of a task to a CSV file."""
    cfg = compose([*overrides, "method=scope_joint"])
    task: Task = build(cfg.task)
    world_seed = cfg.task.get("world_seed", "")
    done = {tuple(one[name] for name in PAIR) for one in read_rows(path)}
    llms = added_llms(which, task, cfg.base, int(world_seed or 0))
    for llm, seed in product(llms, seeds):
        pair = (task.problem.name, str(world_seed), which, llm, str(seed))
        if pair not in done:
            found = compare(task, cfg.base, llm, seed, cfg.budget_usd)
            about = dict(zip(PAIR, pair, strict=True))
            _add(path, [{**about, "search": n, **row(result)} for n, result in found.items()])


def _add(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Adds the rows of a pair, and notes when and with what they were made."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer: csv.DictWriter[str] = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)
    note_run(path.parent, path.stem)


def table(path: Path = FILE) -> str:
    """The table of a CSV file, in Markdown."""
    groups: dict[tuple[str, str], dict[tuple[str, ...], dict[str, Row]]] = {}
    for one in read_rows(path):
        pair = one["world_seed"], one["llm"], one["seed"]
        pairs = groups.setdefault((one["task"], one["added"]), {})
        pairs.setdefault(pair, {})[one["search"]] = one
    lines = [
        "| task | LLM that is added | pairs | USD to within 10%: median (quartiles) | sums | "
        "USD to the end: median, sums | get there: continued, fresh | feasible |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = [_line(*key, list(pairs.values())) for key, pairs in groups.items()]
    return "\n".join([*lines, *rows])


def _line(task: str, added: str, pairs: Sequence[dict[str, Row]]) -> str:
    counts = [
        ", ".join(str(sum(is_so(pair[name]) for pair in pairs)) for name in COMPARED)
        for is_so in (lambda one: bool(one["near_usd"]), lambda one: one["feasible"] == "True")
    ]
    cells = [task, ADDED[added], str(len(pairs)), *_ratios(pairs), *counts]
    return f"| {' | '.join(cells)} |"


def _ratios(pairs: Sequence[dict[str, Row]]) -> list[str]:
    """Of all pairs; one that continues and is never within 10% counts as infinite.

    Sums are of the pairs in which both are within 10% at some time.
    """
    near, end = (
        np.array([[float(pair[name][column] or "inf") for name in COMPARED] for pair in pairs]).T
        for column in ("near_usd", "spend_usd")
    )
    ratios = np.sort(near[0] / near[1])  # np.quantile would multiply infinity by 0
    low, median, high = ratios[len(ratios) // 4], np.median(ratios), ratios[-1 - len(ratios) // 4]
    both = np.isfinite(near).all(0)
    sums = near[0, both].sum() / near[1, both].sum()
    to_end = f"{np.median(end[0] / end[1]):.3f}, {end[0].sum() / end[1].sum():.3f}"
    return [f"{median:.3f} ({low:.3f} to {high:.3f})", f"{sums:.3f}", to_end]


def write_page() -> None:
    """Puts the table into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{block()}\n\n{END}{rest.partition(END)[2]}")
    print(f"{FILE.name}: the table is in {PAGE.name}")


def block() -> str:
    """The table, and the line below it."""
    days = when([notes_of(FILE.parent).get(FILE.stem, {})])
    return f"{table()}\n\n*`python scripts/continued.py all`; benchmarks/continued.csv; {days}*"


def _numbers(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line; see above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("overrides", nargs="*", help="such as task=mathqa")
    parser.add_argument("--seeds", type=_numbers, default=[0], help="such as 10-12")
    parser.add_argument("--added", choices=ADDED, default="each", help="which LLMs are added")
    parser.add_argument("--to", type=Path, default=FILE, help="CSV file, added to")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    given = parser.parse_args(arguments)
    if given.overrides == ["all"]:
        for overrides, seeds, which in PLAN:
            measure(overrides, seeds, which, given.to)
        write_page()
    elif given.write:
        write_page()
    else:
        measure(given.overrides, given.seeds, given.added, given.to)


if __name__ == "__main__":
    main()
