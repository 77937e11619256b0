"""The core needs torch, gpytorch, botorch and numpy, and nothing else."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = ["hydra", "omegaconf", "wandb", "polars", "matplotlib", "pandas", "openai", "orjson"]
OPTIONAL += [] if find_spec("pyro") else ["tqdm"]  # older releases of botorch import both
NEED_MORE = ("tasks.table", "tasks.live", "runs.plotting", "tracking.progress", "tracking.wandb")


def test_core_imports_on_a_bare_machine():
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "scope_torch").rglob("*.py"))
        if path.name != "__init__.py"
    ]
    core = [m for m in modules if not m.endswith(NEED_MORE) and ".cli." not in m]
    assert len(core) > 15
    code = (
        "import sys, importlib\n"
        f"sys.modules.update(dict.fromkeys({OPTIONAL!r}))\n"  # None: importing it fails
        f"for name in {core!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_benchmark_needs_no_hydra_or_wandb():
    code = (
        "import sys, runpy\n"
        f"sys.modules.update(dict.fromkeys({OPTIONAL!r}))\n"
        "sys.argv = ['benchmark', '--modules', '3', '--llms', '4', '--queries', '9',"
        " '--configs', '12', '--direct', 'all', '--repeats', '1']\n"
        "runpy.run_path('scripts/benchmark_posterior.py', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ratio direct / hamming grid" in done.stdout
