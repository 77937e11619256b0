"""Tables and figures of finished runs: `scope-torch report OUTPUT_DIR`."""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scope_torch.cli.paper import CITATION, paper_curves, paper_numbers, paper_task
from scope_torch.errors import InputError
from scope_torch.runs.directory import write_atomically
from scope_torch.runs.finished import FinishedRun, Group, column, load_runs, median
from scope_torch.runs.plotting import lines_of, plot_curves

Groups = dict[Group, list[FinishedRun]]


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with 2 if there is nothing to report."""
    parser = argparse.ArgumentParser(
        "scope-torch report", description="Writes tables and figures of finished runs."
    )
    parser.add_argument("output_dir", type=Path, help="a folder that scope-torch put runs into")
    output_dir: Path = parser.parse_args(argv).output_dir
    try:
        print(report(output_dir))
    except (InputError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        sys.exit(2)


def report(output_dir: Path) -> str:
    """Aggregates the runs below a directory over seeds and worlds.

    Writes `table.md`, `runs.csv` with one row for each run, and one PNG for each task and budget.

    Args:
        output_dir: Where `scope-torch` put its runs.

    Returns:
        The tables in Markdown, a list of unfinished and failed runs, and the paths of the figures.

    Raises:
        InputError: If there is no finished run.
    """
    groups, remarks = load_runs(output_dir)
    sections = [list(_search_table(groups)), list(_deployment_table(groups))]
    text = "\n\n".join("\n".join(lines) for lines in [*sections, remarks] if lines) + "\n"
    write_atomically(output_dir / "table.md", text)
    _write_runs(output_dir / "runs.csv", groups)
    figures = [str(path) for path in _figures(output_dir, groups)]
    return "\n".join([text, *(f"plot: {path}" for path in figures)])


def _search_table(groups: Groups) -> Iterator[str]:
    yield (
        "| task | method | runs | c_bf / reference: median (least, most) "
        "| at 10%, 25%, 50%, 100% of the budget: medians | the paper's "
        "| c_bf / optimum: median (most) | at the optimum "
        "| within 10% of it after [USD]: median (runs) | area | last improvement [USD] "
        "| spent [USD] | mean V | theta_out feasible | pruned early | b_g | b_c [USD] | seconds |"
    )
    yield "|" + " --- |" * 18
    for (task, label, _), runs in groups.items():
        ratios, near = column(runs, "of_optimum"), column(runs, "near_optimum_usd")
        cells = [
            task,
            label,
            str(len(runs)),
            _range(column(runs, "cost_100"), ".2%"),
            ", ".join(_median(column(runs, f"cost_{share}"), ".2%") for share in (10, 25, 50, 100)),
            _paper_fraction(runs[0]),
            _most(ratios, ".2f"),
            f"{sum(r <= 1 + 1e-12 for r in ratios)} of {len(ratios)}",
            f"{_median(near, '.3g')} ({len(near)})",
            _median(column(runs, "area"), ".1%"),
            _median(column(runs, "last_improvement_usd"), ".3g"),
            _median(column(runs, "spend_usd"), ".3g"),
            _mean(column(runs, "violation")),
            f"{sum(column(runs, 'feasible')):.0f} of {len(column(runs, 'feasible'))}",
            _median(column(runs, "pruned_early"), ".0%"),
            _median(column(runs, "b_g"), ".3g"),
            _median(column(runs, "b_c_usd"), ".2g"),
            _median(column(runs, "seconds"), ".0f"),
        ]
        yield "| " + " | ".join(cells) + " |"


def _paper_fraction(run: FinishedRun) -> str:
    """The paper's final best feasible cost in percent of c(theta_0)."""
    result = run.result
    curves = paper_curves(
        result["task"], result["reference"], run.settings["optimizer"].get("kernel", {}).get("name")
    )
    if result["method"] in curves:
        cost = curves[result["method"]][1]
        return f"{cost[-1] / cost[0]:.2%}"
    fractions = paper_numbers()["final_fraction"].get(paper_task(result["task"]), {})
    usual = set(result["reference"].values()) == {"GPT-5.2"}
    return f"{fractions[result['method']]:.2%}" if usual and result["method"] in fractions else "-"


def _deployment_table(groups: Groups) -> Iterator[str]:
    deployed = {g: runs for g, runs in groups.items() if column(runs, "test_quality")}
    if not deployed:
        return
    yield (
        "| task, held-out queries | method | runs | cost [USD] | of theta_0 | quality "
        "| against theta_0 | the paper's cost of theta_0 | the paper's quality |"
    )
    yield "|" + " --- |" * 9
    for (task, label, _), runs in deployed.items():
        paper = paper_numbers()["deployment"].get(paper_task(task), {})
        theirs = paper.get(runs[0].result["method"])
        cost, quality = column(runs, "test_cost_usd"), column(runs, "test_quality")
        of_cost = _quotients(cost, column(runs, "test_reference_cost_usd"))
        of_quality = _quotients(quality, column(runs, "test_reference_quality"))
        cells = [
            task,
            label,
            str(len(runs)),
            _median(cost, ".3g"),
            _range(of_cost, ".1%"),
            _median(quality, ".3f"),
            _range([q - 1 for q in of_quality], "+.1%"),
            f"{theirs[0] / paper['reference'][0]:.1%}" if theirs else "-",
            f"{theirs[1] / paper['reference'][1] - 1:+.1%}" if theirs else "-",
        ]
        yield "| " + " | ".join(cells) + " |"


def _write_runs(path: Path, groups: Groups) -> None:
    rows = [
        {"task": task, "method": label, "budget_usd": budget, "path": str(run.path)}
        | {"seed": run.result["seed"], **run.measures()}
        for (task, label, budget), runs in groups.items()
        for run in runs
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def _figures(output_dir: Path, groups: Groups) -> Iterator[Path]:
    def kind(runs: Sequence[FinishedRun]) -> str:
        return runs[0].result.get("objective", "cost")

    cases = {(task, budget, kind(runs)) for (task, _, budget), runs in groups.items()}
    for task, budget, objective in sorted(cases):
        shown = {
            label: runs
            for (name, label, usd), runs in groups.items()
            if (name, usd, kind(runs)) == (task, budget, objective) and runs[0].curve is not None
        }
        if not shown:
            continue
        first = next(iter(shown.values()))[0]
        lines = [lines_of(run.result) for runs in shown.values() for run in runs]
        optima = {one["optimal_cost_usd"] for one in lines}
        drawn: dict[str, Any] = {**lines[0], "optimal_cost_usd": None}
        if len(optima) == 1:
            drawn["optimal_cost_usd"] = optima.pop()
        kernel = first.settings["optimizer"].get("kernel", {}).get("name", "")
        paper = paper_curves(task, first.result["reference"], kernel)
        of = "" if objective == "cost" else f"_{objective}"
        path = output_dir / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', task)}_{budget:g}usd{of}.png"
        plot_curves(
            {label: [c for run in runs if (c := run.curve)] for label, runs in shown.items()},
            budget,
            path,
            title=f"{task}: median, least and most over runs",
            **drawn,
            paper={name: curve for name, curve in paper.items() if name in shown},
            paper_source=CITATION,
        )
        yield path


def _quotients(values: Sequence[float], by: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(values, by, strict=True)]


def _range(values: Sequence[float], form: str) -> str:
    if not values:
        return "unknown"
    return f"{median(values):{form}} ({min(values):{form}}, {max(values):{form}})"


def _most(values: Sequence[float], form: str) -> str:
    return f"{median(values):{form}} ({max(values):{form}})" if values else "unknown"


def _median(values: Sequence[float], form: str) -> str:
    return f"{median(values):{form}}" if values else "-"


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.2g}" if values else "unknown"


if __name__ == "__main__":
    main()
