"""Logs a run to Weights & Biases. No other module of the library imports wandb."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import requests
import wandb
from wandb.errors import Error

from scope_torch.errors import InputError
from scope_torch.files import inside
from scope_torch.problem import SelectionProblem
from scope_torch.results.table import table_of
from scope_torch.runs.callbacks import Callback, Outcome, files_of
from scope_torch.search.optimizer import Described, TraceRow
from scope_torch.tracking.names import name_of
from scope_torch.watch.page import page_and_result

logger = logging.getLogger(__name__)

_PATIENCE_S = 5.0  # for an answer of the server
MOST_CONFIGURATIONS = 10_000  # rows of a table that W&B shows
# Columns of the trace that are logged under their own name.
CURVES = ("spend_usd", "u_out_usd", "gap_usd", "iteration", "num_queries", "lower_c_usd",
          "upper_c_usd", "lower_g", "upper_g")  # fmt: skip


class WandbTracker(Callback):
    """Logs the trace against spend_usd, c_bf against budget_usd, and the result.

    The numbers and words of `result.json` are scalars of the summary, by which runs can be sorted;
    the whole of it is there as `result`. The configurations looked at are the table
    `configurations`, by rising cost. An artifact has the files of the run, the figure, and the
    decision page.

    If nobody answers where the runs should go, the run is logged offline, and a warning says so
    before anything is paid.

    A resumed search reports all rows of its trace again, to a new W&B run.
    `scope-torch replay` does the same from the directory of a run.

    Args:
        project: W&B project.
        entity: W&B entity; None for the default.
        mode: `online`, `offline` (writes files, to be sent later) or `disabled`.
        group: Name of a group of runs; empty for the name of the task. The job type is the method.
        tags: Tags of the run.
        directory: Where W&B keeps its files.

    Raises:
        InputError: If the mode is unknown.
    """

    def __init__(
        self,
        project: str = "scope-torch",
        entity: str | None = None,
        mode: Literal["online", "offline", "disabled"] = "offline",
        group: str = "",
        tags: Sequence[str] = (),
        directory: str = ".",
    ) -> None:
        if mode not in ("online", "offline", "disabled"):
            raise InputError(f"tracking.mode={mode!r} must be online, offline or disabled")
        self._arguments: dict[str, Any] = {
            "project": project,
            "entity": entity,
            "mode": mode,
            "tags": list(tags),
            "dir": directory,
        }
        self._group = group
        self._run: wandb.Run | None = None
        self._problem: SelectionProblem | None = None

    def check(self, problem: SelectionProblem) -> None:
        """Goes on offline if no server answers, and asks for a missing key: W&B does both late."""
        if self._arguments["mode"] != "online":
            return
        url = str(wandb.setup().settings.base_url)
        try:
            requests.get(url, timeout=_PATIENCE_S)  # W&B asks by it too: with the same proxies
        except requests.exceptions.SSLError:  # W&B may be told to trust the certificate
            return
        except requests.RequestException as error:
            self._arguments["mode"] = "offline"
            logger.warning(
                "W&B does not answer at %s (%s): the run is logged offline; send it later with "
                "`wandb sync %s`",
                url,
                type(error).__name__,
                Path(self._arguments["dir"]) / "wandb" / "offline-run-*",
            )
            return
        with _told(url):
            wandb.login(verify=False)

    def start(self, problem: SelectionProblem, optimizer: Described, budget_usd: float) -> None:
        """Begins a W&B run."""
        self.check(problem)
        settings = optimizer.settings()
        inside(Path(self._arguments["dir"]), "wandb")  # where W&B keeps its files
        with _told(str(wandb.setup().settings.base_url)):
            self._run = wandb.init(
                **self._arguments,
                group=self._group or problem.name,
                job_type=optimizer.name,
                name=f"{problem.name}-{optimizer.name}-{settings.get('seed')}",
                config={
                    "task": problem.name,
                    "budget_usd": budget_usd,
                    "optimizer": settings,
                    "problem": _described(problem),
                },
                reinit="create_new",
            )
        # A step of its own: the budgets of the curve end above what was spent.
        for step in ("budget_usd", "spend_usd"):
            self._run.define_metric(step)
        self._problem = problem
        for name in (name_of("c_bf_usd", problem), "violation"):
            self._run.define_metric(name, step_metric="budget_usd")
        self._run.define_metric("*", step_metric="spend_usd")

    def changed(self, row: TraceRow) -> None:
        """Logs a row of the trace."""
        if self._run is None:
            return
        drawn = {name_of(name, self._problem): getattr(row, name) for name in CURVES}
        numbers = {"num_observations": row.t, **drawn}
        self._run.log({name: value for name, value in numbers.items() if value is not None})

    def end(self, result: Outcome) -> None:
        """Logs the curves, the result and the files of the run."""
        if self._run is None:
            return
        summary = result.summary()
        if result.curve is not None:
            best = name_of("c_bf_usd", self._problem)
            for budget, cost, v in result.curve.points(summary["budget_usd"]):
                known = {best: cost} if math.isfinite(cost) else {}  # nothing feasible before
                self._run.log({"budget_usd": budget, **known, "violation": v})
        page, found = page_and_result(cast(Any, result))
        artifact = wandb.Artifact(f"result-{self._run.id}", type="result")
        artifact.add(_table(["key", "value"], [[k, str(v)] for k, v in summary.items()]), "result")
        table = table_of(found.evidence, found.recommendation).head(MOST_CONFIGURATIONS)
        rows = [[*row] for row in table.iter_rows()]
        self._run.log({"configurations": _table(table.columns, rows)})
        with artifact.new_file("report.html", encoding="utf-8") as file:
            file.write(page)
        for path in files_of(result.run_dir):
            artifact.add_file(str(path))
            if path.suffix == ".png":
                self._run.log({path.stem: wandb.Image(str(path))})
        self._run.log_artifact(artifact)
        # After all logs: each of them puts the spend of the last row of the trace into the summary.
        scalars = {k: v for k, v in summary.items() if isinstance(v, str | int | float)}
        self._run.summary.update({**scalars, "result": summary})

    def close(self, error: BaseException | None) -> None:
        """Finishes the W&B run, with exit code 1 after an error."""
        if self._run is not None:
            self._run.finish(exit_code=0 if error is None else 1)
            self._run = None


@contextlib.contextmanager
def _told(url: str) -> Generator[None, None, None]:
    """Makes an error of W&B before the search one that the user can mend."""
    try:
        yield
    except (Error, ValueError) as error:  # pydantic's is of a tag or name that it does not take
        what = " ".join(str(error).partition("[type=")[0].split())
        raise InputError(
            f"W&B at {url}: {what} (nothing of the search was paid yet); mend what it names, or, "
            "for a key, run `wandb login`, set WANDB_API_KEY, or take mode=offline"
        ) from error


def _table(columns: list[Any], rows: list[list[Any]]) -> wandb.Table:
    """Columns may hold numbers of several types, and missing values."""
    return wandb.Table(columns=columns, data=rows, allow_mixed_types=True)


def _described(problem: SelectionProblem) -> dict[str, Any]:
    """What was searched, for the config."""
    return {
        "epsilon": problem.epsilon,
        "constraints": [str(limit) for limit in problem.limits],
        "objective": problem.objective,
        "num_queries": problem.num_queries,
        "num_configurations": problem.space.size,
        "llms": {m: list(names) for m, names in zip(problem.modules, problem.llms, strict=True)},
        "reference": problem.names(problem.theta_ref),
        "reference_quality": problem.reference_quality,
        "reference_cost_usd": problem.reference_cost_usd,
    }
