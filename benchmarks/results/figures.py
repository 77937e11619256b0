"""The figures of docs/results, drawn from the committed runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from benchmarks.results.cells import MAIN, SIMULATED
from benchmarks.results.cells import RECORDED as ON_RECORDINGS
from benchmarks.results.cost_bounds_tables import draw_cost_bounds
from benchmarks.results.front_tables import draw_fronts
from benchmarks.results.landscape_tables import draw_landscapes
from benchmarks.results.landscapes import RECORDED, RECORDINGS
from benchmarks.results.other_tables import (
    PEERS_SHOWN,
    beside_others,
    by_group,
    not_trivial,
    of_budget,
)
from benchmarks.results.planned import numbers, read_rows
from benchmarks.results.runs import STEPS
from benchmarks.results.summary import Row, Rows, grouped
from scope_torch.cli.paper import CITATION, paper_curves
from scope_torch.results.axes import clean, marker, method_handles
from scope_torch.results.metrics import OracleCurve
from scope_torch.results.panel import Panel
from scope_torch.results.plotting import draw_panel, draw_panels
from scope_torch.results.style import DASH_DOT, DOTS, LOOK, Style, save_figure, styles_of

_SHOWN = [name for name in MAIN if name != "scope, b_g=eligible"]
_RECORDED = tuple(f"recorded/{task}" for task in ON_RECORDINGS)
FIGURES = {  # name: file, problems, methods
    "main": ("main", SIMULATED, _SHOWN),
    "additive": ("additive", SIMULATED, _SHOWN),
    "mathqa": ("tables", ("mathqa",), _SHOWN),
    "recorded": ("recorded", _RECORDED, _SHOWN),
    "recorded_peers": ("recorded", _RECORDED, PEERS_SHOWN),
}
_PEERS = {
    "optuna_tpe": Style("Optuna TPE", "#E69F00", "v", DASH_DOT),
    "optuna_nsga2": Style("Optuna NSGA-II", "#117733", "<", DOTS),
    "smac": Style("SMAC3", "#882255", "P", DASH_DOT),
    "botorch": Style("BoTorch", "#CC79A7", "p", DASH_DOT),
    "ax": Style("Ax", "#56B4E9", "X", DOTS),
}
_MARKERS = 3  # along a curve; those of other methods lie between them
_LABELS = {m: style.title for m, style in _PEERS.items()} | {"scope, to the letter": "scope_letter"}


def draw_all(folder: Path, to: Path) -> None:
    """Draws every figure whose runs are there, as PNG."""
    to.mkdir(parents=True, exist_ok=True)
    for name, (source, problems, methods) in FIGURES.items():
        panels = panels_of(not_trivial(read_rows(folder / f"{source}.csv")), problems, methods)
        if panels:
            figure = draw_panels(panels, CITATION) if len(panels) > 1 else draw_panel(panels[0])
            save_figure(figure, to / f"{name}.png")
    if peers := read_rows(folder / "peers.csv"):
        more = [row for name in ("main", "tables") for row in read_rows(folder / f"{name}.csv")]
        save_figure(draw_shares([*peers, *more]), to / "peers.png")
    fronts = [
        r for name in ("front_development", "front") for r in read_rows(folder / f"{name}.csv")
    ]
    if fronts:
        save_figure(draw_fronts(fronts), to / "front.png")
    bounds = read_rows(folder / "cost_bounds_development.csv")
    bounds = [{**row, "problem": f"{row['problem']} *"} for row in bounds]
    if bounds := bounds + read_rows(folder / "cost_bounds.csv"):
        save_figure(draw_cost_bounds(bounds), to / "cost_bounds.png")
    landscapes = read_rows(folder / "landscapes.csv")
    if {row["problem"] for row in landscapes if row["method"] == RECORDED} >= RECORDINGS.keys():
        save_figure(draw_landscapes(landscapes), to / "landscapes.png")


def draw_shares(rows: Rows) -> Figure:
    """The share of runs that are within 10% of the optimum, against the share of the budget spent.

    Ours and other libraries on the same problems, worlds and seeds: a panel for the recorded
    problems, and one for each simulated task.
    """
    rows = beside_others(not_trivial(rows))
    groups = by_group(rows)
    methods = [m for m in PEERS_SHOWN if any(r["method"] == m for r in rows)]
    styles = styles_of(methods) | _PEERS
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(7.0, 2.9), layout="constrained")
        columns = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
        for axes, (title, group) in zip(columns, groups.items(), strict=True):
            for number, method in enumerate(methods):
                of = [row for row in group if row["method"] == method]
                if not of:
                    continue  # Ax has no data_transformation
                spent = np.sort([of_budget(row) for row in of])
                x = np.append(spent[np.isfinite(spent)], 1.0)
                y = np.append(np.arange(1, len(x)) / len(of), (len(x) - 1) / len(of))
                style = styles[method]
                x, y = 100 * np.append(0.0, x), 100 * np.append(0.0, y)
                places = 100 * (np.arange(_MARKERS) + (number + 0.5) / len(methods)) / _MARKERS
                line = {"ls": style.line, "lw": 1.3, "color": style.colour}
                axes.plot(x, y, drawstyle="steps-post", **line)
                at = y[np.searchsorted(x, places, side="right") - 1]
                axes.plot(places, at, zorder=3, **marker(style))
            axes.set_title(title.replace(" on ", "\non "), loc="left", fontsize=8)
            clean(axes)
        columns[len(columns) // 2].set_xlabel("share of the budget spent [%]")
        columns[0].set_ylabel("runs within 10% of the optimum [%]")
        handles = method_handles({method: styles[method] for method in methods})
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


def panels_of(rows: Rows, problems: Sequence[str], methods: Sequence[str] = _SHOWN) -> list[Panel]:
    """A panel for each problem: c_bf and V as shares, over all worlds and seeds."""
    groups = grouped(rows)
    return [
        _panel(problem, {m: of for (p, m), of in groups.items() if p == problem and m in methods})
        for problem in problems
        if any(p == problem for p, _ in groups)
    ]


def _panel(problem: str, groups: dict[str, list[Row]]) -> Panel:
    """Without methods of whose worlds most are still to be run: others have other medians."""
    most = max(map(len, groups.values()))
    groups = {m: of for m, of in groups.items() if 3 * len(of) > most or not of[0]["world"]}
    every = [row for of in groups.values() for row in of]
    reference = float(every[0]["c_0"])
    optima = [float(row["c_star"]) for row in every]
    budget = float(every[0]["budget_usd"])
    published = paper_curves(problem, {"a": "GPT-5.2"}, "")
    runs = sorted({len(of) for of in groups.values()})
    return Panel(
        title=f"{problem}: median of {' to '.join(map(str, runs[:1] + runs[1:][-1:]))} runs",
        curves={_LABELS.get(m, m): [oracle(row) for row in of] for m, of in groups.items()},
        budget_usd=budget,
        reference_cost_usd=reference,
        optimal_cost_usd=statistics.median(optima),
        paper={name: curve for name, curve in published.items() if name == "scope"},
    )


def oracle(row: Row) -> OracleCurve:
    """A curve with the c_bf and the V of a row at `STEPS` of the budget.

    Between two steps the average violation of the interval holds.
    """
    budget, s_0 = float(row["budget_usd"]), float(row["s_0"])
    ends = budget * np.array(STEPS)
    total = ends * numbers(row["V_curve"])
    short = np.diff(total, prepend=0.0) / np.diff(ends, prepend=0.0)
    short[short < 1e-4] = 0.0  # V has three digits
    points = np.concatenate([[0.0], ends])
    costs = np.concatenate([[float(row["c_0"])], numbers(row["c_bf_curve"])])
    # A feasible recommendation for an instant carries c_bf; the rest of the interval carries V.
    budgets = np.stack([points, np.nextafter(points, np.inf)]).T.ravel()
    after = s_0 * (1 - np.append(short, 0.0))
    quality = np.stack([np.full(len(points), s_0), after]).T.ravel()
    return OracleCurve(budgets, np.repeat(costs, 2), quality, s_0)
