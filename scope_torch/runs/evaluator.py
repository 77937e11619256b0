"""The interface of evaluators: they run configurations on queries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from scope_torch.constraints import Constraint
from scope_torch.observation import Observation, Request


class Evaluator(Protocol):
    """Runs configurations on queries.

    `concurrency` is the number of requests in flight at a time. An evaluator whose observations
    cost nothing to repeat has an attribute `free = True`. The journal then writes many observations
    at once; all others are on disk before the search goes on.
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
        """The average outcome of each constraint by flat index, in its unit and with its cap.

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
        """A text for each query, equal for equal queries; None if they are not plain data."""
        ...


@runtime_checkable
class HasPrices(Protocol):
    """An evaluator whose costs are tokens times prices, for `continue_from`."""

    def describe_prices(self) -> Mapping[str, Mapping[str, Any]] | None:
        """By LLM USD per million tokens, see `PriceList.describe`; None if costs are given."""
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


def keys_of(queries: Iterable[Any]) -> list[str] | None:
    """16 hex digits for the content of each query; see `HasQueryKeys`.

    Args:
        queries: Plain data, as JSON knows it; else the keys are None.

    Examples:
        >>> keys_of([("2 + 2?", "4"), ("2 + 2?", "4")]) == ["0958482cce40dfb9"] * 2
        True
    """
    try:
        texts = [json.dumps(query, sort_keys=True) for query in queries]
    except (TypeError, ValueError):
        return None
    return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
