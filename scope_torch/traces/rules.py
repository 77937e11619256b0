"""How traces are read: what names a module and a query, and which score is the quality."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scope_torch.errors import InputError
from scope_torch.llm.price_list import PriceList

NameOf = Literal["nearest", "top", "own"]


@dataclass(frozen=True)
class TraceRules:
    """How traces become modules and queries.

    Args:
        name_of: The span that names the module of a call: `nearest`, see
            `scope_torch.traces.summary`; `top`, the span below the root; `own`, the call's own.
        module_attribute: The attribute that names the module instead, of the call or of the
            nearest span around it that has it.
        query_attribute: The attribute that names the query; None for the trace's identifier.
            Several traces of one query count as one, with their averages.
        score: Name of the score that is the quality; None if there is only one name.
        score_attribute: The attribute that is the quality instead.
        score_range: The scores that mean quality 0 and quality 1.
        most_frequent: Whether to leave out traces where a module ran another LLM than usual.
        reprice: Whether to price all tokens by the price list, whatever cost is recorded.
        prices: The price list; None for the published prices of today.
        needs_cost: Whether to leave out traces with a call that tells neither tokens nor a cost.

    Raises:
        InputError: If the range of the scores is none.
    """

    name_of: NameOf = "nearest"
    module_attribute: str | None = None
    query_attribute: str | None = None
    score: str | None = None
    score_attribute: str | None = None
    score_range: tuple[float, float] = (0.0, 1.0)
    most_frequent: bool = False
    reprice: bool = False
    prices: PriceList | None = None
    needs_cost: bool = True

    def __post_init__(self) -> None:
        low, high = self.score_range
        if not 0 < high - low < math.inf:
            why = "both must be finite, and the first must be below the second"
            raise InputError(f"--score-range {low:g} {high:g}: {why}")
