"""Quality, cost and savings of a result, against plain loops over its observations."""

import math
from dataclasses import replace
from decimal import ROUND_UP, Context, Inexact, localcontext

import numpy as np
import pytest
import torch
from results_for_tests import (
    answers_of,
    best_quality,
    half_accepted,
    half_certified,
    joint,
    random_search,
    task,
    tuned,
    with_constraint,
)

from scope_torch import make_scope_joint, run
from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.observation import History, Observation
from scope_torch.problem import SelectionProblem
from scope_torch.results.digits import percent, plain, quality, usd
from scope_torch.results.estimate import Estimate, Evidence
from scope_torch.results.held_out import HeldOut
from scope_torch.search.optimizer import Recommendation


def truth_of(result, theta):
    index = result.problem.space.index_of(theta)
    return [float(values[index]) for values in result.truth[:2]]


def certifies(xs, num_queries, threshold, delta):
    """The betting test, retyped: does a gambler against `mean < threshold` ever have 1 / delta?"""
    fractions = np.arange(1, 20) / 20
    capital, missing = np.ones(19), num_queries * threshold
    for t, x in enumerate(xs):
        most = missing / (num_queries - t)
        missing -= x
        if missing <= 1e-9:
            return True
        capital *= 1 + fractions * (x / most - 1)
        if capital.mean() >= 1 / delta:
            return True
    return False


def test_all_queries_answered_is_exact():
    result = joint()
    theta = result.recommendation.theta
    answers = answers_of(result, theta)
    cost, mean = (math.fsum(v) / 60 for v in zip(*answers.values(), strict=True))
    assert len(answers) == 60
    assert result.quality.is_exact
    assert result.cost_usd.is_exact
    assert result.quality.value == pytest.approx(mean)
    assert result.cost_usd.value == pytest.approx(cost)
    assert [cost, mean] == pytest.approx(truth_of(result, theta))
    saved = 1 - cost / result.problem.reference_cost_usd
    assert result.savings[:3] == pytest.approx((saved,) * 3)
    assert result.certified
    assert result.why == "certified on these 60 queries, all answered, if answers do not vary"


@pytest.mark.slow
@pytest.mark.parametrize(("num_queries", "epsilon"), [(100, 0.1), (400, 0.2), (400, 0.3)])
def test_the_ends_of_a_certified_quality_are_the_largest_thresholds(num_queries, epsilon):
    result = half_certified(num_queries, epsilon)
    problem, theta = result.problem, result.recommendation.theta
    assert result.recommendation.basis == "certified"
    assert len(answers_of(result, theta)) < problem.num_queries
    turns = [row for row in result.trace if row.event == "selected"]
    k = next(k for k, row in enumerate(turns, 1) if row.theta_cand == theta)
    assert turns[-1].theta_cand == theta
    share = 0.05 / (2.11 * (k + 1) * math.log(k + 1) ** 2)
    observations = list(result.history)[turns[-1].t :]
    assert {o.theta for o in observations} == {theta}
    xs = [o.quality for o in observations]
    low, high = result.quality.lower, result.quality.upper
    Q, tiny = problem.num_queries, 1e-6
    sure = sum(q for _, q in answers_of(result, theta).values()) / Q
    assert low >= problem.s_0
    if low > max(problem.s_0, sure) + tiny:
        assert certifies(xs, Q, low - tiny, share)
    assert not certifies(xs, Q, low + tiny, share)
    wrong = [1 - x for x in xs]
    assert certifies(wrong, Q, 1 - high - tiny, share)
    assert not certifies(wrong, Q, 1 - high + tiny, share)
    assert low <= result.quality.value <= high < 1
    if num_queries == 400:  # far tighter than what the open answers leave
        assert high - low < 0.5 * (1 - len(answers_of(result, theta)) / Q)
    assert low <= truth_of(result, theta)[1] <= high
    assert result.quality.basis == "certified with 95% confidence"
    assert result.why.startswith(f"certified with 95% confidence on these {Q} queries")
    assert not result.cost_usd.is_exact
    assert result.cost_usd.lower <= truth_of(result, theta)[0] <= result.cost_usd.upper


def test_savings_turn_the_interval_of_the_cost_around():
    result = half_certified()
    theirs = result.problem.reference_cost_usd
    low, high = result.cost_usd.lower, result.cost_usd.upper
    assert low < high
    assert result.savings.lower == pytest.approx(1 - high / theirs)
    assert result.savings.upper == pytest.approx(1 - low / theirs)


def test_bounds_of_the_model_are_said_to_have_no_probability():
    result = half_accepted()
    answers = answers_of(result, result.recommendation.theta)
    n = len(answers)
    assert n < 60
    assert result.recommendation.basis == "accepted (tuned)"
    assert (
        result.quality.basis == f"bounds of the model, no probability; {n} of 60 queries answered"
    )
    sure = sum(q for _, q in answers.values()) / 60
    assert sure <= result.quality.lower <= result.quality.value <= result.quality.upper
    assert result.quality.upper <= sure + (60 - n) / 60
    assert not result.certified
    assert "without a probability" in result.why


@pytest.mark.slow
@pytest.mark.parametrize("flips", [0.02])
@pytest.mark.usefixtures("as_if_drawn")
def test_answers_that_flip_are_never_exact(flips):
    result = joint(2.0, certificate_flips=flips, certificate="sequence", epsilon=0.2)
    theta = result.recommendation.theta
    assert theta != result.problem.theta_ref
    assert len(answers_of(result, theta)) == 60
    assert not result.quality.is_exact
    assert result.quality.lower >= result.problem.s_0
    assert result.quality.upper == 1.0


@pytest.mark.slow
def test_a_certificate_of_tomorrow_says_nothing_of_the_quality_on_these_queries():
    problem, evaluator, _ = task(400, 0.1)
    search = make_scope_joint(problem, base="nano", certificate="population", query_pool=200)
    result = run(problem, search, evaluator, 5.0)
    assert result.recommendation.basis == "certified"
    if not result.quality.is_exact:
        assert "no probability" in result.quality.basis
        assert result.why == "certified with 95% confidence on queries like these 400"


def test_a_kept_reference_is_as_it_was_told():
    result = joint(0.05)
    assert result.choice == result.problem.names(result.problem.theta_ref)
    assert result.quality == (*[result.problem.reference_quality] * 3, "the reference")
    assert result.cost_usd[:3] == (result.problem.reference_cost_usd,) * 3
    assert result.savings[:3] == (0.0, 0.0, 0.0)
    assert not result.certified
    assert result.why.startswith("not certified: nothing cheaper than the reference was")


def test_a_budget_of_one_observation():
    result = joint(1e-9)
    assert len(result.history) == 1
    assert result.savings.value == 0.0
    assert len(str(result).splitlines()) == 6


def test_the_best_quality_within_a_cost():
    result = best_quality()
    answers = answers_of(result, result.recommendation.theta)
    assert result.quality.value == pytest.approx(sum(q for _, q in answers.values()) / 80)
    assert result.certified
    assert result.cost_usd.value <= 0.005


def test_a_constraint_that_breaks_is_not_certified():
    result = with_constraint()
    assert result.front is None
    assert result.certified
    assert result.evidence.is_feasible(result.recommendation.theta)


def test_feasible_means_all_constraints_on_all_queries():
    problem = with_constraint().problem
    history = History()
    for theta, steps, number in [((4, 4), 2.0, 60), ((1, 1), 8.0, 60), ((3, 3), 2.0, 59)]:
        for q in range(number):
            history.append(Observation(theta, q, 0.01, 1.0, outcomes={"steps": steps}))
    evidence = Evidence(problem, history, (), {}, None)
    assert [evidence.is_feasible(t) for t in [(4, 4), (1, 1), (3, 3)]] == [True, False, False]


def test_a_search_without_a_model():
    result, problem = random_search(), task().problem
    theta = result.recommendation.theta
    assert result.quality.value == pytest.approx(truth_of(result, theta)[1])
    assert result.certified == (theta != problem.theta_ref)
    assert len(result.table()) == len({o.theta for o in result.history} | {problem.theta_ref})


def test_theta_out_that_was_never_observed():
    result = joint()
    seen = {o.theta for o in result.history} | {result.problem.theta_ref}
    theta = next(
        t
        for t in map(tuple, torch.cartesian_prod(*[torch.arange(6)] * 2).tolist())
        if t not in seen
    )
    out = replace(result.recommendation, theta=theta, basis="estimated")
    result = replace(result, recommendation=out, front=None)
    assert result.quality[:3] == (None, 0.0, 1.0)
    assert result.cost_usd[:3] == (None, 0.0, None)
    assert result.savings[:3] == (None, None, 1.0)
    assert not result.certified
    assert "its cost is not known" in str(result)
    assert result.table().filter(status="choice")["queries"].to_list() == [0]
    result.plot()
    assert len(result.disagreements()) == 0


def test_repeats_of_a_query_are_averaged():
    result = tuned()
    theta = result.recommendation.theta
    history = type(result.history)()
    for o in result.history:
        history.append(o)
    again = next(o for o in result.history if o.theta == theta)
    history.append(
        replace(again, replicate=1, quality=1 - again.quality, cost_usd=3 * again.cost_usd)
    )
    answers = answers_of(replace(result, history=history), theta)
    assert answers[again.query] == pytest.approx((2 * again.cost_usd, 0.5))
    assert replace(result, history=history, front=None).evidence.answers[theta].quality == (
        pytest.approx(sum(q for _, q in answers.values()) / len(answers))
    )


@pytest.fixture
def held_out():
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 2, (50, 2)).astype(float)
    mine = [Observation((1, 1), q, 0.01, s) for q, (s, _) in enumerate(pairs)]
    theirs = [Observation((0, 0), q, 0.1, s) for q, (_, s) in enumerate(pairs)]
    return HeldOut(50, mine, theirs), pairs


def test_held_out_queries_are_paired(held_out):
    found, pairs = held_out
    difference = (pairs[:, 0] - pairs[:, 1]).mean()
    assert found.quality == pytest.approx(pairs[:, 0].mean())
    assert found.reference_quality == pytest.approx(pairs[:, 1].mean())
    assert found.difference.value == pytest.approx(difference)
    assert -1 <= found.difference.lower < difference < found.difference.upper <= 1
    assert found.cost_usd == pytest.approx(50 * 0.11)
    told = found.to_json()
    assert told["cost_usd_per_query"] == pytest.approx(0.01)
    assert told["quality_difference_interval"] == list(found.difference[1:3])


@pytest.mark.slow
def test_the_interval_of_held_out_queries_covers_the_difference():
    missed, mean = 0, 0.7 - 0.8
    for seed in range(200):
        draws = np.random.default_rng(seed).random((2, 60)) < np.array([[0.7], [0.8]])
        sides = [
            [Observation((i,), q, 0.1, float(x)) for q, x in enumerate(row)]
            for i, row in enumerate(draws)
        ]
        low, high = HeldOut(60, *sides).difference[1:3]
        missed += not low <= mean <= high
    assert missed <= 10


def test_a_reference_that_is_the_choice_is_paid_for_once(held_out):
    found, _ = held_out
    same = replace(found, choice=found.reference)
    assert same.cost_usd == pytest.approx(5.0)
    assert same.difference[:3] == (0.0, 0.0, 0.0)


def test_the_bill_adds_up(held_out):
    result = joint()
    reference = [Observation(result.problem.theta_ref, q, 0.02, 1.0) for q in range(60)]
    probe = [Observation((4, 4), 0, 0.001, 0.0)]
    kept = list(result.history)[:7]
    more = {"reference": reference, "probe": probe, "held_out": held_out[0], "repeats": kept}
    bill = replace(result, **more, surplus_usd=0.03, num_failed=2).bill
    spend = sum(o.cost_usd for o in result.history)
    repeats = sum(o.cost_usd for o in kept)
    assert bill.search_usd == pytest.approx(spend - repeats)
    assert bill.repeats_usd == pytest.approx(repeats)
    assert bill.total_usd == pytest.approx(1.2 + 0.001 + spend - repeats + 0.03 + 5.5)
    assert bill.num_calls == 60 + 1 + len(result.history) - 7 + 100
    assert str(bill).splitlines()[-2].endswith(f"{bill.num_calls} calls, 2 failed")


@pytest.mark.parametrize("value", [0.0, 1.0, 0.5, 1e-12, 1 - 1e-12, 0.995, 0.99999])
def test_numbers_never_claim_all_or_nothing(value):
    assert (quality(value) == "1.00") == (value == 1)
    assert (quality(value) == "0.00") == (value == 0)
    assert (percent(value) == "100%") == (value == 1)
    assert (percent(value) == "0%") == (value == 0)


@pytest.mark.parametrize("value", np.random.default_rng(0).random(50).tolist())
def test_bounds_are_rounded_to_the_safe_side(value):
    assert float(plain(value, 3, "down")) <= value <= float(plain(value, 3, "up"))
    assert float(quality(value, "down")) <= value <= float(quality(value, "up"))
    assert float(plain(value)) == pytest.approx(value, rel=0.006)
    assert float(usd(value)) == pytest.approx(value, abs=0.006)


def test_an_interval_in_words():
    assert str(Estimate(None, None, None, "nothing observed")) == "unknown (nothing observed)"
    assert str(Estimate(0.5, 0.45678, None)) == "0.5 (at least 0.456)"
    assert str(Estimate(0.5, None, 0.61239)) == "0.5 (at most 0.613)"


def test_the_certified_choice_is_certified_among_the_points():
    result = half_certified()
    out, problem = result.recommendation, result.problem
    (row,) = [row for row in result.pareto().points if row.theta == out.theta]
    assert (row.basis, out.basis) == ("certified", "certified")
    assert row.quality_interval[0] >= problem.s_0
    assert row.quality_interval[0] <= row.quality <= row.quality_interval[1]


@pytest.mark.slow
def test_a_certificate_of_tomorrow_is_told_where_all_queries_are_answered():
    problem, evaluator, _ = task(400, 0.1)
    result = run(
        problem, make_scope_joint(problem, base="nano", certificate="population"), evaluator, 20.0
    )
    assert result.recommendation.basis == "certified"
    assert result.evidence.is_known(result.recommendation.theta)
    assert "certified with 95% confidence on queries like these 400" in result.why


def test_nothing_is_sure_that_its_own_answers_refute():
    """A bet was won by luck, at most delta of the time; then all answers say otherwise.

    The choice is withdrawn then; a result of before that was done may have it.
    """
    Q, wrong = 100, np.random.default_rng(1).permutation(100)[:26]
    quality = np.ones((2, Q))
    quality[0, wrong] = 0.0
    cost = np.array([[0.001] * Q, [0.01] * Q])
    llms = (("cheap", "ref"),)
    table = RecordedTable(("m",), llms, tuple(map(str, range(Q))), cost, quality)
    problem = SelectionProblem(
        name="t",
        modules=("m",),
        llms=llms,
        num_queries=Q,
        theta_ref=(1,),
        reference_quality=1.0,
        reference_cost_usd=0.01,
        epsilon=0.25,
        deployment_queries=1e6,
    )
    optimizer = make_scope_joint(problem, base="cheap", seed=31, device="cpu")
    result = run(problem, optimizer, TableEvaluator(table), 5.0)
    events = [row.event for row in result.trace]
    assert events.index("improved") < events.index("withdrawn")
    assert result.recommendation.theta == problem.theta_ref
    assert not result.certified
    assert not result.evidence.is_feasible((0,))
    result = replace(result, recommendation=Recommendation((0,), "certified", 0.001, None))
    assert "all answered" not in result.why
    assert "certified with 95% confidence" in result.why


def test_numbers_are_shown_alike_whatever_decimal_numbers_the_application_has():
    """A library of finance may set fewer digits, another rounding or a trap for all of a thread."""
    numbers = 1234567.0, 0.94777, 1e300

    def shown():
        rounded = [plain(value, 3, side) for value in numbers for side in ("nearest", "down", "up")]
        return [*rounded, *map(percent, numbers), *map(quality, numbers), *map(usd, numbers)]

    told = shown()
    with localcontext(Context(2, ROUND_UP, traps=[Inexact])):
        assert shown() == told
