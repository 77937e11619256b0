"""Measures speed and memory, and writes the tables of docs/performance.md.

    python scripts/speed.py measure          # what the CSV lacks; needs the extra [bench]
    python scripts/speed.py measure --again --only steps --task text_to_sql  # replaces these rows
    python scripts/speed.py write            # from the CSV into the page

A job is one part, or one search of a part. Its rows are written once it is done, so that the same
command goes on where it was stopped. Each job is a process of its own, with one thread.

The main figure is processor time: other work on the machine changes it less than the time on the
clock. A ratio compares calls of one process that take turns; it is the median of the ratios of the
turns.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run without installing
sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

from scripts.speed_searches import (
    CHAINS,
    LISTS,
    METHODS,
    TASKS,
    measure_large,
    measure_runs,
    measure_steps,
    processor_s,
)
from scripts.speed_tables import FIELDS, Row, read, write_page

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "results" / "speed.csv"
PAGE = ROOT / "docs" / "performance.md"
OURS = "this package"
CONTENDERS = {
    OURS: "Collapsed",
    "direct": "Direct",
    "scikit-learn, loop over Q": "SklearnLoop",
    "GPyTorch, batch of Q": "BatchedGPyTorch",
}
FAST = [OURS, "direct"]  # these are measured on the largest spaces too
CHUNK = 1 << 14  # configurations that a contender gets at a time
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Parts made of searches: the tasks, and the one that tries the script.
SEARCHED: dict[str, tuple[tuple[str, ...], str]] = {
    "runs": (TASKS, "synthetic"),
    "steps": ((*TASKS, *LISTS), "synthetic"),
    "large": (CHAINS, "chain_of_3"),
}
# Axis of growth: N, |D|, Q, groups of queries, M of each case.
GROWTH = {
    "D": [(4, n, 500, 60, 23) for n in (50, 100, 200, 400)],
    "Q": [(4, 200, q, 25, 23) for q in (25, 50, 100, 200, 400)],
    "N": [(n, 200, 102, 60, 23) for n in (2, 3, 4, 5)],
}
TINY_GROWTH = {"D": [(2, n, 9, 4, 4) for n in (8, 16)], "N": [(n, 8, 9, 4, 4) for n in (2, 3)]}


def jobs(only: str | None, task: str | None, quick: bool) -> Iterator[dict[str, Any]]:
    """Arguments of the functions that measure; each job is a process."""
    for part in PARTS if only is None else [only]:
        if part not in SEARCHED:
            if task is None:
                yield {"part": part, "quick": quick}
            continue
        tasks, tiny = SEARCHED[part]
        chosen = [tiny] if quick else [name for name in tasks if task in (None, name)]
        methods = METHODS[:1] if quick and part != "large" else METHODS
        for method, name in product(methods, chosen):
            yield {"part": part, "method": method, "task": name}


def in_turns(
    cases: Mapping[str, Callable[[], Any]], turns: int
) -> tuple[dict[str, list[list[float]]], dict[str, Any]]:
    """Processor and clock seconds of conditioning and of prediction, and the predictions.

    A case is made, which conditions on the data, and then called. In a turn each case is made and
    called once. Python's garbage collector is off, as in `timeit`: it would add a tenth of a second
    to some calls.
    """
    seconds: dict[str, list[list[float]]] = {name: [] for name in cases}
    found: dict[str, Any] = {}
    for _ in range(turns):
        for name, make in cases.items():
            gc.collect()
            gc.disable()
            *made, predict = processor_s(make)
            *called, found[name] = processor_s(predict)
            gc.enable()
            seconds[name].append([*made, *called])
    return seconds, found


def exponent(x: Sequence[float], y: Sequence[float], of: str) -> Row:
    """A row with the growth of `y` in `x`: the slope of the logarithms, by least squares."""
    log_x, log_y = np.log(x), np.log(y)
    slopes = np.diff(log_y) / np.diff(log_x)
    span = f"{of} = {min(x):,} to {max(x):,}"
    how = f"fitted, {span}; between neighbours {slopes.min():.2f} to {slopes.max():.2f}"
    return {"value": float(np.polyfit(log_x, log_y, 1)[0]), "unit": "exponent", "how": how}


def contender(name: str, case: Any) -> Callable[[], Callable[[], Tensor]]:
    """Makes a contender; then it predicts on all of Theta."""
    every = torch.arange(case.space.size)

    def make() -> Callable[[], Tensor]:
        predict = getattr(import_module("contenders"), CONTENDERS[name])(case)
        if name == OURS:
            return lambda: predict(every)
        predict(every[:1])  # GPyTorch conditions when it first predicts
        return lambda: torch.cat([predict(part) for part in every.split(CHUNK)], -1)

    return make


def sizes(case: Any) -> Row:
    """The columns that say how large a case is."""
    values = case.num_modules, case.num_llms, case.num_queries, case.num_configs, case.space.size
    return dict(zip(("N", "M", "Q", "D", "Theta"), values, strict=True))


def measure_growth(quick: bool) -> list[Row]:
    """How conditioning and the evaluation on all of Theta grow."""
    Case = import_module("contenders").Case
    rows: list[Row] = []
    for axis, arguments in (TINY_GROWTH if quick else GROWTH).items():
        cases = [Case(*one) for one in arguments]
        makes = {str(i): contender(OURS, c) for i, c in enumerate(cases)}
        in_turns(makes, 1)  # the first calls load libraries
        by_case, _ = in_turns(makes, 5)
        medians = [np.median(by_case[str(i)], 0) for i in range(len(cases))]
        measured_in = "Theta" if axis == "N" else axis
        x = [sizes(case)[measured_in] for case in cases]
        for at, what in ((0, "conditioning"), (2, "on Theta")):
            same: Row = {"who": OURS, "task": axis, "what": what}
            for case, seconds in zip(cases, medians, strict=True):
                value = {"value": seconds[at], "wall": seconds[at + 1], "unit": "s"}
                rows.append({**same, **sizes(case), **value, "how": "measured"})
            y = [float(seconds[at]) for seconds in medians]
            rows.append({**same, **exponent(x, y, measured_in)})
    return rows


def compare(case: Any, names: Sequence[str], turns: int) -> list[Row]:
    """Seconds, ratios to ours and differences of contenders on all of Theta, taking turns."""
    makes = {name: contender(name, case) for name in names}
    by_name, found = in_turns(makes, turns)
    seconds = {name: np.array(one) for name, one in by_name.items()}
    rows: list[Row] = []
    for name, one in seconds.items():
        difference = max(
            float((a - b).abs().max() / b.abs().max())
            for a, b in zip(found[name], found[OURS], strict=True)
        )
        how = f"measured whole, {turns} turn{'s' * (turns > 1)}"
        same = {**sizes(case), "who": name, "unit": "s", "how": how, "difference": difference}
        for at, what in ((0, "conditioning"), (2, "on Theta")):
            value, wall = np.median(one[:, at : at + 2], 0)
            ratio = np.median(one[:, at] / seconds[OURS][:, at])
            rows.append({**same, "what": what, "value": value, "wall": wall, "ratio": ratio})
    return rows


def measure_posterior(quick: bool) -> list[Row]:
    """All contenders on spaces small enough for all, the fast ones on large spaces too."""
    Case = import_module("contenders").Case
    data = (8, 9, 4) if quick else (60, 60, 30)  # |D|, Q, groups
    llms = (3, 4, 5) if quick else (8, 15, 23)
    small = [Case(3, *data, m) for m in llms]
    large = [Case(n, *data, llms[-1]) for n in ((4,) if quick else (4, 5))]
    compare(small[0], [*CONTENDERS], 1)  # the first calls load libraries
    rows = [row for case in small for row in compare(case, [*CONTENDERS], 5)]
    fits: dict[str, Row] = {}
    for name in CONTENDERS:
        own = [row for row in rows if (row["who"], row["what"]) == (name, "on Theta")]
        fits[name] = exponent([r["Theta"] for r in own], [r["value"] for r in own], "Theta")
        fits[name] |= {"who": name, "what": "on Theta", "last": own[-1]}
    for case in large:
        rows += compare(case, FAST, 5)
        ours = next(r for r in rows[::-1] if (r["who"], r["what"]) == (OURS, "on Theta"))
        rows += [extrapolated(fits[name], case, ours) for name in CONTENDERS if name not in FAST]
    for name in [name for name in CONTENDERS if name not in FAST]:
        rows += [r for r in compare(large[0], [OURS, name], 1) if r["who"] == name]
    fitted = [{key: fit[key] for key in fit if key != "last"} for fit in fits.values()]
    return [*rows, *fitted]


def extrapolated(fit: Row, case: Any, ours: Row) -> Row:
    """Seconds on a space that was not measured, from the exponent of smaller ones."""
    last = fit["last"]
    seconds = last["value"] * (case.space.size / last["Theta"]) ** fit["value"]
    how = f"extrapolated from {last['Theta']:,} with exponent {fit['value']:.2f}"
    same = {**sizes(case), "who": fit["who"], "what": "on Theta", "unit": "s", "how": how}
    return {**same, "value": seconds, "ratio": seconds / ours["value"]}


PARTS: dict[str, Callable[..., list[Row]]] = {
    "runs": measure_runs,  # which keep the truth of the worlds for the steps
    "steps": measure_steps,
    "large": measure_large,
    "growth": measure_growth,
    "posterior": measure_posterior,
}


def machine() -> str:
    """The processor, in words."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
    return f"{name or platform.processor()} {platform.machine()}, {os.cpu_count()} CPUs, shared"


def order(row: Row) -> tuple[int, ...]:
    """The place of a row in the file: by part, and there by task and method."""
    pairs = (([*PARTS], "section"), ([*TASKS, *LISTS, *CHAINS], "task"), ([*METHODS], "who"))
    return tuple(names.index(row[key]) if row.get(key) in names else 0 for names, key in pairs)


def is_of(row: Row, job: Mapping[str, Any]) -> bool:
    """Whether a job has made this row."""
    columns = {"part": "section", "task": "task", "method": "who"}
    return all(row[column] == job[name] for name, column in columns.items() if name in job)


def measure(to: Path, every_job: Iterable[dict[str, Any]], again: bool = False) -> None:
    """Adds the rows of each job as soon as it is done.

    Args:
        to: The CSV file.
        every_job: See `jobs`.
        again: Whether a job whose rows are there is done again, and they are replaced.
    """
    packages = ("torch", "gpytorch", "scikit-learn", "numpy")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    date = datetime.now(UTC).date().isoformat()
    same = {"threads": 1, "date": date, "versions": versions, "machine": machine()}
    to.parent.mkdir(parents=True, exist_ok=True)
    for job in every_job:
        is_there = any(is_of(row, job) for row in read(to)) and not again
        words = [str(value) for name, value in job.items() if name != "quick"]
        print(*words, *["(in the file)"] * is_there, file=sys.stderr, flush=True)
        if is_there:
            continue
        fresh = [{"section": job["part"], **row, **same} for row in in_own_process(job)]
        kept = [row for row in read(to) if not is_of(row, job)]
        with to.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted([*kept, *fresh], key=order))


def in_own_process(job: Mapping[str, Any]) -> list[Row]:
    """The rows of a job, measured with one thread."""
    environment = {**os.environ, **dict.fromkeys(THREADS, "1")}
    command = [sys.executable, str(Path(__file__)), "job", json.dumps(job)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: list[str] | None = None) -> None:
    """Entry point; see the module's documentation."""
    parser = argparse.ArgumentParser(description="Measures speed and memory.")
    parser.add_argument("command", choices=["measure", "write", "job"])
    parser.add_argument("job", nargs="?", help="of `job`: arguments in JSON, used by `measure`")
    parser.add_argument("--to", type=Path, default=FILE, help="the CSV file")
    parser.add_argument("--only", choices=PARTS, help="measure this part alone")
    parser.add_argument("--task", choices=[*TASKS, *LISTS, *CHAINS], help="measure this task alone")
    parser.add_argument(
        "--again", action="store_true", help="measure what is there, and replace it"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    args = parser.parse_args(arguments)
    if args.command == "measure":
        measure(args.to, jobs(args.only, args.task, args.quick), args.again)
    elif args.command == "write":
        write_page(PAGE, read(args.to))
    else:
        job = json.loads(args.job)
        print(json.dumps(PARTS[job.pop("part")](**job), default=float))


if __name__ == "__main__":
    main()
