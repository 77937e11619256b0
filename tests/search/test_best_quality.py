"""objective=quality: the best quality that a bound on the cost of a query allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from constrained import constrained_task

from scope_torch.baselines.random_search import RandomSearch
from scope_torch.constraints import at_most
from scope_torch.errors import InputError
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.runs.runner import run


def quality_task(seed, share=0.5, others=()):
    """The problem to find the best quality at a share of the configurations' median cost."""
    problem, evaluator = constrained_task(seed, num_queries=20)
    cost = evaluator.cost.mean(-1)
    bound, cap = float(np.quantile(cost, share)), float(evaluator.cost.max())
    constraints = (at_most("cost_usd", bound, cap=cap), *others)
    problem = replace(problem, objective="quality", epsilon=None, constraints=constraints)
    return problem, evaluator


def searches(problem):
    base = list(problem.names(problem.theta_ref).values())
    yield make_scope(problem, base=base, seed=0)
    yield make_scope_joint(problem, base=base, seed=0)
    yield make_scope_joint(problem, base=base, seed=0, certificate="bounds")


@pytest.mark.slow
@pytest.mark.parametrize(("which", "latency"), [(0, False), (0, True), (1, True), (2, True)])
def test_it_ends_at_the_best_within_the_bounds(which, latency):
    found = 0
    for seed in range(4):
        others = (at_most("latency_s", 1.2, cap=4),) if latency else ()
        problem, evaluator = quality_task(seed, 0.6, others)
        method = list(searches(problem))[which]
        result = run(problem, method, evaluator, budget_usd=300 * float(evaluator.cost.mean()))
        cost, quality = evaluator.cost.mean(-1).ravel(), evaluator.quality.mean(-1).ravel()
        ok = cost <= problem.limits[0].value
        if latency:
            ok &= np.minimum(evaluator.latency, 4).mean(-1).ravel() <= 1.2
        out = problem.space.index_of(result.recommendation.theta)
        summary = result.summary()
        assert summary["objective"] == "quality"
        assert summary["feasible"] == ok[out]
        if result.recommendation.basis != "reference":
            assert ok[out]
            assert summary["least_quality"] <= quality[out] + 1e-6
        if ok.any():
            assert summary["optimal_quality"] == pytest.approx(quality[ok].max())
            found += quality[out] == quality[ok].max()
    assert found >= 3


@pytest.mark.slow
def test_the_regret_is_bounded():
    """Quality lost at the end is at most the reported regret, where bounds hold."""
    for seed in range(4):
        problem, evaluator = quality_task(seed)
        method = list(searches(problem))[1]
        result = run(problem, method, evaluator, budget_usd=300 * float(evaluator.cost.mean()))
        summary = result.summary()
        lost = summary["optimal_quality"] - summary["true_quality"]
        assert -1e-12 <= lost <= summary["regret"] + 1e-6
        curve = result.curve
        assert curve is not None
        end = float(curve.best_feasible_cost(1e9))
        assert end == pytest.approx(1 - summary["true_quality"])


def test_what_does_not_fit_is_refused():
    problem, _ = quality_task(0)
    with pytest.raises(InputError, match="random_search minimises the cost"):
        RandomSearch(problem, seed=0)
    for changes, message in (
        ({"epsilon": 0.1}, r"leave out epsilon=0\.1 \(null\)"),
        ({"constraints": ()}, "bound the cost of a query"),
        ({"objective": "front"}, "must be cost or quality"),
        ({"objective": "cost", "epsilon": 0.1}, "set objective=quality to bound it"),
        ({"constraints": (*problem.constraints, "quality >= 0.1")}, "the quality is maximised"),
    ):
        with pytest.raises(InputError, match=message):
            replace(problem, **changes)


@pytest.mark.slow
def test_equal_qualities_end_the_search():
    """Two configurations are equally good: the second is not asked again until the budget ends."""
    problem, evaluator = quality_task(1, share=1.0)
    evaluator.quality[:] = 0.0
    evaluator.quality[..., :12] = 1.0  # all equal
    problem = replace(
        problem, reference_quality=0.6, reference_answers=None, constraints=problem.constraints
    )
    for method in searches(problem):
        result = run(problem, method, evaluator, budget_usd=1e3 * float(evaluator.cost.sum()))
        assert result.stop_reason.startswith("no other configuration can improve")
        assert result.history.spend_usd < 2 * float(evaluator.cost.sum())
