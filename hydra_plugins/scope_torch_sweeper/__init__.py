"""A sweeper for Hydra that counts failed jobs under every launcher."""

from __future__ import annotations

import re
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from scope_torch.errors import JobsFailed

# Keys that have a component of their own in the path of a run, or must not change it.
_WITH_PLACE = re.compile(
    r"task|method|seed|experiment|output_dir|time_limit|deploy|swept|(hydra|tracking)([./].*)?"
)


class CollectingSweeper(BasicSweeper):
    """Hydra's basic sweeper. A failed job returns its error as a text, and the others run."""

    @staticmethod
    def split_arguments(
        overrides: list[Override], max_batch_size: int | None
    ) -> list[list[list[str]]]:
        """The overrides of each job, in batches; also the keys in which jobs differ.

        The budget is one of them: a larger one extends a run, a smaller one is another run.

        A job knows its own values only, and its folder must not be that of another job.
        """
        swept = [_key_of(override) for override in overrides if _is_swept(override)]
        batches = BasicSweeper.split_arguments(overrides, max_batch_size)
        more = [f"swept=[{','.join(swept)}]"] if swept else []
        return [[[*job, *more] for job in batch] for batch in batches]

    def sweep(self, arguments: list[str]) -> Any:
        """Runs all jobs.

        Raises:
            JobsFailed: At the end if a job failed; at once if the launcher failed.
        """
        try:
            batches = super().sweep(arguments)
        except Exception as error:  # no Slurm or Ray here, a worker that was killed, ...
            if _is_told_elsewhere(error):
                raise
            raise JobsFailed(
                f"the launcher failed: {type(error).__name__}: {error}\nthe same command goes on "
                "where this one stopped"
            ) from error
        errors = [job.return_value for batch in batches for job in batch]
        failures = [error for error in errors if error is not None]
        if failures:
            listed = "".join(f"\n  {failure}" for failure in failures)
            raise JobsFailed(f"{len(failures)} of {len(errors)} jobs failed:{listed}")
        return batches


def _is_swept(override: Override) -> bool:
    return override.is_sweep_override() and not _WITH_PLACE.fullmatch(_key_of(override))


def _key_of(override: Override) -> str:
    return override.get_key_element().lstrip("+~")


def _is_told_elsewhere(error: Exception) -> bool:
    """Whether an error is of the command line or of the disk, not of the launcher.

    ConnectionError and TimeoutError, as without a cluster, are errors of the system too.
    """
    of_network = isinstance(error, ConnectionError | TimeoutError)
    return not of_network and isinstance(error, HydraException | OmegaConfBaseException | OSError)
