"""Logs a run to MLflow; needs the extra `mlflow`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from scope_torch.errors import InputError
from scope_torch.problem import SelectionProblem
from scope_torch.runs.callbacks import Callback, Outcome
from scope_torch.search.optimizer import Described, TraceRow
from scope_torch.watch.page import page_and_result

STEPS_PER_USD = 1_000_000  # steps must be whole numbers
CURVES = ("u_out_usd", "gap_usd", "lower_c_usd", "upper_c_usd", "lower_g", "upper_g", "num_queries")
_AT_ONCE = 500  # metrics of one call; MLflow takes 1,000
_MOST_LETTERS = 500  # of a parameter
_FILES = ("settings.json", "result.json", "trace.csv", "curves.png")


class MlflowTracker(Callback):
    """Logs the trace against the spend, c_bf against the budget, and the result.

    The step is in millionths of a USD. Numbers of `result.json` are metrics `result/NAME`, by which
    runs can be sorted; its words are tags; its files, the figure and the decision page are
    artifacts. A resumed search reports all rows of its trace again, to a new run.

    Args:
        uri: Address of MLflow, such as "http://localhost:5000"; empty for the file `mlflow.db` in
            `directory`: `mlflow ui --backend-store-uri sqlite:///outputs/mlflow.db` shows it.
        experiment: Name of the experiment; empty for the name of the task.
        directory: Folder of all runs; holds the artifacts too, if `uri` is empty.

    Raises:
        InputError: If MLflow is not installed.
    """

    def __init__(self, uri: str = "", experiment: str = "", directory: str = ".") -> None:
        try:
            self._mlflow = import_module("mlflow")
            self._entities = import_module("mlflow.entities")
        except ImportError as error:
            raise InputError(
                "tracking=mlflow needs MLflow: pip install 'scope-torch[mlflow]'"
            ) from error
        self._uri, self._experiment, self._directory = uri, experiment, Path(directory)
        self._client: Any = None
        self._run_id = ""
        self._waiting: list[Any] = []

    def start(self, problem: SelectionProblem, optimizer: Described, budget_usd: float) -> None:
        """Begins an MLflow run."""
        folder = self._directory.resolve()
        if not self._uri:
            folder.mkdir(parents=True, exist_ok=True)
        uri = self._uri or f"sqlite:///{folder / 'mlflow.db'}"
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        settings = optimizer.settings()
        run = self._client.create_run(
            self._experiment_id(self._experiment or problem.name, folder),
            run_name=f"{problem.name}-{optimizer.name}-{settings.get('seed')}",
            tags={"task": problem.name, "method": optimizer.name},
        )
        self._run_id = run.info.run_id
        described = {
            "task": problem.name,
            "budget_usd": budget_usd,
            "epsilon": problem.epsilon,
            "num_queries": problem.num_queries,
            "num_configurations": problem.space.size,
            "reference": problem.names(problem.theta_ref),
            "optimizer": settings,
        }
        params = [
            self._entities.Param(name, _text(value)[:_MOST_LETTERS])
            for name, value in _flat(described)
        ]
        for at in range(0, len(params), 100):
            self._client.log_batch(self._run_id, params=params[at : at + 100])

    def _experiment_id(self, name: str, folder: Path) -> str:
        """Of the experiment with this name, which another job may make at this moment."""
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return found.experiment_id
        where = None if self._uri else (folder / "mlflow_artifacts" / name).as_uri()
        try:
            return self._client.create_experiment(name, artifact_location=where)
        except self._mlflow.exceptions.MlflowException:
            return self._client.get_experiment_by_name(name).experiment_id

    def changed(self, row: TraceRow) -> None:
        """Logs a row of the trace."""
        for name in ("spend_usd", *CURVES):
            self._add(name, getattr(row, name), row.spend_usd)
        if len(self._waiting) >= _AT_ONCE:
            self._send()

    def end(self, result: Outcome) -> None:
        """Logs the curves, the result and the files of the run."""
        if self._client is None:
            return
        summary = result.summary()
        if result.curve is not None:
            for budget, cost, v in result.curve.points(summary["budget_usd"]):
                self._add("c_bf_usd", cost, budget)
                self._add("violation", v, budget)
        for name, value in summary.items():
            if isinstance(value, int | float):
                self._add(f"result/{name}", float(value), summary["spend_usd"])
            elif isinstance(value, str):
                self._client.set_tag(self._run_id, name, value)
        self._client.set_tag(self._run_id, "theta_out", json.dumps(summary["theta_out"]))
        self._send()
        for name in _FILES:
            if result.run_dir is not None and (result.run_dir / name).exists():
                self._client.log_artifact(self._run_id, str(result.run_dir / name))
        page, _ = page_and_result(cast(Any, result))
        self._client.log_text(self._run_id, page, "report.html")

    def close(self, error: BaseException | None) -> None:
        """Ends the MLflow run, as failed after an error."""
        if self._client is None:
            return
        self._send()
        self._client.set_terminated(self._run_id, "FINISHED" if error is None else "FAILED")
        self._client = None

    def _add(self, name: str, value: float | None, at_usd: float) -> None:
        if value is not None and self._client is not None:
            step, now = round(at_usd * STEPS_PER_USD), round(1000 * time.time())
            self._waiting.append(self._entities.Metric(name, float(value), now, step))

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for at in range(0, len(waiting), _AT_ONCE):
            self._client.log_batch(self._run_id, metrics=waiting[at : at + _AT_ONCE])


def _text(value: object) -> str:
    """A value as text; a tuple as the list that it is after it was written as JSON."""
    return json.dumps(value) if isinstance(value, list | tuple) else str(value)


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values by names with points."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(cast(Mapping[str, Any], value), f"{before}{name}.")
        else:
            yield before + str(name), value
