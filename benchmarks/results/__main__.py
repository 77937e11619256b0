"""Makes the runs of docs/results that are missing, and writes tables and figures.

    make results             # hours; goes on where it was stopped
    make results QUICK=1     # minutes: a few small runs into build/results
    python -m benchmarks.results run --only main tables --jobs 2
    python -m benchmarks.results write

A run is in its CSV file before the next one begins, and a run that the file has is not made again.
Delete a file to make its runs anew.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import urllib.request
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path

from tqdm import tqdm

from benchmarks.results.experiments import ENDPOINT, LLAMBO, experiments, quick
from benchmarks.results.origin import note_run
from benchmarks.results.planned import Planned, Rows, one_thread, row_of
from benchmarks.results.write import RESULTS, write_all
from scope_torch.cli.compose import compose_task
from scope_torch.errors import InputError

QUICK = Path("build/results")
_RECORDED = ("mathqa", "hotpotqa")


def missing(name: str, cells: Sequence[Planned], folder: Path) -> list[Planned]:
    """The runs of an experiment that its file lacks."""
    rows = Rows(folder / f"{name}.csv")
    return [cell for cell in cells if not rows.has(cell)]


def make(name: str, cells: Sequence[Planned], folder: Path, jobs: int) -> None:
    """Makes the missing runs of an experiment."""
    todo = missing(name, cells, folder)
    if not todo:
        return
    rows = Rows(folder / f"{name}.csv")
    note_run(folder, name, {run.library for run in todo if run.library})
    shown = tqdm(total=len(todo), desc=name, disable=not sys.stderr.isatty())
    with get_context("spawn").Pool(jobs, initializer=one_thread) as pool, shown:
        for row in pool.imap_unordered(row_of, todo):
            rows.add(row)
            shown.update()


def _with_data(name: str, cells: Sequence[Planned]) -> list[Planned]:
    """The runs whose data are here; only the recorded tables of others can be missing."""
    try:
        compose_task(["task=mathqa"])
    except InputError as error:
        kept = [c for c in cells if not c.problem.startswith(_RECORDED)]
        if len(kept) < len(cells):
            print(f"{name}: runs left out, because there is {error}", file=sys.stderr)
        return kept
    return list(cells)


def _installed(name: str, cells: Sequence[Planned]) -> list[Planned]:
    """The runs whose library is here; tells which are not."""
    absent = {c.library for c in cells if c.library and importlib.util.find_spec(c.library) is None}
    if absent:
        mend = "pip install --no-deps --target build/peers -r constraints/peers.txt"
        found = ", ".join(sorted(absent))
        print(f"{name}: left out, because not installed: {found} ({mend})", file=sys.stderr)
    return [c for c in cells if c.library not in absent]


def _answered(name: str, cells: Sequence[Planned]) -> list[Planned]:
    """The runs that ask no LLM, and the others if the LLM answers."""
    asking = [c for c in cells if c.method in LLAMBO]
    if not asking:
        return list(cells)
    try:
        with urllib.request.urlopen(f"{ENDPOINT}/models", timeout=10):
            return list(cells)
    except OSError as error:
        mend = "python scripts/local_llms.py serve --slots 8"
        print(
            f"{name}: {', '.join(LLAMBO)} left out: {ENDPOINT}: {error} ({mend})", file=sys.stderr
        )
    return [c for c in cells if c not in asking]


def main() -> None:
    """Reads the command line; see above."""
    every = experiments()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = "run: makes what is missing; write: tables and figures of what is there; all: both"
    parser.add_argument("what", choices=["run", "write", "all"], help=what)
    only = f"runs of these alone: {', '.join(every)}"
    parser.add_argument(
        "--only", nargs="+", choices=list(every), default=list(every), metavar="NAME", help=only
    )
    parser.add_argument("--quick", action="store_true", help="a few small runs into build/results")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    given = parser.parse_args()
    if given.jobs < 1:
        parser.error(f"--jobs={given.jobs} must be at least 1")
    folder = QUICK if given.quick else RESULTS
    if given.what in ("run", "all"):
        for name, cells in (quick() if given.quick else every).items():
            if name in given.only:
                todo = missing(name, cells, folder)
                todo = _with_data(name, _answered(name, _installed(name, todo)))
                make(name, todo, folder, given.jobs)
    if given.what in ("write", "all"):
        write_all(folder)


if __name__ == "__main__":
    main()
