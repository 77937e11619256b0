"""A real MLflow database, read back."""

from __future__ import annotations

import json
import sys

import pytest

from scope_torch.errors import InputError
from scope_torch.methods import make_scope
from scope_torch.runs.plotting import CurvePlot
from scope_torch.runs.recorded import read_run
from scope_torch.runs.runner import run
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.tracking.mlflow import MlflowTracker

mlflow = pytest.importorskip("mlflow")
pytestmark = pytest.mark.filterwarnings("ignore")


def search(folder, evaluator=None, **options):
    problem, known, _ = synthetic_task(num_queries=8)
    optimizer = make_scope(problem, base="small", seed=0)
    run_dir = folder / "run"
    callbacks = [CurvePlot(), MlflowTracker(directory=str(folder), **options)]
    return run(problem, optimizer, evaluator or known, 0.2, run_dir=run_dir, callbacks=callbacks)


def client(folder):
    return mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder.resolve() / 'mlflow.db'}")


def runs(folder, experiment="synthetic"):
    found = client(folder)
    made = found.get_experiment_by_name(experiment)
    return found.search_runs([made.experiment_id])


def test_curves_parameters_result_and_artifacts_are_there(tmp_path):
    result = search(tmp_path)
    (made,) = runs(tmp_path)
    found = client(tmp_path)
    rows = found.get_metric_history(made.info.run_id, "u_out_usd")
    expected = [(round(r.spend_usd * 1e6), r.u_out_usd) for r in result.trace if r.u_out_usd]
    assert {(m.step, m.value) for m in rows} == set(expected)
    best = result.summary()["true_cost_usd"]
    curve = found.get_metric_history(made.info.run_id, "c_bf_usd")
    assert min(m.value for m in curve) == pytest.approx(best)
    assert made.data.metrics["result/spend_usd"] == result.history.spend_usd
    assert made.data.metrics["result/feasible"] == 1.0
    assert json.loads(made.data.tags["theta_out"]) == result.llms
    assert made.data.tags["basis"] == result.recommendation.basis
    assert made.data.params["optimizer.bounds.mode"] == "tuned"
    assert made.data.params["num_queries"] == "8"
    files = {file.path for file in found.list_artifacts(made.info.run_id)}
    assert files >= {"settings.json", "result.json", "trace.csv", "curves.png", "report.html"}
    page = found.download_artifacts(made.info.run_id, "report.html", str(tmp_path))
    with open(page) as file:
        assert str(result).splitlines()[0] in file.read()
    assert made.info.status == "FINISHED"


def test_a_search_that_fails_is_a_failed_run(tmp_path):
    class Breaks:
        concurrency = 1

        def evaluate(self, requests):
            raise ConnectionError("the endpoint is gone")
            yield

        def fingerprint(self):
            return "breaks"

    with pytest.raises(ConnectionError):
        search(tmp_path, Breaks(), experiment="mine")
    (made,) = runs(tmp_path, "mine")
    assert made.info.status == "FAILED"


def test_a_run_is_sent_from_its_directory(tmp_path):
    result = search(tmp_path)
    tracker = MlflowTracker(directory=str(tmp_path / "again"))
    read_run(tmp_path / "run").replay(tracker)
    (made,) = runs(tmp_path / "again")
    (first,) = runs(tmp_path)
    assert made.data.metrics.keys() == first.data.metrics.keys()
    assert made.data.metrics["result/spend_usd"] == result.history.spend_usd
    assert made.data.params == first.data.params


def test_two_searches_share_an_experiment(tmp_path):
    search(tmp_path)
    problem, known, _ = synthetic_task(num_queries=8)
    optimizer = make_scope(problem, base="small", seed=1)
    tracker = MlflowTracker(directory=str(tmp_path))
    run(problem, optimizer, known, 0.1, callbacks=[tracker])
    assert len(runs(tmp_path)) == 2


def test_without_mlflow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match=r"pip install 'scope-torch\[mlflow\]'"):
        MlflowTracker()
