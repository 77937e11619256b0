"""What a method may choose: ends where that costs nothing, and takes an average of just s_0."""

import numpy as np
import pytest

from scope_torch.baselines.cei import CEI
from scope_torch.baselines.config_bo import CONFIG
from scope_torch.baselines.random_search import RandomSearch
from scope_torch.baselines.safeopt import SafeOpt
from scope_torch.evaluators.table import TableEvaluator
from scope_torch.runs.runner import run
from scope_torch.search.stopping import FREE_CANDIDATE
from scope_torch.testing import KnownTask


@pytest.mark.parametrize("make", [CEI, CONFIG, SafeOpt])
def test_a_free_choice_ends_the_search(make):
    rng = np.random.default_rng(0)
    cost = np.array([0.0, 0.0, 0.01])[:, None] * np.ones((3, 40))
    quality = (rng.random((3, 40)) < np.array([0.85, 0.97, 0.99])[:, None]).astype(float)
    task = KnownTask.of(cost, quality, (2,), epsilon=0.1)
    result = run(task.problem, make(task.problem, seed=0), TableEvaluator(task.table), 1.0)
    assert result.stop_reason == FREE_CANDIDATE
    assert len(result.history) <= 40 * 4


@pytest.mark.parametrize("make", [CEI, CONFIG, RandomSearch])
def test_an_average_of_exactly_the_threshold_is_enough(make):
    """0.9 x 40 of 50 is 36 of 50, but s_0 in float64 is above 0.72."""
    cost = np.array([0.001, 0.01])[:, None] * np.ones((2, 50))
    quality = (np.arange(50) < np.array([36, 40])[:, None]).astype(float)
    task = KnownTask.of(cost, quality, (1,), epsilon=0.1)
    assert task.problem.s_0 > 36 / 50
    result = run(task.problem, make(task.problem, seed=0), TableEvaluator(task.table), 2.0)
    assert result.recommendation.theta == (0,)
