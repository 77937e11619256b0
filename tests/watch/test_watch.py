"""`scope-torch watch`: it writes the decision page, once or until the run ends."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
from results.pages import Page, search
from results.results_for_tests import ONE_CERTIFICATE, half_certified, task

import scope_torch as st
from scope_torch import make_scope_joint
from scope_torch.cli import watch
from scope_torch.cli.run import main as scope_torch_main
from scope_torch.observation import Observation
from scope_torch.runs.recorded import read_run
from scope_torch.tasks import Task
from scope_torch.watch.reading import result_of_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("finished")
    search(run_dir)
    return run_dir


@pytest.mark.slow
def test_the_command_writes_the_page_and_names_it(finished, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["scope-torch", "watch", str(finished), "--follow"])
    scope_torch_main()
    out = capsys.readouterr().out.strip()
    assert out == (finished / "watch.html").resolve().as_uri()
    assert Page((finished / "watch.html").read_text()).refresh() is None
    watch.main([str(finished), "--output", str(tmp_path / "page.html")])
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere"], "nowhere is not the directory of a run"),
        (["{parent}"], "name one of the 1 runs below it"),
        (["{run}", "--follow", "--every=0"], "--every=0 must be at least 0.1"),
        ([], "run_dir"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2(arguments, named, tmp_path, capsys):
    search(tmp_path / "run", budget=0.1)
    filled = [a.format(parent=tmp_path, run=tmp_path / "run") for a in arguments]
    with pytest.raises(SystemExit) as stop:
        watch.main(filled)
    assert stop.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.slow
def test_a_journal_in_order_of_arrival_decides_no_certificate(tmp_path):
    """Right answers often arrive first. Before the end, too, the certificate is that of answers."""
    result, (problem, evaluator, _) = half_certified(), task(400, 0.2)
    method = make_scope_joint(problem, base="small", seed=1, **ONE_CERTIFICATE)
    of_task = Task(problem, evaluator)
    assert search(tmp_path, result.budget_usd, (), method, of_task).quality == result.quality
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    lines.sort(key=lambda line: -json.loads(line)["quality"])
    journal.write_text("".join(lines))
    recorded = result_of_run(read_run(tmp_path))
    (row,) = recorded.table().filter(status="choice").to_dicts()
    assert (row["quality"], row["quality_lower"], row["quality_upper"]) == result.quality[:3]
    assert (row["cost_usd"], row["cost_lower"], row["cost_upper"]) == result.cost_usd[:3]
    (tmp_path / "result.json").unlink()
    stopped = result_of_run(read_run(tmp_path))
    assert (
        stopped.why == "certified with 95% confidence on these 400 queries, if answers do not vary"
    )
    assert stopped.quality.lower == problem.s_0


@pytest.mark.slow
def test_before_the_end_the_cost_is_compared_on_the_same_queries(tmp_path):
    """As at the end: the queries that the choice has answered may be cheap ones."""
    usd = {"mini": 0.002, "pro": 0.02}

    def app(models, text):
        return float(int(text) % 9 > 0 or models["solve"] == "pro"), usd[models["solve"]] * len(
            text
        )

    result = st.select(
        app,
        models={"solve": ["mini", "pro"]},
        dataset=[str(7**i) for i in range(1, 60)] * 3,
        reference="pro",
        max_quality_loss=0.3,
        repeats=0,
        budget_usd=95.3,
        run_dir=tmp_path,
    )
    assert not result.cost_usd.is_exact
    (tmp_path / "result.json").unlink()
    stopped = result_of_run(read_run(tmp_path))
    assert stopped.cost_usd.value == pytest.approx(result.cost_usd.value, rel=1e-9)
    assert str(stopped).splitlines()[0] == str(result).splitlines()[0]


@pytest.mark.slow
def test_following_waits_for_a_run_and_ends_with_it(tmp_path):
    run_dir = tmp_path / "later"
    follower = threading.Thread(target=watch.watch, args=(run_dir, None, 0.1))
    follower.start()
    search(run_dir)
    follower.join(timeout=60)
    assert not follower.is_alive()
    shown = Page((run_dir / "watch.html").read_text())
    assert "finished" in shown.text
    assert shown.refresh() is None


def test_the_pace_is_told_from_the_first_look(finished, monkeypatch):
    run, clock = read_run(finished), watch.Clock()
    times = iter([100.0, 130.0])
    monkeypatch.setattr(watch.time, "monotonic", lambda: next(times))
    assert clock.pace(run) is None
    costs = [Observation((0, 0), 0, cost_usd=0.1, quality=1.0)] * 20
    run.observations.extend(costs)
    pace = clock.pace(run)
    assert pace.calls_per_minute == pytest.approx(40)
    left = max(0.0, run.budget_usd - run.spend_usd)
    assert pace.seconds_left == pytest.approx(30 * left / 2.0)
