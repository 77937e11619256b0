"""Hydra configs for the commands beside the search."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from scope_torch.cli.build import build, outcomes_of, refuse_new_keys, refuse_typed_keys
from scope_torch.cli.interrupts import second_interrupt_ends
from scope_torch.cli.messages import message_of
from scope_torch.cli.quoting import refuse_changed_names
from scope_torch.cli.registry import config_dir, register
from scope_torch.errors import InputError
from scope_torch.tasks import Task

register()


def compose(overrides: Sequence[str]) -> DictConfig:
    """The config that `scope-torch OVERRIDES` would run."""
    refuse_typed_keys(overrides)
    refuse_changed_names(overrides)
    refuse_new_keys(list(overrides))
    with hydra.initialize_config_dir(config_dir(), version_base="1.3"):
        try:
            return hydra.compose("config", list(overrides))
        except ValueError as error:  # such as of experiment=nan
            raise InputError(message_of(error)) from error


def compose_task(overrides: Sequence[str], *, measures: bool = True) -> Task:
    """The task that `scope-torch OVERRIDES` would search.

    Args:
        overrides: Of the config.
        measures: Whether a live task pays for the averages of its reference; else they are 1.
    """
    task = compose(overrides).task
    if not measures and task.get("reference_quality", 1.0) is None:
        task.reference_quality = task.reference_cost_usd = 1.0
    return build(task, **outcomes_of(task))


def exit_on_error(name: str, run: Callable[[], None]) -> None:
    """Calls `run`. Errors that the user can mend end in one line and status 2, Ctrl-C in 130."""
    try:
        with second_interrupt_ends():
            run()
    except (InputError, HydraException, OmegaConfBaseException) as error:
        _fail(name, message_of(error))
    except OSError as error:
        _fail(name, str(error))
    except KeyboardInterrupt:
        print(f"{name}: interrupted; the same command goes on where it stopped", file=sys.stderr)
        sys.exit(130)


def _fail(name: str, message: str) -> NoReturn:
    print(f"{name}: {message}", file=sys.stderr)
    sys.exit(2)
