"""The interface of evaluators: they run configurations on queries."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from scope_torch.constraints import Constraint
from scope_torch.errors import InputError
from scope_torch.observation import Observation, Request
from scope_torch.runs.content import Unknowable, digest_of
from scope_torch.runs.identity import text_of

if TYPE_CHECKING:  # seconds, in each worker that runs an application
    from torch import Tensor

GRADED = ", graded by "  # in a fingerprint, before the identity of the metric


class Evaluator(Protocol):
    """Runs configurations on queries.

    `concurrency` is the number of requests in flight at a time. An evaluator whose observations
    cost nothing to repeat has an attribute `free = True`. The journal then writes many observations
    at once; all others are on disk before the search goes on. One that knows what answers have cost
    before the run may have `most_usd`, the most of one in USD: at its end, the budget must pay for
    as much for each call in flight.
    """

    concurrency: int

    def evaluate(self, requests: Iterable[Request]) -> Iterable[Observation]:
        """Observes every request exactly once, in any order.

        Take a request only when there is room for it: the runner ends `requests` when the budget is
        spent, and requests taken before that are paid for beyond the budget. Yield every
        observation at once: observations that were yielded are in the journal and not paid for
        again, even if a later request fails. `scope_torch.evaluators.window` does both for you.
        """
        ...

    def fingerprint(self) -> str:
        """Identifies the system and its queries; a journal is only resumed if it is the same."""
        ...


@runtime_checkable
class HasTruth(Protocol):
    """An evaluator that knows the true averages, for metrics only: never shown to optimizers."""

    def truth(self) -> tuple[Tensor, Tensor]:
        """c(theta) in USD and s(theta) in [0, 1] by flat index: two `|Theta|` float64 tensors."""
        ...


@runtime_checkable
class HasTrueOutcomes(Protocol):
    """An evaluator that also knows the true averages of other outcomes; see `HasTruth`."""

    def true_outcomes(self, limits: Sequence[Constraint]) -> Sequence[Tensor]:
        """The average of what counts for each constraint by flat index.

        See `Constraint.counted_all`.

        Args:
            limits: Constraints on other outcomes than quality.

        Returns:
            `|Theta|` float64 values for each.
        """
        ...

    def average_outcome(self, theta: Sequence[int], limit: Constraint) -> float:
        """That of one configuration, given as codes."""
        ...


@runtime_checkable
class HasQueryKeys(Protocol):
    """An evaluator that knows its queries by their content, for `continue_from`."""

    def query_keys(self) -> list[str] | None:
        """A text for each query, equal for equal queries; None if they are not known.

        Raises:
            InputError: If the content of a query cannot be told.
        """
        ...


@runtime_checkable
class HasPast(Protocol):
    """An evaluator whose fingerprint says more than it did in an earlier version."""

    def earlier_fingerprints(self) -> list[str]:
        """What earlier versions called the same evaluator; a journal of theirs is resumed."""
        ...


@runtime_checkable
class Regrades(Protocol):
    """An evaluator that keeps outputs, and can grade one anew without a call."""

    def outputs_of(self, run_dir: Path) -> Mapping[tuple[tuple[str, ...], int], Any]:
        """Outputs that a run has kept just as they were, by LLMs and number in its data set."""
        ...

    def regraded(self, request: Request, output: Any) -> tuple[float | None, float]:
        """The grade of an output, for a query of today, or None; and what it has cost in USD."""
        ...

    def adopt(self, llms: Sequence[str], query: int, output: Any) -> None:
        """Keeps an output of an earlier run, for a query of today."""
        ...


@runtime_checkable
class HasPrices(Protocol):
    """An evaluator whose costs are tokens times prices, for `continue_from`."""

    def describe_prices(self) -> Mapping[str, Mapping[str, Any]] | None:
        """By LLM USD per million tokens, see `PriceList.describe`; None if costs are given."""
        ...


@runtime_checkable
class LosesCalls(Protocol):
    """An evaluator whose calls may be lost with the process or the machine that makes them."""

    def take_lost(self) -> list[Observation]:
        """Calls that were lost since this was last asked, see `Observation.lost`."""
        ...


@runtime_checkable
class KeepsAnswers(Protocol):
    """An evaluator that, if `deterministic` is True, answers a repeated pair without a call."""

    deterministic: bool

    def remember(self, observations: Iterable[Observation]) -> None:
        """Takes in the journal of a search that is resumed."""
        ...

    def repeats(self, observations: Iterable[Observation]) -> list[Observation]:
        """Those of a run, in the asked order, that needed no call; for `result.json`."""
        ...


def kept_answers(
    evaluator: Evaluator, observations: Iterable[Observation]
) -> list[Observation] | None:
    """Those of a run, in the asked order, that needed no call; None if no answers are kept."""
    if isinstance(evaluator, KeepsAnswers) and evaluator.deterministic:
        return evaluator.repeats(observations)
    return None


def keys_of(queries: Iterable[Any]) -> list[str]:
    """16 hex digits for the content of each query; see `HasQueryKeys`.

    Raises:
        InputError: If a query has a part whose content cannot be told, see `text_of`.

    Examples:
        >>> keys_of([("2 + 2?", "4"), ("2 + 2?", "4")]) == ["0958482cce40dfb9"] * 2
        True
    """
    keys: list[str] = []
    for number, query in enumerate(queries):
        try:
            keys.append(digest_of(text_of(query)))
        except Unknowable as error:
            raise InputError(
                f"query {number}, {reprlib.repr(query)}, has {error} in it: a later process cannot "
                "tell whether it is the same, which run_dir and continue_from need; give plain "
                "data, dataclasses, bytes or paths of files, or leave these arguments out"
            ) from None
    return keys
