"""How often the bounds on costs hold where nothing was observed.

The bounds of `scope_joint` are those of a lognormal distribution. If its model of costs were right,
the logarithm of the average cost of a configuration that was never observed would be within 3
standard deviations of the middle of L_c and U_c in 99.7% of cases.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.results.planned import numbers_text
from benchmarks.results.runs import Cell
from scope_torch.bounds.base import Beta
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.runs.runner import run
from scope_torch.search.rules import Rule
from scope_torch.tasks import Task

FITS = {
    "regression": ("method=scope_joint",),
    "least squares (0.1.0)": ("method=scope_joint", "method.cost_scale=least_squares"),
}
WIDTHS = tuple(b / 2 for b in range(1, 13))  # standard deviations
_SAMPLE = 500  # configurations


@dataclass(frozen=True)
class CostBoundsCell(Cell):
    """One search; its bounds on costs after Calibrate, and when it ends."""

    def measured(self) -> dict[str, Any]:
        """Shares of unseen configurations within so many deviations, and below L_c (b = 3)."""
        cfg = compose(self.settings)
        task: Task = build(cfg.task)
        watch = _AfterCalibrate(task)
        settings = {"seed": cfg.seed, "device": "cpu", "budget_usd": cfg.budget_usd}
        given = {"problem": task.problem, "kernel": build(cfg.kernel), "rules": [watch]}
        search = build(cfg.method, **given, **settings)
        run(task.problem, search, task.evaluator, cfg.budget_usd)
        return {**watch.found, **_columns("end", deviations(search, task))}


class _AfterCalibrate(Rule):
    def __init__(self, task: Task) -> None:
        self._task, self.found = task, dict[str, Any]()

    def begin(self, search: Any) -> None:
        self._search = search

    def selected(self, theta: tuple[int, ...]) -> None:  # noqa: ARG002
        if not self.found:
            self.found = _columns("calibrated", deviations(self._search, self._task))


def deviations(search: Any, task: Task) -> np.ndarray:
    """For unseen configurations: by how many deviations log c is above the middle of its bounds."""
    problem, belief = task.problem, search.belief
    cost = task.evaluator.truth()[0].cpu()
    index = problem.rule.index if problem.rule is not None and problem.rule.is_listed else None
    listed = torch.arange(problem.space.size) if index is None else index.cpu()
    if len(cost) == problem.space.size:
        cost = cost[listed]
    seen = {tuple(theta) for theta in belief.surrogate.observed().tolist()}
    order = torch.randperm(len(listed), generator=torch.Generator().manual_seed(0)).tolist()
    known = (k for k in order if math.isfinite(cost[k]) and cost[k] > 0)
    thetas = ((problem.space.theta_at(int(listed[k])), float(cost[k])) for k in known)
    unseen = itertools.islice((pair for pair in thetas if pair[0] not in seen), _SAMPLE)
    found = []
    for theta, usd in unseen:
        candidate = belief.at(theta, range(problem.num_queries))
        ends = [math.log(f(Beta(1.0, 1.0))) for f in (candidate.lower_c, candidate.upper_c)]
        found.append((math.log(usd) - sum(ends) / 2) / ((ends[1] - ends[0]) / 2))
    return np.array(found)


def _columns(when: str, z: np.ndarray) -> dict[str, Any]:
    within = [np.mean(np.abs(z) <= b) for b in WIDTHS] if len(z) else []
    return {
        f"{when}_unseen": len(z),
        f"{when}_within": numbers_text(within),
        f"{when}_below": float(np.mean(z < -3)) if len(z) else None,
    }
