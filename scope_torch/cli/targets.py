"""Checks which classes a config names: of this package, or of packages that the user allows."""

from __future__ import annotations

import os
import pkgutil
from types import FunctionType
from typing import Any

from scope_torch.errors import InputError

ALLOW = "SCOPE_ALLOW_TARGETS"  # in the environment: no config can allow itself
_OWN = ("scope_torch",)
_allowed: tuple[str, ...] = ()
_OWN_FUNCTIONS = (  # others write files
    "scope_torch.tasks",
    "scope_torch.methods",
    "scope_torch.front_method",
    "scope_torch.baselines",
)


def read_allowed() -> None:
    """Reads which packages the user allows; later changes of the environment do not matter."""
    global _allowed
    _allowed = tuple(os.environ.get(ALLOW, "").replace(",", " ").split())


read_allowed()


def is_allowed(target: str) -> bool:
    """Whether a dotted name is of a package that the user allows."""
    return _within(target, _allowed)


def check_target(target: str) -> Any:
    """Checks a `_target_` before it is called.

    Args:
        target: Dotted name of a class, or of a function that makes a task or a method. The user
            allows further packages in the environment: `SCOPE_ALLOW_TARGETS=mine,yours`.

    Returns:
        The class or function.

    Raises:
        InputError: If it does not exist, or is of another package, which is then not imported.
    """
    if not _within(target, (*_OWN, *_allowed)):
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
    if not (fits or (callable(found) and _within(home, _allowed))):
        raise InputError(f"_target_={target!r} does not make a task, method, kernel or tracker")
    return found


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)
