"""A gate for another LLM: `scope-torch check models.json --new answer=gpt-5-mini ...`."""

from __future__ import annotations

import argparse
import json
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_args

from scope_torch.cli.executors import executor_of
from scope_torch.cli.interrupts import second_interrupt_ends
from scope_torch.cli.saying import say
from scope_torch.errors import InputError, printable
from scope_torch.files import check_folder, write_atomically
from scope_torch.llm.keys import without_secrets
from scope_torch.results.checked import Certificate, CheckResult
from scope_torch.results.rechecked import RecheckResult
from scope_torch.results.saving import load_models, names_models
from scope_torch.selection.check import check

_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_OF_BOTH = (
    *("constraints", "budget_usd", "max_quality_loss", "min_quality", "endpoint", "judge"),
    *("prices", "concurrency", "time_limit", "on_error", "run_dir", "name", "seed"),
    "metric_version",
)
_OF_CHECK = "delta", "certificate", "max_pairs", "continue_from"


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with 0 for pass, 1 for fail, 3 for undecided, 2 for an error."""
    asked = _parser().parse_args(argv)
    kept = "the same command goes on" if asked.run_dir else "--run-dir would keep its calls"
    ended("check", lambda: checked(asked), kept)


@second_interrupt_ends()
def ended(
    command: str, act: Callable[[], CheckResult | RecheckResult | str], kept: str
) -> NoReturn:
    """Prints what was found, and exits with its status; with 2 after any error.

    So status 1 is a verdict, and never the crash of an application. Any signal that ends a search
    cleanly ends this so, too: the calls in flight are waited for.

    Args:
        command: Its name.
        act: Does it; a text says that there is nothing to do, which is status 0.
        kept: What to say after Ctrl-C or another such signal.
    """
    try:
        found = act()
        _say(found)
    except (InputError, OSError) as error:
        print(f"{command}: {error}", file=sys.stderr)
        sys.exit(2)
    except (Exception, SystemExit) as error:  # of the application; also sys.exit() of its module
        message = " ".join(f"{type(error).__name__}: {error}".split())
        print(without_secrets(traceback.format_exc()), file=sys.stderr)
        print(f"{command}: {printable(without_secrets(message))}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"interrupted; {kept}", file=sys.stderr)
        sys.exit(130)
    sys.exit(0 if isinstance(found, str) else found.exit_status)


def checked(asked: argparse.Namespace) -> CheckResult | str:
    """The check that a command line describes; a text if two files have the same LLMs.

    Raises:
        InputError: If something cannot be used.
    """
    if asked.markdown is not None:
        check_folder(asked.markdown, "--markdown")
    models = load_models(asked.models)
    new = _new(asked.new, models)
    if new == models and "=" not in asked.new[0]:  # its notes or fallbacks have changed
        return f"nothing to check: {asked.new[0]} has the LLMs of {asked.models}"
    app, given = new_app(asked), arguments_of(asked, *_OF_CHECK)
    found = check(app, new, reference=asked.models, **given)
    if asked.markdown is not None:
        try:
            write_atomically(asked.markdown, found.markdown())
        except InputError:
            _say(found)  # it was paid for
            raise
    return found


def _say(found: CheckResult | RecheckResult | str) -> None:
    say("\n".join(map(printable, str(found).splitlines())))


def new_app(asked: argparse.Namespace) -> Any:
    """The application that a command line names."""
    sys.path.insert(0, "")  # as `python -m` does: names are looked up where the user is
    return _object(asked.app) if _OBJECT.fullmatch(asked.app) else asked.app


def arguments_of(asked: argparse.Namespace, *more: str) -> dict[str, Any]:
    """The arguments of `check` or `recheck` that a command line gives.

    Args:
        asked: The parsed command line.
        more: Names of those that not both have.

    Raises:
        InputError: If a name stands for nothing.
    """
    metric: Any = asked.metric
    if metric is not None and not _OBJECT.fullmatch(metric):
        metric = f"scope_torch.metrics:{metric}"
    given = {name: getattr(asked, name) for name in (*_OF_BOTH, *more)}
    if asked.executor is not None:
        given["executor"] = executor_of(asked.executor, asked.concurrency)
    return {
        "dataset": _dataset(asked.dataset),
        "metric": None if metric is None else _object(metric),
        **{name: value for name, value in given.items() if value is not None},
    }


def _new(told: Sequence[str], reference: dict[str, str]) -> dict[str, str]:
    """The new configuration: that of a file, or the reference with other LLMs in some modules."""
    if len(told) == 1 and "=" not in told[0] and names_models(told[0]):
        return load_models(told[0])
    changed = dict(reference)
    for one in told:
        module, _, llm = one.partition("=")
        if module not in reference or not llm:
            raise InputError(
                f"--new {one}: write MODULE=LLM, with a module of {list(reference)}, or give one "
                "file such as models.json"
            )
        changed[module] = llm
    return changed


def _object(name: str) -> Any:
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{name} does not exist ({error})") from error


def _dataset(name: str) -> Any:
    """A frame, or an object of Python."""
    if _OBJECT.fullmatch(name):
        found = _object(name)
        found = found() if callable(found) else found
        return list(found) if isinstance(found, Iterator) else found
    import polars

    from scope_torch.tasks.frames import POLARS_ERRORS

    path = Path(name)
    readers = {".csv": _texts_of, ".jsonl": _rows_of, ".parquet": polars.read_parquet}
    if (suffix := path.suffix.lower()) not in readers:
        raise InputError(f"--dataset {name}: a *.csv, *.jsonl or *.parquet file, or module:name")
    try:
        path.open("rb").close()  # a file that is missing is no file that cannot be read as CSV
        return readers[suffix](path)
    except (OSError, ValueError, *POLARS_ERRORS) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {name}: {error}") from error


def _texts_of(path: Path) -> Any:
    """A frame of CSV. Its columns are all text: a decimal comma in an answer stays one."""
    from scope_torch.tasks.frames import read_frame

    return read_frame(path, read_frame(path, ("input", "expected")).columns)


class _Rows:
    """Columns of JSON objects, each value as it is: a frame would give all of a column one type."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.columns = list(dict.fromkeys(name for row in rows for name in row))
        self._rows = rows

    def __getitem__(self, name: str) -> list[Any]:
        return [row.get(name) for row in self._rows]


def _rows_of(path: Path) -> _Rows:
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    rows = [json.loads(line) for line in lines if line.strip()]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("each line must be an object")
    return _Rows(rows)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "check MODELS --new MODULE=LLM --app APP --dataset FILE ...",
        "Tests whether other LLMs may take the place of a choice; exit status 0: pass, or nothing "
        "has changed, 1: fail, 3: undecided, 2: an error.",
        "check models.json --new answer=gpt-5-mini --app 'python app.py {input}' --endpoint "
        "https://api.openai.com/v1 --dataset questions.csv --metric exact_match "
        "--max-quality-loss 0.05 --budget-usd 2",
        {"required": True},
    )
    add = parser.add_argument
    add("--new", nargs="+", required=True, metavar="X", help="MODULE=LLM that changes, or a file")
    add("--delta", type=float, help="probability of a wrong verdict (0.05)")
    add("--certificate", metavar="C", help=f"{', '.join(get_args(Certificate))}")
    add("--max-pairs", type=int, metavar="N", help="undecided after so many queries")
    add("--continue-from", type=Path, nargs="+", metavar="DIR", help="of older runs")
    add("--markdown", type=Path, metavar="FILE", help="write a comment for a pull request")
    return parser


def parser_of(
    usage: str, description: str, example: str, need: dict[str, Any]
) -> argparse.ArgumentParser:
    """A parser with the arguments that `check` and `recheck` have in common.

    Args:
        usage: Begins with the command.
        description: What it does.
        example: Likewise.
        need: Settings of the arguments that `check` needs.
    """
    command = usage.split()[0]
    parser = argparse.ArgumentParser(
        f"scope-torch {command}",
        usage=f"scope-torch {usage}",
        formatter_class=partial(argparse.HelpFormatter, max_help_position=28),
        description=description,
        epilog=f"example: scope-torch {example}",
    )
    add = parser.add_argument
    add("models", type=Path, help="file of result.save(), or of scope-torch import")
    add("--app", **need, help="'python app.py {input}', or module:function")
    add("--dataset", **need, metavar="FILE", help=".csv, .jsonl, .parquet; or module:name")
    add("--metric", help="such as exact_match, or module:function")
    add("--budget-usd", **need, type=float, metavar="USD", help="it may cost this much")
    add("--max-quality-loss", type=float, metavar="LOSS", help="relative, such as 0.05")
    add("--min-quality", type=float, metavar="S", help="instead: the least average quality")
    add(
        "--constraint",
        dest="constraints",
        action="append",
        metavar="TEXT",
        help="such as 'p95(latency_s) <= 8'; repeatable",
    )
    add("--endpoint", metavar="URL", help="of your LLMs; the app asks for scope/MODULE")
    add("--judge", metavar="LLM", help="that the metric asks as scope/judge")
    add("--metric-version", metavar="V", help="of a metric that is a service")
    add("--prices", type=Path, metavar="FILE", help="TOML file with prices of your own")
    add("--concurrency", type=int, metavar="N", help="runs of the app at a time (1)")
    add("--executor", metavar="WHERE", help="of these runs: processes, dask=ADDRESS, ray=ADDRESS")
    add("--time-limit", metavar="TIME", help="such as 20min")
    add("--on-error", metavar="HOW", help="raise, retry or zero, if the app fails")
    add("--name", help="of the application, as in older runs")
    add("--seed", type=int, help="decides the order of the queries (0)")
    add("--run-dir", type=Path, metavar="DIR", help="keeps every call: the command goes on")
    return parser


if __name__ == "__main__":
    main()
