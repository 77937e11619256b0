"""The tables of docs/performance.md, made of the rows of docs/results/speed.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

FIELDS = (
    *("section", "who", "what", "task", "N", "M", "Q", "D", "Theta", "value", "unit", "wall"),
    *("ratio", "how", "difference", "threads", "date", "versions", "machine"),
)
Row = dict[str, Any]
_NODES = ("median", "most")
BEGIN, END = "<!-- begin: docs/results/speed.csv {} -->", "<!-- end -->"


def read(path: Path) -> list[Row]:
    """The rows of the file; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [dict(row) for row in csv.DictReader(file)]


def number(value: Any) -> str:
    """Three digits, and commas between thousands."""
    if value == "":
        return ""
    short = float(f"{float(value):.3g}")
    return f"{short:,.0f}" if abs(short) >= 100 else f"{short:g}"


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; a first cell that is that of the line before is left empty."""
    cells, last = [header, ["---"] * len(header)], ""
    for first, *others in lines:
        cells.append(["" if first == last else first, *others])
        last = first
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _by(rows: Iterable[Row], *keys: str) -> dict[tuple[str, ...], dict[str, Row]]:
    """Rows by what they say, within groups of equal `keys`."""
    groups: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), {})[row["what"]] = row
    return groups


def _ms(row: Mapping[str, Any]) -> str:
    """Milliseconds of the processor, and on the clock in brackets."""
    return f"{number(1e3 * float(row['value']))} ({number(1e3 * float(row['wall']))})"


def _s(row: Mapping[str, Any]) -> str:
    """Seconds of the processor, and on the clock in brackets."""
    return f"{number(row['value'])} ({number(row['wall'])})"


def steps(rows: Sequence[Row]) -> str:
    """Selection steps and memory of searches."""
    header = ["task", "method", "configurations", "steps", "median step [ms]", "first [ms]"]
    lines = [
        [
            f"{task} (N = {one['steps']['N']}, Q = {one['steps']['Q']})",
            f"`{who}`",
            f"{int(one['steps']['Theta']):,}",
            one["steps"]["value"],
            *(_ms(one[f"{name} step"]) for name in ("median", "first", "largest")),
            number(one["peak memory"]["value"]),
        ]
        for (task, who), one in _by(rows, "task", "who").items()
    ]
    return table([*header, "largest [ms]", "peak memory [GiB]"], lines)


def _gap(row: Mapping[str, Any]) -> str:
    """A gap in USD, or as a share."""
    value = float(row["value"])
    if value == 0:
        return "0"
    return f"{value:.1e} USD" if row["unit"] == "USD" else f"{value:.1%}"


def large(rows: Sequence[Row]) -> str:
    """Selection steps in spaces too large to enumerate, and their searches."""
    header = ["task", "method", "configurations", "observations", "steps", "median step [s]"]
    header += ["first [s]", "largest [s]", "searches", "nodes of a search, median / most"]
    header += ["searches not proven", "choices not proven", "largest gap", "peak memory [GiB]"]
    lines = [
        [
            f"{task} (Q = {one['steps']['Q']})",
            f"`{who}`",
            f"{int(one['steps']['Theta']):,}",
            f"{int(one['observations']['value']):,}",
            one["steps"]["value"],
            *(_s(one[f"{name} step"]) for name in ("median", "first", "largest")),
            one["searches"]["value"],
            " / ".join(f"{float(one[f'{which} nodes']['value']):,.0f}" for which in _NODES),
            *(one[f"{what} not proven"]["value"] for what in ("searches", "choices")),
            _gap(one["largest gap"]),
            number(one["peak memory"]["value"]),
        ]
        for (task, who), one in _by(rows, "task", "who").items()
    ]
    return table(header, lines)


def runs(rows: Sequence[Row]) -> str:
    """Whole runs and their parts."""
    header = ["task", "method", "world", "observations", "seconds", "method's share"]
    lines = [
        [
            task,
            f"`{who}`",
            how.removeprefix("measured, "),
            f"{int(one['observations']['value']):,}",
            _s(one["run"]),
            *(f"{float(one[part]['value']):.0%}" for part in ("method", "evaluator", "rest")),
        ]
        for (task, who, how), one in _by(rows, "task", "who", "how").items()
    ]
    return table([*header, "evaluator's", "the rest's"], lines)


def growth(rows: Sequence[Row]) -> str:
    """Growth in D, Q and N: seconds of each case, and the exponents."""
    header = ["growth in", "what", "from, to", "milliseconds", "exponent", "between neighbours"]
    lines: list[list[str]] = []
    for axis in dict.fromkeys(str(row["task"]) for row in rows):
        for what in ("conditioning", "on Theta"):
            own = [row for row in rows if (row["task"], row["what"]) == (axis, what)]
            cases, fit = [row for row in own if row["unit"] == "s"], own[-1]
            span = ", ".join(row[axis] for row in cases)
            seconds = ", ".join(number(1e3 * float(row["value"])) for row in cases)
            name = {"D": "\\|D\\|", "N": "N (exponent of \\|Theta\\|)"}.get(axis, axis)
            between = fit["how"].rpartition("neighbours ")[2]
            lines.append([name, what, span, seconds, f"{float(fit['value']):.2f}", between])
    return table(header, lines)


def posterior(rows: Sequence[Row]) -> str:
    """Ours beside the others on all of Theta."""
    header = ["configurations", "evaluation", "conditioning [s]", "on Theta [s]", "ratio"]
    lines: list[list[str]] = []
    for (size, who, how), one in _by(rows, "Theta", "who", "how").items():
        if not size:
            continue
        first, on_theta = one.get("conditioning"), one["on Theta"]
        seconds = [number(row["value"]) if row else "" for row in (first, on_theta)]
        difference = float(on_theta["difference"] or 0)  # of ours to itself: 0
        differs = f"{difference:.1e}" if difference else ""
        how = how.removeprefix("measured whole, ")
        lines.append([f"{int(size):,}", who, *seconds, number(on_theta["ratio"]), differs, how])
    lines.sort(key=lambda line: int(line[0].replace(",", "")))
    return table([*header, "largest relative difference", "measured in"], lines)


def exponents(rows: Sequence[Row]) -> str:
    """Exponents in the number of configurations."""
    lines = [
        [row["who"], f"{float(row['value']):.2f}", row["how"].rpartition("neighbours ")[2]]
        for row in rows
        if row["unit"] == "exponent"
    ]
    return table(["evaluation", "exponent in \\|Theta\\|", "between neighbours"], lines)


def conditions(rows: Sequence[Row]) -> str:
    """When, where and with which versions the rows were measured."""
    keys = ("date", "machine", "threads", "versions")
    found: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        own = found.setdefault(tuple(row[key] for key in keys), [])
        if row["section"] not in own:
            own.append(row["section"])
    lines = [[", ".join(parts), *which] for which, parts in found.items()]
    return table(["part", *keys], lines)


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Each table of the page, by the name in its marker."""
    parts = {part: [row for row in rows if row["section"] == part] for part in TABLES.values()}
    made = {name: globals()[name](parts[part]) for name, part in TABLES.items()}
    return {**made, "conditions": conditions(rows)}


TABLES = {
    "steps": "steps",
    "large": "large",
    "runs": "runs",
    "growth": "growth",
    "posterior": "posterior",
    "exponents": "posterior",
}


def between(page: str, name: str) -> str:
    """The table that a page has between the markers of this name."""
    return page.partition(BEGIN.format(name))[2].partition(END)[0].strip()


def write_page(path: Path, rows: Sequence[Row]) -> None:
    """Puts the tables between the markers of a page."""
    text = path.read_text()
    for name, made in tables(rows).items():
        before, begin, rest = text.partition(BEGIN.format(name))
        if not begin:
            raise ValueError(f"{path} has no marker {BEGIN.format(name)}; add it and {END}")
        text = f"{before}{begin}\n\n{made}\n\n{END}{rest.partition(END)[2]}"
    path.write_text(text)
