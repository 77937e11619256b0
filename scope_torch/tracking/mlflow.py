"""Logs a run to MLflow; needs the extra `mlflow`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from scope_torch.errors import InputError
from scope_torch.files import inside
from scope_torch.problem import SelectionProblem
from scope_torch.runs.callbacks import Callback, Outcome, files_of
from scope_torch.search.optimizer import Described, TraceRow
from scope_torch.tracking.names import CURVES, STEPS_PER_USD, name_of
from scope_torch.watch.page import page_and_result

_AT_ONCE = 500  # metrics of one call; MLflow takes 1,000
_MOST_LETTERS = 500  # of a parameter
_LONGEST_NAME = 240  # MLflow takes 250, and `result/` comes in front of some
_PATIENCE_S = 10.0  # for a server; MLflow itself would try for minutes


class MlflowTracker(Callback):
    """Logs the trace against the spend, c_bf against the budget, and the result.

    The step is in millionths of a USD. Numbers of `result.json` are metrics `result/NAME`, by which
    runs can be sorted; its words are tags; its files, the figure and the decision page are
    artifacts. A resumed search reports all rows of its trace again, to a new run. In a name, `_`
    stands for a letter that MLflow does not take.

    Args:
        uri: Address of MLflow, such as "http://localhost:5000"; empty for the file `mlflow.db` in
            `directory`: `mlflow ui --backend-store-uri sqlite:///outputs/mlflow.db` shows it.
        experiment: Name of the experiment; empty for the name of the task.
        directory: Folder of all runs; holds the artifacts too, if `uri` is empty.

    Raises:
        InputError: If MLflow is not installed; here and in the methods, if it cannot be used.
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
        self._problem: SelectionProblem | None = None
        self._waiting: list[Any] = []

    def check(self, problem: SelectionProblem) -> None:
        """Finds or makes the experiment."""
        with self._told("nothing was paid yet"):
            self._experiment_id(problem)

    def start(self, problem: SelectionProblem, optimizer: Described, budget_usd: float) -> None:
        """Begins an MLflow run."""
        with self._told("nothing of the search was paid yet"):
            self._start(problem, optimizer, budget_usd)

    def _start(self, problem: SelectionProblem, optimizer: Described, budget_usd: float) -> None:
        settings = optimizer.settings()
        client, experiment_id = self._experiment_id(problem)
        run = client.create_run(
            experiment_id,
            run_name=_cut(f"{problem.name}-{optimizer.name}-{settings.get('seed')}"),
            tags={"task": problem.name, "method": optimizer.name},
        )
        self._client, self._run_id, self._problem = client, run.info.run_id, problem
        described = {
            "task": problem.name,
            "budget_usd": budget_usd,
            "epsilon": problem.epsilon,
            "num_queries": problem.num_queries,
            "num_configurations": problem.space.size,
            "reference": problem.names(problem.theta_ref),
            "optimizer": settings,
        }
        flat = dict(_flat(described))
        params = [
            self._entities.Param(name, _text(value)[:_MOST_LETTERS])
            for name, value in zip(_clean(flat), flat.values(), strict=True)
        ]
        for at in range(0, len(params), 100):
            self._client.log_batch(self._run_id, params=params[at : at + 100])

    def _experiment_id(self, problem: SelectionProblem) -> tuple[Any, str]:
        """A client, and the experiment, which another job may make at this moment."""
        name, uri, where = _cut(self._experiment or problem.name), self._uri, None
        if uri.startswith(("http://", "https://")):
            _knock(uri)
        elif not uri:
            folder = self._directory.resolve()
            if set("?%") & set(str(folder)):
                raise InputError(
                    f"an address of MLflow cannot name {folder}: leave ? and % out of output_dir, "
                    "or name a server by tracking.uri"
                )
            folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{inside(folder, 'mlflow.db')}"
            below = re.sub(r"[^\w-]+", "_", name)[:60]  # no path, which may lead elsewhere
            where = inside(folder, "mlflow_artifacts", below).as_uri()
        client = self._mlflow.MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(name)
        if found is None:
            try:
                return client, client.create_experiment(name, artifact_location=where)
            except self._mlflow.exceptions.MlflowException:
                found = client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            raise InputError(
                f"the MLflow experiment {name!r} was deleted; restore it (mlflow experiments "
                f"restore --experiment-id {found.experiment_id}), or name another one: "
                "tracking.experiment=NAME"
            )
        return client, found.experiment_id

    @contextlib.contextmanager
    def _told(self, what_holds: str) -> Generator[None, None, None]:
        """Makes an error of MLflow, or of its database or server, one that the user can mend."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            where = re.sub(r"//[^/@]*@", "//***@", self._uri) or self._directory / "mlflow.db"
            cause = str(error).partition("\n")[0] or type(error).__name__
            raise InputError(
                f"MLflow at {where}: {cause} ({what_holds}); mend it, or choose another tracking"
            ) from error

    def changed(self, row: TraceRow) -> None:
        """Logs a row of the trace."""
        for name in ("spend_usd", *CURVES):
            self._add(name_of(name, self._problem), getattr(row, name), row.spend_usd)
        if len(self._waiting) >= _AT_ONCE:
            with self._told("with a run_dir, the same call goes on where this one stopped"):
                self._send()

    def end(self, result: Outcome) -> None:
        """Logs the curves, the result and the files of the run."""
        if self._client is not None:
            page, _ = page_and_result(cast(Any, result))
            with self._told(
                "the search is complete; scope-torch replay RUN_DIR tracking=mlflow, with this "
                "tracking.uri or tracking.directory, sends it again"
            ):
                self._end(result, page)

    def _end(self, result: Outcome, page: str) -> None:
        summary = result.summary()
        if result.curve is not None:
            for budget, cost, v in result.curve.points(summary["budget_usd"]):
                if math.isfinite(cost):  # nothing feasible is known before
                    self._add(name_of("c_bf_usd", self._problem), cost, budget)
                self._add("violation", v, budget)
        for name, (key, value) in zip(_clean(summary), summary.items(), strict=True):
            if isinstance(value, int | float):
                self._add(f"result/{name}", float(value), summary["spend_usd"])
            elif isinstance(value, str):
                self._client.set_tag(self._run_id, key, value)
        self._client.set_tag(self._run_id, "theta_out", json.dumps(summary["theta_out"]))
        self._send()
        for path in files_of(result.run_dir):
            self._client.log_artifact(self._run_id, str(path))
        self._client.log_text(self._run_id, page, "report.html")

    def close(self, error: BaseException | None) -> None:
        """Ends the MLflow run, as failed after an error."""
        if self._client is None:
            return
        # What ended the run must not be hidden.
        hidden = () if error is None else (InputError,)
        with contextlib.suppress(*hidden), self._told("the search is complete"):
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


def _knock(uri: str) -> None:
    """Raises the cause if no server answers; any answer will do."""
    import requests  # MLflow asks by it, and so by the same proxies and certificates

    try:
        requests.get(f"{uri.rstrip('/')}/health", timeout=_PATIENCE_S)
    except requests.exceptions.SSLError:  # MLflow may be told to trust the certificate
        return
    except requests.RequestException as error:
        cause: BaseException = error
        while inner := cause.__cause__ or cause.__context__:
            cause = inner
        raise ConnectionError(f"no server answers ({cause})") from error


def _cut(name: str) -> str:
    """A name that is short enough; what was cut off is there as a hash."""
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _clean(names: Iterable[str]) -> list[str]:
    """Names that MLflow takes, for parameters and metrics; they stay different.

    Examples:
        >>> _clean(["reference.plan (v2)", "reference.plan [v2]", "seed"])
        ['reference.plan _v2_', 'reference.plan _v2_-2', 'seed']
    """
    found: dict[str, None] = {}
    for name in names:
        clean = _cut(re.sub(r"[^\w.\- :]", "_", name))
        number = 1
        unique = clean
        while unique in found:
            number += 1
            unique = f"{clean[: _LONGEST_NAME - 9]}-{number}"
        found[unique] = None
    return list(found)


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
