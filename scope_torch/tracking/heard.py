"""Standard error, for what need not be heard."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any


class _Heard:
    """As far as anybody reads it: what cannot be shown ends no search."""

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError, AttributeError):  # it is None if it was closed
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()

    def isatty(self) -> bool:
        with suppress(OSError, ValueError, AttributeError):  # a logger may stand in its place
            return sys.stderr.isatty()
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


HEARD: Any = _Heard()
