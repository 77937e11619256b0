"""Runs every configuration of a live task on every query and writes the table.

    scope-torch record_table runs.csv.gz task=airport_city evaluator=live llm.base_url=http://...

Every reply goes into the response store (llm.store) as soon as it is paid for, so the same command
goes on where it was stopped. The table has one row for each configuration and query: the LLM of
each module, query, quality, cost_usd and, where known, latency_s and the tokens of each module.
`task=table` reads it. Where the costs of modules are known, those of the reference are printed.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from scope_torch.cli.build import close_evaluator
from scope_torch.cli.compose import compose_task, exit_on_error
from scope_torch.cli.module_costs import ModuleCosts, module_table
from scope_torch.cli.saying import say
from scope_torch.errors import InputError
from scope_torch.files import cell_of, check_folder, write_atomically
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.runs.deployment import module_costs
from scope_torch.tasks import Task
from scope_torch.tracking.heard import HEARD


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with 2 if the user can mend the error."""
    parser = argparse.ArgumentParser(
        "scope-torch record_table",
        description=(__doc__ or "").splitlines()[0],
        epilog="example: scope-torch record_table runs.csv.gz task=airport_city evaluator=live",
    )
    parser.add_argument("table", type=Path, help="CSV to write, gzipped if it ends in .gz")
    parser.add_argument("overrides", nargs="+", help="as for a search: task=... evaluator=live")
    args = parser.parse_args(argv)
    exit_on_error("record_table", lambda: _record(args))


def _record(args: argparse.Namespace) -> None:
    check_folder(args.table)
    task = compose_task(args.overrides, measures=False)
    try:
        record(task, args.table)
    finally:
        close_evaluator(task.evaluator)


def record(task: Task, path: Path) -> None:
    """Writes the table of a task.

    Raises:
        InputError: If the folder of `path` is missing, two columns would have one name, a call
            gave no reply, or the evaluator cannot go on.
    """
    check_folder(path)
    header = _header(task.problem, has_details=True)
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise InputError(f"a table would have two columns {twice[0]!r}: rename the module")
    requests = list(all_requests(task.problem))
    observations: dict[Request, Observation] = {}
    made = task.evaluator.evaluate(requests)
    for observation in tqdm(made, total=len(requests), disable=not HEARD.isatty(), file=HEARD):
        observations[observation.request] = observation
    if num_failed := getattr(task.evaluator, "num_failed", 0):
        raise InputError(
            f"{num_failed} calls gave no reply, so {path} was not written: they would count as "
            "wrong answers; the same command asks for these again"
        )
    ordered = [observations[request] for request in sorted(observations)]
    write_table(task.problem, ordered, path)
    theta = task.problem.theta_ref
    if (costs := module_costs([o for o in ordered if o.theta == theta])) is not None:
        say("\n".join(module_table(task.problem, {"reference": ModuleCosts(theta, costs)})))


def all_requests(problem: SelectionProblem) -> Iterator[Request]:
    """Every configuration on every query, query by query: a partial table is balanced."""
    every = problem.space.unrank(torch.arange(problem.space.size)).tolist()
    for query in range(problem.num_queries):
        for theta in every:
            yield Request(tuple(theta), query)


def write_table(problem: SelectionProblem, observations: Sequence[Observation], path: Path) -> None:
    """Writes observations as a CSV file; equal observations give equal bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    has_details = all(o.module_tokens and o.latency_s is not None for o in observations)
    writer.writerow(map(cell_of, _header(problem, has_details)))
    for o in observations:
        row = [*problem.names(o.theta).values(), o.query, o.quality, f"{o.cost_usd:.9g}"]
        if has_details:
            row.append(f"{o.latency_s:.3f}")
            row += [count for module in o.module_tokens or () for count in module]
        writer.writerow(map(cell_of, row))
    content = text.getvalue().encode()
    content = gzip.compress(content, mtime=0) if path.suffix == ".gz" else content
    write_atomically(path, content)


def _header(problem: SelectionProblem, has_details: bool) -> list[str]:
    header = [*problem.modules, "query", "quality", "cost_usd"]
    tokens = [f"{m}_{kind}_tokens" for m in problem.modules for kind in ("in", "out")]
    return [*header, "latency_s", *tokens] if has_details else header


if __name__ == "__main__":
    main()
