"""Errors that the command line shows without a traceback."""

from __future__ import annotations

import errno
from numbers import Number
from pathlib import Path
from typing import Any


class InputError(ValueError):
    """The user gave a wrong value; the message names the value and the mend.

    The command line shows only the message and exits with status 2.

    Args:
        message: The message; line breaks become spaces.

    Examples:
        >>> raise InputError("epsilon=2 must lie in (0, 1)")
        Traceback (most recent call last):
        scope_torch.errors.InputError: epsilon=2 must lie in (0, 1)
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class JobsFailed(Exception):
    """Jobs of a sweep, or its launcher, failed; the message names each of them on a line."""


def cannot_write(path: Path, error: OSError) -> InputError:
    """The error to raise for a file that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        mend = "make room, then run the same command again: it goes on where this one stopped"
    else:
        mend = "make it writable, or choose another output_dir"
    return InputError(f"cannot write {path}: {error.strerror or error}; {mend}")


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
