"""A real offline W&B run, read back from its file."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from llm.fake_endpoint import only_loopback  # noqa: F401

from scope_torch.tasks.synthetic import synthetic_task

wandb = pytest.importorskip("wandb")

from wandb.proto import wandb_internal_pb2  # noqa: E402

from scope_torch.cli import replay  # noqa: E402
from scope_torch.errors import InputError  # noqa: E402
from scope_torch.evaluators.table import TableEvaluator  # noqa: E402
from scope_torch.methods import make_scope  # noqa: E402
from scope_torch.runs.runner import run  # noqa: E402
from scope_torch.tracking.curves import CurvePlot  # noqa: E402
from scope_torch.tracking.wandb import WandbTracker  # noqa: E402


def records(folder: Path) -> list[Any]:
    """The records in the file of a finished run; W&B may write for a moment after `finish`."""
    (path,) = folder.rglob("run-*.wandb")
    deadline = time.monotonic() + 30
    while True:
        found = parse(path.read_bytes())
        if any(record.HasField("exit") for record in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def parse(data: bytes) -> list[Any]:
    """Reads LevelDB's log format, after a header of 7 bytes."""
    at, whole, found = 7, b"", []
    assert data[:4] in (b":W&B", b"")
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        if at + 7 + length > len(data):
            break  # still being written
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            found.append(record)
            whole = b""
    return found


def history(found: list[Any]) -> list[dict[str, float]]:
    return [
        {
            (item.key or "/".join(item.nested_key)): json.loads(item.value_json)
            for item in record.history.item
        }
        for record in found
        if record.HasField("history")
    ]


def summary(found: list[Any]) -> dict[str, Any]:
    """The values that the run set at its end, on top of the last ones that it logged."""
    values: dict[str, Any] = {}
    for record in found:
        if record.HasField("summary"):
            for item in record.summary.update:
                values[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return values


@pytest.fixture
def task(monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    return synthetic_task(num_queries=12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_offline_run_holds_curves_config_and_table(task, tmp_path):
    problem, evaluator, _ = task
    tracker = WandbTracker(group="an_experiment", tags=["a"], directory=str(tmp_path))
    optimizer = make_scope(problem, base="small", seed=0)
    budget = 8 * 12 * problem.reference_cost_usd
    result = run(problem, optimizer, evaluator, budget, callbacks=[tracker])
    found = records(tmp_path)
    (info,) = [record.run for record in found if record.HasField("run")]
    assert (info.run_group, info.job_type, list(info.tags)) == ("an_experiment", "scope", ["a"])
    config = {item.key: json.loads(item.value_json) for item in info.config.update}
    assert config["budget_usd"] == budget
    assert config["optimizer"]["bounds"]["mode"] == "tuned"
    rows = history(found)
    spends = [row["spend_usd"] for row in rows if "u_out_usd" in row]
    assert spends == [row.spend_usd for row in result.trace]
    curve = [row for row in rows if "c_bf_usd" in row]
    assert curve[-1]["budget_usd"] == budget
    assert not any("spend_usd" in row for row in curve)
    metrics = [record.metric for record in found if record.HasField("metric")]
    steps = {metric.name or metric.glob_name: metric.step_metric for metric in metrics}
    assert (steps["c_bf_usd"], steps["violation"], steps["*"]) == (
        "budget_usd",
        "budget_usd",
        "spend_usd",
    )
    assert config["problem"]["llms"] == {m: list(problem.llms[0]) for m in problem.modules}
    assert config["problem"]["reference"] == problem.names(problem.theta_ref)
    assert config["problem"]["num_queries"] == 12
    last = summary(found)
    assert last["spend_usd"] == result.history.spend_usd < budget
    assert last["candidates"] == result.summary()["candidates"]
    logged = [i for i, record in enumerate(found) if record.HasField("history")]
    ends = [i for i, r in enumerate(found) if any(u.key == "basis" for u in r.summary.update)]
    # Each log puts the spend of a row of the trace into the summary, which is not all of it.
    assert max(logged) < max(ends)
    assert (last["basis"], last["feasible"]) == (result.recommendation.basis, True)
    assert any(record.HasField("exit") and record.exit.exit_code == 0 for record in found)


def media(folder: Path, found: list[Any], key: str) -> dict[str, Any]:
    """A table that was logged, read from the file that the run keeps beside its log."""
    (row,) = [row for row in history(found) if f"{key}/path" in row]
    path, *_ = folder.rglob(Path(row[f"{key}/path"]).name)
    return json.loads(path.read_text())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_candidates_files_and_page_are_read_back(task, tmp_path):
    problem, evaluator, _ = task
    problem = replace(problem, modules=("quality", "answer"))  # the first is a column's name
    tracker = WandbTracker(directory=str(tmp_path))
    optimizer = make_scope(problem, base="small", seed=0)
    callbacks, run_dir = [CurvePlot(), tracker], tmp_path / "run"
    result = run(problem, optimizer, evaluator, 1.0, run_dir=run_dir, callbacks=callbacks)
    found = records(tmp_path)
    table = media(tmp_path, found, "configurations")
    expected = result.table()
    assert table["columns"] == expected.columns
    assert len(table["data"]) == len(expected)
    for row, row_of_result in zip(table["data"], expected.rows(), strict=True):
        assert row == [pytest.approx(v) if isinstance(v, float) else v for v in row_of_result]
    artifacts = [
        record.request.log_artifact.artifact if record.HasField("request") else record.artifact
        for record in found
        if record.HasField("artifact")
        or (record.HasField("request") and record.request.HasField("log_artifact"))
    ]
    (artifact,) = [one for one in artifacts if one.type == "result"]
    paths = {entry.path: entry.local_path for entry in artifact.manifest.contents}
    names = {"settings.json", "result.json", "trace.csv", "curves.png", "report.html"}
    assert names | {"result.table.json"} <= paths.keys()
    assert str(result).splitlines()[0] in Path(paths["report.html"]).read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_run_is_finished_when_the_search_fails(task, tmp_path):
    problem, evaluator, _ = task

    class Breaks(TableEvaluator):
        def evaluate(self, requests):
            raise ConnectionError("the endpoint is gone")

    tracker = WandbTracker(directory=str(tmp_path))
    optimizer = make_scope(problem, base="small", seed=0)
    with pytest.raises(ConnectionError):
        run(problem, optimizer, Breaks(evaluator.table), 1.0, callbacks=[tracker])
    exits = [record.exit.exit_code for record in records(tmp_path) if record.HasField("exit")]
    assert exits == [1]
    assert wandb.run is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_is_rebuilt_from_its_directory_alone(task, tmp_path, monkeypatch, capsys):
    problem, evaluator, _ = task
    live, run_dir = tmp_path / "live", tmp_path / "run"
    live.mkdir()
    optimizer = make_scope(problem, base="small", seed=0)
    callbacks = [CurvePlot(), WandbTracker(directory=str(live))]
    run(problem, optimizer, evaluator, 0.3, run_dir=run_dir, callbacks=callbacks)
    argv = ["replay.py", str(run_dir), "tracking.group=again", "tracking.tags=[x]"]
    monkeypatch.setattr(sys, "argv", argv)
    replay.main()
    assert "finished" in capsys.readouterr().out
    first, again = records(live), records(run_dir)
    assert numbers(again) == numbers(first) != []
    (info,) = [record.run for record in again if record.HasField("run")]
    assert (info.run_group, list(info.tags), info.job_type) == ("again", ["x"], "scope")
    configs = [
        {item.key: json.loads(item.value_json) for record in found if record.HasField("run")
         for item in record.run.config.update if item.key != "_wandb"}
        for found in (first, again)
    ]  # fmt: skip
    assert configs[0] == configs[1]
    for found in (first, again):
        manifests = [
            {entry.path for entry in record.request.log_artifact.artifact.manifest.contents}
            for record in found
            if record.request.HasField("log_artifact")
        ] or [{e.path for e in r.artifact.manifest.contents} for r in found
              if r.HasField("artifact")]  # fmt: skip
        paths = {"result.table.json", "result.json", "trace.csv", "settings.json", "curves.png"}
        assert any(paths <= manifest for manifest in manifests)
    assert any(record.HasField("exit") and record.exit.exit_code == 0 for record in again)


def numbers(found: list[Any]) -> list[dict[str, float]]:
    """The logged values, without W&B's own columns and the paths of media."""
    return [
        kept
        for row in history(found)
        if (
            kept := {
                k: v for k, v in row.items() if not k.startswith(("_", "curves", "configurations"))
            }
        )
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_interrupted_run_is_told_as_far_as_it_went(task, tmp_path, monkeypatch):
    problem, evaluator, _ = task

    class Stops(TableEvaluator):
        num_left = 60

        def evaluate(self, requests):
            for observation in super().evaluate(requests):
                if self.num_left == 0:
                    raise ConnectionError("the endpoint is gone")
                self.num_left -= 1
                yield observation

    optimizer = make_scope(problem, base="small", seed=0)
    with pytest.raises(ConnectionError):
        run(problem, optimizer, Stops(evaluator.table), 5.0, run_dir=tmp_path)
    monkeypatch.setattr(sys, "argv", ["replay.py", str(tmp_path)])
    replay.main()
    found = records(tmp_path)
    spends = [row["spend_usd"] for row in history(found) if "u_out_usd" in row]
    assert spends == [row.spend_usd for row in optimizer.trace]
    assert any(record.HasField("exit") and record.exit.exit_code == 1 for record in found)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [([], "usage"), (["nowhere"], "not the directory of a run"), (["tracking.x=1"], "usage")],
)
def test_what_is_no_run_directory_is_one_line(arguments, named, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["replay.py", *arguments])
    with pytest.raises(SystemExit) as stop:
        replay.main()
    assert stop.value.code == 2
    assert named in capsys.readouterr().err


def test_a_link_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "yours").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "wandb").symlink_to(tmp_path / "yours")
    problem, known, _ = synthetic_task(num_queries=8)
    optimizer = make_scope(problem, base="small", seed=0)
    tracker = WandbTracker(directory=str(tmp_path / "run"))
    with pytest.raises(InputError, match="wandb: it is a link"):
        run(problem, optimizer, known, 0.1, callbacks=[tracker])
    assert list((tmp_path / "yours").iterdir()) == []


@pytest.mark.parametrize("wrong", [{"tags": ["t" * 80]}, {"project": "a/b"}])
def test_what_wandb_does_not_take_is_one_line(wrong, tmp_path):
    problem, known, _ = synthetic_task(num_queries=8)
    optimizer = make_scope(problem, base="small", seed=0)
    with pytest.raises(InputError, match=r"^W&B at .*: .*(80 characters|'a/b').*; mend what"):
        run(
            problem,
            optimizer,
            known,
            0.1,
            callbacks=[WandbTracker(**wrong, directory=str(tmp_path))],
        )


def _of_tracker(caplog):
    return [one for one in caplog.records if one.name == "scope_torch.tracking.wandb"]


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_told_before_anything_is_paid(
    tmp_path, monkeypatch, caplog
):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        port = taken.getsockname()[1]
        monkeypatch.setattr(
            wandb.setup().settings, "base_url", f"http://127.0.0.1:{port}", raising=True
        )
        problem, evaluator, _ = synthetic_task(num_queries=10)
        tracker = WandbTracker(mode="online", directory=str(tmp_path))
        tracker.check(problem)
        (record,) = _of_tracker(caplog)
        assert "the run is logged offline; send it later with `wandb sync" in record.getMessage()
        scope = make_scope(problem, base="nano", seed=0)
        run(problem, scope, evaluator, 0.05, callbacks=[tracker])
    assert len(_of_tracker(caplog)) == 1
    assert any(record.HasField("exit") for record in records(tmp_path))


class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


def test_a_missing_key_is_told_before_anything_is_paid(tmp_path, monkeypatch):
    """Without a terminal nobody can be asked for it."""
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(wandb.setup().settings, "base_url", url, raising=True)
        tracker = WandbTracker(mode="online", directory=str(tmp_path))
        with pytest.raises(InputError, match=rf"W&B at {url}: .*run `wandb login`"):
            tracker.check(synthetic_task(num_queries=8).problem)
        server.shutdown()
