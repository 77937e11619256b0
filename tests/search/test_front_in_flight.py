"""The front with many calls in flight: one seed, one result; nothing is lost or asked twice."""

import functools
from collections import Counter, deque
from dataclasses import replace

import pytest
from tables import CountingEvaluator, check_a_crash, make_task
from test_front_search import at, true_front

from scope_torch.errors import InputError
from scope_torch.front_method import make_scope_front
from scope_torch.runs.runner import run
from scope_torch.search.front_in_flight import FIRST, FrontInFlight
from scope_torch.search.front_search import ScopeFront
from scope_torch.testing import KnownTask, drive

TASK = make_task(3, (4, 4), 12)


def make(problem, seed=0, in_flight=6, **settings):
    base = problem.llms[0][0]
    return make_scope_front(problem, base=base, seed=seed, in_flight=in_flight, **settings)


def search(evaluator=None, run_dir=None, budget=10.0, **settings):
    return run(
        *(TASK.problem, make(TASK.problem, **settings), evaluator or TASK.evaluator(), budget),
        run_dir=run_dir,
    )


@functools.cache
def search_alone():
    return search()


def driven(optimizer, task):
    """What was told, and how many requests each open candidate had without an answer, each time."""
    waiting, told, without = deque(), [], []
    while True:
        while len(waiting) < optimizer.lag and (requests := optimizer.ask()):
            waiting.extend(requests)
            assert len(waiting) <= optimizer.lag or len(requests) > 1
        if not waiting:
            return told, without
        if any(row.event == "selected" for row in optimizer.trace):  # Calibrate has ended
            without.append(Counter(request.theta for request in waiting))
        told.append(task.observe(waiting.popleft()))
        optimizer.tell(told[-1:])


def check_turns(optimizer, told):
    """Each turn ends once, `completed` if all was observed; b grows while none is open."""
    open_ = set()
    for row in optimizer.trace:
        if row.event == "selected":
            assert row.theta_cand not in open_
            open_.add(row.theta_cand)
        elif row.event in ("pruned", "completed"):
            open_.remove(row.theta_cand)
            seen = {o.query for o in told[: row.t] if o.theta == row.theta_cand}
            is_whole = len(seen) == len(optimizer.problem.queries_of(row.theta_cand))
            assert is_whole == (row.event == "completed")
        assert not (row.event == "widened" and open_)
    assert not open_


def test_one_call_in_flight_is_one_candidate_at_a_time():
    assert type(make(TASK.problem, in_flight=1)) is ScopeFront
    assert "in_flight" not in make(TASK.problem, in_flight=1).settings()
    assert type(make(TASK.problem)) is FrontInFlight
    assert make(TASK.problem).settings()["in_flight"] == 6
    for wrong in (0, 1.5):
        with pytest.raises(InputError, match="in_flight"):
            make(TASK.problem, in_flight=wrong)
    with pytest.raises(InputError, match="give one of them"):
        make(TASK.problem, batch_size=4)


@pytest.mark.slow
@pytest.mark.parametrize(("concurrency", "seed"), [(2, 0), (64, 1)])
def test_the_order_in_which_answers_arrive_changes_nothing(concurrency, seed):
    alone = search(seed=seed)
    evaluator = CountingEvaluator(TASK, concurrency)
    together = search(evaluator, seed=seed)
    assert list(together.history) == list(alone.history)
    assert together.trace == alone.trace
    assert together.report["front"] == alone.report["front"]
    assert len({(one.theta, one.query) for one in alone.history}) == len(alone.history)


@pytest.mark.slow
@pytest.mark.parametrize("after", [3, 31, 80])
def test_a_crash_loses_nothing(tmp_path, after):
    check_a_crash(search, TASK, search_alone(), tmp_path, after)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "in_flight"), [(0, 4), (1, 16)])
def test_finds_the_exact_front_with_several_candidates_open(seed, in_flight):
    task = KnownTask.random(seed, (4, 4), 100, graded=False)
    optimizer = make(task.problem, seed, in_flight)
    told, without = driven(optimizer, task)
    assert [at(task, theta) for theta in optimizer.front] == true_front(task)
    one_by_one = drive(make(task.problem, seed, in_flight=1), task, 10_000)
    assert len(told) < 1.12 * len(one_by_one) < 0.9 * task.problem.space.size * 100
    assert max(map(len, without)) > 2
    check_turns(optimizer, told)


@pytest.mark.slow
@pytest.mark.parametrize("in_flight", [2, 16])
def test_holes_and_free_llms(in_flight):
    task = KnownTask.random(3, (3, 3), 12, graded=False)
    cost, answered = task.table.cost_usd.copy(), {(0, 1): (2, 5), (2, 2): (0,), (1, 0): (1, 3, 7)}
    cost[0] = 0.0
    task = KnownTask.of(cost, task.table.quality, (1, 1))
    optimizer = make(replace(task.problem, offered=answered), in_flight=in_flight)
    told, _ = driven(optimizer, task)
    assert optimizer.stop_reason
    assert len({(one.theta, one.query) for one in told}) == len(told)
    assert all(one.query in optimizer.problem.queries_of(one.theta) for one in told)
    check_turns(optimizer, told)


@pytest.mark.slow
def test_a_candidate_has_no_more_in_flight_than_it_has_answered():
    """Counted within each of its turns, from what was asked and told."""
    task = KnownTask.random(2, (4, 4), 40, graded=False)
    optimizer, waiting = make(task.problem, in_flight=16), deque()
    turn, asked, told = Counter(), Counter(), Counter()
    most, in_calibrate = 0, True
    while True:
        while len(waiting) < optimizer.lag and (requests := optimizer.ask()):
            in_calibrate = not any(row.event == "selected" for row in optimizer.trace)
            turn.update(row.theta_cand for row in optimizer.trace if row.event == "selected")
            for theta in {request.theta for request in requests}:
                if turn[theta] != asked[theta, "turn"]:
                    asked[theta, "turn"], asked[theta], told[theta] = turn[theta], 0, 0
                asked[theta] += 1
                if not in_calibrate:
                    most = max(most, asked[theta] - told[theta])
                    assert asked[theta] - told[theta] <= max(FIRST, told[theta])
            turn.clear()
            waiting.extend((request, not in_calibrate) for request in requests)
        if not waiting:
            break
        request, counts = waiting.popleft()
        told[request.theta] += counts
        optimizer.tell([task.observe(request)])
    assert most > FIRST
