"""Metrics that compare an output with a known answer."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from scope_torch.tasks.dataset import Query

_QUOTES = "“”„‘’«»"
_YES_OR_NO = re.compile(r"\b(?:yes|no)\b")
_ANSWER = re.compile(r"(?:^|:)[^\w\n]{0,9}(yes\b|no\b(?![ \t]+\w))", re.MULTILINE)
# Letters and marks that Unicode does not split into an ASCII letter and an accent.
_UNDECOMPOSED = str.maketrans(
    {"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "ı": "i"}
    | {"ß": "ss", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "þ": "th", "Þ": "Th", "ə": "e"}
    | dict.fromkeys("‘’ʻʼ`´", "'")
    | dict.fromkeys("–—‑", "-")
)


def lowered(text: str) -> str:
    """The text in lower case, without white space around it."""
    return text.strip().lower()


def unpunctuated(text: str) -> str:
    """The text in lower case, without white space and punctuation around it."""
    return text.strip(string.whitespace + string.punctuation + _QUOTES).lower()


def folded(text: str) -> str:
    """The words of a text in lower case ASCII; apostrophes and full stops are removed.

    Examples:
        >>> folded("St. Étienne - l'Hôpital")
        'st etienne lhopital'
    """
    plain = re.sub(r"['.]", "", ascii_fold(text).lower())
    return " ".join(re.findall(r"[a-z0-9]+", plain))


def ascii_fold(text: str) -> str:
    """The nearest ASCII text: drops accents, and signs that have no counterpart."""
    decomposed = unicodedata.normalize("NFKD", text.translate(_UNDECOMPOSED))
    return decomposed.encode("ascii", "ignore").decode("ascii")


@dataclass(frozen=True)
class ExactMatch:
    """1 if the output equals the gold text after normalisation, else 0.

    Args:
        normalise: Applied to both texts; differences that it removes do not count.

    Examples:
        >>> ExactMatch(folded)("São Paulo.", Query({}, gold="Sao Paulo"))
        1.0
    """

    normalise: Callable[[str], str]

    def __call__(self, output: str, query: Query) -> float:
        """Grades an output; `query.gold` is a string."""
        return float(self.normalise(output) == self.normalise(query.gold))


def yes_or_no(output: str, query: Query) -> float:
    """1 if the output says what the gold is, else 0; also 0 if it says neither yes nor no.

    What stands between <think> and </think> is no answer. The answer is the first "yes" or "no"
    that begins a line or follows a colon; "no" before another word, as in "no doubt", is none.
    Without one, the answer is the last "yes" or "no" of the output.

    Examples:
        >>> yes_or_no("Answer (yes or no): no", Query({}, gold=0))
        1.0
        >>> yes_or_no("", Query({}, gold=0)), yes_or_no("", Query({}, gold=1))
        (0.0, 0.0)
    """
    said = output.lower().rpartition("</think>")[2].partition("<think>")[0]
    answers = _ANSWER.findall(said)[:1] or _YES_OR_NO.findall(said)[-1:]
    return float(answers == ["yes" if query.gold else "no"])
