"""How an output is graded: which arguments a metric takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from scope_torch.errors import InputError
from scope_torch.evaluators.elsewhere import Elsewhere, timed

Metric = Callable[..., Any]

JUDGE = "judge"  # the module that a metric asks
_NAMES = "expected", "output", "input"
_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
_NAMEABLE = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
_VARIADIC = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


class Grading:
    """Calls a metric with the arguments that it takes.

    Args:
        metric: `metric(expected, output)` or `metric(expected, output, input)`; may be `async def`.
            Parameters named `expected`, `output` and `input` are told apart by their names. Others
            get those of the three that are left, in this order.
        elsewhere: Where it runs; None: here.

    Attributes:
        order: What tells the metric from one that gets its arguments in the usual order.

    Raises:
        InputError: If it takes something else.

    Examples:
        >>> Grading(lambda wanted, output, question: (wanted, output, question))("a", "b", "?")
        ('a', 'b', '?')
        >>> Grading(lambda output, expected: output.startswith(expected))("a", "about", "?")
        True
    """

    def __init__(self, metric: Metric, elsewhere: Elsewhere | None = None) -> None:
        self._positional, self._by_name = _arguments_of(metric)
        # An early version gave the usual order to all: what it graded otherwise is graded anew.
        is_usual = self._positional == _NAMES[: len(self._positional)]
        self.order = "" if is_usual else f", given {', '.join(self._positional)}"
        self._run = timed(metric) if elsewhere is None else elsewhere.function("metric", metric)

    def __call__(self, expected: Any, output: Any, given: Any) -> Any:
        """What the metric returns, for an input that was `given`."""
        values: dict[str, Any] = {"expected": expected, "output": output, "input": given}
        positional = [values[name] for name in self._positional]
        return self._run(*positional, **{name: values[name] for name in self._by_name})[0]


def _arguments_of(metric: Metric) -> tuple[tuple[str, ...], list[str]]:
    """What it gets by position, and by name."""
    try:
        parameters = inspect.signature(metric).parameters.values()
    except (TypeError, ValueError):  # as of some functions written in C
        return _NAMES[:2], []
    needed = [p for p in parameters if p.default is p.empty and p.kind not in _VARIADIC]
    named = [p.name for p in parameters if p.name in _NAMES and p.kind in _NAMEABLE]
    if {p.name for p in needed} <= set(named) and set(_NAMES[:2]) <= set(named):
        return (), named
    by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name in _NAMES]
    number = sum(p.kind in _POSITIONAL for p in needed)
    room = sum(2 if p.kind is p.VAR_POSITIONAL else p.kind in _POSITIONAL for p in parameters)
    others = [p for p in needed if p.kind is p.KEYWORD_ONLY and p.name not in _NAMES]
    if number > len(_NAMES) or others or room < 2:
        raise InputError(
            f"metric={getattr(metric, '__name__', metric)} takes {inspect.signature(metric)}; it "
            "must take (expected, output) or (expected, output, input)"
        )
    places = [p.name for p in parameters if p.kind in _POSITIONAL][: max(2, number)]
    left = [name for name in _NAMES if name not in {*places, *by_name}] + by_name
    order = [name if name in _NAMES else left.pop(0) for name in places]
    return (*order, *left)[: max(2, number)], by_name
