"""A run that is interrupted, killed or extended: nothing is paid twice, nothing changes."""

import dataclasses
import itertools
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from reliability.children import ended, started
from tables import CountingEvaluator, Crash, make_task

from scope_torch.errors import InputError
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.methods import make_scope_joint
from scope_torch.observation import Observation, Request
from scope_torch.results.result import RunResult
from scope_torch.runs.callbacks import Callback
from scope_torch.runs.journal import Journal
from scope_torch.runs.runner import run

TASK = make_task(1, (3, 3), 6)
BUDGET = TASK.budget(7.3)


def search(evaluator, run_dir, budget=BUDGET, problem=TASK.problem, **settings) -> RunResult:
    callbacks = settings.pop("callbacks", ())
    optimizer = TASK.scope(settings.pop("seed", 1), **settings)
    return run(problem, optimizer, evaluator, budget, run_dir=run_dir, callbacks=callbacks)


def stable(summary: dict) -> dict:
    return {key: value for key, value in summary.items() if key not in ("timing", "paths")}


def journaled(run_dir: Path) -> list[Observation]:
    lines = (run_dir / "journal.jsonl").read_text().splitlines()
    return [Observation.from_json(line) for line in lines]


@pytest.mark.parametrize("name", ["queries.json", "trace.csv", "result.json"])
def test_a_file_of_the_user_stays(tmp_path, name):
    (tmp_path / name).write_text('{"mine": 1}')
    with pytest.raises(InputError, match=f"{name} is of no run, and a run would"):
        search(CountingEvaluator(TASK), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == '{"mine": 1}'


def test_a_system_may_enter_another_folder(tmp_path, monkeypatch):
    class Enters(CountingEvaluator):
        def evaluate(self, requests):
            os.chdir("/")
            return super().evaluate(requests)

    for paid in (True, False):
        monkeypatch.chdir(tmp_path)
        result = search(Enters(TASK), "run")
        assert (result.run_dir, result.replayed == 0) == (tmp_path / "run", paid)
        assert (tmp_path / "run/result.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "concurrency", "batch_size"),
    [(1, 1, 1), (3, 1, 4), (3, 3, 1), (3, 3, 4), (10, 1, 1), (10, 3, 4)],
)
def test_crashes_every_few_observations_change_nothing(tmp_path, every, concurrency, batch_size):
    whole = search(CountingEvaluator(TASK, concurrency), tmp_path / "whole", batch_size=batch_size)
    paid: Counter[Request] = Counter()
    result = None
    while result is None:
        evaluator = CountingEvaluator(TASK, concurrency, crash_after=every)
        try:
            result = search(evaluator, tmp_path / "run", batch_size=batch_size)
        except Crash:
            assert evaluator.paid.total() == every
            assert not (tmp_path / "run" / "result.json").exists()
        paid += evaluator.paid
        assert {o.request for o in journaled(tmp_path / "run")} == set(paid)
    assert set(paid.values()) == {1}
    assert stable(result.summary()) == stable(whole.summary())
    assert list(result.history) == list(whole.history)
    assert result.trace == whole.trace
    for name in ("trace.csv", "settings.json"):
        files = [(tmp_path / run_dir / name).read_text() for run_dir in ("run", "whole")]
        assert files[0] == files[1]
    assert result.replayed + evaluator.paid.total() >= len(result.history)


def test_a_finished_run_is_replayed_for_nothing(tmp_path):
    first = search(CountingEvaluator(TASK), tmp_path)
    evaluator = CountingEvaluator(TASK)
    second = search(evaluator, tmp_path)
    assert not evaluator.paid
    assert second.replayed == len(first.history)
    assert stable(second.summary()) == stable(first.summary())


@pytest.mark.slow
def test_threads_in_flight_when_one_fails_are_not_paid_twice(tmp_path):
    paid: Counter = Counter()
    numbers, failing = itertools.count(1), {6, 14, 22, 30}  # never two of them in one batch

    def system(assignment, query):
        if next(numbers) in failing:
            raise ConnectionError
        theta = TASK.problem.codes(list(assignment.values()))
        time.sleep(hash((theta, query)) % 4 * 1e-3)
        observation = TASK.observe(Request(theta, query))
        paid[theta, query] += 1
        return observation.quality, observation.cost_usd

    evaluator = FunctionEvaluator(TASK.problem, system, range(6), concurrency=4)
    result, attempts = None, 0
    while result is None:
        attempts += 1
        try:
            result = search(evaluator, tmp_path, batch_size=4)
        except ConnectionError:
            assert len(journaled(tmp_path)) == paid.total()
    assert attempts == 5
    asked = Counter((o.theta, o.query) for o in journaled(tmp_path))
    assert paid == asked
    assert len({o.request for o in journaled(tmp_path)}) == paid.total()
    assert list(result.history) == list(search(CountingEvaluator(TASK), None, batch_size=4).history)


def test_an_interrupted_callback_loses_nothing(tmp_path):
    class Interrupt(Callback):
        def observed(self, observation, spend_usd):
            if spend_usd > BUDGET / 2:
                raise KeyboardInterrupt

    one, two = CountingEvaluator(TASK), CountingEvaluator(TASK)
    with pytest.raises(KeyboardInterrupt):
        search(one, tmp_path, callbacks=[Interrupt()])
    search(two, tmp_path)
    assert one.paid
    assert two.paid
    assert set((one.paid + two.paid).values()) == {1}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_larger_budget_continues_the_run(tmp_path, concurrency):
    one, two = (CountingEvaluator(TASK, concurrency) for _ in range(2))
    search(one, tmp_path / "run", BUDGET / 3, batch_size=4)
    result = search(two, tmp_path / "run", batch_size=4)
    assert set((one.paid + two.paid).values()) == {1}
    whole = search(CountingEvaluator(TASK, concurrency), tmp_path / "whole", batch_size=4)
    assert stable(result.summary()) == stable(whole.summary())
    assert result.trace == whole.trace
    three = CountingEvaluator(TASK, concurrency)
    with pytest.raises(InputError, match="budget_usd was"):
        search(three, tmp_path / "run", BUDGET / 3, batch_size=4)
    assert not three.paid


@pytest.mark.slow
def test_a_larger_budget_that_cannot_begin_takes_no_result_away(tmp_path):
    class OutOfReach(Callback):
        def start(self, *_):
            raise InputError("no server")

    search(CountingEvaluator(TASK), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match="no server"):
        search(CountingEvaluator(TASK), tmp_path, 2 * BUDGET, callbacks=[OutOfReach()])
    crash = CountingEvaluator(TASK, crash_after=0)
    with pytest.raises(Crash):  # as of a wrong key
        search(crash, tmp_path, 2 * BUDGET)
    del before["trace.csv"]
    assert before.items() <= {path.name: path.read_bytes() for path in tmp_path.iterdir()}.items()
    search(again := CountingEvaluator(TASK), tmp_path)
    assert not again.paid


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"seed": 2}, "[^.]seed was 1, now 2"),
        ({"alpha": 0.2}, "[^.]alpha was 0.333.*, now 0.2"),
        ({"lam": 1e-3}, "[^.]lam was"),
        ({"batch_size": None}, "[^.]batch_size was 1, now None"),
        ({"gap_tolerance": 0.1}, "[^.]gap_tolerance was 0.0, now 0.1"),
        ({"prune": False}, "[^.]prune was True, now False"),
        ({"initial_pool": "random"}, "[^.]base was"),
        ({"budget": BUDGET * 0.99}, "budget_usd was"),
        ({"evaluator": TASK.evaluator()}, "evaluator was 'counting', now"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, settings, key):
    search(CountingEvaluator(TASK), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    settings = {"evaluator": CountingEvaluator(TASK), **settings}
    with pytest.raises(InputError, match=key) as caught:
        search(run_dir=tmp_path, **settings)
    assert "choose another run_dir" in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_optimizer_of_another_problem_is_refused(tmp_path):
    with pytest.raises(InputError, match="made for the problem"):
        search(CountingEvaluator(TASK), tmp_path, problem=make_task(2, (3, 3), 6).problem)
    assert not list(tmp_path.iterdir())


def test_another_problem_in_the_same_directory_is_refused_by_name(tmp_path):
    search(CountingEvaluator(TASK), tmp_path)
    other = make_task(1, (3, 3), 6, epsilon=0.2)
    with pytest.raises(InputError, match=r"[^.]epsilon was 0\.15"):
        run(other.problem, other.scope(1), CountingEvaluator(other), BUDGET, run_dir=tmp_path)


def test_settings_that_version_0_1_0_did_not_have_are_told_by_what_it_did(tmp_path):
    def joint(**settings):
        method = make_scope_joint(TASK.problem, initial_pool="random", **settings)
        run(TASK.problem, method, CountingEvaluator(TASK), BUDGET, run_dir=tmp_path)

    before = {"verify": 0, "calibration_queries": None, "cost_scale": "least_squares"}
    joint(**before)
    assert not before.keys() & json.loads((tmp_path / "settings.json").read_text())["optimizer"]
    told = "calibration_queries was None, now 4; cost_scale was 'least_squares', now 'regression'"
    with pytest.raises(InputError, match=f"{told}; verify was 0, now 1. Restore them"):
        joint()
    joint(**before)


def test_a_journal_cut_short_costs_one_observation(tmp_path, caplog):
    whole = search(CountingEvaluator(TASK), tmp_path)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    evaluator = CountingEvaluator(TASK)
    result = search(evaluator, tmp_path)
    assert list(evaluator.paid) == [whole.history[-1].request]
    assert "cut short by a crash" in caplog.text
    assert stable(result.summary()) == stable(whole.summary())
    assert journaled(tmp_path) == list(whole.history)


class Free(CountingEvaluator):
    """Free observations need not be on disk before the search goes on."""

    free = True


@pytest.mark.parametrize("kind", [CountingEvaluator, Free])
def test_only_what_is_free_may_wait_to_be_on_disk(tmp_path, monkeypatch, kind):
    synced, fsync = [], os.fsync

    def count(fileno):
        fsync(fileno)
        if os.path.samestat(os.fstat(fileno), os.stat(tmp_path / "journal.jsonl")):
            synced.append(len(journaled(tmp_path)))

    monkeypatch.setattr(os, "fsync", count)
    result = search(kind(TASK), tmp_path)  # both know the truth
    made = list(range(1, len(result.history) + 1))
    assert synced == ([] if kind is Free else made)
    assert journaled(tmp_path) == list(result.history)


def test_the_journal_of_a_free_evaluator_is_not_behind_the_trace(tmp_path):
    behind = []

    class Looks(Callback):
        def changed(self, row):
            behind.append(row.t - len(journaled(tmp_path)))

    optimizer = TASK.scope(1)
    run(TASK.problem, optimizer, Free(TASK), BUDGET, run_dir=tmp_path, callbacks=[Looks()])
    assert len(behind) == len(optimizer.trace) > 5
    assert max(behind) == 0


def test_a_crash_of_a_free_evaluator_keeps_what_was_made(tmp_path):
    whole = search(Free(TASK), tmp_path / "whole")
    with pytest.raises(Crash):
        search(Free(TASK, crash_after=17), tmp_path / "run")
    assert journaled(tmp_path / "run") == list(whole.history)[:17]
    again = search(Free(TASK), tmp_path / "run")
    assert list(again.history) == list(whole.history)
    assert again.replayed == 17


def test_an_interrupt_while_journaling_loses_nothing_in_flight(tmp_path, monkeypatch):
    paid, fsync = [], os.fsync

    def system(assignment, query):
        time.sleep(0.02 * query)
        paid.append(query)
        return 0.5, 0.1

    def interrupted(fileno):
        fsync(fileno)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    evaluator = FunctionEvaluator(TASK.problem, system, range(6), concurrency=4)
    with pytest.raises(KeyboardInterrupt):
        search(evaluator, tmp_path)
    assert len(journaled(tmp_path)) == len(paid)


def test_a_replay_that_departs_from_the_journal_is_refused(tmp_path):
    search(CountingEvaluator(TASK), tmp_path)
    made = journaled(tmp_path)
    made[3] = dataclasses.replace(made[3], quality=1 - made[3].quality)
    (tmp_path / "journal.jsonl").write_text("".join(o.to_json() + "\n" for o in made))
    with pytest.raises(InputError, match=r"journal\.jsonl"):
        search(CountingEvaluator(TASK), tmp_path)


class NoReplicate(CountingEvaluator):
    """A plausible mistake: repeated observations are returned with replicate 0."""

    def evaluate(self, requests):
        for o in super().evaluate(requests):
            yield Observation(o.theta, o.query, o.cost_usd, o.quality)


def test_an_observation_that_was_not_asked_for_does_not_enter_the_journal(tmp_path):
    for _ in range(2):
        with pytest.raises(InputError):
            search(NoReplicate(TASK), tmp_path, TASK.budget(20))
    requests = [o.request for o in journaled(tmp_path)]
    assert len(requests) == len(set(requests))


def searches(run_dir: Path, paid_log: Path, where: str, number: int) -> None:
    """A search that kills its process at its paid call `number`, or waits there to be killed."""
    calls = 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def system(assignment, query):
        nonlocal calls
        calls += 1
        if where == "call" and calls == number:
            die()
        time.sleep(60 if where == "outside" and calls > 12 else 0.003)
        observation = TASK.observe(Request(TASK.problem.codes(list(assignment.values())), query))
        with open(paid_log, "a") as file:
            file.write(f"{observation.theta} {query}\n")
        return observation.quality, observation.cost_usd

    append = Journal.append

    def torn_append(self, observations):
        if calls == number:
            (observation,) = observations
            os.write(self._file.fileno(), observation.to_json().encode()[:30])
            die()
        append(self, observations)

    if where == "torn":
        Journal.append = torn_append
    evaluator = FunctionEvaluator(TASK.problem, system, range(6), name="script")
    run(TASK.problem, TASK.scope(1), evaluator, BUDGET, run_dir=run_dir)


def run_killed(run_dir: Path, paid_log: Path, where: str = "no", number: int = 0) -> int:
    """Searches until the end, or until it is killed; returns the exit code."""
    process = started(searches, run_dir, paid_log, where, number)
    while where == "outside" and process.is_alive():
        if len(paid_calls(paid_log)) >= number:
            process.kill()
            break
        time.sleep(0.002)
    return ended(process)


def paid_calls(paid_log: Path) -> list[str]:
    return paid_log.read_text().splitlines() if paid_log.exists() else []


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX only")
@pytest.mark.slow
def test_a_killed_process_is_resumed_to_the_same_result(tmp_path):
    assert run_killed(tmp_path / "whole", tmp_path / "whole.log") == 0
    whole = Counter(paid_calls(tmp_path / "whole.log"))
    run_dir, log = tmp_path / "run", tmp_path / "run.log"
    for where, number in [("call", 4), ("call", 9), ("torn", 6), ("outside", 25)]:
        assert run_killed(run_dir, log, where, number) == -signal.SIGKILL
        assert not (run_dir / "result.json").exists()
    assert run_killed(run_dir, log) == 0
    # Paid but not recorded: the torn line, and at most the calls in flight at the last kill.
    twice = Counter(paid_calls(log)) - whole
    assert 1 <= twice.total() <= 2
    assert not whole - Counter(paid_calls(log))
    assert journaled(run_dir) == journaled(tmp_path / "whole")
    results = [json.loads((tmp_path / d / "result.json").read_text()) for d in ("whole", "run")]
    assert stable(results[0]) == stable(results[1])
    assert results[0]["num_observations"] > 30
