"""Constraints: texts, grades, thresholds, and what a problem makes of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from constrained import constrained_task
from hypothesis import given
from hypothesis import strategies as st
from tables import make_task

from scope_torch.constraints import Constraint, at_least, at_most
from scope_torch.errors import InputError
from scope_torch.observation import Observation

PROBLEM = make_task(0, (3, 3), 8).problem


@pytest.mark.parametrize(
    "constraint",
    [
        at_least("quality", relative_to_reference=0.95),
        at_least("safety", 0.99),
        at_least("score", 3, within=(1, 5)),
        at_most("latency_s", 2, cap=10),
        at_most("output_tokens", relative_to_reference=1.5, cap=4000),
        at_most("toxicity", 1e-3),
    ],
)
def test_a_text_and_back(constraint):
    assert Constraint.parse(str(constraint)) == constraint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("latency < 2", "write it as"),
        ("2 <= latency", "write it as"),
        ("latency_s <= 20 cap 10", "must lie in the range"),
        ("safety >= 0.9 cap 1", "only <= takes a cap"),
        ("latency_s <= 2", "widen the range by within="),
        ("safety >= -0 * reference", "must be positive"),
        ("score >= 3 in [5, 1]", "range not empty"),
    ],
)
def test_wrong_texts_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        Constraint.parse(text)


@given(value=st.floats(0, 30), bound=st.floats(0.1, 9.9))
def test_grades_of_a_latency(value, bound):
    """The average grade is at least tau exactly where the average of min(y, cap) is at most y_0."""
    limit = at_most("latency_s", bound, cap=10)
    grade = limit.grade(value)
    assert 0 <= grade <= 1
    assert limit.outcome_of(grade) == pytest.approx(min(value, 10), abs=1e-12)
    if abs(value - bound) > 1e-9:
        assert (grade >= limit.threshold) == (min(value, 10) <= bound)


@given(value=st.floats(-2, 3))
def test_grades_of_a_score(value):
    limit = at_least("score", 0.5, within=(-1, 2))
    if not -1 <= value <= 2:
        with pytest.raises(InputError, match="must lie in"):
            limit.grade(value)
        return
    assert limit.grade(value) == pytest.approx((value + 1) / 3)
    assert limit.violation(value) == pytest.approx(max(0.5 - value, 0) / 0.5)


@given(quality=st.floats(0, 1))
def test_the_grade_of_quality_is_quality_to_the_bit(quality):
    limit = at_least("quality", 0.3)
    assert limit.grade(quality) == quality
    assert limit.threshold == 0.3


def test_the_papers_problem_has_one_constraint():
    assert PROBLEM.num_constraints == 1
    assert PROBLEM.epsilon is not None
    assert PROBLEM.s_0 == (1 - PROBLEM.epsilon) * PROBLEM.reference_quality
    observation = Observation((0, 0), 1, 0.1, 0.25)
    assert PROBLEM.grades(observation) == (0.25,)
    assert PROBLEM.violations((0.25,)) == (PROBLEM.s_0 - 0.25,)


def test_quality_by_a_constraint_or_by_epsilon():
    bound = PROBLEM.reference_quality * 0.9
    absolute = replace(PROBLEM, epsilon=None, constraints=(at_least("quality", bound),))
    assert absolute.s_0 == bound
    for changes, message in (
        ({"constraints": [at_least("quality", 0.1)]}, "either by epsilon or by a constraint"),
        ({"epsilon": None}, "either by epsilon or by a constraint"),
        ({"epsilon": None, "constraints": ["quality >= 1"]}, "at most .* the quality of theta_0"),
        ({"constraints": ["safety >= 0.5", "safety >= 0.6"]}, "one for each outcome"),
        ({"constraints": ["latency_s <= 1.5 * reference cap 9"]}, "give it in reference_outcomes"),
    ):
        with pytest.raises(InputError, match=message):
            replace(PROBLEM, **changes)


def test_relative_bounds():
    problem = replace(
        PROBLEM,
        constraints=["latency_s <= 1.5 * reference cap 9"],
        reference_outcomes={"latency_s": 2.0},
    )
    assert problem.limits[1].value == 3.0
    assert problem.reference_violations() == pytest.approx((2 / 9 - 3 / 9,))


def test_grades_of_an_observation():
    problem, evaluator = constrained_task(0)
    (observation,) = evaluator.evaluate([((1, 2), 3, 0)])
    grades = problem.grades(observation)
    assert observation.latency_s is not None
    latency = (4 - min(observation.latency_s, 4)) / 4
    assert observation.outcomes is not None
    assert grades == (observation.quality, latency, observation.outcomes["safety"])
    thresholds = (problem.s_0, (4 - 1.0) / 4, 0.7)
    expected = [tau - x for tau, x in zip(thresholds, grades, strict=True)]
    assert problem.violations(grades) == pytest.approx(expected)


def test_a_missing_outcome_is_named():
    problem, _ = constrained_task(0)
    message = "no 'latency_s' was observed, which the constraint latency_s <= 1 cap 4 needs"
    with pytest.raises(InputError, match=message):
        problem.grades(Observation((0, 0), 1, 0.1, 0.25))
    with pytest.raises(InputError, match=r"latency_s=-1.0 must lie in \[0, 4\]"):
        problem.grades(Observation((0, 0), 1, 0.1, 0.25, latency_s=-1.0, outcomes={"safety": 1}))
    assert math.isclose(problem.limits[2].threshold, 0.7)
