"""Costs and their bounds, in standard deviations (benchmarks/results/cost_bounds.py)."""

import numpy as np
import pytest

from benchmarks.results.cost_bounds import CostBoundsCell, deviations
from scope_torch.bounds.base import Beta
from scope_torch.methods import make_scope_joint
from scope_torch.runs.runner import run
from scope_torch.tasks.synthetic import synthetic_task


@pytest.mark.slow
def test_a_bound_that_is_so_many_deviations_wide_is_the_cost():
    task = synthetic_task()
    search = make_scope_joint(task.problem, base="small", seed=1)
    run(task.problem, search, task.evaluator, budget_usd=0.3)
    space, cost = task.problem.space, task.evaluator.truth()[0]
    seen = {tuple(theta) for theta in search.belief.surrogate.observed().tolist()}
    unseen = {i for i in range(space.size) if space.theta_at(i) not in seen}
    z = deviations(search, task)
    assert 0 < len(z) == len(unseen)
    ends = []
    for i in unseen:
        candidate = search.belief.at(space.theta_at(i), range(task.problem.num_queries))
        middle = candidate.lower_c(Beta(0.0, 0.0))
        above = float(cost[i]) > middle
        bound = candidate.upper_c if above else candidate.lower_c
        ends.append([abs(bound(Beta(abs(b), 0.0)) / float(cost[i]) - 1) for b in z])
    assert np.min(ends, axis=1).max() < 1e-9


@pytest.mark.slow
def test_a_row_has_both_looks():
    overrides = ("task=synthetic", "base=small", "budget_usd=0.3", "method=scope_joint")
    row = CostBoundsCell("synthetic", "regression", 1, None, overrides).measured()
    assert row["calibrated_unseen"] > row["end_unseen"] > 0
    for when in ("calibrated", "end"):
        within = [float(share) for share in row[f"{when}_within"].split()]
        assert sorted(within) == within
        assert 0 <= row[f"{when}_below"] <= 1 - within[5] + 1e-2
