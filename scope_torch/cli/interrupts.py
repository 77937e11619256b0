"""Signals that stop a search: the first stops it cleanly, the second ends the process at once."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import FrameType

from scope_torch.cli.saying import say
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.runs.callbacks import Callback
from scope_torch.search.optimizer import Described, TraceRow

# Ctrl-C, `kill` and Slurm, a closed terminal (not on Windows): with Python's own handlers.
_STOPPING = {
    number: own
    for name, own in (
        ("SIGINT", signal.default_int_handler),
        ("SIGTERM", signal.SIG_DFL),
        ("SIGHUP", signal.SIG_DFL),
    )
    if (number := getattr(signal, name, None)) is not None
}


@contextlib.contextmanager
def second_interrupt_ends() -> Generator[None, None, None]:
    """A context in which the first signal raises KeyboardInterrupt and the second ends the process.

    The signals are SIGINT, SIGTERM and SIGHUP, each unless it is ignored (as `nohup` does) or has a
    handler of the user. The exit status is 128 plus the number of the signal. Ending at once loses
    nothing: every observation is on disk before it is used.

    Examples:
        >>> with second_interrupt_ends():
        ...     pass  # here: a search
    """
    received: list[int] = []

    def first(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        for handled in ours:
            signal.signal(handled, second)
        _leave_lost_terminal()
        raise KeyboardInterrupt

    def second(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(2, b"scope-torch: stopped at once; the same command goes on\n")
        os._exit(128 + number)

    here = threading.current_thread() is threading.main_thread()
    ours = [n for n, own in _STOPPING.items() if here and signal.getsignal(n) is own]
    for number in ours:
        signal.signal(number, first)
    try:
        yield
    except SystemExit as stop:
        if received and stop.code == 130:
            sys.exit(128 + received[0])
        raise
    finally:
        # After a first signal `second` stays: at its end Python may still wait for threads.
        for number in ours:
            if signal.getsignal(number) is first:
                signal.signal(number, _STOPPING[number])


def _leave_lost_terminal() -> None:
    """Sends output nowhere if its terminal was closed; to write there would be an error."""
    for fileno in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(fileno).st_mode) and not os.isatty(fileno):
                os.dup2(os.open(os.devnull, os.O_WRONLY), fileno)


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
        """Prints the summary if a signal ended the search."""
        problem = self._problem
        if problem is None or not isinstance(error, KeyboardInterrupt):
            return
        llms = ", ".join(f"{m}: {llm}" for m, llm in problem.names(self._theta_out).items())
        say(
            f"{problem.name} {self._method}, interrupted: {llms}\n  spent {self._spend_usd:.3g} "
            f"of {self._budget_usd:.3g} USD on {self._num_observations} observations"
            f"\n  {self._run_dir}"
        )
