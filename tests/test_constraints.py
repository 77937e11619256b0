"""Constraints: texts, grades, thresholds, and what a problem makes of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
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
        at_most("latency_s", 8, quantile=0.95),
        at_most("latency_s", 0.25, quantile=0.999),
        at_least("score", 3, quantile=0.05),
        at_least("loss", -2.5, quantile=0.5),
        at_most("cost_usd", 1e-3, quantile=0.29),
        at_most("Übergabe_s", 2, cap=10),
    ],
)
def test_a_text_and_back(constraint):
    assert Constraint.parse(str(constraint)) == constraint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("latency < 2", "write it as"),
        ("2 <= latency", "write it as"),
        ("latency (ms) <= 900", "has letters, digits and _ alone"),
        ("5xx_errors <= 2 cap 3", "a digit not first"),
        ("latency_s <= 20 cap 10", "must lie in the range"),
        ("safety >= 0.9 cap 1", "only <= takes a cap"),
        ("latency_s <= 2", "widen the range by within="),
        ("safety >= -0 * reference", "must be positive"),
        ("score >= 3 in [5, 1]", "range not empty"),
        ("p95(latency_s) <= 1.5 * reference", "without \\* reference, cap or range"),
        ("p95(latency_s) <= 8 cap 60", "without \\* reference, cap or range"),
        ("p95(latency_s) <= 8 cap 0", "without \\* reference, cap or range"),
        ("p5(score) >= 3 in [1, 5]", r"as p95\(score\) >= 8"),
        ("p0(latency_s) <= 8", "between p0 and p100"),
        ("p100(latency_s) <= 8", "between p0 and p100"),
        ("p120(latency_s) <= 8", "between p0 and p100"),
        ("p95 latency_s <= 8", r"write it as .*p95\(latency_s\) <= 8"),
        ("p95(latency_s <= 8", "write it as"),
        ("latency_s) <= 8", "write it as"),
        ("p(latency_s) <= 8", "write it as"),
        ("p95(latency_s) <= 1e999", "must be numbers"),
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


@given(percent=st.integers(1, 99_999), bound=st.floats(-9, 9), text=st.sampled_from([">=", "<="]))
def test_any_quantile_and_back(percent, bound, text):
    text = f"p{percent / 1000:g}(y) {text} {bound:.12g}"
    limit = Constraint.parse(text)
    assert str(limit) == limit.name == text
    assert Constraint.parse(str(limit)) == limit


SECONDS = st.lists(st.integers(0, 12).map(float), min_size=1, max_size=60)


@pytest.mark.slow
@given(seconds=SECONDS, percent=st.integers(1, 99))
def test_a_quantile_is_bounded_by_the_share_of_runs_within(seconds, percent):
    """Both ways, and at equality: 5 of 100 runs may be too slow, at p95."""
    ordered, n = sorted(seconds), len(seconds)
    at_p = ordered[math.ceil(n * percent / 100) - 1]  # so many per cent of the runs take no longer
    upper = at_most("s", 8, quantile=percent / 100)
    holds = math.fsum(map(upper.grade, seconds)) / n >= upper.threshold
    assert holds == (at_p <= 8)
    share = math.fsum(map(upper.counted, seconds)) / n
    assert holds == (upper.violation(share) == 0)
    lower = at_least("s", 8, quantile=1 - percent / 100)
    holds = math.fsum(map(lower.grade, seconds)) / n >= lower.threshold
    too_low = sum(one < 8 for one in seconds)
    assert holds == (100 * too_low <= (100 - percent) * n)


def test_arrays_count_as_single_numbers_do():
    seconds = [0.0, 4.0, 8.0, 8.5, math.nan]
    limits = [at_most("s", 8, quantile=0.9), at_least("s", 8, quantile=0.9), at_most("s", 2, cap=5)]
    for limit in limits:
        for made in (np.array(seconds), torch.tensor(seconds, dtype=torch.float64)):
            counted = limit.counted_all(made).tolist()
            assert counted[:-1] == [limit.counted(one) for one in seconds[:-1]]
            assert math.isnan(counted[-1])


def test_what_counts_of_a_run():
    slow = Observation((0, 0), 1, 0.1, 0.25, latency_s=9.0, outcomes={"steps": 3.0})
    counted = {
        "p90(latency_s) <= 8": 0.0,
        "p90(latency_s) <= 9": 1.0,
        "p10(latency_s) >= 9": 1.0,
        "p90(steps) <= 2": 0.0,
        "p90(cost_usd) <= 0.1": 1.0,
        "p10(quality) >= 0.5": 0.0,
        "latency_s <= 2 cap 4": 4.0,
        "cost_usd <= 0.2": 0.1,
    }
    assert {text: Constraint.parse(text).of(slow) for text in counted} == counted
    failed = Observation((0, 0), 1, 0.1, 0.0, failed="app")
    assert Constraint.parse("p90(latency_s) <= 8").of(failed) == 0.0
    with pytest.raises(InputError, match="no 'steps' was observed"):
        Constraint.parse("p90(steps) <= 2").of(Observation((0, 0), 1, 0.1, 0.25))


def test_a_mean_and_quantiles_of_one_outcome_stand_side_by_side():
    texts = ["latency_s <= 2 cap 9", "p50(latency_s) <= 2", "p95(latency_s) <= 8"]
    shares = {"latency_s": 1.0, "p95(latency_s) <= 8": 0.9}
    problem = replace(PROBLEM, constraints=texts, reference_outcomes=shares)
    assert [str(one) for one in problem.others] == texts
    assert [one.name for one in problem.others] == ["latency_s", *texts[1:]]
    assert problem.reference_violations() == pytest.approx((-1 / 9, 0.0, 0.05))
    with pytest.raises(InputError, match="one for each outcome"):
        replace(problem, constraints=[*texts, "p50(latency_s) <= 2"])
    with pytest.raises(InputError, match=r"p95\(latency_s\) <= 8=4.0 must lie in \[0, 1\]"):
        replace(problem, reference_outcomes={texts[2]: 4.0}).reference_violations()
    # The average cost is minimised, and its tail may be bounded; the average quality likewise.
    tails = replace(PROBLEM, constraints=["p95(cost_usd) <= 0.1", "p10(quality) >= 0.5"])
    assert tails.grades(Observation((0, 0), 1, 0.2, 0.75)) == (0.75, 0.0, 1.0)
    best = replace(
        tails, objective="quality", epsilon=None, constraints=["cost_usd <= 1", *tails.constraints]
    )
    assert best.limits[0].name == "cost_usd"


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


def test_a_cap_counts_for_the_reference_too():
    """On one query of eight it costs 0.7 USD, of which 0.02 count."""
    usd = [0.7] + [0.002] * 7
    known = {
        "reference_cost_usd": sum(usd) / 8,
        "reference_answers": [(cost, PROBLEM.reference_quality) for cost in usd],
        "epsilon": None,
        "objective": "quality",
    }
    twice = replace(PROBLEM, **known, constraints=["cost_usd <= 2 * reference cap 0.02"])
    assert twice.limits[0].value == pytest.approx(2 * (0.02 + 7 * 0.002) / 8, rel=1e-12)
    keeps = replace(twice, constraints=["cost_usd <= 0.005 cap 0.02"])
    assert keeps.first_u_out == keeps.reference_loss
    assert replace(twice, constraints=["cost_usd <= 0.004 cap 0.02"]).first_u_out == 1
    assert keeps.reference_cost_usd > 0.08  # which is still what it costs
    # Of an average alone no more than the cap counts.
    one = replace(twice, reference_answers=None, constraints=["cost_usd <= 0.01 cap 0.02"])
    assert one.reference_averages["cost_usd"] == 0.02


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
    with pytest.raises(
        InputError, match=r"theta=\[0, 0\], query=1: latency_s=-1.0 must lie in \[0, 4\]"
    ):
        problem.grades(Observation((0, 0), 1, 0.1, 0.25, latency_s=-1.0, outcomes={"safety": 1}))
    assert math.isclose(problem.limits[2].threshold, 0.7)


def test_what_rounding_puts_outside_the_range_counts_as_its_end():
    """As a quality of 1.0000002: a search would else end after it was paid for."""
    safe, score = at_least("safety", 0.9), at_most("score", 3, within=(1, 5))
    assert safe.grade(float(np.float32(1.0000002))) == 1.0
    assert safe.grade(-1e-9) == 0.0
    assert score.counted(5 + 1e-6) == 5.0
    for limit, outcome in ((safe, 1.00001), (safe, -0.01), (safe, math.nan), (score, 5.1)):
        with pytest.raises(InputError, match="must lie in"):
            limit.grade(outcome)


def test_an_average_at_the_bound_holds_but_for_rounding():
    """The mean of 0.1, 0.2 and 0.3 is 0.2, but not in float64; certificates allow for it."""
    limit = at_most("latency_s", 0.2, cap=1)
    average = float(np.mean([0.1, 0.2, 0.3]))
    assert average > limit.value
    assert limit.holds(average)
    assert limit.violation(average) == 0.0
    assert not limit.holds(0.2001)
    assert not limit.holds(math.nan)
    assert math.isnan(limit.violation(math.nan))
    assert limit.holds(torch.tensor([average, 0.2001])).tolist() == [True, False]
    least = at_least("score", 0.3)
    assert least.holds(0.1 * 3 - 1e-16)
    assert not least.holds(0.2999)


def test_a_reference_at_its_bounds_keeps_them():
    """It would else be told to break them, and a choice of lower quality could take its place."""
    limits = ["cost_usd <= 0.02 cap 0.2", "latency_s <= 0.02 cap 1"]
    best = replace(
        PROBLEM,
        epsilon=None,
        objective="quality",
        constraints=limits,
        reference_cost_usd=0.02,
        reference_answers=None,
        reference_outcomes={"latency_s": 0.020000000000000004},
    )
    dearer = replace(best, reference_cost_usd=0.020000000000000004)
    assert dearer.first_u_out == best.first_u_out == best.reference_loss
    assert max(dearer.reference_violations()) <= 0
    assert replace(best, reference_cost_usd=0.0201).first_u_out == 1.0
