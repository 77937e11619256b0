"""What a function returns as an observation: quality, cost, tokens; nothing of it is trusted."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Any, SupportsFloat

import numpy as np

from scope_torch.errors import InputError
from scope_torch.evaluators.retired import is_of_account
from scope_torch.evaluators.tokens import reported
from scope_torch.llm.billing import Usage
from scope_torch.llm.usage import usage_of

Tokens = Mapping[str, tuple[int, int] | Usage]
Graded = tuple[float, float | Tokens] | Mapping[str, Any]
System = Callable[[dict[str, str], Any], Graded | Awaitable[Graded]]

_MEASURED = {"quality", "module_cost_usd", "tokens"}
_KEYS = {"quality", "cost_usd"}, {"quality", "tokens"}, _MEASURED, {*_MEASURED, "calls"}
_KEYS += ({"quality", "tokens", "seconds"},)
_MORE = {"outcomes", "judge_usd"}


def parts_of(answer: Any) -> tuple[Any, Any, Any]:
    """The quality, the cost, and the tokens by module, or None; nothing is checked.

    Raises:
        InputError: If the answer has another form.
    """
    if isinstance(answer, Mapping) and set(answer) - _MORE in _KEYS:
        cost = answer.get("cost_usd", answer.get("module_cost_usd"))
        return answer["quality"], cost, answer.get("tokens")
    if not isinstance(answer, Mapping | Set | str | bytes):
        with contextlib.suppress(TypeError, ValueError):  # not two values
            quality, cost = answer
            return (quality, None, cost) if isinstance(cost, Mapping) else (quality, cost, None)
    raise InputError(
        "it must return (quality, cost_usd), or a dictionary with just the keys quality and "
        "cost_usd, or quality and tokens, and perhaps outcomes and judge_usd"
    )


def number(value: Any) -> float:
    """A number of any kind as a float; refuses text and None."""
    if not isinstance(value, SupportsFloat):
        report = reported(value)
        is_usage = report is not None and usage_of({"usage": report}) is not None
        hint = "; give the usage of a reply by module" if is_usage else ""
        raise InputError(f"{value!r} is not a number{hint}")
    return float(value)


def is_truth(value: Any) -> bool:
    """Whether a value says yes or no, such as that an answer is right, and is no cost in USD."""
    return isinstance(value, bool | np.bool_)


def usd_of(error: BaseException) -> float:
    """What a call has cost that raised, in USD, as the error says; 0 if it does not."""
    usd: Any = getattr(error, "cost_usd", 0.0)
    is_usd = isinstance(usd, SupportsFloat) and 0 <= float(usd) < math.inf
    return float(usd) if is_usd else 0.0


def ends_all(error: BaseException) -> bool:
    """Whether it ends the search, whatever `on_error` says: the user can mend it, or wants it."""
    is_wanted = not isinstance(error, Exception)
    return is_wanted or isinstance(error, InputError) or is_of_account(error)
