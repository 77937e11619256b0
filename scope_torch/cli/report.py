"""Tables and figures of finished runs: `scope-torch report OUTPUT_DIR`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scope_torch.cli.paper import CITATION, paper_curves
from scope_torch.cli.saying import say
from scope_torch.cli.tables import (
    deployment_table,
    in_order,
    latex,
    legend,
    long_table,
    mark_of,
    markdown,
    runs_table,
    short_table,
)
from scope_torch.errors import InputError
from scope_torch.files import write_atomically
from scope_torch.results.panel import Panel, lines_of
from scope_torch.results.style import save_figure
from scope_torch.runs.finished import FinishedRun, Group, load_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Groups = Mapping[Group, Sequence[FinishedRun]]
_MOST_REMARKS = 5  # on the screen; `table.md` has all
# How each file begins that a report writes. A user may have another one of this name: `runs.csv` is
# what the guide calls a recorded table.
_BEGINNINGS = {
    "methods.csv": b"task,method,budget_usd,runs",
    "runs.csv": b"task,method,budget_usd,path",
    "table.tex": rb"\begin{tabular}{ll",
    "table.md": b"| task ",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with 2 if there is nothing to report."""
    parser = argparse.ArgumentParser(
        "scope-torch report",
        description="Prints a table of finished runs; writes it to DIR/table.md, with all measures "
        "of methods to methods.csv and of runs to runs.csv; and draws figures as PNG and PDF.",
        epilog="example: scope-torch report outputs",
    )
    parser.add_argument("output_dir", type=Path, help="a folder that scope-torch put runs into")
    parser.add_argument(
        "--latex", action="store_true", help="writes table.tex as well, for the package booktabs"
    )
    arguments = parser.parse_args(argv)
    try:
        say(report(arguments.output_dir, with_latex=arguments.latex))
    except (InputError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        sys.exit(2)


def report(output_dir: Path, *, with_latex: bool = False) -> str:
    """Aggregates the runs below a directory over seeds.

    Writes `table.md`, the short table; `methods.csv` with all measures of each method, `runs.csv`
    with a row for each run; and for each task and budget a figure as PNG and PDF. If there are
    several tasks, `all_tasks` has them side by side. Without matplotlib, there are no figures.

    Args:
        output_dir: Where `scope-torch` put its runs.
        with_latex: Whether to write `table.tex`.

    Returns:
        The short tables in Markdown, a list of unfinished and failed runs, and the files written.

    Raises:
        InputError: If there is no finished run, or a file cannot be written, or holds something
            else; nothing is written then.
    """
    found, remarks = load_runs(output_dir)
    groups = in_order(found)
    tables = [markdown(table) for table in (short_table(groups), deployment_table(groups)) if table]
    files = {"methods.csv": long_table(groups), "runs.csv": runs_table(groups)}
    if with_latex:
        files["table.tex"] = latex(groups)
    files["table.md"] = _text([*tables, legend(groups), [f"- {remark}" for remark in remarks]])
    for name in files:
        _refuse_another(output_dir / name)
    for name, content in files.items():
        write_atomically(output_dir / name, content)
    shown = remarks[:_MOST_REMARKS]
    if len(shown) < len(remarks):
        shown.append(f"and {len(remarks) - len(shown)} more: see table.md")
    drawn = list(_figures(output_dir, groups))
    written = f"written to {output_dir}: {', '.join([*files, *drawn])}"
    return _text([*tables, legend(groups), [*shown, written]])


def _refuse_another(path: Path) -> None:
    """Refuses a file that no report has written."""
    before = path.read_bytes() if path.exists() else b""
    if before.strip() and not before.startswith(_BEGINNINGS[path.name]):
        raise InputError(f"{path} holds something else; rename it, or move it away")


def _text(blocks: Sequence[Sequence[str]]) -> str:
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def _figures(output_dir: Path, groups: Groups) -> Iterator[str]:
    """Draws the figures; their names, or a remark if matplotlib is missing."""
    try:
        from scope_torch.results.plotting import draw_panel, draw_panels
    except ImportError:
        yield "no figures, because matplotlib is missing (pip install matplotlib)"
        return
    panels = _panels(groups)
    for name, panel in panels.items():
        yield _save(draw_panel(panel, CITATION), output_dir / name)
    if len({task for task, _, _ in groups}) > 1 < len(panels):
        yield _save(draw_panels(list(panels.values()), CITATION), output_dir / "all_tasks")


def _save(figure: Figure, stem: Path) -> str:
    for suffix in (".png", ".pdf"):
        save_figure(figure, stem.with_name(stem.name + suffix))
    return f"{stem.name}.png and .pdf"


def _panels(groups: Groups) -> dict[str, Panel]:
    """Name of the file and content of the figure, for each task, budget and objective."""
    cases: dict[tuple[str, float, str], dict[str, Sequence[FinishedRun]]] = {}
    for (task, label, budget), runs in groups.items():
        if any(run.curve is not None for run in runs):
            objective = runs[0].result.get("objective", "cost")
            cases.setdefault((task, budget, objective), {})[label] = runs
    found: dict[str, Panel] = {}
    for (task, budget, objective), shown in sorted(cases.items(), key=lambda case: case[0]):
        of = "" if objective == "cost" else f"_{objective}"
        name = f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', task)}_{budget:g}usd{of}"
        found[name] = _panel(task, budget, shown)
    return found


def _panel(task: str, budget: float, shown: Mapping[str, Sequence[FinishedRun]]) -> Panel:
    lines = [lines_of(run.result) for runs in shown.values() for run in runs]
    optima = {one["optimal_cost_usd"] for one in lines}
    first = next(iter(shown.values()))[0]
    paper = paper_curves(task, first.result["reference"], first.kernel)
    curves = {
        label: [c for run in runs if (c := run.curve) is not None] for label, runs in shown.items()
    }
    least, most = min(map(len, curves.values())), max(map(len, curves.values()))
    several = f"median of {most if least == most else f'{least} to {most}'} runs"
    mark = next(filter(None, map(mark_of, shown.values())), "")
    return Panel(
        title=f"{task}: {several if most > 1 else 'one run'}{mark}",
        curves=curves,
        budget_usd=budget,
        reference_cost_usd=lines[0]["reference_cost_usd"],
        optimal_cost_usd=optima.pop() if len(optima) == 1 else None,
        paper={name: curve for name, curve in paper.items() if name in shown},
        label=lines[0].get("label"),
    )


if __name__ == "__main__":
    main()
