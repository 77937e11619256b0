"""The command line, called in this process."""

import sys

import pytest
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra

from scope_torch.cli import main
from scope_torch.results import plotting


def _compose_once(patch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    """Hydra composes a config a first time only for `hydra.mode`; of ours, experiments set it."""
    words = ("hydra.mode", "experiment=", "config", "searchpath")
    if not any(word in argument for word in words for argument in arguments):
        patch.setattr(Hydra, "get_mode", lambda *_, **__: None)


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """Runs `scope-torch` in `tmp_path`; returns exit status, stdout and stderr.

    The figure of a run takes longer than most runs of the tests; it is drawn with `draw=True`.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCOPE_DATA_DIR", raising=False)
    monkeypatch.setenv("SCOPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def call(*arguments: str, draw: bool = False) -> tuple[int, str, str]:
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", ["scope-torch", *arguments])
        status = 0
        with monkeypatch.context() as patch:
            _compose_once(patch, arguments)
            if not draw:
                patch.setattr(plotting, "plot_curves", lambda *_, **__: None)
            try:
                main()
            except SystemExit as stop:
                status = int(stop.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """A report without its figures, which take longer than its runs."""
    monkeypatch.setattr("scope_torch.cli.report._figures", lambda *_: ())
