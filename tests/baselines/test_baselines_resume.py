"""The competitors that need no Gaussian process: interrupted runs end like whole ones."""

import pytest
from tables import CountingEvaluator, Crash, make_task

from baselines.abacus import Abacus
from baselines.llambo import make_llambo
from baselines.llmselector import LLMSelector
from scope_torch.results.result import RunResult
from scope_torch.runs.runner import run

TASK = make_task(2, (4, 3, 3), 5)


def stable(summary: dict) -> dict:
    return {key: value for key, value in summary.items() if key not in ("timing", "paths")}


@pytest.mark.parametrize("method", [Abacus, LLMSelector, make_llambo])
@pytest.mark.parametrize("every", [7, 16])
def test_crashes_every_few_observations_change_nothing(tmp_path, method, every):
    def search(evaluator, run_dir) -> RunResult:
        optimizer = method(TASK.problem, seed=4)
        return run(TASK.problem, optimizer, evaluator, TASK.budget(9.3), run_dir=run_dir)

    whole, result, crashes = search(CountingEvaluator(TASK), tmp_path / "whole"), None, 0
    while result is None:
        try:
            result = search(CountingEvaluator(TASK, crash_after=every), tmp_path / "run")
        except Crash:
            crashes += 1
    assert crashes >= 1
    assert stable(result.summary()) == stable(whole.summary())
    assert list(result.history) == list(whole.history)
    assert result.trace == whole.trace
