"""A page about a run: `scope-torch watch RUN_DIR [--follow]`."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from scope_torch.errors import InputError
from scope_torch.files import write_atomically
from scope_torch.results.page.view import Pace
from scope_torch.runs.measure import is_part
from scope_torch.runs.opening import BEGUN
from scope_torch.runs.recorded import RecordedRun, read_run
from scope_torch.watch.page import page


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with 2 if the directory holds no run."""
    parser = argparse.ArgumentParser(
        "scope-torch watch",
        description="Writes the decision page of a run, finished or not, to open in a browser.",
        epilog="example: scope-torch watch outputs/synthetic/scope_joint/seed=0 --follow",
    )
    parser.add_argument("run_dir", type=Path, help="the run's directory")
    parser.add_argument("--follow", action="store_true", help="write it anew until the run ends")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks (2)")
    parser.add_argument("--output", type=Path, help="default: RUN_DIR/watch.html")
    asked = parser.parse_args(argv)
    try:
        if not asked.every >= 0.1:
            raise InputError(f"--every={asked.every:g} must be at least 0.1 seconds")
        watch(asked.run_dir, asked.output, asked.every if asked.follow else None)
    except (InputError, OSError) as error:
        print(f"watch: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def watch(run_dir: Path, output: Path | None, every_s: float | None) -> None:
    """Writes the page, and prints where it is.

    Args:
        run_dir: Directory of a run.
        output: The page; None for `watch.html` in `run_dir`.
        every_s: Seconds between two looks at an unfinished run, also at one that has not begun;
            None to look once.

    Raises:
        InputError: If the directory holds no run.
    """
    output = run_dir / "watch.html" if output is None else output
    if every_s is None or (run_dir / "settings.json").exists():
        _check(run_dir)
    else:
        print(f"waiting for {run_dir / 'settings.json'}", file=sys.stderr)
        while not (run_dir / "settings.json").exists():
            time.sleep(every_s)
    clock = Clock()
    try:
        ended = write_page(run_dir, output, every_s, clock)
        print(output.resolve().as_uri(), flush=True)
        while not ended and every_s is not None:
            time.sleep(every_s)
            ended = write_page(run_dir, output, every_s, clock)
    except KeyboardInterrupt:
        write_page(run_dir, output, None)  # a page that does not wait for more
        raise


class Clock:
    """Tells how fast a search goes on, from the first look at it."""

    def __init__(self) -> None:
        self._first: tuple[float, int, float] | None = None

    def pace(self, run: RecordedRun) -> Pace | None:
        """Calls a minute since the first look, and how long the budget lasts at that."""
        now, calls, spend_usd = time.monotonic(), len(run.observations), run.spend_usd
        if self._first is None:
            self._first = now, calls, spend_usd
        seconds, made = now - self._first[0], calls - self._first[1]
        if seconds <= 0 or made <= 0:
            return None
        spent_usd, left_usd = spend_usd - self._first[2], max(0.0, run.budget_usd - spend_usd)
        return Pace(60 * made / seconds, seconds * left_usd / spent_usd if spent_usd else math.inf)


def write_page(
    run_dir: Path, output: Path, every_s: float | None, clock: Clock | None = None
) -> bool:
    """Writes the page; returns whether the run has ended."""
    run = read_run(run_dir)
    ended = run.status in ("finished", "failed")
    pace = None if clock is None else clock.pace(run)
    try:
        text = page(run, datetime.now(), None if ended else every_s, pace)
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # The other files were compared with checksums, or cell by cell, when they were read.
        raise InputError(
            f"{run_dir / 'settings.json'} is damaged ({error!r}); restore it, or move the "
            "directory away"
        ) from error
    write_atomically(output, text)
    return ended


def _check(run_dir: Path) -> None:
    if (run_dir / "settings.json").exists():
        return
    if (run_dir / BEGUN).exists():
        raise InputError(
            f"{run_dir} has not begun to search: it measures the reference, or was stopped before; "
            "--follow waits for the search"
        )
    below = sorted(path.parent for path in run_dir.rglob("settings.json"))
    runs = [path for path in below if not is_part(path)]
    hint = f"; name one of the {len(runs)} runs below it, such as {runs[0]}" if runs else ""
    raise InputError(f"{run_dir} is not the directory of a run{hint}")


if __name__ == "__main__":
    main()
