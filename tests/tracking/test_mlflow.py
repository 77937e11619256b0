"""A real MLflow database, read back."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import threading
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec

import pytest
from llm.fake_endpoint import only_loopback  # noqa: F401
from tables import CountingEvaluator, make_task

from scope_torch.cli.replay import replay
from scope_torch.errors import InputError
from scope_torch.methods import make_scope
from scope_torch.runs.recorded import read_run
from scope_torch.runs.runner import run
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.tracking.curves import CurvePlot
from scope_torch.tracking.mlflow import MlflowTracker

pytestmark = [
    pytest.mark.slow,  # its database takes seconds to make
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_spec("mlflow") is None, reason="needs mlflow"),
]


def mlflow_client(path):
    import mlflow  # takes a second, in the workers that need it

    return mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}")


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    mlflow_client(path).search_experiments()
    return path


@pytest.fixture
def made(tmp_path, empty_database):
    """A folder with a database, which MLflow takes a second to make."""
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return tmp_path


def search(folder, evaluator=None, **options):
    problem, known, _ = synthetic_task(num_queries=8)
    optimizer = make_scope(problem, base="small", seed=0)
    run_dir = folder / "run"
    callbacks = [CurvePlot(), MlflowTracker(directory=str(folder), **options)]
    return run(problem, optimizer, evaluator or known, 0.2, run_dir=run_dir, callbacks=callbacks)


def client(folder):
    return mlflow_client(folder.resolve() / "mlflow.db")


def runs(folder, experiment="synthetic"):
    found = client(folder)
    made = found.get_experiment_by_name(experiment)
    return found.search_runs([made.experiment_id])


@pytest.mark.slow
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
    assert json.loads(made.data.tags["theta_out"]) == result.choice
    assert made.data.tags["basis"] == result.recommendation.basis
    assert made.data.params["optimizer.bounds.mode"] == "tuned"
    assert made.data.params["num_queries"] == "8"
    files = {file.path for file in found.list_artifacts(made.info.run_id)}
    assert files >= {"settings.json", "result.json", "trace.csv", "curves.png", "report.html"}
    page = found.download_artifacts(made.info.run_id, "report.html", str(tmp_path))
    with open(page) as file:
        assert str(result).splitlines()[0] in file.read()
    assert made.info.status == "FINISHED"


@pytest.mark.usefixtures("made")
@pytest.mark.slow
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


@pytest.mark.usefixtures("made")
@pytest.mark.slow
def test_a_run_is_sent_from_its_directory(tmp_path, empty_database):
    result = search(tmp_path)
    (tmp_path / "again").mkdir()
    shutil.copy(empty_database, tmp_path / "again")
    tracker = MlflowTracker(directory=str(tmp_path / "again"))
    read_run(tmp_path / "run").replay(tracker)
    (made,) = runs(tmp_path / "again")
    (first,) = runs(tmp_path)
    assert made.data.metrics.keys() == first.data.metrics.keys()
    assert made.data.metrics["result/spend_usd"] == result.history.spend_usd
    assert made.data.params == first.data.params


@pytest.mark.usefixtures("made")
def test_two_searches_share_an_experiment(tmp_path):
    search(tmp_path)
    problem, known, _ = synthetic_task(num_queries=8)
    optimizer = make_scope(problem, base="small", seed=1)
    tracker = MlflowTracker(directory=str(tmp_path))
    run(problem, optimizer, known, 0.1, callbacks=[tracker])
    assert len(runs(tmp_path)) == 2


NAMES = ("plan (v2)", "plan [v2]", "a?b+c,d=e#f", "x" * 300, "../y", "new\nline", "é")


def strange_search(folder, name="../" * 9 + "tmp/strange (name)?#" + "y" * 300, **options):
    task = make_task(1, (2,) * len(NAMES), 3)
    task = replace(task, problem=replace(task.problem, name=name, modules=NAMES))
    optimizer = make_scope(task.problem, base="llm0", seed=0)
    tracker = MlflowTracker(directory=str(folder), **options)
    evaluator = CountingEvaluator(task)
    return evaluator, partial(
        run, task.problem, optimizer, evaluator, task.budget(2), callbacks=[tracker]
    )


def test_any_name_can_be_sent(tmp_path):
    _, searched = strange_search(tmp_path / "runs")
    searched()
    found = client(tmp_path / "runs")
    (experiment,) = [e for e in found.search_experiments() if e.name != "Default"]
    (made,) = found.search_runs([experiment.experiment_id])
    assert made.info.status == "FINISHED"
    params = {name for name in made.data.params if name.startswith("reference.")}
    assert len(params) == len(NAMES)
    assert {"reference.plan _v2_", "reference.plan _v2_-2", "reference.é"} <= params
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}
    assert list((tmp_path / "runs" / "mlflow_artifacts").rglob("report.html"))


@pytest.mark.usefixtures("made")
def test_a_deleted_experiment_is_refused_before_anything_is_paid(tmp_path):
    search(tmp_path, experiment="mine")
    found = client(tmp_path)
    number = found.get_experiment_by_name("mine").experiment_id
    found.delete_experiment(number)
    evaluator, searched = strange_search(tmp_path, experiment="mine")
    mend = rf"'mine' was deleted; restore it \(mlflow experiments restore --experiment-id {number}"
    with pytest.raises(InputError, match=mend):
        searched()
    assert not evaluator.paid


def test_a_server_that_does_not_answer_is_named_with_the_cause(tmp_path):
    with socket.socket() as unused:  # bound, and not listening
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        uri = f"http://me:secret@127.0.0.1:{port}"
        evaluator, searched = strange_search(tmp_path, uri=uri)
        with pytest.raises(InputError) as caught:
            searched()
    told = str(caught.value)
    assert f"MLflow at http://***@127.0.0.1:{port}: no server answers" in told
    assert "Connection refused" in told
    assert "nothing of the search was paid yet" in told
    assert "secret" not in told
    assert not evaluator.paid


def test_what_a_server_says_is_shown(tmp_path):
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(403)
            self.end_headers()
            self.wfile.write(b"not for you")

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            evaluator, searched = strange_search(
                tmp_path, uri=f"http://127.0.0.1:{server.server_port}"
            )
            with pytest.raises(InputError, match=r"403.*not for you"):
                searched()
        finally:
            server.shutdown()
            thread.join()
    assert not evaluator.paid


def test_a_database_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    _, searched = strange_search(tmp_path / "file")
    with pytest.raises(InputError, match=r"MLflow at .*/file/mlflow\.db: .*exists"):
        searched()


@pytest.mark.parametrize("name", ["why?", "50%25"])
def test_a_folder_that_an_address_cannot_name_is_refused(tmp_path, name):
    """MLflow would write its database beside the folder, or try for a minute."""
    evaluator, searched = strange_search(tmp_path / name)
    with pytest.raises(InputError, match=r"leave \? and % out of output_dir"):
        searched()
    assert not evaluator.paid
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_link_in_the_place_of_the_database_is_refused(tmp_path):
    (tmp_path / "yours").write_text("mine")
    (tmp_path / "mlflow.db").symlink_to(tmp_path / "yours")
    with pytest.raises(InputError, match=r"mlflow\.db: it is a link"):
        search(tmp_path)
    assert (tmp_path / "yours").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.usefixtures("made")
def test_nothing_that_a_link_leads_to_is_sent(tmp_path):
    search(tmp_path)
    (tmp_path / "yours").write_text("secret")
    (tmp_path / "run" / "curves.png").unlink()
    (tmp_path / "run" / "curves.png").symlink_to(tmp_path / "yours")
    read_run(tmp_path / "run").replay(MlflowTracker(directory=str(tmp_path / "again")))
    (made,) = runs(tmp_path / "again")
    files = {file.path for file in client(tmp_path / "again").list_artifacts(made.info.run_id)}
    assert "trace.csv" in files
    assert "curves.png" not in files


@pytest.mark.usefixtures("made")
@pytest.mark.slow
def test_an_error_of_mlflow_does_not_hide_what_ended_the_run(tmp_path, monkeypatch):
    import mlflow

    class Breaks:
        concurrency = 1

        def evaluate(self, requests):
            def fails(*_, **__):
                raise mlflow.exceptions.MlflowException("gone")

            monkeypatch.setattr(mlflow.MlflowClient, "log_batch", fails)
            monkeypatch.setattr(mlflow.MlflowClient, "set_terminated", fails)
            raise ConnectionError("the endpoint is gone")
            yield

        def fingerprint(self):
            return "breaks"

    with pytest.raises(ConnectionError, match="the endpoint is gone"):
        search(tmp_path, Breaks())


@pytest.mark.usefixtures("made")
def test_what_was_not_sent_at_the_end_is_sent_by_the_command_that_is_named(tmp_path, monkeypatch):
    import mlflow

    def fails(*_, **__):
        raise mlflow.exceptions.MlflowException("gone")

    with monkeypatch.context() as broken:
        broken.setattr(mlflow.MlflowClient, "log_artifact", fails)
        named = r"replay RUN_DIR tracking=mlflow, with this tracking.uri or tracking.directory"
        with pytest.raises(InputError, match=named):
            search(tmp_path)
    replay(tmp_path / "run", ["tracking=mlflow", f"tracking.directory='{tmp_path}'"])
    assert {one.info.status for one in runs(tmp_path)} == {"FAILED", "FINISHED"}


def test_without_mlflow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match=r"pip install 'scope-torch\[mlflow\]'"):
        MlflowTracker()
