"""Data of others, which a fresh clone lacks: tests without it are skipped, and counted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scope_torch.errors import InputError
from scope_torch.tasks.files import find_data, find_folder

NO_DATA = "no data here: "


def table_or_skip(path: str) -> Path:
    """A file of `$SCOPE_DATA_DIR` or `./data`."""
    return _found(find_data, path)


def folder_or_skip(path: str) -> Path:
    """A folder there."""
    return _found(find_folder, path)


def _found(find: Callable[[str], Path], path: str) -> Path:
    try:
        return find(path)
    except InputError:
        pytest.skip(NO_DATA + path)
