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
import sys
import urllib.request
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path

from tqdm import tqdm

from benchmarks.peers import is_installed
from benchmarks.results.experiments import ENDPOINT, LLAMBO, experiments, quick
from benchmarks.results.runs import Cell, Rows, one_thread, row_of
from benchmarks.results.write import RESULTS, note_run, write_all
from scope_torch.cli.compose import compose_task
from scope_torch.errors import InputError

QUICK = Path("build/results")


def missing(name: str, cells: Sequence[Cell], folder: Path) -> list[Cell]:
    """The runs of an experiment that its file lacks."""
    rows = Rows(folder / f"{name}.csv")
    return [cell for cell in cells if not rows.has(cell)]


def make(name: str, cells: Sequence[Cell], folder: Path, jobs: int) -> None:
    """Makes the missing runs of an experiment."""
    todo = missing(name, cells, folder)
    if not todo:
        return
    rows = Rows(folder / f"{name}.csv")
    note_run(folder, name)
    shown = tqdm(total=len(todo), desc=name, disable=not sys.stderr.isatty())
    with get_context("spawn").Pool(jobs, initializer=one_thread) as pool, shown:
        for row in pool.imap_unordered(row_of, todo):
            rows.add(row)
            shown.update()


def _has_data(name: str) -> bool:
    """Whether the data of an experiment are here; only the recorded tables can be missing."""
    if name != "tables":
        return True
    try:
        compose_task(["task=mathqa"])
    except InputError as error:
        print(f"{name}: left out, because there is {error}", file=sys.stderr)
        return False
    return True


def _installed(name: str, cells: Sequence[Cell]) -> list[Cell]:
    """The runs whose library is here; tells which are not."""
    absent = sorted({c.peer.split()[0] for c in cells if c.peer and not is_installed(c.peer)})
    if absent:
        mend = "pip install --no-deps --target build/peers -r constraints/peers.txt"
        print(
            f"{name}: left out, because not installed: {', '.join(absent)} ({mend})",
            file=sys.stderr,
        )
    return [c for c in cells if not c.peer or is_installed(c.peer)]


def _answered(name: str, cells: Sequence[Cell]) -> list[Cell]:
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
        prog="python -m benchmarks.results", description=(__doc__ or "").splitlines()[0]
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
    folder = QUICK if given.quick else RESULTS
    if given.what in ("run", "all"):
        for name, cells in (quick() if given.quick else every).items():
            if name in given.only and _has_data(name):
                make(name, _answered(name, _installed(name, cells)), folder, given.jobs)
    if given.what in ("write", "all"):
        write_all(folder)


if __name__ == "__main__":
    main()
