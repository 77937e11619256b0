"""The launcher for Slurm, without Slurm: what it makes of jobs that are lost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.utils import JobReturn, JobStatus

pytest.importorskip("submitit")
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher
from submitit.core.utils import FailedJobError, UncompletedJobError
from submitit.slurm.slurm import SlurmJob

from hydra_plugins.scope_torch_slurm import WaitingSlurmLauncher

TRACE = """Job (task=0) failed during processing with trace:
----------------------
Traceback (most recent call last):
  File "job_environment.py", line 1, in checkpoint_and_try_requeue
submitit.core.utils.UncompletedJobError: Job not requeued because: timed-out too many times.
----------------------
You can check full logs"""
FOUND = {"7_0": None, "7_1": UncompletedJobError("no output"), "7_2": FailedJobError(TRACE)}


class Job(SlurmJob):
    """A job of the array 7."""

    state = "CANCELLED"

    def __init__(self, number: str) -> None:
        self._job_id, self._cancel_at_deletion = number, False
        self._paths = SimpleNamespace(folder=Path("outputs/.submitit", number))

    def submission(self) -> SimpleNamespace:
        return SimpleNamespace(args=(["task=synthetic", f"seed={self.job_id[-1]}"],))


def result_of(job: Job) -> list[JobReturn]:
    """As SlurmJob.results."""
    if error := FOUND[job.job_id]:
        raise error
    return [JobReturn(_return_value=None, status=JobStatus.COMPLETED)]


def test_a_lost_job_returns_its_loss_and_the_others_are_waited_for(monkeypatch):
    monkeypatch.setattr(SlurmJob, "results", result_of)
    monkeypatch.setattr(
        SlurmLauncher, "launch", lambda *_: [Job(number).results()[0] for number in FOUND]
    )
    whole, cancelled, too_late = (
        job.return_value for job in WaitingSlurmLauncher().launch([[]] * 3, 0)
    )
    assert whole is None
    assert cancelled == (
        "task=synthetic seed=1: Slurm job 7_1 has no result: CANCELLED; its output is in "
        "outputs/.submitit/7_1; the same command goes on from its journal"
    )
    assert "Job not requeued because: timed-out too many times.;" in too_late
    assert SlurmJob.results is result_of  # as before
