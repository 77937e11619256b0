"""A progress bar over the budget."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.runs.callbacks import Callback
from scope_torch.search.optimizer import Described, TraceRow
from scope_torch.tracking.heard import HEARD

# The time left is until the budget is spent: a search may end before.
_FORMAT = (
    "{desc}: {percentage:3.0f}%|{bar}| {n:.3g}/{total:.3g} USD "
    "[{elapsed}, at most {remaining} left{postfix}]"
)


class ProgressBar(Callback):
    """Shows spend, calls, theta_out and gap on standard error, if that is a terminal."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._problem: SelectionProblem | None = None
        self._num_calls, self._choice = 0, ""

    def start(self, problem: SelectionProblem, optimizer: Described, budget_usd: float) -> None:
        """Shows the bar, if standard error is a terminal."""
        if not HEARD.isatty():
            return
        self._problem = problem
        self._bar = tqdm(
            total=budget_usd,
            desc=f"{problem.name} {optimizer.name}",
            bar_format=_FORMAT,
            file=HEARD,
        )

    def observed(self, observation: Observation, spend_usd: float) -> None:
        """Moves the bar to the spend, and counts the call."""
        self._num_calls += 1
        if self._bar is not None:
            calls = f"{self._num_calls} calls{self._choice}"
            self._bar.set_postfix_str(calls, refresh=False)
            self._bar.update(min(spend_usd, self._bar.total) - self._bar.n)

    def changed(self, row: TraceRow) -> None:
        """Takes in theta_out and its gap, to be shown with the next call."""
        if self._bar is None or self._problem is None:
            return
        llms = ", ".join(self._problem.names(row.theta_out).values())
        gap = "?" if row.gap_usd is None else f"{row.gap_usd:.2g}"
        unit = "quality" if self._problem.objective == "quality" else "USD/query"
        self._choice = f"; {llms}; gap {gap} {unit}"

    def close(self, error: BaseException | None) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.close()
