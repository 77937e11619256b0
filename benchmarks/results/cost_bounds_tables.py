"""How often bounds on costs hold where nothing was observed: a table and a figure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from scipy.stats import norm

from benchmarks.results.cost_bounds import FITS, WIDTHS
from benchmarks.results.planned import numbers
from benchmarks.results.summary import Row, Rows, code, grouped, markdown
from scope_torch.results.axes import clean
from scope_torch.results.style import BLUE, DASH_DOT, LOOK, SOLID, VERMILLION

_WHEN = {"calibrated": "after Calibrate", "end": "at the end"}
_CELLS = [*itertools.product(_WHEN, FITS)]
_STYLES = dict(zip(FITS, [(VERMILLION, SOLID), (BLUE, DASH_DOT)], strict=True))


def cost_bounds_table(rows: Rows) -> str:
    """Shares of unseen configurations whose cost is within the bounds at 3 deviations."""

    def cell(of: Sequence[Row], when: str) -> str:
        looked = [row for row in of if row[f"{when}_below"]]
        if not looked:
            return ""
        within = np.mean([numbers(row[f"{when}_within"])[WIDTHS.index(3.0)] for row in looked])
        below = np.mean([float(row[f"{when}_below"]) for row in looked])
        return f"{within:.1%}, {below:.1%}"

    groups = grouped(rows)
    lines = [
        [
            code(problem),
            *(cell(groups.get((problem, fit), ()), when) for when, fit in _CELLS),
        ]
        for problem in dict.fromkeys(problem for problem, _ in groups)
    ]
    header = ["task", *(f"{_WHEN[when]}: {fit}" for when, fit in _CELLS)]
    return markdown(header, lines)


def draw_cost_bounds(rows: Rows) -> Figure:
    """After Calibrate: the share of unseen configurations within so many standard deviations."""
    groups = grouped(rows)
    problems = [*dict.fromkeys(problem for problem, _ in groups)]
    across = 3
    with matplotlib.rc_context(LOOK):
        down = math.ceil(len(problems) / across)
        figure = Figure(figsize=(7.0, 1.6 * down + 0.5), layout="constrained")
        grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        for axes in grid.flat[len(problems) :]:
            axes.set_visible(False)
        for axes, problem in zip(grid.flat, problems, strict=False):
            for fit, (colour, line) in _STYLES.items():
                of = groups.get((problem, fit), ())
                curves = [numbers(row["calibrated_within"]) for row in of]
                if not curves:
                    continue  # its runs are still to be made
                y = 100 * np.mean([one for one in curves if len(one)], axis=0)
                axes.plot(WIDTHS, y, color=colour, ls=line, lw=1.4, label=fit)
            expected = 100 * (1 - 2 * norm.sf(WIDTHS))
            axes.plot(WIDTHS, expected, color="#777777", ls=":", lw=1, label="normal")
            axes.set(xlim=(0, WIDTHS[-1]), ylim=(0, 104), xticks=range(0, 7, 2))
            clean(axes)
            axes.set_title(problem, loc="left", fontsize=8)
        figure.supxlabel("standard deviations", fontsize=8)
        figure.supylabel("costs within [%]", fontsize=8)
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure
