"""Printing to somebody who may have stopped reading, as in `scope-torch --help | head`."""

from __future__ import annotations

import os
import sys


def say(text: str) -> None:
    """Prints a text at once; if nobody reads it, nothing is wrong: what was done stays done.

    Letters that the output cannot show, as a name of an LLM in ASCII, become their codes.
    """
    try:
        print(text, flush=True)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        say(text.encode(encoding, "backslashreplace").decode(encoding))
    except BrokenPipeError:
        say_no_more()


def say_no_more() -> None:
    """Drops what is printed from now on; else Python tries again at its end, and complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
