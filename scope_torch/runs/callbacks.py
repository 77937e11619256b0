"""The interface of trackers, progress bars and plots: a run calls their methods."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.results.metrics import OracleCurve
from scope_torch.search.optimizer import Described, TraceRow

logger = logging.getLogger(__name__)


class Outcome(Protocol):
    """A finished run as callbacks see it: a `RunResult`, or a run read from its directory."""

    @property
    def run_dir(self) -> Path | None:
        """The directory with its files; None if it has none."""
        ...

    @property
    def curve(self) -> OracleCurve | None:
        """True cost and quality of theta_out against the budget; None if unknown."""
        ...

    def summary(self) -> dict[str, Any]:
        """Content of `result.json`."""
        ...


def files_of(run_dir: Path | None) -> list[Path]:
    """The files of a run that trackers send: not its journal, and nothing that a link leads to."""
    names = ("settings.json", "result.json", "trace.csv", "curves.png")
    paths = [] if run_dir is None else [run_dir / name for name in names]
    return [path for path in paths if path.exists() and not path.is_symlink()]


class Callback:
    """Methods that a run, or the replay of a recorded run, calls at its events.

    The methods do nothing here; override those that you need.

    Examples:
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> class Printer(Callback):
        ...     def observed(self, observation, spend_usd):
        ...         self.spend_usd = spend_usd
        ...     def end(self, result):
        ...         print(f"{result.summary()['basis']} after {self.spend_usd:.2f} USD")
        >>> problem, evaluator, _ = synthetic_task(num_queries=20)
        >>> optimizer = make_scope(problem, base="nano", seed=0)
        >>> _ = run(problem, optimizer, evaluator, budget_usd=0.1, callbacks=[Printer()])
        accepted (tuned) after 0.10 USD
    """

    def check(self, problem: SelectionProblem) -> None:
        """Called before anything is paid, also before a reference is measured, where it has to be.

        Raises:
            InputError: If the callback could not do its work: better now than later.
        """

    def start(self, problem: SelectionProblem, optimizer: Described, budget_usd: float) -> None:
        """Called before the first observation."""

    def observed(self, observation: Observation, spend_usd: float) -> None:
        """Called after each observation in the asked order, also when it comes from the journal.

        Args:
            observation: The observation.
            spend_usd: What was paid for all observations so far, this one included, in USD.
        """

    def changed(self, row: TraceRow) -> None:
        """Called for each new row of the trace."""

    def end(self, result: Outcome) -> None:
        """Called when the run is complete and its files are written."""

    def close(self, error: BaseException | None) -> None:
        """Always called, as the last method.

        Args:
            error: The exception that ended the run early; None if there was none.
        """


@contextmanager
def keeping_the_result(
    callback: Callback, run_dir: Path | None, ended_by: BaseException | None = None
) -> Generator[None, None, None]:
    """An error of a callback once the search has ended loses no result that is in no directory.

    Nor does it hide what ended the search: after a hidden Ctrl-C a sweep would begin its next job.
    """
    try:
        yield
    except Exception:
        name = type(callback).__name__
        if ended_by is not None:
            logger.exception("%s failed after %s", name, type(ended_by).__name__)
        elif run_dir is not None:
            raise
        else:
            logger.exception("%s failed at the end; the result stands", name)


def closer(
    callback: Callback, run_dir: Path | None
) -> Callable[[Any, BaseException | None, Any], None]:
    """Closes a callback at the exit of a context."""

    def close(_: Any, error: BaseException | None, __: Any) -> None:
        with keeping_the_result(callback, run_dir, error):
            callback.close(error)

    return close
