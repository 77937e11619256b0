"""A real offline W&B run, read back from its file."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from scope_torch.tasks.synthetic import synthetic_task

wandb = pytest.importorskip("wandb")

from wandb.proto import wandb_internal_pb2  # noqa: E402

from scope_torch.evaluators.table import TableEvaluator  # noqa: E402
from scope_torch.methods import make_scope  # noqa: E402
from scope_torch.runner import run  # noqa: E402
from scope_torch.tracking.wandb import WandbTracker  # noqa: E402


def records(folder: Path) -> list[Any]:
    """The records of a run file: LevelDB's log format behind a header of 7 bytes."""
    (path,) = folder.rglob("run-*.wandb")
    data, at, whole, found = path.read_bytes(), 7, b"", []
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
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


@pytest.fixture
def task(monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    return synthetic_task(num_queries=12)


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
    assert any("c_bf_usd" in row for row in rows)
    metrics = [record.metric for record in found if record.HasField("metric")]
    assert any(metric.step_metric == "spend_usd" for metric in metrics)
    assert any(record.HasField("exit") and record.exit.exit_code == 0 for record in found)


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
