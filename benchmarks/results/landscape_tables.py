"""Landscapes of simulated worlds beside recorded ones: a table and a figure."""

from __future__ import annotations

import statistics

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from benchmarks.results.landscapes import RECORDED, RECORDINGS, SAMPLES, SHARES
from benchmarks.results.planned import numbers
from benchmarks.results.summary import Row, Rows, markdown
from scope_torch.results.axes import clean
from scope_torch.results.style import (
    BLUE,
    DASH_DOT,
    DOTS,
    GREEN,
    LOOK,
    SOLID,
    VERMILLION,
    plain_log_ticks,
)

NAMES = {  # of statistics, in the order of the table
    "reference_quality": "quality of theta_0",
    "mean_quality": "mean quality",
    "sd_quality": "its sd",
    "feasible": "share good enough",
    "correlation": "correlation of quality and log cost",
    "median_cost": "median cost",
    "sd_log_cost": "sd of log cost",
    "best_quality": "best quality",
    "cheapest_feasible": "cheapest good enough",
    "r2_quality": "R2 of a sum: quality",
    "r2_cost": "R2 of a sum: cost",
    "agreement": "correlation of answers",
    "median_tail": "sd of log cost over queries: median",
    "longest_tail": "its 95% quantile",
}
_STYLES = {
    RECORDED: ("#000000", SOLID),
    "recorded_like": (VERMILLION, SOLID),
    "bottleneck": (BLUE, DASH_DOT),
    "additive": (GREEN, DOTS),
}
_AXES = {"quality_quantiles": "quality", "cost_quantiles": "cost / c(theta_0)"}


def of_worlds(rows: Rows, task: str, family: str, column: str) -> list[float]:
    """A statistic of every world of a family, or of the recording; none where it is not known."""
    of = _rows(rows, task, family)
    return sorted(float(row[column]) for row in of if row[column])


def landscapes_table(rows: Rows) -> str:
    """Statistics of random configurations: recorded, and of two families in the median world."""

    def cell(task: str, family: str, column: str) -> str:
        values = of_worlds(rows, task, family, column)
        if not values or not of_worlds(rows, task, RECORDED, column):
            return ""
        shown = f"{statistics.median(values):.2g}"
        is_range = column == "feasible" and family == "recorded_like"  # where worlds differ most
        return shown + (f" ({values[0]:.2g} to {values[-1]:.2g})" if is_range else "")

    columns = [(task, family) for task in SAMPLES for family in _STYLES if family != "additive"]
    lines = [[name, *(cell(*c, column) for c in columns)] for column, name in NAMES.items()]
    header = [f"`{task}`: {f}" if f == RECORDED else f"`{f}`" for task, f in columns]
    return markdown(["", *header], lines)


def draw_landscapes(rows: Rows) -> Figure:
    """Cumulative distributions of quality and cost: the median world, and all of the third family.

    Only their quantiles at `SHARES` are known.
    """
    panels = [(task, column) for task in RECORDINGS for column in _AXES]
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(7.0, 2.6), layout="constrained")
        row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (task, column) in zip(row, panels, strict=True):
            for family, (colour, line) in _STYLES.items():
                quantiles = [numbers(one[column]) for one in _rows(rows, task, family)]
                x, y = np.median(quantiles, axis=0), 100 * np.array(SHARES)
                axes.plot(x, y, color=colour, ls=line, lw=1.4, label=family)
                if family == "recorded_like":
                    ends = np.min(quantiles, axis=0), np.max(quantiles, axis=0)
                    axes.fill_betweenx(y, *ends, color=colour, alpha=0.15, lw=0)
            if column == "cost_quantiles":
                axes.set(xscale="log", xlim=(0.01, 5))
                plain_log_ticks(axes.xaxis, *axes.get_xlim())
            axes.set(xlabel=_AXES[column], ylim=(0, 100))
            clean(axes)
            axes.set_title(task, loc="left", fontsize=8)
        row[0].set_ylabel("random configurations\nat or below [%]")
        handles, labels = row[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _rows(rows: Rows, task: str, family: str) -> list[Row]:
    return [row for row in rows if (row["problem"], row["method"]) == (task, family)]
