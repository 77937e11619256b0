"""Choices with factors where LLMs are called: what their values may be, and what a call takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from scope_torch.errors import InputError
from scope_torch.factors import LLM
from scope_torch.llm.chat import ChatCall
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.usage import is_count

_OF_CALLS = "effort", "temperature", "max_tokens"
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "effort": (lambda value: isinstance(value, str), "a word, such as low"),
    "temperature": (lambda value: _is_number(value) and value >= 0, "a number of at least 0"),
    "top_p": (lambda value: _is_number(value) and 0 < value <= 1, "a number above 0, up to 1"),
    "max_tokens": (lambda value: is_count(value) and value > 0, "a whole number above 0"),
    "thinking_tokens": (is_count, "a whole number; 0 for no thinking"),
}


def check_factors(choice: str, info: LLMInfo | None) -> None:
    """Refuses a choice whose factors no request can have.

    Args:
        choice: An LLM, or its name with factors.
        info: Its entry in the price list; None for none.

    Raises:
        InputError: If a value is of the wrong kind, or two contradict each other.
    """
    factors: dict[str, Any] = LLM.parse(choice).factors
    for name, (fits, kind) in _KINDS.items():
        if name in factors and not fits(factors[name]):
            raise InputError(f"{choice!r}: {name}={factors[name]!r} must be {kind}")
    if "temperature" in factors and info is not None and not info.takes_temperature:
        raise InputError(f"{choice!r}: the price list says that it takes no temperature")
    limit, budget = factors.get("max_tokens"), factors.get("thinking_tokens")
    if limit is not None and budget is not None and limit <= budget:
        raise InputError(
            f"{choice!r}: max_tokens={limit} leaves no reply beside thinking_tokens={budget}, "
            "which are a part of it; give more"
        )


def llm_of(llms: Mapping[str, LLMInfo], name: str) -> LLMInfo:
    """The LLM with this name; that of a choice with factors has the effort of the choice.

    Args:
        llms: The price list.
        name: An LLM, or its name with effort, temperature or max_tokens.

    Raises:
        InputError: If the price list lacks it, or a call has no place for a factor.

    Examples:
        >>> llms = {"mini": LLMInfo("mini", 0.25, 2.0)}
        >>> info = llm_of(llms, "mini effort=low")
        >>> info.model, info.reasoning_effort
        ('mini', 'low')
    """
    if name in llms:
        return llms[name]
    choice = LLM.parse(name)
    if choice.llm not in llms:
        raise InputError(f"no price is known for LLM {choice.llm!r}; there are {list(llms)}")
    info, factors = llms[choice.llm], choice.factors
    if others := [factor for factor in factors if factor not in _OF_CALLS]:
        raise InputError(
            f"{name!r}: calls of LLMs take {', '.join(_OF_CALLS)}, and nothing else of a choice; "
            f"leave out {', '.join(others)}, or search an application behind an endpoint"
        )
    check_factors(choice, info)
    effort: Any = factors.get("effort", info.reasoning_effort)
    return replace(info, name=str(choice), model=info.model or info.name, reasoning_effort=effort)


def chosen(llms: Mapping[str, LLMInfo], call: ChatCall) -> tuple[LLMInfo, ChatCall]:
    """The LLM of a call, and the call with the temperature and the limit of the choice.

    Raises:
        InputError: See `llm_of`.

    Examples:
        >>> call = ChatCall("mini temperature=0.5", (), max_tokens=20)
        >>> chosen({"mini": LLMInfo("mini", 0.25, 2.0)}, call)[1].temperature
        0.5
    """
    info = llm_of(llms, call.llm)
    factors: dict[str, Any] = {} if call.llm in llms else LLM.parse(call.llm).factors
    said = {name: factors[name] for name in ("temperature", "max_tokens") if name in factors}
    return info, replace(call, **said)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
