"""A Ray cluster as a `concurrent.futures.Executor`, which Ray itself does not have."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from importlib import import_module
from typing import Any

from scope_torch.errors import InputError


class RayExecutor(Executor):
    """Runs each call as a task of Ray, for `select(executor=RayExecutor(address="auto"))`.

    Args:
        address: Of the cluster, as `ray.init` takes it, unless Ray is connected already: "auto" for
            the one of this machine; None starts one here.
        options: Of each task, as `ray.remote` takes them, such as num_cpus=0.1 or
            runtime_env={"pip": [...]}. A task of a lost worker is not started again by Ray, but by
            the search, which books it.

    Raises:
        InputError: If Ray is not installed.
    """

    def __init__(self, address: str | None = None, **options: Any) -> None:
        try:
            self._ray: Any = import_module("ray")
        except ImportError:
            raise InputError("RayExecutor needs the package ray: pip install ray") from None
        if not self._ray.is_initialized():
            self._ray.init(address=address, log_to_driver=False)
        self._run = self._ray.remote(**{"max_retries": 0, **options})(_called)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Starts a task; its future fails with Ray's error if the worker is lost."""
        return self._run.remote(fn, args, kwargs).future()


def _called(function: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
    return function(*arguments, **keywords)
