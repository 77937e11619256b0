"""Abilities of LLMs, and counters of the random numbers of simulated worlds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from torch import Tensor

from scope_torch.errors import InputError
from scope_torch.evaluators.simulation.spec import WorldSpec
from scope_torch.llm.prices import LLMInfo

TEST_QUERIES = 1_000_000  # counter of the first held-out query


def abilities(llms: Sequence[LLMInfo]) -> list[float]:
    """General ability of each LLM: the mean of its standardised public scores.

    An LLM without a score gets the lowest ability of the others; if no LLM has a score, all get 0.
    """
    scores = [[llm.mmlu_pro for llm in llms], [llm.gpqa for llm in llms]]
    standardised: list[list[float]] = [[] for _ in llms]
    for column in scores:
        known = [value for value in column if value is not None] or [0.0]
        mean, spread = statistics.fmean(known), statistics.pstdev(known) or 1.0
        for values, score in zip(standardised, column, strict=True):
            if score is not None:
                values.append((score - mean) / spread)
    least = min((statistics.fmean(values) for values in standardised if values), default=0.0)
    return [statistics.fmean(values) if values else least for values in standardised]


def check_counters(spec: WorldSpec, num_llms: int) -> None:
    """Raises InputError if two random numbers would share a counter."""
    limits = {
        "LLMs in the price list": (num_llms, 1 << 6),
        "modules": (len(spec.modules), 7),
        "queries": (spec.num_queries, TEST_QUERIES),
        "held-out queries": (spec.num_test_queries, (1 << 20) - TEST_QUERIES),
    }
    for name, (count, limit) in limits.items():
        if not 1 <= count <= limit:
            raise InputError(f"{count} {name} in a simulated task; there can be 1 to {limit}")


def counter_of(llm: Tensor, module: int, query: Tensor | int = 0) -> Tensor:
    """A different number for every LLM, module and query."""
    return llm + (module << 6) + (query << 10 if isinstance(query, int) else query * 1024)
