"""A run read back from its directory: finished, running, interrupted, damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scope_torch.errors import InputError
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.runs.callbacks import Callback
from scope_torch.runs.finished import load_runs
from scope_torch.runs.journal import read_journal
from scope_torch.runs.recorded import read_run
from scope_torch.runs.runner import run
from scope_torch.runs.trace import read_trace
from scope_torch.tasks.synthetic import synthetic_task

TASK = synthetic_task(num_queries=15)


def search(run_dir, budget=1.0, callbacks=(), task=TASK):
    optimizer = make_scope(task.problem, base=task.problem.llms[0][-1], seed=2)
    return run(
        task.problem, optimizer, task.evaluator, budget, run_dir=run_dir, callbacks=callbacks
    )


def test_a_finished_run_is_read_as_it_was(tmp_path):
    result = search(tmp_path)
    recorded = read_run(tmp_path)
    assert recorded.status == "finished"
    assert recorded.problem == TASK.problem
    assert [r.row for r in recorded.rows] == list(result.trace)
    assert recorded.observations == list(result.history)
    assert recorded.spend_usd == pytest.approx(result.history.spend_usd, abs=1e-12)
    assert recorded.summary() == json.loads(json.dumps(result.summary()))
    assert recorded.method.settings() == json.loads(json.dumps(result.settings["optimizer"]))
    assert recorded.curve is not None
    assert result.curve is not None
    for name in ("budget_usd", "cost_usd", "quality"):
        np.testing.assert_array_equal(getattr(recorded.curve, name), getattr(result.curve, name))


def test_a_least_quality_with_more_digits_than_its_text(tmp_path):
    """0.666666666667 is above the average of the reference."""
    limits = {"constraints": ("quality >= 0.66666666666666663",), "epsilon": None}
    problem = replace(TASK.problem, reference_quality=2 / 3, reference_answers=None, **limits)
    result = search(tmp_path, task=TASK._replace(problem=problem))
    assert str(result.problem.constraints[0]) == "quality >= 0.666666666667"
    assert read_run(tmp_path).problem.s_0 == pytest.approx(2 / 3, rel=1e-15)
    with pytest.raises(InputError, match=r"at most 0\.666667"):
        replace(problem, constraints=("quality >= 0.66667",))


@pytest.mark.parametrize("bound", ["0.5 * reference", "0.0001"])
def test_what_counts_of_the_cost_of_the_reference_is_read_back(tmp_path, bound):
    """The directory has no answers of theta_0, of which most are above the cap."""
    costs = [usd for usd, _ in TASK.problem.reference_answers]
    cap = min(costs) * 1.1
    changes = {
        "objective": "quality",
        "epsilon": None,
        "constraints": [f"cost_usd <= {bound} cap {cap}"],
    }
    problem = replace(TASK.problem, **changes)
    search = make_scope_joint(problem, base=problem.llms[0][-1], seed=2)
    run(problem, search, TASK.evaluator, 0.3, run_dir=tmp_path)
    read = read_run(tmp_path).problem
    assert read.limits[0].value == pytest.approx(problem.limits[0].value, rel=1e-11)
    counted = sum(min(usd, cap) for usd in costs) / len(costs)
    assert problem.reference_averages["cost_usd"] == pytest.approx(counted, rel=1e-12)
    if "reference" in bound:
        assert problem.limits[0].value == pytest.approx(counted / 2, rel=1e-12)
        assert read.reference_averages == problem.reference_averages


def test_bounds_of_a_candidate_are_in_the_trace(tmp_path):
    trace = search(tmp_path).trace
    ended = [row for row in trace if row.event in ("pruned", "improved", "completed")]
    assert len(ended) > 5
    for row in ended:
        assert row.lower_c_usd is not None
        assert row.upper_c_usd is not None
        assert row.lower_g is not None
        assert row.upper_g is not None
        assert row.lower_c_usd < row.upper_c_usd
        assert row.lower_g < row.upper_g
        if row.event == "improved":
            assert row.upper_c_usd == row.u_out_usd
            assert row.theta_cand == row.theta_out
        if row.event == "pruned":
            assert row.u_out_usd is not None
            assert row.lower_g > 0 or row.lower_c_usd > row.u_out_usd


class Looks(Callback):
    """Reads the directory at every change, like `scope-torch watch`."""

    def __init__(self, run_dir):
        self.run_dir, self.seen = run_dir, []

    def changed(self, row):
        recorded = read_run(self.run_dir)
        self.seen.append((recorded.status, recorded.rows[-1].row.t, len(recorded.observations)))
        assert recorded.summary() == {}


@pytest.mark.slow
def test_a_running_run_is_read_along(tmp_path):
    looks = Looks(tmp_path)
    result = search(tmp_path, callbacks=[looks])
    assert {status for status, _, _ in looks.seen} == {"running"}
    assert len(looks.seen) == len(result.trace)
    assert all(t <= num_observations for _, t, num_observations in looks.seen)
    numbers = [num_observations for _, _, num_observations in looks.seen]
    assert numbers == sorted(numbers)
    assert numbers[0] < numbers[-1]


@pytest.mark.slow
def test_a_run_that_ends_while_it_is_read_has_lost_no_lines(tmp_path, monkeypatch):
    class Interrupted(Callback):
        def observed(self, observation, spend_usd):
            if spend_usd > 0.3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, callbacks=[Interrupted()])

    def ended_meanwhile(path):
        monkeypatch.undo()
        begun = read_journal(path)
        search(tmp_path)
        return begun

    monkeypatch.setattr("scope_torch.runs.recorded.read_journal", ended_meanwhile)
    assert read_run(tmp_path).status == "interrupted"
    assert read_run(tmp_path).status == "finished"


def test_half_written_lines_are_left_out(tmp_path):
    search(tmp_path)
    whole = read_run(tmp_path)
    (tmp_path / "result.json").unlink()
    for name in ("journal.jsonl", "trace.csv"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-7])
    cut = read_run(tmp_path)
    assert cut.status == "interrupted"
    assert cut.rows == whole.rows[:-1]
    assert cut.observations == whole.observations[:-1]
    (tmp_path / "error.log").write_text("a traceback")
    assert read_run(tmp_path).status == "failed"


@pytest.mark.parametrize("kept", [None, 0, 1], ids=["deleted", "empty", "cut"])
def test_a_finished_run_whose_trace_is_lost_is_not_one_that_found_nothing(tmp_path, kept):
    """As where a folder was copied without its large files."""
    path = tmp_path / "trace.csv"
    result = search(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.unlink() if kept is None else path.write_bytes(b"".join(lines[: 2 * kept]))
    lost = r"trace\.csv is missing or cut.*move result\.json away"
    for read in (read_run, load_runs_and_measure):
        with pytest.raises(InputError, match=lost):
            read(tmp_path)
    (tmp_path / "result.json").unlink()
    assert read_run(tmp_path).status == "interrupted"  # without a result, a trace may be short
    again = search(tmp_path)
    assert again.replayed == len(result.history)
    assert [recorded.row for recorded in read_run(tmp_path).rows] == list(result.trace)
    load_runs_and_measure(tmp_path)


def test_a_finished_run_whose_journal_is_lost_is_not_one_that_asked_nothing(tmp_path):
    """Else its page has the bill of the search beside "calls 0", and all of its budget is left."""
    made = len(search(tmp_path, budget=0.2).history)
    (tmp_path / "journal.jsonl").unlink()
    with pytest.raises(InputError, match=f"has 0 of {made} observations; restore the file"):
        read_run(tmp_path)


def load_runs_and_measure(path):
    """What `report` reads."""
    groups, _ = load_runs(path)
    return [run.measures() for runs in groups.values() for run in runs]


def test_names_may_hold_the_sign_between_names(tmp_path):
    problem, evaluator, _ = synthetic_task(num_queries=5)
    strange = {"large": "a|b", "medium": "a", "mini": 'b"|,', "nano": "<i>\n</i>"}
    names = tuple(strange.get(name, name) for name in problem.llms[0])
    table = evaluator.table.__class__(
        problem.modules, (names, names), evaluator.table.queries,
        evaluator.table.cost_usd, evaluator.table.quality,
    )  # fmt: skip
    task = type(TASK)(
        table.problem("strange", ("frontier", "frontier"), 0.05), type(evaluator)(table)
    )
    optimizer = make_scope(task.problem, base="small", seed=0)
    result = run(task.problem, optimizer, task.evaluator, 0.5, run_dir=tmp_path)
    rows = read_trace(tmp_path / "trace.csv", task.problem)
    assert [r.row.theta_out for r in rows] == [row.theta_out for row in result.trace]
    assert len({row.theta_cand for row in result.trace}) > 3


@pytest.mark.slow
def test_names_need_no_locale_of_their_own(tmp_path):
    """As in a container or under cron, whose locale has ASCII alone."""
    code = r"""
import sys
from scope_torch import make_scope, run
from scope_torch.tasks.synthetic import synthetic_task

problem, evaluator, _ = synthetic_task(num_queries=5)
names = tuple(name + "\u6a21" for name in problem.llms[0])
table = evaluator.table
table = type(table)(
    problem.modules, (names, names), table.queries, table.cost_usd, table.quality
)
problem = table.problem("strange", ("frontier\u6a21", "frontier\u6a21"), 0.05)
optimizer = make_scope(problem, base="small\u6a21", seed=0)
run(problem, optimizer, type(evaluator)(table), 0.5, run_dir=sys.argv[1])
"""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **ascii_only}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert any("\u6a21" in name for name in read_run(tmp_path).problem.llms[0])
    assert "\u6a21" in (tmp_path / "trace.csv").read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("settings.json", None, "not the directory of a run"),
        ("settings.json", "{", "damaged"),
        ("settings.json", "{}", "describes no problem"),
        ("journal.jsonl", "nonsense\n{}\n", "not an observation"),
        ("trace.csv", "t,event\r\nx,improved\r\n", "line 2"),
    ],
)
def test_damage_is_named(tmp_path, name, content, named):
    search(tmp_path, budget=0.2)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content.encode())
    with pytest.raises(InputError, match=named):
        read_run(tmp_path)
