"""Sweeps under every launcher: directories, error logs, exit status, threads, resume."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from long_runs import among_others
from omegaconf import OmegaConf

from scope_torch.cli.registry import config_dir
from scope_torch.cli.run import enter_folder, limit_threads
from scope_torch.errors import InputError
from scope_torch.runs.journal import Journal

ROOT = Path(__file__).resolve().parents[2]
METHODS = sorted(p.stem for p in (Path(config_dir(), "method")).glob("*.yaml"))
SMALL = ["-m", "task=synthetic", "task.num_queries=8", "budget_usd=0.1"]
LAUNCHERS = {
    "parallel": ("joblib", ["hydra.launcher.n_jobs=2"]),
    "slurm_local": ("submitit", []),
    "cluster": ("ray", ["hydra.launcher.ray.init.num_cpus=2"]),
}


@pytest.fixture
def sweep(tmp_path):
    """Runs `scope-torch -m` in a process of its own, with the user's usual environment."""

    def start(*arguments: str, **environment: str) -> subprocess.Popen:
        inherited = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        settings = {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
        return subprocess.Popen(
            [sys.executable, str(ROOT / "scripts/run.py"), *SMALL, *arguments],
            cwd=tmp_path,
            env={**inherited, **settings, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def results(folder: Path) -> dict[str, dict]:
    paths = sorted(folder.rglob("result.json"))
    return {str(p.parent.relative_to(folder)): json.loads(p.read_text()) for p in paths}


def without_timing(found: dict[str, dict]) -> dict[str, dict]:
    volatile = ("timing", "paths")
    return {n: {k: v for k, v in r.items() if k not in volatile} for n, r in found.items()}


def basic_launcher() -> type:
    """The class that Hydra found when it looked for plugins, which is not the one to import."""
    name = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
    return Plugins.instance().class_name_to_class[name]


@pytest.mark.slow
def test_every_method_is_one_job_and_one_without_its_extra_fails_alone(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)  # importing it fails
    status, out, err = cli(*SMALL, "method=glob(*)")
    assert status == 2
    assert f"1 of {len(METHODS)} jobs failed" in err
    assert len(results(Path("outputs"))) == len(METHODS) - 1
    assert out.count("stopped: ") == len(METHODS) - 1
    log = Path("outputs/synthetic/optuna_gp/task.num_queries=8/seed=0/error.log")
    assert list(Path("outputs").rglob("error.log")) == [log]
    assert "pip install 'scope-torch[peers]'" in log.read_text()
    assert str(log.parent) in err


@pytest.mark.slow
def test_finished_runs_in_a_folder_that_was_moved_are_where_they_are_now(cli):
    """`result.json` has the folder in which they were made, which may be gone."""
    assert cli(*SMALL, "method=random_search", "seed=0,1")[0] == 0
    Path("outputs").rename("paper")
    status, out, _ = cli(*SMALL, "method=random_search", "seed=0,1", "output_dir=paper")
    assert status == 0
    folder = "paper/synthetic/random_search/task.num_queries=8"
    told = [line.strip() for line in out.splitlines() if "/seed=" in line]
    assert told == [f"{folder}/seed=0", f"{folder}/seed=1"]


@pytest.mark.slow
def test_a_single_run_with_a_wrong_value_leaves_no_directory(cli):
    status, _, err = cli("task=synthetic", "method=scope", "method.alpha=7")
    assert status == 2
    assert len(err.strip().splitlines()) == 1
    assert not Path("outputs").exists()


@pytest.mark.parametrize(
    "batch", [pytest.param([], marks=pytest.mark.slow), ["hydra.sweeper.max_batch_size=1"]]
)
def test_wrong_values_fail_in_their_own_jobs(cli, batch):
    status, _, err = cli(*SMALL, "method=scope", "method.alpha=7,0.3,8", *batch)
    assert status == 2
    assert "2 of 3 jobs failed" in err
    assert "Traceback" not in err
    logs = sorted(Path("outputs").rglob("error.log"))
    assert [log.read_text() for log in logs] == [
        f"alpha={value} must lie in (0, 1/2)\n" for value in (7.0, 8.0)
    ]
    assert len(results(Path("outputs"))) == 1
    assert cli(*SMALL, "method=scope", "method.alpha=0.3", *batch)[0] == 0


@pytest.mark.slow
def test_a_search_of_another_process_has_not_failed(cli):
    words = [*SMALL, "method=scope", "seed=0,1"]
    assert cli(*words)[0] == 0
    path = next(Path("outputs").rglob("seed=0/journal.jsonl"))
    path.with_name("result.json").unlink()
    with contextlib.closing(Journal(path)):
        status, _, err = cli(*words)
    assert (status, "in use by another process" in err) == (2, True)
    assert not list(Path("outputs").rglob("error.log"))


@pytest.mark.parametrize("launcher", ["parallel", "slurm", "cluster"])
def test_a_launcher_that_is_not_installed_names_its_extra(cli, monkeypatch, launcher):
    Plugins.instance()  # the plugins that are installed have registered themselves by now
    known = ConfigStore.instance().repo["hydra"]["launcher"]
    for name in ("joblib", "submitit_local", "submitit_slurm", "ray"):
        monkeypatch.delitem(known, f"{name}.yaml", raising=False)
    status, _, err = cli(*SMALL, f"hydra/launcher={launcher}")
    assert status == 2
    extra = {"parallel": "joblib", "slurm": "slurm", "cluster": "ray"}[launcher]
    assert f"pip install 'scope-torch[{extra}]'" in err


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_no_full_disk(cli, monkeypatch):
    """ConnectionError is an OSError, as is an error of the disk."""

    def launch(*_: object, **__: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(basic_launcher(), "launch", launch)
    status, _, err = cli(*SMALL)
    assert status == 2
    assert "the launcher failed: ConnectionError: Could not find any running Ray instance." in err
    assert "make room" not in err


def test_launchers_join_a_cluster_and_go_on_after_a_time_limit():
    """Ray refuses a size of its store for a cluster that runs; Slurm ends jobs at their limit."""
    folder = Path(config_dir(), "hydra", "launcher")
    cluster, slurm = (OmegaConf.load(folder / f"{name}.yaml") for name in ("cluster", "slurm"))
    assert OmegaConf.select(cluster, "ray.init.object_store_memory", default=1) is None
    assert slurm.max_num_timeout > 0


@pytest.mark.slow
def test_a_worker_in_another_folder_uses_the_folder_of_the_command(cli, tmp_path, monkeypatch):
    """As the worker of a Ray that was started elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    of_launcher = basic_launcher().launch.__globals__
    run_job, calls = of_launcher["run_job"], []

    def run_elsewhere(**arguments: object) -> object:
        monkeypatch.chdir(elsewhere)
        calls.append(arguments)
        return run_job(**arguments)

    monkeypatch.setitem(of_launcher, "run_job", run_elsewhere)
    assert cli(*SMALL, "method=random_search", "output_dir=relative")[0] == 0
    assert len(calls) == len(results(tmp_path / "relative")) == 1
    assert not list(elsewhere.iterdir())


def test_a_worker_without_the_folder_of_the_command_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="give an absolute output_dir in a folder that all"):
        enter_folder(str(tmp_path / "missing"), Path("outputs"))
    enter_folder(str(tmp_path / "missing"), tmp_path / "outputs")  # then it is not needed
    assert Path.cwd() == tmp_path


@pytest.mark.slow
def test_slurm_without_slurm_is_one_line(cli, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", "")
    status, _, err = cli(*SMALL, "hydra/launcher=slurm")
    assert status == 2
    assert "srun" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "launcher",
    ["parallel", among_others("slurm_local"), "cluster"],
)
@pytest.mark.slow
def test_a_launcher_gives_what_one_job_after_another_gives(cli, sweep, launcher, tmp_path):
    module, settings = LAUNCHERS[launcher]
    # Ray needs an older cloudpickle than joblib: `make test-slow` has it apart.
    apart = os.environ.get("SCOPE_RAY") if launcher == "cluster" else None
    found_in = {"PYTHONPATH": os.pathsep.join([apart, str(ROOT)])} if apart else {}
    if not apart:
        pytest.importorskip(module)
    jobs = ["method=scope", "seed=0,1", "method.bounds.b_g=loo_widening,-1"]
    assert cli(*SMALL, *jobs, "output_dir=serial")[0] == 2
    process = sweep(*jobs, f"hydra/launcher={launcher}", *settings, **found_in)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2, err
    assert "2 of 4 jobs failed" in err
    logs = sorted((tmp_path / "outputs").rglob("error.log"))
    assert [log.read_text() for log in logs] == ["b_g=-1 must be a positive number\n"] * 2
    assert all(str(log.parent.relative_to(tmp_path)) in err for log in logs)
    found, serial = results(tmp_path / "outputs"), results(tmp_path / "serial")
    assert len(serial) == 2
    assert without_timing(found) == without_timing(serial)
    cpus = len(os.sched_getaffinity(0))
    expected = max(1, cpus // 2) if launcher == "parallel" else 1
    assert {result["timing"]["threads"] for result in found.values()} == {expected}


def test_threads_follow_the_launcher_unless_the_user_set_them(monkeypatch):
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    limit_threads(OmegaConf.create({"cpus_per_task": 3}))
    monkeypatch.delenv("OMP_NUM_THREADS")
    limit_threads(OmegaConf.create({"n_jobs": 2}))
    limit_threads(OmegaConf.create({"cpus_per_task": None}))
    assert chosen == []
    limit_threads(OmegaConf.create({"cpus_per_task": 3}))
    assert chosen == [3]


@pytest.mark.slow
def test_a_killed_worker_ends_the_sweep_with_one_message(sweep, tmp_path):
    pytest.importorskip("joblib")
    endless = ["task.num_queries=2000", "budget_usd=1000", "method.gap_tolerance=null"]
    process = sweep(*endless, "seed=0,1", "hydra/launcher=parallel", "hydra.launcher.n_jobs=2")
    os.kill(_worker_with_a_journal(process), signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2, err
    assert "the launcher failed: TerminatedWorkerError" in err
    assert "the same command goes on" in err
    assert list(tmp_path.rglob("journal.jsonl"))


def _worker_with_a_journal(process: subprocess.Popen) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None:
        for worker in children.read_text().split():
            with contextlib.suppress(OSError):
                files = [os.readlink(fd) for fd in Path(f"/proc/{worker}/fd").iterdir()]
                if any(name.endswith("journal.jsonl") for name in files):
                    return int(worker)
        time.sleep(0.05)
    raise AssertionError("no job began")
