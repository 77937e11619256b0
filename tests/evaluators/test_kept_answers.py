"""A deterministic system: its answers are kept, also over a resume, and the result counts them."""

import contextlib
import json
from dataclasses import replace

import pytest
from tables import make_task

from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.observation import Observation, Request
from scope_torch.runs.runner import run

TASK = make_task(1, (4, 3), 16)
QUERIES = TASK.table.queries


def evaluator_of(system, **settings) -> FunctionEvaluator:
    """A function that calls `system` with each request, then answers like the task's table."""

    def observe(assignment, query):
        request = Request(TASK.problem.codes(list(assignment.values())), QUERIES.index(query))
        system(request)
        observation = TASK.observe(request)
        return observation.quality, observation.cost_usd

    return FunctionEvaluator(TASK.problem, observe, QUERIES, name="kept", **settings)


def searched(system, run_dir, *, deterministic=True, concurrency=1):
    evaluator = evaluator_of(system, deterministic=deterministic, concurrency=concurrency)
    return run(TASK.problem, TASK.scope(1), evaluator, TASK.budget(6), run_dir=run_dir)


def stable(run_dir) -> dict:
    result = json.loads((run_dir / "result.json").read_text())
    return {key: value for key, value in result.items() if key not in ("timing", "paths")}


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_resumed_search_asks_for_no_pair_of_the_journal(tmp_path, concurrency):
    asked, limit = [], 0

    def system(request):
        if len(asked) >= limit:
            raise TimeoutError
        asked.append(request)  # under concurrency a few more than the limit

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    limit = 10**9
    result = searched(system, whole, concurrency=concurrency)
    assert len(asked) == len(set(asked)) < len(result.history)
    once, limit = len(asked), 0
    asked.clear()
    while not (parts / "result.json").exists():
        limit += 30  # each process ends after some 30 calls
        with contextlib.suppress(TimeoutError):
            searched(system, parts, concurrency=concurrency)
    assert limit >= 90
    assert len(asked) == len(set(asked)) == once
    assert stable(parts) == stable(whole)


@pytest.mark.slow
def test_the_result_counts_what_kept_answers_saved(tmp_path):
    asked = []
    kept = searched(asked.append, tmp_path / "kept")
    paid = len(asked)
    result = stable(tmp_path / "kept")
    assert result["num_repeats"] == len(kept.history) - paid > 0
    repeats = [o.cost_usd for o in kept.history if o.replicate]
    assert result["repeats_usd"] == pytest.approx(sum(repeats))
    assert result["spend_usd"] == kept.history.spend_usd  # with the repeats, as in the paper
    searched(asked.append, tmp_path / "asked", deterministic=False)
    other = stable(tmp_path / "asked")
    added = {"num_repeats", "repeats_usd", "result_hash"}
    assert other == {k: v for k, v in result.items() if k not in added} | {
        "result_hash": other["result_hash"]
    }


@pytest.mark.parametrize("on_error", ["zero", "retry"])
def test_a_failed_call_is_an_answer_if_it_counts_as_zero(on_error):
    """Also one of an LLM that costs nothing is told from a wrong answer by its mark alone."""
    asked = []
    evaluator = evaluator_of(asked.append, deterministic=True, on_error=on_error)
    pair = Request((1, 2), 3)
    wrong = Observation(pair.theta, pair.query, 0.0, 0.0)
    failed = replace(wrong, failed="app")
    good = [TASK.observe(pair._replace(replicate=i)) for i in (1, 2)]
    assert evaluator.is_answer(wrong)
    assert evaluator.is_answer(failed) == (on_error == "zero")
    assert evaluator.repeats([wrong, *good]) == good
    again = replace(failed, replicate=1)
    assert evaluator.repeats([failed, again]) == [again]  # it was kept
    assert evaluator.repeats([failed, *good]) == good[1:]  # asked anew: failures were no answers
    evaluator.remember([failed])
    kept = failed if on_error == "zero" else TASK.observe(pair)
    assert list(evaluator.evaluate([pair])) == [kept]
    assert asked == ([] if on_error == "zero" else [pair])
