"""Puts tables and figures of docs/results into the pages; no number there is typed by hand."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.results import other_tables, tables
from benchmarks.results.experiments import experiments
from benchmarks.results.figures import draw_all
from benchmarks.results.live import live_table
from benchmarks.results.runs import KEY, read_rows
from benchmarks.results.summary import Rows

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
PAGES = tuple(
    ROOT / name
    for name in ("README.md", "docs/results.md", "docs/results-details.md", "docs/simulated.md")
)
MADE = "made.json"  # when the runs of a file were made, and with what
PACKAGES = ("torch", "gpytorch", "botorch", "numpy", "optuna")
_BEGIN, _END = "<!-- begin: results {} -->", "<!-- end -->"


def note_run(folder: Path, name: str) -> None:
    """Notes date and versions of an experiment's runs beside its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / MADE
    notes = json.loads(path.read_text()) if path.exists() else {}
    versions = {package: _version(package) for package in PACKAGES}
    first = notes.get(name, {}).get("first", str(datetime.date.today()))
    notes[name] = {"first": first, "last": str(datetime.date.today()), "versions": versions}
    path.write_text(json.dumps(notes, indent=2, sort_keys=True) + "\n")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def blocks(folder: Path) -> dict[str, str]:
    """The Markdown of each block, by its name in the pages."""
    notes = json.loads((folder / MADE).read_text()) if (folder / MADE).exists() else {}
    made: dict[str, str] = {}
    for name, (sources, table) in TABLES.items():
        source, *others = sources.split()
        rows = read_rows(folder / f"{source}.csv")
        if not rows:
            made[name] = f"*No runs yet: `python -m benchmarks.results run --only {source}`.*"
        else:
            origin = _origin(source, rows, notes)
            for other in others:
                rows += read_rows(folder / f"{other}.csv")
            made[name] = f"{table(rows)}\n\n*{origin}*"
    return made


def _origin(source: str, rows: Rows, notes: Mapping[str, Mapping[str, Mapping[str, str]]]) -> str:
    """Command, versions and date of a table."""
    note = notes.get(source, {})
    if source == "live":  # whose runs are made one by one
        return "`python -m benchmarks.results.live RUN`; docs/results/live.csv"
    first, last = note.get("first"), note.get("last")
    days = f"{last}" if first == last else f"{first} to {last}"
    versions = ", ".join(f"{name} {version}" for name, version in note.get("versions", {}).items())
    return (
        f"`python -m benchmarks.results run --only {source}`, {how_many(source, rows)}, "
        f"docs/results/{source}.csv; "
        f"{days}; {versions}"
    )


def how_many(source: str, rows: Rows) -> str:
    """How many runs a table is made of, and which of the planned ones are still to be made."""
    made = {tuple(row[name] for name in KEY) for row in rows}
    missing = [cell for cell in experiments()[source] if cell.key not in made]
    if not missing:
        return f"{len(rows):,} runs"
    started = {row["problem"] for row in rows}
    without = dict.fromkeys(c.problem for c in missing if c.problem not in started)
    nothing = f"; none of {', '.join(without)}" if without else ""
    return f"{len(rows):,} runs ({len(missing):,} are still to be made{nothing})"


TABLES: dict[str, tuple[str, Callable[[list[dict[str, str]]], str]]] = {
    "main": ("main", tables.main_table),
    "shares": ("main", tables.shares_table),
    "headlines": ("main", tables.headline_table),
    "deployment": ("main", tables.deployment_table),
    "contradictions": ("main", tables.contradictions),
    "incumbents": ("main", tables.incumbents_table),
    "ablation": ("main", tables.ablation_table),
    "systems": ("systems", tables.main_table),
    "additive": ("additive", tables.main_table),
    "tables": ("tables", other_tables.problems_table),
    "short": ("tables", other_tables.short_table),
    "worlds": ("main", other_tables.worlds_table),
    "family": ("additive", other_tables.family_table),
    "peers": ("peers main tables", other_tables.peers_table),
    "peers_tuning": ("peers_tuning", other_tables.tuning_table),
    "kernel": ("kernel", tables.kernel_table),
    "reference": ("reference", tables.reference_table),
    "parameters": ("parameters", tables.parameters_table),
    "live": ("live", live_table),
    "calibration": ("calibration", other_tables.calibration_table),
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
