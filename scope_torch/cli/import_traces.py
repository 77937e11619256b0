"""Reads logged traces: `scope-torch import traces.jsonl [--to reference.json]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scope_torch.errors import InputError, printable
from scope_torch.llm.price_list import PriceList
from scope_torch.traces.reading import FORMATS, read_traces
from scope_torch.traces.reference import save_reference
from scope_torch.traces.report import report
from scope_torch.traces.summary import TraceRules, summarize


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
    rules = TraceRules(
        name_of=asked.name_of,
        module_attribute=asked.module_attribute,
        query_attribute=asked.query_attribute,
        score=asked.score,
        score_attribute=asked.score_attribute,
        score_range=_range(asked.score_range),
        most_frequent=asked.most_frequent,
        reprice=asked.reprice,
        prices=PriceList(asked.prices),
    )
    traces = read_traces(asked.files, asked.format)
    summary = summarize(traces, rules)
    print(report(summary, traces))
    if asked.to is not None:
        facts = {"files": [str(path) for path in asked.files], "format": next(iter(traces.formats))}
        print(printable(f"written: {save_reference(asked.to, summary, facts)}"))


def _range(given: Sequence[float]) -> tuple[float, float]:
    low, high = given
    if not low < high:
        raise InputError(f"--score-range {low:g} {high:g}: the first must be below the second")
    return low, high


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "scope-torch import",
        description="Finds modules, LLMs, costs and scores in logged traces.",
        epilog="example: scope-torch import traces.jsonl --to reference.json",
    )
    add = parser.add_argument
    add("files", nargs="+", type=Path, help="JSON lines or JSON, plain or gzipped, or Parquet")
    add("--to", type=Path, help="write the reference to this file, such as reference.json")
    add("--format", default="auto", choices=("auto", *FORMATS), help="auto reads all of them")
    add("--prices", type=Path, help="TOML file with prices of your own, for costs not recorded")
    add("--reprice", action="store_true", help="price the tokens, whatever cost is recorded")
    add(
        "--name-of",
        default="nearest",
        choices=("nearest", "top", "own"),
        help="the span that names a module: the nearest around the call, the topmost below the "
        "root, or the call's own",
    )
    add("--module-attribute", metavar="NAME", help="the attribute that names a module instead")
    add("--query-attribute", metavar="NAME", help="the attribute that names a query; else traces")
    add("--score", metavar="NAME", help="the score that is the quality, if there are several")
    add("--score-attribute", metavar="NAME", help="the attribute that is the quality instead")
    add(
        "--score-range",
        nargs=2,
        type=float,
        default=(0.0, 1.0),
        metavar=("LOW", "HIGH"),
        help="scores that mean quality 0 and 1",
    )
    add(
        "--most-frequent",
        action="store_true",
        help="take the most frequent LLM of a module, and leave out traces with another one",
    )
    return parser


if __name__ == "__main__":
    main()
