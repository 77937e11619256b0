"""Checks which classes a config names: of this package, or of packages that the user allows."""

from __future__ import annotations

import os
import pkgutil
from types import FunctionType
from typing import Any

from scope_torch.errors import InputError

ALLOW = "SCOPE_ALLOW_TARGETS"  # in the environment: no config can allow itself
_OWN = ("scope_torch", "baselines")
_OWN_FUNCTIONS = ("scope_torch.tasks", "scope_torch.methods", "baselines")  # others write files


def check_target(target: str) -> None:
    """Checks a `_target_` before it is called.

    Args:
        target: Dotted name of a class, or of a function that makes a task or a method. The user
            allows further packages in the environment: `SCOPE_ALLOW_TARGETS=mine,yours`.

    Raises:
        InputError: If it does not exist, or is of another package, which is then not imported.
    """
    allowed = tuple(os.environ.get(ALLOW, "").replace(",", " ").split())
    if not _within(target, (*_OWN, *allowed)):
        package = target.partition(".")[0]
        raise InputError(
            f"_target_={target!r} is not of this package; if you trust it, set {ALLOW}={package}"
        )
    try:
        found: Any = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"_target_={target!r} does not exist ({error})") from error
    # The name may lead through an import of one of our modules, such as `directory.os.system`.
    home = str(getattr(found, "__module__", None))
    fits = isinstance(found, type) and _within(home, _OWN)
    fits |= isinstance(found, FunctionType) and _within(home, _OWN_FUNCTIONS)
    if not (fits or (callable(found) and _within(home, allowed))):
        raise InputError(f"_target_={target!r} does not make a task, method, kernel or tracker")


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)
