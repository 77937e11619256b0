"""Observations at the prices of another day."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scope_torch.observation import Observation

Prices = Mapping[str, Mapping[str, Any]]
_INPUT, _OUTPUT, _SECOND = _DECISIVE = "input_usd_per_mtok", "output_usd_per_mtok", "usd_per_s"
_CACHED = "cached_input_usd_per_mtok"


def repriced(
    observation: Observation, llms: Sequence[str], old: Prices | None, new: Prices
) -> Observation | str:
    """An observation at other prices.

    The cost of a module changes like the cost of its tokens; cached tokens keep their share of it,
    so their price must have changed like that of the others, unless the cost shows that none was
    cached, or they cost today what the others do. So must prices of audio and of writing a cache.
    Of an LLM whose tokens cost nothing then, the cost never shows that.
    A module whose LLM costs what it did keeps its cost to the last digit. One that costs the
    seconds of a machine, `usd_per_s`, changes with their price.

    Args:
        observation: With the tokens of each module; without them it stays as it is.
        llms: The LLM of each module.
        old: USD per million tokens by LLM, see `PriceList.describe`; None if they are not known:
            the tokens are then priced without regard to caches.
        new: Likewise, of today.

    Returns:
        The observation; or what of it is not known: `no_seconds`, a module is paid by seconds now,
        and was not then; `no_cached_tokens`, their price changed, and some may have been cached.

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
        if isinstance(today, str):
            return today
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
) -> float | str:
    is_same = old is not None and all(old.get(name) == new.get(name) for name in _DECISIVE)
    per_s, per_s_then = new.get(_SECOND), (old or {}).get(_SECOND)
    if per_s is not None:
        return usd if is_same else usd * per_s / per_s_then if per_s_then else "no_seconds"
    today = _cost(tokens, new)
    before = 0.0 if old is None else _cost(tokens, old)  # 0, too, if it was paid by seconds
    if old is None or not any(tokens):
        return usd if is_same else today
    then, now = _shares(old), _shares(new)
    if "others" not in old:  # which an early version did not say
        now = {_CACHED: now[_CACHED]}
    changed = [k for k in {**then, **now} if not math.isclose(then.get(k, 1), now.get(k, 1))]
    shows_none = math.isclose(usd, before) and all(then.get(key, 1) != 1 for key in changed)
    if changed and not shows_none:
        shows_some = then[_CACHED] < 1 and usd < before
        are_equal = all(share == 1 for share in now.values())
        return today if are_equal and shows_some else "no_cached_tokens"
    if is_same or before <= 0:
        return usd if is_same else today
    return usd * today / before


def _shares(price: Mapping[str, Any]) -> dict[str, float]:
    """What tokens of other prices cost, relative to usual ones; 1 and its price for a search."""
    others = {_CACHED: price.get(_CACHED), **price.get("others", {})}
    if price.get("cached") == "uncached":
        others = {key: None if "cache" in key else usd for key, usd in others.items()}
    shares = dict.fromkeys(others, 1.0)
    for key, usd in others.items():
        usual = price[_OUTPUT if "output" in key else _INPUT]
        if usd is not None and (usual or "mtok" not in key):
            shares[key] = usd / usual if "mtok" in key else 1 + usd
    return shares


def _cost(tokens: tuple[int, int], price: Mapping[str, Any]) -> float:
    return (tokens[0] * price[_INPUT] + tokens[1] * price[_OUTPUT]) / 1e6
