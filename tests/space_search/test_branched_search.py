"""Whole searches by branch and bound: those of the grid, and in spaces that no grid can hold."""

import json
import math
import random

import pytest
from test_scope import CASES, label, run_library

from scope_torch import methods
from scope_torch.bounds.information_gain import InformationGain
from scope_torch.errors import InputError
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.methods import make_scope
from scope_torch.model.direct_sums import MAX_ENUMERATED
from scope_torch.model.kernels import HammingMatern52Kernel
from scope_torch.problem import SelectionProblem
from scope_torch.runs.runner import run
from scope_torch.space import ConfigSpace
from scope_torch.space_search import branched as branched_posterior


def by(case, monkeypatch, **how):
    """The run of a case with another search of Theta."""
    real = branched_posterior.make_posterior
    monkeypatch.setattr(methods, "make_posterior", lambda *a, **k: real(*a, **{**k, **how}))
    result = run_library(case)
    monkeypatch.undo()
    return result


@pytest.mark.parametrize("case", CASES[::17], ids=label)
@pytest.mark.slow
def test_the_search_of_the_grid(case, monkeypatch):
    grid = by(case, monkeypatch, space_search="grid")
    branched = by(case, monkeypatch, space_search="branch_and_bound")
    assert grid.report["selection"] == {"space_search": "grid", "exact": True, "gap_usd": 0.0}
    selection = branched.report["selection"]
    assert selection["exact"]
    assert selection["gap_usd"] == 0
    assert (selection["searches"] > 0) == (len(branched.trace) > 0)
    assert list(grid.history) == list(branched.history)
    assert grid.stop_reason == branched.stop_reason
    b_g = [result.report["b_g"] or math.nan for result in (grid, branched)]
    assert b_g[1] == pytest.approx(b_g[0], rel=1e-9, nan_ok=True)
    for one, other in zip(grid.trace, branched.trace, strict=True):
        assert (one.event, one.t, one.iteration) == (other.event, other.t, other.iteration)
        assert (one.theta_out, one.theta_cand) == (other.theta_out, other.theta_cand)
        for name in ("u_out_usd", "gap_usd"):
            values = getattr(one, name) or 0.0, getattr(other, name) or 0.0
            assert math.isclose(*values, rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.slow
def test_a_search_that_gives_up_says_so(monkeypatch):
    """Its gap is at least the one proven: what was left out counts as if it were feasible."""
    case = CASES[0]
    unproven = by(case, monkeypatch, space_search="branch_and_bound", max_nodes=1)
    proven = by(case, monkeypatch, space_search="branch_and_bound")
    selection = json.loads(json.dumps(unproven.summary()["selection"]))
    assert not selection["exact"]
    assert 0 < selection["incomplete_searches"] <= selection["searches"]
    assert selection["gap_usd"] > 0
    first = [next(row for row in r.trace if row.event == "selected") for r in (unproven, proven)]
    assert first[0].gap_usd > first[1].gap_usd > 0
    settings = [r.settings["optimizer"] for r in (unproven, proven)]
    assert [s["max_nodes"] for s in settings] == [1, 100_000]
    assert settings[0]["space_search"] == "branch_and_bound"
    assert "max_nodes" not in by(case, monkeypatch).settings["optimizer"]


def large_task(num_modules, num_llms, num_queries):
    """Costs add up over modules, quality falls where any module's LLM is weak."""
    rng = random.Random(num_modules)
    llms = tuple(f"llm{i}" for i in range(num_llms))
    modules = tuple(f"m{i}" for i in range(num_modules))
    price = {llm: 1e-4 * 1.2**i for i, llm in enumerate(llms)}
    skill = {(m, llm): rng.gauss(0.05 * i, 0.5) for m in modules for i, llm in enumerate(llms)}

    def system(assignment, query):
        cost = sum(price[llm] for llm in assignment.values()) * (1 + query % 3)
        strength = sum(skill[pair] for pair in assignment.items()) / num_modules
        return float(strength > 0.1 * (query % 5)), cost

    problem = SelectionProblem(
        name="large",
        modules=modules,
        llms=(llms,) * num_modules,
        num_queries=num_queries,
        theta_ref=(num_llms - 1,) * num_modules,
        reference_quality=1.0,
        reference_cost_usd=num_modules * price[llms[-1]] * 2,
        epsilon=0.2,
    )
    return problem, FunctionEvaluator(problem, system, list(range(num_queries)))


def search_large(num_modules, num_llms, num_queries, budget_usd, run_dir, **settings):
    problem, evaluator = large_task(num_modules, num_llms, num_queries)
    assert problem.space.size > MAX_ENUMERATED
    optimizer = make_scope(problem, base="llm0", seed=1, **settings)
    return run(problem, optimizer, evaluator, budget_usd, run_dir=run_dir)


@pytest.mark.slow
def test_a_space_that_cannot_be_enumerated(tmp_path):
    first, again = (
        search_large(7, 16, 4, 0.42, tmp_path / name, max_nodes=100) for name in ("0", "1")
    )
    assert list(first.history) == list(again.history)
    assert first.trace == again.trace
    assert {row.event for row in first.trace} >= {"calibrated", "selected"}
    assert first.report["selection"]["searches"] > 3
    # Resuming replays the same search, and pays nothing.
    resumed = search_large(7, 16, 4, 0.42, tmp_path / "0", max_nodes=100)
    assert resumed.replayed == len(first.history)
    assert resumed.trace == first.trace


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [{"mode": "tuned"}, {"mode": "theory", "B_g": 0.5}])
def test_a_whole_run_over_3e9_configurations(bounds, tmp_path):
    result = search_large(7, 23, 20, 3.6, tmp_path, bounds=bounds, max_nodes=2000)
    assert result.report["selection"]["space_search"] == "branch_and_bound"
    assert any(row.event == "selected" for row in result.trace)
    if bounds["mode"] == "tuned":
        assert result.recommendation.basis == "accepted (tuned)"
        assert result.recommendation.u_out_usd < result.problem.reference_cost_usd


def test_gamma_without_looking_at_all_of_theta():
    """Hadamard: log det(I + K / lam) / 2 is at most J log(1 + 1 / lam) / 2, for any A."""
    gain = InformationGain(ConfigSpace((23,) * 7), HammingMatern52Kernel(), 1e-2)
    assert gain.gamma(9) == pytest.approx(9 * 0.5 * math.log(101.0))
    assert 0.9 * gain.gamma(9) < gain.greedy(9) < gain.gamma(9)


def test_refusals():
    problem, _ = large_task(7, 16, 4)
    with pytest.raises(InputError, match="more than the 2e"):
        make_scope(problem, base="llm0", space_search="grid")
    with pytest.raises(InputError, match="space_search='fast' must be auto"):
        make_scope(problem, base="llm0", space_search="fast")
