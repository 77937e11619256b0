"""Certificates where answers vary: how often they are wrong, and what margin they need.

    python scripts/flips.py coverage  # every cheaper configuration just infeasible; minutes
    python scripts/flips.py margins  # of a candidate, by Q, quality and rate; half an hour

Rows go to benchmarks/flips.csv, the table to docs/explanation/guarantees.md. The rows of
`declared flips` were made with version b83f6cc, whose certificate was told the true rate and
trusted it.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scope_torch.problem import SelectionProblem
from scope_torch.search.fresh import ByFreshAnswers

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "flips.csv"
PAGE = ROOT / "docs" / "explanation" / "guarantees.md"
DELTA = 0.05
RATES = (0.0, 0.02, 0.05, 0.13, 0.17)  # of queries whose answer changes when asked again
SEARCHES, CANDIDATES, TRIALS = 1000, 30, 200
SHOWN = ("margins", "all")  # on the page
COMPARED = (("declared flips, candidate 1", "1"), ("fresh", "3"), ("fresh", "7"))
FIELDS = (
    *("what", "method", "queries", "quality", "rate", "shape", "at_most"),
    *("searches", "wrong", "margin", "answers"),
)


def expectations(num: int, mean: float, rate: float, shape: str) -> np.ndarray:
    """`num` expected grades that average `mean`.

    Args:
        num: Q.
        mean: In (0, 1).
        rate: How many of 1 answers change when asked again, about.
        shape: `all`: every query flips equally often. `few`: some are a coin flip, others never
            vary. One query or a few are moved until the average is right.
    """
    if shape == "all":
        p = (1 - math.sqrt(1 - 2 * rate)) / 2
        usual = (mean - p) / (1 - 2 * p) * num
        mu = np.where(np.arange(num) < round(usual), 1 - p, p)
    else:
        coins = min(round(2 * rate * num), int(2 * num * min(mean, 1 - mean)))
        mu = (np.arange(num) < round(num * mean - coins / 2)).astype(float)
        mu[num - coins :] = 0.5
    for q in range(num):  # of those that hardly vary, as few as possible
        off = mean * num - mu.sum()
        mu[q if off < 0 else num - 1 - q] += np.clip(off, -mu[q], 1 - mu[num - 1 - q])
    return mu


def certificate(num: int, s_0: float, rate: float) -> ByFreshAnswers:
    """A certificate that was told the rate."""
    problem = SelectionProblem(
        name="flips",
        modules=("answer",),
        llms=(("small", "large"),),
        num_queries=num,
        theta_ref=(1,),
        reference_quality=1.0,
        reference_cost_usd=1.0,
        epsilon=1 - s_0,
    )
    return ByFreshAnswers(problem, DELTA, max(1e-3, (1 - math.sqrt(1 - 2 * rate)) / 2))


def passes(by: ByFreshAnswers, mu: np.ndarray, s_0: float, rng: np.random.Generator) -> int | None:
    """Passes until a candidate is certified; None if it is given up, as SCOPE would."""
    answers = (rng.random(len(mu)) < mu).astype(float)
    if answers.mean() <= s_0:  # no bet is made on it
        return None
    test = by.begin(1, torch.Generator().manual_seed(0))
    total, number = 0.0, 0
    while True:
        certified = [test.update((x,), 0.0) for x in answers][-1]
        total, number = total + float(answers.mean()), number + 1
        if certified:
            return number
        if total / number < s_0 + test.margin or not test.again():
            return None
        answers = (rng.random(len(mu)) < mu).astype(float)


def coverage() -> Iterable[dict[str, Any]]:
    """Searches that try one configuration after another, all of them just below s_0."""
    for num, s_0, rate, shape in ((40, 0.75, rate, s) for rate in RATES for s in ("all", "few")):
        rng = np.random.default_rng([num, int(1000 * rate), shape == "all"])
        mu, wrong = expectations(num, s_0 - 1e-6, rate, shape), 0
        for _ in range(SEARCHES):
            by = certificate(num, s_0, rate)
            wrong += any(passes(by, mu, s_0, rng) is not None for _ in range(CANDIDATES))
        row = {"queries": num, "quality": s_0, "rate": rate, "shape": shape}
        yield {"what": "coverage", "method": "fresh", **row, "searches": SEARCHES, "wrong": wrong}


def margins() -> Iterable[dict[str, Any]]:
    """The least excess over s_0 at which 80% of candidates, each the first, are certified."""
    for num in (50, 156, 500):
        for s_0, rate, shape in (
            (s, r, f) for s in (0.75, 0.95) for r in RATES for f in ("all", "few")
        ):
            if rate >= 2 * s_0 * (1 - s_0):
                continue  # no configuration at s_0 varies so much
            row = {"queries": num, "quality": s_0, "rate": rate, "shape": shape}
            for most in (3, 7):
                found = _margin(num, s_0, rate, shape, most)
                yield {"what": "margins", "method": "fresh", **row, "at_most": most, **found}


def _margin(num: int, s_0: float, rate: float, shape: str, most: int) -> dict[str, float]:
    low, high, answers = 0.0, 1 - s_0, math.nan
    while high - low > 0.0015:
        excess = (low + high) / 2
        rng = np.random.default_rng([num, int(100 * s_0), int(1000 * rate), most])
        mu = expectations(num, s_0 + excess, rate, shape)
        took = [passes(certificate(num, s_0, rate), mu, s_0, rng) for _ in range(TRIALS)]
        good = [number for number in took if number is not None and number <= most]
        if len(good) >= 0.8 * TRIALS:
            high, answers = excess, num * float(np.median(good))
        else:
            low = excess
    return {"margin": round(high, 4), "answers": answers}


def main(what: str) -> None:
    """Makes rows, and writes them in the place of those that there are."""
    made = []
    for row in {"coverage": coverage, "margins": margins}[what]():
        print(row, flush=True)
        made.append(row)
    kept = []
    if FILE.exists():
        with FILE.open(newline="") as file:
            rows = list(csv.DictReader(file))
        kept = [row for row in rows if row["what"] != what or row["method"] != "fresh"]
    with FILE.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *made])
    write_page()


def table() -> str:
    """The excess over s_0 = 0.75 that each certificate needs, as Markdown."""
    with FILE.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["what"], row["shape"]) == SHOWN]
    cells = {
        (row["queries"], float(row["rate"]), row["method"], row["at_most"]): float(row["margin"])
        for row in rows
        if row["quality"] == "0.75"
    }
    queries = sorted({row["queries"] for row in rows}, key=int)
    head = ["rate", *(f"{number} queries" for number in queries)]
    lines = [head, ["---"] * len(head)]
    for rate in RATES:
        needed = [[cells[number, rate, *who] for who in COMPARED] for number in queries]
        lines.append([f"{rate:.0%}", *(" → ".join(f"{x:.3f}" for x in one) for one in needed)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_page() -> None:
    """Puts the table between its marks."""
    text = PAGE.read_text()
    before, rest = text.split("<!-- begin: flips -->\n")
    _, after = rest.split("<!-- end -->", 1)
    made = f"\n{table()}\n\n*`python scripts/flips.py margins`; benchmarks/flips.csv*\n\n"
    PAGE.write_text(f"{before}<!-- begin: flips -->\n{made}<!-- end -->{after}")


if __name__ == "__main__":
    main(sys.argv[1])
