"""Every method asks for, and returns, nothing but what may be chosen."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from scope_torch.baselines.abacus import Abacus
from scope_torch.baselines.cei import CEI
from scope_torch.baselines.config_bo import CONFIG
from scope_torch.baselines.llambo import make_llambo
from scope_torch.baselines.llmselector import LLMSelector
from scope_torch.baselines.optuna_gp import OptunaGP
from scope_torch.baselines.random_search import RandomSearch
from scope_torch.baselines.safeopt import SafeOpt
from scope_torch.errors import InputError
from scope_torch.front_method import make_scope_front
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.results.metrics import is_feasible, optimal_cost, true_values
from scope_torch.runs.runner import run
from scope_torch.tasks.synthetic import synthetic_task

TASK = synthetic_task(num_modules=3, num_queries=20)


def differ(llms):
    """Planner and critic must differ; and one vendor may not critise."""
    return llms["module_1"] != llms["module_2"] and llms["module_3"] != "mini"


PROBLEM = replace(
    TASK.problem, theta_ref=TASK.problem.codes(["frontier", "large", "frontier"]), allowed=differ,
    reference_answers=None,
)  # fmt: skip
COST, QUALITY = TASK.evaluator.truth()  # pyright: ignore
AT = PROBLEM.space.index_of(PROBLEM.theta_ref)
PROBLEM = replace(
    PROBLEM, reference_cost_usd=float(COST[AT]), reference_quality=float(QUALITY[AT]), epsilon=0.2
)
LISTED = replace(
    PROBLEM,
    allowed=tuple(
        map(tuple, PROBLEM.space.unrank(PROBLEM.allowed_mask().nonzero()[:, 0]).tolist())
    ),  # pyright: ignore
)
SEARCHES = {
    "scope": partial(make_scope, base="nano"),
    "scope-tensor": partial(make_scope, base="nano", surrogate="tensor"),
    "scope-random": partial(make_scope, initial_pool="random"),
    "scope-coarse": partial(make_scope, initial_pool="none", prune=False),
    "scope-branched": partial(make_scope, base="nano", space_search="branch_and_bound"),
    "joint": partial(make_scope_joint, base="nano"),
    "joint-tensor": partial(make_scope_joint, base="nano", surrogate="tensor"),
    "joint-branched": partial(make_scope_joint, base="nano", space_search="branch_and_bound"),
    "front": partial(make_scope_front, base="nano"),
    "random": RandomSearch,
    "cei": CEI,
    "cei-once": partial(CEI, mask_repeats=True, stop_below=1e-12, gp={"n_init": 3}),
    "config": CONFIG,
    "safeopt": SafeOpt,
    "safeopt-lipschitz": partial(SafeOpt, lipschitz=0.02),
    "optuna_gp": OptunaGP,
    "llambo": make_llambo,
    "llmselector": LLMSelector,
    "abacus": Abacus,
}


CASES = [(name, PROBLEM) for name in SEARCHES]
CASES += [(name, LISTED) for name in ("scope-branched", "joint-branched", "abacus", "joint")]


LONG = ("scope-branched", "joint-branched", "front", "scope-coarse", "joint-tensor")


@pytest.mark.parametrize(
    ("name", "problem"),
    [pytest.param(*case, marks=pytest.mark.slow if case[0] in LONG else ()) for case in CASES],
)
def test_only_what_may_be_chosen(name, problem):
    if name == "optuna_gp":
        pytest.importorskip("optuna")
    search = SEARCHES[name](problem, seed=1)
    result = run(problem, search, TASK.evaluator, 20 * 20 * problem.reference_cost_usd / 10)
    assert len(result.history) > 40
    assert all(problem.is_allowed(one.theta) for one in result.history)
    assert all(problem.is_allowed(row.theta_out) for row in result.trace)
    assert problem.is_allowed(result.recommendation.theta)
    front = result.pareto()
    assert all(problem.is_allowed(row.theta) for row in (*front.by_loss, *front.points))


@pytest.mark.parametrize(
    "name",
    [
        "scope",
        "joint",
        "random",
        pytest.param("scope-branched", marks=pytest.mark.slow),
        pytest.param("joint-branched", marks=pytest.mark.slow),
    ],
)
def test_the_best_of_what_may_be_chosen_is_found(name):
    """With a budget that is more than enough, as without a rule."""
    truth = COST, QUALITY
    budget = float(COST.sum()) * 20 * 3
    for problem in (replace(PROBLEM, allowed=None), PROBLEM):
        search = SEARCHES[name](problem, seed=1)
        result = run(problem, search, TASK.evaluator, budget)
        values = true_values(problem, result.recommendation.theta, truth)
        assert is_feasible(problem, values)
        assert values[0] <= 1.02 * optimal_cost(problem, truth)
    assert optimal_cost(PROBLEM, truth) > optimal_cost(replace(PROBLEM, allowed=None), truth)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scope", "joint", "config", "safeopt", "cei"])
def test_a_rule_that_allows_everything_changes_nothing(name):
    budget = 10 * 20 * PROBLEM.reference_cost_usd / 10
    free = replace(PROBLEM, allowed=None)
    told = replace(PROBLEM, allowed=lambda _: True)
    one, other = (
        run(problem, SEARCHES[name](problem, seed=2), TASK.evaluator, budget)
        for problem in (free, told)
    )
    assert list(one.history) == list(other.history)
    assert one.recommendation == other.recommendation


def test_another_rule_does_not_resume_a_run(tmp_path):
    def search(allowed):
        problem = replace(PROBLEM, allowed=allowed)
        return run(problem, RandomSearch(problem, seed=0), TASK.evaluator, 0.01, run_dir=tmp_path)

    search(differ)
    search(differ)
    with pytest.raises(InputError, match="allowed"):
        search(lambda llms: llms["module_1"] != llms["module_2"])


@pytest.mark.slow
def test_the_choice_of_a_front_is_masked():
    """Were the cheapest by the means forbidden, a table would offer it."""
    search = make_scope_joint(PROBLEM, base="nano", seed=0)
    result = run(PROBLEM, search, TASK.evaluator, 4.0)
    found = search.estimates()
    assert found is not None
    assert found.mean_c is not None
    assert not PROBLEM.is_allowed(
        PROBLEM.space.theta_at(int(torch.as_tensor(found.mean_c).argmin()))
    )
    assert all(PROBLEM.is_allowed(row.theta) for row in result.pareto().by_loss)
