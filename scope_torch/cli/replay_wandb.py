"""Tells W&B a run again: `python scripts/replay_wandb.py RUN_DIR [key=value ...]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from scope_torch.cli.compose import compose, exit_on_error
from scope_torch.cli.run import build
from scope_torch.runs.recorded import RecordedRun, read_run

USAGE = """\
usage: python scripts/replay_wandb.py RUN_DIR [tracking.KEY=VALUE ...]

RUN_DIR holds settings.json, journal.jsonl and trace.csv of a search. Keys are those of
conf/tracking/wandb.yaml, such as tracking.mode=online tracking.group=sweep."""


def main() -> None:
    """Entry point; exits with 2 if the directory holds no run."""
    arguments = sys.argv[1:]
    if not arguments or "=" in arguments[0] or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stderr)
        sys.exit(0 if arguments[:1] in (["-h"], ["--help"]) else 2)
    exit_on_error("replay_wandb", lambda: print(replay(Path(arguments[0]), arguments[1:])))


def replay(run_dir: Path, overrides: Sequence[str]) -> str:
    """Builds a W&B run, complete in itself, from what a search left on disk.

    Args:
        run_dir: Directory of a search, finished or not.
        overrides: As for `scope-torch`; `tracking=tensorboard` tells TensorBoard instead.

    Returns:
        What was told, in one line.

    Raises:
        InputError: If the directory holds no run.
    """
    run: RecordedRun = read_run(run_dir)
    cfg = compose(["tracking=wandb", f"output_dir={run_dir}", *overrides])
    run.replay(build(cfg.tracking, run_dir=run_dir))
    return (
        f"{run_dir}: {run.status}, {len(run.rows)} rows of the trace, "
        f"{len(run.observations)} observations, {run.spend_usd:.2f} USD"
    )


if __name__ == "__main__":
    main()
