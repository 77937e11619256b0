"""`select(executor=...)` on real clusters, on this machine: Dask with worker processes, Ray, MPI.

They decide no dependency of the others: `make test-slow` has them apart.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from evaluators.far_apps import App, calls
from integration.doc_pages import DOCS, blocks, python
from long_runs import only_long
from selection.test_executor import settings
from source_code import ROOT

import scope_torch as st

PAGE = DOCS / "howto/more-than-one-machine.md"
PROGRAM = """
import json, os, sys
from evaluators.far_apps import SlowApp
from selection.test_executor import settings
import scope_torch as st

def searched(executor):
    changes = json.loads(sys.argv[2])
    result = st.select(SlowApp(sys.argv[1]), **settings(executor=executor, **changes))
    told = {"choice": result.choice, "lost": len(result.lost), "calls": result.bill.num_calls}
    print(json.dumps(told))

if __name__ == "__main__":
"""
DASK = """
    import dask
    from distributed import Client, LocalCluster

    dask.config.set({"distributed.scheduler.allowed-failures": 0})
    how = {"n_workers": 2, "threads_per_worker": 2, "processes": True, "dashboard_address": None}
    with LocalCluster(**how) as cluster, Client(cluster) as client:
        searched(client.get_executor())
"""
RAY = """
    from scope_torch.integrations.ray import RayExecutor

    searched(RayExecutor(num_cpus=0.5))
"""
TWO_NODES = """
    import ray
    from ray.cluster_utils import Cluster
    from scope_torch.integrations.ray import RayExecutor

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    executor = RayExecutor(cluster.address, scheduling_strategy="SPREAD")
    assert sum(node["Resources"].get("CPU", 0) == 1 for node in ray.nodes()) == 2
    searched(executor)
    ray.shutdown()
    cluster.shutdown()
"""
MPI = """
    from mpi4py.futures import MPIPoolExecutor

    with MPIPoolExecutor() as executor:
        assert executor.num_workers == 2
        searched(executor)
"""


def needs(package: str, variable: str) -> pytest.MarkDecorator:
    folder = Path(os.environ.get(variable, ""), package)
    there = folder.is_dir() if variable in os.environ else importlib.util.find_spec(package)
    target = f"build/{variable.removeprefix('SCOPE_').lower()}"
    return pytest.mark.skipif(not there, reason=f"{package} is not installed: make {target}")


CLUSTERS = [
    pytest.param(DASK, "SCOPE_DASK", id="dask", marks=needs("distributed", "SCOPE_DASK")),
    pytest.param(RAY, "SCOPE_RAY", id="ray", marks=needs("ray", "SCOPE_RAY")),
]
NODES = pytest.param(TWO_NODES, "SCOPE_RAY", id="ray-nodes", marks=needs("ray", "SCOPE_RAY"))
# Starting a Ray takes longest; one of two nodes is always tested.
FEW = [
    CLUSTERS[0],
    pytest.param(*CLUSTERS[1].values, id="ray", marks=[*CLUSTERS[1].marks, only_long]),
]
MPI_FOLDER = Path(os.environ.get("SCOPE_MPI", ""))  # a prefix
pytestmark = pytest.mark.slow


def environment(variable: str, home: Path) -> dict[str, str]:
    """Home: Ray writes a token there."""
    path = [os.environ.get(variable, ""), str(ROOT), str(ROOT / "tests")]
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "HOME": str(home)}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), **quiet}


def started(program: str, variable: str, folder: Path, **changes: object) -> subprocess.Popen:
    (folder / "program.py").write_text(PROGRAM + program)
    command = [sys.executable, str(folder / "program.py"), str(folder), json.dumps(changes)]
    known = environment(variable, folder)
    return subprocess.Popen(command, cwd=folder, env=known, text=True, stdout=-1, stderr=-1)


def told(process: subprocess.Popen) -> dict:
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    return json.loads(out.strip().splitlines()[-1])


def history(folder: Path) -> list:
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in line.items() if k != "crc"} for line in lines if "lost" not in line]
    return sorted(kept, key=lambda line: (line["theta"], line["query"], line["replicate"]))


@pytest.mark.parametrize(("program", "variable"), [*FEW, NODES])
def test_a_cluster_whose_worker_is_killed_gives_what_a_sequential_search_gives(
    program, variable, tmp_path
):
    here = st.select(App(tmp_path), **settings(concurrency=1, run_dir=tmp_path / "here"))
    (tmp_path / "calls.txt").unlink()
    process = started(program, variable, tmp_path, run_dir=str(tmp_path / "run"))
    deadline = time.monotonic() + 300
    while len(calls(tmp_path)) < 40:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(int(calls(tmp_path)[-1][0]), signal.SIGKILL)  # within the 0.2 s of its call
    found = told(process)
    assert found["choice"] == here.choice
    assert 1 <= found["lost"] <= 3  # a worker of Dask has two threads
    assert found["calls"] == here.bill.num_calls + found["lost"]
    # A call on the other thread of the worker may have been lost before its first line.
    assert here.bill.num_calls < len(calls(tmp_path)) <= found["calls"]
    assert history(tmp_path / "run") == history(tmp_path / "here")
    assert str(process.pid) not in {call[0] for call in calls(tmp_path)}


@pytest.mark.skipif(
    not (MPI_FOLDER / "bin" / "mpiexec").exists(), reason="no mpi4py and MPI: make build/mpi"
)
def test_mpi_gives_what_a_sequential_search_gives(tmp_path):
    """A dead process ends all of MPI, so none is killed here."""
    here = st.select(App(tmp_path), **settings(concurrency=1, run_dir=tmp_path / "here"))
    (tmp_path / "calls.txt").unlink()
    (tmp_path / "program.py").write_text(PROGRAM + MPI)
    (packages,) = (MPI_FOLDER / "lib").glob("python*/site-packages")
    known = environment("SCOPE_MPI", tmp_path) | {"LD_LIBRARY_PATH": str(MPI_FOLDER / "lib")}
    known["PYTHONPATH"] = f"{packages}{os.pathsep}{known['PYTHONPATH']}"
    run = [str(MPI_FOLDER / "bin" / "mpiexec"), "-n", "3", sys.executable, "-m", "mpi4py.futures"]
    command = [*run, str(tmp_path / "program.py"), str(tmp_path)]
    command.append(json.dumps({"run_dir": str(tmp_path / "run")}))
    found = told(
        subprocess.Popen(command, cwd=tmp_path, env=known, text=True, stdout=-1, stderr=-1)
    )
    assert found == {"choice": here.choice, "lost": 0, "calls": here.bill.num_calls}
    assert history(tmp_path / "run") == history(tmp_path / "here")
    assert len({call[0] for call in calls(tmp_path)}) == 2


@only_long
@pytest.mark.parametrize(("program", "variable"), FEW)
def test_a_call_that_is_repeated_is_made_again(program, variable, tmp_path):
    """Dask would take a second call with equal arguments for the first one."""
    changes = {"repeat": True, "repeats": 5, "budget_usd": 1.0}
    found = told(started(program, variable, tmp_path, **changes))
    assert found["lost"] == 0
    made = [tuple(call[1:]) for call in calls(tmp_path)]
    assert len(made) == found["calls"]
    assert len(made) >= len(set(made)) + 5


@pytest.mark.parametrize(("program", "variable"), FEW)
def test_the_page_says_how(program, variable, tmp_path):
    """Its blocks for this cluster, in a program."""
    word = "RayExecutor" if variable == "SCOPE_RAY" else "dask.distributed"
    (block,) = [one.content for one in blocks(PAGE) if one.language == "py" and word in one.content]
    (first,) = python(PAGE)
    first = first[: first.index("spawn = ")]
    if variable == "SCOPE_RAY":
        start = ""
        block = block.replace('address="auto", ', "")
    else:
        start = (
            "from distributed import LocalCluster\n"
            "cluster = LocalCluster(n_workers=1, dashboard_address=None)\n"
        )
        block = block.replace('"tcp://scheduler:8786"', "cluster.scheduler_address")
    block = block.replace("select(", "result = select(").strip()
    lines = [*start.splitlines(), *block.splitlines(), "print(result)"]
    indented = "\n".join(f"    {line}" for line in lines)
    (tmp_path / "page.py").write_text(f'{first}\nif __name__ == "__main__":\n{indented}\n')
    done = subprocess.run(
        [sys.executable, str(tmp_path / "page.py")],
        cwd=tmp_path,
        env=environment(variable, tmp_path),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "nano" in done.stdout


ONE_APP = """
import os
from pathlib import Path

SKILL = {"pro": 97, "mini": 96}


def app(models, number):
    Path("pids.txt").open("a").write(f"{os.getpid()}\\n")
    number = int(number)
    return (str(number * 2) if number * 37 % 100 < SKILL[models["answer"]] else "0"), 0.01
"""
GATE = """
import sys
from scope_torch.cli.check import main

if __name__ == "__main__":
{start}
    main(["models.json", "--new", "answer=mini", "--app", "one_app:app", "--dataset", "q.csv",
          "--metric", "exact_match", "--max-quality-loss", "0.05", "--budget-usd", "20",
          "--concurrency", "2", "--executor", where])
"""
STARTS = [
    pytest.param("    where = 'processes'", "", id="processes"),
    pytest.param(
        "    from distributed import LocalCluster\n"
        "    cluster = LocalCluster(n_workers=2, dashboard_address=None)\n"
        "    where = f'dask={cluster.scheduler_address}'",
        "SCOPE_DASK",
        id="dask",
        marks=[needs("distributed", "SCOPE_DASK"), only_long],
    ),
    pytest.param(
        "    import ray\n    ray.init(log_to_driver=False)\n    where = 'ray'",
        "SCOPE_RAY",
        id="ray",
        marks=[needs("ray", "SCOPE_RAY"), only_long],
    ),
]


@pytest.mark.parametrize(("start", "variable"), STARTS)
def test_a_gate_runs_its_application_there(start, variable, tmp_path):
    """`scope-torch check --executor`: the verdict is that of threads, in other processes."""
    (tmp_path / "one_app.py").write_text(ONE_APP)
    (tmp_path / "models.json").write_text('{"version": 1, "models": {"answer": "pro"}}')
    lines = ["input,expected", *(f"{number},{number * 2}" for number in range(400))]
    (tmp_path / "q.csv").write_text("\n".join(lines))
    (tmp_path / "gate.py").write_text(GATE.format(start=start))
    known = environment(variable or "NONE", tmp_path)
    known["PYTHONPATH"] = os.pathsep.join([str(tmp_path), known["PYTHONPATH"]])
    process = subprocess.Popen(
        [sys.executable, "gate.py"], cwd=tmp_path, env=known, text=True, stdout=-1, stderr=-1
    )
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    assert out.startswith("pass: answer=mini (was pro)\n")
    assert "on 182 draws of 400 queries" in out  # as docs/howto/check-a-swap.md shows of threads
    workers = set((tmp_path / "pids.txt").read_text().split())
    assert 1 <= len(workers) <= 3
    assert str(process.pid) not in workers
