"""A look at a choice in production: `scope-torch recheck models.json --run-dir DIR ...`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from scope_torch.cli.check import add_arguments, arguments_of, ended, new_app
from scope_torch.errors import InputError
from scope_torch.results.rechecked import RecheckResult
from scope_torch.results.saving import load_models
from scope_torch.selection.recheck import recheck, recheck_traces
from scope_torch.traces.reading import read_traces


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with 1 for an alarm, 0 for none, 2 for a wrong input."""
    asked = _parser().parse_args(argv)
    ended("recheck", lambda: rechecked(asked), "the same command goes on")


def rechecked(asked: argparse.Namespace) -> RecheckResult:
    """The look that a command line describes.

    Raises:
        InputError: If something cannot be used.
    """
    every = (
        {} if asked.false_alarm_every is None else {"false_alarm_every": asked.false_alarm_every}
    )
    if asked.traces is not None:
        if asked.min_quality is None or asked.app is not None:
            raise InputError("--traces: give --min-quality too, and no --app")
        least = asked.min_quality
        return recheck_traces(read_traces(asked.traces), asked.models, min_quality=least, **every)
    for name in ("app", "dataset", "budget_usd", "run_dir"):
        if getattr(asked, name) is None:
            raise InputError(f"--{name.replace('_', '-')} is missing; or give --traces FILE")
    reference = None if asked.reference is None else load_models(asked.reference)
    given = arguments_of(asked, "draws") | every
    return recheck(new_app(asked), load_models(asked.models), reference=reference, **given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "scope-torch recheck",
        usage="scope-torch recheck MODELS --run-dir DIR --app APP --dataset FILE ...",
        formatter_class=partial(argparse.HelpFormatter, max_help_position=28),
        description="Draws a few queries more, and says whether a choice has become worse than it "
        "may be; exit status 0: no alarm, 1: alarm, 2: an error.",
        epilog="example: scope-torch recheck models.json --run-dir watch --app my_app:app "
        "--dataset questions.csv --metric exact_match --min-quality 0.9 --budget-usd 1",
    )
    add = parser.add_argument
    add("models", type=Path, help="file of result.save(): the choice")
    add("--run-dir", type=Path, metavar="DIR", help="keeps all draws")
    add_arguments(parser, is_needed=False)
    add("--draws", type=int, metavar="N", help="queries that this call draws (20)")
    add("--reference", type=Path, metavar="FILE", help="LLMs to compare with, for a relative bound")
    add("--false-alarm-every", type=int, metavar="N", help="draws on average (100000)")
    add("--traces", type=Path, nargs="+", metavar="FILE", help="logged traces, in place of an app")
    return parser


if __name__ == "__main__":
    main()
