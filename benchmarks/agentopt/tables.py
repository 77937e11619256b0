"""The tables of docs/results-agentopt.md, made from the committed runs."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.agentopt.ours import JOINT
from benchmarks.results.origin import notes_of, when

_HERE = Path(__file__).resolve().parent
FILES = {"cost": _HERE / "cost.csv", "quality": _HERE / "quality.csv"}
PAGE = _HERE.parents[1] / "docs" / "results-agentopt.md"
RESULTS = _HERE.parents[1] / "docs" / "results.md"
_ON_HOME = {
    JOINT: "`scope_joint`, the default",
    "scope": "`scope`, our rules",
    **{
        name: f"AgentOpt, `{name}`"
        for name in (
            *("arm_elimination", "bayesian", "random_search"),
            *("threshold_se", "hill_climbing", "epsilon_lucb"),
        )
    },
    "brute_force": "every configuration on every query",
}
_BEGIN, _END = "<!-- begin: benchmarks/agentopt {} -->", "<!-- end -->"
_SAME = 1e-9  # averages closer than this are equal: they are averages of the same numbers

Row = Mapping[str, str]


def runs_of(path: Path) -> dict[tuple[str, str], list[dict[str, str]]]:
    """The rows of the file, by task and selector; the tasks one after the other."""
    runs: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            runs[row["task"], row["selector"]].append(row)
    return dict(sorted(runs.items(), key=lambda run: run[0][0]))


def table_of(objective: str, path: Path) -> str:
    """The Markdown table of the runs of an objective, `cost` or `quality`."""
    runs = runs_of(path)
    return _quality_table(runs) if objective == "quality" else _cost_table(runs)


def _cost_table(runs: Mapping[tuple[str, str], Sequence[Row]]) -> str:
    """Spend, share of feasible choices, and their cost over the least, by task and selector."""
    lines = [
        "| task | selector | USD: median (quartiles) | found none | "
        "truly feasible | at the optimum | cost / least: median, worst |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (task, selector), rows in runs.items():
        spends = [float(row["spend_usd"]) for row in rows]
        low, median, high = np.quantile(spends, [0.25, 0.5, 0.75])
        feasible, best = _feasible_and_best(rows)
        ratios = [_of_least(row) for row in feasible]
        lines.append(
            f"| {_once(task, lines)} | {selector} | {median:.2f} ({low:.2f} to {high:.2f}) | "
            f"{sum(row['found'] == '0' for row in rows)} | {len(feasible) / len(rows):.0%} | "
            f"{len(best) / len(rows):.0%} | "
            + (f"{statistics.median(ratios):.2f}, {max(ratios):.2f} |" if ratios else "|")
        )
    return "\n".join(lines)


def _once(task: str, lines: Sequence[str]) -> str:
    """The task, unless a line has it already."""
    return "" if any(line.startswith(f"| {task} |") for line in lines) else task


def _feasible_and_best(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Runs whose choice is truly feasible, and those of them whose choice is the optimum."""
    feasible = [row for row in rows if float(row["true_quality"]) >= float(row["s_0"]) - _SAME]
    return feasible, [row for row in feasible if _of_least(row) <= 1 + _SAME]


def _of_least(row: Row) -> float:
    return float(row["true_cost_usd"]) / float(row["least_cost_usd"])


def _quality_table(runs: Mapping[tuple[str, str], Sequence[Row]]) -> str:
    """Medians, share of runs that find the best, and quality lost, for each task and selector.

    The last two columns are of scope_joint, stopped at the selector's median spend.
    """
    lines = [
        "| task | selector | USD: median | finds the best | lost: mean, most | "
        f"{JOINT} at that spend: finds the best | lost: mean, most |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (task, selector), rows in runs.items():
        if " within " in selector:
            continue
        spend = statistics.median(float(row["spend_usd"]) for row in rows)
        ours = runs.get((task, f"{JOINT} within {selector}"))
        lines.append(
            f"| {_once(task, lines)} | {selector} | {spend:.2f} | {_found_and_lost(rows)} | "
            f"{_found_and_lost(ours) if ours else ' | '} |"
        )
    return "\n".join(lines)


def _found_and_lost(rows: Sequence[Row]) -> str:
    lost = [float(row["best_quality"]) - float(row["true_quality"]) for row in rows]
    found = sum(x <= _SAME for x in lost) / len(lost)
    return f"{found:.0%} | {statistics.fmean(lost):.3f}, {max(lost):.3f}"


def home_table(path: Path) -> str:
    """The short table of the first page: MathQA."""
    runs = runs_of(path)
    lines = [
        f"| MathQA, {len(runs['mathqa', JOINT])} runs each | USD to search, median | "
        "is good enough | is the cheapest that is good enough |",
        "| --- | --- | --- | --- |",
    ]
    for selector, name in _ON_HOME.items():
        rows = runs["mathqa", selector]
        spend = statistics.median(float(row["spend_usd"]) for row in rows)
        feasible, best = (len(some) / len(rows) for some in _feasible_and_best(rows))
        lines.append(f"| {name} | {spend:.2f} | {feasible:.0%} | {best:.0%} |")
    return "\n".join(lines)


def write_pages() -> None:
    """Puts the tables into the pages."""
    tables = {o: f"{table_of(o, path)}\n\n{origin(o)}" for o, path in FILES.items()}
    PAGE.write_text(_with(PAGE.read_text(), tables))
    home = f"{home_table(FILES['cost'])}\n\n{origin('cost')}"
    RESULTS.write_text(_with(RESULTS.read_text(), {"home": home}))
    print(f"cost.csv, quality.csv: the tables are in {PAGE.name}, {RESULTS.name}")


def origin(objective: str) -> str:
    """File and dates of a table; the versions are in made.json beside the file."""
    return f"*benchmarks/agentopt/{objective}.csv; {when([notes_of(_HERE).get(objective, {})])}*"


def _with(text: str, tables: Mapping[str, str]) -> str:
    """A page with its tables."""
    for name, table in tables.items():
        before, begin, rest = text.partition(_BEGIN.format(name))
        _, _, after = rest.partition(_END)
        text = f"{before}{begin}\n\n{table}\n\n{_END}{after}"
    return text
