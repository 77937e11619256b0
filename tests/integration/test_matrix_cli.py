"""`task=matrix` on the command line, with files that are named relative to the folder."""

import json

import pytest
from tasks.test_matrix import LLMS, columns, matrix, write_csv


@pytest.mark.slow
def test_a_search_on_matrices(cli, tmp_path):
    write_csv(tmp_path / "quality.csv", matrix("quality"))
    write_csv(tmp_path / "cost.csv", matrix("cost_usd"))
    write_csv(tmp_path / "latency.csv", matrix("latency_s"))
    (tmp_path / "columns.json").write_text(json.dumps(columns()))
    status, _, err = cli(
        *("task=matrix", "task.quality_path=quality.csv", "task.cost_path=cost.csv"),
        *("task.columns_path=columns.json", "task.outcome_paths={latency_s: latency.csv}"),
        *("task.constraints=['latency_s <= 0.9 cap 1']", "task.reference=[pro,pro]"),
        *("task.epsilon=0.3", "base=nano", "budget_usd=1"),
    )
    assert (status, err) == (0, "")
    (path,) = tmp_path.rglob("result.json")
    result = json.loads(path.read_text())
    assert set(result["theta_out"].values()) <= set(LLMS)
    assert result["feasible"]
    assert result["true_latency_s"] < 0.9


@pytest.mark.slow
def test_a_path_that_is_not_given_is_named(cli):
    status, _, err = cli("task=matrix", "task.reference=[pro,pro]")
    assert status == 2
    assert "task.columns_path" in err or "task.quality_path" in err
