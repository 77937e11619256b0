"""A figure of one result: cost and quality of everything that the search has looked at."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scope_torch.problem import SelectionProblem
from scope_torch.results.digits import per_thousand, quality, threshold
from scope_torch.results.style import BLUE, GREEN, VERMILLION, literal, plain_log_ticks, save_figure
from scope_torch.results.words import in_words
from scope_torch.search.hypervolume import non_dominated

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREY = "0.45"
_SOME = 0.25  # share of the queries from which on an interval is drawn
_MOST_INTERVALS = 25  # more would hide the points
_PER_1000 = 1000
Row = Mapping[str, Any]


def plot_looked_at(
    problem: SelectionProblem,
    rows: Sequence[Row],
    certified: bool,
    path: Path | str | None = None,
) -> Figure:
    """Draws cost and quality of each configuration, with the reference and the choice marked.

    The area of a point grows with the number of queries that were answered. Whiskers are the
    intervals of those that answered a quarter of the queries or more, and at most 25 of them. The
    steps join the configurations of these that no other one beats. The shaded area is not feasible.

    Args:
        problem: What was searched.
        rows: See `scope_torch.results.table.looked_at`.
        certified: Whether the choice is.
        path: PNG, PDF or SVG file to write; None for none.

    Returns:
        The figure, of matplotlib; a notebook shows it.

    Raises:
        InputError: If the file cannot be written.

    Examples:
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.results.table import looked_at
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> result = run(problem, make_scope(problem, base="nano", seed=0), evaluator, 0.1)
        >>> rows = looked_at(result.evidence, result.recommendation)
        >>> plot_looked_at(problem, rows, result.certified).axes[0].get_xlabel()
        'cost [USD per 1,000 queries]'
    """
    from scope_torch.results.plotting import Picture  # matplotlib takes long to import

    figure = Picture(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.subplots()
    shown = [row for row in rows if row["cost_usd"] is not None and row["quality"] is not None]
    least = _least(problem)
    some = [row for row in shown if row["queries"] >= least or row["status"] in _MARKED]
    _scale(axes, shown)
    _infeasible(axes, problem)
    _intervals(axes, some)
    _front(axes, some)
    _points(axes, problem, shown)
    _finish(axes, problem, shown)
    _marks(axes, problem, shown, certified)
    handles = axes.get_legend_handles_labels()
    columns = 3 if len(handles[0]) <= 6 else 4
    figure.legend(
        *handles, loc="outside lower center", ncols=columns, fontsize="small", frameon=False
    )
    if path is not None:
        save_figure(figure, Path(path))
    return figure


_MARKED = ("choice", "reference")
_ORDER = {"reference": 1, "choice": 2}  # what is drawn last is hidden by nothing


def _least(problem: SelectionProblem) -> float:
    """Queries from which on a configuration has an interval, and may stand on the front."""
    return problem.num_queries * _SOME


def _x(usd_per_query: float) -> float:
    return _PER_1000 * usd_per_query


def _scale(axes: Axes, shown: Sequence[Row]) -> None:
    """A logarithmic axis of costs, unless one is 0, with room around the points."""
    costs = [_x(row["cost_usd"]) for row in shown]
    low, high = min(costs), max(costs)
    if low <= 0:
        axes.set_xlim(-0.05 * (high or 1.0), 1.15 * (high or 1.0))
        return
    axes.set_xscale("log")
    room = (high / low) ** 0.09 * 1.15
    axes.set_xlim(low / room, high * room)
    plain_log_ticks(axes.xaxis, low, high)


def _infeasible(axes: Axes, problem: SelectionProblem) -> None:
    """The area below the threshold, or beyond the bound on the cost."""
    style: dict[str, Any] = {"color": "0.5", "alpha": 0.10, "lw": 0, "zorder": 0}
    line: dict[str, Any] = {"color": _GREY, "lw": 0.9, "ls": (0, (4, 3)), "zorder": 1}
    if problem.objective == "cost":
        axes.axhspan(-1, problem.s_0, **style)
        axes.axhline(problem.s_0, **line)
        return
    most = _x(problem.limits[0].value)
    axes.axvspan(most, max(1e3 * most, axes.get_xlim()[1]), **style)
    axes.axvline(most, **line)


def _intervals(axes: Axes, some: Sequence[Row]) -> None:
    """Whiskers of the intervals, clipped to [0, 1] and to the axis."""
    by_evidence = sorted(some, key=lambda row: (_ORDER.get(row["status"], 0), row["queries"]))
    left, right = axes.get_xlim()
    for row in by_evidence[-_MOST_INTERVALS:]:
        style: dict[str, Any] = {"color": _colour(row), "lw": 0.9, "alpha": 0.4, "zorder": 2}
        if row["quality_lower"] is not None and row["quality_upper"] is not None:
            ends = max(0.0, row["quality_lower"]), min(1.0, row["quality_upper"])
            axes.vlines(_x(row["cost_usd"]), *ends, **style)
        if row["cost_lower"] is not None and row["cost_upper"] is not None:
            ends = max(left, _x(row["cost_lower"])), min(right, _x(row["cost_upper"]))
            axes.hlines(row["quality"], *ends, **style)


def _front(axes: Axes, some: Sequence[Row]) -> None:
    """Steps through the configurations that no other one beats."""
    kept = non_dominated([row["cost_usd"] for row in some], [row["quality"] for row in some])
    x = [_x(some[i]["cost_usd"]) for i in kept]
    y = [some[i]["quality"] for i in kept]
    style: dict[str, Any] = {"color": "0.35", "lw": 1.1, "alpha": 0.8, "zorder": 2.5}
    label = "Pareto front"
    axes.plot([*x, axes.get_xlim()[1]], [*y, y[-1]], drawstyle="steps-post", label=label, **style)


def _colour(row: Row) -> str:
    return {"choice": VERMILLION, "reference": "black"}.get(row["status"], BLUE)


def _points(axes: Axes, problem: SelectionProblem, shown: Sequence[Row]) -> None:
    """Everything looked at; larger where more queries were answered.

    An average over a few queries may be far from all others: it then stands at the edge.
    """
    low, high = _quality_limits(problem, shown)
    others = [row for row in shown if row["status"] not in _MARKED]
    good = [row for row in others if row["status"] in ("certified", "accepted")]
    few = [row for row in others if row not in good and row["queries"] < _least(problem)]
    rest = [row for row in others if row not in good and row not in few]
    styles: list[dict[str, Any]] = [
        {"facecolors": "none", "edgecolors": BLUE, "alpha": 0.5, "label": "on few queries"},
        {"color": BLUE, "alpha": 0.5, "edgecolors": "white", "label": "looked at"},
        {"color": GREEN, "alpha": 0.75, "edgecolors": "white", "label": "the choice for a time"},
    ]
    for group, style in zip((few, rest, good), styles, strict=True):
        if group:
            axes.scatter(
                [_x(row["cost_usd"]) for row in group],
                [min(max(row["quality"], low), high) for row in group],
                clip_on=False,
                s=[8 + 62 * row["queries"] / problem.num_queries for row in group],
                linewidths=0.6,
                zorder=3,
                **style,
            )


def _marks(axes: Axes, problem: SelectionProblem, shown: Sequence[Row], certified: bool) -> None:
    """The reference as a star, and the choice as a diamond with its name."""
    reference = next(row for row in shown if row["theta"] == problem.theta_ref)
    choice = next((row for row in shown if row["status"] == "choice"), None)
    style: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.7, "zorder": 5}
    at = _x(reference["cost_usd"]), reference["quality"]
    axes.scatter(*at, marker="*", s=210, color="black", label="reference", **style)
    if choice is None or choice is reference:
        _label(axes, reference, problem, "keep the reference", "black")
        return
    kind = "choice, certified" if certified else "choice, not certified"
    at = _x(choice["cost_usd"]), choice["quality"]
    axes.scatter(*at, marker="D", s=75, color=VERMILLION, label=kind, **style)
    _label(axes, choice, problem, "", VERMILLION)


def _label(axes: Axes, row: Row, problem: SelectionProblem, title: str, colour: str) -> None:
    """Name, cost and quality of a configuration, above the data, with a line to its point."""
    names = textwrap.fill(in_words(problem.names(row["theta"]), 120), 52, break_on_hyphens=False)
    values = f"{per_thousand(row['cost_usd'])} USD, quality {quality(row['quality'])}"
    point = _x(row["cost_usd"]), row["quality"]
    at = axes.transAxes.inverted().transform(axes.transData.transform(point))[0]
    side = "left" if at < 0.33 else "right" if at > 0.67 else "center"
    axes.annotate(
        literal("\n".join(part for part in (title, names, values) if part)),
        point,
        xytext=(at, 1.02),
        textcoords="axes fraction",
        ha=side,
        va="bottom",
        fontsize="small",
        color=colour,
        arrowprops={
            "arrowstyle": "-",
            "color": "0.6",
            "lw": 0.7,
            "shrinkB": 5,
            "relpos": ({"left": 0.0, "right": 1.0}.get(side, 0.5), 0.0),
        },
        zorder=4,
    )


def _quality_limits(problem: SelectionProblem, shown: Sequence[Row]) -> tuple[float, float]:
    """The axis holds the threshold, and all averages but those over a few queries."""
    some = [r for r in shown if r["queries"] >= _least(problem) or r["status"] in _MARKED]
    values = [row["quality"] for row in some] + ([problem.s_0] if problem.s_0 else [])
    room = max(0.03, 0.12 * (max(values) - min(values)))
    return max(-0.02, min(values) - room), min(1.02, max(values) + room)


def _finish(axes: Axes, problem: SelectionProblem, shown: Sequence[Row]) -> None:
    """Limits, names of the axes, and the legend outside the data."""
    axes.set_ylim(*_quality_limits(problem, shown))
    left, right = axes.get_xlim()
    axes.set_xlim(left, right)
    axes.set(xlabel="cost [USD per 1,000 queries]", ylabel="average quality")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9", lw=0.6, zorder=0)
    axes.set_axisbelow(True)
    what = f"least quality, {threshold(problem.s_0)}"
    if problem.objective == "quality":
        what = f"highest cost, {per_thousand(problem.limits[0].value)} USD"
    axes.plot([], [], color=_GREY, lw=0.9, ls=(0, (4, 3)), label=what)
