"""The directory of a run: its settings, its journal, its result."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError, cannot_write
from scope_torch.runs.journal import Journal


def read_json(path: Path) -> dict[str, Any]:
    """Content of a JSON file of a run: `settings.json`, `result.json` or `deployment.json`.

    Raises:
        FileNotFoundError: If there is no such file.
        InputError: If it cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}); restore it, or move it away") from error


def finished_summary(run_dir: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Content of `result.json` if a run with these settings has finished in `run_dir`."""
    try:
        summary = read_json(run_dir / "result.json")
    except (FileNotFoundError, InputError):
        return None
    found = isinstance(summary, dict) and summary.get("settings_hash") == settings_hash(settings)
    return summary if found else None


def settings_hash(settings: dict[str, Any]) -> str:
    """16 hex digits that identify the settings of a run."""
    canonical = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file in one step: readers see the old or the new content, never a part of it.

    Raises:
        InputError: If the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "w", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave an empty file under this name
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise cannot_write(path, error) from error


def open_run_dir(run_dir: Path, settings: dict[str, Any], durable: bool) -> Journal:
    """Makes or reopens the directory of a run; returns its journal.

    Args:
        run_dir: The directory.
        settings: Everything that decides the run. If the directory holds a run, its settings must
            be the same, except that the budget may be larger now.
        durable: See `Journal`.

    Raises:
        InputError: If the directory cannot be written, is damaged, or holds a run with other
            settings.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(run_dir, error) from error
    journal = Journal(run_dir / "journal.jsonl", durable)
    try:
        _update_settings(run_dir, settings, journal)
    except BaseException:
        journal.close()
        raise
    return journal


def _update_settings(run_dir: Path, settings: dict[str, Any], journal: Journal) -> None:
    """Checks the settings against `settings.json`, then writes them there."""
    path = run_dir / "settings.json"
    settings = json.loads(json.dumps(settings))  # tuples become lists, as in the file
    if path.exists():
        old = read_json(path)
        _check_settings(path, old, settings)
        if old != settings:
            (run_dir / "result.json").unlink(missing_ok=True)  # result of the smaller budget
    elif journal.recorded:
        raise InputError(f"{path} is missing, so {journal.path} cannot be resumed; move it away")
    write_atomically(path, json.dumps(settings, indent=2, sort_keys=True) + "\n")


def _check_settings(path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Refuses any change but a larger budget, whose search begins with the recorded one."""
    changed = [
        f"{key} was {before!r}, now {after!r}"
        for key, before, after in _differences(old, new)
        if not (key == "budget_usd" and isinstance(before, float) and after > before)
    ]
    if changed:
        raise InputError(
            f"{path.parent} holds a run with other settings: {'; '.join(changed[:3])}. Restore "
            "them, or choose another output_dir"
        )


def _differences(old: Any, new: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Keys with dots, old values and new values, wherever nested settings differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            dotted = f"{prefix}.{key}" if prefix else key
            yield from _differences(old.get(key), new.get(key), dotted)
    elif old != new:
        yield prefix, old, new
