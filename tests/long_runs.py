"""What takes long runs in `make test-long` alone, which sets SCOPE_LONG.

CI has three quarters of an hour: of each feature it runs the shortest proof.
"""

import os

import pytest

IS_LONG = "SCOPE_LONG" in os.environ
SEARCHES = 1000 if IS_LONG else 30  # of a simulation that counts wrong certificates
only_long = pytest.mark.skipif(not IS_LONG, reason="takes long: make test-long")


def among_others(*values: object) -> pytest.ParameterSet:
    """One of many parameters of a test, of which CI runs the others."""
    return pytest.param(*values, marks=only_long)
