"""`scope-torch time_limit=...`: the job ends in time, and the same command goes on."""

import json
from itertools import count
from types import SimpleNamespace

import pytest

JOB = ["task=synthetic", "task.num_queries=40", "budget_usd=0.5", "device=cpu"]


@pytest.fixture
def ticking(monkeypatch):
    """A second passes each time that somebody looks at the clock."""
    fake = SimpleNamespace(monotonic=count().__next__)
    monkeypatch.setattr("scope_torch.runs.deadline.time", fake)


def result_of(folder):
    (path,) = folder.rglob("result.json")
    return json.loads(path.read_text())


@pytest.mark.slow
def test_the_same_command_goes_on(cli, tmp_path, ticking):
    status, out, err = cli(*JOB, "output_dir=whole")
    assert status == 0, err
    whole = result_of(tmp_path / "whole")
    ends = list[str]()
    while not ends or ends[-1] == "time limit":
        status, out, err = cli(*JOB, "time_limit=4min", "output_dir=outputs")
        assert status == 0, err
        cut = result_of(tmp_path / "outputs")
        ends.append(cut["stop_reason"])
        assert ("stopped: the time is over" in out) == (ends[-1] == "time limit")
        assert len(ends) < 10
    assert len(ends) > 1
    for key in ("stop_reason", "num_observations", "theta_out", "spend_usd"):
        assert cut[key] == whole[key]


@pytest.mark.slow
def test_what_is_no_time_is_refused(cli, tmp_path):
    status, _, err = cli(*JOB, "time_limit=soon")
    assert status == 2
    assert "time_limit='soon' must be a time above 0" in err
    assert not list(tmp_path.rglob("journal.jsonl"))
