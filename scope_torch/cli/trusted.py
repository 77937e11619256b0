"""What a config directory of somebody else may not do: run code, write files, read variables.

Hydra checks some of this itself, later or less strictly. The checks here come before anything of a
composed config is used, also in the workers of a sweep.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import hydra._internal.hydra as hydra_main
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra.core.default_element import ResultDefault
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf, flag_override

from scope_torch.cli.quoting import refuse_changed_names, refuse_unquoted_names
from scope_torch.cli.targets import is_allowed
from scope_torch.errors import InputError

_PLUGINS = "hydra._internal.core_plugins"
_KNOWN = {
    "launcher": (
        f"{_PLUGINS}.basic_launcher.BasicLauncher",
        "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher",
        "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher",
        "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher",
        "hydra_plugins.scope_torch_slurm.WaitingSlurmLauncher",
        "hydra_plugins.hydra_ray_launcher.ray_launcher.RayLauncher",
    ),
    "sweeper": (
        f"{_PLUGINS}.basic_sweeper.BasicSweeper",
        "hydra_plugins.scope_torch_sweeper.CollectingSweeper",
    ),
}
# Settings of launchers that name commands, packages or machines.
_ON_COMMAND_LINE = ("setup", "additional_parameters", "runtime_env", "address", "python")
_QUIET = {"version": 1, "root": None, "disable_existing_loggers": False}
_OUTPUT = "runs go to output_dir: write output_dir=FOLDER"
_LOGS = "it could write files: leave it out"
_VARIABLES = "set variables of the environment in the shell"
# Keys of Hydra that must be as in conf/config.yaml, and how to mend another value.
_FIXED: dict[str, tuple[Any, str]] = {
    "run.dir": (".", _OUTPUT),
    "sweep.dir": ("${in_folder:${hydra.runtime.cwd},${output_dir}}", _OUTPUT),
    "sweep.subdir": (".", _OUTPUT),
    "output_subdir": (None, _OUTPUT),
    "job.chdir": (False, _OUTPUT),
    "job.env_copy": ([], _VARIABLES),  # first, because Hydra copies these into env_set
    "job.env_set": ({}, _VARIABLES),
    "job_logging": (_QUIET, _LOGS),
    "hydra_logging": (_QUIET, _LOGS),
}


class CheckedLoader(ConfigLoaderImpl):
    """Hydra's loader of configs, which checks every config that it composes."""

    def load_configuration(
        self, config_name: str | None, overrides: list[str], *args: Any, **kwargs: Any
    ) -> DictConfig:
        """Composes a config.

        Raises:
            InputError: If the part for Hydra does more than choose how the jobs are run.
        """
        config = super().load_configuration(config_name, overrides, *args, **kwargs)
        check_hydra(config.hydra, overrides)
        swept = OmegaConf.to_container(config.hydra.sweeper, resolve=False)
        params = (_at(swept, "params") or {}).items()
        refuse_changed_names([f"{key}={value}" for key, value in params], in_sweep=True)
        return config

    def get_group_options(
        self,
        group_name: str,
        results_filter: ObjectType | None = ObjectType.CONFIG,
        config_name: str | None = None,
        overrides: list[str] | None = None,
    ) -> list[str]:
        """The names of a group, without the copy of all configs that Hydra makes for each one."""
        if config_name is None and not overrides:  # what `--help`, completion and glob() ask
            return self.repository.get_group_options(group_name, results_filter)
        return super().get_group_options(group_name, results_filter, config_name, overrides)

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        found = super()._load_single_config(default, repo)
        refuse_unquoted_names(cast(dict[str, Any], OmegaConf.to_container(found.config)))
        return found


def refuse_untrusted_configs() -> None:
    """From now on, Hydra composes configs with `CheckedLoader`, and without the environment."""
    setattr(hydra_main, "ConfigLoaderImpl", CheckedLoader)  # noqa: B010
    OmegaConf.register_new_resolver("oc.env", _refuse_variable, replace=True)
    OmegaConf.register_new_resolver("in_folder", os.path.join, replace=True)


def _refuse_variable(name: str, *_: Any) -> NoReturn:
    raise InputError(
        f"${{oc.env:{name}}}: no key reads the environment, because a config of somebody else "
        f"could copy a secret; write KEY=${name} on the command line"
    )


def check_hydra(config: DictConfig, overrides: Sequence[str]) -> None:
    """Checks the part of a config that is for Hydra, and keeps nested targets from being called.

    Args:
        config: That part.
        overrides: What the user typed. `config.overrides` could come from a file.

    Raises:
        InputError: If it could run code or write files; the message names the key.
    """
    raw = OmegaConf.to_container(config, resolve=False)
    if callbacks := _at(raw, "callbacks"):
        raise InputError(f"hydra.callbacks are not run: leave {callbacks} out")
    for key, (expected, mend) in _FIXED.items():
        if (value := _at(raw, key)) != expected:
            shown = "" if isinstance(value, dict | list) else f"={value}"
            raise InputError(f"hydra.{key}{shown} is refused; {mend}")
    for part, known in _KNOWN.items():
        target = _at(raw, f"{part}._target_")
        if target not in known and not is_allowed(str(target)):
            raise InputError(f"hydra.{part}._target_={target!r} is none of {list(known)}")
        with flag_override(config[part], ["struct", "readonly"], [False, False]):
            config[part]["_recursive_"] = False
    launcher = OmegaConf.to_container(config.launcher, resolve=True, throw_on_missing=False)
    typed = [override.partition("=")[0].lstrip("+") for override in overrides]
    _check_launcher(launcher, "hydra.launcher", typed)


def _at(raw: Any, key: str) -> Any:
    for name in key.split("."):
        raw = raw.get(name) if isinstance(raw, dict) else None
    return raw


def _check_launcher(value: Any, key: str, typed: Sequence[str]) -> None:
    """Refuses what could become a command, unless the user has typed its key."""
    by_user = any(f"{key}.".startswith(f"{other}.") for other in typed)
    if key.rpartition(".")[2] in _ON_COMMAND_LINE and value and not by_user:
        raise InputError(
            f"{key}={value} may run code: if you trust it, give it on the command line"
        )
    if isinstance(value, str) and not value.isprintable():
        raise InputError(f"{key}={value!r}: leave line breaks and control characters out")
    items = value.items() if isinstance(value, Mapping) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for name, item in items:
        _check_launcher(item, f"{key}.{name}", typed)
