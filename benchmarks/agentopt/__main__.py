"""AgentOpt's selectors and our searches on recorded tables: runs into CSV files, tables into docs.

    pip install 'scope-torch[peers]'
    python -m benchmarks.agentopt all             # all that follows, for both objectives
    python -m benchmarks.agentopt theirs cost     # adds runs to benchmarks/agentopt/cost.csv
    python -m benchmarks.agentopt ours cost       # adds our searches
    python -m benchmarks.agentopt write           # puts the tables into docs/results-agentopt.md

`quality` in the place of `cost` does the same for the other objective. A run is written as soon as
it is done, and a run that the file has is not made again.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.agentopt import ours, selectors
from benchmarks.agentopt.tables import FILES, runs_of, table_of, write_pages
from benchmarks.results.origin import note_run
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose

TASKS = ("hotpotqa", "mathqa")


class Rows:
    """A CSV file that rows are added to.

    Args:
        path: The file; it begins with the names of the columns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            self._done = {(row["task"], row["selector"], row["seed"]) for row in reader}
            self._columns = list(reader.fieldnames or ())

    def has(self, task: str, selector: str, seed: int) -> bool:
        """Whether the run is in the file."""
        return (task, selector, str(seed)) in self._done

    def add(self, task: str, row: Mapping[str, Any]) -> None:
        """Writes a row to the disk."""
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self._columns, lineterminator="\n")
            writer.writerow({"task": task, **row})
        note_run(self.path.parent, self.path.stem, ["agentopt"])


def run_theirs(objective: str, tasks: Sequence[str], names: Sequence[str], seeds: int) -> None:
    """The runs of AgentOpt's selectors that the file lacks."""
    file = Rows(FILES[objective])
    for task in tasks:
        made = build(compose([f"task={task}", "task.outcome_columns=[output_tokens]"]).task)
        table, problem = made.evaluator.table, made.problem
        for name in names:
            for seed in range(seeds):
                if file.has(task, name, seed):
                    continue
                if objective == "cost":
                    file.add(task, selectors.least_cost(table, problem, name, seed))
                else:
                    file.add(task, selectors.best_quality(table, name, seed))


def run_ours(objective: str, tasks: Sequence[str], seeds: int) -> None:
    """Our searches that the file lacks."""
    file = Rows(FILES[objective])
    for task in tasks:
        budgets = _median_spends(task) if objective == "quality" else {}
        for method in ours.METHODS if objective == "cost" else (ours.JOINT,):
            for seed in range(seeds):
                if file.has(task, method, seed):
                    continue
                if objective == "cost":
                    file.add(task, ours.least_cost(task, method, seed))
                else:
                    for row in ours.best_quality(task, budgets, seed):
                        file.add(task, {"seed": seed, **row})


def _median_spends(task: str) -> dict[str, float]:
    """USD by selector of AgentOpt, at which our search for quality is looked at."""
    return {
        selector: statistics.median(float(row["spend_usd"]) for row in rows)
        for (of, selector), rows in runs_of(FILES["quality"]).items()
        if of == task and not selector.startswith(ours.JOINT)
    }


def main() -> None:
    """Adds runs to a file and prints its table, or writes the tables into the docs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agentopt", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("what", choices=["theirs", "ours", "write", "all"])
    parser.add_argument("objective", choices=FILES, nargs="?", default="cost")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument(
        "--selectors", nargs="+", choices=selectors.OF_COST, help="default: all of the objective"
    )
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    if given.what in ("theirs", "ours"):
        make(given.what, given.objective, given.tasks, given.selectors, given.seeds)
        print(table_of(given.objective, FILES[given.objective]))
        return
    if given.what == "all":
        for objective, what in product(FILES, ("theirs", "ours")):
            make(what, objective, given.tasks, given.selectors, given.seeds)
    write_pages()


def make(
    what: str, objective: str, tasks: Sequence[str], names: Sequence[str] | None, seeds: int
) -> None:
    """The runs of AgentOpt's selectors, or ours, that a file lacks."""
    if what == "theirs":
        every = selectors.OF_COST if objective == "cost" else tuple(selectors.SELECTORS)
        run_theirs(objective, tasks, names or every, seeds)
    else:
        run_ours(objective, tasks, seeds)


if __name__ == "__main__":
    main()
