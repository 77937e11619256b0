"""Hydra's launcher for Slurm, which waits for all jobs of a sweep, also if one of them is lost."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Sequence
from importlib import import_module
from typing import Any
from unittest.mock import patch

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher

SlurmLauncher: Any = Launcher
with contextlib.suppress(ImportError):  # Hydra says which extra is missing
    SlurmLauncher = import_module(
        "hydra_plugins.hydra_submitit_launcher.submitit_launcher"
    ).SlurmLauncher

_LAST_ERROR = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): .*", re.MULTILINE)


class WaitingSlurmLauncher(SlurmLauncher):
    """The launcher of hydra-submitit-launcher, which alone would end at the first lost job.

    A job without a result is lost: it was cancelled or killed, or reached its time limit too often.
    Here it counts as a failed job. The others are waited for: they hold the locks of their journals
    until they end.
    """

    def __call__(self, sweep_overrides: list[str], *args: Any) -> JobReturn:
        """Runs one job of the array, in a process of Slurm; `squeue` shows its keys as its name."""
        import submitit

        job = submitit.JobEnvironment().job_id  # ARRAY_TASK; $SLURM_JOB_ID can mean the whole array
        command = ["scontrol", "update", f"JobId={job}", f"Name={','.join(sweep_overrides)}"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(command, timeout=20, check=False, capture_output=True)
        return super().__call__(sweep_overrides, *args)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Runs all jobs as one array.

        Returns:
            Their outcomes, in the order of `job_overrides`; of a lost job, its loss as a text.
        """
        from submitit.slurm.slurm import SlurmJob

        results = SlurmJob.results

        def results_or_loss(job: Any) -> list[JobReturn]:
            try:
                return results(job)
            except Exception as error:
                return [JobReturn(_return_value=_loss(job, error), status=JobStatus.COMPLETED)]

        with patch.object(SlurmJob, "results", results_or_loss):
            return super().launch(job_overrides, initial_job_idx)


def _loss(job: Any, error: Exception) -> str:
    """How a job was lost, as one line."""
    raised = _LAST_ERROR.findall(str(error))
    keys = " ".join(job.submission().args[0])
    return (
        f"{keys}: Slurm job {job.job_id} has no result: {raised[-1] if raised else job.state}; "
        f"its output is in {job.paths.folder}; the same command goes on from its journal"
    )
