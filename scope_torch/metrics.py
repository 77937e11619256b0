"""Metrics for `select`: they compare an output with what is expected; 1 is best, 0 is worst.

A metric is any function of (expected, output) with a value in [0, 1]; these are common ones. An
output that is None is no answer, and not the text "none". For the cost and quality of a run against
the budget see `scope_torch.results.metrics`.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any

from scope_torch.errors import InputError

# A minus sign, the dashes that stand for it, and letters that stand for an apostrophe.
_ALIKE = str.maketrans(dict.fromkeys("−‐‑‒–", "-") | dict.fromkeys("´ʻʼ", "'"))
_SUPERSCRIPT = re.compile(r"(?<=\d)(?=[⁰¹²³⁴-⁹⁻])")
# A sign only where no word ends; a comma only between groups of three digits.
_NUMBER = re.compile(
    r"(?:(?<!\w)[-+][$€£]?)?(?:(?<!\d,)\d{1,3}(?:,\d{3})+(?!,?\d)|\d+|(?=\.\d))"
    r"(?:\.\d*)?(?:[eE][-+]?\d+)?"
)
# What belongs to a number (as in 1.5, 1,5, 1/2, 10^6, .5, -$5; in 1,500 the comma groups digits) or
# to a name (C++, C#); punctuation.
_SIGNS = re.compile(
    r"((?<=\d)(?:[./](?=\d)|,(?=\d)(?!\d{3}(?!\d))|\^(?=-?\d))|(?<![\w.])\.(?=\d)"
    r"|(?<!\w)-(?=[$€£]?\.?\d)|(?<=[^\W\d_])[+#]+)|[^\w\s]|_"
)


def normalised(text: Any) -> str:
    """A text in lower case without punctuation, articles and surplus white space (as SQuAD does).

    Signs that belong to a number or to a name stay: -1.5 and 1,5 are not 15, and C++ is not C#. An
    "a" that no word follows is a letter. Where nothing else would be left, the articles or signs
    stay.

    Examples:
        >>> normalised(" The Eiffel Tower. "), normalised("The answer is: A.")
        ('eiffel tower', 'answer is a')
    """
    spaced = _SUPERSCRIPT.sub("^", str(text).translate(_ALIKE))  # else 10² would be 102
    raw = unicodedata.normalize("NFKC", spaced).lower().translate(_ALIKE).split()
    bare = [_SIGNS.sub(_kept, word) for word in raw]
    words = [
        word
        for said, word, after in zip(raw, bare, [*bare[1:], ""], strict=False)
        if word and word != "the"
        if word not in ("a", "an") or not said.endswith(word) or not after
    ]
    return " ".join(words or filter(None, bare)) or " ".join(raw)


def _kept(found: re.Match[str]) -> str:
    """A sign that stays, or that is no punctuation, such as an accent or a sign of Unicode."""
    if found[1]:
        return found[1]
    sign = found[0]
    is_punctuation = sign in string.punctuation or unicodedata.category(sign).startswith("P")
    return "" if is_punctuation else sign


def exact_match(expected: Any, output: Any) -> float:
    """1 if both are equal after `normalised`, else 0.

    Examples:
        >>> exact_match("The Eiffel Tower", "eiffel tower."), exact_match("none", None)
        (1.0, 0.0)
    """
    if _is_silent(expected, output):
        return 0.0
    return float(normalised(expected) == normalised(output))


def contains(expected: Any, output: Any) -> float:
    """1 if the output has the words of what is expected, in this order, after `normalised`.

    Examples:
        >>> contains("Paris", "It is Paris, of course."), contains("Pari", "It is Paris.")
        (1.0, 0.0)
    """
    if _is_silent(expected, output):
        return 0.0
    return float(f" {normalised(expected)} " in f" {normalised(output)} ")


def token_f1(expected: Any, output: Any) -> float:
    """Harmonic mean of precision and recall of the words, as SQuAD's F1.

    Examples:
        >>> token_f1("the Eiffel Tower", "Eiffel Tower in Paris")
        0.6666666666666666
    """
    if _is_silent(expected, output):
        return 0.0
    wanted, said = normalised(expected).split(), normalised(output).split()
    if not wanted or not said:
        return float(wanted == said)
    common = sum((Counter(wanted) & Counter(said)).values())
    return 2 * common / (len(wanted) + len(said))


def _is_silent(expected: Any, output: Any) -> bool:
    """Whether there is no output, as of a reply without text, where one is expected."""
    return output is None and expected is not None


def number(relative_tolerance: float = 1e-6) -> Callable[[Any, Any], float]:
    """A metric that compares the last number of the output with the expected one; 1/2 is 0.5.

    Args:
        relative_tolerance: Numbers that differ by less than this, relative to the larger, agree.

    Raises:
        InputError: If it is not in [0, 1): 5% is 0.05.

    Examples:
        >>> number()("1200", "So the answer is 1,200.")
        1.0
        >>> number()("5", "x = -5"), number()("19", "COVID-19")
        (0.0, 1.0)
    """
    told: Any = relative_tolerance
    if not (isinstance(told, int | float) and 0 <= told < 1):
        raise InputError(f"relative_tolerance={told!r} must lie in [0, 1); 0.05 is 5%")

    def last_number_agrees(expected: Any, output: Any) -> float:
        wanted, said = _last_number(expected), _last_number(output)
        if wanted is None or said is None:
            return 0.0
        return float(math.isclose(wanted, said, rel_tol=relative_tolerance))

    return last_number_agrees


def _last_number(text: Any) -> float | None:
    told = str(text).translate(_ALIKE)
    found = list(_NUMBER.finditer(told))
    last = _value(found[-1]) if found else math.inf
    if len(found) > 1 and last:
        over, under = found[-2:]
        is_date = told.endswith("/", 0, over.start())
        if told[over.end() : under.start()] == "/" and not is_date:
            last = _value(over) / last
    return last if math.isfinite(last) else None  # numbers too large to tell apart are none


def _value(number: re.Match[str]) -> float:
    return float(re.sub("[,$€£]", "", number[0]))
