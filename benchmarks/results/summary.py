"""Figures that the tables of docs/results are made of."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from benchmarks.results.cells import MAIN, SIMULATED
from benchmarks.results.planned import numbers
from benchmarks.results.runs import SHARES, STEPS
from scope_torch.cli.paper import paper_curves, paper_numbers

Row = Mapping[str, str]
Rows = Sequence[Row]
_ORDER = list(MAIN)
SAME = 1 + 1e-6  # seven digits are in the files


def grouped(rows: Rows) -> dict[tuple[str, str], list[Row]]:
    """Rows by problem and method, in the order of the paper and ours."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["problem"], row["method"]), []).append(row)

    def place(key: tuple[str, str]) -> tuple[int, str, int, str]:
        problem, method = key
        tasks = SIMULATED.index(problem) if problem in SIMULATED else len(SIMULATED)
        return tasks, problem, _ORDER.index(method) if method in _ORDER else 99, method

    return {key: groups[key] for key in sorted(groups, key=place)}


def recorded_first(problems: Iterable[str]) -> dict[str, str]:
    """Problems, what others recorded first, and what a head of a table says of each."""
    names = sorted(dict.fromkeys(problems), key=lambda name: not name.startswith("recorded/"))
    return {
        name: code(name.removeprefix("recorded/")) if name.startswith("recorded/") else name
        for name in names
    }


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; a first cell that is that of the line before is left empty."""
    rows, last = [header, ["---"] * len(header)], ""
    for first, *others in lines:
        rows.append(["" if first == last else first, *others])
        last = first
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def share(rows: Rows, column: str, of: str = "c_0") -> float:
    """The median of a column as a share of another."""
    return statistics.median(float(row[column]) / float(row[of]) for row in rows)


def percent(value: float) -> str:
    """Two digits, of which none is lost below 1%."""
    return f"{100 * value:.3g}%"


def percents(values: Iterable[float]) -> str:
    """Several percentages; one number if all are the same."""
    found = [percent(value) for value in values]
    return found[0] if len(set(found)) == 1 else ", ".join(found).replace("%,", ",")


def geometric_mean(rows: Rows) -> float:
    """Of c_bf / c(theta_0) at the full budget."""
    return math.exp(
        statistics.fmean(math.log(float(r["c_bf_100"]) / float(r["c_0"])) for r in rows)
    )


def papers_competitors(task: str) -> dict[str, float]:
    """c_bf / c(theta_0) of each competitor at the full budget, in the paper's figure of the task.

    Empty for tasks of which the paper's source has no such curves.
    """
    curves = paper_curves(task, {"a": "GPT-5.2"}, "")
    found = {name: costs[-1] / costs[0] for name, (_, costs) in curves.items()}
    return {name: float(share) for name, share in found.items() if not name.startswith("scope")}


def papers_competitor(task: str) -> float:
    """The best competitor's c_bf / c(theta_0) at the full budget in the paper.

    By the reduction that sec:rq1 reports; by the figure for entity resolution, which has none.
    """
    if reduction := paper_numbers()["reduction"].get(task):
        return paper_numbers()["final_fraction"][task]["scope"] / (1 - reduction["final"])
    return min(papers_competitors(task).values())


def papers(task: str, method: str, reference: str = "GPT-5.2", kernel: str = "") -> list[str]:
    """The paper's median curve at shares of its budget, as shares of c(theta_0)."""
    name = method.partition("[")[0].lower()
    curve = paper_curves(task, {"a": reference}, kernel).get(name)
    if curve is None:
        return [""]
    budgets, costs = curve
    places = [np.searchsorted(budgets, s * budgets[-1], side="right") - 1 for s in SHARES]
    return [percents(costs[i] / costs[0] for i in places)]


def median_curve(rows: Rows) -> np.ndarray:
    """Medians of c_bf / c(theta_0) at `STEPS` of the budget."""
    curves = [numbers(row["c_bf_curve"]) / float(row["c_0"]) for row in rows]
    assert all(len(curve) == len(STEPS) for curve in curves)
    return np.median(curves, axis=0)


def near(rows: Rows) -> str:
    """The median spend until within 10% of the optimum, over all runs, and how many get there."""
    count = sum(bool(row["usd_within_10"]) for row in rows)
    return f"{usd(rows)} ({count})"


def usd(rows: Rows) -> str:
    """The median spend until within 10% of the optimum, over all runs; - if most never are."""
    spends = [float(row["usd_within_10"]) if row["usd_within_10"] else math.inf for row in rows]
    middle = statistics.median(spends or [math.inf])
    return "-" if math.isinf(middle) else f"{middle:.3g}"


def at_optimum(rows: Rows) -> int:
    """How many runs end at the optimum."""
    return sum(float(row["c_bf_100"]) <= SAME * float(row["c_star"]) for row in rows)


def worst(rows: Rows) -> float:
    """The largest c_bf as a multiple of the optimum."""
    return max(float(row["c_bf_100"]) / float(row["c_star"]) for row in rows)


def median(rows: Rows, column: str) -> float:
    """The median of a column, of the rows that have a value there."""
    return statistics.median(float(row[column]) for row in rows if row[column])


def mean(rows: Rows, column: str) -> float:
    """The mean of a column, of the rows that have a value there."""
    return statistics.fmean(float(row[column]) for row in rows if row[column])


def violation(rows: Rows) -> str:
    """The mean V."""
    return f"{mean(rows, 'V'):.2g}"


def count(rows: Rows, column: str) -> int:
    """The sum of a column of 0 and 1."""
    return sum(int(row[column]) for row in rows)


def code(name: str) -> str:
    """A name as code, unless it is several words."""
    return f"`{name}`" if " " not in name else name
