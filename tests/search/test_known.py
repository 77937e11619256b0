"""What a search takes over from earlier ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tables import make_task

from scope_torch.errors import InputError
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.runs.runner import run
from scope_torch.search.calibrate import calibrate, num_requests
from scope_torch.search.known import Known, Trial
from scope_torch.search.parts import Test as _Test

MAKERS = {"scope": make_scope, "scope_joint": make_scope_joint}
Q = 12


@pytest.fixture(params=MAKERS)
def make(request):
    return MAKERS[request.param]


@pytest.fixture
def task():
    return make_task(3, (4, 3), Q, graded=False)


def finished(task, make, **settings):
    """A search to its end."""
    search = make(task.problem, base="llm0", device="cpu", seed=1, **settings)
    while requests := search.ask():
        search.tell([task.observe(request) for request in requests])
    return search


def searched(task, make, **settings):
    optimizer = make(task.problem, base="llm0", device="cpu", seed=1, **settings)
    return run(task.problem, optimizer, task.evaluator(), budget_usd=task.budget(20))


def everything(task):
    """All answers of all configurations but theta_0."""
    thetas = [task.problem.space.theta_at(k) for k in range(task.problem.space.size)]
    pairs = [Request(theta, query) for theta in thetas for query in range(Q)]
    return [task.observe(pair) for pair in pairs if pair.theta != task.problem.theta_ref]


@pytest.mark.parametrize("certificate", ["bounds", "sequence", "population"])
def test_what_is_known_decides_without_a_call(task, make, certificate):
    settings = {"certificate": certificate, "bounds": {"delta": 0.4}}
    if make is make_scope and certificate == "bounds":
        settings.pop("bounds")
    search = finished(task, make, known=everything(task), **settings)
    assert search.t == 0
    assert search.spend_usd == 0
    out = search.recommend()
    if certificate != "population":  # which needs more queries than these
        assert out.basis != "reference"
        cost = float(task.mean_cost[task.problem.space.index_of(out.theta)])
        assert cost == pytest.approx(task.best_cost)


def test_a_new_price_changes_the_choice_without_a_call(task, make):
    """The cheapest of the known ones is chosen at the prices of today."""
    observations = everything(task)
    first = finished(task, make, known=observations, certificate="sequence").recommend().theta
    dearer = [replace(o, cost_usd=o.cost_usd * 50) if o.theta == first else o for o in observations]
    second = finished(task, make, known=dearer, certificate="sequence")
    assert second.t == 0
    feasible = task.mean_quality >= task.problem.s_0 - 1e-12
    costs = np.where(feasible, task.mean_cost, np.inf)
    costs[task.problem.space.index_of(first)] *= 50
    assert task.problem.space.index_of(second.recommend().theta) == int(costs.argmin())


def test_known_pairs_are_not_asked_again(task, make):
    known = [o for o in everything(task) if o.query % 2]
    result = searched(task, make, known=known, certificate="sequence")
    pairs = {(o.theta, o.query) for o in known}
    assert len(result.history) > 0
    assert not pairs & {(o.theta, o.query) for o in result.history}


@pytest.mark.usefixtures("as_if_drawn")
def test_they_are_asked_again_if_answers_flip(task, make):
    settings = {"certificate": "sequence", "certificate_flips": 0.01, "bounds": {"delta": 0.4}}
    result = searched(task, make, known=everything(task), **settings)
    assert not result.report["known"]["counted"]
    first = next(row.theta_cand for row in result.trace if row.event == "selected")
    asked = [o.query for o in result.history if o.theta == first]
    assert asked


def test_the_model_takes_in_all_of_them(task, make):
    known = everything(task)[: 5 * Q]
    search = make(task.problem, base="llm0", device="cpu", known=known)
    search.ask()
    theta = known[0].theta
    assert search.belief.surrogate.num_observed(theta) == Q
    assert search.t == 0
    assert search.spend_usd == 0


@pytest.mark.slow
def test_a_search_without_known_answers_is_as_before(task, make):
    traces = [finished(task, make, known=known).trace for known in ([], (), Known(task.problem))]
    plain = finished(task, make).trace
    assert all(trace == plain for trace in traces)
    assert "known" not in finished(task, make).settings()


def test_the_settings_tell_what_was_known(task, make):
    observations = everything(task)
    settings = [
        make(task.problem, base="llm0", known=observations[:n]).settings()["known"]
        for n in (1, 2, 1)
    ]
    assert settings[0] == settings[2] != settings[1]


def test_calibrate_looks_at_what_is_new_only(task, make):
    """Enough is known, but not of the third LLM of the first module."""
    known = [o for o in everything(task) if o.theta[0] != 2]
    search = make(task.problem, base="llm0", device="cpu", known=known)
    assert {request.theta for request in search.ask()} == {(2, 0)}


def test_calibrate_is_made_as_usual_if_little_is_known(task, make):
    (one,) = [o for o in everything(task) if (o.theta, o.query) == ((1, 0), 4)]
    search = make(task.problem, base="llm0", device="cpu", known=[one])
    pool = [request.theta for request in search.ask()]
    fresh = make(task.problem, base="llm0", device="cpu").ask()
    assert {*pool, (1, 0)} == {request.theta for request in fresh}  # its query 4 is known
    assert {request.query for request in search.ask()} == {4}


@pytest.mark.parametrize(("size", "queries"), [(1, 1), (5, 1), (7, 12), (4, 16), (9, 190)])
def test_the_requests_of_calibrate_are_counted(size, queries):
    rounds = calibrate([(k,) for k in range(size)], list(range(queries)))
    number, requests = 0, next(rounds)
    while True:
        number += len(requests)
        try:
            requests = rounds.send([Observation(r.theta, r.query, 0.1, 1.0) for r in requests])
        except StopIteration:
            break
    assert number == num_requests(size, queries)


class Order(_Test):
    """Notes the grades in the order in which it gets them."""

    margin = 0.0

    def __init__(self, order):
        self.order, self.taken = order, []

    def update(self, grades, upper_g):
        self.taken.append(grades[0])
        return len(self.taken) == len(self.order)


@pytest.mark.parametrize("known", [(), (0,), (3, 1), (2, 4), (0, 1, 2, 3, 4)])
def test_a_test_gets_its_grades_in_its_order(known):
    test = Order([3, 1, 4, 0, 2])
    grades = {query: (float(query),) for query in known}
    trial = Trial(test, grades, range(5))
    certified = trial.begin(0.0) if known else False
    for query in list(trial.order):
        assert not certified
        certified = trial.update((float(query),), 0.0)
    assert certified
    assert test.taken == [3.0, 1.0, 4.0, 0.0, 2.0]
    assert trial.order == [query for query in test.order if query not in known]


def test_the_result_counts_known_answers(task, make):
    known = everything(task)
    result = searched(task, make, known=known, certificate="sequence")
    theta = result.recommendation.theta
    at = task.problem.space.index_of(theta)
    assert result.quality.value == pytest.approx(task.mean_quality[at])
    assert result.cost_usd.is_exact
    assert result.bill.total_usd == 0
    assert result.bill.num_known == len(known)
    assert result.summary()["known"]["usd"] == pytest.approx(sum(o.cost_usd for o in known))
    assert f"{len(known)} earlier answers" in str(result)
    assert [row.theta for row in result.pareto().by_loss]


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (Observation((9, 0), 0, 0.1, 1.0), "theta of a known observation"),
        (Observation((0, 0), Q, 0.1, 1.0), f"of query {Q}, but the problem has {Q}"),
    ],
)
def test_an_observation_of_another_problem_is_refused(task, observation, message):
    with pytest.raises(InputError, match=message):
        Known(task.problem, [observation])


def test_population_refuses_answers_that_chose_the_reference(task, make):
    known = Known(task.problem, everything(task), same_reference=False)
    with pytest.raises(InputError, match="had another reference"):
        make(task.problem, base="llm0", certificate="population", known=known)


def test_population_shares_delta_with_configurations_that_are_gone(task):
    from scope_torch.search.population import share_of_each

    assert share_of_each(task.problem, 0.05, 9) == 0.05 / (12 + 9 - 1)


def test_a_table_is_not_asked_whether_its_answers_vary(task, make):
    """A second pass over a table would be the first one again: 33 of 40 searches were wrong."""
    with pytest.raises(InputError, match="a table has one answer to each call"):
        searched(task, make, certificate="sequence", certificate_flips=0.1)


@pytest.mark.filterwarnings("ignore")
def test_what_it_knew_is_not_chosen_where_its_llm_is_dropped():
    """Every call of the LLM fails today; the answers of the older search were right and cheap."""
    count, llms = 20, (("x", "y"),) * 3
    problem = SelectionProblem(
        name="d",
        modules=("a", "b", "c"),
        llms=llms,
        num_queries=count,
        theta_ref=(1, 1, 1),
        reference_quality=1.0,
        reference_cost_usd=0.01,
        epsilon=0.2,
        reference_answers=[(0.01, 1.0)] * count,
    )

    def system(assignment, query):
        if "x" in assignment.values():
            raise RuntimeError("x was retired")
        return 1.0, 0.01

    known = Known(problem, [Observation((1, 0, 1), q, 0.002, 1.0) for q in range(count)])
    optimizer = make_scope(problem, base="x", seed=0, device="cpu", known=known)
    evaluator = FunctionEvaluator(
        problem, system, list(range(count)), on_error="zero", deterministic=True
    )
    result = run(problem, optimizer, evaluator, budget_usd=1.0)
    assert "x" in result.report["dropped"]["b"]
    assert result.recommendation.theta == problem.theta_ref
