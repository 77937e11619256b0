"""A look at a choice in production: `scope-torch recheck models.json --run-dir DIR ...`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from scope_torch.cli.check import arguments_of, ended, new_app, parser_of
from scope_torch.cli.import_traces import RULES, rules_of
from scope_torch.errors import InputError
from scope_torch.results.rechecked import RecheckResult
from scope_torch.results.saving import load_models
from scope_torch.selection.recheck import recheck, recheck_traces
from scope_torch.traces.reading import read_traces

_OF_TRACES = {"models", "traces", "min_quality", "false_alarm_every"}


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with 1 for an alarm, 0 for none, 2 for an error.

    With 3 if there is none, but logged traces were left out that are newer than all that were used.
    """
    parser = _parser()
    asked = parser.parse_args(argv)
    given = {name for name, value in vars(asked).items() if value != parser.get_default(name)}
    ended("recheck", lambda: rechecked(asked, given), "the same command goes on")


def rechecked(asked: argparse.Namespace, given: Set[str]) -> RecheckResult:
    """The look that a command line describes.

    Args:
        asked: The parsed command line.
        given: Names of the arguments that it has.

    Raises:
        InputError: If something cannot be used.
    """
    every = (
        {} if asked.false_alarm_every is None else {"false_alarm_every": asked.false_alarm_every}
    )
    if asked.traces is not None:
        _refuse(given - _OF_TRACES - set(RULES), "--traces reads a log and asks nobody")
        if asked.min_quality is None:
            raise InputError("--traces: give --min-quality too")
        traces, rules = read_traces(asked.traces, asked.format), rules_of(asked)
        least = asked.min_quality
        return recheck_traces(traces, asked.models, min_quality=least, rules=rules, **every)
    _refuse(given & set(RULES), "that is for --traces")
    for name in ("app", "dataset", "budget_usd", "run_dir"):
        if getattr(asked, name) is None:
            raise InputError(f"{_flag(name)} is missing; or give --traces FILE")
    reference = None if asked.reference is None else load_models(asked.reference)
    more = arguments_of(asked, "draws") | every
    return recheck(new_app(asked), load_models(asked.models), reference=reference, **more)


def _refuse(unfit: Set[str], why: str) -> None:
    if unfit:
        raise InputError(f"leave out {', '.join(map(_flag, sorted(unfit)))}: {why}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-').replace('constraints', 'constraint')}"


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "recheck MODELS --run-dir DIR --app APP --dataset FILE ...",
        "Draws a few queries more, and says whether a choice has become worse than it may be; exit "
        "status 0: no alarm, 1: alarm, 3: none, but --traces has newer ones that were left out, 2: "
        "an error.",
        "recheck models.json --run-dir watch --app my_app:app --dataset questions.csv --metric "
        "exact_match --min-quality 0.9 --budget-usd 1",
        {},
    )
    add = parser.add_argument
    add("--draws", type=int, metavar="N", help="queries that this call draws (20)")
    add("--reference", type=Path, metavar="FILE", help="LLMs to compare with, for a relative bound")
    add("--false-alarm-every", type=int, metavar="N", help="draws on average (100000)")
    traces = "logged traces, in place of an app; --score, ... as for scope-torch import"
    add("--traces", type=Path, nargs="+", metavar="FILE", help=traces)
    for name, how in RULES.items():
        hidden: dict[str, Any] = how | {"help": argparse.SUPPRESS}  # or it fills the screen
        add(_flag(name), **hidden)
    return parser


if __name__ == "__main__":
    main()
