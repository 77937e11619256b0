"""Latency and output tokens of simulated systems.

A call takes the time to the first token of its LLM, then its output tokens over the LLM's speed.
The modules run one after another, even where the graph branches, so a run takes the sum.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from scope_torch.constraints import Constraint
from scope_torch.errors import InputError
from scope_torch.evaluators.simulation.world import World
from scope_torch.llm.prices import LLMInfo


def expected_outcomes(
    world: World, codes: Sequence[Tensor], written: Sequence[Tensor]
) -> dict[str, Tensor]:
    """`latency_s` in seconds and `output_tokens` of a run, sums over its modules.

    Args:
        world: The simulated system.
        codes: N tensors of LLM codes, one for each module.
        written: Output tokens of each module, N tensors that broadcast with `codes`.

    Raises:
        InputError: If the price list lacks the speed of an LLM.
    """
    first, per_token = _seconds(world.llms).to(world.device)
    seconds = [first[c] + per_token[c] * w for c, w in zip(codes, written, strict=True)]
    return {"latency_s": _sum(seconds), "output_tokens": _sum(written)}


def mean_outcome(world: World, codes: Sequence[Tensor], limit: Constraint) -> Tensor:
    """The average over the queries of what counts for a constraint, see `Constraint.counted`.

    Args:
        world: The simulated system.
        codes: N tensors of LLM codes, one for each module, that broadcast with each other.
        limit: A constraint on `latency_s`, `output_tokens`, `cost_usd` or `quality`.

    Returns:
        Averages of the broadcast shape, in the unit of the outcome, or shares (float64).

    Raises:
        InputError: If the outcome is another, or the price list lacks the speed of an LLM.
    """
    total = torch.zeros(1, dtype=torch.float64, device=world.device)
    for query in torch.arange(world.num_queries, device=world.device):
        total = total + limit.counted_all(_outcome(world, codes, query, limit))
    return total / world.num_queries


def _outcome(world: World, codes: Sequence[Tensor], query: Tensor, limit: Constraint) -> Tensor:
    if limit.outcome == "cost_usd":
        return _sum(world.module_costs(codes, query))
    if limit.outcome == "quality":
        return world.quality(codes, query)
    named = expected_outcomes(world, codes, world.module_output_tokens(codes, query))
    if limit.outcome not in named:
        raise InputError(f"{limit}: simulated systems have cost_usd, quality and {list(named)}")
    return named[limit.outcome]


def speeds(llms: Sequence[LLMInfo]) -> list[tuple[float, float]]:
    """Seconds to the first token, and tokens per second, of each LLM.

    Raises:
        InputError: If the price list lacks one of them.
    """
    known: list[tuple[float, float]] = []
    for llm in llms:
        if llm.first_token_s is None or llm.tokens_per_s is None:
            raise InputError(
                f"the speed of {llm.name} is not known; give it first_token_s and tokens_per_s in "
                "the price list"
            )
        known.append((llm.first_token_s, llm.tokens_per_s))
    return known


def _seconds(llms: Sequence[LLMInfo]) -> Tensor:
    """Seconds to the first token, and of each further one: `2 x M` (float64)."""
    seconds = [(first, 1 / speed) for first, speed in speeds(llms)]
    return torch.tensor(seconds, dtype=torch.float64).T


def _sum(parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors that broadcast with each other."""
    return functools.reduce(torch.add, parts)
