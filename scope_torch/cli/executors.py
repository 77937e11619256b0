"""Where the runs of an application go, from a command line: `--executor dask=tcp://...`."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any

from scope_torch.errors import InputError
from scope_torch.evaluators.elsewhere import Made
from scope_torch.integrations.ray import RayExecutor


def executor_of(text: str, concurrency: int | None) -> Made:
    """The executor of `--executor`.

    Args:
        text: `processes` of this machine, a new one for each that is lost; `dask=ADDRESS` of a
            scheduler; `ray`, the cluster of this machine, or `ray=ADDRESS`.
        concurrency: Runs at a time, and so processes; None for 1.

    Raises:
        InputError: If it is none of these, or its package is not installed.

    Examples:
        >>> executor_of("processes", 4).args
        (4,)
    """
    kind, _, address = text.partition("=")
    if kind == "processes" and not address:
        spawn = multiprocessing.get_context("spawn")
        return partial(ProcessPoolExecutor, concurrency or 1, mp_context=spawn)
    if kind == "dask" and address:
        try:
            distributed: Any = import_module("distributed")
        except ImportError:
            raise InputError("--executor dask needs the package: pip install distributed") from None
        try:
            return distributed.Client(address, timeout=10).get_executor()
        except (OSError, ValueError) as error:
            raise InputError(f"--executor {text}: no scheduler answers there ({error})") from error
    if kind == "ray":
        try:
            return RayExecutor(address=address or "auto")
        except ConnectionError as error:
            raise InputError(f"--executor {text}: no cluster answers there ({error})") from error
    raise InputError(f"--executor {text}: write processes, dask=ADDRESS, ray or ray=ADDRESS")
