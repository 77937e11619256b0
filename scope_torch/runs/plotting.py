"""Figures in the paper's form: best feasible cost above, constraint violation below."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scope_torch.errors import cannot_write
from scope_torch.runs.callbacks import Callback, Outcome
from scope_torch.runs.metrics import OracleCurve

# Ten strong colours, then their pale versions.
_TAB20 = matplotlib.color_sequences["tab20"]
_COLOURS = [*_TAB20[::2], *_TAB20[1::2]]


class CurvePlot(Callback):
    """Draws the curves of a finished run into `curves.png` in its directory.

    Draws nothing if the true costs and qualities are unknown.
    """

    def end(self, result: Outcome) -> None:
        """Draws the figure."""
        if result.curve is None or result.run_dir is None:
            return
        summary, path = result.summary(), result.run_dir / "curves.png"
        try:
            plot_curves(
                {summary["method"]: [result.curve]},
                summary["budget_usd"],
                path,
                title=f"{summary['task']}, {summary['method']}, seed {summary['seed']}",
                **lines_of(summary),
            )
        except OSError as error:
            path.unlink(missing_ok=True)
            raise cannot_write(path, error) from error


def lines_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Reference and optimum of a result, and what its curve is of, for `plot_curves`."""
    if summary.get("objective", "cost") == "cost":
        return {
            "reference_cost_usd": summary["reference_cost_usd"],
            "optimal_cost_usd": summary["optimal_cost_usd"],
        }
    best = summary["optimal_quality"]
    return {
        "reference_cost_usd": 1 - summary["reference_quality"],
        "optimal_cost_usd": None if best is None else 1 - best,
        "label": "least feasible 1 - quality",
    }


def plot_curves(
    curves: Mapping[str, Sequence[OracleCurve]],
    budget_usd: float,
    path: Path,
    *,
    title: str,
    reference_cost_usd: float,
    optimal_cost_usd: float | None = None,
    paper: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
    paper_source: str = "",
    label: str = "best feasible cost [USD/query]",
) -> None:
    """Draws c_bf and V against the budget: the median over seeds, with the range shaded.

    Args:
        curves: The curves of all seeds, by method.
        budget_usd: Largest budget shown, in USD.
        path: PNG file to write.
        title: Title of the figure.
        reference_cost_usd: c(theta_0) in USD, drawn as a line.
        optimal_cost_usd: c(theta_star) in USD, drawn as a line; None if unknown.
        paper: Published curves by method: budgets in USD and costs in USD.
        paper_source: Where the published curves are from.
        label: Of the axis of c_bf; if quality is the objective, 1 - quality takes its place.
    """
    figure = Figure(figsize=(8.2, 5.6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    shade = 0.15 if len(curves) <= 6 else 0.06
    for number, (name, seeds) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        jumps = np.unique(np.concatenate([curve.budget_usd for curve in seeds]))
        budgets = np.append(jumps[jumps < budget_usd], budget_usd)
        _band(upper, budgets, [c.best_feasible_cost(budgets) for c in seeds], name, colour, shade)
        smooth = np.linspace(0, budget_usd, 400)
        _band(lower, smooth, [c.violation(smooth) for c in seeds], name, colour, shade, steps=False)
        if paper and name in paper:
            upper.plot(*paper[name], ls=":", lw=1.2, color=colour)
    upper.axhline(reference_cost_usd, color="0.4", lw=0.8, ls="--", label="reference")
    if optimal_cost_usd is not None:
        upper.axhline(optimal_cost_usd, color="0.4", lw=0.8, ls="-.", label="optimum")
    if paper:
        dotted = textwrap.fill(f"dotted: {paper_source}", 28)
        upper.plot([], [], color="0.4", lw=1.2, ls=":", label=dotted)
    upper.set(yscale="log", ylabel=label)
    upper.set_title(title, loc="left", fontsize="medium")
    figure.legend(*upper.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    lower.set(xlabel="search budget [USD]", ylabel="violation $V$", xlim=(0, budget_usd))
    top = max(1e-2, lower.get_ylim()[1])
    lower.set_ylim(bottom=-0.05 * top, top=top)  # a curve at V = 0 must not hide behind the axis
    figure.savefig(path, dpi=150)


def _band(
    axes: Axes,
    x: np.ndarray,
    values: Sequence[np.ndarray],
    label: str,
    colour: Any,
    shade: float,
    steps: bool = True,
) -> None:
    y = np.stack(values)
    style = "steps-post" if steps else "default"
    label = textwrap.fill(label, 28)
    axes.plot(x, np.median(y, axis=0), label=label, lw=1.6, drawstyle=style, color=colour)
    if len(y) > 1:
        step = "post" if steps else None
        axes.fill_between(x, y.min(0), y.max(0), step=step, alpha=shade, color=colour, lw=0)
