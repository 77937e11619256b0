"""The tables of the paper's experiments, made from the committed runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.results.cells import COMPETITORS, LETTER, MAIN, PEER, SIMULATED, STUB, VARIANTS
from benchmarks.results.runs import SHARES
from benchmarks.results.summary import (
    Rows,
    code,
    grouped,
    markdown,
    mean,
    median,
    median_curve,
    papers,
    percent,
    percents,
    recorded_first,
    share,
    violation,
    worst,
)
from scope_torch.cli.paper import paper_numbers

_THREE = ("text_to_sql", "data_transformation", "data_imputation")
# The recordings of the paper's own tasks; the first was for choosing.
_RECORDED = {"recorded/restaurant": "data_imputation", "recorded/bing": "data_transformation"}
_LETTER = "scope, to the letter"


def ablation_table(rows: Rows) -> str:
    """SCOPE, SCOPE-Rand and SCOPE-Coarse beside the paper's (fig:main-abl), and `scope_joint`."""
    lines = [
        [
            problem,
            code(method),
            percents(share(of, f"c_bf_{round(100 * s)}") for s in SHARES),
            *papers(problem, method),
            f"{share(of, 'c_bf_100', 'c_star'):.2f} ({worst(of):.3g})",
        ]
        for (problem, method), of in grouped(rows).items()
        if method in ("scope_joint", "scope", "scope_rand", "scope_coarse")
    ]
    header = ["task", "method", "c_bf / c(theta_0)", "the paper's"]
    return markdown([*header, "c_bf / optimum: median (worst)"], lines)


def ends_table(rows: Rows) -> str:
    """How every method ends on every task (fig:main-dev)."""
    return by_task(rows, end)


def by_task(rows: Rows, cell: Callable[[Rows], str]) -> str:
    """A line for each method, a column for each task; the usual number of runs is in its head."""
    groups = grouped(rows)
    tasks = recorded_first(task for task, _ in groups)
    most = {task: max(len(of) for (t, _), of in groups.items() if t == task) for task in tasks}

    def shown(task: str, name: str) -> str:
        of = groups.get((task, name))
        return cell(of).replace(f" of {most[task]}", "") if of else ""

    lines = [
        [code(name), *(shown(task, name) for task in tasks)]
        for name in dict.fromkeys(name for _, name in groups)
    ]
    return markdown(["", *(f"{tasks[task]} ({of} runs)" for task, of in most.items())], lines)


def end(rows: Rows) -> str:
    """c_bf / c(theta_0) in the median, runs within 10% of the optimum, and mean V if not 0."""
    near = sum(bool(row["usd_within_10"]) for row in rows)
    poor = "" if violation(rows) == "0" else f", V {violation(rows)}"
    return f"{percent(share(rows, 'c_bf_100'))}, {near} of {len(rows)}{poor}"


def spent(rows: Rows) -> str:
    """The median share of the budget that was spent."""
    return f"{share(rows, 'spent_usd', 'budget_usd'):.0%}"


def headline_table(rows: Rows) -> str:
    """By how much the best feasible cost is below that of the best competitor (sec:rq1).

    Medians over all runs. "the most" is at the budget at which the difference is largest.
    """
    groups, lines = grouped(rows), []
    against = (*COMPETITORS, *STUB, *PEER)
    for task in (*SIMULATED, *_RECORDED):
        shown = {m: of for (p, m), of in groups.items() if p == task and m in MAIN}
        curves = {method: median_curve(of) for method, of in shown.items()}
        others = {name: curve for name, curve in curves.items() if name in against}
        if not others:
            continue
        best = np.min(list(others.values()), axis=0)
        name = min(others, key=lambda method: others[method][-1])
        cells: list[str] = []
        for method in (_LETTER, "scope", "scope_joint"):
            less = 1 - curves[method] / best if method in curves else None
            cells.append("" if less is None else f"{_lower(less[-1])}; {_lower(less.max())}")
        paper = paper_numbers()["reduction"].get(_RECORDED.get(task, task))
        said = f"-{paper['final']:.1%}; -{paper['most']:.1%}" if paper else ""
        lines.append([_named(task), f"{percent(best[-1])} ({code(name)})", *cells, said])
    header = ["task", "best competitor: c_bf / c(theta_0)", _LETTER, "`scope`", "`scope_joint`"]
    return markdown([*header, "the paper's SCOPE"], lines)


def _named(task: str) -> str:
    """A task, and of which of the paper's it is the recording."""
    of = _RECORDED.get(task)
    return task if of is None else f"{of}, recorded ({code(task.removeprefix('recorded/'))})"


def _lower(reduction: float) -> str:
    """A cost relative to another: how much lower, or how many times as high."""
    if abs(reduction) < 5e-4:
        return "the same"
    return f"-{reduction:.1%}" if reduction >= 0 else f"{1 - reduction:.3g} times"


def deployment_table(rows: Rows) -> str:
    """The configuration of best feasible cost on held-out queries (tab:test_performance)."""
    groups = grouped(rows)
    tasks = [task for task in _THREE if any(problem == task for problem, _ in groups)]
    lines = []
    for method in dict.fromkeys(method for _, method in groups):
        if method in (*VARIANTS, *LETTER):
            continue  # the file has them
        of = [(task, groups.get((task, method), [])) for task in tasks]
        lines.append([code(method), *(cell for each in of for cell in _deployed(*each, method))])
    return markdown(["", *(name for task in tasks for name in (task, "the paper's"))], lines)


def _deployed(task: str, rows: Rows, method: str) -> list[str]:
    """Cost and quality on held-out queries, runs that are below; the paper's beside them."""
    if not rows:
        return ["", ""]
    paper = paper_numbers()["deployment"][task]
    ref, said = paper["reference"], paper.get(method.partition("[")[0].lower())
    cost = mean(rows, "deployed_cost") / mean(rows, "deployed_cost_ref")
    quality = mean(rows, "deployed_quality")
    gain = quality / mean(rows, "deployed_quality_ref") - 1
    its = f"{percent(said[0] / ref[0])}, {said[1] / ref[1] - 1:+.0%}" if said else ""
    below = _below(rows)
    most = f" ({percent(max(below))})" if below else ""
    return [f"{percent(cost)}, {gain:+.0%}, {len(below)}{most}", its]


def statements_table(rows: Rows) -> str:
    """What the paper says of SCOPE, and the same of `scope` in these runs."""
    groups = grouped(rows)
    final = {key: share(of, "c_bf_100") for key, of in groups.items()}
    coarse, below = list[str](), list[str]()
    for of in (_THREE, tuple(_RECORDED)):
        ran = [task for task in of if (task, "scope_coarse") in groups]
        ends = {task: (final[task, "scope_coarse"], final[task, "scope"]) for task in ran}
        coarse += [f"{high / low:.2g} ({_named(task)})" for task, (high, low) in ends.items()]
        below.append(f"{sum(ends[task][0] < final[task, 'cei'] for task in ran)} of {len(ran)}")
    early = median(groups["data_imputation", "scope"], "pruned_early")
    said = paper_numbers()["headline"]["pruned_early_data_imputation"]
    unchanged = [
        f"{_same_in(groups, kind):.0%}" for kind in ("alpha", "sequence, delta", "theory, delta")
    ]
    early, paper_early = (f"{share:.0%}" for share in (early, said))
    delta = f"{unchanged[1]} (certificate=sequence), {unchanged[2]} (theory)"
    lines = [
        ("its c_bf is the same for alpha in [1/5, 1/2)", "all runs", f"{unchanged[0]} of the runs"),
        ("its c_bf is the same for delta in [1e-5, 1e-3]", "all runs", delta),
        ("c_bf of SCOPE-Coarse / c_bf of SCOPE", "3 to 5", ", ".join(coarse)),
        ("tasks in which SCOPE-Coarse ends below BO", "3 of 3", "; recorded ".join(below)),
        ("data_imputation: given up after 40 of 156 queries", paper_early, early),
    ]
    return markdown(["", "the paper's SCOPE", "`scope`, our rules"], lines)


def _same_in(groups: Mapping[tuple[str, str], Rows], kind: str) -> float:
    """The share of runs whose final c_bf is the same with all values of a parameter."""
    of = [rows for (_, method), rows in groups.items() if method.partition(" = ")[0] == kind]
    finals = [{(r["world"], r["seed"]): r["c_bf_100"] for r in rows} for rows in of]
    return statistics.fmean(len({final.get(key) for final in finals}) == 1 for key in finals[0])


def kernel_table(rows: Rows) -> str:
    """With the squared exponential kernel (fig:sensitivity)."""
    return _against_paper(rows, "GPT-5.2", "HammingRBFKernel")


def reference_table(rows: Rows) -> str:
    """With another reference (fig:sensitivity)."""
    return _against_paper(rows, "Claude Haiku 4.5", "")


def _against_paper(rows: Rows, reference: str, kernel: str) -> str:
    lines = [
        [
            code(method),
            percents(share(of, f"c_bf_{round(100 * s)}") for s in SHARES),
            *papers(problem, method, reference, kernel),
            f"{share(of, 'c_bf_100', 'c_star'):.2f}",
        ]
        for (problem, method), of in grouped(rows).items()
    ]
    return markdown(["method", "c_bf / c(theta_0)", "the paper's", "c_bf / optimum"], lines)


def parameters_table(rows: Rows) -> str:
    """Other alpha, and other delta where delta acts (appendix:ablation)."""
    lines = [
        [method, percent(share(of, "c_bf_100")), f"{share(of, 'c_bf_100', 'c_star'):.2f}"]
        for (_, method), of in grouped(rows).items()
    ]
    return markdown(["`scope` with", "c_bf / c(theta_0)", "c_bf / optimum"], lines)


def _below(rows: Rows) -> list[float]:
    """By what share runs are below the constraint on held-out queries; of those that are."""
    ratios = [
        float(row["deployed_quality"]) / (0.99 * float(row["deployed_quality_ref"])) for row in rows
    ]
    return [1 - ratio for ratio in ratios if ratio < 1]
