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
        "modules": (len(spec.modules), 8),
        "LLMs in the price list": (num_llms, 1 << bits_of_llm(len(spec.modules))),
        "queries": (spec.num_queries, TEST_QUERIES),
        "held-out queries": (spec.num_test_queries, (1 << 20) - TEST_QUERIES),
    }
    for name, (count, limit) in limits.items():
        if not 1 <= count <= limit:
            raise InputError(f"{count} {name} in a simulated task; there can be 1 to {limit}")


def bits_of_llm(num_modules: int) -> int:
    """Bits of an LLM's number in `key_of`: 20 are for the query, and there are 63."""
    return 6 if num_modules <= 7 else 5


def key_of(llms: Sequence[Tensor], query: Tensor) -> Tensor:
    """A different number for every configuration and query.

    Args:
        llms: For each module, positions in the price list.
        query: Counters of the queries.
    """
    bits = bits_of_llm(len(llms))
    for i, llm in enumerate(llms):
        query = query + (llm << (20 + bits * i))
    return query


def counter_of(llm: Tensor, module: int, query: Tensor | int = 0) -> Tensor:
    """A different number for every LLM, module and query."""
    return llm + (module << 6) + (query << 10 if isinstance(query, int) else query * 1024)
