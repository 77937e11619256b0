"""Ties, known answers, many open candidates: searches that end, and keep the better choice."""

import random
from dataclasses import replace

import numpy as np
import pytest

from scope_torch.bounds.betting import BettingSequence
from scope_torch.evaluators.table import TableEvaluator
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.runs.runner import run
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.testing import KnownTask


def two_modules(price, right, num_queries, epsilon, spread=0.0, seed=0):
    """Costs are sums over both modules; theta_0 is (0, 0)."""
    rng = np.random.default_rng(seed)
    price, tokens = np.asarray(price), rng.lognormal(0, spread, num_queries)
    cost = (price[:, None, None] + price[None, :, None]) * tokens
    quality = rng.random(cost.shape) < right[..., None]
    return KnownTask.of(cost, quality.astype(float), (0, 0), epsilon=epsilon)


@pytest.mark.slow
@pytest.mark.parametrize("with_holes", [False, True], ids=["continued", "with holes"])
def test_certificate_by_bounds_where_some_queries_are_not_asked(with_holes):
    """Queries are told apart by open groups, of which there are fewer than groups."""
    task = synthetic_task(num_queries=40, world_seed=1)
    how = {"base": "nano", "certificate": "bounds"}
    problem, known = replace(task.problem, deployment_queries=1e6), []
    if with_holes:
        rng = random.Random(0)
        thetas = [(i, j) for i in range(6) for j in range(6) if (i, j) != problem.theta_ref]
        offered = {theta: sorted(rng.sample(range(40), 34)) for theta in thetas}
        problem = replace(problem, offered=offered)
    else:
        first = make_scope_joint(problem, seed=0, **how)
        known = list(run(problem, first, task.evaluator, 1.0).history)
        problem = replace(problem, deployment_queries=1e7, epsilon=0.02)
    search = make_scope_joint(problem, seed=50, known=known, **how)
    result = run(problem, search, task.evaluator, 3.0)
    assert len(result.history) > 30
    pairs = [(one.theta, one.query) for one in (*known, *result.history)]
    offered = problem.offered or {}
    assert all(query in offered.get(theta, range(40)) for theta, query in pairs)


def test_bounds_of_no_width_are_widened():
    """The surrogate was never wrong where every answer is right."""
    llms = ("a", "b", "c")
    problem = SelectionProblem(
        "x", ("m", "n"), (llms, llms), 20, (0, 0), 1.0, 0.02, constraints=("quality >= 1",)
    )
    search = make_scope(problem, base="c", seed=0, certificate="sequence")
    number = 0
    while (requests := search.ask()) and number < 1000:
        number += len(requests)
        usd = [0.01 - 0.0025 * theta[0] - 0.0016 * theta[1] for theta, *_ in requests]
        search.tell([Observation(*r[:2], u, 1.0) for r, u in zip(requests, usd, strict=True)])
    assert search.stop_reason is not None
    assert search.recommend().theta == (2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_a_continued_search_keeps_what_is_known_to_be_better(in_flight, seed):
    """Also where it would not pay to find that out: nothing is asked for it."""
    price = 0.005 * np.array([1.0, 0.92, 0.952, 1.05])
    right = np.full((4, 4), 0.9)
    right[0, 0] = 0.85
    task = two_modules(price, right, 100, 0.05, spread=0.2, seed=seed)
    june = replace(task.problem, deployment_queries=1e6)
    how = {"base": "llm1"}
    evaluator = TableEvaluator(task.table)
    first = run(june, make_scope_joint(june, seed=1, **how), evaluator, 20.0)
    assert first.recommendation.theta == (1, 1)
    july = replace(task.problem, deployment_queries=200)
    search = make_scope_joint(july, seed=2, known=list(first.history), in_flight=in_flight, **how)
    result = run(july, search, evaluator, 20.0)
    assert (result.recommendation.theta, result.recommendation.basis) == ((1, 1), "certified")
    assert len(result.history) == 0


@pytest.mark.slow
def test_no_choice_is_dearer_than_the_reference_by_its_own_answers():
    """Of two open candidates that were theta_out in turn, both may turn out dear."""
    rng, shape = np.random.default_rng(16), (4, 4, 60)
    is_small, small = rng.random(shape) < 0.97, 1e-4 * rng.random(shape)
    cost = np.where(is_small, small, 0.3 * rng.uniform(0.5, 2, (4, 4, 1)))
    cost[0, 0] = 0.006
    _ = rng.random(60)
    quality = (rng.random(shape) < 0.99).astype(float)
    task = KnownTask.of(cost, quality, (0, 0), epsilon=0.3)
    problem = replace(task.problem, deployment_queries=1e6)
    search = make_scope_joint(problem, base="llm1", seed=16, in_flight=8)
    result = run(problem, search, TableEvaluator(task.table), 10.0)
    assert any(row.event == "withdrawn" for row in result.trace)
    theta = result.recommendation.theta
    of_choice = {one.query: one.cost_usd for one in result.history if one.theta == theta}
    assert theta == (0, 0) or sum(of_choice.values()) < 0.006 * len(of_choice)


@pytest.mark.slow
@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("seed", [0, 3, 30, 45])
def test_no_choice_is_infeasible_by_its_own_answers(seed, in_flight):
    """A bet may be won by luck, here at a delta of 0.9; then all answers are seen."""
    right = np.full((3, 3), 0.98)
    right[1:, 1:] = 0.85
    task = two_modules([0.01, 0.003, 0.0002], right, 60, 0.1, seed=seed)
    how = {"base": "llm2", "seed": seed, "in_flight": in_flight, "bounds": {"delta": 0.9}}
    result = run(
        task.problem, make_scope_joint(task.problem, **how), TableEvaluator(task.table), 20.0
    )
    assert any(row.event == "withdrawn" for row in result.trace)
    answers = {}
    for one in result.history:
        answers.setdefault(one.theta, {})[one.query] = one.quality
    known = {theta: sum(of.values()) / 60 for theta, of in answers.items() if len(of) == 60}
    assert known.get(result.recommendation.theta, 1.0) >= task.problem.s_0 - 1e-9
    for row in result.pareto().by_loss:
        if row.basis != "estimated":
            assert known.get(row.theta, 1.0) >= row.threshold - 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("certificate", ["bounds", "sequence"])
@pytest.mark.parametrize("make", [make_scope, make_scope_joint])
def test_two_that_cost_the_same_do_not_take_turns(make, certificate):
    """A sum over modules has such ties: (nano, mini) and (mini, nano)."""
    right = np.full((3, 3), 0.97)
    right[0, 0], right[2, 2] = 1.0, 0.5
    for seed in range(4):
        task = two_modules([0.01, 0.0004, 0.0001], right, 50, 0.1, seed=seed)
        delta = {"bounds": {"delta": 0.05}} if certificate == "sequence" else {}
        how = {"base": "llm2", "seed": seed, "certificate": certificate, **delta}
        search = make(task.problem, **how)
        result = run(task.problem, search, TableEvaluator(task.table), 5.0)
        assert result.stop_reason != "budget"
        assert result.recommendation.theta in {(1, 2), (2, 1), (1, 1)}
        asked = len(result.history)
        assert (
            asked - len({(one.theta, one.query) for one in result.history}) <= 100
        )  # two of them again


@pytest.mark.parametrize("flips", [0.0, 0.02])
def test_answers_that_vary_may_still_decide_between_two_that_cost_the_same(flips):
    """Then all answers to all queries are not all that can be known."""
    task = two_modules([0.01, 0.0004, 0.0001], np.full((3, 3), 0.97), 20, 0.1)
    rules = make_scope_joint(task.problem, base="llm2", seed=0, certificate_flips=flips).rules
    for theta in ((1, 2), (2, 1)):
        for query in range(20):
            rules.learn(Observation(theta, query, 0.0005, 1.0))
            assert theta == (1, 2) or query == 19 or not rules.is_beaten((1, 2), (2, 1))
    assert rules.is_beaten((1, 2), (2, 1)) == (flips == 0)


@pytest.mark.slow
@pytest.mark.parametrize(("num_queries", "parts"), [(1000, 10), (2000, 10), (1000, 3)])
def test_an_average_of_exactly_the_threshold_is_enough_in_any_order(num_queries, parts):
    rng = np.random.default_rng(0)
    threshold = 7 / 10 if parts == 10 else (num_queries * 2 // 3) / num_queries
    number = round(num_queries * threshold * parts)
    grades = np.full(num_queries, number // num_queries)
    grades[: number - grades.sum()] += 1
    spread = np.minimum(grades[0::2], parts - grades[1::2])  # as many up as down
    grades[0::2] -= spread
    grades[1::2] += spread
    assert grades.sum() == number
    for _ in range(60):
        rng.shuffle(grades)
        sequence = BettingSequence(num_queries, threshold, 0.05)
        assert any(sequence.update(float(grade / parts)) for grade in grades)


@pytest.mark.slow
def test_many_open_candidates_whose_bet_is_lost_are_not_asked_again():
    price = [1e-2, 3e-3, 1e-3, 3e-4]
    skill = np.array([0.97, 0.955, 0.94, 0.92])
    task = two_modules(price, np.outer(skill, skill), 150, 0.15, spread=0.3, seed=3)
    problem = replace(task.problem, deployment_queries=1e7)
    asked = {}
    for in_flight in (1, 4, 8):
        search = make_scope_joint(
            problem, base="llm3", seed=0, certificate="population", in_flight=in_flight
        )
        history = run(problem, search, TableEvaluator(task.table), 40.0).history
        asked[in_flight] = len(history) - len({(one.theta, one.query) for one in history})
    assert max(asked.values()) < 150  # less than one candidate
