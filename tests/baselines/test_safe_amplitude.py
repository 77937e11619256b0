"""SafeOpt's default amplitude makes "safe" unsound, as docs/reference/baselines.md says."""

import pytest

from baselines.safeopt import SafeOpt
from scope_torch import run
from scope_torch.tasks.synthetic import synthetic_task


@pytest.mark.parametrize("amp_g", [0.003, 1.0])
@pytest.mark.slow
def test_the_default_amplitude_calls_infeasible_configurations_safe(amp_g):
    """It evaluates what it takes for safe; with amplitude 1 that is theta_0 alone, known before."""
    assert SafeOpt.default_gp.amp_g == 0.003
    evaluated = wrong = 0
    for world in range(8):
        problem, evaluator, _ = synthetic_task(num_queries=20, world_seed=world)
        search = SafeOpt(problem, seed=0, gp={"amp_g": amp_g}, device="cpu")
        result = run(problem, search, evaluator, budget_usd=5.0)
        quality = evaluator.truth()[1].flatten()
        tried = {problem.space.index_of(o.theta) for o in result.history}
        evaluated += len(tried)
        wrong += sum(quality[index] < problem.s_0 for index in tried)
    assert wrong > evaluated / 2 if amp_g < 1 else evaluated == 0
