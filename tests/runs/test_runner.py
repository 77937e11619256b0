"""The budget, the callbacks, the files of a run, and the values that are refused."""

import csv
import json
import math
import threading
import time
from dataclasses import fields

import numpy as np
import pytest
from tables import CountingEvaluator, Crash, make_task

from scope_torch.errors import InputError
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.observation import Observation, Request
from scope_torch.runs import opening
from scope_torch.runs.callbacks import Callback
from scope_torch.runs.directory import read_settings
from scope_torch.runs.earlier import known_from
from scope_torch.runs.journal import Journal
from scope_torch.runs.runner import run
from scope_torch.search.optimizer import TraceRow

TASK = make_task(1, (3, 3), 6)
BUDGET = TASK.budget(7.3)


def search(evaluator=None, budget=BUDGET, run_dir=None, callbacks=(), **settings):
    optimizer = TASK.scope(settings.pop("seed", 1), **settings)
    evaluator = evaluator or TASK.evaluator()
    return run(TASK.problem, optimizer, evaluator, budget, run_dir=run_dir, callbacks=callbacks)


def journaled(run_dir) -> list[Observation]:
    lines = (run_dir / "journal.jsonl").read_text().splitlines()
    return [Observation.from_json(line) for line in lines]


@pytest.mark.parametrize("evaluations", [1e-9, 0.3, 2.0, 7.3])
def test_the_first_observation_above_the_budget_is_the_last(evaluations):
    budget = TASK.budget(evaluations)
    result = search(budget=budget)
    costs = [o.cost_usd for o in result.history]
    assert sum(costs[:-1]) <= budget < sum(costs)
    assert result.stop_reason == "budget"
    assert result.history.spend_usd == pytest.approx(sum(costs), rel=1e-12)
    assert result.surplus_usd == 0


def test_a_budget_met_exactly_is_not_crossed():
    spends = np.cumsum([o.cost_usd for o in search().history])
    assert len(search(budget=float(spends[20])).history) == 22
    assert len(search(budget=float(np.nextafter(spends[20], 0))).history) == 21


@pytest.mark.parametrize("batch_size", [1, 4, None])
@pytest.mark.parametrize("concurrency", [2, 5, 64])
def test_concurrency_changes_nothing_but_the_surplus(tmp_path, concurrency, batch_size):
    alone = search(CountingEvaluator(TASK), batch_size=batch_size)
    evaluator = CountingEvaluator(TASK, concurrency)
    result = search(evaluator, run_dir=tmp_path, batch_size=batch_size)
    assert list(result.history) == list(alone.history)
    assert result.recommendation == alone.recommendation
    assert result.trace == alone.trace
    assert set(evaluator.paid.values()) == {1}
    assert max(evaluator.in_flight) <= concurrency
    recorded = journaled(tmp_path)
    assert {o.request for o in recorded} == set(evaluator.paid)
    extra = [o for o in recorded if o not in set(result.history)]
    assert len(extra) < concurrency
    assert len(recorded) == len(result.history) + len(extra)
    assert result.surplus_usd == pytest.approx(sum(o.cost_usd for o in extra))
    assert result.summary()["result_hash"] == alone.summary()["result_hash"]


def test_threads_that_finish_out_of_order_change_nothing():
    lock, finished = threading.Lock(), []

    def system(assignment, query):
        theta = TASK.problem.codes(list(assignment.values()))
        time.sleep((hash((theta, query)) % 5) * 1e-3)
        observation = TASK.observe(Request(theta, query))
        with lock:
            finished.append((theta, query))
        return observation.quality, observation.cost_usd

    alone = search(batch_size=None)
    evaluator = FunctionEvaluator(TASK.problem, system, range(6), concurrency=8)
    result = search(evaluator, batch_size=None)
    pairs = [(o.theta, o.query) for o in result.history]
    assert list(result.history) == list(alone.history)
    assert finished[: len(pairs)] != pairs
    assert result.recommendation == alone.recommendation


class Log(Callback):
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.seen: list = []
        self.rows: list[TraceRow] = []
        self.error: BaseException | None = None

    def start(self, problem, optimizer, budget_usd):
        self.calls.append("start")
        assert (problem, optimizer.name, budget_usd) == (TASK.problem, "scope", BUDGET)

    def observed(self, observation, spend_usd):
        self.calls.append("observed")
        self.seen.append((observation, spend_usd))

    def changed(self, row):
        self.calls.append("changed")
        self.rows.append(row)

    def end(self, result):
        self.calls.append("end")
        self.result = result

    def close(self, error):
        self.calls.append("close")
        self.error = error


def test_callbacks_are_called_in_order():
    logs = [Log(), Log()]
    result = search(callbacks=logs)
    for log in logs:
        assert log.calls[0] == "start"
        assert log.calls[-2:] == ["end", "close"]
        assert set(log.calls[1:-2]) == {"observed", "changed"}
        assert [o for o, _ in log.seen] == list(result.history)
        spends = np.cumsum([o.cost_usd for o in result.history]).tolist()
        assert [spend for _, spend in log.seen] == spends
        assert log.result is result
        assert log.error is None
        assert log.rows == result.trace[: len(log.rows)]


def test_every_row_of_the_trace_is_reported():
    log = Log()
    result = search(callbacks=[log], gap_tolerance=0.9)
    assert result.trace[-1].event == "stopped"
    assert log.rows == result.trace


def test_callbacks_are_closed_with_the_error_that_ended_the_run(tmp_path):
    log = Log()
    with pytest.raises(Crash) as caught:
        search(CountingEvaluator(TASK, crash_after=5), run_dir=tmp_path, callbacks=[log])
    assert log.error is caught.value
    assert log.calls == ["start", *["observed"] * 5, "close"]
    assert not (tmp_path / "result.json").exists()
    Journal(tmp_path / "journal.jsonl").close()  # not locked


@pytest.mark.parametrize("method", ["start", "observed", "changed", "end"])
def test_a_callback_that_fails_ends_the_run_and_all_are_closed(tmp_path, method):
    def fail(*args):
        raise KeyboardInterrupt

    bad, log = Log(), Log()
    setattr(bad, method, fail)
    with pytest.raises(KeyboardInterrupt) as caught:
        search(run_dir=tmp_path, callbacks=[bad, log])
    assert log.calls[-1] == bad.calls[-1] == "close"
    assert log.error is caught.value
    whole = search(run_dir=tmp_path)
    assert list(whole.history) == list(search().history)


@pytest.mark.parametrize("method", ["end", "close"])
def test_a_callback_that_fails_at_the_end_loses_no_result(tmp_path, method, caplog):
    def fail(*args):
        raise OSError("no space left")

    bad, log = Log(), Log()
    setattr(bad, method, fail)
    found = search(callbacks=[bad, log])  # which is in no directory
    assert list(found.history) == list(search().history)
    assert log.calls[-2:] == ["end", "close"]
    assert "Log failed at the end; the result stands" in caplog.text
    with pytest.raises(OSError, match="no space left"):
        search(run_dir=tmp_path, callbacks=[bad])


def test_a_callback_that_cannot_close_hides_no_interrupt(tmp_path, caplog):
    def interrupt(*args):
        raise KeyboardInterrupt

    def fail(*args):
        raise BrokenPipeError

    log, bad = Log(), Log()
    log.changed, bad.close = interrupt, fail
    for run_dir in (tmp_path, None):
        with pytest.raises(KeyboardInterrupt):  # or a sweep would begin its next job
            search(run_dir=run_dir, callbacks=[log, bad])
        assert caplog.messages.pop() == "Log failed after KeyboardInterrupt"
        caplog.clear()


def test_callbacks_and_journal_are_closed_whatever_fails(tmp_path, monkeypatch):
    journals: list[Journal] = []

    def tracked(path, *rest):
        journals.append(Journal(path, *rest))
        return journals[0]

    monkeypatch.setattr(opening, "Journal", tracked)
    (tmp_path / "trace.csv").mkdir()
    log = Log()
    with pytest.raises(InputError, match=r"cannot write \S+trace\.csv: Is a directory"):
        search(run_dir=tmp_path, callbacks=[log])
    closed = journals[0]._file.closed
    journals[0].close()
    assert (closed, log.calls[-1]) == (True, "close")


def test_the_files_of_a_run(tmp_path):
    result = search(run_dir=str(tmp_path / "new" / "run"))
    run_dir = tmp_path / "new" / "run"
    names = {"journal.jsonl", "queries.json", "settings.json", "trace.csv", "result.json"}
    assert {path.name for path in run_dir.iterdir()} == names
    assert journaled(run_dir) == list(result.history)
    summary = json.loads((run_dir / "result.json").read_text())
    assert summary == json.loads(json.dumps(result.summary(), allow_nan=False))
    assert summary["paths"] == {"run_dir": str(run_dir)}
    assert summary["theta_out"] == result.choice
    assert summary["num_observations"] == len(result.history)
    assert summary["seed"] == 1
    settings = read_settings(run_dir / "settings.json")
    assert settings == json.loads(json.dumps(result.settings))
    assert settings["budget_usd"] == BUDGET
    assert settings["problem"]["epsilon"] == TASK.problem.epsilon


def test_trace_csv(tmp_path):
    result = search(run_dir=tmp_path)
    with open(tmp_path / "trace.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = [field.name for field in fields(TraceRow)]
    assert list(rows[0]) == [*columns, "true_cost_usd", "true_quality"]
    assert len(rows) == len(result.trace) > 5
    for written, row in zip(rows, result.trace, strict=True):
        out = list(TASK.problem.names(row.theta_out).values())
        assert written["theta_out"] == "|".join(out)
        assert (written["t"], written["event"]) == (str(row.t), row.event)
        for name in ("from_budget_usd", "spend_usd", "u_out_usd", "gap_usd"):
            value = getattr(row, name)
            assert written[name] == "" if value is None else float(written[name]) == value
        cand = row.theta_cand and "|".join(TASK.problem.names(row.theta_cand).values())
        assert written["theta_cand"] == (cand or "")
        assert float(written["true_cost_usd"]) == TASK.table.cost_usd[row.theta_out].mean()
        assert float(written["true_quality"]) == TASK.table.quality[row.theta_out].mean()


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan, math.inf, "1", None])
def test_a_budget_that_is_no_amount_is_refused(budget, tmp_path):
    with pytest.raises(InputError, match=rf"budget_usd={budget!r} must be a (positive )?number"):
        search(budget=budget, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("path", ["", "a\0b", 5])
def test_what_is_no_path_is_refused_before_anything_is_paid(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evaluator = CountingEvaluator(TASK)
    with pytest.raises(InputError, match=r"run_dir=.* must be a path"):
        search(evaluator, run_dir=path)
    with pytest.raises(InputError, match=r"run_dir=.* must be a path"):
        known_from([], TASK.problem, evaluator, run_dir=path)
    with pytest.raises(InputError, match=r"continue_from=.* must be a path"):
        known_from([path], TASK.problem, evaluator)
    assert not evaluator.paid
    assert not any(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_is_refused_before_anything_is_paid(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "run" / "journal.jsonl").mkdir(parents=True)
    evaluator = CountingEvaluator(TASK)
    for run_dir in ("file", "file/run", "run"):
        with pytest.raises(InputError, match="choose another place"):
            search(evaluator, run_dir=tmp_path / run_dir)
    assert not evaluator.paid


def test_missing_settings_are_refused(tmp_path):
    search(run_dir=tmp_path)
    (tmp_path / "settings.json").unlink()
    with pytest.raises(InputError, match=r"settings\.json is missing.*cannot be resumed"):
        search(run_dir=tmp_path)


def test_a_missing_journal_is_refused(tmp_path):
    """All that was paid for would be paid again, in silence."""
    search(CountingEvaluator(TASK), run_dir=tmp_path)
    journal = tmp_path / "journal.jsonl"
    kept = journal.read_bytes()
    journal.unlink()
    evaluator = CountingEvaluator(TASK)
    with pytest.raises(InputError, match=r"journal\.jsonl is missing.*restore it, or move"):
        search(evaluator, run_dir=tmp_path)
    assert not evaluator.paid
    assert not journal.exists()
    journal.write_bytes(kept)
    search(evaluator, run_dir=tmp_path)
    assert not evaluator.paid


def test_damaged_settings_are_refused(tmp_path):
    search(run_dir=tmp_path)
    (tmp_path / "settings.json").write_text("")
    with pytest.raises(InputError, match=r"settings\.json"):
        search(run_dir=tmp_path)


class Forgetful(CountingEvaluator):
    def evaluate(self, requests):
        return [o for o in super().evaluate(requests) if o.query != 3]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_evaluator_that_returns_too_little_is_refused(concurrency, tmp_path):
    with pytest.raises(InputError, match=r"no observation for Request\(theta=.* query=3"):
        search(Forgetful(TASK, concurrency), run_dir=tmp_path)
    recorded = {o.request for o in journaled(tmp_path)}
    again = CountingEvaluator(TASK, concurrency)
    search(again, run_dir=tmp_path)
    assert not recorded & set(again.paid)


def test_an_optimizer_that_has_been_used_is_refused():
    optimizer = TASK.scope(1)
    run(TASK.problem, optimizer, TASK.evaluator(), BUDGET)
    with pytest.raises(InputError, match="fresh"):
        run(TASK.problem, optimizer, TASK.evaluator(), BUDGET)
