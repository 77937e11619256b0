"""The decision page of a run's directory."""

from __future__ import annotations

from datetime import datetime

from scope_torch.results.page.page import page_of, view_of_result
from scope_torch.results.page.view import Pace
from scope_torch.results.result import RunResult
from scope_torch.runs.recorded import RecordedRun
from scope_torch.watch.reading import result_of_run, view_of


def page(
    run: RecordedRun, now: datetime, refresh_s: float | None = None, pace: Pace | None = None
) -> str:
    """The HTML page of a run, finished or not.

    Args:
        run: From `read_run`.
        now: When the run was read, shown on the page.
        refresh_s: Seconds after which a browser loads the page again; None for never.
        pace: How fast the search goes on; None if that is not known.
    """
    return page_of(view_of(run, now, refresh_s=refresh_s, pace=pace))


def page_and_result(run: RunResult | RecordedRun) -> tuple[str, RunResult]:
    """The page of a run that has ended, and its result: what trackers log.

    Args:
        run: As `Callback.end` gets it: from the search itself, or from a directory.
    """
    if isinstance(run, RunResult):
        return page_of(view_of_result(run, run.truth)), run
    return page(run, datetime.now()), result_of_run(run)
