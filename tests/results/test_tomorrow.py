"""What result.json says about tomorrow's queries."""

import math
from dataclasses import replace

import numpy as np
import pytest

from scope_torch.bounds.population import lower_difference, upper_difference, upper_ratio
from scope_torch.errors import InputError
from scope_torch.methods import make_scope
from scope_torch.observation import Observation
from scope_torch.results.population import tomorrow
from scope_torch.runs.recorded import recorded_problem
from scope_torch.runs.runner import run, run_settings
from scope_torch.search.population import random_order
from scope_torch.tasks.simulated import simulated_task
from scope_torch.tasks.synthetic import synthetic_task

TASK = synthetic_task(num_queries=120, epsilon=0.1)
PROBLEM = TASK.problem
TABLE = TASK.evaluator.table
THETA = (2, 2)


def observed(queries, theta=THETA):
    return [
        Observation(theta, q, float(TABLE.cost_usd[(*theta, q)]), float(TABLE.quality[(*theta, q)]))
        for q in queries
    ]


def test_bounds_of_a_configuration_with_all_answers():
    told = tomorrow(PROBLEM, observed(range(120)), THETA, delta=0.1, seed=3)
    order = random_order(PROBLEM, THETA, 3)
    d = TABLE.quality[THETA] - 0.9 * TABLE.quality[PROBLEM.theta_ref]
    share = 0.1 / 35
    expected = [lower_difference(d[order], 0.1, share), upper_difference(d[order], 0.1, share)]
    assert told["quality_difference"] == expected
    assert expected[0] < d.mean() < expected[1]
    cap = 4 * PROBLEM.reference_cost_usd
    c, c_0 = TABLE.cost_usd[THETA][order] / cap, TABLE.cost_usd[PROBLEM.theta_ref][order] / cap
    assert told["cost_ratio"][1] == upper_ratio(c, np.minimum(c_0, 1), share)
    assert told["cost_ratio"][0] < c.mean() / c_0.mean() < told["cost_ratio"][1]
    assert (told["delta"], told["answered"], told["reason"]) == (0.1, 120, None)


def test_unknown_answers_count_as_the_worst():
    """The bounds hold whatever the missing answers would have been."""
    rng = np.random.default_rng(0)
    some = sorted(rng.permutation(120)[:90].tolist())
    told = tomorrow(PROBLEM, observed(some), THETA)
    whole = tomorrow(PROBLEM, observed(range(120)), THETA)
    assert told["answered"] == 90
    for name in ("quality_difference", "cost_ratio"):
        assert told[name][0] <= whole[name][0] <= whole[name][1] <= told[name][1]
    flipped = [replace(o, quality=1 - o.quality) for o in observed(range(120))]
    mixed = [*observed(some), *(o for o in flipped if o.query not in some)]
    other = tomorrow(PROBLEM, mixed, THETA)["quality_difference"]
    assert told["quality_difference"][0] <= other[0] <= other[1] <= told["quality_difference"][1]


def test_only_the_first_answer_of_a_query_counts():
    again = [replace(o, quality=1 - o.quality, replicate=1) for o in observed(range(120))]
    others = observed(range(120), theta=(0, 0))
    first = tomorrow(PROBLEM, [*others, *observed(range(120)), *again], THETA)
    assert first == tomorrow(PROBLEM, observed(range(120)), THETA)


def test_costs_above_the_cap_are_counted():
    dear = [replace(o, cost_usd=5 * PROBLEM.reference_cost_usd) for o in observed(range(120))]
    told = tomorrow(PROBLEM, dear, THETA)
    assert told["num_capped"] >= 120
    assert told["cost_cap_usd"] == 4 * PROBLEM.reference_cost_usd
    assert told["cost_ratio"][0] > 1


def test_a_single_answer_says_next_to_nothing():
    told = tomorrow(PROBLEM, observed([5]), THETA)
    assert told["quality_difference"][0] < -0.5
    assert told["quality_difference"][1] > 1 - 0.9 * PROBLEM.reference_quality
    assert told["cost_ratio"][0] < 1e-3


@pytest.mark.parametrize("theta", [THETA, PROBLEM.theta_ref])
def test_none_with_a_reason(theta):
    problem = replace(PROBLEM, reference_answers=None) if theta == THETA else PROBLEM
    told = tomorrow(problem, observed(range(120)), theta)
    assert told.keys() == tomorrow(PROBLEM, observed(range(120)), THETA).keys()
    known = {name: value for name, value in told.items() if value is not None}
    reason = "the reference's answers to each query are not known"
    assert known == {
        "delta": 0.05,
        "reason": reason if theta == THETA else "theta_out is the reference",
    }


@pytest.mark.slow
def test_it_says_how_many_more_queries_are_needed():
    """Among configurations with too few queries: none if the average is too low."""
    seen = set()
    for theta in map(PROBLEM.space.theta_at, range(PROBLEM.space.size)):
        if theta == PROBLEM.theta_ref:
            continue
        told = tomorrow(PROBLEM, observed(range(120), theta), theta)
        mean = (TABLE.quality[theta] - 0.9 * TABLE.quality[PROBLEM.theta_ref]).mean()
        more = told["more_queries"]
        seen.add("none" if more is None else "some" if more else "enough")
        if told["quality_difference"][0] >= 0:
            assert more == 0
        elif mean <= 0:
            assert more is None
        else:
            assert more is None or more >= 1
    assert seen >= {"none", "some"}


def test_every_result_has_it_and_settings_do_not_change():
    optimizer = make_scope(PROBLEM, base="nano")
    settings = run_settings(PROBLEM, optimizer, TASK.evaluator, 1.0)
    assert "reference_answers" not in settings["problem"]
    assert recorded_problem(settings) == replace(PROBLEM, reference_answers=None)
    result = run(PROBLEM, optimizer, TASK.evaluator, 1.0)
    assert result.summary()["population"].keys() == tomorrow(PROBLEM, [], THETA).keys()


def test_simulated_tasks_have_the_expected_answers_of_the_reference():
    problem = simulated_task(name="simulated", world="data_imputation").problem
    costs, qualities = zip(*problem.reference_answers, strict=True)
    assert math.fsum(costs) / len(costs) == pytest.approx(problem.reference_cost_usd)
    assert set(qualities) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([(0.1, 1.0)], "1 reference_answers for 2 queries"),
        ([(0.1, 1.0), (-0.1, 1.0)], "reference_answers of query 1"),
        ([(0.1, 1.0), (math.nan, 1.0)], "reference_answers of query 1"),
        ([(0.1, 1.5), (0.1, 0.5)], "reference_answers of query 0"),
        ([(0.1, 1.0), (0.1, 0.5)], r"reference_quality=0\.5, but its reference_answers average"),
        ([(0.1, 1.0), (0.2, 0.0)], r"reference_cost_usd=0\.1, but its reference_answers average"),
    ],
)
def test_refuses_other_answers_of_the_reference(answers, words):
    problem = replace(
        PROBLEM,
        num_queries=2,
        reference_answers=None,
        reference_quality=0.5,
        reference_cost_usd=0.1,
    )
    assert replace(problem, reference_answers=((0.1, 1), (0.1, 0))).reference_answers is not None
    with pytest.raises(InputError, match=words):
        replace(problem, reference_answers=answers)
