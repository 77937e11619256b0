"""The decision page: what to use, how sure that is, what it cost, and what else there is.

One HTML file without anything from elsewhere. It can be read without its script, which only copies
the choice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape
from torch import Tensor

from scope_torch.bounds.assumptions import bounds_in, certified_by
from scope_torch.constraints import Constraint
from scope_torch.errors import InputError
from scope_torch.files import make_folder, write_atomically
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.results.digits import (
    per_thousand,
    percent,
    plain,
    quality,
    share,
    threshold,
    usd,
)
from scope_torch.results.metrics import is_feasible, optimal_cost, true_values
from scope_torch.results.page.charts import COST, charts
from scope_torch.results.page.heatmap import heatmap
from scope_torch.results.page.scatter import scatter
from scope_torch.results.page.view import Shown, View
from scope_torch.results.summary import bounds_of_theta_out
from scope_torch.results.table import looked_at
from scope_torch.results.words import in_words, lines_of, stop_in_words
from scope_torch.search.front import FrontRow

MOST_ROWS = 300  # of the table of configurations
_AT_ONCE = (8, 32)  # calls, beside one
_MOST_DISAGREEMENTS = 40
_LONG = 280  # characters of an answer from which on it is folded
_WIDTH = 200  # characters of a sentence
_LOSSES = (0.01, 0.05, 0.1, 0.2)
# Control characters but tab and ends of lines, and those that turn the direction of text.
_HIDING = (*range(9), 11, 12, *range(14, 32), 127, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_INVISIBLE = dict.fromkeys(_HIDING, "\ufffd")
_LIGHTS = {
    "proven": ("✔", "Proven good enough"),
    "likely": ("▲", "Likely, not proven"),
    "doubted": ("▲", "Doubtful"),
    "keep": ("■", "Keep the reference"),
}


def page_of(view: View) -> str:
    """The page.

    Args:
        view: A result, finished or not.

    Examples:
        >>> from datetime import datetime
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> result = run(problem, make_scope(problem, base="nano", seed=0), evaluator, 0.1)
        >>> html = page_of(View(result, "finished", datetime(2026, 11, 23)))
        >>> "Use module_1=nano, module_2=mini" in html
        True
    """
    style = files("scope_torch.results.page").joinpath("templates", "page.css").read_text()
    return _template().render(view=view, style=Markup(style), **_content(view)) + "\n"


@cache
def _template() -> Template:
    """Compiled once: that takes longer than to render it."""
    environment = Environment(
        loader=PackageLoader("scope_torch.results.page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_visible,
    )
    environment.filters |= {"symbols": _symbols, "usd": usd, "thousand": per_thousand}
    environment.filters |= {"quality": quality, "percent": percent}
    return environment.get_template("page.html")


def _visible(value: Any) -> Any:
    """A text without characters that hide or turn what follows; anything else as it is."""
    return value.translate(_INVISIBLE) if isinstance(value, str) else value


def save_page(path: Path | str, result: Shown, truth: Sequence[Tensor] | None) -> Path:
    """Writes the page of a finished result, in one step.

    Args:
        path: The file.
        result: A `RunResult`.
        truth: See `RunResult`.

    Raises:
        InputError: If the file cannot be written.
    """
    path = Path(path)
    make_folder(path.parent)
    write_atomically(path, page_of(view_of_result(result, truth)))
    return path


def view_of_result(result: Shown, truth: Sequence[Tensor] | None) -> View:
    """What the page shows of a finished result; for the truth see `RunResult`."""
    folder = getattr(result, "run_dir", None)
    where = "" if folder is None else str(folder)
    view = View(result, "finished", datetime.now(), path=where)
    if truth is not None:
        problem = result.problem
        values = [true_values(problem, row.theta_out, truth) for row in result.trace]
        truths = [None if math.isnan(one[1]) else one for one in values]
        optimum = optimal_cost(problem, truth)
        view = replace(view, truths=truths, optimum_usd=optimum if optimum < math.inf else None)
    return view


def _content(view: View) -> dict[str, Any]:
    result, problem = view.result, view.result.problem
    rows = looked_at(result.evidence, result.recommendation)
    observations = [*_measured(view), *result.history]
    out = result.recommendation.theta
    return {
        "problem": problem,
        "title": f"{problem.name} · {result.method}",
        "lines": lines_of(result, _WIDTH),
        "light": (view.light, *_LIGHTS[view.light]),
        "choice": result.choice,
        "reference": problem.names(problem.theta_ref),
        "copied": json.dumps(result.choice, ensure_ascii=False, indent=1),
        "drawings": [scatter(problem, rows), scatter(problem, rows, 360, 380)],
        "bill": _bill(view),
        "heatmap": heatmap(problem, observations, rows, out),
        "losses": _losses(view),
        "disagreements": _disagreements(view),
        "facts": _facts(view),
        "assumptions": _assumptions(view),
        "charts": charts(view),
        "rows": _table(view, rows),
        "num_rows": len(rows),
        "per": COST,
    }


def _assumptions(view: View) -> list[str]:
    """As the result says or, before the end, as the settings do."""
    optimizer = view.result.settings["optimizer"]
    told = view.result.report.get("assumptions")
    return told or (certified_by(optimizer) if bounds_in(optimizer) else [])


def _measured(view: View) -> list[Observation]:
    """What is known besides the search."""
    parts = (getattr(view.result, name, None) or () for name in ("known", "reference", "probe"))
    return [observation for part in parts for observation in part]


def _bill(view: View) -> dict[str, Any]:
    """What was paid, what is left, and how fast it goes."""
    result, bill = view.result, view.result.bill
    spent = result.history.spend_usd
    paid = {name: amount for name, amount in bill.amounts.items() if amount}
    told = [("calls", f"{bill.num_calls:,}")]
    if bill.num_failed:
        told.append(("failed calls, counted as wrong", f"{bill.num_failed:,}"))
    told += [(f"runs that did not ask {m}", f"{n:,}") for m, n in result.left_out.items()]
    if bill.num_known:
        known = f"{bill.num_known:,} (worth {usd(bill.known_usd)} USD)"
        told.append(("answers of earlier searches", known))
    if bill.repeats_usd:
        told.append(("not paid: kept answers", f"{usd(bill.repeats_usd)} USD"))
    if waited := result.call_seconds:
        many = (f"with {n} at least {_duration(waited / n)}" for n in _AT_ONCE)
        told.append(("waiting, one call at a time", ", ".join([_duration(waited), *many])))
    if view.pace is not None and view.status == "running":
        told.append(("calls a minute", f"{view.pace.calls_per_minute:,.0f}"))
        if math.isfinite(view.pace.seconds_left):
            told.append(("budget lasts", _duration(view.pace.seconds_left)))
    return {
        "paid": paid,
        "total": bill.total_usd,
        "left": max(0.0, result.budget_usd - spent),
        "share": min(1.0, spent / result.budget_usd) if result.budget_usd > 0 else 1.0,
        "told": told,
    }


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"


def _losses(view: View) -> list[dict[str, Any]]:
    """What to use if so much quality may be lost; first what is proven, then what may be."""
    front, reference = view.result.front, view.result.problem.reference_cost_usd
    if front is None:
        return []
    found: list[dict[str, Any]] = []
    for loss in _LOSSES:
        rows = [row for row in front.by_loss if row.epsilon == loss]
        for row in rows:
            found.append(
                {
                    "loss": loss,
                    "is_first": row is rows[0],
                    "llms": in_words(row.llms, 120),
                    "cost": row.cost_usd,
                    "saved": 1 - row.cost_usd / reference,
                    "quality": row.quality,
                    "proven": _proven(view, row),
                }
            )
    return found


def _proven(view: View, row: FrontRow) -> str:
    if row.theta == view.result.problem.theta_ref:
        return "the reference"
    return {"estimated": "looks good, not proven", "observed": "yes, on these queries"}.get(
        row.basis, "yes"
    )


def _disagreements(view: View) -> dict[str, Any] | None:
    """The queries to read by hand; None if the reference's answers are not known."""
    result = view.result
    if result.recommendation.theta == result.problem.theta_ref:
        return None
    try:
        found = result.disagreements().to_dicts()
    except InputError:
        return None
    return {
        "worse": sum(row["quality_choice"] < row["quality_reference"] for row in found),
        "better": sum(row["quality_choice"] > row["quality_reference"] for row in found),
        "rows": [_told(row) for row in found[:_MOST_DISAGREEMENTS]],
        "num": len(found),
        "has_answers": any(row.get("answer_choice") is not None for row in found),
        "has_expected": any(row.get("expected") is not None for row in found),
        "has_input": any(row.get("input") is not None for row in found),
    }


def _told(row: dict[str, Any]) -> dict[str, Any]:
    names = "input", "expected", "answer_choice", "answer_reference"
    texts = {name: row.get(name) for name in names}
    return {
        **row,
        **{name: None if text is None else _folded(text) for name, text in texts.items()},
    }


def _folded(text: str) -> tuple[str, str]:
    """What is shown, and all of it if that is more."""
    return (text, "") if len(text) <= _LONG else (text[: _LONG - 40].rstrip() + " …", text)


def _facts(view: View) -> list[tuple[str, str]]:
    """Numbers for readers of the paper."""
    result, problem, report = view.result, view.result.problem, view.result.report
    optimizer = result.settings["optimizer"]
    facts = [("task, method", f"{problem.name}, {result.method}, seed {optimizer.get('seed')}")]
    facts.append(("Theta", f"{problem.space.size:,} configurations, Q = {problem.num_queries:,}"))
    facts.append(("basis of theta_out", result.recommendation.basis))
    if problem.objective == "cost":
        facts.append(("threshold s_0", _threshold(problem)))
    facts += [(limit.outcome, _limit(view, limit)) for limit in problem.others]
    n, Q = problem.reference_queries, problem.num_queries
    some = "" if n is None else f" on {n:,} of {Q:,} queries"
    facts.append(("c(theta_0)", f"{per_thousand(problem.reference_cost_usd)} {COST}{some}"))
    out = result.recommendation
    told = bounds_of_theta_out(problem, out, result.cost_usd, result.quality)
    for name in ("u_out", "gap"):
        usd = told[f"{name}_usd"]
        if usd is not None and math.isfinite(usd):
            facts.append((name, f"{per_thousand(usd, 'up')} {COST}"))
    bounds = bounds_in(optimizer)
    if bounds is None:
        facts.append(("bounds", "this method has no confidence bounds: nothing is certified"))
    else:
        setting = {"tuned": "b_g", "credible": "b"}.get(bounds["mode"])
        chosen = f", {setting} = {bounds[setting]}" if setting in bounds else ""
        facts.append(("bounds", f"{bounds['mode']}{chosen}"))
        if report.get("b_g") is not None:
            widths = f"b_g = {report['b_g']:.4g} in quality, b_c = {per_thousand(report['b_c'])}"
            facts.append(("half-widths", f"{widths} {COST}"))
    truth = next((t for t in reversed(view.truths) if t is not None), None)
    if truth is not None:
        cost, good, *_ = truth
        verdict = "feasible" if is_feasible(problem, truth) else "NOT feasible"
        values = f"{per_thousand(cost)} {COST}, quality {plain(good)}, {verdict}"
        facts.append(("true values of theta_out", values))
    return [*facts, ("stopped", stop_in_words(result.stop_reason))]


def _limit(view: View, limit: Constraint) -> str:
    """A constraint; of a quantile also the share of the runs, so far, that are within its bound."""
    if not limit.is_share:
        return f"{limit}, on average"
    result, problem = view.result, view.result.problem
    of = dict.fromkeys((result.recommendation.theta, problem.theta_ref))
    found = [(theta, result.evidence.outcome(theta, limit.name)) for theta in of]
    shares = [
        f"{share(one)} of runs ({'reference' if theta == problem.theta_ref else 'choice'})"
        for theta, one in found
        if one is not None
    ]
    return f"{limit}: {', '.join(shares)}" if shares else str(limit)


def _threshold(problem: SelectionProblem) -> str:
    if problem.reference_queries is not None and problem.epsilon is None:
        return threshold(problem.s_0)
    most = problem.most_reference_quality
    of_reference = f"{plain(problem.s_0 / most, 4)} x {plain(most, 4)}"
    return f"{threshold(problem.s_0)} = {of_reference}"


def _table(view: View, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The configurations looked at, those with the most answers first if there are many."""
    problem = view.result.problem
    shown = sorted(rows, key=lambda row: -row["queries"])[:MOST_ROWS]
    shown.sort(key=lambda row: math.inf if row["cost_usd"] is None else row["cost_usd"])
    return [
        {
            **row,
            "llms": list(problem.names(row["theta"]).values()),
            "cost_between": _between(row["cost_lower"], row["cost_upper"], per_thousand),
            "quality_between": _between(row["quality_lower"], row["quality_upper"], plain),
        }
        for row in shown
    ]


def _between(low: float | None, high: float | None, shown: Any) -> str:
    """An interval, rounded to the safe side; "" if it is one number or unknown."""
    if low is None or low == high:
        return ""
    if high is None:
        return f"at least {shown(max(0.0, low), side='down')}"
    return f"{shown(max(0.0, low), side='down')} to {shown(high, side='up')}"


def _symbols(words: str) -> Markup:
    """The words with θ and ≤ as symbols."""
    text = str(escape(words))
    return Markup(text.replace("theta_", "θ_").replace("Theta", "Θ").replace("&lt;=", "≤"))
