"""The tables of recorded problems and of the calibration, made from the committed runs."""

from __future__ import annotations

import math
import statistics

from benchmarks.agentopt.tables import FILES, runs_of
from benchmarks.results.cells import CHOSEN, MAIN, OURS, PAPERS
from benchmarks.results.choices import FITTED_METHODS, FITTED_WORLDS
from benchmarks.results.summary import (
    SAME,
    Row,
    Rows,
    at_optimum,
    code,
    count,
    geometric_mean,
    grouped,
    markdown,
    mean,
    median,
    papers_competitor,
    percent,
    share,
    usd,
    violation,
    worst,
)
from benchmarks.results.tables import by_task
from scope_torch.cli.paper import paper_numbers
from scope_torch.runs.finished import NEAR

_ORDER = list(MAIN)
FAMILIES = ("additive", "recorded_like")  # files of worlds of other families


def not_trivial(rows: Rows) -> list[Row]:
    """Without problems whose reference is itself within 10% of the optimum: all methods are."""
    return [row for row in rows if float(row["c_0"]) > NEAR * float(row["c_star"])]


def of_budget(row: Row) -> float:
    """The share of the budget spent until within 10% of the optimum; infinite if never."""
    near = row["usd_within_10"]
    return float(near) / float(row["budget_usd"]) if near else math.inf


def problems_table(rows: Rows) -> str:
    """Recorded tables: how often and for what each method comes within 10% of the optimum.

    Trivial problems are left out.
    """
    by_method: dict[str, list[Row]] = {}
    for (_, method), of in grouped(not_trivial(rows)).items():
        by_method.setdefault(method, []).extend(of)
    ordered = sorted(by_method, key=_ORDER.index)
    lines = [
        [
            code(method),
            f"{sum(bool(r['usd_within_10']) for r in of) / len(of):.0%}",
            f"{at_optimum(of) / len(of):.0%}",
            usd(of),
            f"{mean(of, 'spent_usd'):.2f}",
            violation(of),
            str(count(of, "infeasible")),
        ]
        for method in ordered
        for of in [by_method[method]]
    ]
    header = ["method", "within 10% of the optimum", "at the optimum", "USD until within 10%"]
    header += ["spent, mean [USD]", "mean V", "infeasible"]
    return markdown(header, lines)


def recorded_table(rows: Rows) -> str:
    """On what others recorded: how often near the optimum, for how much, and how far at worst.

    Trivial problems are left out.
    """
    groups = grouped(not_trivial(rows))
    problems = list(dict.fromkeys(problem for problem, _ in groups))
    methods = list(dict.fromkeys(method for _, method in groups))
    most = {p: max(len(groups.get((p, m), ())) for m in methods) for p in problems}

    def cell(of: Rows, runs: int) -> str:
        if not of:
            return ""
        near = sum(bool(row["usd_within_10"]) for row in of)
        bad = sum(row["infeasible"] == "1" for row in of)
        unknown = sum(row["infeasible"] == "" for row in of)
        ends = (f", {bad} infeasible" if bad else "") + (f", {unknown} unknown" if unknown else "")
        fewer = "" if len(of) == runs else f" of {len(of)}"
        spends = f"{usd(of)}, {median(of, 'spent_usd'):.3g}"
        return f"{near}{fewer}, {spends}, {worst(of):.3g}{ends}"

    header = ["", *(f"{code(p.removeprefix('recorded/'))} ({most[p]} runs)" for p in problems)]
    lines = [
        [code_of(m), *(cell(groups.get((p, m), []), most[p]) for p in problems)] for m in methods
    ]
    return markdown(header, lines)


def others_recorded_table(rows: Rows) -> str:
    """The same of our methods and competitors."""
    return recorded_table([row for row in rows if row["method"] not in PAPERS])


def papers_recorded_table(rows: Rows) -> str:
    """The same of SCOPE to the letter and in parts (fig:main-abl)."""
    return recorded_table([row for row in rows if row["method"] in OURS | PAPERS])


def dearer_table(rows: Rows) -> str:
    """Where `scope` ends cheaper than `scope_joint` on average, in USD a year.

    They are those of a million queries of the best feasible configuration.
    """
    groups: dict[str, dict[str, dict[tuple[str, ...], float]]] = {}
    for row in rows:
        if row["method"] in OURS:
            name = _in_family(row, code(row["problem"].removeprefix("recorded/")))
            years = groups.setdefault(name, {}).setdefault(row["method"], {})
            years[_place(row)] = 1e6 * float(row["c_bf_100"])
    groups = {name: of for name, of in groups.items() if len(of) == len(OURS)}
    lines = list[tuple[float, list[str]]]()
    for name, of in groups.items():
        scope, joint = of["scope"], of["scope_joint"]
        both = [(usd, joint[at]) for at, usd in scope.items() if at in joint]
        saved = [other - usd for usd, other in both]
        if (mean_saved := statistics.fmean(saved)) <= 0:
            continue
        means = map(statistics.fmean, zip(*both, strict=True))
        usd_a_year = [*means, mean_saved, statistics.median(saved)]
        cheaper = sum(SAME * usd < other for usd, other in both)
        dearer = sum(SAME * other < usd for usd, other in both)
        cells = [f"{usd:,.0f}" if usd >= 10 else f"{usd:.2g}" for usd in usd_a_year]
        lines.append((mean_saved, [name, *cells, f"{cheaper}, {dearer} of {len(both)}"]))
    header = [f"of {len(groups)} places", "`scope`: USD a year, mean", "`scope_joint`"]
    header += ["difference, mean", "median", "runs in which `scope`, `scope_joint` is cheaper"]
    return markdown(header, [line for _, line in sorted(lines, reverse=True)])


def dearer_everywhere_table(rows: Rows) -> str:
    """The same, also of the searches beside AgentOpt's."""
    beside = [
        {**row, "problem": f"{task}, as it ships", "method": method}
        | {"file": "", "world": "", "c_bf_100": row["true_cost_usd"]}
        for (task, method), of in runs_of(FILES["cost"]).items()
        for row in of
        if float(row["true_quality"]) >= float(row["s_0"])
    ]
    return dearer_table([*rows, *beside])


def _in_family(row: Row, problem: str) -> str:
    """A problem, with the family of its worlds if that is not the default."""
    return f"{problem}, {row['file']}" if row["file"] in FAMILIES else problem


def calibration_table(rows: Rows) -> str:
    """The worlds beside the numbers that they were fitted to, and the worlds that are reported."""
    groups, reported = _fitted(rows, development=True), _fitted(rows, development=False)
    lines = []
    for problem, again in reported.items():
        task, fitted = problem.partition(",")[0], groups.get(problem)
        shares = {method: geometric_mean(of) for method, of in (fitted or {}).items()}
        best = min(shares, key=shares.__getitem__, default="")
        evaluations = [_evaluations(of["random_search"]) for of in (fitted, again) if of]
        later = min(geometric_mean(of) for of in again.values())
        lines.append(
            [
                problem,
                f"{percent(shares[best])} ({code(best)})" if best else "",
                percent(papers_competitor(task)),
                percent(later),
                percent(share(again["random_search"], "c_star")),
                percent(paper_numbers()["final_fraction"][task]["scope"]),
                ", ".join(f"{number:.1f}" for number in evaluations),
            ]
        )
    worlds = f"worlds {FITTED_WORLDS[0]} to {FITTED_WORLDS[-1]}"
    header = ["task", f"best competitor, {worlds}", "the paper's (target)"]
    header += ["worlds 100 to 109", "optimum there, median"]
    return markdown([*header, "the paper's SCOPE", "random configurations"], lines)


def _fitted(rows: Rows, *, development: bool) -> dict[str, dict[str, list[Row]]]:
    """Runs of the competitors that the worlds were fitted with, by problem and method."""
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row["method"] not in FITTED_METHODS or (int(row["world"]) < 100) != development:
            continue
        name = _in_family(row, row["problem"])
        groups.setdefault(name, {}).setdefault(row["method"], []).append(row)
    return groups


def _evaluations(rows: Rows) -> float:
    """The mean number of configurations that a run evaluates."""
    return mean(rows, "candidates")


PEERS_SHOWN = ("scope_joint", "scope", "optuna_gp", *CHOSEN)
RECORDED = "problems on recorded tables"


def peers_table(rows: Rows) -> str:
    """Other libraries and ours on the simulated tasks."""
    rows = [row for row in rows if row["world"] and row["method"] in PEERS_SHOWN]
    return by_task(beside_others(rows), _peer)


def beside_others(rows: Rows) -> list[Row]:
    """Runs on the problems, worlds and seeds on which other libraries were run."""
    places = {_place(row) for row in rows if row["method"] in CHOSEN}
    return [row for row in rows if _place(row) in places]


def _place(row: Row) -> tuple[str, str, str]:
    return row["problem"], row["world"], row["seed"]


def _peer(rows: Rows) -> str:
    """Runs near the optimum, the share of the budget that was spent, c_bf / optimum."""
    spent = statistics.fmean(float(r["spent_usd"]) / float(r["budget_usd"]) for r in rows)
    ratio = f"{share(rows, 'c_bf_100', 'c_star'):.2f}"
    bad = count(rows, "infeasible")
    ends = f", {bad} infeasible" if bad else ""
    return f"{near_and_until(rows)[0]}, {spent:.0%}, {ratio}{ends}"


def by_group(rows: Rows) -> dict[str, list[Row]]:
    """Rows of all recorded problems together, and of each simulated task."""
    groups: dict[str, list[Row]] = {}
    recorded = {row["problem"] for row in rows if not row["world"]}
    for row in rows:
        name = row["problem"] if row["world"] else f"{len(recorded)} {RECORDED}"
        groups.setdefault(name, []).append(row)
    return dict(sorted(groups.items(), key=lambda group: RECORDED not in group[0]))


def near_and_until(rows: Rows) -> tuple[str, str]:
    """The share of runs within 10% of the optimum; the median share of the budget until then."""
    until = statistics.median(of_budget(row) for row in rows)
    near = sum(bool(row["usd_within_10"]) for row in rows) / len(rows)
    return f"{near:.0%}", "-" if math.isinf(until) else f"{until:.0%}"


def code_of(method: str) -> str:
    """A method as code; of AgentOpt, the selector."""
    library, space, name = method.partition(" ")
    return f"AgentOpt `{name}`" if library == "AgentOpt" and space else code(method)


EVERYONE = ("scope_joint", "scope", "cei", "config_bo", "abacus", "random_search")
EVERYONE += PEERS_SHOWN[2:]
EVERYONE += tuple(f"AgentOpt {name}" for name in ("arm_elimination", "bayesian", "threshold_se"))


def everyone_table(rows: Rows) -> str:
    """Ours, the paper's competitors and other libraries in one table for a first page."""
    recorded = [row for row in not_trivial(rows) if not row["world"]]
    simulated = [row for row in rows if row["world"]]
    lines, header = [[code_of(method)] for method in EVERYONE], [""]
    for group, name in ((recorded, RECORDED), (simulated, "simulated tasks, hard cases")):
        by_method = [[row for row in group if row["method"] == method] for method in EVERYONE]
        most = max(map(len, by_method))
        title = f"{len({row['problem'] for row in group})} {name} ({most} runs)"
        header += [f"{title}: near the optimum", "budget until then", "infeasible"]
        for line, of in zip(lines, by_method, strict=True):
            near, until = near_and_until(of) if of else ("", "")
            fewer = f" of {len(of)}" if 0 < len(of) < most else ""
            line += [f"{near}{fewer}", until, str(count(of, "infeasible")) if of else ""]
    return markdown(header, lines)
