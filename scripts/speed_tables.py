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
_OURS = "this package"
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
    """Milliseconds of the processor."""
    return number(1e3 * float(row["value"]))


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
    header = ["task", "method", "configurations", "steps", "median step [s]", "largest [s]"]
    header += ["nodes of a search: median, most", "not proven: searches, choices", "largest gap"]
    lines = [
        [
            f"{task} (Q = {one['steps']['Q']})",
            f"`{who}`",
            f"{int(one['steps']['Theta']):,}",
            one["steps"]["value"],
            *(number(one[f"{name} step"]["value"]) for name in ("median", "largest")),
            "; ".join(f"{float(one[f'{which} nodes']['value']):,.0f}" for which in _NODES),
            f"{one['searches not proven']['value']} of {one['searches']['value']}, "
            f"{one['choices not proven']['value']}",
            _gap(one["largest gap"]),
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
            "new" if "new" in how else "seen",
            f"{int(one['observations']['value']):,}",
            _s(one["run"]),
            *(f"{float(one[part]['value']):.0%}" for part in ("method", "evaluator")),
        ]
        for (task, who, how), one in _by(rows, "task", "who", "how").items()
    ]
    return table([*header, "evaluator's"], lines)


def growth(rows: Sequence[Row]) -> str:
    """Growth in D, Q and N: seconds of each case, and the exponents."""
    header = ["growth in", "what", "from, to", "milliseconds", "exponent"]
    lines: list[list[str]] = []
    for axis in dict.fromkeys(str(row["task"]) for row in rows):
        for what in ("conditioning", "on Theta"):
            own = [row for row in rows if (row["task"], row["what"]) == (axis, what)]
            cases, fit = [row for row in own if row["unit"] == "s"], own[-1]
            span = ", ".join(row[axis] for row in cases)
            seconds = ", ".join(number(1e3 * float(row["value"])) for row in cases)
            name = {"D": "\\|D\\|", "N": "N (exponent of \\|Theta\\|)"}.get(axis, axis)
            lines.append([name, what, span, seconds, f"{float(fit['value']):.2f}"])
    return table(header, lines)


def posterior(rows: Sequence[Row]) -> str:
    """Ours on all of Theta in milliseconds, and the others as multiples of it."""
    whole = [row for row in rows if row["what"] == "on Theta" and row["Theta"]]
    others = [who for who in dict.fromkeys(row["who"] for row in whole) if who != _OURS]
    lines: list[list[str]] = []
    for size in sorted({int(row["Theta"]) for row in whole}):
        own = {row["who"]: row for row in reversed(whole) if row["Theta"] == str(size)}
        own |= {r["who"]: r for r in whole if r["Theta"] == str(size) and r["difference"]}
        times = [_times(own[who]) if who in own else "" for who in others]
        most = max(float(row["difference"] or 0) for row in own.values())
        milliseconds = number(1e3 * float(own[_OURS]["value"]))
        lines.append([f"{size:,}", milliseconds, *times, f"{most:.1e}"])
    header = ["configurations", f"{_OURS} [ms]", *others, "largest relative difference"]
    return table(header, lines)


def _times(row: Row) -> str:
    """A multiple of our time; what is extrapolated is at least so much."""
    least = "" if row["difference"] else "at least "
    return f"{least}{number(row['ratio'])} times"


def conditions(rows: Sequence[Row]) -> str:
    """When, where and with which versions the rows were measured."""
    found: dict[str, list[str]] = {}
    for row in rows:
        where = f"{row['machine']}; threads {row['threads']}; {row['versions']}"
        part = f"{row['section']} {row['date']}"
        if part not in found.setdefault(where, []):
            found[where].append(part)
    return "\n".join(f"*{', '.join(parts)}: {where}*" for where, parts in found.items())


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
