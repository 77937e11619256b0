"""Standard error as a job runner may have left it."""

import io
import sys

import pytest

from scope_torch.tracking.heard import HEARD


class Logger:
    """Takes text, and is no file."""

    def write(self, text):
        raise OSError("nobody reads it")


def closed():
    file = io.StringIO()
    file.close()
    return file


@pytest.mark.parametrize("stderr", [None, Logger(), closed()], ids=["none", "logger", "closed"])
def test_nobody_needs_to_hear(monkeypatch, stderr):
    monkeypatch.setattr(sys, "stderr", stderr)
    HEARD.write("progress")
    HEARD.flush()
    assert HEARD.isatty() is False
