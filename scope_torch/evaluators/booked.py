"""What a function returned, as an observation that is paid for, before it is graded."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from functools import partial
from itertools import starmap
from operator import index
from typing import Any, SupportsIndex

from scope_torch.errors import InputError
from scope_torch.evaluators.returned import is_truth, number, parts_of
from scope_torch.evaluators.tokens import tokens_of
from scope_torch.llm.billing import Usage
from scope_torch.llm.price_list import PriceList
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem


def booked(
    problem: SelectionProblem,
    prices: PriceList | None,
    request: Request,
    answer: Any,
    lost_usd: float,
) -> tuple[Any, Observation]:
    """The quality, or what finds it out; and what was paid, as if the grading had failed.

    Args:
        problem: Names of modules and LLMs.
        prices: Of tokens; None if the function says what it costs.
        request: What was asked.
        answer: What the function returned.
        lost_usd: USD of attempts that failed.

    Raises:
        InputError: If the answer has another form, names an unknown module, or has no price.
        TypeError, ValueError, OverflowError: If a part of it is no such number.
    """
    quality, cost, tokens = parts_of(answer)
    more = answer if isinstance(answer, Mapping) else {}
    theta, query, replicate = request
    costs = used = None
    if isinstance(tokens, Mapping):
        _check_modules(problem, tokens)
        used = [tokens_of(tokens.get(module, (0, 0))) for module in problem.modules]
    if isinstance(cost, Mapping):
        _check_modules(problem, cost)
        costs = tuple(_usd(cost.get(module, 0.0)) for module in problem.modules)
    elif cost is None and used is not None:
        timed = _durations(problem, more.get("seconds", {}), tokens)
        of_modules = zip(problem.names(theta).values(), used, timed, strict=True)
        costs = tuple(starmap(partial(_priced, prices), of_modules))
    calls: Mapping[str, Any] | None = more.get("calls")
    return quality, Observation(
        theta,
        query,
        (_usd(cost) if costs is None else sum(costs)) + lost_usd,
        0.0,
        replicate,
        module_cost_usd=costs,
        module_tokens=None if used is None else tuple(u[:2] for u in used),
        outcomes=more.get("outcomes"),
        judge_usd=_usd(more.get("judge_usd", 0.0)),
        failed="metric",
        module_calls=None if calls is None else tuple(_count(calls, m) for m in problem.modules),
    )


def told_usd(
    problem: SelectionProblem, prices: PriceList | None, request: Request, answer: Any
) -> float:
    """What an answer that `booked` refuses says that it has cost, in USD; 0 if it does not say."""
    told = answer if isinstance(answer, Mapping) else {}
    ways: list[dict[str, Any]] = [{name: told[name]} for name in ("cost_usd",) if name in told]
    ways += [{"cost_usd": told["module_cost_usd"]}] if "module_cost_usd" in told else []
    if "tokens" in told:
        ways += [{name: told[name] for name in ("tokens", "seconds") if name in told}]
    for way in ways:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return booked(problem, prices, request, {"quality": 0.0, **way}, 0.0)[1].cost_usd
    return 0.0


def _count(calls: Mapping[str, Any], module: str) -> int:
    number = calls.get(module, 0)
    if isinstance(number, bool) or not isinstance(number, SupportsIndex) or index(number) < 0:
        raise InputError(f"calls={dict(calls)} must be whole numbers of at least 0, by module")
    return index(number)


def _usd(value: Any) -> float:
    if is_truth(value):
        raise InputError(f"{value} is no cost in USD")
    return number(value)


def _check_modules(problem: SelectionProblem, values: Mapping[str, Any]) -> None:
    if unknown := set(values) - set(problem.modules):
        raise InputError(
            f"the system used tokens in {sorted(unknown)}; give them by module, of "
            f"{list(problem.modules)}"
        )


def _durations(
    problem: SelectionProblem, seconds: Mapping[str, Any], tokens: Any
) -> list[float | None]:
    """Seconds of each module; 0 of one that was not asked, None if they are not known."""
    _check_modules(problem, seconds)
    known = {module: number(value) for module, value in seconds.items()}
    if not all(0 <= value < math.inf for value in known.values()):
        raise InputError(f"seconds={known} must be numbers of at least 0, by module")
    return [known.get(module, None if module in tokens else 0.0) for module in problem.modules]


def _priced(prices: PriceList | None, llm: str, usage: Usage, seconds: float | None) -> float:
    if prices is None:
        raise InputError(
            "the system returns tokens; give FunctionEvaluator prices=load_llms(), or a PriceList"
        )
    return prices.cost_usd(llm, usage, seconds)
