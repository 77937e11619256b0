"""Whole searches with scope_joint by branch and bound: those of the grid, and larger ones."""

import math

import numpy as np
import pytest
from long_runs import among_others
from test_branched_search import large_task

from scope_torch.errors import InputError
from scope_torch.evaluators import HasTruth
from scope_torch.methods import make_scope_joint
from scope_torch.model.cost_scale import CostScale
from scope_torch.model.direct_sums import MAX_ENUMERATED
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.runs.runner import run
from scope_torch.testing.problems import KnownTask

THEORY = {"mode": "theory", "B_c": 0.5, "B_g": 0.5, "delta": 0.1}
CASES = [
    {},
    {"gap_tolerance": None},
    {"relative_cost": False},
    {"bounds": {"widenings": 2}, "batch_size": 3},
    {"certificate_flips": 0.02, "bounds": {"delta": 0.3}},
    {"bounds": THEORY, "rho": 0.5, "relative_cost": False},
    {"initial_pool": "random", "rho": 0.3, "amplitude": 0.5},
    {"surrogate": "tensor"},
]


def search(task, seed, budget_usd, **settings):
    base = [llms[0] for llms in task.problem.llms]
    # Rounds of verification come by theta_cand alone where Theta is not enumerated.
    optimizer = make_scope_joint(task.problem, base=base, seed=seed, verify=0, **settings)
    return run(task.problem, optimizer, task.evaluator(), budget_usd)


@pytest.mark.usefixtures("as_if_drawn")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.slow
def test_the_search_of_the_grid(case, seed):
    sizes = (3, 3, 3) if case % 2 else (2, 3, 2, 3)
    task = KnownTask.random(seed=10 * case + seed, sizes=sizes, num_queries=8, graded=seed == 0)
    budget = 0.12 * task.mean_cost.sum() * task.problem.num_queries
    grid, branched = (
        search(task, seed, budget, space_search=how, **CASES[case])
        for how in ("grid", "branch_and_bound")
    )
    assert list(grid.history) == list(branched.history)
    assert grid.recommendation.theta == branched.recommendation.theta
    assert grid.stop_reason == branched.stop_reason
    assert any(row.event == "selected" for row in grid.trace)
    for one, other in zip(grid.trace, branched.trace, strict=True):
        assert (one.event, one.theta_cand) == (other.event, other.theta_cand)
        for name in ("u_out_usd", "gap_usd"):
            values = getattr(one, name) or 0.0, getattr(other, name) or 0.0
            assert math.isclose(*values, rel_tol=1e-9, abs_tol=1e-12)
    selection = branched.report["selection"]
    assert selection["exact"]
    assert selection["gap_usd"] == selection.get("promise_gap", 0) == 0  # if any was chosen
    assert selection["searches"] > 0
    assert branched.settings["optimizer"]["space_search"] == "branch_and_bound"
    assert branched.settings["optimizer"]["max_nodes"] == 20_000
    assert not {"space_search", "max_nodes"} & set(grid.settings["optimizer"])  # as before


def search_large(sizes, num_queries, budget_usd, run_dir, **settings):
    problem, evaluator = large_task(*sizes, num_queries)
    assert problem.space.size > MAX_ENUMERATED
    optimizer = make_scope_joint(problem, base="llm0", seed=1, **settings)
    return run(problem, optimizer, evaluator, budget_usd, run_dir=run_dir)


def no_grid(scale):
    raise AssertionError("a number for every configuration")


@pytest.mark.slow
def test_a_space_that_cannot_be_enumerated(tmp_path, monkeypatch):
    """Fits and refits included; a limit on nodes is obeyed, and a resumed search pays nothing."""
    monkeypatch.setattr(CostScale, "everywhere", no_grid)
    first, again = (
        search_large((7, 16), 6, 0.55, tmp_path / name, max_nodes=30) for name in ("0", "1")
    )
    assert list(first.history) == list(again.history)
    assert first.trace == again.trace
    selection = first.report["selection"]
    assert selection["searches"] > 10
    assert selection["most_nodes"] <= 30
    assert selection["exact"] == (selection["incomplete_searches"] == 0)
    assert sum(row.event == "selected" for row in first.trace) > 3
    resumed = search_large((7, 16), 6, 0.55, tmp_path / "0", max_nodes=30)
    assert resumed.replayed == len(first.history)
    assert resumed.trace == first.trace


@pytest.mark.slow
@pytest.mark.parametrize("num_modules", [7, among_others(8)])
def test_a_whole_run_over_3e9_configurations_and_more(num_modules, tmp_path):
    result = search_large((num_modules, 23), 20, 2.5, tmp_path, max_nodes=2000)
    assert result.report["selection"]["space_search"] == "branch_and_bound"
    assert result.recommendation.basis == "certified"
    assert result.recommendation.u_out_usd < result.problem.reference_cost_usd


def test_a_space_too_large_for_the_grid_is_refused_by_it():
    problem, _ = large_task(7, 16, 4)
    with pytest.raises(InputError, match="more than the 2e"):
        make_scope_joint(problem, base="llm0", space_search="grid")


def test_the_truth_of_a_large_space_is_not_asked_for():
    problem, evaluator = large_task(7, 16, 4)

    class KnowsTooMuch:
        concurrency, fingerprint, evaluate = 1, evaluator.fingerprint, evaluator.evaluate

        def truth(self):
            raise AssertionError("a number for every configuration")

    known = KnowsTooMuch()
    assert isinstance(known, HasTruth)
    optimizer = make_scope_joint(problem, base="llm0", seed=1, max_nodes=100)
    result = run(problem, optimizer, known, 0.3)
    assert result.truth is None
    assert len(result.history) > 0


@pytest.mark.parametrize("seed", range(20))
def test_llms_that_were_never_observed_may_differ_in_cost(seed):
    """What an LLM costs in one module tells what it may cost in another."""
    rng = np.random.default_rng(seed)
    llms = tuple("abcd")
    problem = SelectionProblem("x", ("m", "n"), (llms, llms), 20, (0, 0), 0.5, 0.02, epsilon=0.5)
    both = [
        make_scope_joint(problem, base="a", seed=0, space_search=how)
        for how in ("grid", "branch_and_bound")
    ]
    for _ in range(30):
        theta = int(rng.integers(4)), int(rng.integers(2))  # c and d are not seen in n
        usd = 10.0 ** (-2 - theta[0] - theta[1]) * rng.lognormal(0, 0.3)
        told = Observation(theta, int(rng.integers(20)), usd, float(rng.random() < 0.7))
        for search in both:
            search.belief.learn(told)
    minima = []
    for search in both:
        search.belief.posterior.update()
        search.belief.fit()
        minima.append(search.belief.posterior.lower_bounds(search.belief.beta(), 0.02, None))
    grid, branched = minima
    assert branched.is_exact
    assert branched.least_c == pytest.approx(grid.least_c, rel=1e-7)
    assert branched.most_promising(0.0, 1e-8, seed) == grid.most_promising(0.0, 1e-8, seed)
