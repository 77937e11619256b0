"""Makes the objects that a config describes, after checking what it names."""

from __future__ import annotations

import inspect
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from scope_torch.cli.messages import KEYS
from scope_torch.cli.targets import check_target
from scope_torch.errors import InputError
from scope_torch.evaluators import Evaluator


def build(node: DictConfig, **extra: Any) -> Any:
    """Makes the object that a config's `_target_` names. Nothing else in the package does this.

    Args:
        node: The config of the object.
        extra: Further arguments; those that the object does not take are left out.

    Raises:
        InputError: If the target is neither of this package nor allowed; see `check_target`.
    """
    check_target(str(node._target_))
    target = instantiate(node, _partial_=True, _recursive_=False, _convert_="all")
    accepted = inspect.signature(target).parameters
    return target(**{name: value for name, value in extra.items() if name in accepted})


def refuse_new_keys(overrides: list[str]) -> None:
    """Raises InputError for `+key=value`: nothing reads a key that the schema does not have."""
    for override in overrides:
        if override.startswith("+"):
            raise InputError(f"{override!r} would add a key; write it without + ({KEYS})")


def check_device(device: str) -> None:
    """Raises InputError if torch cannot use the device."""
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device={device!r} cannot be used ({reason}); try device=cpu") from error


def close_evaluator(evaluator: Evaluator) -> None:
    """Closes the connections of an evaluator that has some."""
    if close := getattr(evaluator, "close", None):
        close()
