"""What watches a run: trackers, progress bars, plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.runs.metrics import OracleCurve
from scope_torch.search.optimizer import Described, TraceRow


class Outcome(Protocol):
    """What a callback is told of a finished run: `RunResult`, or one read from its directory."""

    @property
    def run_dir(self) -> Path | None:
        """Where its files are."""
        ...

    @property
    def curve(self) -> OracleCurve | None:
        """True cost and quality along the run, if known."""
        ...

    def summary(self) -> dict[str, Any]:
        """Content of result.json."""
        ...


class Callback:
    """Watches a run, or one that is told again; the methods do nothing unless overridden."""

    def start(self, problem: SelectionProblem, optimizer: Described, budget_usd: float) -> None:
        """Before the first observation."""

    def observed(self, observation: Observation, spend_usd: float) -> None:
        """After each observation, in the asked order, replayed ones included."""

    def changed(self, row: TraceRow) -> None:
        """For each row of the trace."""

    def end(self, result: Outcome) -> None:
        """When the run is complete and its files are written."""

    def close(self, error: BaseException | None) -> None:
        """Always, last; `error` is what ended the run early, if anything did."""
