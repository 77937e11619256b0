"""Makes the objects that a config describes, after checking what it names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from scope_torch.cli.messages import KEYS, nearest
from scope_torch.cli.schema import Config
from scope_torch.cli.targets import check_target
from scope_torch.errors import InputError
from scope_torch.evaluators import Evaluator
from scope_torch.llm.keys import check_key_env
from scope_torch.options import arguments_of
from scope_torch.tasks.constrained import named_outcomes

# api_key_env=A, api_key_env=A,B, api_key_env=choice(A,B), {api_key_env:A}
_TYPED_KEY = re.compile(r"api_key_env[\"']?(?:=(?:choice\()?(.*)|:([^,}]*))", re.DOTALL)
_OF_HYDRA = ("_target_", "_convert_", "_recursive_", "_partial_")  # not arguments
_OF_PROBLEM = ("constraints", "objective")  # of a task; see `with_constraints`
_PASSED_ON = ("task.data.", "task.system.", "llm.extra_body.")


def build(node: DictConfig, **extra: Any) -> Any:
    """Makes the object that a config's `_target_` names. Nothing else in the package does this.

    Args:
        node: The config of the object.
        extra: Further arguments; those that the object does not take are left out.

    Raises:
        InputError: If the target is neither of this package nor allowed; see `check_target`.
    """
    # Not by Hydra's `instantiate`, which would look the name up again, and nested ones as well.
    target = check_target(str(node._target_))
    arguments = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    assert isinstance(arguments, dict)
    not_given = (*_OF_HYDRA, *_OF_PROBLEM)
    given = {str(name): value for name, value in arguments.items() if name not in not_given}
    accepted = arguments_of(target)
    return target(**given | {name: value for name, value in extra.items() if name in accepted})


def outcomes_of(task: DictConfig) -> dict[str, Any]:
    """Arguments of a task whose constraints are about other outcomes than cost and quality."""
    if not (names := named_outcomes([str(text) for text in task.constraints])):
        return {}
    columns = [*task.get("outcome_columns", ())]
    return {"outcome_columns": [*dict.fromkeys([*columns, *names])], "outcomes": True}


def refuse_new_keys(overrides: list[str]) -> None:
    """Raises InputError for `+key=value`: nothing reads a key that the schema does not have.

    Only what is passed on to a loader, a system or an endpoint has keys of its own.
    """
    for override in overrides:
        word = override.lstrip("+").partition("=")[0]
        if override.startswith("+") and not word.startswith(_PASSED_ON):
            known = [field.name for field in dataclasses.fields(Config)]
            first, *_ = word.split(".")
            mend = (
                "write it without +" if first in known else f"leave it out{nearest(first, known)}"
            )
            raise InputError(f"{override!r} would add a key that nothing reads; {mend} ({KEYS})")


def refuse_typed_keys(arguments: Sequence[str]) -> None:
    """Raises InputError for a key in place of its variable, before Hydra reads and shows it."""
    for argument in arguments:
        for typed, in_braces in _TYPED_KEY.findall(argument):
            for value in (typed.removesuffix(")") or in_braces).split(","):
                name = value.strip(" '\"")
                if not name.startswith("${"):  # the client checks the value of another key
                    check_key_env(name)


def check_device(device: str) -> None:
    """Raises InputError if torch cannot use the device; `auto` is always one."""
    import torch

    if device == "auto":
        return
    try:
        torch.zeros(1, dtype=torch.float64, device=device).item()  # some have no float64
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device={device!r} cannot be used ({reason}); try device=cpu") from error


def close_evaluator(evaluator: Evaluator) -> None:
    """Closes the connections of an evaluator that has some."""
    if close := getattr(evaluator, "close", None):
        close()
