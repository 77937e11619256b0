"""Whether the last calls of a search were worth the time that they took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from scope_torch.results.digits import plain
from scope_torch.results.words import Told
from scope_torch.search.optimizer import TraceRow

MINUTE_USD = 1.0  # what a minute of anyone's time is worth, at 60 USD an hour
_MOST_CALLS = 1_000  # that nobody wonders about


class Searched(Told, Protocol):
    """A result, as far as this needs it: a `RunResult`."""

    @property
    def trace(self) -> Sequence[TraceRow]:
        """How the search went."""
        ...


def in_vain(result: Searched) -> str:
    """How many of the last calls have saved less than a minute is worth; "" if they are few.

    What they saved: the cost of theta_out before them less that of the final one, by their answers,
    times the queries that the system will answer (`deployment_queries`).
    """
    H, rows, out = result.report.get("deployment_queries"), result.trace, result.recommendation
    final = result.evidence.cost_usd(out.theta).value
    if H is None or final is None or result.problem.objective != "cost" or not rows:
        return ""
    begin, before = 0, result.problem.theta_ref  # until the first row
    for row in rows:
        usd = result.evidence.cost_usd(before).value
        if usd is None or (usd - final) * H >= MINUTE_USD:
            begin = row.t
        before = row.theta_out
    last, total = rows[-1].t - begin, rows[-1].t
    if last < max(_MOST_CALLS, total / 2):
        return ""
    return (
        f"; the last {last:,} of {total:,} calls saved less than {plain(MINUTE_USD)} USD in "
        f"{H:,.0f} queries: hour_usd= counts what waiting costs"
    )
