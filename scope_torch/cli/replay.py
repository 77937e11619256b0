"""Sends a run from its directory to W&B: `scope-torch replay RUN_DIR [KEY=VALUE ...]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from scope_torch.cli.build import build
from scope_torch.cli.compose import compose, exit_on_error
from scope_torch.cli.saying import say
from scope_torch.runs.recorded import RecordedRun, read_run

USAGE = """\
usage: scope-torch replay RUN_DIR [tracking.KEY=VALUE ...]

Sends a search to W&B, or to another tracker. RUN_DIR holds settings.json,
journal.jsonl and trace.csv. The keys are those of tracking=wandb.

example: scope-torch replay outputs/synthetic/scope_joint/seed=0"""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with 2 if the directory holds no run."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0].startswith(("-h", "--help", "tracking.", "tracking=")):
        print(USAGE, file=sys.stderr)
        sys.exit(0 if arguments[:1] in (["-h"], ["--help"]) else 2)
    exit_on_error("replay", lambda: say(replay(Path(arguments[0]), arguments[1:])))


def replay(run_dir: Path, overrides: Sequence[str]) -> str:
    """Builds a complete W&B run from the files of a search.

    Args:
        run_dir: Directory of a search, finished or not.
        overrides: As for `scope-torch`; `tracking=tensorboard` writes for TensorBoard instead.

    Returns:
        One line that says how much was sent.

    Raises:
        InputError: If the directory holds no run.
    """
    run: RecordedRun = read_run(run_dir)
    quoted = str(run_dir).replace("\\", "\\\\").replace("'", "\\'")
    cfg = compose(["tracking=wandb", f"output_dir='{quoted}'", *overrides])
    run.replay(build(cfg.tracking, run_dir=run_dir))
    return (
        f"{run_dir}: {run.status}, {len(run.rows)} rows of the trace, "
        f"{len(run.observations)} observations, {run.spend_usd:.2f} USD"
    )


if __name__ == "__main__":
    main()
