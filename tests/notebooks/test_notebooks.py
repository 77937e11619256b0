"""Every notebook runs, draws, and still shows what its text says."""

import ast
import importlib
import re
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import scope_torch.results.plotting

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
SHOWN = {  # figures, and what a notebook's text relies on
    "quickstart": (1, [r"certified on these 60 queries", r"quality 0\.9\d\d \(at least 0\.900"]),
    "reading_a_result": (
        2,
        [
            r"- accepted \(tuned\)\n",
            r"c: at least L for 36 of 36, at most U for 15\n",
            r"g: at least L for 36 of 36, at most U for 36\n",
            r"theory .* pruned \d+ of",
        ],
    ),
    "surrogate": (3, [r"means: \de-1[67]\n", r"variances: \de-1[67]\n", r"difference: \de-1[67]\n",
                      r"sum: \de-1[45]\n"]),
    "three_constraints": (1, [r"satisfies all three: True\n", r"feasible: True\n"]),
    "paper_figures": (2, [r"runs\.csv\ntable\.md", r"scope +c_bf .*%; V: 0, 0\n"]),
}  # fmt: skip


LONG = ("paper_figures", "surrogate", "three_constraints")


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if path.stem in LONG else ()) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_runs_and_shows_what_it_says(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCOPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    plt.switch_backend("Agg")
    shown = []

    def show() -> None:
        for number in plt.get_fignums():
            figure = plt.figure(number)
            figure.canvas.draw()
            shown.append(figure)
        plt.close("all")

    monkeypatch.setattr(plt, "show", show)
    runpy.run_path(str(path), run_name="__main__")
    assert not plt.get_fignums()
    out = capsys.readouterr().out
    figures, patterns = SHOWN[path.stem]
    assert len(shown) == figures
    for pattern in patterns:
        assert re.search(pattern, out), f"{pattern} is not in:\n{out}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_uses_public_names_only(path):
    text = path.read_text()
    assert text.startswith("# %% [markdown]\n# # ")
    for node in ast.walk(ast.parse(text)):
        names = [node.attr] if isinstance(node, ast.Attribute) else []
        if isinstance(node, ast.ImportFrom):
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
        assert not [name for name in names if name.startswith("_")]


def test_plotting_leaves_the_backend_alone():
    """Else a notebook that imports it would show no figures any more."""
    plt.switch_backend("svg")
    importlib.reload(scope_torch.results.plotting)
    assert plt.get_backend() == "svg"
    plt.switch_backend("Agg")
