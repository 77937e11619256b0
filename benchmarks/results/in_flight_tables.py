"""Money and time of searches with many calls in flight."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from benchmarks.results.in_flight import PARALLEL
from benchmarks.results.summary import Row, Rows, code, grouped, markdown

_NEAR = 1.1


def in_flight_table(rows: Rows) -> str:
    """Near the optimum, median USD, and both as multiples of a search with one call at a time.

    That search is `scope`'s own, and else that of `scope_joint`. Where a problem was searched with
    several seeds, a line compares these one with another.
    """
    groups = grouped(rows)
    header = ["task", "in flight", "within 10% (one at a time)", "USD"]
    header += ["times as dear: median, worst", "times as fast: equal, lognormal, heavy tail"]
    lines = []
    for problem in dict.fromkeys(problem for problem, _ in groups):
        lines += _other_seeds(problem, groups.get((problem, "1"), ()))
        for width in ("32", "128", "scope 32", *PARALLEL):  # the file has more
            one_at_a_time = "scope 1" if width.startswith("scope") else "1"
            alone = {_run(row): row for row in groups.get((problem, one_at_a_time), ())}
            of = groups.get((problem, width), ())
            pairs = [(row, alone[_run(row)]) for row in of if _run(row) in alone]
            if not of or len(pairs) < len(of):
                continue
            ratios = [float(r["usd"]) / float(one["usd"]) for r, one in pairs if float(one["usd"])]
            lines.append(
                [
                    code(problem),
                    ", ".join([f"`{name}`" for name in width.split()[:-1]] + [width.split()[-1]]),
                    f"{_near(of)} of {len(of)} ({_near([one for _, one in pairs])})",
                    f"{np.median([float(row['usd']) for row in of]):.3g}",
                    f"{np.median(ratios):.2f}, {max(ratios):.2f}",
                    ", ".join(_faster(pairs, name) for name in ("equal", "lognormal", "heavy")),
                ]
            )
    return markdown(header, lines)


def _other_seeds(problem: str, rows: Rows) -> list[list[str]]:
    """How much the money of one call at a time depends on the seed; no line for a single one."""
    if len({row["world"] for row in rows}) > 1 or len(rows) < 2:
        return []
    usd = [float(row["usd"]) for row in rows]
    ratios = [one / other for one, other in itertools.permutations(usd, 2)]
    near, money = f"{_near(rows)} of {len(rows)}", f"{np.median(usd):.3g}"
    return [
        [
            code(problem),
            "1, another seed",
            near,
            money,
            f"{np.median(ratios):.2f}, {max(ratios):.2f}",
            "",
        ]
    ]


def _faster(pairs: Sequence[tuple[Row, Row]], latencies: str) -> str:
    """The time of one call at a time over that of a search: a mean latency for each of its calls.

    A row has the latencies of its own calls over its time.
    """
    return "{:.3g}".format(
        np.median(
            [
                float(one["calls"]) / float(row["calls"]) * float(row[f"speedup_{latencies}"])
                for row, one in pairs
            ]
        )
    )


def _near(rows: Rows) -> int:
    return sum(float(row["ratio"]) <= _NEAR for row in rows)


def _run(row: dict[str, str]) -> tuple[str, str]:
    return row["world"], row["seed"]
