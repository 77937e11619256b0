"""When the runs of a file were made, and with which versions: the line below each table."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MADE = "made.json"  # beside the files
PACKAGES = ("torch", "gpytorch", "botorch", "numpy", "optuna")
_DISTRIBUTIONS = {"ax": "ax-platform", "agentopt": "agentopt-py"}  # of modules
Note = Mapping[str, Any]


def note_run(folder: Path, name: str, modules: Iterable[str] = ()) -> None:
    """Notes date and versions of a file's runs.

    Args:
        folder: Where the file is.
        name: Its name, without the ending.
        modules: Modules whose versions count, beside `PACKAGES`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    notes = notes_of(folder)
    more = {_DISTRIBUTIONS.get(module, module) for module in modules}
    versions = {package: _version(package) for package in sorted({*PACKAGES, *more})}
    today = str(datetime.date.today())
    first = notes.get(name, {}).get("first", today)
    before = notes.get(name, {}).get("versions", {})
    notes[name] = {"first": first, "last": today, "versions": before | versions}
    text = json.dumps(notes, indent=2, sort_keys=True)
    (folder / MADE).write_text(text + "\n")


def notes_of(folder: Path) -> dict[str, Note]:
    """The notes of a folder, by the name of the file; none if there are none."""
    path = folder / MADE
    return json.loads(path.read_text()) if path.exists() else {}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def when_and_with(notes: Sequence[Note]) -> str:
    """Days and versions of files, in words."""
    return f"{when(notes)}; {versions(notes)}" if any(notes) else when(notes)


def when(notes: Sequence[Note]) -> str:
    """The first and the last day of files."""
    notes = [note for note in notes if note]
    if not notes:
        return "no date is known"
    first, last = min(n["first"] for n in notes), max(n["last"] for n in notes)
    return first if first == last else f"{first} to {last}"


def versions(notes: Sequence[Note]) -> str:
    """The versions of packages that made files; versions that differ are all named."""
    found: dict[str, list[str]] = {}
    for note in notes:
        for package, version in note.get("versions", {}).items():
            if version not in found.setdefault(package, []):
                found[package].append(version)
    return ", ".join(f"{name} {' and '.join(of)}" for name, of in sorted(found.items()))
