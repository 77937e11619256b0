"""Latency and output tokens of simulated systems.

A call takes the time to the first token of its LLM, then its output tokens over the LLM's speed.
The modules run one after another, even where the graph branches, so a run takes the sum.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

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


def mean_outcomes(world: World) -> dict[str, Tensor]:
    """Averages over the queries by flat index: `|Theta|` each (float64, CPU).

    Raises:
        InputError: If the price list lacks the speed of an LLM.
    """
    means = expected_outcomes(world, world.grid_codes(), world.mean_output_tokens())
    return {name: mean.reshape(-1).cpu() for name, mean in means.items()}


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
