"""AgentOpt's selectors on recorded tables: USD spent, and how good their choice is.

    pip install 'scope-torch[agentopt]'
    python scripts/agentopt_selectors.py --to benchmarks/agentopt_selectors.csv
    python scripts/agentopt_selectors.py --table benchmarks/agentopt_selectors.csv

The selectors are the real ones of agentopt-py. The agent that they run is a look-up in the table,
so no LLM is called. AgentOpt keeps replies, so a pair that is run again costs nothing here either.
It breaks ties by seconds, which the tables lack: a run counts `_SECONDS_PER_TOKEN` for each output
token. The seed shuffles the queries, and seeds the selectors that draw.
LMProposalModelSelector is left out: it asks an LLM.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run without installing

from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.evaluators.table import RecordedTable, TableEvaluator

TASKS = ("hotpotqa", "mathqa")
COLUMNS = ("task", "selector", "seed", "spend_usd", "choice", "true_quality", "best_quality")
SELECTORS = {
    "brute_force": "BruteForceModelSelector",
    "random_search": "RandomSearchModelSelector",
    "hill_climbing": "HillClimbingModelSelector",
    "arm_elimination": "ArmEliminationModelSelector",
    "epsilon_lucb": "EpsilonLUCBModelSelector",
    "threshold_se": "ThresholdBanditSEModelSelector",
    "bayesian": "BayesianOptimizationModelSelector",
}
_SEEDED = {"random_search", "hill_climbing"}  # these take a seed; the others use none or `random`
_SECONDS_PER_TOKEN = 0.01
_BEST = 1e-9  # qualities closer than this are equal: they are averages of the same numbers


class Lookup:
    """The table as an application of AgentOpt, and in place of its tracker of LLM calls.

    Args:
        table: The recorded table, with the outcome `output_tokens`.

    Attributes:
        asked: The cells that were run: codes of the LLMs, then the query.
    """

    def __init__(self, table: RecordedTable) -> None:
        self.table = table
        self.asked: set[tuple[int, ...]] = set()
        self._last: tuple[int, ...] = ()

    def __call__(self, combination: dict[str, str]) -> Application:
        """The application with these LLMs, as AgentOpt makes it."""
        return Application(self, self.codes(combination))

    def codes(self, combination: dict[str, str]) -> tuple[int, ...]:
        """Codes of the LLMs of a combination, module by module."""
        table = self.table
        named = zip(table.modules, table.llms, strict=True)
        return tuple(llms.index(combination[module]) for module, llms in named)

    def quality(self, cell: tuple[int, ...]) -> float:
        """Runs one cell: it is paid for the first time."""
        self.asked.add(cell)
        self._last = cell
        return float(self.table.quality[cell])

    @property
    def spend_usd(self) -> float:
        """Cost of all cells that were run, in USD."""
        return float(sum(self.table.cost_usd[cell] for cell in sorted(self.asked)))

    # What the selectors ask of a tracker

    def start(self) -> None:
        """Nothing to start: there are no calls to intercept."""

    def stop(self) -> None:
        """Nothing to stop."""

    @contextlib.contextmanager
    def track(self, **_: Any) -> Generator[None]:
        """Nothing to track."""
        yield

    def get_cached_latency(self, **_: Any) -> float:
        """Seconds of the last run."""
        return _SECONDS_PER_TOKEN * float(self.table.outcomes["output_tokens"][self._last])

    def get_usage(self, **_: Any) -> dict[str, tuple[int, int]]:
        """No tokens: AgentOpt's prices decide nothing but ties."""
        return {}

    def get_records(self) -> list[Any]:
        """No calls."""
        return []


class Application:
    """A configuration that answers queries from the table."""

    def __init__(self, lookup: Lookup, codes: tuple[int, ...]) -> None:
        self.lookup, self.codes = lookup, codes

    def run(self, query: int) -> float:
        """The recorded quality of a query, by its index."""
        return self.lookup.quality((*self.codes, query))


def select(table: RecordedTable, selector: str, seed: int) -> dict[str, Any]:
    """One run of a selector: what it spent and chose."""
    import agentopt.model_selection as agentopt  # pyright: ignore[reportMissingImports]

    queries = list(range(len(table.queries)))
    random.Random(seed).shuffle(queries)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    lookup = Lookup(table)
    made = getattr(agentopt, SELECTORS[selector])(
        agent=lookup,
        models={m: list(llms) for m, llms in zip(table.modules, table.llms, strict=True)},
        eval_fn=lambda _expected, quality: quality,
        dataset=[(query, "") for query in queries],
        tracker=lookup,
        **({"seed": seed} if selector in _SEEDED else {}),
    )
    with contextlib.redirect_stdout(io.StringIO()):
        combination = made.select_best().get_best_combo()
    codes, means = lookup.codes(combination), table.quality.mean(-1)
    return {
        "selector": selector,
        "seed": seed,
        "spend_usd": round(lookup.spend_usd, 6),
        "choice": " + ".join(combination[module] for module in table.modules),
        "true_quality": round(float(means[codes]), 9),
        "best_quality": round(float(means.max()), 9),
    }


def run_all(path: Path, tasks: Sequence[str], selectors: Sequence[str], seeds: int) -> None:
    """Writes one row for each run, as soon as it is done; adds to the file if it is there."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer: csv.DictWriter[str] = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        for task in tasks:
            config = compose([f"task={task}", "task.outcome_columns=[output_tokens]"])
            evaluator = build(config.task).evaluator
            assert isinstance(evaluator, TableEvaluator)
            for selector in selectors:
                for seed in range(seeds):
                    writer.writerow({"task": task, **select(evaluator.table, selector, seed)})
                    file.flush()


def table_of(path: Path) -> str:
    """Medians, share of runs that find the best, and quality lost, for each task and selector."""
    runs: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            runs[row["task"], row["selector"]].append(row)
    lines = [
        "| task | selector | runs | spend [USD]: median | finds the best | lost: mean, most |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for (task, selector), rows in runs.items():
        spend = statistics.median(float(row["spend_usd"]) for row in rows)
        lost = [float(row["best_quality"]) - float(row["true_quality"]) for row in rows]
        found = sum(x <= _BEST for x in lost) / len(lost)
        lines.append(
            f"| {task} | {selector} | {len(rows)} | {spend:.2f} | {found:.0%} | "
            f"{statistics.fmean(lost):.4f}, {max(lost):.4f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Runs the selectors, or prints the table of their runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--to", type=Path, help="CSV file to write")
    parser.add_argument("--table", type=Path, help="CSV file to summarise")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--selectors", nargs="+", choices=SELECTORS, default=tuple(SELECTORS))
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.to:
        run_all(arguments.to, arguments.tasks, arguments.selectors, arguments.seeds)
    if path := arguments.table or arguments.to:
        print(table_of(path))


if __name__ == "__main__":
    main()
