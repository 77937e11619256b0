"""The posterior on all of Theta: this package beside three other exact ways (make bench).

What takes too long on all of Theta is timed on a part, drawn evenly, and scaled: conditioning is
counted once, prediction for every configuration. Assertions are ratios within this process.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import naive
import numpy as np
import pytest
import torch
from contenders import (
    LAM,
    BatchedGPyTorch,
    Case,
    Collapsed,
    Direct,
    SklearnLoop,
)
from torch import Tensor

CASES = {3: Case(3, 120, 86, 60), 4: Case(4, 200, 102, 60), 5: Case(5, 300, 102, 60)}
# Contender and how many configurations it is timed on; None: all of them.
CONTENDERS: dict[str, tuple[Callable[[Case], Any], int | None]] = {
    "this package": (Collapsed, None),
    "direct, in chunks": (Direct, 1 << 16),
    "GPyTorch, batch of Q": (BatchedGPyTorch, 512),
    "scikit-learn, loop over Q": (SklearnLoop, 1 << 14),
}
SIDES = [(n, name) for n in CASES for name in CONTENDERS if n == 3 or "scikit" not in name]
HEADER = ["evaluation", "conditioning [s]", "on Theta [s]", "ratio of the sums", "timed on"]
HEADER += ["error of mean c [USD]", "of mean g", "of variance"]
NUM_CHECKED = 64
_seconds: dict[tuple[int, str], float] = {}


@functools.cache
def checked(num_modules: int) -> tuple[Tensor, np.ndarray]:
    """Some configurations, and the naive posterior there."""
    case = CASES[num_modules]
    index = torch.randint(
        case.space.size, (NUM_CHECKED,), generator=torch.Generator().manual_seed(1)
    )
    targets = case.space.unrank(index).numpy()
    expected = naive.aggregate(case.history, targets, case.num_queries, LAM, naive.matern52)
    return index, np.stack(expected)


def evenly(size: int, count: int | None) -> Tensor:
    """`count` flat indices, or all."""
    count = min(size, count or size)
    return torch.arange(count) * (size // count)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a call, and its result."""
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


@pytest.mark.parametrize(("num_modules", "name"), SIDES)
def test_a_contender(benchmark, results, num_modules, name):
    case = CASES[num_modules]
    make, count = CONTENDERS[name]
    # More than once: the first call of a library loads what later ones have.
    condition_s, predict = min(
        (timed(lambda: make(case)) for _ in range(3)), key=lambda one: one[0]
    )
    part = evenly(case.space.size, count)
    benchmark.pedantic(predict, (part,), rounds=3, warmup_rounds=1 if count is None else 0)
    scale = case.space.size / len(part)
    predict_s = benchmark.stats.stats.median * scale
    seconds = condition_s + predict_s
    index, expected = checked(num_modules)
    error = np.abs(predict(index).numpy() - expected).max(1)
    _seconds[num_modules, name] = seconds
    ours = _seconds[num_modules, "this package"]
    results.add(
        f"N = {num_modules}: {case.space.size:,} configurations, |D| = {case.num_configs}, "
        f"Q = {case.num_queries}, {case.num_groups - 1} groups of queries",
        HEADER,
        [
            name,
            f"{condition_s:.2g}",
            f"{predict_s:.3g}",
            f"{seconds / ours:.3g}",
            f"{len(part):,}",
            *(f"{value:.1e}" for value in error),
        ],
    )
    assert (error[:2] < 1e-9).all()
    assert error[2] < 1e-10
    if count is not None:
        assert seconds > ours


GROWTH = {
    "|D|": [Case(4, n, 102, 60) for n in (50, 100, 200, 400)],
    "Q": [Case(4, 200, q, 25) for q in (25, 50, 100, 200)],
    "N": [Case(n, 200, 102, 60) for n in (2, 3, 4, 5)],
}


@pytest.mark.parametrize("what", GROWTH)
def test_growth(results, what):
    rows = []
    for case in GROWTH[what]:
        condition_s, predict = timed(functools.partial(Collapsed, case))
        every = evenly(case.space.size, None)
        predict(every)
        seconds = statistics.median(timed(lambda p=predict, e=every: p(e))[0] for _ in range(5))
        rows.append((case, condition_s, seconds))
    _, condition_0, seconds_0 = rows[0]
    for case, condition_s, seconds in rows:
        results.add(
            f"Growth of this package in {what}",
            ["N", "\\|D\\|", "Q", "conditioning, ratio", "evaluation on Theta, ratio"],
            [
                *map(str, (case.num_modules, case.num_configs, case.num_queries)),
                *(f"{ratio:.2f}" for ratio in (condition_s / condition_0, seconds / seconds_0)),
            ],
        )
    if what == "Q":  # what is evaluated on Theta does not depend on Q
        assert rows[-1][2] < 3 * rows[0][2]
    if what == "|D|":  # at most the square, and less where the fold of the tables dominates
        assert rows[-1][2] < 2 * (8**2) * rows[0][2]
