"""Where observations come from: recorded tables and callables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from scope_torch.history import Observation, Request


class Evaluator(Protocol):
    """Runs configurations on queries.

    `concurrency` is how many requests it can work on at a time; the runner never hands it more,
    so that no more than these are paid for beyond the end of the budget.
    """

    concurrency: int

    def evaluate(self, requests: Sequence[Request]) -> Iterable[Observation]:
        """Observes every request, each exactly once, in any order.

        Yield an observation as soon as it is there: what has been yielded is journaled and not
        paid for again, even if a later request fails.
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
