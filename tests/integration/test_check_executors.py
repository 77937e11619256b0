"""`--executor` of `check` and `recheck`: what a text means, and what is refused in one line."""

import sys
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace

import pytest

from scope_torch.cli import executors
from scope_torch.cli.executors import executor_of
from scope_torch.errors import InputError


def test_processes_are_made_anew():
    made = executor_of("processes", 3)
    assert made.func is ProcessPoolExecutor
    assert made.args == (3,)
    assert made.keywords["mp_context"].get_start_method() == "spawn"
    assert executor_of("processes", None).args == (1,)


def test_dask_and_ray_get_the_address(monkeypatch):
    def client(address, timeout):
        assert timeout == 10
        return SimpleNamespace(get_executor=lambda: f"executor at {address}")

    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=client))
    assert executor_of("dask=tcp://one:8786", None) == "executor at tcp://one:8786"
    monkeypatch.setattr(executors, "RayExecutor", lambda address: f"ray at {address}")
    assert executor_of("ray", 8) == "ray at auto"
    assert executor_of("ray=ray://one:10001", 8) == "ray at ray://one:10001"


def raising(error):
    def raises(*_, **__):
        raise error

    return raises


@pytest.mark.parametrize(
    "text", ["threads", "", "dask", "dask=", "processes=4", "Ray", "dask tcp://one:8786"]
)
def test_others_are_refused(text):
    with pytest.raises(InputError, match="write processes, dask=ADDRESS, ray or ray=ADDRESS"):
        executor_of(text, None)


def test_who_does_not_answer_is_named(monkeypatch):
    unreachable = SimpleNamespace(Client=raising(OSError("timed out")))
    monkeypatch.setitem(sys.modules, "distributed", unreachable)
    with pytest.raises(InputError, match="dask=tcp://gone:1: no scheduler answers there"):
        executor_of("dask=tcp://gone:1", None)
    monkeypatch.setattr(executors, "RayExecutor", raising(ConnectionError("no")))
    with pytest.raises(InputError, match="--executor ray: no cluster answers there"):
        executor_of("ray", None)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match="pip install distributed"):
        executor_of("dask=tcp://one:1", None)
