"""The decision page of a run's directory."""

from __future__ import annotations

from datetime import datetime

from scope_torch.runs.page.page import page_of
from scope_torch.runs.page.view import Pace
from scope_torch.runs.recorded import RecordedRun
from scope_torch.watch.reading import view_of


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
