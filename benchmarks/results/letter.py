"""The paper's method to the letter: how wide its bounds are, and what makes them wide.

| variant | |
| --- | --- |
| `scope_letter` | alg:scope-main with eq:beta-def, R = 1e-3 as in sec:exp |
| R = 0 | without the noise term of eq:beta-def: calls are always answered the same |
| floor | u_out begins at c(theta_0) at least, as in `scope` |
| `scope` | this project's rules for the half-widths |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.results.runs import Cell, measured_values, searched
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.tasks import Task

_NO_NOISE = ("method=scope_letter", "method.bounds.R_c=0", "method.bounds.R_g=0")
VARIANTS = {
    "scope_letter": ("method=scope_letter",),
    "scope_letter, floor": ("method=scope_letter", "method.u_out_floor=true"),
    "scope_letter, R = 0": _NO_NOISE,
    "scope_letter, R = 0, floor": (*_NO_NOISE, "method.u_out_floor=true"),
    "scope": ("method=scope",),
}
_OF_RUN = (
    "budget_usd",
    "c_0",
    "c_star",
    "c_bf_100",
    "V",
    "infeasible",
    "candidates",
    "pruned_early",
)


class LetterCell(Cell):
    """One search, with the half-widths of its bounds."""

    def measured(self) -> dict[str, Any]:
        """Half-widths at the end in units of quality, U_out and i at the start, and the outcome."""
        cfg = compose(self.settings)
        task: Task = build(cfg.task)
        result = searched(self, cfg, task)
        of_run, report = measured_values(task, result), result.report
        first = next(row.iteration for row in result.trace if row.event == "selected")
        by_theory = report["mode"] == "theory"
        return {
            "b_g": report["b_g"],
            "noise_g": report["b_g"] - report["B_g"] if by_theory else None,
            "first_u_out": result.trace[0].u_out_usd,
            "first_i": first,
            **{column: of_run[column] for column in _OF_RUN},
        }


def cells(task: str, worlds: Iterable[int], seed: int) -> list[LetterCell]:
    """A run of every variant in each world."""
    return [
        LetterCell(task, name, seed, world, (f"task={task}", *overrides))
        for world in worlds
        for name, overrides in VARIANTS.items()
    ]
