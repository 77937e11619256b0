"""Money and time of searches with many calls in flight."""

from __future__ import annotations

import numpy as np

from benchmarks.results.in_flight import WIDTHS
from benchmarks.results.summary import Rows, code, grouped, markdown

_NEAR = 1.1


def in_flight_table(rows: Rows) -> str:
    """Near the optimum, median USD, USD over those of one call at a time, and speedups."""
    groups = grouped(rows)
    header = [
        "task",
        "in flight",
        "within 10% (one at a time)",
        "USD",
        "times as dear: median, worst",
    ]
    header += ["times as fast: equal, lognormal, heavy tail"]
    lines = []
    for problem in dict.fromkeys(problem for problem, _ in groups):
        alone = {_run(row): float(row["usd"]) for row in groups.get((problem, "1"), ())}
        first = _near(groups.get((problem, "1"), ()))
        for width in (one for one in WIDTHS if one not in ("1", "8")):  # the file has them
            of = groups.get((problem, width), ())
            paid = [(float(row["usd"]), alone.get(_run(row))) for row in of]
            if not paid or any(usd is None for _, usd in paid):
                continue
            ratios = [usd / before for usd, before in paid if before]
            speed = [
                f"{np.median([float(row[f'speedup_{name}']) for row in of]):.3g}"
                for name in ("equal", "lognormal", "heavy")
            ]
            lines.append(
                [
                    code(problem),
                    width,
                    f"{_near(of)} of {len(of)} ({first})",
                    f"{np.median([usd for usd, _ in paid]):.3g}",
                    f"{np.median(ratios):.2f}, {max(ratios):.2f}",
                    ", ".join(speed),
                ]
            )
    return markdown(header, lines)


def _near(rows: Rows) -> int:
    return sum(float(row["ratio"]) <= _NEAR for row in rows)


def _run(row: dict[str, str]) -> tuple[str, str]:
    return row["world"], row["seed"]
