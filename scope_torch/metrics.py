"""Metrics for `select`: they compare an output with what is expected; 1 is best, 0 is worst.

A metric is any function of (expected, output) with a value in [0, 1]; these are common ones. The
metrics of runs, which this module had in version 0.1, are in `scope_torch.results.metrics`.
"""

from __future__ import annotations

import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: Any) -> str:
    """A text in lower case without punctuation, articles and surplus white space (as SQuAD does).

    Examples:
        >>> normalised(" The Eiffel Tower. ")
        'eiffel tower'
    """
    plain = str(text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def exact_match(expected: Any, output: Any) -> float:
    """1 if both are equal after `normalised`, else 0.

    Examples:
        >>> exact_match("The Eiffel Tower", "eiffel tower.")
        1.0
    """
    return float(normalised(expected) == normalised(output))


def contains(expected: Any, output: Any) -> float:
    """1 if the output has the words of what is expected, in this order, after `normalised`.

    Examples:
        >>> contains("Paris", "It is Paris, of course."), contains("Pari", "It is Paris.")
        (1.0, 0.0)
    """
    return float(f" {normalised(expected)} " in f" {normalised(output)} ")


def token_f1(expected: Any, output: Any) -> float:
    """Harmonic mean of precision and recall of the words, as SQuAD's F1.

    Examples:
        >>> token_f1("the Eiffel Tower", "Eiffel Tower in Paris")
        0.6666666666666666
    """
    wanted, said = normalised(expected).split(), normalised(output).split()
    if not wanted or not said:
        return float(wanted == said)
    common = sum((Counter(wanted) & Counter(said)).values())
    return 2 * common / (len(wanted) + len(said))


def number(relative_tolerance: float = 1e-6) -> Callable[[Any, Any], float]:
    """A metric that compares the last number of the output with the expected one.

    Args:
        relative_tolerance: Numbers that differ by less than this, relative to the larger, agree.

    Examples:
        >>> number()("1200", "So the answer is 1,200.")
        1.0
    """

    def last_number_agrees(expected: Any, output: Any) -> float:
        wanted, said = _last_number(expected), _last_number(output)
        if wanted is None or said is None:
            return 0.0
        return float(math.isclose(wanted, said, rel_tol=relative_tolerance))

    return last_number_agrees


def __getattr__(name: str) -> Any:
    """The names of version 0.1 (PEP 562)."""
    moved = import_module("scope_torch.results.metrics")
    if name.startswith("_") or not hasattr(moved, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = f"scope_torch.metrics.{name} is now scope_torch.results.metrics.{name}"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return getattr(moved, name)


def _last_number(text: Any) -> float | None:
    found = _NUMBER.findall(str(text))
    return float(found[-1].replace(",", "")) if found else None
