"""Errors shown without a traceback."""

from __future__ import annotations

import errno
from pathlib import Path


class InputError(ValueError):
    """A value given by the user is wrong; the message names it and what to do.

    The command line shows the message alone and exits with status 2.

    Args:
        message: Made one line, whatever is in the values that it names.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class JobsFailed(Exception):
    """Some jobs of a sweep, or its launcher, failed; the message names them, a line each."""


def cannot_write(path: Path, error: OSError) -> InputError:
    """What to tell the user about a file that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        mend = "make room, and the same command goes on where this one stopped"
    else:
        mend = "make it writable, or choose another output_dir"
    return InputError(f"cannot write {path}: {error.strerror or error}; {mend}")
