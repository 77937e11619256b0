"""What an import needs, and where every public name leads."""

import ast
import doctest
import importlib
import inspect
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from source_code import ROOT, modules

import scope_torch

OPTIONAL = ["hydra", "omegaconf", "wandb", "polars", "matplotlib", "pandas", "openai", "orjson"]
OPTIONAL += ["agentopt", "mlflow", "optuna", "starlette", "uvicorn", "httpx", "genai_prices"] + (
    [] if find_spec("pyro") else ["tqdm"]
)  # old botorch imports pyro and tqdm
# All other modules are the core: torch, gpytorch, botorch and numpy are enough for them.
NEED_MORE = (
    "cli",
    "integrations.agentopt",
    "tasks.frames",
    "tasks.table",
    "tasks.matrix",
    "tasks.live",
    "results.plotting",
    "selection.before",
    "selection.check",
    "selection.face",
    "selection.pairs",
    "selection.recheck",
    "selection.held_out",
    "selection.steps",
    "tracking.progress",
    "tracking.wandb",
)


def python(code: str, *options: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs code in a process that imports the package from `cwd`."""
    environment = {**os.environ, "PYTHONPATH": str(cwd)}
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def core() -> list[str]:
    names = [f"{name}." for name in modules() if name.startswith("scope_torch")]
    more = tuple(f"scope_torch.{name}." for name in NEED_MORE)
    return [name.removesuffix(".") for name in names if not name.startswith(more)]


@pytest.mark.slow
def test_core_and_benchmark_run_on_a_bare_machine():
    found = core()
    assert len(found) > 70
    assert not {"scope_torch.cli.run", "scope_torch.results.plotting"} & set(found)
    done = python(
        "import sys, importlib, runpy\n"
        f"sys.modules.update(dict.fromkeys({OPTIONAL!r}))\n"  # None: importing it fails
        f"for name in {found!r}: importlib.import_module(name)\n"
        "sys.argv = ['benchmark', '--modules', '3', '--llms', '4', '--queries', '9',"
        " '--configs', '12', '--direct', 'all', '--repeats', '1']\n"
        "runpy.run_path('scripts/benchmark_posterior.py', run_name='__main__')\n"
    )
    assert done.returncode == 0, done.stderr
    assert "ratio direct / hamming grid" in done.stdout


def test_the_package_itself_imports_neither_torch_nor_numpy():
    code = "import sys, scope_torch; print({n.partition('.')[0] for n in sys.modules})"
    done = python(code)
    assert done.returncode == 0, done.stderr
    imported = ast.literal_eval(done.stdout)
    assert "scope_torch" in imported
    assert not imported & {"torch", "numpy", "scipy", "gpytorch", "botorch", *OPTIONAL, "tqdm"}


@pytest.mark.slow
def test_a_copied_folder_without_metadata(tmp_path):
    """A folder on PYTHONPATH that pip knows nothing of; every warning is an error."""
    shutil.copytree(ROOT / "scope_torch", tmp_path / "scope_torch")
    code = (
        "import importlib.metadata as m\n"
        "def version(name): raise m.PackageNotFoundError(name)\n"
        "m.version = version\n"
        "import scope_torch\n"
        "print(scope_torch.run.__module__, scope_torch.__version__, scope_torch.__file__)"
    )
    # linear_operator calls torch.jit.script when it is imported; see conftest.py.
    of_linear_operator = "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
    done = python(code, "-W", "error", "-W", of_linear_operator, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    file = str(tmp_path / "scope_torch" / "__init__.py")
    assert done.stdout.split() == ["scope_torch.runs.runner", "unknown", file]


def _type_checking_imports() -> dict[str, str]:
    """Name -> module, from the block under TYPE_CHECKING of the package."""
    tree = ast.parse(inspect.getsource(scope_torch))
    (block,) = [
        n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)
    ]
    found = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in found for alias in node.names}


@pytest.mark.parametrize("name", scope_torch.__all__)
def test_every_public_name_resolves(name):
    value = getattr(scope_torch, name)
    assert name in dir(scope_torch)
    if name != "__version__":
        module = _type_checking_imports()[name]
        assert value is getattr(importlib.import_module(module), name)


def test_the_three_lists_of_public_names_agree():
    listed = {name for name in scope_torch.__all__ if name != "__version__"}
    assert len(listed) == len(scope_torch.__all__) - 1
    where = {name: f"scope_torch.{module}" for name, module in scope_torch._MODULE_OF.items()}
    where["metrics"] = "scope_torch"  # a module
    assert where == _type_checking_imports()
    assert where.keys() == listed


def test_the_example_of_the_package():
    assert doctest.testmod(scope_torch) == (0, 3)  # failed, attempted


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'scope_torch' has no attribute 'runn'"):
        _ = scope_torch.runn
