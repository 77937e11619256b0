"""Makes the runs of docs/results that are missing, and writes tables and figures.

    make results             # hours; goes on where it was stopped
    make results QUICK=1     # minutes: a few small runs into build/results
    python -m benchmarks.results run --only main tables --jobs 2
    python -m benchmarks.results run --only main --row "data_imputation scope_joint 100 10"
    python -m benchmarks.results write

A run is in its CSV file before the next one begins, and a run that the file has is not made again.
Delete a file to make its runs anew. --row makes one run again (task, method, world if it has one,
seed), and prints its row beside that of the file, which stays as it is. Quick runs are made
anew, and the rows that docs/results has too are compared with those there.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.context import BaseContext
from pathlib import Path

from tqdm import tqdm

from benchmarks.results.again import compared, side_by_side, words_of
from benchmarks.results.cells import ENDPOINT, LLAMBO
from benchmarks.results.experiments import experiments, quick
from benchmarks.results.origin import note_run
from benchmarks.results.planned import Composed, Planned, Rows, one_thread, row_of
from benchmarks.results.write import RESULTS, write_all
from scope_torch.cli.compose import compose_task
from scope_torch.errors import InputError

QUICK = Path("build/results")
_RECORDED = ("task=mathqa", "task=hotpotqa", "task=recorded/")
_IMPORTED = ["benchmarks.results.experiments", "scope_torch.methods", "scope_torch.baselines.cei"]


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
    processes = min(jobs, len(todo))
    with _context().Pool(processes, initializer=one_thread) as pool, shown:
        for row in pool.imap_unordered(row_of, todo):
            rows.add(row)
            shown.update()


def _context() -> BaseContext:
    """Of the processes of one experiment: new ones, but most of what they import is there already.

    They are forked from a process that has imported and done nothing else.
    """
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


def told_complete(name: str, cells: Sequence[Planned]) -> str:
    """What there is to say where nothing is missing."""
    again = f'python -m benchmarks.results run --only {name} --row "{words_of(cells[0])}"'
    return f"{name}.csv has all {len(cells):,} runs. One of them again: {again}"


def run_called(words: str, name: str, cells: Sequence[Planned]) -> Planned:
    """The run of an experiment that `--row` names.

    Raises:
        InputError: If no run is called so, or what it needs is not installed.
    """
    known = {words_of(run): run for run in cells}
    if words not in known:
        near = difflib.get_close_matches(words, known, 3) or list(known)[:3]
        raise InputError(f"{name} has no run {words!r}; near it are {near}")
    run = known[words]
    if not _installed(name, [run]):
        raise InputError(f"{words!r} needs {run.library}")
    return run


def compare(few: Mapping[str, Sequence[Planned]], every: Mapping[str, Sequence[Planned]]) -> None:
    """Tells which rows of quick runs are not those of docs/results, and ends with 1 if any."""
    found = [compared(name, few[name], every[name], QUICK, RESULTS) for name in few]
    differing = [line for _, lines in found for line in lines]
    told = f"{sum(number for number, _ in found)} of these runs are in docs/results too"
    if differing:
        sys.exit("\n".join([f"{told}, with other figures in {len(differing)}:", *differing]))
    print(f"{told}, with the same figures")


def _with_data(name: str, cells: Sequence[Planned]) -> list[Planned]:
    """The runs whose data are here; only the recorded tables of others can be missing."""
    try:
        compose_task(["task=mathqa"])
    except InputError as error:
        kept = [c for c in cells if not _is_recorded(c)]
        if len(kept) < len(cells):
            print(f"{name}: runs left out, because there is {error}", file=sys.stderr)
        return kept
    return list(cells)


def _is_recorded(run: Planned) -> bool:
    return isinstance(run, Composed) and any(o.startswith(_RECORDED) for o in run.overrides)


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
    parser.add_argument("--row", help="make this one run again; with one name after --only")
    parser.add_argument("--quick", action="store_true", help="a few small runs into build/results")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    given = parser.parse_args()
    if given.jobs < 1:
        parser.error(f"--jobs={given.jobs} must be at least 1")
    folder, planned = (QUICK, quick()) if given.quick else (RESULTS, every)
    if given.row is not None:
        if given.what != "run" or len(given.only) != 1:
            parser.error("--row goes with run, and with one name after --only")
        (name,) = given.only
        try:
            print(side_by_side(name, run_called(given.row, name, planned[name]), folder))
        except InputError as error:
            parser.error(str(error))
        return
    if given.what in ("run", "all"):
        for name, cells in planned.items():
            if name in given.only:
                if given.quick:  # of the code as it is now
                    (folder / f"{name}.csv").unlink(missing_ok=True)
                todo = missing(name, cells, folder)
                if not todo and cells:
                    print(told_complete(name, cells))
                todo = _with_data(name, _answered(name, _installed(name, todo)))
                make(name, todo, folder, given.jobs)
    if given.what in ("write", "all"):
        write_all(folder)
    if given.quick and given.what == "all":
        compare({name: planned[name] for name in given.only}, every)


if __name__ == "__main__":
    main()
