"""Figures in the paper's form: best feasible cost and, where there is one, violation below it."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec, SubplotSpec

from scope_torch.results.axes import (
    FEW,
    LEAST_FOR_QUARTILES,
    LEGEND,
    MOST_LINES,
    budget_axis,
    clean,
    cost_axis,
    line_handles,
    lines,
    marker,
    method_handles,
    share_of_budget,
    share_of_reference,
    violation_axis,
)
from scope_torch.results.metrics import OracleCurve
from scope_torch.results.panel import Panel, Published
from scope_torch.results.style import LOOK, PUBLISHED, Style, literal, save_figure, styles_of

_WIDTH = 7.0  # inches: both columns of a page
_TITLE = 96  # characters of titles side by side
_MARKERS = 4  # along a curve; those of other methods lie between them


class Picture(Figure):
    """A figure that a notebook shows as a picture; pyplot need not be imported."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self.savefig(png, format="png", dpi=100)
        return png.getvalue()


def plot_curves(
    curves: Mapping[str, Sequence[OracleCurve]],
    budget_usd: float,
    path: Path,
    *,
    title: str,
    reference_cost_usd: float,
    optimal_cost_usd: float | None = None,
    paper: Published | None = None,
    paper_source: str = "",
    label: str | None = None,
) -> None:
    """Draws c_bf and V against the budget into a file; see `draw_panel`.

    Args:
        curves: The curves of all runs, by method.
        budget_usd: Largest budget shown, in USD.
        path: PNG, PDF or SVG file to write.
        title: Title of the figure.
        reference_cost_usd: c(theta_0) in USD, drawn as a line.
        optimal_cost_usd: c(theta_star) in USD, drawn as a line; None if unknown.
        paper: Published curves by method: budgets in USD and costs in USD.
        paper_source: Where the published curves are from.
        label: See `Panel`; if quality is the objective, 1 - quality takes the place of the cost.

    Raises:
        InputError: If the file cannot be written.
    """
    two_lines = reference_cost_usd, optimal_cost_usd
    panel = Panel(title, curves, budget_usd, *two_lines, paper or {}, label)
    save_figure(draw_panel(panel, paper_source), path)


def draw_panel(panel: Panel, paper_source: str = "") -> Figure:
    """A figure of one task: medians of c_bf, and of V if there is one, against the budget.

    With several methods, a strip on the right has the end of the budget: median, quartiles and runs
    of each method. With at most three methods, runs are thin lines and quartiles are bands.

    Args:
        panel: What is drawn.
        paper_source: Where the published curves are from.

    Examples:
        >>> curve = OracleCurve.from_steps({0.0: (0.01, 0.9), 1.0: (0.004, 0.85)}, s_0=0.8)
        >>> panel = Panel("mine", {"scope": [curve]}, budget_usd=2.0, reference_cost_usd=0.01)
        >>> [axes.get_xlabel() for axes in draw_panel(panel).axes]
        ['search spend [USD]']
    """
    violated, styles = panel.violated, styles_of(panel.curves)
    strip = len(styles) > 1
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(_WIDTH, 4.5 if violated else 3.6), layout="constrained")
        grid = figure.add_gridspec(
            1 + violated,
            1 + strip,
            height_ratios=(3, 1)[: 1 + violated],
            width_ratios=(4.6, max(0.6, 0.2 * len(styles)))[: 1 + strip],
        )
        cells = [grid[row, 0] for row in range(1 + violated)]
        upper, lower = _column(figure, cells, panel, styles)
        share_of_budget(upper, panel)
        upper.set_title(literal(panel.title), loc="left", fontsize=8)
        if strip:
            _strip(figure, grid, panel, styles, upper, lower)
        else:
            share_of_reference(upper, panel)
        _legend(figure, styles, line_handles([panel], paper_source))
    return figure


def draw_panels(panels: Sequence[Panel], paper_source: str = "") -> Figure:
    """A figure of several tasks: a panel for each, with one legend below them all.

    Args:
        panels: What is drawn, in this order.
        paper_source: Where the published curves are from.
    """
    styles = styles_of(label for panel in panels for label in panel.curves)
    columns = 2 if len(panels) <= 4 else 3
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    heights = [h for row in rows for h in (3, 1)[: 1 + any(p.violated for p in row)]]
    with matplotlib.rc_context(LOOK):
        size = _WIDTH, 0.62 * sum(heights) + 0.3 * (2 + len(styles) // 4)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
        top = 0
        for row in rows:
            deep = 1 + any(panel.violated for panel in row)
            before: list[str | None] = [None, None]  # labels of the axes on the left
            for column, panel in enumerate(row):
                cells = [grid[top : top + deep, column]]
                if panel.violated:
                    cells = [grid[top, column], grid[top + 1, column]]
                upper, lower = _column(figure, cells, panel, styles)
                share_of_reference(upper, panel, named=column == len(row) - 1)
                title = textwrap.fill(panel.title, _TITLE // columns, break_on_hyphens=False)
                upper.set_title(literal(title), loc="left", fontsize=8)
                labels = [axes and axes.get_ylabel() for axes in (upper, lower)]
                for axes, label, left in zip((upper, lower), labels, before, strict=True):
                    if axes is not None and label == left:
                        axes.set_ylabel("")
                before = labels
            top += deep
        _legend(figure, styles, line_handles(panels, paper_source))
    return figure


def _legend(figure: Figure, styles: Mapping[str, Style], others: Sequence[Any]) -> None:
    """Below all axes; in as many columns as there is room for."""
    place: dict[str, Any] = {"loc": "outside lower center", **LEGEND}
    handles = [*method_handles(styles), *others]
    for number in range(4, 0, -1):
        legend = figure.legend(handles=handles, ncols=number, **place)
        if number == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def _column(
    figure: Figure, cells: Sequence[SubplotSpec], panel: Panel, styles: Mapping[str, Style]
) -> tuple[Axes, Axes | None]:
    """The axes of c_bf and, if there are two cells, those of V below."""
    upper = figure.add_subplot(cells[0])
    lower = figure.add_subplot(cells[1], sharex=upper) if len(cells) > 1 else None
    clean(upper)
    cost_axis(upper, panel)
    for position, (name, style) in enumerate(styles.items()):
        if name in panel.curves:
            _method(upper, lower, panel, name, style, (position + 0.5) / len(styles))
    if lower is not None:
        upper.tick_params(labelbottom=False)
        clean(lower)
        violation_axis(lower)
    budget_axis(lower or upper, panel)
    return upper, lower


def _method(
    upper: Axes, lower: Axes | None, panel: Panel, name: str, style: Style, offset: float
) -> None:
    """One method: its medians, runs and quartiles if there are few methods, its published curve.

    Args:
        upper: Axes of c_bf.
        lower: Axes of V; a method without a violation is not drawn there.
        panel: Has the curves.
        name: The method.
        style: Its style.
        offset: Place of its markers between those of others, in [0, 1].
    """
    few = len(panel.curves) <= FEW
    places = panel.budget_usd * (np.arange(_MARKERS) + offset) / _MARKERS

    def costs(x: np.ndarray) -> np.ndarray:
        return panel.costs(name, x)

    def violations(x: np.ndarray) -> np.ndarray:
        return panel.violations(name, x)

    reference = panel.scale * panel.reference_cost_usd
    _median(upper, panel.jumps(name), costs, places, style, few, reference, step="post")
    if lower is not None and panel.violates(name):
        _median(lower, panel.smooth, violations, places, style, few, 0.0)
    if name in panel.paper:
        x, y = panel.paper[name]
        dashed: dict[str, Any] = {"ls": PUBLISHED, "lw": 1, "color": style.colour, "zorder": 2.4}
        upper.plot(x, panel.scale * y, drawstyle="steps-post", **dashed)


def _median(
    axes: Axes,
    x: np.ndarray,
    of: Callable[[np.ndarray], np.ndarray],
    places: np.ndarray,
    style: Style,
    few: bool,
    start: float,
    step: Any = None,
) -> None:
    """The median over runs, with the method's marker at some places where it has left `start`."""
    values, drawn = of(x), "default" if step is None else "steps-post"
    colour: dict[str, Any] = {"color": style.colour}
    if few and 1 < len(values) <= MOST_LINES:
        axes.plot(x, values.T, lw=0.5, alpha=0.55, drawstyle=drawn, zorder=2.1, **colour)
    if few and len(values) >= LEAST_FOR_QUARTILES:
        # Of runs, not between them: halfway to +inf is not a number.
        low, high = np.percentile(values, [25, 75], axis=0, method="inverted_cdf")
        axes.fill_between(x, low, high, step=step, alpha=0.13, lw=0, zorder=2, **colour)
    axes.plot(
        x, np.median(values, axis=0), lw=1.3, ls=style.line, drawstyle=drawn, zorder=2.6, **colour
    )
    marked = np.median(of(places), axis=0)
    away = ~np.isclose(marked, start)  # where all methods begin, markers would pile up
    axes.plot(places[away], marked[away], zorder=2.8, **marker(style))


def _strip(
    figure: Figure,
    grid: GridSpec,
    panel: Panel,
    styles: Mapping[str, Style],
    upper: Axes,
    lower: Axes | None,
) -> None:
    """The end of the budget: median, quartiles and runs of each method."""
    end = np.array([panel.budget_usd])
    for row, left in enumerate([upper] if lower is None else [upper, lower]):
        axes = figure.add_subplot(grid[row, 1], sharey=left)
        clean(axes)
        axes.tick_params(left=False, labelleft=False, which="both")
        axes.spines["left"].set_visible(False)
        for x, (name, style) in enumerate(styles.items()):
            values = panel.violations(name, end) if row else panel.costs(name, end)
            _end(axes, x, values[:, 0], style)
        axes.set_xlim(-0.7, len(styles) - 0.3)
        axes.set_xticks([])
        if not row:
            axes.set_title("at the end", fontsize=8, loc="left")
            lines(axes, panel)
            share_of_reference(axes, panel)


def _end(axes: Axes, x: float, values: np.ndarray, style: Style) -> None:
    """Median, quartiles (or all, if these are few) and runs of one method at the end."""
    if len(values) > 1:
        shares = [25, 75] if len(values) >= LEAST_FOR_QUARTILES else [0, 100]
        low, high = np.percentile(values, shares, method="inverted_cdf")
        axes.vlines(x, low, high, color=style.colour, lw=3, alpha=0.3, zorder=2)
        axes.plot([x] * len(values), values, "_", ms=6, mew=0.7, color=style.colour, zorder=2.5)
    axes.plot(x, np.median(values), zorder=3, clip_on=False, **marker(style, 5.5))
