"""Intervals where answers vary from call to call, against plain loops over the observations."""

import math
from dataclasses import replace

import numpy as np
import pytest
from constrained import constrained_task

from scope_torch import at_most, make_scope_joint, run
from scope_torch.observation import Observation
from scope_torch.results.estimate import Estimate
from scope_torch.results.summary import bounds_of_theta_out
from scope_torch.search.averages import AllAverages
from scope_torch.search.optimizer import Recommendation

_DRAWN = 0.3  # what a cost varies by from call to call, as a logarithm


class VaryingAnswers:
    """An evaluator's answers, a third of the grades drawn by chance, and costs that vary."""

    concurrency = 1

    def __init__(self, evaluator, seed):
        self._evaluator, self._rng = evaluator, np.random.default_rng([seed, 3])

    def evaluate(self, requests):
        for o in self._evaluator.evaluate(requests):
            usd = o.cost_usd * float(self._rng.lognormal(-(_DRAWN**2) / 2, _DRAWN))
            grade = float(self._rng.random() < 0.5) if self._rng.random() < 1 / 3 else o.quality
            yield replace(o, cost_usd=usd, quality=grade, outcomes=None)

    def fingerprint(self):
        return f"{self._evaluator.fingerprint()} varying"


def searched(objective, seed):
    problem, evaluator = constrained_task(seed, num_queries=30)
    cost, quality = (of.mean(-1) for of in (evaluator.cost, evaluator.quality))
    limits = (at_most("cost_usd", float(np.quantile(cost, 0.8)), cap=float(evaluator.cost.max())),)
    of_cost = {"constraints": (), "reference_outcomes": {}, "epsilon": 0.5}
    of_quality = {**of_cost, "epsilon": None, "objective": "quality", "constraints": limits}
    problem = replace(problem, **(of_cost if objective == "cost" else of_quality))
    base = list(problem.names(problem.theta_ref).values())
    search = make_scope_joint(problem, base=base, seed=0, certificate_flips=0.2)
    result = run(
        problem, search, VaryingAnswers(evaluator, seed), 80 * float(evaluator.cost.mean()) * 30
    )
    expected = 2 / 3 * quality + 1 / 6
    out = result.recommendation.theta
    assert result.certified
    return result, float(cost[out]), float(expected[out])


def two_errors(result, name):
    """Two standard errors of theta_out's average, by all answers that were asked for again."""
    of_pair = {}
    for o in result.history:
        of_pair.setdefault((o.theta, o.query), []).append(getattr(o, name))
    of_theta = {}
    for (theta, _), values in of_pair.items():
        of_theta.setdefault(theta, []).append(np.mean(values))
    squares, number = (0.25, 1) if name == "quality" else (0.0, 0)
    for (theta, _), values in of_pair.items():
        unit = 1.0 if name == "quality" else np.mean(of_theta[theta])
        squares += np.sum((np.array(values) - np.mean(values)) ** 2) / unit**2
        number += len(values) - 1
    out = result.recommendation.theta
    counts = [len(values) for (theta, _), values in of_pair.items() if theta == out]
    unit = 1.0 if name == "quality" else np.mean(of_theta[out])
    return 2 * math.sqrt(squares / number * sum(1 / n for n in counts)) / 30 * unit


def assert_wide_enough(result, name):
    value, lower, upper, _ = getattr(result, name)
    error = 0.99 * two_errors(result, name)
    assert lower <= value - error
    assert upper >= value + error


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2])
def test_bounds_of_the_cost_know_that_costs_vary(seed):
    result, true, _ = searched("cost", seed)
    summary, (_, lower, upper, _) = result.summary(), result.cost_usd
    assert_wide_enough(result, "cost_usd")
    assert lower <= true <= upper <= summary["u_out_usd"]
    assert summary["gap_usd"] - result.recommendation.gap_usd == pytest.approx(
        summary["u_out_usd"] - result.recommendation.u_out_usd
    )
    row = next(one for one in result.pareto().points if one.theta == result.recommendation.theta)
    assert row.cost_interval == pytest.approx((lower, upper))
    assert row.quality_interval is not None
    assert row.quality_interval[1] >= row.quality + 0.5 * two_errors(result, "quality")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_bounds_of_the_best_quality_know_that_grades_vary(seed):
    result, _, true = searched("quality", seed)
    summary, (_, lower, upper, _) = result.summary(), result.quality
    assert_wide_enough(result, "quality")
    assert lower <= true <= upper
    assert summary["least_quality"] == pytest.approx(lower, abs=1e-9)
    out = result.recommendation
    assert out.gap_usd is not None
    assert out.u_out_usd is not None
    worse = 1 - summary["least_quality"] - out.u_out_usd
    assert worse > 0
    assert summary["regret"] == pytest.approx(out.gap_usd + worse)


@pytest.mark.slow
def test_a_reference_that_varies_widens_the_saving():
    result, _, _ = searched("cost", 0)
    problem = result.problem
    answers = [
        Observation(problem.theta_ref, q, usd, quality)
        for q, (usd, quality) in enumerate(problem.reference_answers or ())
    ]
    measured = replace(result, reference=answers)
    of_cost, _ = result.evidence.answers.deviations(result.report)
    error = 2 * of_cost / math.sqrt(30)
    (_, lower, upper, _), usd = result.cost_usd, problem.reference_cost_usd
    assert measured.savings.lower == pytest.approx(1 - upper / usd / (1 - error))
    assert measured.savings.upper == pytest.approx(1 - lower / usd / (1 + error))
    kept = replace(measured, recommendation=Recommendation(problem.theta_ref, "reference"))
    assert kept.savings.is_exact
    assert kept.savings.value == 0


def test_nothing_is_added_where_answers_do_not_vary():
    answers = AllAverages(num_queries=4)
    for replicate in range(2):
        answers.add(Observation((0,), 1, 0.1 + replicate, 0.5, replicate))
    assert answers.luck((0,), answers.deviations({})) == (0.0, 0.0)
    assert answers.luck((0,), answers.deviations({"flips": 0.1}))[0] > 0


def test_of_costs_that_nobody_asked_for_again_nothing_is_known():
    answers = AllAverages(num_queries=4)
    answers.add(Observation((0,), 1, 0.1, 0.5))
    answers.add(Observation((1,), 1, 0.0, 0.5))
    of_cost, of_quality = answers.luck((0,), answers.deviations({"flips": 0.1}))
    assert of_cost == math.inf
    assert of_quality == pytest.approx(2 * 0.5 / 4)
    assert answers.luck((1,), answers.deviations({"flips": 0.1}))[0] == 0  # free calls stay free
    assert answers.luck((2,), answers.deviations({"flips": 0.1})) == (
        0.0,
        0.0,
    )  # its model knows of no answer


def test_bounds_are_never_below_what_the_answers_say():
    problem, _ = constrained_task(0)
    cost = Estimate(0.5, 0.4, 0.6, "bounds of the model")
    out = Recommendation((0, 0), "certified", 0.3, 0.1)
    told = bounds_of_theta_out(problem, out, cost, Estimate(0.9))
    assert told == pytest.approx({"u_out_usd": 0.6, "gap_usd": 0.4})
    told = bounds_of_theta_out(problem, replace(out, u_out_usd=0.7), cost, Estimate(0.9))
    assert told == pytest.approx({"u_out_usd": 0.7, "gap_usd": 0.1})
