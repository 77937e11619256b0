"""Choice and reference on queries that the search has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scope_torch.observation import Observation


@dataclass(frozen=True)
class HeldOut:
    """What theta_out and theta_0 did on held-out queries.

    Args:
        num_queries: How many there are.
        choice: The observations of theta_out, one for each query, in their order.
        reference: Those of theta_0.
    """

    num_queries: int
    choice: Sequence[Observation]
    reference: Sequence[Observation]
