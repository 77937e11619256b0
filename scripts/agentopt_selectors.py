"""AgentOpt's selectors and scope_joint on recorded tables: USD spent, quality of the choice.

    pip install 'scope-torch[agentopt]'
    python scripts/agentopt_selectors.py --to benchmarks/agentopt_selectors.csv
    python scripts/agentopt_selectors.py --ours benchmarks/agentopt_selectors.csv
    python scripts/agentopt_selectors.py --write benchmarks/agentopt_selectors.csv

The selectors are the real ones of agentopt-py. The agent that they run is a look-up in the table,
so no LLM is called. AgentOpt keeps replies, so a pair that is run again costs nothing here either.
It breaks ties by seconds, which the tables lack: a run counts `_SECONDS_PER_TOKEN` for each output
token. The seed shuffles the queries, and seeds the selectors that draw.
LMProposalModelSelector is left out: it asks an LLM.

scope_joint searches with objective=quality, and with no bound on the cost but the dearest run of
the table. It is told the averages of theta_base alone. A pair that it asks for again is paid again.
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
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run without installing

from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.constraints import at_most
from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.methods import make_scope_joint
from scope_torch.runs.runner import run

TASKS = ("hotpotqa", "mathqa")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "results-quality.md"
BEGIN, END = "<!-- begin: scripts/agentopt_selectors.py -->", "<!-- end -->"
OURS = "scope_joint"
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


def run_ours(path: Path, tasks: Sequence[str], seeds: int) -> None:
    """Adds the searches of scope_joint: at their end, and at the median spend of each selector."""
    medians = {
        (task, selector): statistics.median(float(row["spend_usd"]) for row in rows)
        for (task, selector), rows in runs_of(path).items()
        if not selector.startswith(OURS)
    }
    with path.open("a", newline="") as file:
        writer: csv.DictWriter[str] = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        for task in tasks:
            budgets = {one: usd for (of, one), usd in medians.items() if of == task}
            for seed in range(seeds):
                for row in search(task, budgets, seed):
                    writer.writerow({"task": task, "seed": seed, **row})
                file.flush()


def search(task: str, budgets: Mapping[str, float], seed: int) -> Iterator[dict[str, Any]]:
    """One search of scope_joint for the best quality: a row at its end, and one at each budget."""
    config = compose([f"task={task}"])
    made = build(config.task)
    table, means = made.evaluator.table, made.evaluator.table.quality.mean(-1)
    problem, dearest = made.problem, float(table.cost_usd.max())
    base = problem.codes([config.base] * len(problem.modules))
    problem = replace(
        problem,
        theta_ref=base,
        reference_quality=float(means[base]),
        reference_cost_usd=float(table.cost_usd[base].mean()),
        reference_answers=None,
        epsilon=None,
        objective="quality",
        constraints=(at_most("cost_usd", dearest, cap=dearest),),
    )
    optimizer = make_scope_joint(problem, base=config.base, seed=seed, device="cpu")
    result = run(problem, optimizer, made.evaluator, budget_usd=float(table.cost_usd.sum()))
    ends = {OURS: result.history.spend_usd}
    ends |= {f"{OURS} within {selector}": usd for selector, usd in budgets.items()}
    for name, budget_usd in ends.items():
        known = [row.theta_out for row in result.trace if row.from_budget_usd <= budget_usd]
        theta_out = known[-1] if known else base
        yield {
            "selector": name,
            "spend_usd": round(min(budget_usd, result.history.spend_usd), 6),
            "choice": " + ".join(problem.names(theta_out).values()),
            "true_quality": round(float(means[theta_out]), 9),
            "best_quality": round(float(means.max()), 9),
        }


def runs_of(path: Path) -> dict[tuple[str, str], list[dict[str, str]]]:
    """The rows of the file, by task and selector."""
    runs: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            runs[row["task"], row["selector"]].append(row)
    return runs


def table_of(path: Path) -> str:
    """Medians, share of runs that find the best, and quality lost, for each task and selector.

    The last two columns are of scope_joint, stopped at the selector's median spend.
    """
    runs = runs_of(path)
    lines = [
        "| task | selector | runs | spend [USD]: median | finds the best | lost: mean, most | "
        f"{OURS} at that spend: finds the best | lost: mean, most |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (task, selector), rows in runs.items():
        if " within " in selector:
            continue
        spend = statistics.median(float(row["spend_usd"]) for row in rows)
        ours = runs.get((task, f"{OURS} within {selector}"))
        lines.append(
            f"| {task} | {selector} | {len(rows)} | {spend:.2f} | {_found_and_lost(rows)} | "
            f"{_found_and_lost(ours) if ours else ' | '} |"
        )
    return "\n".join(lines)


def _found_and_lost(rows: Sequence[Mapping[str, str]]) -> str:
    lost = [float(row["best_quality"]) - float(row["true_quality"]) for row in rows]
    found = sum(x <= _BEST for x in lost) / len(lost)
    return f"{found:.0%} | {statistics.fmean(lost):.4f}, {max(lost):.4f}"


def write_page(path: Path) -> None:
    """Puts the table into docs/results-quality.md."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table_of(path)}\n\n{END}{after}")


def main() -> None:
    """Runs the selectors, or prints the table of their runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--to", type=Path, help="CSV file to write")
    parser.add_argument("--ours", type=Path, help="CSV file to add scope_joint to")
    parser.add_argument("--table", type=Path, help="CSV file to summarise")
    parser.add_argument("--write", type=Path, help="CSV file to summarise in docs")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--selectors", nargs="+", choices=SELECTORS, default=tuple(SELECTORS))
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.to:
        run_all(arguments.to, arguments.tasks, arguments.selectors, arguments.seeds)
    if arguments.ours:
        run_ours(arguments.ours, arguments.tasks, arguments.seeds)
    if arguments.write:
        write_page(arguments.write)
    if path := arguments.table or arguments.to or arguments.ours:
        print(table_of(path))


if __name__ == "__main__":
    main()
