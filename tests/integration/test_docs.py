"""What the README promises, done."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_example_of_the_readme_runs_and_resumes(tmp_path, monkeypatch, capsys):
    readme = (ROOT / "README.md").read_text()
    ((example, shown),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", readme, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    first = capsys.readouterr().out
    assert first == shown
    journal = tmp_path / "outputs/my_system/journal.jsonl"
    before = journal.read_bytes()
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == first
    assert journal.read_bytes() == before


def test_the_figures_of_the_page_about_promises():
    page = ROOT / "docs" / "explanation" / "which-promise.md"
    text = page.read_text()
    shown = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert len(shown) == text.count("```python") == 2
    for source, printed in shown:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(source, page.name, "exec"), {})
        assert out.getvalue() == printed


@pytest.mark.slow
def test_what_the_tutorial_prints(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "tutorial.md").read_text()
    shown = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.DOTALL)
    assert sum(bool(printed) for _, printed in shown) == text.count("```text") == 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for source, printed in shown:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(source, "tutorial.md", "exec"), names)
        assert out.getvalue() == printed


@pytest.mark.slow
def test_six_million_configurations_fifty_times_faster_in_little_memory():
    """Ratio within one process; a part of Theta is evaluated directly and scaled."""
    # With more threads, other work on the machine makes each sum wait for the slowest of them.
    few = ["--threads", "1", "--direct", "4", "--steps", "1"]  # nothing is said of steps here
    command = [sys.executable, "scripts/benchmark_posterior.py", *few]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "6,436,343 configurations, 120 observed, 102 queries" in done.stdout
    numbers = {
        name: float(re.search(pattern, done.stdout)[1])
        for name, pattern in {
            "ratio": r"ratio direct / hamming grid: (\d+)",
            "peak_gib": r"so far: ([\d.]+) GiB",
            "error": r"largest relative difference: (\S+)",
        }.items()
    }
    assert numbers["ratio"] > 50
    assert numbers["peak_gib"] < 1.5
    assert numbers["error"] < 1e-9
