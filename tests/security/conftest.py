"""Fixtures of other tests."""

from integration.conftest import cli  # noqa: F401
