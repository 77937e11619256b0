"""A progress bar over the budget."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.runs.callbacks import Callback
from scope_torch.search.optimizer import Described, TraceRow

_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n:.2f}/{total:.2f} USD [{elapsed}{postfix}]"


class ProgressBar(Callback):
    """Shows spend, theta_out and gap on standard error, if that is a terminal."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._problem: SelectionProblem | None = None

    def start(self, problem: SelectionProblem, optimizer: Described, budget_usd: float) -> None:
        """Shows the bar, if standard error is a terminal."""
        if not sys.stderr.isatty():
            return
        self._problem = problem
        self._bar = tqdm(
            total=budget_usd, desc=f"{problem.name} {optimizer.name}", bar_format=_FORMAT
        )

    def observed(self, observation: Observation, spend_usd: float) -> None:
        """Moves the bar to the spend."""
        if self._bar is not None:
            self._bar.update(min(spend_usd, self._bar.total) - self._bar.n)

    def changed(self, row: TraceRow) -> None:
        """Shows theta_out and its gap."""
        if self._bar is None or self._problem is None:
            return
        llms = ", ".join(self._problem.names(row.theta_out).values())
        gap = "?" if row.gap_usd is None else f"{row.gap_usd:.2g}"
        self._bar.set_postfix_str(f"{llms}; gap {gap} USD/query", refresh=False)

    def close(self, error: BaseException | None) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.close()
