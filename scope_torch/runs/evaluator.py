"""What the runner asks of an evaluator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from torch import Tensor

from scope_torch.observation import Observation, Request


class Evaluator(Protocol):
    """Runs configurations on queries.

    `concurrency` is how many requests it works on at a time. One whose observations cost nothing
    to make again has an attribute `free = True`: they are written to the journal some at a time,
    where all others are on disk before the search goes on.
    """

    concurrency: int

    def evaluate(self, requests: Iterable[Request]) -> Iterable[Observation]:
        """Observes every request, each exactly once, in any order.

        Take a request only when there is room for it: the runner ends `requests` when the budget is
        spent, and what has been taken by then is paid for beyond it. Yield an observation as soon
        as it is there: what has been yielded is journaled and not paid for again, even if a later
        request fails. See `scope_torch.evaluators.window`.
        """
        ...

    def fingerprint(self) -> str:
        """Identifies what is evaluated; a journal is only resumed with the same."""
        ...


@runtime_checkable
class HasTruth(Protocol):
    """An evaluator that knows the true averages, for metrics only: never shown to optimizers."""

    def truth(self) -> tuple[Tensor, Tensor]:
        """c(theta) in USD and s(theta) in [0, 1] by flat index: two `|Theta|` float64 tensors."""
        ...
