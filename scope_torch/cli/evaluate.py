"""Evaluates a configuration on held-out queries, against the reference (RQ2).

    scope-torch evaluate --run outputs/airport_city/scope/seed=0 task=airport_city evaluator=live
    scope-torch evaluate --theta LLM_1 LLM_2 LLM_3 -- task=airport_city evaluator=live

A live task calls LLMs, which costs money beside the search budget. Replies that are already in the
response store cost nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scope_torch.cli.build import close_evaluator
from scope_torch.cli.compose import compose_task, exit_on_error
from scope_torch.errors import InputError
from scope_torch.runs.deployment import compare
from scope_torch.runs.directory import write_atomically
from scope_torch.tasks import Task


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with 2 if the user can mend the error."""
    parser = argparse.ArgumentParser(
        "scope-torch evaluate",
        description=(__doc__ or "").splitlines()[0],
        epilog="example: scope-torch evaluate --run outputs/data_imputation/scope_joint/seed=0 "
        "task=data_imputation",
    )
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--run", type=Path, help="evaluate theta_out of this run directory")
    chosen.add_argument("--theta", nargs="+", help="an LLM for each module")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("overrides", nargs="+", help="as for a search: task=... evaluator=live")
    args = parser.parse_args(argv)
    exit_on_error("evaluate", lambda: _evaluate(args))


def _evaluate(args: argparse.Namespace) -> None:
    task = compose_task(args.overrides)
    problem = task.problem
    llms = args.theta if args.run is None else _theta_out(args.run, task)
    if task.held_out is None:
        raise InputError(f"task {problem.name!r} has no held-out queries")
    held_out = task.held_out()
    try:
        report = compare(held_out, problem.codes(llms, "theta"), problem.theta_ref)
    finally:
        close_evaluator(held_out.evaluator)
        close_evaluator(task.evaluator)
    report["theta"] = problem.names(problem.codes(llms))
    if args.out is not None:
        write_atomically(args.out, json.dumps(report, indent=2) + "\n")
    print(_table(report))


def _theta_out(run_dir: Path, task: Task) -> list[str]:
    try:
        theta_out = json.loads((run_dir / "result.json").read_text())["theta_out"]
        return [theta_out[module] for module in task.problem.modules]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{run_dir} holds no finished run of {task.problem.name} ({error!r})"
        ) from None


def _table(report: dict[str, Any]) -> str:
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
    return "\n".join(lines)


if __name__ == "__main__":
    main()
