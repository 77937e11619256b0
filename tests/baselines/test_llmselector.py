"""LLMSelector: votes, ties, the round-robin, and what is reported."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tables import CountingEvaluator, make_task, task_of

from scope_torch.baselines.llmselector import LLMSelector, count_votes
from scope_torch.runs.runner import run
from scope_torch.space import tie_rank
from scope_torch.testing import OptimizerConformance


class TestLLMSelector(OptimizerConformance):
    starts_from_reference = False

    @pytest.fixture
    def make_optimizer(self):
        return lambda problem, seed: LLMSelector(problem, seed=seed)


QUALITIES = st.integers(1, 4).flatmap(
    lambda num_llms: st.lists(
        st.lists(st.sampled_from([0.0, 0.3, 0.5, 1.0]), min_size=num_llms, max_size=num_llms),
        min_size=1,
        max_size=6,
    )
)


@pytest.mark.slow
@given(QUALITIES)
def test_votes_are_counted_as_by_hand(by_query):
    expected: Counter[int] = Counter()
    for values in by_query:
        for llm, value in enumerate(values):
            if all(value >= other for other in values):
                expected[llm] += 1
    votes = count_votes(
        {llm: list(column) for llm, column in enumerate(zip(*by_query, strict=True))}
    )
    assert votes == {llm: expected[llm] for llm in range(len(by_query[0]))}


@pytest.mark.slow
@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=3, max_size=3), min_size=1))
def test_zero_one_votes_are_the_number_correct_plus_a_constant(by_query):
    columns = list(zip(*by_query, strict=True))
    votes = count_votes(dict(enumerate(columns)))
    all_wrong = sum(max(values) == 0 for values in by_query)
    assert votes == {llm: sum(column) + all_wrong for llm, column in enumerate(columns)}


def test_graded_votes_differ_from_average_quality():
    assert count_votes({0: [0.6, 0.6, 0.0], 1: [0.5, 0.5, 1.0]}) == {0: 2, 1: 1}


def replayed(task, seed):
    """The method written down once more: allocations, evaluations in order, unique ones."""
    optimizer = LLMSelector(task.problem, seed=seed)
    space, quality = task.problem.space, task.table.quality
    a, known, allocations, module = optimizer.recommend().theta, [], [], 0
    while len(allocations) <= len(a) or len(set(allocations[-len(a) - 1 :])) > 1:
        allocations = allocations or [a]
        options = {m: (*a[:module], m, *a[module + 1 :]) for m in range(space.sizes[module])}
        known += [theta for theta in options.values() if theta not in known]
        table = np.stack([quality[theta] for theta in options.values()])
        votes = (table == table.max(0)).sum(1)
        tied = [m for m in options if votes[m] == votes.max()]
        rank = {m: int(tie_rank(space.rank(torch.tensor(options[m])), seed)) for m in tied}
        a = options[a[module] if a[module] in tied else min(tied, key=lambda m: rank[m])]
        allocations.append(a)
        module = (module + 1) % len(a)
    return allocations, known


@pytest.mark.parametrize("graded", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_whole_run_is_the_one_written_down_again(graded, seed):
    task = make_task(seed, (3, 4, 2), 5, graded=graded)
    result = run(task.problem, LLMSelector(task.problem, seed=seed), task.evaluator(), 1e9)
    allocations, known = replayed(task, seed)
    assert result.recommendation.theta == allocations[-1]
    assert result.report["module_updates"] == len(allocations) - 1
    assert {o.theta for o in result.history} == set(known)
    assert len(result.history) == 5 * len(known)  # an allocation is never paid for twice
    assert result.stop_reason.startswith("a full round")
    changes = [row.theta_out for row in result.trace if row.event == "improved"]
    assert changes == [b for a, b in itertools.pairwise(allocations) if a != b]


def test_ties_keep_the_incumbent():
    cost, quality = np.ones((3, 3, 4)), np.ones((3, 3, 4))
    task = task_of(cost, quality, (0, 0))
    for seed in range(5):
        optimizer = LLMSelector(task.problem, seed=seed)
        start = optimizer.recommend().theta
        assert run(task.problem, optimizer, task.evaluator(), 1e9).recommendation.theta == start


def test_ties_without_the_incumbent_do_not_follow_the_listing():
    quality = np.ones((12, 4))
    chosen = set()
    for seed in range(8):
        task = task_of(np.ones((12, 4)), quality.copy(), (0,))
        optimizer = LLMSelector(task.problem, seed=seed)
        task.table.quality[optimizer.recommend().theta] = 0.0
        chosen.add(run(task.problem, optimizer, task.evaluator(), 1e9).recommendation.theta)
    assert len(chosen) > 3


def test_starts_from_a_random_allocation_at_no_spend_and_checks_no_feasibility():
    task = make_task(1, (4, 4), 6)
    starts = set()
    for seed in range(12):
        optimizer = LLMSelector(task.problem, seed=seed)
        recommendation = optimizer.recommend()
        result = run(task.problem, optimizer, task.evaluator(), task.budget(1.5))
        first = result.trace[0]
        assert (first.t, first.from_budget_usd, first.spend_usd) == (0, 0.0, 0.0)
        assert first.theta_out == recommendation.theta == result.recommendation.theta
        assert recommendation.basis == "estimated"
        index = int(task.problem.space.rank(torch.tensor(recommendation.theta)))
        true_quality = task.mean_quality[index]
        shortfall = max(0.0, 1 - true_quality / task.problem.s_0)
        assert result.curve.violation(result.budget_usd) == pytest.approx(shortfall)
        starts.add(recommendation.theta)
    assert len(starts) > 6


@pytest.mark.parametrize("seed", range(1, 5))
def test_an_update_cut_short_leaves_the_allocation(seed):
    task = make_task(4, (4, 4), 6)
    start = LLMSelector(task.problem, seed=seed).recommend().theta
    whole = run(task.problem, LLMSelector(task.problem, seed=seed), task.evaluator(), 1e9)
    first = next(row for row in whole.trace if row.event == "improved")
    # The observation that crosses the budget is still made: the first budget completes the update.
    for budget, changed in ((first.from_budget_usd, True), (first.from_budget_usd * 0.999, False)):
        result = run(task.problem, LLMSelector(task.problem, seed=seed), task.evaluator(), budget)
        assert (result.recommendation.theta != start) == changed
        assert result.stop_reason == "budget"


def test_reports_the_best_that_was_observed_to_be_feasible():
    task = make_task(3, (4, 4), 6)
    result = run(task.problem, LLMSelector(task.problem, seed=1), task.evaluator(), 1e9)
    seen = {o.theta for o in result.history} | {task.problem.theta_ref}
    index = {theta: int(task.problem.space.rank(torch.tensor(theta))) for theta in seen}
    feasible = [t for t in seen if task.mean_quality[index[t]] >= task.problem.s_0]
    best = min(feasible, key=lambda theta: task.mean_cost[index[theta]])
    reported = result.report["best_observed_feasible"]
    assert reported["theta"] == task.problem.names(best)
    assert reported["cost_usd"] == pytest.approx(task.mean_cost[index[best]])
    assert reported["quality"] == pytest.approx(task.mean_quality[index[best]])


def test_one_llm_for_a_module_and_one_query():
    task = make_task(0, (1, 3), 1)
    result = run(task.problem, LLMSelector(task.problem, seed=0), CountingEvaluator(task), 1e9)
    assert len({o.theta for o in result.history}) == 3
