"""Times the same searches on the CPU and on a card, for docs/gpu.md.

Both must ask the same. From one selection of a candidate to the next is a step, as in
`count_launches.py`. On the machine with the card it needs only torch, gpytorch, botorch and numpy.

    python scripts/time_device.py --out steps.csv                         # where the card is
    python scripts/time_device.py --whole 100 101 --out whole.csv         # data_transformation
    python scripts/time_device.py --read benchmarks/devices.csv --write   # the table of the page

The device `cuda, passes` is CUDA without the kernels of Triton.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gc
import hashlib
import itertools
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run without installing

from scope_torch.methods import make_scope_joint
from scope_torch.runs.runner import run
from scope_torch.space_search import device_joint
from scope_torch.tasks.simulated import simulated_task
from scripts.count_launches import BASE, MAKE, WORLDS, with_three_constraints

PAGE = Path(__file__).resolve().parents[1] / "docs" / "gpu.md"
LARGE = Path(__file__).resolve().parents[1] / "benchmarks" / "large_worlds.toml"
# World, whether the CPU enumerates it too, and for both methods budget in USD and seed.
SEARCHES = {
    **{world: (True, how) for world, (_, how) in WORLDS.items()},
    "chain_of_6": (False, {"scope": (3.0, 1), "scope_joint": (3.0, 1)}),
}
SEVERAL = ", 3 constraints"
MOST_STEPS = 80
WHOLE_USD, WHOLE_SEED = 5.0, 10  # as of main.csv
BEGIN = "<!-- scripts/time_device.py writes from here -->\n"
WHOLE = "<!-- scripts/time_device.py --whole writes from here -->\n"
END = "<!-- up to here -->\n"
HEADER = """\
| configurations | method | steps | CPU [ms] | card [ms] | ratio | kernels [ms] | kernels | GB |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


OF_WHOLE = """\
| world | observations | CPU [s] | card [s] | ratio |
| --- | --- | --- | --- | --- |
"""


class _Enough(Exception):
    """A search has made as many steps as are timed."""


class _WithoutTruth:
    """An evaluator that does not know the true averages, which no search asks for."""

    def __init__(self, evaluator: Any) -> None:
        self._evaluator = evaluator

    def __getattr__(self, name: str) -> Any:
        if name.startswith("tru"):
            raise AttributeError(name)
        return getattr(self._evaluator, name)


def search(world: str, method: str, device: str) -> tuple[list[float], list[Any]]:
    """Seconds of each step of one search, and what it asked: configurations and queries.

    Args:
        world: A key of `SEARCHES`.
        method: A key of `MAKE`.
        device: Where the algebra over Theta runs.
    """
    if ", passes" in device:
        passes = mock.Mock(return_value=device_joint.DeviceJointPosterior)
        with mock.patch.object(device_joint, "joint_posterior_class", passes):
            return search(world, method, device.partition(", ")[0])
    method, several, _ = method.partition(SEVERAL)
    budget_usd, seed = SEARCHES[world][1][method]
    file = None if world in WORLDS else str(LARGE)
    task = simulated_task(name="simulated", world=world, world_file=file)
    if several:
        task = with_three_constraints(world)
    optimizer: Any = MAKE[method](task.problem, base=BASE, seed=seed, device=device)
    posterior, marks, asked = optimizer.belief.posterior, list[float](), list[Any]()
    update, tell = posterior.update, optimizer.tell

    def marked() -> None:
        if device != "cpu":
            torch.cuda.synchronize()
        marks.append(time.perf_counter())
        if len(marks) > MOST_STEPS:
            raise _Enough
        update()

    def told(observations: Any) -> None:
        asked.extend((one.theta, one.query) for one in observations)
        tell(observations)

    posterior.update, optimizer.tell = marked, told
    with contextlib.suppress(_Enough):
        evaluator: Any = _WithoutTruth(task.evaluator)
        run(task.problem, optimizer, evaluator, budget_usd)
    return [b - a for a, b in itertools.pairwise(marks)], asked


def measure(world: str, method: str, devices: list[str]) -> list[dict[str, Any]]:
    """One row for each device; the observations are compared with those of the first."""
    rows, expected = list[dict[str, Any]](), None
    for device in devices:
        row: dict[str, Any] = {"kernels_ms": "", "kernels": "", "peak_gb": ""}
        machine = f"{platform.machine()}, {torch.get_num_threads()} threads"
        if device != "cpu":
            search(world, method, device)  # loads the libraries of the card
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            machine = torch.cuda.get_device_name()
        seconds, asked = search(world, method, device)
        expected = asked if expected is None else expected
        if device != "cpu":
            row["peak_gb"] = f"{torch.cuda.max_memory_allocated() / 1e9:.2f}"
            with profile(activities=[ProfilerActivity.CUDA]) as log:
                search(world, method, device)
            made = [one for one in log.key_averages() if one.self_device_time_total > 0]
            made = [one for one in made if not one.key.startswith("Mem")]
            steps = len(seconds) + 1
            row["kernels_ms"] = f"{sum(k.self_device_time_total for k in made) / 1e3 / steps:.2f}"
            row["kernels"] = f"{sum(k.count for k in made) / steps:.0f}"
        ms = [1e3 * one for one in seconds]
        known = {"task": world, "method": method, "device": device, "machine": machine}
        known |= {"torch": torch.__version__, "steps": len(ms), "first_ms": f"{ms[0]:.2f}"}
        known |= {"median_ms": f"{statistics.median(ms[1:]):.2f}"}
        known |= {"mean_ms": f"{statistics.mean(ms[1:]):.2f}", "observations": len(asked)}
        same = asked == expected if rows else ""  # the first is compared with none
        rows.append({**known, **row, "same": same})
        print(*rows[-1].values(), flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The lines between the markers of the page."""
    lines, of_device = [HEADER], dict[tuple[str, str, str], list[dict[str, Any]]]()
    for row in rows:
        of_device.setdefault((row["task"], row["method"], row["device"]), []).append(row)
    cards = [row for row in rows if row["device"] != "cpu"]
    for (task, method, device), runs in of_device.items():
        if device == "cpu":
            continue
        row, each = runs[0], sorted(float(one["median_ms"]) for one in runs)
        ms, cells = statistics.median(each), ("", "")
        cpu = of_device.get((task, method, "cpu"), [None])[0]
        if cpu is not None:
            cells = cpu["median_ms"], f"{float(cpu['median_ms']) / ms:.1f}"
        told = f"{ms:.1f}" + (f" ({each[0]:.1f} to {each[-1]:.1f})" if len(runs) > 1 else "")
        lines.append(
            f"| {_size(task)} | {_name(row)} | {row['steps']} | {cells[0]} | {told} "
            f"| {cells[1]} | {row['kernels_ms']} | {row['kernels']} | {row['peak_gb']} |\n"
        )
    cpus = {row["machine"] for row in rows if row["device"] == "cpu"}
    compared = [d != "cpu" and (*of, "cpu") in of_device for *of, d in of_device]
    asked = "asked the same" if all(map(_same, rows)) else "did NOT ask the same"
    told = "Times are medians of all steps but the first (of several runs: their median, least and "
    told += "most), kernels means of all; "
    told += f"{cards[0]['machine']}, beside {', '.join(cpus)}; torch {cards[0]['torch']}. "
    told += f"{sum(compared)} searches of the card {asked} as the CPU's."
    return "".join(lines) + f"\n{told}\n"


def measure_whole(world: int, devices: list[str]) -> list[dict[str, Any]]:
    """One row for each device: a search of data_transformation by `scope_joint` to its end."""
    rows = list[dict[str, Any]]()
    for device in devices:
        task = simulated_task(name="simulated", world="data_transformation", world_seed=world)
        at_most: dict[str, Any] = {"budget_usd": WHOLE_USD, "seed": WHOLE_SEED}
        optimizer = make_scope_joint(task.problem, base=BASE, device=device, **at_most)
        begin = time.perf_counter()
        history = run(task.problem, optimizer, task.evaluator, WHOLE_USD).history
        seconds = f"{time.perf_counter() - begin:.1f}"
        asked = repr([(one.theta, one.query) for one in history]).encode()
        machine = platform.machine() if device == "cpu" else torch.cuda.get_device_name()
        row: dict[str, Any] = {"world": world, "device": device, "machine": machine}
        row |= {"threads": torch.get_num_threads(), "torch": torch.__version__}
        row |= {"observations": len(history), "seconds": seconds}
        row |= {"asked": hashlib.sha256(asked).hexdigest()[:12]}
        row |= {"same": row["asked"] == rows[0]["asked"] if rows else ""}
        rows.append(row)
        print(*row.values(), flush=True)
    return rows


def table_of_whole(rows: list[dict[str, Any]]) -> str:
    """The lines about whole searches between the markers of the page."""
    lines, cpus = [OF_WHOLE], {row["world"]: row for row in rows if row["device"] == "cpu"}
    cards = [row for row in rows if row["device"] != "cpu"]
    for row in cards:
        cpu, cells = cpus.get(row["world"]), ("", "")
        if cpu is not None:
            cells = cpu["seconds"], f"{float(cpu['seconds']) / float(row['seconds']):.1f}"
        known = row["world"], f"{int(row['observations']):,}", cells[0], row["seconds"], cells[1]
        lines.append(f"| {' | '.join(map(str, known))} |\n")
    asked = "asked the same" if all(map(_same, rows)) else "did NOT ask the same"
    told = f"{cards[0]['machine']}, {cards[0]['threads']} threads for each search; "
    told += f"{sum(row['world'] in cpus for row in cards)} of the card {asked} as the CPU's."
    return "".join(lines) + f"\n{told}\n"


def _name(row: dict[str, Any]) -> str:
    """The method, its constraints, and whether it is without the kernels of Triton."""
    method, several, _ = row["method"].partition(SEVERAL)
    return f"`{method}`{several}" + (", torch's passes" if "passes" in row["device"] else "")


def _same(row: dict[str, Any]) -> bool:
    """Whether it was compared with none, or asked the same."""
    return str(row["same"]) in ("", "True")


def _size(task: str) -> str:
    """|Theta| of a world."""
    file = None if task in WORLDS else str(LARGE)
    return f"{simulated_task(name='simulated', world=task, world_file=file).problem.space.size:,}"


def main(arguments: list[str] | None = None) -> None:
    """Entry point; exits with 1 if the card asks anything else than the CPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda", "cuda, passes"])
    parser.add_argument("--worlds", nargs="+", default=list(SEARCHES))
    parser.add_argument("--methods", nargs="+", default=[*MAKE, f"scope_joint{SEVERAL}"])
    parser.add_argument(
        "--whole", nargs="+", type=int, default=[], help="worlds, in place of steps"
    )
    parser.add_argument("--out", type=Path, help="the CSV file to write")
    parser.add_argument("--read", type=Path, help="a CSV file, in place of measuring")
    parser.add_argument("--write", action="store_true", help="put the table into docs/gpu.md")
    args = parser.parse_args(arguments)
    if args.read:
        with args.read.open(newline="") as file:
            rows = list(csv.DictReader(file))
    elif args.whole:
        devices = [device for device in args.devices if "passes" not in device]
        rows = [row for world in args.whole for row in measure_whole(world, devices)]
    else:
        rows = []
        for world, method in itertools.product(args.worlds, args.methods):
            of_cpu = SEARCHES[world][0]
            if SEVERAL in method and world not in WORLDS:
                continue
            devices = [d for d in args.devices if of_cpu or d != "cpu"]
            if method == "scope":  # which has no kernels of Triton
                devices = [d for d in devices if "passes" not in d]
            rows += measure(world, method, devices)
    if not rows or (args.write and {row["device"] for row in rows} == {"cpu"}):
        parser.error("nothing was measured on a card")
    if args.out:
        with args.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    if args.write:
        is_whole = "seconds" in rows[0]
        mark, text = (WHOLE, table_of_whole(rows)) if is_whole else (BEGIN, table(rows))
        before, rest = PAGE.read_text().split(mark)
        PAGE.write_text(before + mark + text + END + rest.split(END, 1)[1])
    sys.exit(not all(map(_same, rows)))


if __name__ == "__main__":
    main()
