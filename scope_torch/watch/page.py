"""A run as one HTML page with inline style and SVG; it loads nothing and has no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from html import escape
from importlib.resources import files

from scope_torch.bounds.assumptions import basis_of, certified_by
from scope_torch.runs.metrics import is_feasible
from scope_torch.runs.recorded import RecordedRun
from scope_torch.search.optimizer import TraceRow
from scope_torch.watch.candidates import Candidate, candidates
from scope_torch.watch.chart import Chart

SPEND = "spend [USD]"
PER = 1000  # costs are shown for this number of queries
COST = f"USD per {PER} queries"
MOST_ROWS = 300  # largest number of rows in the table of candidates
_STYLES = {"pruned: quality": "b", "pruned: cost": "d", "completed": "a", "in progress": "neutral"}
_MEANING = {
    "certified": "its answers prove it, or its upper bound on the constraint does",
    "accepted (tuned)": "its upper bound on the constraint fell to 0 or below; no probability is "
    "proven",
    "observed": "the cheapest that met the threshold when observed on every query",
    "estimated": "the cheapest that meets the threshold in the method's estimate",
    "reference": "nothing better was found yet; keep the reference",
}


def page(run: RecordedRun, now: datetime, refresh_s: float | None = None) -> str:
    """The HTML page of a run.

    Args:
        run: The run.
        now: When the run was read, shown on the page.
        refresh_s: Seconds after which a browser loads the page again; None for never.
    """
    seed = run.settings["optimizer"].get("seed")
    title = f"{run.problem.name} · {run.method.name} · seed {seed}"
    refresh = "" if refresh_s is None else f'<meta http-equiv="refresh" content="{refresh_s:g}">'
    found = candidates(run)
    body = [
        f'<header><h1>{escape(title)}</h1><span class="status {run.status}">{run.status}</span>'
        f'<span class="soft">read {now:%Y-%m-%d %H:%M:%S} from {escape(str(run.path))}</span>'
        "</header>",
        _error(run),
        _tiles(run),
        f'<div class="two">{_theta_out(run)}{_basis_section(run)}</div>',
        f'<div class="charts">{"".join(chart.html() for chart in charts(run, found))}</div>',
        _table(run, found),
    ]
    style = files("scope_torch.watch").joinpath("page.css").read_text()
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{refresh}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n"
        f"<body>{''.join(body)}</body></html>\n"
    )


def basis(run: RecordedRun) -> str:
    """Basis of theta_out: as in the result or, before the end, as far as the trace tells."""
    if run.result is not None and run.result["basis"] != "certified":
        return str(run.result["basis"])
    if _theta(run) == run.problem.theta_ref:
        return "reference"
    settings = run.settings["optimizer"]  # older results do not tell accepted from certified
    return basis_of(settings) if "bounds" in settings else "observed"


def _theta(run: RecordedRun) -> tuple[int, ...]:
    return run.rows[-1].row.theta_out if run.rows else run.problem.theta_ref


def _error(run: RecordedRun) -> str:
    if run.error is None:
        return ""
    attempt = "An earlier attempt" if run.is_running else "The last attempt"
    last = "\n".join(run.error.splitlines()[-40:])
    return f'<section><h2 class="failed">{attempt} failed</h2><pre>{escape(last)}</pre></section>'


def _tiles(run: RecordedRun) -> str:
    share = min(run.spend_usd / run.budget_usd, 1.0)
    last = run.rows[-1].row if run.rows else None
    reference = run.problem.reference_cost_usd
    meter = f'<div class="meter"><i style="width:{share:.2%}"></i></div>'
    spend = f"{run.spend_usd:.4g} of {run.budget_usd:.4g} USD"
    tiles = [("Spend", spend, meter)]
    asked = f"{run.problem.num_queries:,} queries, {run.problem.space.size:,} configurations"
    tiles.append(("Observations", f"{len(run.observations):,}", asked))
    is_cost = run.problem.objective == "cost"  # else the bounds are on 1 - quality
    u_out = None if last is None or not is_cost else last.u_out_usd
    if u_out is not None:
        of = f"{u_out / reference:.1%} of the reference's cost"
        tiles.append((f"{_upper_bound(run)} on θ_out's cost", f"{_usd(u_out)} {COST}", of))
    if run.rows and run.rows[-1].truth is not None:
        cost, quality, *_ = run.rows[-1].truth
        verdict = "feasible" if is_feasible(run.problem, run.rows[-1].truth) else "NOT feasible"
        of = f"{cost / reference:.1%} of the reference's; quality {quality:.3f}, {verdict}"
        tiles.append(("True cost of θ_out", f"{_usd(cost)} {COST}", of))
    if last is not None and last.gap_usd is not None and is_cost:
        of = "" if not u_out else f"{last.gap_usd / u_out:.1%} of that bound"
        tiles.append(("Optimality gap", f"{_usd(last.gap_usd)} {COST}", of))
    return '<div class="tiles">' + "".join(map(_tile, tiles)) + "</div>"


def _upper_bound(run: RecordedRun) -> str:
    """Upper bounds of the cost are proven by theory only."""
    bounds = run.settings["optimizer"].get("bounds")
    return "Upper bound" if bounds and bounds["mode"] == "theory" else "Estimated upper bound"


def _tile(tile: tuple[str, str, str]) -> str:
    name, value, below = tile
    below = below if below.startswith("<div") else escape(below)
    number, _, unit = value.partition(" ")
    return (
        f'<div class="card"><div class="soft">{escape(name)}</div><div><span class="value">'
        f'{escape(number)}</span> {escape(unit)}</div><div class="soft">{below}</div></div>'
    )


def _theta_out(run: RecordedRun) -> str:
    theta, problem = _theta(run), run.problem
    why = basis(run)
    used, usual = problem.names(theta), problem.names(problem.theta_ref)
    rows = "".join(
        f"<tr><td>{escape(m)}</td><td><b>{escape(llm)}</b></td><td>{escape(usual[m])}</td></tr>"
        for m, llm in used.items()
    )
    stop = ""
    if run.result is not None:
        stop = f'<p class="soft">stopped: {_text(str(run.result["stop_reason"]))}</p>'
    return (
        f"<section><h2>θ_out: {escape(why)}</h2>"
        f'<span class="soft">{escape(_MEANING.get(why, ""))}</span>'
        '<div class="scroll"><table><thead><tr><th>module</th><th>LLM</th><th>reference</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div>{stop}</section>"
    )


def _basis_section(run: RecordedRun) -> str:
    """Mode and half-widths of the bounds, and the assumptions behind them."""
    problem, optimizer = run.problem, run.settings["optimizer"]
    result = run.summary()
    of_quality = "maximised"
    if problem.objective == "cost":
        share = problem.s_0 / problem.reference_quality
        of_quality = (
            f"{problem.s_0:.4g} on average, {share:.4g} x {problem.reference_quality:.4g} of the "
            "reference"
        )
    facts = {
        "threshold s_0" if problem.objective == "cost" else "quality": of_quality,
        **{limit.outcome: f"{limit}, on average" for limit in problem.others},
        "reference": f"{_usd(problem.reference_cost_usd)} {COST}",
    }
    bounds = optimizer.get("bounds")
    if bounds is None:
        listed = "<p>This method has no confidence bounds: nothing is certified.</p>"
    else:
        setting = {"tuned": "b_g", "credible": "b"}.get(bounds["mode"])
        facts["bounds"] = bounds["mode"] + (f", {setting} = {bounds[setting]}" if setting else "")
        if result.get("b_g") is not None:
            facts["half-widths"] = (
                f"b_g = {result['b_g']:.4g} in quality, b_c = {_usd(result['b_c'])} {COST}"
            )
        assumptions = result.get("assumptions") or certified_by(optimizer)
        listed = f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in assumptions)}</ul>"
    terms = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
    word = basis_of(optimizer) if bounds else "certified"
    return f'<section><h2>What "{word}" rests on</h2>{listed}<dl>{terms}</dl></section>'


def charts(run: RecordedRun, found: Sequence[Candidate]) -> list[Chart]:
    """Charts of the cost, quality and gap of theta_out, and of the candidates; by spend."""
    if not run.rows:
        return []
    x_max = max(run.spend_usd, run.rows[-1].row.spend_usd, 1e-12)
    if run.problem.objective == "quality":  # bounds in the rows are on 1 - quality, not in USD
        return [_quality(run, x_max)]
    return [
        chart
        for chart in (_cost(run, x_max), _quality(run, x_max), _gap(run, x_max),
                      _turns(run, found, x_max))
        if chart is not None
    ]  # fmt: skip


def _cost(run: RecordedRun, x_max: float) -> Chart:
    problem, rows = run.problem, [recorded.row for recorded in run.rows]
    chart = Chart(f"Cost of θ_out, {COST}", SPEND, COST, x_max, log=True)
    for start, end, row in _intervals(rows, x_max):
        if row.lower_c_usd is not None and row.upper_c_usd is not None:
            low, high = PER * row.lower_c_usd, PER * row.upper_c_usd
            if low > 0:
                hint = f"bounds when chosen: {low:.4g} to {high:.4g}"
                chart.band((start, end), (low, high), "a", "bounds when it was chosen", hint)
    bounds = [(row.spend_usd, row.u_out_usd) for row in rows]
    upper = [(x, PER * bound) for x, bound in bounds if bound is not None and bound < math.inf]
    chart.steps(upper, x_max, "a wide", f"{_upper_bound(run).lower()} u_out")
    if run.curve is not None:
        points = [(x, PER * c) for x, c, _ in run.curve.points(x_max) if x <= x_max]
        chart.steps(points, x_max, "c thin", "true best feasible cost c_bf")
    chart.rule(PER * problem.reference_cost_usd, "neutral dash", "reference")
    optimum = run.summary().get("optimal_cost_usd")
    if optimum is not None:
        chart.rule(PER * optimum, "c dash", "optimum")
    return chart


def _quality(run: RecordedRun, x_max: float) -> Chart:
    problem, rows = run.problem, [recorded.row for recorded in run.rows]
    chart = Chart("Average quality of θ_out", SPEND, "quality", x_max)
    for start, end, row in _intervals(rows, x_max):
        if row.lower_g is not None and row.upper_g is not None:
            low, high = (min(max(problem.s_0 - g, 0), 1) for g in (row.upper_g, row.lower_g))
            if problem.objective == "quality":
                low, high = (1 - (loss or 0.0) for loss in (row.upper_c_usd, row.lower_c_usd))
            hint = f"bounds when chosen: {low:.4f} to {high:.4f}"
            chart.band((start, end), (low, high), "a", "bounds when it was chosen", hint)
    known = [(r.row.spend_usd, r.truth[1]) for r in run.rows if r.truth is not None]
    chart.steps(known, x_max, "c thin", "true quality")
    if problem.objective == "cost":
        chart.rule(problem.s_0, "b dash", "threshold s_0")
    chart.rule(problem.reference_quality, "neutral dash", "reference")
    return chart


def _gap(run: RecordedRun, x_max: float) -> Chart | None:
    gaps = [(r.row.spend_usd, r.row.gap_usd) for r in run.rows]
    points = [(x, PER * gap) for x, gap in gaps if gap is not None and gap < math.inf]
    if not points:
        return None
    chart = Chart("Optimality gap within the bounds", SPEND, COST, x_max, log=True)
    label = "θ_out costs at most this much more than the best (0: on the axis)"
    chart.steps(points, x_max, "d", label)
    return chart


def _turns(run: RecordedRun, found: Sequence[Candidate], x_max: float) -> Chart | None:
    if not found:
        return None
    num_queries = run.problem.num_queries
    chart = Chart(
        "Candidates: queries observed until pruned or completed", SPEND, "queries", x_max,
        y_limits=(0.0, num_queries),
    )  # fmt: skip
    for turn in found:
        style, label = _STYLES.get(turn.outcome, "muted"), turn.outcome
        if turn.improved:
            style, label = "c", "improved θ_out"
        hint = f"{turn.number}: {_names(run, turn.theta)}; {turn.num_queries} queries, {label}"
        chart.bar((turn.first.spend_usd, turn.spend_usd), turn.num_queries, style, label, hint)
    chart.rule(num_queries, "neutral dash", "all queries")
    return chart


def _intervals(rows: Sequence[TraceRow], end: float) -> list[tuple[float, float, TraceRow]]:
    """For each theta_out: the spend at which it was chosen and replaced, and the row of the choice.

    Args:
        rows: The trace.
        end: Spend in USD at which the last theta_out ends.
    """
    chosen = [row for row in rows if row.event in ("calibrated", "improved")]
    ends = [*(row.spend_usd for row in chosen[1:]), end]
    return [(row.spend_usd, until, row) for row, until in zip(chosen, ends, strict=False)]


def _table(run: RecordedRun, found: Sequence[Candidate]) -> str:
    if not found:
        return '<section><h2>Candidates</h2><p class="soft">none selected yet</p></section>'
    shown = list(found[-MOST_ROWS:])[::-1]
    note = "" if len(shown) == len(found) else f", the last {len(shown)}"
    modules = "".join(f"<th>{escape(m)}</th>" for m in run.problem.modules)
    return (
        f'<section><h2>Candidates <span class="soft">({len(found):,}{note})</span></h2>'
        f'<div class="scroll"><table><thead><tr><th class="number">#</th>{modules}<th>ended</th>'
        '<th class="number">queries</th><th class="number">at observation</th>'
        f'<th class="number">spend [USD]</th><th class="number">cost within [{COST}]</th>'
        '<th class="number">quality within</th></tr></thead>'
        f"<tbody>{''.join(_row(run, turn) for turn in shown)}</tbody></table></div></section>"
    )


def _row(run: RecordedRun, turn: Candidate) -> str:
    last, s_0 = turn.last, run.problem.s_0
    cost = quality = "–"
    is_cost = run.problem.objective == "cost"
    if last.lower_c_usd is not None and last.upper_c_usd is not None:
        if is_cost:
            cost = f"{_usd(last.lower_c_usd)} to {_usd(last.upper_c_usd)}"
        else:
            quality = f"{1 - last.upper_c_usd:.3f} to {1 - last.lower_c_usd:.3f}"
    if last.lower_g is not None and last.upper_g is not None and is_cost:
        quality = f"{s_0 - last.upper_g:.3f} to {s_0 - last.lower_g:.3f}"
    style = "c" if turn.improved else _STYLES.get(turn.outcome, "muted")
    ended = f"{turn.outcome}, improved θ_out" if turn.improved else turn.outcome
    numbers = (
        f"{turn.num_queries} of {run.problem.num_queries}", f"{last.t:,}",
        f"{turn.spend_usd:.4g}", cost, quality,
    )  # fmt: skip
    llms = "".join(f"<td>{escape(llm)}</td>" for llm in run.problem.names(turn.theta).values())
    return (
        f'<tr><td class="number">{turn.number}</td>{llms}'
        f'<td class="ended"><i class="dot {style}"></i>{escape(ended)}</td>'
        + "".join(f'<td class="number">{escape(number)}</td>' for number in numbers)
        + "</tr>"
    )


def _names(run: RecordedRun, theta: tuple[int, ...]) -> str:
    return ", ".join(run.problem.names(theta).values())


def _text(words: str) -> str:
    """The words for HTML, with θ and ≤ as symbols."""
    return escape(words).replace("theta_", "θ_").replace("&lt;=", "≤")


def _usd(cost_usd: float) -> str:
    return f"{PER * cost_usd:.4g}"
