"""`time_limit`: no call starts when the time is over; what there is by then is the result."""

import json
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
from selection.test_select import App, settings
from tables import make_task

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.methods import make_scope_joint
from scope_torch.observation import Request
from scope_torch.runs.deadline import TIME_IS_OVER, Deadline
from scope_torch.runs.journal import read_journal
from scope_torch.runs.measure import TimeIsOver, measure
from scope_torch.runs.recorded import read_run
from scope_torch.runs.runner import run
from scope_torch.watch.reading import result_of_run

TASK = make_task(1, (4, 3), 16)
QUERIES = TASK.table.queries


class Clock:
    """A second passes with each call of the system."""

    def __init__(self):
        self.now = self.calls = 0

    def __call__(self):
        return self.now

    def system(self, assignment, query):
        self.now += 1
        self.calls += 1
        theta = TASK.problem.codes(list(assignment.values()))
        observation = TASK.observe(Request(theta, QUERIES.index(query)))
        return observation.quality, observation.cost_usd


def searched(clock, limit=None, run_dir=None, concurrency=1):
    evaluator = FunctionEvaluator(TASK.problem, clock.system, QUERIES, concurrency, name="timed")
    scope = TASK.scope(1, batch_size=concurrency)
    deadline = Deadline(limit, clock)
    return run(TASK.problem, scope, evaluator, TASK.budget(6), run_dir=run_dir, time_limit=deadline)


def test_a_number_of_numpy_is_one():
    for limit in (np.int64(50), np.float64(50), np.float32(50)):
        assert not Deadline(limit).is_over
    for limit in (True, np.bool_(True), np.array([1, 2]), np.int64(0)):
        with pytest.raises(InputError, match="must be a time above 0"):
            Deadline(limit)


WHOLE = searched(Clock())
NUMBER = len(WHOLE.history)


@pytest.mark.parametrize("seconds", [1, 7, NUMBER - 1])
def test_it_ends_when_the_time_is_over_and_goes_on_later(tmp_path, seconds):
    first = Clock()
    cut = searched(first, seconds, tmp_path)
    assert (first.calls, len(cut.history), cut.stop_reason) == (seconds, seconds, TIME_IS_OVER)
    assert list(cut.history) == list(WHOLE.history)[:seconds]
    assert json.loads((tmp_path / "result.json").read_text())["stop_reason"] == "time limit"
    assert "the time is over" in str(cut)
    then = Clock()
    longer = searched(then, 10 * NUMBER, tmp_path)
    assert first.calls + then.calls == NUMBER
    assert list(longer.history) == list(WHOLE.history)
    assert (longer.stop_reason, longer.choice) == (WHOLE.stop_reason, WHOLE.choice)


@pytest.mark.slow
def test_what_it_was_when_time_was_over_says_nothing_of_a_search_that_goes_on(tmp_path):
    """Else the page has the new choice beside the old one's numbers, and calls a crash an end."""
    searched(Clock(), NUMBER // 2, tmp_path)
    assert read_run(tmp_path).status == "finished"
    seen = []

    class Dies(Clock):
        def system(self, assignment, query):
            run_then = read_run(tmp_path)
            seen.append((run_then.status, run_then.summary()))
            if len(seen) == 3:
                raise ConnectionError("gone")
            return super().system(assignment, query)

    with pytest.raises(ConnectionError, match="gone"):
        searched(Dies(), None, tmp_path)
    assert seen == 3 * [("running", {})]
    after = read_run(tmp_path)
    assert (after.status, after.result) == ("interrupted", None)
    assert len(result_of_run(after).history) == NUMBER // 2 + 2
    assert searched(Clock(), None, tmp_path).choice == WHOLE.choice
    assert read_run(tmp_path).status == "finished"


def test_a_call_that_failed_is_not_made_again_after_it(tmp_path):
    clock = Clock()

    def system(assignment, query):
        found = clock.system(assignment, query)
        if clock.calls == 7:
            error = TimeoutError("no reply in 60 s")
            error.cost_usd = 1e-9
            raise error
        return found

    evaluator = FunctionEvaluator(TASK.problem, system, QUERIES, on_error="retry", name="timed")
    more = {"run_dir": tmp_path, "time_limit": Deadline(7, clock)}
    cut = run(TASK.problem, TASK.scope(1), evaluator, TASK.budget(6), **more)
    assert (clock.calls, len(cut.history), cut.stop_reason) == (7, 6, TIME_IS_OVER)
    assert [one.paid_usd for one in cut.lost] == [1e-9]
    assert list(searched(Clock(), None, tmp_path).history) == list(WHOLE.history)


@pytest.mark.slow
def test_calls_in_flight_are_waited_for_and_kept(tmp_path):
    clock = Clock()
    cut = searched(clock, 20, tmp_path, concurrency=4)
    assert 20 <= clock.calls < 24
    assert len(read_journal(tmp_path / "journal.jsonl")) == clock.calls
    assert cut.bill.total_usd == pytest.approx(
        sum(one.cost_usd for one in read_journal(tmp_path / "journal.jsonl"))
    )
    read = result_of_run(read_run(tmp_path)).bill
    assert read.total_usd == pytest.approx(cut.bill.total_usd, rel=1e-12)
    assert read.search_usd == pytest.approx(cut.bill.search_usd, rel=1e-12)
    then = Clock()
    longer = searched(then, None, tmp_path, concurrency=4)
    assert list(longer.history) == list(searched(Clock(), concurrency=4).history)
    assert clock.calls + then.calls == len(read_journal(tmp_path / "journal.jsonl"))


@pytest.mark.slow
def test_each_process_has_the_whole_time(tmp_path):
    calls = []
    while True:
        clock = Clock()
        result = searched(clock, 9, tmp_path)
        calls.append(clock.calls)
        if result.stop_reason != TIME_IS_OVER:
            break
    assert set(calls[:-1]) == {9}
    assert sum(calls) == NUMBER
    assert list(result.history) == list(WHOLE.history)


def test_a_search_that_has_ended_by_itself_says_so():
    assert searched(Clock(), NUMBER + 1).stop_reason == WHOLE.stop_reason != TIME_IS_OVER


def test_without_time_the_reference_stays():
    class Late(Clock):
        def __call__(self):
            self.now += 5
            return self.now

    clock = Late()
    result = searched(clock, 1)
    assert (clock.calls, result.stop_reason) == (0, TIME_IS_OVER)
    assert result.recommendation.theta == TASK.problem.theta_ref


def test_a_measurement_says_how_far_it_came(tmp_path):
    clock = Clock()
    evaluator = FunctionEvaluator(TASK.problem, clock.system, QUERIES, name="timed")
    requests = [Request(TASK.problem.theta_ref, query) for query in range(16)]
    with pytest.raises(TimeIsOver, match=r"time_limit=5 was over after 5 of 16 answers of part; "):
        measure(evaluator, requests, folder=tmp_path / "part", deadline=Deadline(5, clock))
    found = measure(evaluator, requests, folder=tmp_path / "part", deadline=Deadline(11, clock))
    assert ([one.query for one in found], clock.calls) == (list(range(16)), 16)


class Timed(App):
    """Its calls take a second of the clock of all deadlines."""

    def __init__(self, monkeypatch):
        super().__init__()
        fake = SimpleNamespace(monotonic=lambda: len(self.calls))
        monkeypatch.setattr("scope_torch.runs.deadline.time", fake)


@pytest.mark.slow
def test_a_selection_ends_with_what_is_certified(tmp_path, monkeypatch):
    """First in the reference, then in the search, then in the held-out queries."""
    whole = st.select(App(), **settings(holdout=0.1))
    app = Timed(monkeypatch)
    how = settings(holdout=0.1, run_dir=tmp_path)
    with pytest.raises(InputError, match=r"over after 8 of 36 answers of reference; the same call"):
        st.select(app, **how, time_limit="10s")
    assert len(app.calls) == 10  # three of the preflight, one of which the reference shares
    searched = st.select(app, **how, time_limit="1min")
    assert (len(app.calls), searched.stop_reason) == (70, TIME_IS_OVER)
    assert searched.held_out is None
    assert "stopped: the time is over" in str(searched)
    assert list(searched.history) == list(whole.history)[: len(searched.history)]
    left = whole.bill.num_calls - 70
    late = st.select(app, **how, time_limit=left - 3)
    assert (late.stop_reason, late.held_out.num_queries) == (whole.stop_reason, 1)
    assert late.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)
    result = st.select(app, **how, time_limit="1h")
    assert list(result.history) == list(whole.history)
    assert result.held_out == whole.held_out
    assert len(app.calls) == len(set(app.calls)) == whole.bill.num_calls
    assert result.bill == whole.bill


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("2h", 7200),
        ("1h30m", 5400),
        ("1.5 hours", 5400),
        ("1d 2min 3 seconds", 86_523),
        ("90", 90),
        (0.5, 0.5),
        ("45 s", 45),
    ],
)
def test_times_as_people_write_them(limit, seconds):
    now = [0.0]
    deadline = Deadline(limit, lambda: now[0])
    now[0] = seconds - 1e-6
    assert not deadline.is_over
    now[0] = seconds
    assert deadline.is_over


@pytest.mark.parametrize(
    "limit",
    ["", "h", "2 weeks", "2h later", "-1h", "0s", "1e3", "h2", "2h,30m"],
)
def test_a_text_that_is_no_time_is_refused(limit):
    refused(limit)


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), True, [2]])
def test_a_number_that_is_no_time_is_refused(limit):
    refused(limit)


def refused(limit):
    with pytest.raises(InputError, match=r"time_limit=.*must be a time above 0, such as '2h'"):
        Deadline(limit)


class HeadLast:
    """Two calls in flight, of which the older one takes long; a second passes with each call."""

    concurrency = 2

    def __init__(self):
        self.now = 0

    def evaluate(self, requests):
        waiting, in_flight = iter(requests), []
        while True:
            for request in islice(waiting, 2 - len(in_flight)):
                self.now += 1
                in_flight.append(request)
            if not in_flight:
                return
            yield TASK.observe(in_flight.pop())

    def fingerprint(self):
        return "head last"


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"batch_size": 16}, {"in_flight": 4}])
def test_no_call_starts_after_it_while_a_slow_one_is_waited_for(tmp_path, settings):
    base = [names[0] for names in TASK.problem.llms]

    def searched(evaluator, limit, run_dir=None):
        search = make_scope_joint(TASK.problem, base=base, seed=1, **settings)
        deadline = Deadline(limit, lambda: evaluator.now)
        return run(TASK.problem, search, evaluator, 99.0, run_dir=run_dir, time_limit=deadline)

    whole = searched(HeadLast(), None)
    assert whole.stop_reason != TIME_IS_OVER
    for limit in (1, 2, 9, 18):
        evaluator = HeadLast()
        cut = searched(evaluator, limit, tmp_path / str(limit))
        assert (cut.stop_reason, evaluator.now) == (TIME_IS_OVER, limit)
        assert list(cut.history) == list(whole.history)[: len(cut.history)]
        read = result_of_run(read_run(tmp_path / str(limit)))  # as the page tells it
        assert {*read.history} == {*cut.history}
        assert len(cut.history) + len(cut.surplus) == limit
        rest = searched(HeadLast(), None, tmp_path / str(limit))
        assert list(rest.history) == list(whole.history)
        assert rest.stop_reason == whole.stop_reason


@pytest.mark.parametrize("enough", [None, 12])
def test_so_it_is_in_a_measurement(tmp_path, enough):
    requests = [Request((0, 0), query) for query in range(16)]
    evaluator = HeadLast()
    how = {"deadline": Deadline(6, lambda: evaluator.now), "first": (1,), "enough": enough}
    if enough is None:
        with pytest.raises(TimeIsOver, match="after 2 of 16"):
            measure(evaluator, requests, folder=tmp_path / "reference", **how)
    else:
        assert len(measure(evaluator, requests, folder=tmp_path / "reference", **how)) == 6
    assert evaluator.now == len(read_journal(tmp_path / "reference" / "journal.jsonl")) == 6
