"""Sweeps on a real Slurm of one node: a requeue, a time limit, a cancelled job."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess

import pytest
from clusters import daemons, ended, environment, free_port, has_journal, results, sweep, wait_for

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
MISSING = [program for program in NEEDED if shutil.which(program, path=PATH) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd and srun must be started by root"),
]
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait=1
SchedulerParameters=sched_interval=2,bf_interval=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# Slurm's own `sacct` needs a database.
SACCT = """#!/bin/sh
echo 'JobID|State|NodeList'
squeue --all --array --states=all --noheader --format='%i|%T|%N'
"""
# A job of 10 minutes is told of its limit at any time, so that a signal can stand for it.
LAUNCHER = ["hydra/launcher=slurm", "hydra.launcher.mem_gb=1", "hydra.launcher.timeout_min=10"]


@pytest.fixture(scope="module", name="slurm")
def slurm_of_one_node(tmp_path_factory):
    """The environment in which Slurm's commands find the cluster."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "bin").mkdir()
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    (folder / "bin/sacct").write_text(SACCT)
    (folder / "bin/sacct").chmod(0o755)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    ports = {"ctld_port": free_port(), "slurmd_port": free_port()}
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, host=host, **ports))
    of_slurm = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{folder}/bin:{PATH}"}
    munged = ["munged", "--force", "--foreground", f"--key-file={folder}/munge.key"]
    munged += [f"--{name}-file={folder}/munged.{name}" for name in ("pid", "log", "seed")]
    known = environment(**of_slurm)
    with daemons() as start:
        start([*munged, f"--socket={folder}/munge.socket"], folder, known)
        first = start(["slurmctld", "-D"], folder, known)
        start(["slurmd", "-D"], folder, known)
        wait_for(lambda: "idle" in slurm_says(known, "sinfo"), "no node came up", first)
        yield known
        slurm_says(known, "scancel", "--user=root")  # steps would outlive the daemons
        wait_for(lambda: not slurm_says(known, "squeue", "--noheader"), "jobs stay", first)


def slurm_says(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout


def jobs_by_seed(environment: dict[str, str]) -> dict[str, str]:
    """Slurm's number of each job that runs; a job has its keys as its name."""
    lines = slurm_says(environment, "squeue", "-hr", "-t", "R", "-o", "%i %j").splitlines()
    found = dict(reversed(line.split(" ", 1)) for line in lines)
    return {name.rpartition("seed=")[2]: number for name, number in found.items()}


def runs_again(environment: dict[str, str], number: str) -> bool:
    """Whether a requeued job runs; Slurm would wait for two minutes if it were not told."""
    slurm_says(environment, "scontrol", "update", f"JobId={number}", "StartTime=now")
    shown = slurm_says(environment, "scontrol", "show", "job", number)
    return "JobState=RUNNING" in shown or "JobState=COMPLETED" in shown


def test_requeued_jobs_and_those_that_reach_their_limit_go_on(slurm, tmp_path):
    """And give what the jobs give one after another."""
    process = sweep(tmp_path, slurm, "seed=0,1", *LAUNCHER)
    for seed in "0", "1":
        wait_for(lambda seed=seed: has_journal(tmp_path, int(seed)), "no job began", process)
    numbers = jobs_by_seed(slurm)
    slurm_says(slurm, "scontrol", "requeue", numbers["0"])
    slurm_says(slurm, "scancel", "--signal=USR2", numbers["1"])  # Slurm's signal before the limit
    for number in numbers.values():
        say = ("scontrol", "show", "job", number)
        wait_for(lambda say=say: "Restarts=1" in slurm_says(slurm, *say), "no requeue", process)
        wait_for(lambda number=number: runs_again(slurm, number), "it stayed queued", process)
    assert ended(process) == (0, "")
    assert not list(tmp_path.rglob("error.log"))
    status, err = ended(sweep(tmp_path, slurm, "seed=0,1", "output_dir=serial"))
    assert status == 0, err
    assert len(results(tmp_path / "serial")) == 2
    assert results(tmp_path / "outputs") == results(tmp_path / "serial")


def test_a_cancelled_job_fails_alone_and_the_same_command_finishes_it(slurm, tmp_path):
    process = sweep(tmp_path, slurm, "seed=0,1,2", *LAUNCHER)
    # As early as can be: a cancelled job has some seconds to end, and may end well.
    wait_for(lambda: list(tmp_path.rglob("seed=0/journal.jsonl")), "no job began", process)
    slurm_says(slurm, "scancel", jobs_by_seed(slurm)["0"])
    status, err = ended(process)
    assert status == 2, err
    assert "1 of 3 jobs failed" in err
    assert "seed=0: Slurm job" in err
    assert "CANCELLED" in err
    assert "the same command goes on" in err
    assert len(results(tmp_path)) == 2  # the others were waited for
    status, err = ended(sweep(tmp_path, slurm, "seed=0,1,2", *LAUNCHER))
    assert status == 0, err
    assert len(results(tmp_path)) == 3


def test_a_job_that_reaches_its_limit_too_often_fails_with_the_reason(slurm, tmp_path):
    process = sweep(tmp_path, slurm, "seed=0", *LAUNCHER, "hydra.launcher.max_num_timeout=0")
    wait_for(lambda: has_journal(tmp_path, 0), "no job began", process)
    slurm_says(slurm, "scancel", "--signal=USR2", jobs_by_seed(slurm)["0"])
    status, err = ended(process)
    assert status == 2, err
    assert "Job not requeued because: timed-out too many times." in err
