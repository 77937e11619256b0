"""Methods that evaluate a configuration again end where that costs nothing."""

import numpy as np
import pytest

from scope_torch.baselines.cei import CEI
from scope_torch.baselines.config_bo import CONFIG
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
