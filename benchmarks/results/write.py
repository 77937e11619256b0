"""Puts tables and figures of docs/results into the pages; no number there is typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.results import (
    check_tables,
    cost_bounds_tables,
    front_tables,
    landscape_tables,
    other_tables,
    rule_tables,
    tables,
)
from benchmarks.results.experiments import experiments, quick
from benchmarks.results.figures import draw_all
from benchmarks.results.in_flight_tables import in_flight_table
from benchmarks.results.live import live_table
from benchmarks.results.origin import MADE, notes_of, when_and_with
from benchmarks.results.planned import Planned, key_of, read_rows
from benchmarks.results.summary import Row, Rows

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
PAGES = tuple(
    ROOT / name
    for name in (
        *("docs/results.md", "docs/results-details.md", "docs/results-development.md"),
        *("docs/results-front.md", "docs/simulated.md", "docs/explanation/tomorrow.md"),
        *("docs/performance.md", "docs/howto/check-a-swap.md", "docs/howto/factors.md"),
    )
)
_BEGIN, _END = "<!-- begin: results {} -->", "<!-- end -->"


def blocks(folder: Path) -> dict[str, str]:
    """The Markdown of each block, by its name in the pages."""
    notes = notes_of(folder)
    made: dict[str, str] = {}
    planned = experiments() if folder == RESULTS else quick()
    for name, (sources, table) in TABLES.items():
        files = {source: read_rows(folder / f"{source}.csv") for source in sources.split()}
        if all(files.values()):
            rows = [{**row, "file": source} for source, of in files.items() for row in of]
            made[name] = f"{table(rows)}\n\n*{_origin(files, planned)}*"
        else:
            missing = [source for source, rows in files.items() if not rows]
            made[name] = f"*No runs yet: `{_command(missing)}`.*"
    every = when_and_with(list(notes.values()))
    made["versions"] = f"*{every}; of each file: {_place(folder)}/{MADE}*"
    return made


def _origin(files: Mapping[str, Sequence[Row]], planned: Mapping[str, Sequence[Planned]]) -> str:
    """The files of a table; the page says where they are, when they were made and by what."""
    return ", ".join(
        f"{source}.csv: {how_many(rows, planned.get(source, ()))}" for source, rows in files.items()
    )


def _place(folder: Path) -> Path:
    return folder.relative_to(ROOT) if folder.is_absolute() else folder


def _command(sources: Sequence[str]) -> str:
    """The command that makes the runs of files; those of live searches are made one by one."""
    if sources == ["live"]:
        return "python -m benchmarks.results.live RUN"
    return f"python -m benchmarks.results run --only {' '.join(sources)}"


def how_many(rows: Rows, planned: Sequence[Planned]) -> str:
    """How many runs a table is made of, and which of the planned ones are still to be made."""
    made = {key_of(row) for row in rows}
    missing = [run for run in planned if run.key not in made]
    if not missing:
        return f"{len(rows):,} runs"
    started = {row["problem"] for row in rows}
    without = dict.fromkeys(c.problem for c in missing if c.problem not in started)
    nothing = f" (none of {', '.join(without)})" if without else ""
    return f"{len(rows):,} runs, {len(missing):,} to be made{nothing}"


TABLES: dict[str, tuple[str, Callable[[Rows], str]]] = {
    "recorded_development": ("recorded_development", other_tables.recorded_table),
    "recorded": ("recorded", other_tables.others_recorded_table),
    "recorded_papers": ("recorded", other_tables.papers_recorded_table),
    "dearer": (
        "recorded recorded_development tables main additive recorded_like",
        other_tables.dearer_everywhere_table,
    ),
    "main": ("main", tables.ends_table),
    "ablation": ("main", tables.ablation_table),
    "headlines": ("main recorded recorded_development", tables.headline_table),
    "deployment": ("main", tables.deployment_table),
    "statements": (
        "main recorded recorded_development parameters",
        tables.statements_table,
    ),
    "systems": ("systems", tables.ends_table),
    "additive": ("additive", tables.ends_table),
    "recorded_like": ("recorded_like", tables.ends_table),
    "tables": ("tables", other_tables.problems_table),
    "everyone": ("tables main peers", other_tables.everyone_table),
    "peers": ("peers main", other_tables.peers_table),
    "kernel": ("kernel", tables.kernel_table),
    "reference": ("reference", tables.reference_table),
    "parameters": ("parameters", tables.parameters_table),
    "letter": ("letter", rule_tables.letter_table),
    "randomness": ("randomness", rule_tables.randomness_table),
    "pool": ("pool", rule_tables.pool_table),
    "payoff": ("payoff", rule_tables.payoff_table),
    "coverage": ("coverage", rule_tables.coverage_table),
    "bounds": ("bounds_recorded bounds", rule_tables.bounds_table),
    "development": ("development_recorded development", rule_tables.choices_table),
    "front_development": ("front_development", front_tables.front_table),
    "front": ("front", front_tables.front_table),
    "live": ("live", live_table),
    "bases_development": ("bases_development", other_tables.recorded_table),
    "bases": ("bases", other_tables.recorded_table),
    "cost_bounds_development": ("cost_bounds_development", cost_bounds_tables.cost_bounds_table),
    "cost_bounds": ("cost_bounds", cost_bounds_tables.cost_bounds_table),
    "in_flight": ("in_flight", in_flight_table),
    "factors": ("factors", other_tables.recorded_table),
    "checks": ("checks", check_tables.recorded_checks_table),
    "rechecks": ("rechecks", check_tables.rechecks_table),
    "checks_simulated": ("checks_simulated", check_tables.simulated_checks_table),
    "landscapes": ("landscapes", landscape_tables.landscapes_table),
    "calibration": ("calibration main additive recorded_like", other_tables.calibration_table),
}


def with_blocks(text: str, made: Mapping[str, str]) -> str:
    """A page with its blocks; those that are not made stay as they are."""
    for name, block in made.items():
        begin = _BEGIN.format(name)
        before, found, rest = text.partition(begin)
        if not found:
            continue
        _, _, after = rest.partition(_END)
        text = f"{before}{begin}\n\n{block}\n\n{_END}{after}"
    return text


def write_all(folder: Path) -> None:
    """Writes the pages and the figures; of another folder, one page and figures into it."""
    made = blocks(folder)
    if folder == RESULTS:
        for page in PAGES:
            page.write_text(with_blocks(page.read_text(), made))
        draw_all(folder, ROOT / "docs" / "figures")
        return
    text = "\n\n".join(f"## {name}\n\n{block}" for name, block in made.items())
    (folder / "results.md").write_text(text + "\n")
    draw_all(folder, folder)
    print(f"written: {folder / 'results.md'}")
