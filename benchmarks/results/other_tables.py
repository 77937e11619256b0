"""The tables of recorded problems and of the calibration, made from the committed runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from benchmarks.agentopt.tables import FILES, runs_of
from benchmarks.results.experiments import CHOSEN, MAIN
from benchmarks.results.summary import (
    Row,
    Rows,
    at_optimum,
    code,
    count,
    geometric_mean,
    grouped,
    markdown,
    mean,
    near,
    papers_competitor,
    percent,
    share,
    usd,
    violation,
)
from scope_torch.cli.paper import paper_numbers

_ORDER = list(MAIN)
SHORT = ("scope_joint", "scope", "cei", "config_bo", "abacus", "optuna_gp", "random_search")


def short_table(rows: Rows) -> str:
    """`problems_table` for a first page: few methods, few columns."""
    return _short(rows, "problems on recorded tables")


def worlds_table(rows: Rows) -> str:
    """The same for the simulated tasks."""
    return _short(rows, "simulated tasks")


def family_table(rows: Rows) -> str:
    """The same for the second family of worlds."""
    return _short(rows, "simulated tasks, second family of worlds")


def _short(rows: Rows, title: str) -> str:
    rows, lines = in_common(rows, SHORT), []
    for method in SHORT:
        if of := [row for row in rows if row["method"] == method]:
            near = sum(bool(row["usd_within_10"]) for row in of) / len(of)
            spent = statistics.median(of_budget(row) for row in of)
            shown = "-" if math.isinf(spent) else f"{spent:.0%}"
            bad = f"{count(of, 'infeasible')}"
            lines.append([f"`{method}`", str(len(of)), f"{near:.0%}", shown, bad])
    header = [
        f"{len({row['problem'] for row in rows})} {title}",
        "runs",
        "within 10% of the optimum",
        "share of the budget until then, median",
    ]
    return markdown([*header, "end infeasible"], lines)


def in_common(rows: Rows, methods: Sequence[str]) -> list[Row]:
    """The runs of some methods on the problems, worlds and seeds that all of them were run on."""
    ran: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        ran.setdefault((row["problem"], row["world"], row["seed"]), set()).add(row["method"])
    wanted = {method for method in methods if any(method in of for of in ran.values())}
    places = {place for place, of in ran.items() if wanted <= of}
    return [row for row in rows if (row["problem"], row["world"], row["seed"]) in places]


def of_budget(row: Row) -> float:
    """The share of the budget spent until within 10% of the optimum; infinite if never."""
    near = row["usd_within_10"]
    return float(near) / float(row["budget_usd"]) if near else math.inf


def problems_table(rows: Rows) -> str:
    """Recorded tables: how often and for what each method comes within 10% of the optimum."""
    by_method: dict[str, list[Row]] = {}
    for (_, method), of in grouped(rows).items():
        by_method.setdefault(method, []).extend(of)
    ordered = sorted(by_method, key=_ORDER.index)
    problems = sorted({row["problem"] for row in rows})
    lines = [
        [
            code(method),
            str(len(of)),
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
    header = ["method", "runs", "within 10% of the optimum", "at the optimum"]
    header += [
        "USD until within 10%: median over all runs",
        "spent, mean [USD]",
        "mean V",
        "infeasible",
    ]
    each = [
        [problem] + [near([r for r in by_method[m] if r["problem"] == problem]) for m in ordered]
        for problem in problems
    ]
    detail = markdown(["problem: USD within 10% (runs)", *map(code, ordered)], each)
    return f"{markdown(header, lines)}\n\n{detail}"


def calibration_table(rows: Rows) -> str:
    """The worlds beside the numbers that they were fitted to; development worlds."""
    groups = grouped(rows)
    problems = list(dict.fromkeys(problem for problem, _ in groups))
    lines = []
    for problem in problems:
        found = {m: geometric_mean(of) for (p, m), of in groups.items() if p == problem}
        best = min(found, key=found.__getitem__)
        of = groups[problem, best]
        task = problem.partition(",")[0]
        evaluations = [float(r["observations"]) for r in groups[problem, "random_search"]]
        lines.append(
            [
                problem,
                f"{percent(found[best])} ({code(best)})",
                percent(papers_competitor(task)),
                percent(share(of, "c_star")),
                percent(paper_numbers()["final_fraction"][task]["scope"]),
                f"{statistics.mean(evaluations):.0f}",
            ]
        )
    header = ["task", "best competitor: c_bf / c(theta_0), geometric mean of worlds 0 to 4"]
    header += ["the paper's best competitor (target)", "optimum / c(theta_0), median"]
    header += ["the paper's SCOPE (no target)", "observations of random search"]
    return markdown(header, lines)


PEERS_SHOWN = ("scope_joint", "scope", "optuna_gp", *CHOSEN)


def peers_table(rows: Rows) -> str:
    """Other libraries and ours on the same problems, worlds and seeds; AgentOpt on MathQA."""
    places = {(r["problem"], r["world"], r["seed"]) for r in rows if r["method"] in CHOSEN}
    lines: list[list[str]] = []
    for problem in dict.fromkeys(r["problem"] for r in rows if r["method"] in CHOSEN):
        for method in PEERS_SHOWN:
            of = [r for r in rows if r["problem"] == problem and r["method"] == method]
            of = [r for r in of if (problem, r["world"], r["seed"]) in places]
            if of:
                near = sum(bool(r["usd_within_10"]) for r in of)
                cells = [problem, f"`{method}`", str(len(of)), f"{near / len(of):.0%}", usd(of)]
                cells += [f"{mean(of, 'spent_usd'):.2f}", f"{_ratio(of):.2f}", violation(of)]
                lines.append([*cells, str(count(of, "infeasible"))])
        if problem == "mathqa":
            lines += _agentopt()
    header = ["problem", "method", "runs", "within 10% of the optimum", "USD until then, median"]
    header += ["spent, mean [USD]", "c_bf / optimum, median", "mean V", "end infeasible"]
    return markdown(header, lines)


def _ratio(rows: Rows) -> float:
    return share(rows, "c_bf_100", "c_star")


def _agentopt() -> list[list[str]]:
    """The selectors of AgentOpt on MathQA, which end by themselves; of benchmarks/agentopt."""
    lines: list[list[str]] = []
    for (task, selector), rows in runs_of(FILES["cost"]).items():
        if task != "mathqa" or selector in ("scope", "scope_joint"):
            continue
        good = [float(r["true_quality"]) >= float(r["s_0"]) - 1e-9 for r in rows]
        ratios = [float(r["true_cost_usd"]) / float(r["least_cost_usd"]) for r in rows]
        near = sum(ok and ratio <= 1.1 for ok, ratio in zip(good, ratios, strict=True))
        spends = [float(r["spend_usd"]) for r in rows]
        until = f"{statistics.median(spends):.3g}" if 2 * near > len(rows) else "-"
        feasible = [ratio for ok, ratio in zip(good, ratios, strict=True) if ok]
        lines.append(
            [
                "mathqa",
                f"AgentOpt `{selector}`",
                str(len(rows)),
                f"{near / len(rows):.0%}",
                until,
                f"{statistics.fmean(spends):.2f}",
                f"{statistics.median(feasible):.2f}" if feasible else "-",
                "",
                str(len(rows) - sum(good)),
            ]
        )
    return lines


def tuning_table(rows: Rows) -> str:
    """Settings of the peers on the development half."""
    lines = [
        [
            f"`{method}`",
            str(len(of)),
            f"{geometric_mean(of):.3g}",
            f"{sum(bool(r['usd_within_10']) for r in of)}",
        ]
        for method in dict.fromkeys(row["method"] for row in rows)
        for of in [[row for row in rows if row["method"] == method]]
    ]
    header = ["peer", "runs", "c_bf / c(theta_0), geometric mean", "within 10% of the optimum"]
    return markdown(header, lines)
