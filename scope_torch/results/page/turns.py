"""The candidates of a search: the cost and the outcome of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scope_torch.search.optimizer import TraceRow


@dataclass(frozen=True)
class CandidateTurn:
    """The turn of one configuration as the candidate.

    Args:
        number: Number of the turn, from 1.
        theta: Codes of the configuration.
        first: The row of the trace in which it was selected.
        last: The last row of this turn.
        num_queries: Queries observed in this turn.
        spend_usd: Spend of the search in USD at the end of the turn, or so far.
        improved: Whether in this turn it became theta_out, or, as theta_out, its cost bound fell.
        outcome: `pruned: quality`, `pruned: cost`, `pruned`, `completed`, `in progress`, or
            `cut short` by the end of the search.
    """

    number: int
    theta: tuple[int, ...]
    first: TraceRow
    last: TraceRow
    num_queries: int
    spend_usd: float
    improved: bool
    outcome: str


def candidates(
    rows: Sequence[TraceRow],
    num_queries: int,
    seen: tuple[int, float],
    is_open: bool,
    overlap: bool = False,
) -> list[CandidateTurn]:
    """All turns of candidates, in order.

    Args:
        rows: The trace.
        num_queries: Q.
        seen: Number of all observations, and their cost in USD: the last turn may have gone on.
        is_open: Whether the search goes on.
        overlap: Whether several are open at once, see `InFlight`.
    """
    if overlap:
        return _overlapping(rows, num_queries, seen[1], "in progress" if is_open else "cut short")
    turns, has_open_turn = _turns(rows, num_queries)
    found = [_candidate(number, turn) for number, turn in enumerate(turns, start=1)]
    if found and has_open_turn:
        in_turn = max(seen[0] - found[-1].first.t, found[-1].num_queries)
        found[-1] = replace(
            found[-1],
            outcome="in progress" if is_open else "cut short",
            num_queries=min(in_turn, num_queries),
            spend_usd=max(seen[1], found[-1].last.spend_usd),
        )
    return found


def _turns(rows: Sequence[TraceRow], num_queries: int) -> tuple[list[list[TraceRow]], bool]:
    """The rows of each turn, and whether the last turn has not ended."""
    turns: list[list[TraceRow]] = []
    is_open = False
    for row in rows:
        if row.theta_cand is None:
            continue
        if not is_open or row.event == "selected" or turns[-1][0].theta_cand != row.theta_cand:
            turns.append([])
        turns[-1].append(row)
        is_open = not _ends(row, num_queries)
    return turns, is_open


def _overlapping(
    rows: Sequence[TraceRow], num_queries: int, spend_usd: float, open_is: str
) -> list[CandidateTurn]:
    """Turns by their first rows; of those that have not ended, the trace says no more."""
    turns: list[list[TraceRow]] = []
    open_turns: dict[tuple[int, ...], int] = {}
    for row in rows:
        if row.theta_cand is None:
            continue
        if row.event == "selected" or row.theta_cand not in open_turns:
            open_turns[row.theta_cand] = len(turns)
            turns.append([])
        turns[open_turns[row.theta_cand]].append(row)
        if _ends(row, num_queries):
            del open_turns[row.theta_cand]
    found = [_candidate(number, turn) for number, turn in enumerate(turns, start=1)]
    for at in open_turns.values():
        found[at] = replace(found[at], outcome=open_is, spend_usd=spend_usd)
    return found


def _ends(row: TraceRow, num_queries: int) -> bool:
    """Whether a row ends the turn of its candidate.

    A method that compares averages over all queries writes `improved` last.
    """
    if row.event == "improved":
        return row.upper_c_usd is None and row.num_queries == num_queries
    return row.event in ("pruned", "completed")


def _candidate(number: int, rows: Sequence[TraceRow]) -> CandidateTurn:
    first, last = rows[0], rows[-1]
    assert first.theta_cand is not None
    return CandidateTurn(
        number=number,
        theta=first.theta_cand,
        first=first,
        last=last,
        num_queries=last.num_queries or 0,
        spend_usd=last.spend_usd,
        improved=any(row.event == "improved" for row in rows),
        outcome=_outcome(last),
    )


def _outcome(last: TraceRow) -> str:
    if last.event != "pruned":
        return "completed"
    return "pruned" if last.excluded is None else f"pruned: {last.excluded}"
