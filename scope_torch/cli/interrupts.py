"""Ctrl-C in a search: the first stops it cleanly, the second ends the process at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Generator
from pathlib import Path
from types import FrameType

from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.runs.callbacks import Callback
from scope_torch.search.optimizer import Described, TraceRow


@contextlib.contextmanager
def second_interrupt_ends() -> Generator[None, None, None]:
    """A context in which the first Ctrl-C raises KeyboardInterrupt and the second ends the process.

    Ending at once loses nothing: every observation is on disk before it is used.
    """

    def first(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, second)
        raise KeyboardInterrupt

    def second(_number: int, _frame: FrameType | None) -> None:
        os.write(2, b"scope-torch: stopped at once; the same command goes on\n")
        os._exit(130)

    before = signal.getsignal(signal.SIGINT)
    here = threading.current_thread() is threading.main_thread()
    if not here or before is not signal.default_int_handler:  # another handler is in charge
        yield
        return
    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        # After a first Ctrl-C `second` stays: at its end Python may still wait for threads.
        if signal.getsignal(signal.SIGINT) is first:
            signal.signal(signal.SIGINT, before)


class InterruptedSummary(Callback):
    """Prints where an interrupted search stands.

    Args:
        run_dir: Directory of the run.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._num_observations, self._spend_usd, self._budget_usd = 0, 0.0, 0.0
        self._problem: SelectionProblem | None = None
        self._theta_out: tuple[int, ...] = ()
        self._method = ""

    def start(self, problem: SelectionProblem, optimizer: Described, budget_usd: float) -> None:
        """Keeps the names for the summary."""
        self._problem, self._method, self._budget_usd = problem, optimizer.name, budget_usd
        self._theta_out = problem.theta_ref

    def changed(self, row: TraceRow) -> None:
        """Keeps the latest theta_out."""
        self._theta_out = row.theta_out

    def observed(self, observation: Observation, spend_usd: float) -> None:
        """Counts observations and money."""
        self._num_observations += 1
        self._spend_usd = spend_usd

    def close(self, error: BaseException | None) -> None:
        """Prints the summary if Ctrl-C ended the search."""
        problem = self._problem
        if problem is None or not isinstance(error, KeyboardInterrupt):
            return
        llms = ", ".join(f"{m}: {llm}" for m, llm in problem.names(self._theta_out).items())
        print(
            f"{problem.name} {self._method}, interrupted: {llms}\n  spent {self._spend_usd:.3g} "
            f"of {self._budget_usd:.3g} USD on {self._num_observations} observations"
            f"\n  {self._run_dir}"
        )
