"""The curves of one task and budget, as figures show them; see `scope_torch.results.plotting`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scope_torch.results.metrics import OracleCurve

Published = Mapping[str, tuple[np.ndarray, np.ndarray]]
_PER_1000 = 1000
_POINTS = 400  # at which V is looked at


def lines_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Reference and optimum of a result, and what its curve is of: for `Panel`, `plot_curves`."""
    if summary.get("objective", "cost") == "cost":
        return {
            "reference_cost_usd": summary["reference_cost_usd"],
            "optimal_cost_usd": summary["optimal_cost_usd"],
        }
    best = summary["optimal_quality"]
    return {
        "reference_cost_usd": 1 - summary["reference_quality"],
        "optimal_cost_usd": None if best is None else 1 - best,
        "label": "least feasible 1 - quality",
    }


@dataclass(frozen=True)
class Panel:
    """The curves of one task and budget.

    Args:
        title: Its title.
        curves: The curves of all runs, by method.
        budget_usd: Largest budget shown, in USD.
        reference_cost_usd: c(theta_0) in USD per query, drawn as a line.
        optimal_cost_usd: c(theta_star) in USD per query, drawn as a line; None if unknown.
        paper: Published curves by method: budgets in USD, and costs in USD per query.
        label: Of the axis of c_bf, if that is no cost and is drawn as it is; None: c_bf is a cost,
            and is drawn in USD per 1,000 queries and as a share of the reference.

    Examples:
        >>> curve = OracleCurve.from_steps({0.0: (0.01, 0.9), 1.0: (0.004, 0.85)}, s_0=0.8)
        >>> panel = Panel("mine", {"scope": [curve]}, budget_usd=2.0, reference_cost_usd=0.01)
        >>> panel.costs("scope", np.array([0.5, 1.5])).tolist()  # of 1,000 queries
        [[10.0, 4.0]]
        >>> panel.violated, panel.span
        (False, (4.0, 10.0))
    """

    title: str
    curves: Mapping[str, Sequence[OracleCurve]]
    budget_usd: float
    reference_cost_usd: float
    optimal_cost_usd: float | None = None
    paper: Published = field(default_factory=dict[str, tuple[np.ndarray, np.ndarray]])
    label: str | None = None

    @property
    def scale(self) -> float:
        """Factor from a curve's cost to the axis."""
        return _PER_1000 if self.label is None else 1

    def costs(self, name: str, budget_usd: np.ndarray) -> np.ndarray:
        """c_bf of all runs of a method, in the unit of the axis: runs x budgets; may be +inf."""
        return self.scale * np.stack([c.best_feasible_cost(budget_usd) for c in self.curves[name]])

    def violations(self, name: str, budget_usd: np.ndarray) -> np.ndarray:
        """V of all runs of a method: runs x budgets."""
        return np.stack([curve.violation(budget_usd) for curve in self.curves[name]])

    def violates(self, name: str) -> bool:
        """Whether a run of a method had an infeasible theta_out for a part of the budget."""
        return bool((self.violations(name, self.smooth) > 0).any())

    @property
    def violated(self) -> bool:
        """Whether any run of any method had."""
        return any(self.violates(name) for name in self.curves)

    @property
    def smooth(self) -> np.ndarray:
        """Budgets in USD, from 0 to the largest, for curves that are no step functions."""
        return np.linspace(0, self.budget_usd, _POINTS)

    def jumps(self, name: str) -> np.ndarray:
        """Budgets in USD at which a c_bf of a method changes, and the largest."""
        found = np.unique(np.concatenate([curve.budget_usd for curve in self.curves[name]]))
        return np.append(found[found < self.budget_usd], self.budget_usd)

    @property
    def span(self) -> tuple[float, float]:
        """Least and largest finite value on the axis of c_bf, with its lines."""
        lines = [self.reference_cost_usd, self.optimal_cost_usd or self.reference_cost_usd]
        curves = [self.costs(name, self.jumps(name)).ravel() for name in self.curves]
        published = [costs for name, (_, costs) in self.paper.items() if name in self.curves]
        values = np.concatenate(
            [*curves, *(self.scale * np.asarray(y) for y in [lines, *published])]
        )
        values = values[np.isfinite(values)]
        return float(values.min()), float(values.max())
