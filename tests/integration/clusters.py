"""Sweeps on clusters whose daemons the slow tests start on this machine, and stop at their end."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Thousands of observations: long enough for a test to meet the job.
JOBS = [
    *("-m", "task=synthetic", "task.num_queries=400", "budget_usd=16", "method=scope"),
    "method.gap_tolerance=null",
]


@contextlib.contextmanager
def daemons() -> Iterator[Callable[..., subprocess.Popen]]:
    """Yields a function that starts a daemon; all are stopped at the end, the last one first."""
    started: list[subprocess.Popen] = []

    def start(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.Popen:
        with open(folder / f"daemon{len(started)}.log", "w") as log:
            started.append(
                subprocess.Popen(
                    command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
                )
            )
        return started[-1]

    try:
        yield start
    finally:
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def sweep(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.Popen:
    """Starts a sweep of `JOBS` in `folder`."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts/run.py"), *JOBS, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen) -> tuple[int, str]:
    """Exit status and stderr of a sweep."""
    _, err = process.communicate(timeout=600)
    return process.returncode, err


def wait_for(condition: Callable[[], object], what: str, process: subprocess.Popen) -> None:
    """Waits until the condition holds; fails if the process ends before."""
    while not condition():
        assert process.poll() is None, f"{what}: {process.communicate()}"
        time.sleep(0.1)


def has_journal(folder: Path, seed: int) -> bool:
    """Whether a job has observations on disk."""
    return any(path.stat().st_size > 0 for path in folder.rglob(f"seed={seed}/journal.jsonl"))


def results(folder: Path) -> dict[str, dict]:
    """What equal runs share of every `result.json`, by its directory."""
    found = {p.parent: json.loads(p.read_text()) for p in sorted(folder.rglob("result.json"))}
    return {
        str(directory.relative_to(folder)): {
            key: value for key, value in result.items() if key not in ("timing", "paths")
        }
        for directory, result in found.items()
    }


def environment(**more: str) -> dict[str, str]:
    """The environment of this process, with one thread for each job."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}
