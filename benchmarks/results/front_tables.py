"""Tables and figure of docs/results-front.md."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from benchmarks.results.front import CURVE, METHODS, SHARES
from benchmarks.results.planned import numbers
from benchmarks.results.summary import Row, Rows, markdown
from scope_torch.results.axes import clean
from scope_torch.results.style import LOOK

_STYLES = (
    *(("#0072B2", "-"), ("#56B4E9", "--"), ("#999999", ":"), ("#117733", "-."), ("#E69F00", "-.")),
    *(("#CC79A7", "-"), ("#882255", "--")),
)


def shares(values: Iterable[str]) -> str:
    """The median, the least and the largest share; `never` (an empty cell) is more than all."""
    found = sorted(float(value) if value else math.inf for value in values)
    three = statistics.median(found), found[0], found[-1]
    middle, low, high = ("never" if math.isinf(value) else f"{value:.0%}" for value in three)
    return f"{middle} ({low} to {high})"


def front_table(rows: Rows) -> str:
    """The tables of one task: areas, and when parts of the front are found."""
    by_method = {m: [r for r in rows if r["method"] == m] for m in METHODS}
    by_method = {m: of for m, of in by_method.items() if of}
    one = rows[0]
    parts = [
        f"{one['configurations']} configurations, {one['queries']} queries; the whole grid costs "
        f"{float(one['grid_usd']):.2f} USD."
    ]
    lines = [
        [m, *(f"{statistics.mean(float(r[f'area_log_{s:g}']) for r in of):.3f}" for s in SHARES)]
        for m, of in by_method.items()
    ]
    parts.append("Mean areas (cost in log USD) after a share of the grid's cost:")
    parts.append(markdown(["method", *(f"{share:.0%}" for share in SHARES)], lines))
    parts.append("Share of the grid's cost until then, median (least to largest):")
    return "\n\n".join([*parts, _found_table(by_method)])


def _found_table(by_method: Mapping[str, Sequence[Row]]) -> str:
    columns = ("area_95_kept", "best_kept", "exact_kept")
    lines = []
    for method, of in by_method.items():
        cells = [shares(row[column] for row in of) for column in columns]
        ends = all(row["stopped"] == "1" for row in of)
        end = shares(row["end"] for row in of) if ends else ""
        speeds = [float(row["speedup_lognormal"]) for row in of if row["speedup_lognormal"]]
        lines.append([method, *cells, end, f"{statistics.median(speeds):.1f}" if speeds else ""])
    header = ["method", "area 95%", "most accurate", "exact front", "search ends", "times as fast"]
    return markdown(header, lines)


def draw_fronts(rows: Rows) -> Figure:
    """Mean area (cost in log USD) against the share of the grid's cost, a panel for each task."""
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(3.6 * len(problems), 3.4), layout="constrained")
        panels = figure.subplots(1, len(problems), sharey=True, squeeze=False)[0]
        for axes, problem in zip(panels, problems, strict=True):
            one_at_a_time = [method for method in METHODS if "32" not in method]
            for number, method in enumerate(one_at_a_time):
                of = [r for r in rows if (r["problem"], r["method"]) == (problem, method)]
                if of:
                    mean = np.mean([numbers(row["area_log_curve"]) for row in of], axis=0)
                    style = _STYLES[number]
                    axes.plot(CURVE, mean, lw=1.6, color=style[0], ls=style[1], label=method)
            axes.set(xscale="log", xlabel="spend / cost of the whole grid", ylim=(0.4, 1.01))
            axes.set_title(problem, loc="left", fontsize=8)
            clean(axes)
        panels[0].set_ylabel("area below the front / true area (log USD)")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure
