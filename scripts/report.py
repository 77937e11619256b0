"""Summarises finished runs: `python scripts/report.py OUTPUT_DIR` writes table.md and figures."""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scope_torch.errors import InputError
from scope_torch.metrics import OracleCurve
from scope_torch.plotting import plot_curves


@dataclass(frozen=True)
class Run:
    """A finished run on disk."""

    path: Path
    result: dict[str, Any]

    @property
    def group(self) -> tuple[str, str, float]:
        """Task, method with its overrides, budget: runs that differ in their seed only."""
        method = self.result["method"]
        variant = self.path.parent.name
        label = method if variant == method else f"{method} {variant}"
        return self.result["task"], label, self.result["budget_usd"]

    def curve(self) -> OracleCurve | None:
        """True cost and quality of theta_out against the budget, read from trace.csv."""
        result = self.result
        if result["true_cost_usd"] is None:
            return None
        steps = {0.0: (result["reference_cost_usd"], result["reference_quality"])}
        with open(self.path / "trace.csv", newline="") as file:
            for row in csv.DictReader(file):
                values = float(row["true_cost_usd"]), float(row["true_quality"])
                steps[float(row["from_budget_usd"])] = values
        cost, quality = zip(*steps.values(), strict=True)
        return OracleCurve(np.array(list(steps)), np.array(cost), np.array(quality), result["s_0"])


def main() -> None:
    """Entry point; exits with 2 if there is nothing to report."""
    if len(sys.argv) != 2:
        print("usage: python scripts/report.py OUTPUT_DIR", file=sys.stderr)
        sys.exit(2)
    try:
        print(report(Path(sys.argv[1])))
    except (InputError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        sys.exit(2)


def report(output_dir: Path) -> str:
    """Aggregates the runs below a directory over seeds.

    Writes `table.md` and one PNG for each task there.

    Args:
        output_dir: Where `scope-torch` put its runs.

    Returns:
        The table in Markdown, a list of unfinished runs, and the paths of the figures.

    Raises:
        InputError: If there is no finished run.
    """
    runs = [
        Run(path.parent, json.loads(path.read_text()))
        for path in sorted(output_dir.rglob("result.json"))
    ]
    if not runs:
        raise InputError(f"no finished run below {output_dir}; run scope-torch first")
    groups: dict[tuple[str, str, float], list[Run]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    lines = [*_table(groups), "", *_unfinished(output_dir)]
    text = "\n".join(lines).rstrip() + "\n"
    (output_dir / "table.md").write_text(text)
    figures = [str(path) for path in _figures(output_dir, groups)]
    return "\n".join([text, *(f"plot: {path}" for path in figures)])


def _table(groups: dict[tuple[str, str, float], list[Run]]) -> Iterator[str]:
    yield (
        "| task | method | seeds | final cost / reference: median (max) | / optimum: median (max) "
        "| at the optimum | last improvement [USD] | spent [USD] | mean V | b_g | b_c [USD] |"
    )
    yield "|" + " --- |" * 11
    for (task, method, budget), runs in sorted(groups.items()):
        results = [run.result for run in runs]
        known = [r for r in results if r["true_cost_usd"] is not None]
        of_reference = [r["true_cost_usd"] / r["reference_cost_usd"] for r in known]
        of_optimum = [r["true_cost_usd"] / r["optimal_cost_usd"] for r in known]
        hits = sum(ratio <= 1 + 1e-12 for ratio in of_optimum)
        curves = [curve for run in runs if (curve := run.curve()) is not None]
        last = [last_improvement(curve) for curve in curves]
        violation = [float(curve.violation(budget)) for curve in curves]
        yield (
            f"| {task} | {method} | {len(runs)} | {_spread(of_reference, '.1%')} "
            f"| {_spread(of_optimum, '.2f')} | {hits} of {len(known)} | {_spread(last, '.2f')} "
            f"| {_median([r['spend_usd'] for r in results], '.2f')} "
            f"| {_mean(violation)} | {_median([r.get('b_g') for r in results], '.3g')} "
            f"| {_median([r.get('b_c') for r in results], '.2g')} |"
        )


def last_improvement(curve: OracleCurve) -> float:
    """Budget in USD from which c_bf no longer improves."""
    best = curve.best_feasible_cost(curve.budget_usd)
    return float(curve.budget_usd[int(np.argmin(best))])


def _unfinished(output_dir: Path) -> Iterator[str]:
    for path in sorted(output_dir.rglob("settings.json")):
        if not (path.parent / "result.json").exists():
            yield f"unfinished: {path.parent}"
    for path in sorted(output_dir.rglob("error.log")):
        if not (path.parent / "result.json").exists():
            yield f"failed: {path}"


def _figures(output_dir: Path, groups: dict[tuple[str, str, float], list[Run]]) -> Iterator[Path]:
    for task, budget in sorted({(task, budget) for task, _, budget in groups}):
        curves = {
            method: [curve for run in runs if (curve := run.curve()) is not None]
            for (name, method, spendable), runs in groups.items()
            if (name, spendable) == (task, budget)
        }
        curves = {method: seeds for method, seeds in curves.items() if seeds}
        if not curves:
            continue
        first = next(runs for (name, _, _), runs in groups.items() if name == task)[0].result
        path = output_dir / f"{task}_{budget:g}usd.png"
        plot_curves(
            curves,
            budget,
            path,
            title=f"{task}: median, least and most over seeds",
            reference_cost_usd=first["reference_cost_usd"],
            optimal_cost_usd=first["optimal_cost_usd"],
        )
        yield path


def _spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({max(values):{form}})" if values else "unknown"


def _median(values: Sequence[float | None], form: str) -> str:
    numbers = [value for value in values if value is not None]
    return f"{statistics.median(numbers):{form}}" if numbers else "-"


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2g}" if values else "unknown"


if __name__ == "__main__":
    main()
