"""Data sets of others, if this machine has them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def real_folder() -> Callable[[str], str]:
    """Finds a folder in `$SCOPE_DATA_DIR`, or skips the test."""

    def resolve(name: str) -> str:
        folder = Path(os.environ.get("SCOPE_DATA_DIR", "data"), name).resolve()
        if not folder.is_dir():
            pytest.skip(f"no {name} in $SCOPE_DATA_DIR or ./data")
        return str(folder)

    return resolve
