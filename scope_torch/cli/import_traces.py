"""Reads logged traces: `scope-torch import traces.jsonl [--to reference.json]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from scope_torch.cli.saying import say
from scope_torch.errors import InputError, printable
from scope_torch.llm.price_list import PriceList
from scope_torch.traces.reading import FORMATS, read_traces
from scope_torch.traces.reference import save_reference
from scope_torch.traces.report import report
from scope_torch.traces.rules import NameOf, TraceRules
from scope_torch.traces.summary import summarize

# How traces are read; `recheck` takes these too.
RULES: dict[str, dict[str, Any]] = {
    "format": {"default": "auto", "choices": ("auto", *FORMATS), "help": "auto reads all of them"},
    "name_of": {
        "default": "nearest",
        "choices": get_args(NameOf),
        "help": "the span that names a module: the nearest around the call, the topmost below the "
        "root, or the call's own",
    },
    "module_attribute": {"metavar": "NAME", "help": "the attribute that names a module instead"},
    "score": {"metavar": "NAME", "help": "the score that is the quality, if there are several"},
    "score_attribute": {"metavar": "NAME", "help": "the attribute that is the quality instead"},
    "score_range": {
        "nargs": 2,
        "type": float,
        "default": (0.0, 1.0),
        "metavar": ("LOW", "HIGH"),
        "help": "scores that mean quality 0 and 1",
    },
    "most_frequent": {
        "action": "store_true",
        "help": "take the most frequent LLM of a module, and leave out traces with another one",
    },
}


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with 2 if the user can mend the error."""
    asked = _parser().parse_args(argv)
    try:
        import_traces(asked)
    except (InputError, OSError) as error:
        print(f"import: {error}", file=sys.stderr)
        sys.exit(2)


def import_traces(asked: argparse.Namespace) -> None:
    """Prints the report, and writes the reference if `--to` names a file.

    Raises:
        InputError: If the traces give no reference.
    """
    own = {"reprice": asked.reprice, "prices": PriceList(asked.prices)}
    rules = replace(rules_of(asked), query_attribute=asked.query_attribute, **own)
    traces = read_traces(asked.files, asked.format)
    summary = summarize(traces, rules)
    say(report(summary, traces))
    if asked.to is not None:
        facts = {"files": [str(path) for path in asked.files], "format": next(iter(traces.formats))}
        say(printable(f"written: {save_reference(asked.to, summary, facts)}"))


def rules_of(asked: argparse.Namespace) -> TraceRules:
    """How to read the traces, as a command line with `RULES` says it.

    Raises:
        InputError: If the range of the scores is none.
    """
    low, high = asked.score_range
    names = [name for name in RULES if name not in ("format", "score_range")]
    return TraceRules(**{name: getattr(asked, name) for name in names}, score_range=(low, high))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "scope-torch import",
        description="Finds modules, LLMs, costs and scores in logged traces.",
        epilog="example: scope-torch import traces.jsonl --to reference.json",
    )
    add = parser.add_argument
    add("files", nargs="+", type=Path, help="JSON lines or JSON, plain or gzipped, or Parquet")
    add("--to", type=Path, help="write the reference to this file, such as reference.json")
    add("--prices", type=Path, help="TOML file with prices of your own, for costs not recorded")
    add("--reprice", action="store_true", help="price the tokens, whatever cost is recorded")
    add("--query-attribute", metavar="NAME", help="the attribute that names a query; else traces")
    for name, how in RULES.items():
        add(f"--{name.replace('_', '-')}", **how)
    return parser


if __name__ == "__main__":
    main()
