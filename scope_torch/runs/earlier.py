"""What older runs observed, in the codes and at the prices of a new search.

`continue_from` reads the directories of older runs. A configuration is the same if all its modules
use LLMs of the same name; a query is the same if its content is (`queries.json`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path

from scope_torch.errors import ANOTHER_RUN_DIR, InputError
from scope_torch.files import path_of, write_atomically
from scope_torch.observation import to_lines
from scope_torch.problem import SelectionProblem
from scope_torch.runs.directory import read_json, write_json
from scope_torch.runs.evaluator import Evaluator
from scope_torch.runs.journal import read_journal
from scope_torch.runs.older import (
    HELD_OUT,
    KNOWN,
    OBSERVATIONS,
    Reader,
    Source,
    Taken,
    Theta,
    settings_named,
)
from scope_torch.runs.opening import graded_otherwise
from scope_torch.runs.regrading import REGRADED, Grades
from scope_torch.search.known import Known

_BEGUN = "", "preflight", "reference", "again"  # are asked when it is known what is known


def known_from(
    paths: Path | str | Sequence[Path | str],
    problem: SelectionProblem,
    evaluator: Evaluator,
    *,
    answers_vary: bool = False,
    run_dir: Path | str | None = None,
    held_out: bool = False,
    regrade_usd: float | None = math.inf,
    counts: Collection[Theta] | None = None,
) -> Known:
    """The observations of older runs.

    If the metric is another one, the outputs that a run has kept are graded anew, without a call of
    the application.

    Args:
        paths: Directories of the older runs, the oldest first. What they had taken over themselves
            is taken over too.
        problem: Of the new search.
        evaluator: Of the new search; says which queries it has, and at which prices.
        answers_vary: See `Known`.
        run_dir: Directory of the new run. What is taken over is kept there. A search that is
            resumed knows the same, even if an older run has gone on or was deleted.
        held_out: Whether the queries are held out; then only answers to such queries are taken.
        regrade_usd: Grading anew may cost so many USD, and what crosses it. None: nothing is
            graded or kept, and old grades stand.
        counts: The configurations whose answers may count; of others nothing is graded anew. None:
            all.

    Raises:
        InputError: If a directory is not that of a run, or of another application, or is `run_dir`;
            or if `run_dir` took over other runs, or had another metric.
    """
    paths = [paths] if isinstance(paths, Path | str) else list(paths)
    names = _resolved(paths)
    folder = None if run_dir is None else path_of("run_dir", run_dir)
    refuse_itself(paths, folder)
    kept = None if folder is None else _kept(folder, names, evaluator)
    if kept is None:
        graded = _grades_in(folder, held_out)
        grades = None if regrade_usd is None else Grades(evaluator, regrade_usd, graded)
        with grades or nullcontext():
            reader = Reader(problem, evaluator, held_out, grades, counts)
            kept = reader.read([*map(Path, names)])
        if folder is not None:
            _keep(folder, kept, names, evaluator)
    return Known(
        problem,
        kept.observations,
        answers_vary=answers_vary,
        num_others=kept.num_others,
        same_reference=kept.same_reference,
        sources=[asdict(source) for source in kept.sources],
        tried=kept.tried,
    )


def refuse_itself(paths: Sequence[Path | str], folder: Path | None) -> None:
    """Raises an error if a run in `folder` should continue from itself."""
    for path in paths:
        if folder is not None and Path(path).resolve() == folder.resolve():
            raise InputError(f"continue_from={path} is this run: leave it out, and it goes on")


def refuse_missing(paths: Sequence[Path | str], folder: Path) -> None:
    """Raises an error if a path is no run, unless a run in `folder` has taken it over before."""
    refuse_itself(paths, folder)
    if not (folder / KNOWN).exists():
        for path in paths:
            settings_named(path_of("continue_from", path))


def refuse_others(paths: Sequence[Path | str], folder: Path) -> None:
    """Raises an error if a run that has begun in `folder` continues from other runs than these."""
    before, names = list[str](), _resolved(paths)
    if (folder / KNOWN).exists():
        facts = read_json(folder / KNOWN)
        before, then = facts["continue_from"], facts.get("folder")
        if then and _from(then, before) == _from(folder.resolve(), names):
            return  # all of them were moved together, or nothing was
    elif not any((folder / part / "settings.json").exists() for part in _BEGUN):
        return
    if before != names:
        raise InputError(
            f"{folder} continues from {before or 'no other run'}, not from {names or 'none'}; "
            f"restore continue_from, or choose {ANOTHER_RUN_DIR}"
        )


def _from(folder: Path | str, names: Sequence[str]) -> list[str]:
    """Where other runs are, as seen from a folder; on another drive of Windows by their names."""
    with suppress(ValueError):
        return [os.path.relpath(name, folder) for name in names]
    return list(names)


def _resolved(paths: Sequence[Path | str]) -> list[str]:
    return list(dict.fromkeys(str(path_of("continue_from", path).resolve()) for path in paths))


def _grades_in(folder: Path | None, held_out: bool) -> Path | None:
    """Where grades are kept while they are made; beside the measurements, and none of them."""
    if folder is None:
        return None
    return folder.parent / f"{REGRADED}_{HELD_OUT}" if held_out else folder / REGRADED


def _kept(folder: Path, names: list[str], evaluator: Evaluator) -> Taken | None:
    """What the new run has taken over when it began, if it has begun."""
    refuse_others(names, folder)
    if not (folder / KNOWN).exists():
        return None
    facts = read_json(folder / KNOWN)
    before = facts.get("evaluator", evaluator.fingerprint())
    if graded_otherwise(before, evaluator, folder):
        raise InputError(
            f"{folder} has taken over answers that another metric had graded; restore the metric, "
            f"or choose {ANOTHER_RUN_DIR}: continue_from then grades the kept outputs anew"
        )
    sources = [Source(**source) for source in facts["sources"]]
    observations = read_journal(folder / OBSERVATIONS)
    tried = {*map(tuple, facts.get("tried", ()))}
    return Taken(observations, sources, facts["num_others"], facts["same_reference"], tried)


def _keep(folder: Path, taken: Taken, names: list[str], evaluator: Evaluator) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = to_lines(taken.observations).decode()
    write_atomically(folder / OBSERVATIONS, lines, private=True)
    facts = {
        "continue_from": names,
        "folder": str(folder.resolve()),
        "evaluator": evaluator.fingerprint(),
        "num_others": taken.num_others,
        "same_reference": taken.same_reference,
        "tried": sorted(taken.tried),
        "sources": [asdict(source) for source in taken.sources],
    }
    write_json(folder / KNOWN, facts)
