"""The front with many calls in flight: one seed, one result; nothing is lost or asked twice."""

import functools
from collections import Counter, deque

import pytest
from tables import CountingEvaluator, Crash, make_task
from test_front_search import at, true_front

from scope_torch.errors import InputError
from scope_torch.front_method import make_scope_front
from scope_torch.runs.runner import run
from scope_torch.search.front_in_flight import FIRST, FrontInFlight
from scope_torch.search.front_search import ScopeFront
from scope_torch.testing import KnownTask

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


def driven(optimizer, observe):
    """Asks while it may; at each answer, how many candidates had requests without one."""
    waiting, open_ = deque(), []
    while True:
        while len(waiting) < optimizer.lag and (requests := optimizer.ask()):
            waiting.extend(requests)
            assert len(waiting) <= optimizer.lag or len(requests) > 1
        if not waiting:
            return open_
        open_.append(Counter(request.theta for request in waiting))
        optimizer.tell([observe(waiting.popleft())])


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


@pytest.mark.parametrize(("concurrency", "seed"), [(2, 0), (64, 1)])
def test_the_order_in_which_answers_arrive_changes_nothing(concurrency, seed):
    alone = search(seed=seed)
    evaluator = CountingEvaluator(TASK, concurrency)
    together = search(evaluator, seed=seed)
    assert list(together.history) == list(alone.history)
    assert together.trace == alone.trace
    assert together.report["front"] == alone.report["front"]
    assert max(evaluator.paid.values()) == 1


@pytest.mark.parametrize("after", [3, 31, 80])
def test_a_crash_loses_nothing(tmp_path, after):
    whole = search_alone()
    crashing = CountingEvaluator(TASK, 6, crash_after=after)
    with pytest.raises(Crash):
        search(crashing, tmp_path)
    rest = CountingEvaluator(TASK, 6)
    resumed = search(rest, tmp_path)
    assert list(resumed.history) == list(whole.history)
    assert resumed.trace == whole.trace
    assert sum((crashing.paid + rest.paid).values()) == len(whole.history)


@pytest.mark.parametrize("seed", [0, 1])
def test_finds_the_exact_front_with_several_candidates_open(seed):
    task = KnownTask.random(seed, (4, 4), 40, graded=False)
    optimizer = make(task.problem, seed, widenings=3)
    open_ = driven(optimizer, task.observe)
    assert [at(task, theta) for theta in optimizer.front] == true_front(task)
    assert optimizer.t < 0.95 * task.problem.space.size * 40
    assert max(len(of) for of in open_) > 2
    told = [row for row in optimizer.trace if row.event in ("pruned", "completed")]
    assert sum(row.event == "selected" for row in optimizer.trace) == len(told)


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
                    assert asked[theta] - told[theta] <= max(FIRST, told[theta] + 1)
            turn.clear()
            waiting.extend((request, not in_calibrate) for request in requests)
        if not waiting:
            break
        request, counts = waiting.popleft()
        told[request.theta] += counts
        optimizer.tell([task.observe(request)])
    assert most > FIRST
