"""Tables about rules and promises: half-widths, when to stop, and how often a result is wrong."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.results.coverage import CERTIFICATES, FLIPS
from benchmarks.results.letter import VARIANTS
from benchmarks.results.payoff import DEPLOYMENTS, RULES
from benchmarks.results.planned import numbers
from benchmarks.results.summary import (
    Row,
    Rows,
    at_optimum,
    code,
    count,
    grouped,
    markdown,
    mean,
    median,
    near,
    percent,
    recorded_first,
    share,
    violation,
    worst,
)
from benchmarks.results.tables import by_task, end, spent

_NOT_SHOWN = "loo, b_c", "0.3,", "0.5,", "c(theta_0)/50,", "c(theta_0)/1,"


def bounds_table(rows: Rows) -> str:
    """`scope` with rules for its half-widths (sec:exp); the file has more rules."""
    groups = grouped(rows)
    problems = recorded_first(problem for problem, _ in groups)
    lines = [
        [*(part.partition(" = ")[2] for part in method.split(", "))]
        + [_rule(of) if (of := groups.get((problem, method))) else "" for problem in problems]
        for method in dict.fromkeys(row["method"] for row in rows)
        if not any(f" = {rule}" in f"{method}," for rule in _NOT_SHOWN)
    ]
    runs = {problem: len(of) for (problem, _), of in groups.items()}
    return markdown(
        ["b_g", "b_c", *(f"{name} ({runs[p]} runs)" for p, name in problems.items())], lines
    )


def _rule(rows: Rows) -> str:
    """c_bf / optimum in the median and at most, runs at the optimum, area, given up early."""
    ratio = f"{share(rows, 'c_bf_100', 'c_star'):.2f} ({worst(rows):.3g})"
    poor = f", {count(rows, 'infeasible')} infeasible" if count(rows, "infeasible") else ""
    early = f"{mean(rows, 'pruned_early'):.0%}"
    return f"{ratio}, {at_optimum(rows)}, {percent(area(rows))}, {early}{poor}"


def choices_table(rows: Rows) -> str:
    """Settings of `scope_joint`, on the problems on which they were tried."""
    # With 2 widenings the searches are those with 1.
    tried = {row["problem"] for row in rows if row["method"].startswith("scope_joint, ")}
    rows = [r for r in rows if r["problem"] in tried and not r["method"].endswith("widenings = 2")]
    return by_task(rows, lambda of: f"{end(of)}, {percent(area(of))}, {spent(of)}")


def area(rows: Rows) -> float:
    """The mean over runs of c_bf / c(theta_0), averaged over the budget."""
    return statistics.fmean(
        float(np.mean(numbers(row["c_bf_curve"]))) / float(row["c_0"]) for row in rows
    )


def randomness_table(rows: Rows) -> str:
    """Answers that vary: how often theta_out is infeasible, and by how much."""
    lines = [
        [
            f"`{method}`",
            percent(share(of, "c_bf_100")),
            f"{share(of, 'c_bf_100', 'c_star'):.2f} ({worst(of):.3g})",
            f"{count(of, 'infeasible')} of {len(of)}",
            violation(of),
            f"{max(float(row['V']) for row in of):.2g}",
        ]
        for (_, method), of in grouped(rows).items()
    ]
    header = ["method", "c_bf / c(theta_0)", "c_bf / optimum: median (worst)"]
    return markdown([*header, "infeasible", "mean V", "largest V"], lines)


def pool_table(rows: Rows) -> str:
    """Certificates for tomorrow: what they cost with all queries and with a pool of them."""
    lines = [
        [
            problem,
            method,
            str(len(of)),
            near(of),
            f"{median(of, 'spent_usd'):.3g}",
            percent(share(of, "c_bf_100")),
            str(count(of, "infeasible")),
        ]
        for (problem, method), of in sorted(
            grouped(rows).items(), key=lambda group: int(group[0][0].split()[0])
        )
    ]
    header = ["queries", "certificates with", "runs", "within 10% of the optimum: USD (runs)"]
    return markdown([*header, "spent [USD], median", "c_bf / c(theta_0)", "infeasible"], lines)


def payoff_table(rows: Rows) -> str:
    """Search and H queries together, by two rules for the end relative to "while it pays"."""
    lines: list[list[str]] = []
    for problem in dict.fromkeys(row["problem"] for row in rows):
        of, cells, worst_of = [row for row in rows if row["problem"] == problem], [], []
        for H in DEPLOYMENTS:
            totals = [{rule: float(row[f"{rule}_{H:.0e}"]) for rule in RULES} for row in of]
            sums = {rule: sum(each[rule] for each in totals) for rule in RULES}
            others = (f"{sums[rule] / sums['pays']:.3f}" for rule in RULES if rule != "pays")
            cells.append(", ".join(others))
            worst_of += [each["pays"] / min(each.values()) for each in totals]
        lines.append([f"{problem} ({len(of)} searches)", *cells, f"{max(worst_of):.3f}"])
    header = ["task", *(f"H = {H:,.0f}" for H in DEPLOYMENTS), "at worst"]
    return markdown(header, lines)


def coverage_table(rows: Rows) -> str:
    """How often theta_out is infeasible, by certificate and chance of a flip."""
    by: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        by.setdefault((row["method"], float(row["flips"])), []).append(row)
    searches = max(sum(int(row["searches"]) for row in of) for of in by.values())

    def cells(name: str, of: Callable[[list[Row]], str]) -> list[str]:
        return [of(by[name, flips]) if (name, flips) in by else "" for flips in FLIPS]

    lines = [
        [name, *cells(name, lambda of: f"{_wrong(of)}, {_excess(of)}")] for name in CERTIFICATES
    ]
    header = [f"certificate ({searches:,} searches each)"]
    return markdown([*header, *(f"flips {flips:.0%}" for flips in FLIPS)], lines)


def _wrong(rows: Rows) -> str:
    searches = sum(int(row["searches"]) for row in rows)
    left = count(rows, "left_theta_0")
    return f"{count(rows, 'infeasible') / searches:.1%}, {left / searches:.1%}"


def _excess(rows: Rows) -> str:
    """The median over the searches that end feasible."""
    return f"{np.median(np.concatenate([numbers(row['excess_cost']) for row in rows])):.2f}"


def letter_table(rows: Rows) -> str:
    """The paper's method to the letter, and what makes its bounds wide (eq:beta-def)."""
    groups = {method: of for (_, method), of in grouped(rows).items()}
    lines = [
        [
            code(method),
            f"{median(of, 'b_g'):.3g}",
            f"{median(of, 'noise_g'):.3g}" if of[0]["noise_g"] else "",
            f"{share(of, 'first_u_out'):.3g}",
            _range([int(row["first_i"]) for row in of]),
            f"{median(of, 'candidates'):.0f}",
            f"{mean(of, 'pruned_early'):.0%}",
            percent(share(of, "c_bf_100")),
        ]
        for method in VARIANTS
        if (of := groups.get(method))
    ]
    header = ["method", "half-width of g", "of which noise", "first u_out / c(theta_0)"]
    header += ["first i", "candidates", "given up early", "c_bf / c(theta_0)"]
    return markdown(header, lines)


def _range(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
