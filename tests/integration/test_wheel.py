"""The wheel in a clean environment, used in a project with packages named as folders here."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from long_runs import only_long

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"scope_torch", "hydra_plugins"}
SMALL = ["task=synthetic", "task.num_queries=8", "budget_usd=0.2"]
BUILD = "import sys; from hatchling import build; build.build_{}(sys.argv[1])"
OWN_EXPERIMENT = """\
# @package _global_
defaults:
  - override /task: synthetic
experiment: mine
hydra: {mode: MULTIRUN, sweeper: {params: {method: "scope,random_search"}}}
"""
# The console script of the wheel for several command lines, each in a child that is forked when all
# is imported. Prints a line of JSON for each: exit status, and what it has printed.
MANY = """
import json, os, sys
from scope_torch.cli.run import main
import scope_torch.methods, scope_torch.results.plotting

for arguments in json.loads(sys.argv[1]):
    if child := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with open("told.txt") as file:
            print(json.dumps([status, file.read()]), flush=True)
        continue
    told = os.open("told.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(told, stream.fileno())
    sys.argv = ["scope-torch", *arguments]
    sys.exit(main())
"""
Run = Callable[..., str]


def called(*command: object, cwd: Path, status: int = 0, **variables: str) -> str:
    """What a process prints; PYTHONPATH, by which it could see the repository, is not inherited."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SCOPE_"))}
    env = {**inherited, **variables}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """A wheel built from the repository, and one built from the sdist."""
    folder = tmp_path_factory.mktemp("built")
    tools = folder / "tools"
    got = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--target", tools, "hatchling>=1.25"],
        capture_output=True,
        check=False,
    )
    if got.returncode:
        pytest.skip("pip reaches no package index")

    def build(kind: str, source: Path, name: str) -> Path:
        (folder / name).mkdir()
        command = [sys.executable, "-c", BUILD.format(kind), folder / name]
        called(*command, cwd=source, PYTHONPATH=str(tools))
        (path,) = (folder / name).iterdir()
        return path

    with tarfile.open(build("sdist", ROOT, "sdist")) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return build("wheel", ROOT, "direct"), build("wheel", unpacked, "from_sdist")


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def in_project(built, tmp_path_factory) -> Run:
    """Runs a command of the installed wheel in somebody's project."""
    folder = tmp_path_factory.mktemp("installed")
    venv, project = folder / "venv", folder / "project"
    called(sys.executable, "-m", "venv", "--without-pip", venv, cwd=folder)
    python = venv / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
    called(*pip, "--no-deps", "--no-index", built[1], cwd=folder)
    # The dependencies of the running environment, without its .pth files: those of an editable
    # install of this repository are not processed there.
    (packages,) = venv.glob("lib/python*/site-packages")
    theirs = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("\n".join(theirs) + "\n")
    for name in ("baselines", "conf", "scripts"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("raise RuntimeError('the package of a user')")
    (project / "conf" / "experiment").mkdir()
    (project / "conf" / "experiment" / "mine.yaml").write_text(OWN_EXPERIMENT)

    def run(program: str, *arguments: object, status: int = 0) -> str:
        path = venv / "bin" / program
        return called(path, *arguments, cwd=project, status=status, PYTHONPATH=str(project))

    return run


@pytest.mark.slow
def test_what_the_wheel_brings(built):
    direct, from_sdist = map(contents, built)
    assert direct.keys() == from_sdist.keys()
    roots = {name.partition("/")[0] for name in direct}
    assert {root for root in roots if not root.endswith(".dist-info")} == PACKAGES
    tracked = called("git", "ls-files", "conf", "scope_torch", "baselines", cwd=ROOT).split()
    tracked.remove("scope_torch/baselines")  # a link
    expected = {n if n.startswith("scope_torch/") else f"scope_torch/{n}" for n in tracked}
    assert {name for name in direct if name.startswith("scope_torch/")} == expected
    (entry_points,) = [v for k, v in direct.items() if k.endswith("entry_points.txt")]
    assert entry_points.decode().split() == [
        "[console_scripts]",
        "scope-torch",
        "=",
        "scope_torch.cli:main",
    ]


@pytest.mark.slow
def test_the_commands_in_a_project_with_packages_of_the_same_names(in_project):
    told = in_project("python", "-c", "import scope_torch as s; print(s.__file__, s.__version__)")
    assert "/installed" in told
    assert "unknown" not in told
    assert "spent" in in_project("scope-torch", *SMALL, "output_dir=one")
    run_dir = "one/synthetic/scope_joint/task.num_queries=8/seed=0"
    table = ["task=table", "task.path=runs.csv", "task.module_columns=[module_1,module_2]"]
    table += ["task.reference=[frontier,frontier]", "base=nano", "budget_usd=0.2"]
    held_out = ["--theta", *["GPT-5-nano"] * 3, "--", "task=data_imputation"]
    lines = {
        "two": ["-m", *SMALL, "seed=0,1", "output_dir=two"],
        "watch": ["watch", run_dir],
        "report": ["report", "two"],
        "record": ["record_table", "runs.csv", *SMALL],
        "table": table,
        "random": ["method=random_search", *SMALL],
        "held out": ["evaluate", *held_out],
        "wrong": ["method=scop"],
    }
    many = Path(told.split()[0]).parents[4] / "bin" / "many.py"  # beside the console script
    many.write_text(MANY)
    printed_lines = in_project("python", many, json.dumps([*lines.values()])).splitlines()
    told = dict(zip(lines, map(json.loads, printed_lines), strict=True))
    assert {name: status for name, (status, _) in told.items() if status} == {"wrong": 2}
    printed = {name: text for name, (_, text) in told.items()}
    assert printed["two"].count("; spent ") == 2
    assert "watch.html" in printed["watch"]
    assert "| synthetic | scope" in printed["report"]
    assert "spent" in printed["table"]
    assert "spent" in printed["random"]
    assert "held-out queries" in printed["held out"]
    assert "Could not find 'method/scop'" in printed["wrong"]


@only_long
@pytest.mark.slow
def test_launchers_and_configs_of_ones_own_with_the_wheel(in_project):
    small = [word for word in SMALL if not word.startswith("task=")]
    told = in_project("scope-torch", "--config-dir", "conf", "experiment=mine", *small)
    assert told.count("; spent ") == 2
    search_path = "hydra.searchpath=[file://conf]"
    assert in_project("scope-torch", search_path, "experiment=mine", *small).count("; spent ") == 2
    pytest.importorskip("joblib")
    pytest.importorskip("submitit")
    for launcher in ("parallel", "slurm_local"):
        sweep = [*SMALL, "seed=0,1", f"hydra/launcher={launcher}", f"output_dir={launcher}"]
        in_project("scope-torch", "-m", *sweep)
        report = in_project("scope-torch", "report", launcher)
        assert re.search(r"\| synthetic \| scope[^|]*\| 2 +\|", report)
