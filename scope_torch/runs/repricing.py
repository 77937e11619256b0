"""Observations at the prices of another day."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scope_torch.observation import Observation

Prices = Mapping[str, Mapping[str, Any]]
_INPUT, _OUTPUT, _SECOND = _DECISIVE = "input_usd_per_mtok", "output_usd_per_mtok", "usd_per_s"


def repriced(
    observation: Observation, llms: Sequence[str], old: Prices | None, new: Prices
) -> Observation | None:
    """An observation at other prices.

    The cost of a module changes like the cost of its tokens; cached tokens keep their share of it.
    A module whose LLM costs what it did keeps its cost to the last digit. One that costs the
    seconds of a machine, `usd_per_s`, changes with their price.

    Args:
        observation: With the tokens of each module; without them it stays as it is.
        llms: The LLM of each module.
        old: USD per million tokens by LLM, see `PriceList.describe`; None if they are not known:
            the tokens are then priced without regard to caches.
        new: Likewise, of today.

    Returns:
        The observation; None if a module is paid by seconds now, and was not then: how many they
        were is not known.

    Examples:
        >>> one = Observation((0,), 0, cost_usd=0.002, quality=1.0, module_tokens=((1000, 0),))
        >>> old = {"m": {"input_usd_per_mtok": 2.0, "output_usd_per_mtok": 8.0}}
        >>> new = {"m": {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 8.0}}
        >>> repriced(one, ["m"], old, new).cost_usd
        0.001
    """
    tokens = observation.module_tokens
    if tokens is None or (observation.module_cost_usd is None and len(llms) > 1):
        return observation
    costs = observation.module_cost_usd or (observation.cost_usd,)
    changed: list[float] = []
    for usd, used, llm in zip(costs, tokens, llms, strict=True):
        today = _repriced(usd, used, (old or {}).get(llm), new[llm])
        if today is None:
            return None
        changed.append(today)
    if changed == list(costs):
        return observation
    # Attempts that failed are in the cost, in that of no module, and nobody counted their tokens.
    failed_usd = max(0.0, observation.cost_usd - math.fsum(costs))
    usd = math.fsum([*changed, failed_usd])
    return replace(observation, cost_usd=usd, module_cost_usd=tuple(changed))


def unpriced(observation: Observation) -> Observation:
    """Without what changes with the day of the prices; see `repriced`."""
    if observation.module_tokens is None:
        return observation
    return replace(observation, cost_usd=0.0, module_cost_usd=None)


def _repriced(
    usd: float, tokens: tuple[int, int], old: Mapping[str, Any] | None, new: Mapping[str, Any]
) -> float | None:
    if old is not None and all(old.get(name) == new.get(name) for name in _DECISIVE):
        return usd
    per_s, per_s_then = new.get(_SECOND), (old or {}).get(_SECOND)
    if per_s is not None:
        return usd * per_s / per_s_then if per_s_then else None
    today = _cost(tokens, new)
    before = 0.0 if old is None else _cost(tokens, old)  # 0, too, if it was paid by seconds
    return usd * today / before if before > 0 else today


def _cost(tokens: tuple[int, int], price: Mapping[str, Any]) -> float:
    return (tokens[0] * price[_INPUT] + tokens[1] * price[_OUTPUT]) / 1e6
