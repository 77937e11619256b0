"""Certificates about tomorrow's queries on the command line."""

import json
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_search_on_a_pool(cli):
    status, out, err = cli(
        "task=synthetic",
        "task.num_queries=1500",
        "task.epsilon=0.1",
        "method.certificate=population",
        "method.query_pool=60",
        "budget_usd=20",
    )
    assert (status, err) == (0, "")
    assert "certified for tomorrow at delta=0.05" in out
    (path,) = Path("outputs").rglob("result.json")
    told = json.loads(path.read_text())["population"]
    assert told["quality_difference"][0] >= 0
    assert told["answered"] < 1500
    settings = json.loads(path.with_name("settings.json").read_text())
    assert "reference_answers" not in settings["problem"]
    assert settings["optimizer"]["query_pool"] == 60
