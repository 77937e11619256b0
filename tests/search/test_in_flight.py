"""Several candidates in flight: one seed, one result; nothing lost; certificates as before."""

import contextlib
import functools
import itertools
from collections import Counter, deque
from dataclasses import replace

import numpy as np
import pytest
from constrained import constrained_task
from tables import CountingEvaluator, check_a_crash, make_task

from scope_torch.bounds.base import Beta
from scope_torch.constraints import at_most
from scope_torch.errors import InputError
from scope_torch.evaluators.table import TableEvaluator
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.observation import Observation, Request
from scope_torch.runs.journal import Journal
from scope_torch.runs.runner import run
from scope_torch.search import in_flight as module
from scope_torch.search.certificate import BySequence
from scope_torch.search.front import turns
from scope_torch.search.in_flight import InFlight, _Open
from scope_torch.search.pipeline import LAG
from scope_torch.search.rules import Rule
from scope_torch.search.scope import SCOPE
from scope_torch.testing.problems import KnownTask

TASK = make_task(3, (4, 4), 12)
BUDGET = TASK.budget(9)


def method(in_flight=6, seed=0, problem=TASK.problem, make=make_scope_joint, **settings):
    base = None if settings.get("initial_pool") else [names[0] for names in problem.llms]
    settings = {"base": base, "device": "cpu", **settings}
    return make(problem, seed=seed, in_flight=in_flight, **settings)


def search(evaluator=None, run_dir=None, budget=BUDGET, **settings):
    search = method(**settings)
    return run(search.problem, search, evaluator or TASK.evaluator(), budget, run_dir=run_dir)


def test_one_call_in_flight_is_algorithm_1():
    assert type(method(1)) is SCOPE
    assert "in_flight" not in method(1).settings()
    assert method(6).settings()["in_flight"] == 6


@functools.cache
def search_alone():
    """The search that others are compared with."""
    return search()


@pytest.mark.slow
@pytest.mark.parametrize(("concurrency", "seed"), [(2, 0), (5, 1), (64, 2)])
def test_the_order_in_which_answers_arrive_changes_nothing(concurrency, seed):
    alone = search(seed=seed)
    evaluator = CountingEvaluator(TASK, concurrency)
    together = search(evaluator, seed=seed)
    assert list(together.history) == list(alone.history)
    assert together.trace == alone.trace
    assert together.recommendation == alone.recommendation
    assert together.stop_reason == alone.stop_reason
    assert max(evaluator.paid.values()) == 1  # each draw of each pair once


@pytest.mark.slow
def test_calls_stay_in_flight():
    evaluator = CountingEvaluator(TASK, 6)
    search(evaluator)
    waiting = [number for number in evaluator.in_flight if number]
    assert sum(waiting) > 3 * len(waiting)
    one_by_one = CountingEvaluator(TASK, 6)
    search(one_by_one, in_flight=1)
    waiting_1 = [number for number in one_by_one.in_flight if number]
    assert sum(waiting) / len(waiting) > 1.5 * sum(waiting_1) / len(waiting_1)


@pytest.mark.slow
def test_a_request_depends_on_no_answer_of_the_last_ones():
    """What is asked before an answer is told cannot know it; and never more than `lag` wait."""
    optimizer, waiting, asked = method(4), deque(), 0
    while True:
        while len(waiting) < optimizer.lag and (requests := optimizer.ask()):
            waiting.extend(requests)
            asked += len(requests)
            if len(requests) == 1:
                assert len(waiting) <= optimizer.lag
        if not waiting:
            break
        optimizer.tell([TASK.observe(waiting.popleft())])
    assert optimizer.lag == 4 * LAG
    assert optimizer.t == asked > 30
    assert optimizer.stop_reason


@pytest.mark.slow
@pytest.mark.parametrize("after", [3, 17, 31, 55])
def test_a_crash_loses_nothing(tmp_path, after):
    check_a_crash(search, TASK, search_alone(), tmp_path, after)


@pytest.mark.parametrize(("share", "concurrency"), [(0.05, 1), (0.3, 6), (0.6, 1), (0.9, 6)])
def test_no_more_is_in_flight_than_the_budget_pays_for(share, concurrency):
    budget = share * search_alone().history.spend_usd
    result = search(CountingEvaluator(TASK, concurrency), budget=budget)
    costs = [one.cost_usd for one in result.history]
    assert result.stop_reason == "budget"
    assert sum(costs[:-1]) <= budget < sum(costs)
    dearest = max(max(costs), TASK.problem.reference_cost_usd)
    assert result.history.spend_usd + result.surplus_usd <= budget + 2 * dearest
    assert list(result.history) == list(search_alone().history)[: len(costs)]


@pytest.mark.slow
def test_a_larger_budget_goes_on(tmp_path):
    whole = search()
    half = search(CountingEvaluator(TASK, 6), tmp_path, budget=whole.history.spend_usd / 2)
    again = CountingEvaluator(TASK, 6)
    rest = search(again, tmp_path, budget=BUDGET)
    assert list(rest.history) == list(whole.history)
    assert sum(again.paid.values()) <= len(whole.history) - len(half.history)


def test_a_search_that_asks_for_something_else_says_how_it_goes_on(tmp_path):
    """As with a larger budget at which another candidate pays while others are in flight."""
    half = search(CountingEvaluator(TASK, 6), tmp_path, budget=BUDGET / 10)
    with contextlib.closing(Journal(tmp_path / "journal.jsonl")) as journal:
        journal.append([replace(half.history[0], replicate=9)])
    evaluator = CountingEvaluator(TASK, 6)
    with pytest.raises(InputError, match=rf"does not ask for.*With continue_from='{tmp_path}'"):
        search(evaluator, tmp_path)
    assert not evaluator.paid


def some_known() -> list[Observation]:
    return [TASK.observe(Request(theta, q)) for theta in [(0, 0), (1, 2)] for q in range(12)]


@pytest.mark.parametrize(
    "settings",
    [
        {"certificate_flips": 0.05},
        {"certificate": "bounds"},
        pytest.param({"gap_tolerance": None}, marks=pytest.mark.slow),
        {"prune": False},
        {"known": some_known()},
        {"verify": 3},
        {"budget_usd": BUDGET},
        {"space_search": "branch_and_bound"},
        {"learn_reference": True},
        {"make": make_scope},
        {"make": make_scope, "certificate": "sequence", "initial_pool": "random"},
        {"make": make_scope, "space_search": "branch_and_bound", "u_out_floor": False},
        {"make": make_scope, "initial_pool": "none", "prune": False},
        pytest.param({"make": make_scope, "gap_tolerance": None}, marks=pytest.mark.slow),
    ],
    ids=lambda settings: "-".join(settings),
)
@pytest.mark.usefixtures("as_if_drawn")
def test_every_part_works_with_it(settings):
    alone = search(**settings)
    together = search(CountingEvaluator(TASK, 6), **settings)
    assert list(together.history) == list(alone.history)
    assert together.report == alone.report
    begun = [row.theta_cand for row in alone.trace if row.event == "selected"]
    assert begun


@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_a_theorem_is_about_one_call_at_a_time(make):
    """Each open candidate has a sequence of answers of its own; the theorem is about one."""
    settings = {"bounds": {"mode": "theory"}, "rho": 0.3} if make is make_scope_joint else {}
    settings = settings or {"bounds": {"mode": "theory"}}
    with pytest.raises(InputError, match="one call at a time"):
        method(make=make, initial_pool="random", **settings)
    assert type(method(1, make=make, initial_pool="random", **settings)) is SCOPE


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_loss_may_be_expected_below_0(seed):
    """1 - quality, where the best is nearly perfect: then too the search goes on to its end."""
    task = KnownTask.random(seed, (3, 3, 3), 6, False)
    limit = at_most("cost_usd", float(task.mean_cost.mean()))
    problem = replace(task.problem, objective="quality", epsilon=None, constraints=(limit,))
    base = [names[0] for names in problem.llms]
    optimizer = make_scope_joint(problem, base=base, device="cpu", seed=seed, in_flight=6)
    result = run(problem, optimizer, task.evaluator(), 240 * float(task.table.cost_usd.mean()))
    assert result.stop_reason != "budget"
    at = problem.space.index_of(result.recommendation.theta)
    assert task.mean_cost[at] <= limit.value or result.recommendation.basis == "reference"


@pytest.mark.slow
def test_the_best_quality_within_a_cost():
    usd = TASK.problem.reference_cost_usd
    limit = at_most("cost_usd", usd / 2, cap=20 * usd)
    problem = replace(TASK.problem, objective="quality", epsilon=None, constraints=(limit,))
    alone = search(problem=problem)
    together = search(CountingEvaluator(TASK, 6), problem=problem)
    assert list(together.history) == list(alone.history)
    assert together.recommendation == alone.recommendation


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_several_constraints(make):
    problem, evaluator = constrained_task(2)
    budget = 60 * problem.num_queries * problem.reference_cost_usd
    alone = run(problem, method(problem=problem, make=make), evaluator, budget)
    together = run(problem, method(problem=problem, make=make), Shuffled(evaluator), budget)
    assert list(together.history) == list(alone.history)
    assert together.report == alone.report
    assert len({one.theta for one in alone.history}) > 3


class Shuffled:
    """Another evaluator with six requests in flight, whose answers arrive last first."""

    concurrency = 6

    def __init__(self, evaluator):
        self._evaluator = evaluator

    def __getattr__(self, name):
        return getattr(self._evaluator, name)

    def evaluate(self, requests):
        requests = iter(requests)
        while window := list(itertools.islice(requests, self.concurrency)):
            yield from self._evaluator.evaluate(window[::-1])


@pytest.mark.slow
def test_tomorrows_queries():
    task = make_task(3, (3, 3), 60, graded=False, epsilon=0.3)
    alone = run_of(task, CountingEvaluator(task, 1))
    together = run_of(task, CountingEvaluator(task, 6))
    assert list(together.history) == list(alone.history)
    assert [row.event for row in alone.trace].count("selected") > 1


def run_of(task, evaluator):
    problem = replace(
        task.problem,
        reference_answers=tuple(
            (float(task.table.cost_usd[(*task.problem.theta_ref, q)]), float(quality))
            for q, quality in enumerate(task.table.quality[task.problem.theta_ref])
        ),
    )
    search = method(problem=problem, certificate="population")
    return run(problem, search, evaluator, task.budget(9))


@pytest.mark.slow
def test_the_front_sees_the_answers_of_each_turn_in_its_order(monkeypatch):
    """Turns overlap in the history; what a certificate was told is the beginning of each."""
    told: list[tuple[list[int], list[float]]] = []
    begin = BySequence.begin

    def noted(self, k, generator):
        test = begin(self, k, generator)
        grades: list[float] = []
        told.append((test.order, grades))
        update = test.update

        def updated(values, upper_g):
            grades.append(values[0])
            return update(values, upper_g)

        test.update = updated
        return test

    monkeypatch.setattr(BySequence, "begin", noted)
    result = search(seed=1)
    found = list(turns(result.trace, result.history))
    assert len(found) == len(told) > 3
    for (theta, qualities), (order, grades) in zip(found, told, strict=True):
        expected = [TASK.table.quality[(*theta, query)] for query in order]
        assert qualities == expected[: len(qualities)]
        assert qualities[: len(grades)] == grades
    spans = [
        [t for t, one in enumerate(result.history) if one.theta == theta] for theta, _ in found
    ]
    assert any(a[0] < b[0] < a[-1] for a, b in itertools.permutations(filter(None, spans), 2))


def test_a_configuration_waits_while_a_cheaper_one_is_probably_feasible():
    optimizer = method(4)

    class Other:
        turn = type("Turn", (), {"ended": False})
        probability, mean_c = 0.5, 1.0

    optimizer._open = [Other()]
    assert optimizer._is_worth_it(1.5)  # 0.75 USD in vain, of 0.9
    assert not optimizer._is_worth_it(2.0)
    assert optimizer._is_worth_it(0.5)  # cheaper than the one that is open
    assert optimizer._is_worth_it(2.0, of=optimizer._open[0])
    Other.probability = 0.7
    assert not optimizer._is_worth_it(1.5)
    Other.turn.ended, Other.probability = True, 1.0
    assert optimizer._is_worth_it(1.5)
    optimizer._open = [Third(0.5, 0.8), Third(0.5, 1.0), Third(1.0, 3.0)]
    assert optimizer._is_worth_it(0.96 * module.IN_VAIN / 0.9)  # 0.75 in vain, of the cheapest
    assert not optimizer._is_worth_it(1.1 * module.IN_VAIN / 0.9)


@pytest.mark.parametrize(
    ("answers", "mean", "needed", "most"),
    [
        (10, 0.1, 40, 10),  # a ninth of the variance: 1 / 50 - 1 / 100 for 1 / 10 - 1 / 100
        (10, -0.1, 40, 10),  # as far from 0 on the other side
        (40, 0.2, 20, 20),  # four ninths of 1 / 40 - 1 / 100 are 1 / 60 - 1 / 100
        (40, 0.3, 0, 2),
        (0, 0.3, 0, 2),
        (100, 0.1, 0, 2),
    ],
)
def test_no_more_are_in_flight_than_a_candidate_still_needs(answers, mean, needed, most):
    """Until its mean is 3 standard deviations from 0; these go with sqrt(1 / n - 1 / Q)."""
    one = _Open(FakeTurn(mean, sigma=0.1))
    one.num_answered = one.num_asked = answers
    one.look()
    assert one.needed == pytest.approx(needed, abs=1e-9)
    one.probability = 0.0
    asked = 0
    while one.may_ask and asked < 200:
        one.num_asked, asked = one.num_asked + 1, asked + 1
    assert asked == most


class FakeTurn:
    """A turn whose bounds are given."""

    margin, ended, theta = 0.0, False, (0,)
    trial = type("Trial", (), {"order": range(100)})

    def __init__(self, mean, sigma):
        self.candidate = self
        self.mean_c, self._mean, self._sigma = 1.0, mean, sigma

    def beta(self):
        return Beta(c=3.0, g=3.0)

    def lower_g(self, beta):
        return self._mean - beta.g * self._sigma

    def batches(self, size):
        return iter([[Request((0,), q)] for q in range(100)])


class Third:
    turn = type("Turn", (), {"ended": False})

    def __init__(self, probability, mean_c):
        self.probability, self.mean_c = probability, mean_c


def test_beside_a_probable_candidate_only_a_cheaper_one_is_opened(monkeypatch):
    optimizer = method(4)
    while not optimizer._open:
        optimizer.tell([TASK.observe(request) for request in optimizer.ask()])
    u_outs = []
    lower_bounds = optimizer.rules.lower_bounds

    def noted(u_out, theta_out):
        u_outs.append(u_out)
        return lower_bounds(u_out, theta_out)

    monkeypatch.setattr(optimizer.rules, "lower_bounds", noted)
    one, u_out = optimizer._open[0], optimizer.u_out
    one.probability, one.mean_c = 0.5, u_out / 1e6
    for other in optimizer._open[1:]:
        other.probability = 0.49
    assert not optimizer._begin()
    assert u_outs == [one.mean_c]
    assert optimizer._is_stuck  # nothing is as cheap
    assert not optimizer._begin()
    assert len(u_outs) == 1
    one.probability = 0.49
    optimizer._begin()
    assert u_outs[1] == u_out


def test_of_equal_costs_the_first_one_asks():
    """Else both would wait for each other."""
    optimizer = method(4)

    class Certain:
        turn = type("Turn", (), {"ended": False})
        probability, mean_c = 1.0, 0.5

    first, second = optimizer._open = [Certain(), Certain()]
    assert optimizer._is_worth_it(0.5, of=first)
    assert not optimizer._is_worth_it(0.5, of=second)
    assert not optimizer._is_worth_it(0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("usd", "seed"), [(0.0, 0), (0.001, 1)])
def test_where_all_cost_the_same_the_search_ends(usd, seed):
    task = make_task(seed, (4, 4), 16)
    cost = np.full_like(task.table.cost_usd, usd)
    cost[task.problem.theta_ref] = 0.01
    table = replace(task.table, cost_usd=cost)
    reference = list(task.problem.names(task.problem.theta_ref).values())
    problem = table.problem("same", reference=reference, epsilon=0.15)
    result = search(TableEvaluator(table), problem=problem, budget=5.0)
    assert result.stop_reason != "finished"
    assert result.recommendation.basis == "certified"


class AtMost(Rule):
    """Ends the search after so many candidates, and notes its events."""

    def __init__(self, most):
        self.most, self.events = most, []

    def selected(self, theta):
        self.events.append(("selected", theta))

    def begun(self, turn):
        self.events.append(("begun", turn.theta))

    def ended(self, turn):
        self.events.append(("ended", turn.theta))
        ended = [event for event, _ in self.events].count("ended")
        return "enough candidates" if ended == self.most else None


def test_a_rule_of_ones_own_is_told_and_ends_the_search():
    rule = AtMost(2)
    result = search(rules=[rule])
    assert result.stop_reason == "enough candidates"
    begun = [theta for event, theta in rule.events if event == "begun"]
    assert begun == [theta for event, theta in rule.events if event == "selected"]
    assert begun == [row.theta_cand for row in result.trace if row.event == "selected"]
    ended = [theta for event, theta in rule.events if event == "ended"]
    assert len(begun) >= len(ended) >= 2
    assert set(ended) <= set(begun)


def test_wrong_values():
    for value in (0, -1, 1.5):
        with pytest.raises(InputError, match="in_flight"):
            method(value)
    with pytest.raises(InputError, match="batch_size"):
        method(4, batch_size=4)
    optimizer = method(4)
    first = optimizer.ask()
    with pytest.raises(InputError, match="waiting for"):
        optimizer.tell([TASK.observe(first[1])])
    assert isinstance(optimizer, InFlight)


@pytest.mark.slow
def test_what_arrives_is_what_was_asked():
    history = search().history
    asked = Counter((one.theta, one.query, one.replicate) for one in history)
    assert max(asked.values()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [9, 10])
def test_the_tensor_model_asks_the_same(seed):
    """What an open candidate knows must not change while others answer, in either model."""
    task = make_task(seed, (4, 4, 3), 24)
    histories = []
    for surrogate in ("incremental", "tensor"):
        optimizer = make_scope_joint(
            task.problem, base=[names[0] for names in task.problem.llms], seed=seed, in_flight=16,
            surrogate=surrogate, certificate="bounds",
        )  # fmt: skip
        result = run(task.problem, optimizer, task.evaluator(), task.budget(20))
        histories.append(list(result.history))
    assert histories[0] == histories[1]
    assert len({one.theta for one in histories[0]}) > 10
