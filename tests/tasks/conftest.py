"""Data sets of others, if this machine has them."""

from collections.abc import Callable

import pytest
from real_data import folder_or_skip


@pytest.fixture
def real_folder() -> Callable[[str], str]:
    """Finds a folder in `$SCOPE_DATA_DIR`, or skips the test."""

    def resolve(name: str) -> str:
        return str(folder_or_skip(name).resolve())

    return resolve
