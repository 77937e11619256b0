"""Tables of finished runs: a short one to read, a long one as CSV, and LaTeX for a paper."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scope_torch.cli.paper import paper_curves, paper_numbers, paper_task
from scope_torch.files import cell_of
from scope_torch.results.digits import per_thousand, percent, plain
from scope_torch.results.style import rank, style_of
from scope_torch.runs.finished import FinishedRun, Group, column, median

Groups = Mapping[Group, Sequence[FinishedRun]]
Cells = Sequence[str]
SHORT = (
    "task",
    "method",
    "runs",
    "USD/1000",
    "of the reference",
    "within 10%",
    "optimal",
    "mean V",
    "infeasible",
)
LEGEND = (
    "USD/1000: best feasible cost of 1,000 queries, median; of the reference: the same as a share\n"
    "(least to most); within 10%: USD of search until it is within 10% of the optimum (runs that\n"
    "get there); optimal, infeasible: runs that end so; V: violation. methods.csv has all measures."
)
LEGEND_MEASURED = (
    "(measured): the truth is unknown; each result of the search was run on all of its queries\n"
    "(scope-torch evaluate --on search), so V and what is feasible have the error of these answers."
)
LEGEND_DEPLOYED = (
    "On held-out queries: the configuration of best feasible cost, which the truth alone tells; a\n"
    "user would deploy the final one (theta_out in deployment.json), which may be infeasible."
)
DEPLOYED = (
    "task, held-out queries",
    "method",
    "runs",
    "USD/1000",
    "of the reference",
    "quality",
    "against the reference",
    "paper's cost",
    "paper's quality",
)


def short_table(groups: Groups) -> list[Cells]:
    """`SHORT` and a row for each group: cells to read.

    Where quality is the objective, the loss against the best quality takes the place of the cost.
    """
    names = task_names(groups)
    return [SHORT, *([names[group], *_short_cells(group, runs)] for group, runs in groups.items())]


def _short_cells(group: Group, runs: Sequence[FinishedRun]) -> list[str]:
    lost, ratios = column(runs, "quality_lost"), column(runs, "of_optimum")
    shares = column(runs, "cost_100")
    cost, best = _cost(runs), column(runs, "optimal")
    feasible, violations = column(runs, "feasible"), column(runs, "violation")
    return [
        group[1] + mark_of(runs),
        str(len(runs)),
        "-" if cost is None else per_thousand(cost),
        _lost(lost, len(best)) if lost else _share_range(shares),
        _near(runs) if ratios else "-",
        f"{sum(best):.0f} of {len(best)}" if best else "-",
        plain(sum(violations) / len(violations), 2) if violations else "-",
        f"{len(feasible) - sum(feasible):.0f} of {len(feasible)}" if feasible else "-",
    ]


def mark_of(runs: Sequence[FinishedRun]) -> str:
    """Follows a method whose costs and qualities were measured, because they are not known."""
    return " (measured)" if any(run.measured_repeats is not None for run in runs) else ""


def legend(groups: Groups) -> list[str]:
    """What the short table shows, and that of held-out queries."""
    runs = [run for of in groups.values() for run in of]
    lines = [LEGEND, *([LEGEND_MEASURED] if any(map(mark_of, groups.values())) else [])]
    told = any("best_feasible" in (run.deployment or {}) for run in runs)
    return [*lines, *([LEGEND_DEPLOYED] if told else [])]


def in_order(groups: Groups) -> Groups:
    """By task and budget, and the methods as in figures."""

    def key(group: Group) -> tuple[str, float, tuple[int, str]]:
        return group[0], group[2], rank(group[1])

    return {group: groups[group] for group in sorted(groups, key=key)}


def task_names(groups: Groups) -> dict[Group, str]:
    """The task of each group; with the budget if the task was run with several budgets."""
    budgets: dict[str, set[float]] = {}
    for task, _, budget in groups:
        budgets.setdefault(task, set()).add(budget)
    return {
        group: group[0] if len(budgets[group[0]]) == 1 else f"{group[0]}, {group[2]:g} USD"
        for group in groups
    }


def _cost(runs: Sequence[FinishedRun]) -> float | None:
    """Median of the final c_bf, in USD per query."""
    known = [run for run in runs if column([run], "cost_100")]
    return median([column([r], "cost_100")[0] * r.result["reference_cost_usd"] for r in known])


def _share_range(shares: Sequence[float]) -> str:
    if not shares:
        return "-"
    middle, least, most = (_percent(x) for x in (median(shares), min(shares), max(shares)))
    return middle if least == most else f"{middle} ({least} to {most})"


def _percent(share: float | None) -> str:
    """Three digits below 100%: cheap configurations cost a few percent of the reference."""
    if share is None:
        return "-"
    return f"{plain(100 * share, 3 if share < 0.1 else 2)}%" if share < 0.995 else percent(share)


def _lost(lost: Sequence[float], number: int) -> str:
    """Median loss of quality of so many runs; - if most end at nothing feasible."""
    middle = median([*lost, *[math.inf] * (number - len(lost))])
    return "-" if middle is None or math.isinf(middle) else f"quality -{middle:.3f}"


def _near(runs: Sequence[FinishedRun]) -> str:
    """`_median_near`, and how many runs get there."""
    middle = _median_near(runs)
    said = "-" if middle is None else plain(middle, 2)
    return f"{said} ({len(column(runs, 'near_optimum_usd'))})"


def _median_near(runs: Sequence[FinishedRun]) -> float | None:
    """Median spend in USD until c_bf is near the optimum, over all runs; None if most never are."""
    found = column(runs, "near_optimum_usd")
    middle = median(found + [math.inf] * (len(runs) - len(found)))
    return middle if middle is not None and math.isfinite(middle) else None


def deployment_table(groups: Groups) -> list[Cells]:
    """`DEPLOYED` and a row for each group that was run on held-out queries; [] if none was."""
    names = task_names(groups)
    rows = [
        [names[group], group[1], str(len(runs)), *_deployed(group, runs)]
        for group, runs in groups.items()
        if column(runs, "test_quality")
    ]
    return [DEPLOYED, *rows] if rows else []


def _deployed(group: Group, runs: Sequence[FinishedRun]) -> list[str]:
    theirs = _paper_deployment(group, runs)
    gains = [share - 1 for share in _against_reference(runs, "quality")]
    cost = median(column(runs, "test_cost_usd"))
    return [
        per_thousand(cost or 0.0),
        _share_range(_against_reference(runs, "cost_usd")),
        f"{median(column(runs, 'test_quality')):.3f}",
        f"{median(gains):+.1%}" if gains else "-",
        f"{theirs[0]:.1%}" if theirs else "-",
        f"{theirs[1] - 1:+.1%}" if theirs else "-",
    ]


def _against_reference(runs: Sequence[FinishedRun], name: str) -> list[float]:
    """Cost or quality on held-out queries over that of the reference, for each run."""
    pairs = zip(column(runs, f"test_{name}"), column(runs, f"test_reference_{name}"), strict=True)
    return [ours / reference for ours, reference in pairs if reference]


def _paper_deployment(group: Group, runs: Sequence[FinishedRun]) -> tuple[float, float] | None:
    """The paper's cost and quality on held-out queries, over those of its reference."""
    numbers = paper_numbers()["deployment"].get(paper_task(group[0]), {})
    theirs = numbers.get(runs[0].result["method"])
    if theirs is None or not _is_usual(runs[0]):
        return None
    return theirs[0] / numbers["reference"][0], theirs[1] / numbers["reference"][1]


def _paper_share(run: FinishedRun) -> float | None:
    """The paper's final best feasible cost over c(theta_0)."""
    result = run.result
    curves = paper_curves(result["task"], result["reference"], run.kernel)
    if result["method"] in curves:
        cost = curves[result["method"]][1]
        return float(cost[-1] / cost[0])
    fractions = paper_numbers()["final_fraction"].get(paper_task(result["task"]), {})
    return fractions.get(result["method"]) if _is_usual(run) else None


def _is_usual(run: FinishedRun) -> bool:
    """Whether theta_0 is the paper's: its shares are of that one."""
    return set(run.result["reference"].values()) == {"GPT-5.2"}


def long_table(groups: Groups) -> str:
    """A row for each task, method and budget, as CSV with all measures.

    Each measure of `FinishedRun.measures` has its median, least, most and mean over the runs that
    have it, and their number; the median of `near_optimum_usd` is that of all runs, as in the short
    table. Costs of runs are shares of c(theta_0), except where a name says USD.
    """
    rows = [_long_row(group, runs) for group, runs in groups.items()]
    return as_csv(rows)


def _long_row(group: Group, runs: Sequence[FinishedRun]) -> dict[str, Any]:
    task, label, budget = group
    theirs = _paper_deployment(group, runs) or (None, None)
    cost = _cost(runs)
    row: dict[str, Any] = {"task": task, "method": label, "budget_usd": budget, "runs": len(runs)}
    row["objective"] = runs[0].result.get("objective", "cost")
    row["cost_usd_per_1000"] = None if cost is None else 1000 * cost
    row["at_optimum_runs"] = int(sum(column(runs, "optimal")))
    row |= {"paper_cost": _paper_share(runs[0])}
    row |= {"paper_test_cost": theirs[0], "paper_test_quality": theirs[1]}
    measured = {name: column(runs, name) for run in runs for name in run.measures()}
    for name in ("cost_usd", "quality"):
        if f"test_{name}" in measured:
            measured[f"test_{name}_of_reference"] = _against_reference(runs, name)
    for name, values in measured.items():
        row |= _statistics(name, values)
    if "near_optimum_usd" in measured:  # the few that get there say nothing of the others
        row["near_optimum_usd_median"] = _median_near(runs)
    return row


def _statistics(name: str, values: Sequence[float]) -> dict[str, float | None]:
    return {
        f"{name}_median": median(values),
        f"{name}_least": min(values, default=None),
        f"{name}_most": max(values, default=None),
        f"{name}_mean": sum(values) / len(values) if values else None,
        f"{name}_runs": len(values),
    }


def runs_table(groups: Groups) -> str:
    """A row for each run, as CSV with all measures."""
    return as_csv(
        {"task": task, "method": label, "budget_usd": budget, "path": str(run.path)}
        | {"seed": run.result["seed"], **run.measures()}
        for (task, label, budget), runs in groups.items()
        for run in runs
    )


def as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows with any columns, in the order in which these first appear."""
    rows = list(rows)
    text = io.StringIO(newline="")
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(text)
    writer.writerow(map(cell_of, names))
    writer.writerows([cell_of(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def markdown(table: Sequence[Cells]) -> list[str]:
    """Lines of a table in Markdown, in columns that a terminal shows one below the other."""
    widths = [max(3, *(len(row[i]) for row in table)) for i in range(len(table[0]))]
    rows = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in table]
    rows.insert(1, ["-" * width for width in widths])
    return [f"| {' | '.join(row)} |" for row in rows]


def latex(groups: Groups) -> str:
    r"""The short table for LaTeX with `\usepackage{booktabs}`; a task's least cost is bold."""
    header, *rows = short_table(groups)
    kept = [list(header).index(n) for n in header if n != "runs"]
    least = _least_costs(groups)
    lines = [rf"\begin{{tabular}}{{ll{'r' * (len(kept) - 2)}}}", r"\toprule"]
    lines += [" & ".join(_TITLES.get(header[i], header[i]) for i in kept) + r" \\"]
    before = ""
    for group, row in zip(groups, rows, strict=True):
        cells = [_escaped(cell) for cell in row]
        cells[1] = _escaped(style_of(group[1]).title + mark_of(groups[group]))
        if group in least:
            cells[3] = rf"\textbf{{{cells[3]}}}"
        if row[0] != before:
            lines.append(r"\midrule")
        cells[0], before = ("" if row[0] == before else cells[0]), row[0]
        lines.append(" & ".join(cells[i] for i in kept) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


_TITLES = {
    "task": "Task",
    "method": "Method",
    "USD/1000": r"$c_{bf}$ [USD/1000]",
    "of the reference": r"of the reference",
    "within 10%": r"within 10\% [USD]",
    "mean V": "$V$",
}


def _least_costs(groups: Groups) -> set[Group]:
    """The groups with the least c_bf, as printed, of those that searched the same for as much.

    Another threshold is another search, though its task has the same name.
    """
    known = ((group, _cost(runs)) for group, runs in groups.items())
    costs = {group: per_thousand(cost) for group, cost in known if cost is not None}
    places = {group: (group[0], groups[group][0].searched, group[2]) for group in costs}
    least: dict[tuple[str, str, float], float] = {}
    for group, cost in costs.items():
        least[places[group]] = min(float(cost), least.get(places[group], math.inf))
    return {group for group, cost in costs.items() if float(cost) == least[places[group]]}


def _escaped(text: str) -> str:
    r"""Text for LaTeX.

    Examples:
        >>> print(_escaped("a_b 5%"))
        a\_b 5\%
    """
    special = {character: f"\\{character}" for character in "#$%&_{}"}
    special |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(character, character) for character in text)
