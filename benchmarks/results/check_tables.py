"""What checks decided, and for how many queries."""

from __future__ import annotations

import numpy as np

from benchmarks.results.planned import numbers
from benchmarks.results.summary import Row, Rows, code, grouped, markdown


def recorded_checks_table(rows: Rows) -> str:
    """Verdicts on recorded configurations, wrong ones, and draws as a share of the queries."""
    groups = grouped(rows)
    names = list(dict.fromkeys(row["method"] for row in rows))
    lines = [
        [code(problem), *(_checked(groups[problem, name][0]) for name in names)]
        for problem in dict.fromkeys(row["problem"] for row in rows)
    ]
    return markdown(["recorded task", *map(code, names)], lines)


def _checked(row: Row) -> str:
    wrong = int(row["wrong_pass"]) + int(row["wrong_fail"])
    said = f", {wrong} wrong" if wrong else ""
    return f"{_verdicts(row)}{said}; {np.median(numbers(row['share_of_queries'])):.2f}"


def simulated_checks_table(rows: Rows) -> str:
    """The same where answers flip, beside a test of fixed size."""
    header = ["answers that flip", "true loss", "pass, fail, undecided", "wrong", "draws"]
    header += ["of fixed size, equal power"]
    lines = [
        [
            f"{float(row['problem'].split()[1]):.0%}",
            f"{100 * float(row['method'].split()[1]):.3g}%",
            _verdicts(row),
            f"{(int(row['wrong_pass']) + int(row['wrong_fail'])) / int(row['checks']):.1%}",
            f"{float(row['draws']):,.0f}",
            f"{float(row['draws_fixed']):,.0f}" if row["draws_fixed"] else "-",
        ]
        for row in rows
    ]
    return markdown(header, lines)


def rechecks_table(rows: Rows) -> str:
    """How soon a drop is seen, and how often an alarm comes without one."""
    header = ["quality", "alarms before", "after", "draws until then, mean"]
    lines = [
        [
            row["method"],
            f"{row['alarms_before']} of {row['looks']}",
            row["alarms_after"],
            f"{float(row['delay']):,.0f}" if row["delay"] else "-",
        ]
        for row in rows
    ]
    return markdown(header, lines)


def _verdicts(row: Row) -> str:
    return f"{row['passed']}, {row['failed']}, {row['undecided']}"
