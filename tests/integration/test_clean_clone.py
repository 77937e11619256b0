"""The README, followed by somebody who has just cloned the repository and set nothing.

In `make test-long` the clone makes an environment of its own, as CI does, else it has ours.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from long_runs import IS_LONG, only_long

ROOT = Path(__file__).resolve().parents[2]
KEPT = ("PATH", "PIP_", "SSL_CERT", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")  # how pip gets out
Run = Callable[..., str]


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.upper().startswith(KEPT)}
    return {**kept, "HOME": str(home), "LANG": "C.UTF-8"}


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """The last commit, nothing beside it, no data."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    folder = tmp_path_factory.mktemp("clean")
    if IS_LONG:
        download = ["download", "-q", "--no-deps", "-d", folder / "d", "tqdm"]
        reached = subprocess.run([sys.executable, "-m", "pip", *download], capture_output=True)
        if reached.returncode:
            pytest.skip("pip reaches no package index")
    subprocess.run(["git", "clone", "-q", ROOT, folder / "clone"], check=True)
    return folder / "clone"


@pytest.fixture(scope="module")
def run_in_clone(clone) -> Run:
    def call(*command: str, status: int = 0, **variables: str) -> str:
        env = {**environment(clone.parent), **variables}
        if not IS_LONG:
            env["PYTHONPATH"] = str(clone)
        done = subprocess.run(
            command, cwd=clone, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout + done.stderr

    return call


@only_long  # CI itself is a clean clone
@pytest.mark.slow
def test_the_readme_in_a_clean_clone(clone, run_in_clone):
    """In this order, as each uses what the one before made."""
    venv = ".venv" if IS_LONG else sys.prefix
    make = ["make"] if IS_LONG else ["make", f"VENV={venv}", "-o", f"{venv}/installed"]
    printed = run_in_clone(*make, "run")
    ((folder, png),) = re.findall(r"written to (\S+): .*?(\S+\.png)", printed, re.DOTALL)[-1:]
    assert (clone / folder / png).read_bytes().startswith(b"\x89PNG")
    runs = sorted((clone / "outputs/airport_city/scope_joint").glob("seed=*"))
    assert [path.name for path in runs] == ["seed=0", "seed=1", "seed=2"]
    journals = [(path / "journal.jsonl").read_bytes() for path in runs]
    run_in_clone(*make, "run")  # resumes, and nothing is left to do
    assert [(path / "journal.jsonl").read_bytes() for path in runs] == journals

    if IS_LONG:  # CI runs all tests in a clean checkout; here it is whether they would start
        printed = run_in_clone("make", "test", PYTEST_ADDOPTS="tests/test_space.py")
        assert re.search(r"\b0 errors", printed)
        assert re.search(r"[1-9]\d* passed", printed)

    text = (clone / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (clone / "example.py").write_text(example)
    assert "certified" in run_in_clone(f"{venv}/bin/python", "example.py")
    scope_torch = f"{venv}/bin/scope-torch"
    run_in_clone(scope_torch, "watch", "outputs/my_system")
    assert list((clone / "outputs/my_system").glob("*.html"))
    wrong = run_in_clone(scope_torch, "method=scop", status=2)
    assert "scope_coarse" in wrong
    assert "Traceback" not in wrong
    left = run_in_clone("git", "status", "--porcelain").split()
    assert left == ["??", "example.py", "??", "models.json", "??", "report.html"]
