"""How cost, quality and gap of theta_out changed while the search went on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scope_torch.bounds.assumptions import bounds_in
from scope_torch.results.page.chart import Chart
from scope_torch.results.page.scatter import PER
from scope_torch.results.page.turns import CandidateTurn, candidates
from scope_torch.results.page.view import View
from scope_torch.search.optimizer import TraceRow

SPEND = "spend [USD]"
COST = f"USD per {PER:,} queries"
_STYLES = {"pruned: quality": "b", "pruned: cost": "d", "completed": "a", "in progress": "neutral"}


def charts(view: View) -> list[Chart]:
    """Charts of the cost, quality and gap of theta_out, and of the candidates; by spend."""
    result = view.result
    if not result.trace:
        return []
    x_max = max(result.history.spend_usd, result.trace[-1].spend_usd, 1e-12)
    if result.problem.objective == "quality":  # bounds in the rows are on 1 - quality, not in USD
        return [_quality(view, x_max)]
    made = (_cost(view, x_max), _quality(view, x_max), _gap(view, x_max), _turns(view, x_max))
    return [chart for chart in made if chart is not None]


def upper_bound(view: View) -> str:
    """Upper bounds of the cost are proven by theory only."""
    bounds = bounds_in(view.result.settings["optimizer"])
    return "Upper bound" if bounds and bounds["mode"] == "theory" else "Estimated upper bound"


def _cost(view: View, x_max: float) -> Chart:
    result, rows = view.result, view.result.trace
    chart = Chart(f"Cost of θ_out, {COST}", SPEND, COST, x_max, log=True)
    for start, end, row in _intervals(rows, x_max):
        if row.lower_c_usd is not None and row.upper_c_usd is not None:
            low, high = PER * row.lower_c_usd, PER * row.upper_c_usd
            if low > 0:
                hint = f"bounds when chosen: {low:.4g} to {high:.4g}"
                chart.band((start, end), (low, high), "a", "bounds when it was chosen", hint)
    bounds = [(row.spend_usd, row.u_out_usd) for row in rows]
    upper = [(x, PER * bound) for x, bound in bounds if bound is not None and bound < math.inf]
    chart.steps(upper, x_max, "a wide", f"{upper_bound(view).lower()} u_out")
    if result.curve is not None:
        points = [(x, PER * c) for x, c, _ in result.curve.points(x_max) if x <= x_max]
        chart.steps(points, x_max, "c thin", "true best feasible cost c_bf")
    chart.rule(PER * result.problem.reference_cost_usd, "neutral dash", "reference")
    if view.optimum_usd is not None:
        chart.rule(PER * view.optimum_usd, "c dash", "optimum")
    return chart


def _quality(view: View, x_max: float) -> Chart:
    problem, rows = view.result.problem, view.result.trace
    chart = Chart("Average quality of θ_out", SPEND, "quality", x_max)
    for start, end, row in _intervals(rows, x_max):
        if row.lower_g is not None and row.upper_g is not None:
            low, high = (min(max(problem.s_0 - g, 0), 1) for g in (row.upper_g, row.lower_g))
            if problem.objective == "quality":
                low, high = (
                    min(max(1 - (loss or 0.0), 0), 1) for loss in (row.upper_c_usd, row.lower_c_usd)
                )
            hint = f"bounds when chosen: {low:.4f} to {high:.4f}"
            chart.band((start, end), (low, high), "a", "bounds when it was chosen", hint)
    truths = zip(rows, view.truths, strict=False)
    known = [(row.spend_usd, truth[1]) for row, truth in truths if truth is not None]
    chart.steps(known, x_max, "c thin", "true quality")
    if problem.objective == "cost":
        chart.rule(problem.s_0, "b dash", "threshold s_0")
    chart.rule(problem.reference_quality, "neutral dash", "reference")
    return chart


def _gap(view: View, x_max: float) -> Chart | None:
    gaps = [(row.spend_usd, row.gap_usd) for row in view.result.trace]
    points = [(x, PER * gap) for x, gap in gaps if gap is not None and gap < math.inf]
    if not points:
        return None
    chart = Chart("Optimality gap within the bounds", SPEND, COST, x_max, log=True)
    label = "θ_out costs at most this much more than the best (0: on the axis)"
    chart.steps(points, x_max, "d", label)
    return chart


def _turns(view: View, x_max: float) -> Chart | None:
    result = view.result
    num_queries = result.problem.num_queries
    seen = len(result.history), result.history.spend_usd
    found: Sequence[CandidateTurn] = candidates(
        result.trace, num_queries, seen, view.is_open, "in_flight" in result.settings["optimizer"]
    )
    if not found:
        return None
    chart = Chart(
        "Candidates: queries observed until pruned or completed", SPEND, "queries", x_max,
        y_limits=(0.0, num_queries),
    )  # fmt: skip
    for turn in found:
        style, label = _STYLES.get(turn.outcome, "muted"), turn.outcome
        if turn.improved:
            style, label = "c", "improved θ_out"
        names = ", ".join(result.problem.names(turn.theta).values())
        hint = f"{turn.number}: {names}; {turn.num_queries} queries, {label}"
        chart.bar((turn.first.spend_usd, turn.spend_usd), turn.num_queries, style, label, hint)
    chart.rule(num_queries, "neutral dash", "all queries")
    return chart


def _intervals(rows: Sequence[TraceRow], end: float) -> list[tuple[float, float, TraceRow]]:
    """For each theta_out: the spend at which it became and ended as it, and the row of the choice.

    Args:
        rows: The trace.
        end: Spend in USD at which the last theta_out ends.
    """
    chosen, changes = dict[tuple[int, ...], TraceRow](), list[tuple[float, TraceRow | None]]()
    for row in rows:
        if row.event in ("calibrated", "improved"):
            chosen[row.theta_out] = row
        elif row.event != "withdrawn":  # then an earlier one is theta_out again
            continue
        changes.append((row.spend_usd, chosen.get(row.theta_out)))
    ends = [*(spend_usd for spend_usd, _ in changes[1:]), end]
    both = zip(changes, ends, strict=False)
    return [(start, until, row) for (start, row), until in both if row is not None]
