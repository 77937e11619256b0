"""What was paid for a call that ended the process: in the journal, in the budget, in the bill."""

import contextlib
import json
from dataclasses import replace

import pytest
from tables import make_task

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.observation import Observation, Request
from scope_torch.runs.journal import Journal, lost_in, read_journal
from scope_torch.runs.recorded import read_run
from scope_torch.runs.runner import run
from scope_torch.watch.reading import result_of_run

TASK = make_task(1, (4, 3), 16)
QUERIES = TASK.table.queries


class Breaks:
    """The table's answers; the calls with these numbers raise after 0.5 USD were paid."""

    def __init__(self, *numbers, kind=TimeoutError):
        self.numbers, self.calls, self.kind = numbers, 0, kind

    def __call__(self, assignment, query):
        self.calls += 1
        if self.calls in self.numbers:
            error = self.kind("no reply")
            error.cost_usd = 0.5
            raise error
        theta = TASK.problem.codes(list(assignment.values()))
        observation = TASK.observe(Request(theta, QUERIES.index(query)))
        return observation.quality, observation.cost_usd


def searched(system, run_dir, budget=None, concurrency=1):
    evaluator = FunctionEvaluator(TASK.problem, system, QUERIES, concurrency, name="breaks")
    scope = TASK.scope(1, batch_size=concurrency)
    return run(TASK.problem, scope, evaluator, budget or TASK.budget(6), run_dir=run_dir)


def stable(run_dir) -> dict:
    result = json.loads((run_dir / "result.json").read_text())
    return {k: v for k, v in result.items() if k not in ("timing", "paths", "result_hash")}


def test_observations_of_today_are_written_as_ever():
    plain = Observation((0, 2), 5, 0.01, 1.0)
    line = '{"theta":[0,2],"query":5,"cost_usd":0.01,"quality":1.0,"replicate":0,"crc":"c3199805"}'
    assert plain.to_json() == line
    for more in ({"judge_usd": 0.5}, {"failed": "app"}, {"failed": "metric", "lost": 7}):
        made = replace(plain, **more)
        assert Observation.from_json(made.to_json()) == made
        assert made.to_json() != line


@pytest.mark.parametrize(
    "key",
    [
        '"judge_usd":-1',
        '"judge_usd":"1"',
        '"failed":"me"',
        '"failed":true',
        '"lost":false',
        '"lost":-1',
        '"lost":null',
        '"failed":null',
    ],
)
def test_a_wrong_mark_is_no_observation(key):
    with pytest.raises(InputError):
        Observation.from_json(f'{{"theta":[0],"query":0,"cost_usd":0.1,"quality":1,{key}}}')


def test_a_journal_tells_the_lost_apart(tmp_path):
    one, two = (Observation((0,), query, 0.25, 1.0) for query in (0, 1))
    lost = replace(two, quality=0.0, failed="app", lost=1)
    with contextlib.closing(Journal(tmp_path / "journal.jsonl")) as journal:
        journal.append([one, lost])
        journal.append([lost, two])
    with contextlib.closing(Journal(tmp_path / "journal.jsonl")) as journal:
        assert journal.recorded == [one, two]
        assert journal.lost == [lost, lost]
    assert read_journal(tmp_path / "journal.jsonl") == [one, two]
    assert lost_in(tmp_path) == [lost, lost]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_query_that_always_fails_ends_with_the_budget(tmp_path, concurrency):
    """Although the calls beside it are answered, and in the journal, at every start."""

    class NeverThree(Breaks):
        def __call__(self, assignment, query):
            if query != QUERIES[3]:
                return super().__call__(assignment, query)
            paid.append(0.5)
            error = TimeoutError("no reply")
            error.cost_usd = 0.5
            raise error

    paid, budget = [], TASK.budget(6)
    for _ in range(100):
        try:
            result = searched(NeverThree(), tmp_path, budget, concurrency)
            break
        except TimeoutError:
            continue
    assert result.stop_reason == "budget"
    assert result.bill.lost_usd == sum(paid)
    assert result.history.spend_usd + sum(paid[:-1]) <= budget + TASK.budget(1)


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("kind", [TimeoutError, KeyboardInterrupt])
def test_it_is_asked_again_and_counts_as_spent(tmp_path, concurrency, kind):
    whole = searched(Breaks(), tmp_path / "whole", concurrency=concurrency)
    with pytest.raises(kind):
        searched(Breaks(9, kind=kind), tmp_path / "run", concurrency=concurrency)
    assert [one.paid_usd for one in lost_in(tmp_path / "run")] == [0.5]
    budget = TASK.budget(6) + 0.5  # so that the rest buys as much
    result = searched(Breaks(), tmp_path / "run", budget, concurrency)
    assert list(result.history) == list(whole.history)
    bill = result.bill
    assert bill.lost_usd == 0.5
    assert bill.total_usd == pytest.approx(whole.bill.total_usd + 0.5)
    assert bill.num_calls == whole.bill.num_calls + 1
    assert "lost " in str(bill)
    assert stable(tmp_path / "run")["lost_usd"] == 0.5
    assert result_of_run(read_run(tmp_path / "run")).bill.lost_usd == 0.5


def test_a_budget_that_was_lost_buys_nothing(tmp_path):
    """A judge that fails again and again, and a user who starts again and again."""
    budget, starts = 1.6, 0
    systems = []
    while not (tmp_path / "result.json").exists():
        systems.append(Breaks(3))
        starts += 1
        with contextlib.suppress(TimeoutError):
            searched(systems[-1], tmp_path, budget)
    result = stable(tmp_path)
    paid = result["spend_usd"] + result["lost_usd"] + result["surplus_usd"]
    assert result["stop_reason"] == "budget"
    assert paid <= budget + 0.5  # the call that crosses it
    assert result["lost_usd"] >= 1.0


def test_the_same_result_after_it_has_ended(tmp_path):
    """A search that was resumed after a loss is replayed with the same end."""
    with pytest.raises(TimeoutError):
        searched(Breaks(9), tmp_path, concurrency=4)
    budget = TASK.budget(6)
    first = searched(Breaks(), tmp_path, budget, concurrency=4)
    told = stable(tmp_path)
    again = searched(Breaks(1), tmp_path, budget, concurrency=4)
    assert list(again.history) == list(first.history)
    assert stable(tmp_path) == told
    assert first.history.spend_usd + 0.5 > budget


def test_several_losses_of_one_end_are_all_kept(tmp_path):
    with pytest.raises(TimeoutError):
        searched(Breaks(5, 6, 7, 8), tmp_path, concurrency=4)
    assert len(lost_in(tmp_path)) >= 2


def test_select_counts_what_a_grade_that_cannot_be_used_has_cost(tmp_path):
    """Of its reference too: each start pays for one call, and the budget ends that."""
    calls, grade = [], 1.5

    def metric(*_):
        return grade

    def app(_models, text):
        calls.append(text)
        return text, 0.25

    def start():
        return st.select(
            app, models=["nano", "pro"], reference="pro", budget_usd=3.0, base="nano",
            dataset=[(str(i), str(i)) for i in range(4)], metric=metric, max_quality_loss=0.1,
            metric_version="1", repeats=2,
            run_dir=tmp_path,
        )  # fmt: skip

    for number in (1, 2, 3):
        with pytest.raises(InputError, match=r"the metric returned 1\.5 for query 0"):
            start()
        assert len(calls) == number
    grade = 1.0
    result = start()
    assert result.bill.lost_usd == 0.75
    assert result.bill.total_usd == 0.25 * len(calls)
    assert [one.cost_usd for one in result.probe] == [0.25]
    assert result.budget_usd == 3.0 - 0.75 - 0.25 - 1.0 - 0.5
