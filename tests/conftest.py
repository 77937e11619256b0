"""Fixtures shared by all tests."""

import asyncio
import functools
import gc
import os
import signal
import socket
from collections import Counter
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from typing import TextIO

import hypothesis
import omegaconf
import pytest
import torch
import yaml
from hydra.core.config_store import ConfigStore
from real_data import NO_DATA

hypothesis.settings.register_profile("any machine", deadline=None)  # or 200 ms for an example
hypothesis.settings.load_profile("any machine")
MEMORY = "/dev/shm"  # a file system of Linux that no disk is behind
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of what a script starts with `&`
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.path.isdir(MEMORY):
        memory = os.statvfs(MEMORY)
        # A run waits for the disk after every observation; nothing waits for memory.
        if memory.f_bavail * memory.f_frsize > 4 << 30 and not memory.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)
    # linear_operator uses torch.jit.script at import; nothing here can change that.
    config.addinivalue_line(
        "filterwarnings", r"ignore:`torch\.jit\.script` is deprecated:DeprecationWarning"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported here stays: looking through it again and again for garbage takes long."""
    gc.disable()
    done = yield
    gc.freeze()
    gc.enable()
    return done


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line says what a clone without the data of others has not tested."""
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    lacking = Counter(
        text.partition(NO_DATA)[2].rstrip("')") for text in skipped if NO_DATA in text
    )
    if lacking:
        told = ", ".join(f"{path} ({number})" for path, number in sorted(lacking.items()))
        terminalreporter.write_line(f"SCOPE_DATA_DIR: {lacking.total()} tests lack data: {told}")


class _QuickAsyncio:
    """asyncio, whose waits are short."""

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))


class _RememberedYaml:
    """YAML, which reads the text of a config once; OmegaConf copies what it gets."""

    def __init__(self) -> None:
        self._known: dict[str, object] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(yaml, name)

    def load(self, source: str | TextIO, Loader: type) -> object:
        text = source if isinstance(source, str) else source.read()
        if text not in self._known:
            self._known[text] = yaml.load(text, Loader=Loader)
        return self._known[text]


@pytest.fixture(autouse=True, scope="session")
def _quick_libraries() -> Iterator[None]:
    """What others do slowly a thousand times, and no test is about.

    Uvicorn looks every 0.1 s whether it shall end. Hydra copies all schemas for each config, though
    it copies a schema again before it changes it. OmegaConf parses the same interpolations in it.
    """
    parse = functools.cache(omegaconf.base.parse)
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("uvicorn") is not None:
            patch.setattr("uvicorn.server.asyncio", _QuickAsyncio())
        patch.setattr(ConfigStore, "__deepcopy__", lambda self, _: self, raising=False)
        for module in (omegaconf.base, omegaconf._utils):
            patch.setattr(module, "parse", parse)
        patch.setattr(omegaconf.omegaconf, "yaml", _RememberedYaml())
        yield


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only sockets inside this machine's file system may connect."""

    def guarded(method: str) -> None:
        connect = getattr(socket.socket, method)

        def only_unix(self: socket.socket, address: object) -> object:
            if self.family != getattr(socket, "AF_UNIX", None):
                raise RuntimeError(f"a test tried to connect to {address!r}; the network is off")
            return connect(self, address)

        monkeypatch.setattr(socket.socket, method, only_unix)

    guarded("connect")
    guarded("connect_ex")


@pytest.fixture
def as_if_drawn(monkeypatch):
    """Tables pass for systems whose answers vary: only what a search asks is of interest."""
    monkeypatch.setattr("scope_torch.evaluators.table.TableEvaluator.copies", False)
