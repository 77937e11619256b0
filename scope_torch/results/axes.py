"""Axes, marks and legends of the figures of `scope_torch.results.plotting`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scope_torch.results.panel import Panel
from scope_torch.results.style import PUBLISHED, Style, literal, plain_log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "0.45"  # of all that belongs to no method
FEW = 3  # methods; with more, runs and quartiles would hide the medians
MOST_LINES = 10  # runs of a method that are drawn one by one
LEAST_FOR_QUARTILES = 4
LEGEND: dict[str, Any] = {"fontsize": 7.5, "frameon": False, "handlelength": 2.8}
_LOG_FROM = 5  # largest value over least value from which on the axis is logarithmic
# Above the curves, which begin there: the last one drawn would hide it, and all others.
_REFERENCE: dict[str, Any] = {"color": "0.8", "lw": 2.5, "zorder": 2.7}
_OPTIMUM: dict[str, Any] = {"color": "0.3", "lw": 0.8, "ls": (0, (1, 2)), "zorder": 1.5}
_SMALL = 7.5  # points


def clean(axes: Axes) -> None:
    """Makes the axes thin, without a frame, with horizontal lines of a grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=_SMALL, width=0.6, which="both")
    axes.grid(axis="y", color="0.92", lw=0.5)
    axes.set_axisbelow(True)


def cost_axis(axes: Axes, panel: Panel) -> None:
    """Sets scale, limits and label of the axis of c_bf, and draws its lines.

    It is logarithmic if the largest value is five times the least, or more.
    """
    low, high = panel.span
    if low > 0 and high / low >= _LOG_FROM:
        room = (high / low) ** 0.06
        axes.set(yscale="log", ylim=(low / room, high * room))
        plain_log_ticks(axes.yaxis, low, high)
    else:
        axes.set_ylim(-0.03 * (high or 1.0), 1.06 * (high or 1.0))
    axes.set_ylabel(panel.label or "best feasible cost $c_{bf}$\n[USD per 1,000 queries]")
    lines(axes, panel)


def lines(axes: Axes, panel: Panel) -> None:
    """Draws the reference and the optimum."""
    axes.axhline(panel.scale * panel.reference_cost_usd, **_REFERENCE)
    if panel.optimal_cost_usd is not None:
        axes.axhline(panel.scale * panel.optimal_cost_usd, **_OPTIMUM)


def budget_axis(axes: Axes, panel: Panel) -> None:
    """Sets limits and label of the axis of the spend."""
    axes.set_xlim(0, panel.budget_usd)
    axes.set_xlabel("search spend [USD]")


def violation_axis(axes: Axes) -> None:
    """Sets limits and label of the axis of V; a curve at 0 must not hide behind the axis."""
    top = max(1e-2, axes.get_ylim()[1])
    axes.set_ylim(-0.06 * top, top)
    axes.set_ylabel("violation $V$")


def share_of_budget(axes: Axes, panel: Panel) -> None:
    """Adds an axis on top: the spend as a share of the budget."""
    ratio = (lambda usd: usd / panel.budget_usd), (lambda share: share * panel.budget_usd)
    top = axes.secondary_xaxis("top", functions=ratio)
    _second(top, top.xaxis)
    top.set_xlabel("share of the budget", fontsize=_SMALL, color=GREY)


def share_of_reference(axes: Axes, panel: Panel, named: bool = True) -> None:
    """Adds an axis on the right: c_bf as a share of c(theta_0); not if c_bf is no cost."""
    whole = panel.scale * panel.reference_cost_usd
    if panel.label is not None or not whole:
        return
    ratio = (lambda cost: cost / whole), (lambda share: share * whole)
    right = axes.secondary_yaxis("right", functions=ratio)
    if axes.get_yscale() == "log":
        plain_log_ticks(right.yaxis, *panel.span)
    _second(right, right.yaxis)
    if named:
        right.set_ylabel("share of the reference", fontsize=_SMALL, color=GREY)


def _second(axes: Any, axis: Any) -> None:
    """A grey axis of percentages, without a line."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.6g}%"))
    axes.tick_params(labelsize=_SMALL, colors=GREY, width=0.6, which="both")
    axes.spines[:].set_visible(False)


def marker(style: Style, size: float = 5) -> dict[str, Any]:
    """Arguments of `plot` for the marker of a method, without a line."""
    larger = 1.35 if style.marker == "*" else 1
    edge = {"mec": "white", "mew": 0.5}
    return {"ls": "", "marker": style.marker, "ms": size * larger, "color": style.colour, **edge}


def method_handles(styles: Mapping[str, Style]) -> list[Any]:
    """Entries of a legend for methods."""
    from matplotlib.lines import Line2D

    looks: list[dict[str, Any]] = [{**marker(s), "ls": s.line, "lw": 1.3} for s in styles.values()]
    titles = [literal(style.title) for style in styles.values()]
    return [Line2D([], [], label=t, **look) for t, look in zip(titles, looks, strict=True)]


def line_handles(panels: Sequence[Panel], paper_source: str) -> list[Any]:
    """Entries of a legend for all that is no method."""
    from matplotlib.lines import Line2D

    handles: list[Any] = [Line2D([], [], label="reference, where all begin", **_REFERENCE)]
    if any(panel.optimal_cost_usd is not None for panel in panels):
        handles.append(Line2D([], [], label="optimum", **_OPTIMUM))
    handles += _spread_handles(panels)
    if any(name in panel.paper for panel in panels for name in panel.curves):
        source = f"published: {paper_source}" if paper_source else "published"
        label = textwrap.fill(source, 30, break_on_hyphens=False)
        handles.append(Line2D([], [], color=GREY, lw=1, ls=PUBLISHED, label=label))
    return handles


def _spread_handles(panels: Sequence[Panel]) -> Iterable[Any]:
    """Entries for runs and quartiles, as far as they are drawn."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    runs = max(len(curves) for panel in panels for curves in panel.curves.values())
    few = any(len(panel.curves) <= FEW for panel in panels)
    strip = len(panels) == 1 and len(panels[0].curves) > 1
    if few and 1 < runs <= MOST_LINES:
        yield Line2D([], [], color=GREY, lw=0.5, label="a run")
    if runs >= LEAST_FOR_QUARTILES and (few or strip):
        yield Patch(color=GREY, alpha=0.3, lw=0, label="quartiles")
    elif runs > 1 and strip:
        yield Patch(color=GREY, alpha=0.3, lw=0, label="all runs")
