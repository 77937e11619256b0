"""Errors that the command line shows without a traceback."""

from __future__ import annotations

import errno
from pathlib import Path


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
    elif error.errno == errno.ELOOP:
        mend = "files are not written through links: remove it"
    else:
        mend = "make it writable, or choose another output_dir"
    reason = "it is a link" if error.errno == errno.ELOOP else error.strerror or error
    return InputError(f"cannot write {path}: {reason}; {mend}")
