"""What the decision page shows: a result, finished or not, and how its search goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from scope_torch.results.doubt import doubt_of
from scope_torch.results.words import Told
from scope_torch.search.optimizer import TraceRow

if TYPE_CHECKING:
    import polars

Status = Literal["running", "finished", "interrupted", "failed"]
Light = Literal["proven", "likely", "doubted", "keep"]


class Shown(Told, Protocol):
    """A result, as far as the page needs it: a `RunResult`."""

    @property
    def method(self) -> str:
        """Name of the method."""
        ...

    @property
    def choice(self) -> dict[str, str]:
        """theta_out."""
        ...

    @property
    def budget_usd(self) -> float:
        """Lambda, in USD."""
        ...

    @property
    def trace(self) -> Sequence[TraceRow]:
        """The changes in the search."""
        ...

    @property
    def call_seconds(self) -> float:
        """Seconds of all calls of the search, one after another."""
        ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything that decides the run."""
        ...

    def disagreements(self) -> polars.DataFrame:
        """Queries that choice and reference answered with different quality."""
        ...


class Pace(NamedTuple):
    """How fast a search goes on, since somebody looks at it.

    Attributes:
        calls_per_minute: Observations a minute.
        seconds_left: Until the budget is spent at this pace; infinite if it costs nothing.
    """

    calls_per_minute: float
    seconds_left: float


@dataclass(frozen=True)
class View:
    """A result and the state of its search.

    Args:
        result: A `RunResult`.
        status: Of the search.
        read_at: When the result was read.
        truths: `true_values` of theta_out at each row of the trace; None where they are unknown.
        optimum_usd: True cost of the best configuration in USD; None if it is unknown.
        error: What the last attempt raised, with its traceback; None if it did not fail.
        pace: How fast it goes on; None if that is not known.
        refresh_s: Seconds after which a browser loads the page again; None for never.
        path: Where the files of the run are; "" if there are none.
    """

    result: Shown
    status: Status
    read_at: datetime
    truths: Sequence[Sequence[float] | None] = ()
    optimum_usd: float | None = None
    error: str | None = None
    pace: Pace | None = None
    refresh_s: float | None = None
    path: str = ""

    @property
    def light(self) -> Light:
        """Whether the choice is proven to be good enough, and nothing speaks against it."""
        if doubt_of(self.result):
            return "doubted"
        if self.result.recommendation.theta == self.result.problem.theta_ref:
            return "keep"
        return "proven" if self.result.certified else "likely"

    @property
    def is_open(self) -> bool:
        """Whether the search has not come to its end."""
        return self.status != "finished"
