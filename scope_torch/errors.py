"""Errors that the command line shows without a traceback."""

from __future__ import annotations

import errno
import math
import re
from numbers import Number, Real
from pathlib import Path
from typing import Any

# For messages that are told in Python and by commands.
ANOTHER_RUN_DIR = "another run_dir (on the command line: output_dir, or --run-dir)"
# Control characters, ends of lines, lone surrogates, and marks that turn the direction of writing.
_UNPRINTABLE = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


class InputError(ValueError):
    """The user gave a wrong value; the message names the value and the mend.

    The command line shows only the message and exits with status 2.

    Args:
        message: The message; line breaks become spaces, other control characters are escaped.

    Examples:
        >>> raise InputError("epsilon=2 must lie in (0, 1)")
        Traceback (most recent call last):
        scope_torch.errors.InputError: epsilon=2 must lie in (0, 1)
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.splitlines())))


def printable(text: str) -> str:
    r"""The text with escapes for what a terminal would obey, or no file can hold.

    Examples:
        >>> print(printable("plan\x1b[2J"), printable("\ud800"), printable("r\xf4le"))
        plan\x1b[2J \ud800 rôle
    """
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


class JobsFailed(Exception):
    """Jobs of a sweep, or its launcher, failed; the message names each of them on a line."""


def cannot_write(path: Path, error: OSError) -> InputError:
    """The error to raise for a file that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        mend = "make room, then run the same command again: it goes on where this one stopped"
    elif error.errno == errno.ELOOP:
        mend = "files are not written through links: remove it"
    else:
        mend = "choose another place, or make this one writable"
    reason = "it is a link" if error.errno == errno.ELOOP else error.strerror or error
    return InputError(f"cannot write {path}: {reason}; {mend}")


def check_numbers(**values: Any) -> None:
    """Checks that values are numbers; None stands for one that is not given.

    Raises:
        InputError: If one is something else, such as a text.

    Examples:
        >>> check_numbers(budget_usd=1, seed=None)
    """
    for name, value in values.items():
        if value is not None and not isinstance(value, Number):
            raise InputError(f"{name}={value!r} must be a number, not {type(value).__name__}")


def whole_number(name: str, value: Any, least: int, most: float = math.inf, more: str = "") -> int:
    """A whole number, also of numpy, or as a float.

    Args:
        name: Of the argument.
        value: What was given.
        least: The least that it may be.
        most: The most.
        more: The end of the message.

    Raises:
        InputError: If it is something else, such as a text, true, NaN or infinity.

    Examples:
        >>> whole_number("batch_size", 4.0, 1)
        4
    """
    number: Any = value  # a `Real` has no order for the checker of types
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not (is_number and least <= number <= most and number % 1 == 0):
        bounds = f">= {least}" if most == math.inf else f"from {least} to {most}"
        raise InputError(f"{name}={value!r} must be a whole number {bounds}{more}")
    return int(number)
