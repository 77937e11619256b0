"""Sweeps on a running Ray: a head and two nodes with a worker each, all on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from clusters import daemons, ended, environment, free_port, has_journal, results, sweep, wait_for
from long_runs import only_long

# Ray and its launcher need an older cloudpickle than joblib: `make test-slow` has them apart.
FOLDER = os.environ.get("SCOPE_RAY", "")
INSTALLED = all(
    Path(FOLDER, *name.split(".")).is_dir() if FOLDER else find_spec(name) is not None
    for name in ("ray", "hydra_plugins.hydra_ray_launcher")
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INSTALLED, reason="ray is not installed: make build/ray"),
]
RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
NO_PORTS = [  # or Ray takes those from 10002 to 19999
    *("--min-worker-port=0", "--max-worker-port=0", "--node-ip-address=127.0.0.1"),
    *("--disable-usage-stats", "--object-store-memory=100000000", "--block"),
]


@pytest.fixture(scope="module", name="known")
def environment_with_ray():
    """The environment in which a process finds Ray."""
    here = environment(RAY_USAGE_STATS_ENABLED="0", RAY_DISABLE_IMPORT_WARNING="1")
    here["PYTHONPATH"] = os.pathsep.join(filter(None, [FOLDER, here["PYTHONPATH"]]))
    return here


@pytest.fixture(scope="module", name="address")
def address_of_ray(known, tmp_path_factory):
    """Address of a Ray that was started in another folder than the sweeps."""
    folder = tmp_path_factory.mktemp("head")
    short = tempfile.mkdtemp(prefix="ray")  # paths of sockets have at most 107 characters
    address = f"127.0.0.1:{free_port()}"
    head = ["--head", f"--port={address.partition(':')[2]}", "--num-cpus=0", f"--temp-dir={short}"]
    with daemons() as start:
        first = start(
            [
                *(*RAY, "start", *head, "--include-dashboard=false"),
                *(f"--ray-client-server-port={free_port()}", *NO_PORTS),
            ],
            folder,
            known,
        )
        log = folder / "daemon0.log"
        wait_for(lambda: "Ray runtime started" in log.read_text(), "no head came up", first)
        for name in "daemon1.log", "daemon2.log":
            start([*RAY, "start", f"--address={address}", "--num-cpus=1", *NO_PORTS], folder, known)
            log = folder / name
            wait_for(
                lambda log=log: "Ray runtime started" in log.read_text(), "no node came up", first
            )
        yield address
        assert sorted(path.name for path in folder.iterdir()) == [
            f"daemon{number}.log" for number in range(3)
        ]
    shutil.rmtree(short, ignore_errors=True)


def worker_with_journal(folder: Path) -> int | None:
    """The process of a job in `folder`."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                files = [os.readlink(file) for file in (process / "fd").iterdir()]
            except OSError:  # it ended, or is of another user
                continue
            if any(f.startswith(str(folder)) and f.endswith("journal.jsonl") for f in files):
                return int(process.name)
    return None


@only_long
def test_a_running_ray_gives_what_one_job_after_another_gives(known, address, tmp_path):
    """With a relative `output_dir`, and a worker that is killed and that Ray starts again."""
    launcher = ["hydra/launcher=cluster", f"hydra.launcher.ray.init.address={address}"]
    process = sweep(tmp_path, known, "seed=0,1", *launcher)
    wait_for(lambda: has_journal(tmp_path, 0), "no job began", process)
    wait_for(lambda: has_journal(tmp_path, 1), "one worker has both jobs", process)
    killed = worker_with_journal(tmp_path)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "synthetic scope seed 0:" in out  # Ray hides neither summary, though they look alike
    assert "synthetic scope seed 1:" in out
    assert not list(tmp_path.rglob("error.log"))
    assert ended(sweep(tmp_path, known, "seed=0,1", "output_dir=serial"))[0] == 0
    assert len(results(tmp_path / "serial")) == 2
    assert results(tmp_path / "outputs") == results(tmp_path / "serial")
