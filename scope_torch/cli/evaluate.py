"""Evaluates the results of a search on held-out queries (RQ2), or on all queries of the search.

    scope-torch evaluate --run outputs/airport_city/scope/seed=0 task=airport_city evaluator=live
    scope-torch evaluate --theta LLM_1 LLM_2 LLM_3 -- task=airport_city evaluator=live
    scope-torch evaluate --run outputs/airport_city/scope/seed=0 --on search \\
        task=airport_city evaluator=live

A live task calls LLMs, which costs money beside the search budget. Replies that are already in the
response store cost nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scope_torch.cli.build import close_evaluator
from scope_torch.cli.compose import compose_task, exit_on_error
from scope_torch.cli.module_costs import ModuleCosts, module_table
from scope_torch.cli.saying import say
from scope_torch.cli.tables import markdown
from scope_torch.errors import InputError
from scope_torch.files import check_folder, write_atomically
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.results.digits import per_thousand, percent, plain, threshold
from scope_torch.results.metrics import is_feasible
from scope_torch.runs.deployment import compare
from scope_torch.runs.directory import read_result, read_settings, write_json
from scope_torch.runs.measured import FILE, FOLDER, Measured, measure_results, measurement
from scope_torch.runs.opening import with_fingerprint_of_today
from scope_torch.runs.recorded import RecordedRun, read_run
from scope_torch.tasks import Task
from scope_torch.tracking.heard import HEARD

_DESCRIPTION = (
    "Evaluates theta_out and the reference on held-out queries. With --on search, runs every "
    "result that a search has had on all of its queries, R times, and writes RUN/measured.json: a "
    "live run then has the best feasible cost and the violation, here and in scope-torch report. "
    "What was stopped goes on; nothing is paid for twice, if llm.store is that of the search."
)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with 2 if the user can mend the error."""
    parser = argparse.ArgumentParser(
        "scope-torch evaluate",
        description=_DESCRIPTION,
        epilog="example: scope-torch evaluate --run outputs/data_imputation/scope_joint/seed=0 "
        "task=data_imputation",
    )
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--run", type=Path, help="evaluate theta_out of this run directory")
    chosen.add_argument("--theta", nargs="+", help="an LLM for each module")
    parser.add_argument(
        "--on",
        choices=("held_out", "search"),
        default="held_out",
        help="held_out (the default): theta_out and the reference on queries that the search has "
        "not seen; search: every theta_out that the run has had, on all queries of the search",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=1,
        metavar="R",
        help="with --on search: how often each query is run. 1 (the default) takes answers that "
        "the search has seen as they are; with more, all answers are new",
    )
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("overrides", nargs="+", help="as for a search: task=... evaluator=live")
    args = parser.parse_args(argv)
    exit_on_error("evaluate", lambda: _evaluate(args))


def _evaluate(args: argparse.Namespace) -> None:
    if args.on == "search" and args.run is None:
        raise InputError("--on search needs --run, the directory of a search; not --theta")
    if args.on != "search" and args.repeats != 1:
        raise InputError(f"--repeats {args.repeats} needs --on search")
    if args.out is not None:
        check_folder(args.out, "--out")
    run = _stopped_run(args.run) if args.on == "search" else None
    task = compose_task(args.overrides, measures=run is not None)
    try:
        report, text = _on_held_out(args, task) if run is None else _on_search(run, task, args)
    finally:
        close_evaluator(task.evaluator)
    say(text)
    if args.out is not None:
        write_atomically(args.out, json.dumps(report, indent=2) + "\n")


def _on_held_out(args: argparse.Namespace, task: Task) -> tuple[dict[str, Any], str]:
    problem = task.problem
    llms = args.theta if args.run is None else _theta_out(args.run, task)
    if task.held_out is None:
        raise InputError(f"task {problem.name!r} has no held-out queries")
    other = None if args.run is None else _other_task(args.run, task)
    theta = problem.codes(llms, "theta")
    held_out = task.held_out()
    try:
        report = compare(held_out, theta, problem.theta_ref)
        report["num_failed"] = getattr(held_out.evaluator, "num_failed", 0)
    finally:
        close_evaluator(held_out.evaluator)
    report["theta"] = problem.names(theta)
    costs = {
        name: _module_costs(codes, report["results"][name].get("module_cost_usd"))
        for name, codes in (("theta", theta), ("reference", problem.theta_ref))
    }
    report["warning"] = other
    failed = _failed(report["num_failed"])
    blocks = [_table(report), [other] if other else [], module_table(problem, costs), failed]
    return report, _text(blocks)


def _other_task(run_dir: Path, task: Task) -> str | None:
    """What to say if a run was made on another task, such as another world; else None.

    Its queries may have changed since for a good reason, so that it is said and not refused.
    """
    try:
        settings = read_settings(run_dir / "settings.json")
    except FileNotFoundError:
        return f"warning: {run_dir} has no settings.json, which says on which task it was made"
    made, now = settings["evaluator"], task.evaluator.fingerprint()
    if with_fingerprint_of_today(settings, task.evaluator)["evaluator"] == now:
        return None
    return (
        f"warning: {run_dir} was made with {made}, and this task is {now}: other queries, LLMs, "
        "prices or another world; for the queries held out in that run, give its arguments"
    )


def _failed(number: int) -> list[str]:
    return [f"{number} calls gave no reply; these answers count as wrong"] if number else []


def _kept_failures(number: int, folder: Path) -> list[str]:
    if not number:
        return []
    return [f"{number} answers failed and count as wrong; without {folder} they are asked again"]


def _on_search(
    run: RecordedRun, task: Task, args: argparse.Namespace
) -> tuple[dict[str, Any], str]:
    total = args.repeats * run.problem.num_queries * len(_searched(run))
    num_failed = 0
    with tqdm(total=total, disable=not HEARD.isatty(), file=HEARD) as bar:

        def advance(one: Observation) -> None:
            nonlocal num_failed
            num_failed += one.failed is not None  # also in an earlier process
            bar.update()

        found = measure_results(run, task.evaluator, args.repeats, advance)
    report = measurement(run, found)
    write_json(run.path / FILE, report)
    last = next(one for one in found if one.theta == run.rows[-1].row.theta_out)
    costs = {"theta_out": _module_costs(last.theta, last.module_cost_usd)}
    blocks = [
        [_headline(run, args.repeats, len(found) - 1)],
        _results_table(run.problem, found),
        _curve_table(run.problem, report["curve"]),
        module_table(run.problem, costs),
        _kept_failures(num_failed, run.path / FOLDER),
        [f"written to {run.path / FILE}; scope-torch report reads it where the truth is unknown"],
    ]
    return report, _text(blocks)


def _stopped_run(run_dir: Path) -> RecordedRun:
    run = read_run(run_dir)
    if run.is_running:
        raise InputError(f"{run_dir} is still running; wait until it ends, or stop it by Ctrl-C")
    if not run.rows:
        raise InputError(f"{run_dir} has no trace.csv with results; run the search first")
    return run


def _searched(run: RecordedRun) -> set[tuple[int, ...]]:
    """The results of a run but theta_0."""
    return {recorded.row.theta_out for recorded in run.rows} - {run.problem.theta_ref}


def _module_costs(theta: Sequence[int], usd: Sequence[float] | None) -> ModuleCosts | None:
    return None if usd is None else ModuleCosts(theta, usd)


def _headline(run: RecordedRun, repeats: int, number: int) -> str:
    times = "once" if repeats == 1 else f"{repeats} times"
    errors = (
        "an upper estimate of the standard error, from the spread over queries"
        if repeats == 1
        else "the standard error, from the spread of the repeats"
    )
    return (
        f"{run.problem.name} {run.method.name} ({run.status}): {number} results of the search "
        f"beside the reference, each {times} on {run.problem.num_queries} queries\n"
        f"+-: {errors}; s_0 = {threshold(run.problem.s_0)}"
    )


def _results_table(problem: SelectionProblem, found: Sequence[Measured]) -> list[str]:
    header = ["theta_out", "USD/1000", "+-", "quality", "+- ", "feasible"]
    rows = [
        [
            f"{', '.join(problem.names(one.theta).values())}{'' if one.repeats else ' (given)'}",
            per_thousand(one.values[0]),
            "-" if one.cost_se_usd is None else per_thousand(one.cost_se_usd),
            f"{one.values[1]:.3f}",
            "-" if one.quality_se is None else f"{one.quality_se:.3f}",
            "yes" if is_feasible(problem, one.values) else "no",
        ]
        for one in found
    ]
    return markdown([header, *rows])


def _curve_table(problem: SelectionProblem, curve: Sequence[dict[str, Any]]) -> list[str]:
    costs = [step["best_feasible_cost_usd"] for step in curve]
    rows = [["of the budget", *(f"{step['share_of_budget']:.0%}" for step in curve)]]
    rows.append(["USD", *(plain(step["budget_usd"]) for step in curve)])
    if problem.objective == "cost":
        rows.append(["c_bf, USD/1000", *map(per_thousand, costs)])
        rows.append(["of the reference", *(percent(c / problem.reference_cost_usd) for c in costs)])
    else:
        rows.append(["best feasible quality", *(plain(1 - loss) for loss in costs)])
    return markdown([*rows, ["V", *(plain(step["violation"]) for step in curve)]])


def _text(blocks: Sequence[Sequence[str]]) -> str:
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _theta_out(run_dir: Path, task: Task) -> list[str]:
    try:
        theta_out = read_result(run_dir / "result.json")["theta_out"]
        return [theta_out[module] for module in task.problem.modules]
    except (FileNotFoundError, KeyError) as error:
        raise InputError(
            f"{run_dir} holds no finished run of {task.problem.name} ({error!r})"
        ) from None


def _table(report: dict[str, Any]) -> list[str]:
    def cell(values: dict[str, Any], key: str, form: str) -> str:
        low, high = values[f"{key}_interval"]
        return f"{values[key]:{form}} [{low:{form}}, {high:{form}}]"

    lines = [
        f"{', '.join(f'{m}: {llm}' for m, llm in report['theta'].items())}, on "
        f"{report['num_queries']} held-out queries; averages with 95% confidence intervals",
        "| | cost [USD] | quality |",
        "| --- | --- | --- |",
    ]
    for name in ("theta", "reference", "difference"):
        values = report["results"][name]
        costs, quality = cell(values, "cost_usd", ".3g"), cell(values, "quality", ".3f")
        lines.append(f"| {name} | {costs} | {quality} |")
    return lines


if __name__ == "__main__":
    main()
