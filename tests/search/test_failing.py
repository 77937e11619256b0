"""LLMs whose calls keep failing: who is to blame, and a search without them."""

import itertools
import logging
import re
from dataclasses import replace

import pytest
import torch
from tables import make_task

from scope_torch.allowed import Allowed
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.methods import make_scope, make_scope_joint
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.runs.runner import run
from scope_torch.search.failing import FailingLLMs

NAMES = "a", "b", "c", "ref"
PROBLEM = SelectionProblem(
    "app", ("x", "y", "z"), (NAMES,) * 3, 50, (3, 3, 3), 1.0, 1.0, 0.1
)  # fmt: skip
A, B, C, REF = range(4)


def told(*pairs, failed="app"):
    """Tells calls as (theta, number of queries): above 0 failed, below 0 answered."""
    failing, query = FailingLLMs(PROBLEM), itertools.count()
    for theta, number in pairs:
        for _ in range(abs(number)):
            mark = failed if number > 0 else None
            failing.record(Observation(theta, next(query), 0.0, 0.0, failed=mark))
    return failing.dropped


@pytest.mark.parametrize(
    ("pairs", "dropped"),
    [
        ([((A, REF, REF), 4)], []),
        ([((A, REF, REF), 5)], [(0, A)]),
        ([((A, REF, REF), 3), ((A, REF, REF), -1), ((A, REF, REF), 9)], []),  # it works
        ([((A, REF, REF), 4), ((REF, A, REF), 4)], []),  # each module for itself
        ([((A, A, A), 5)], [(0, A), (1, A), (2, A)]),  # a wrong key, or a wrong name
        ([((A, A, REF), 5)], [(0, A), (1, A)]),
        ([((A, B, REF), 50)], []),  # nobody knows who
        ([((A, B, REF), 50), ((A, C, REF), 50)], []),
        ([((A, B, REF), 5), ((C, B, REF), -1)], [(0, A)]),  # b works, so it was a
        ([((C, B, REF), -1), ((A, B, REF), 3), ((A, REF, REF), 2)], [(0, A)]),
        ([((A, B, REF), 9), ((A, REF, REF), 5)], [(0, A)]),  # which explains the nine
        ([((REF, REF, REF), 50)], []),  # a query that nobody can answer
    ],
)
def test_who_is_to_blame(pairs, dropped):
    assert told(*pairs) == dropped


def test_who_works_after_all_is_not_to_blame():
    pairs = [((A, B, REF), 9), ((REF, B, REF), 5), ((C, B, REF), 9)]
    assert told(*pairs) == [(1, B)]


def test_the_same_call_again_is_no_further_reason():
    failing = FailingLLMs(PROBLEM)
    for replicate in range(9):
        failing.record(Observation((A, REF, REF), 7, 0.0, 0.0, replicate, failed="app"))
    assert failing.dropped == []
    assert failing.report() == {}


def test_a_metric_that_fails_is_the_fault_of_no_llm():
    assert told(((A, REF, REF), 50), failed="metric") == []


@pytest.mark.parametrize(
    "given", [None, lambda llm: llm["x"] != llm["y"], [(0, 1, 2), (1, 1, 1), (3, 3, 3)]]
)
def test_what_is_left(given):
    listed = tuple(given) if isinstance(given, list) else given
    allowed = Allowed(PROBLEM.modules, PROBLEM.llms, listed).without([(1, 1, 1)])
    left = allowed.without_llms([(0, A)]).without_llms([(0, A), (2, C)])
    every = list(itertools.product(range(4), repeat=3))
    expected = [t for t in every if allowed(t) and t[0] != A and t[2] != C]
    assert [t for t in every if left(t)] == expected
    assert left.mask.sum() == left.count == len(expected)
    assert [PROBLEM.space.theta_at(int(i)) for i in left.index] == expected
    again = left.without(expected[:1])
    assert [t for t in every if again(t)] == expected[1:]
    assert left.without_llms([(0, A)])(expected[0])


# In a search

TASK = make_task(3, (3, 3), 24, False)
QUERIES = TASK.table.queries
ALL = {(module, 0) for module in TASK.problem.modules}


class Broken:
    """The table's answers; calls of some LLMs, as (module, code), raise."""

    def __init__(self, broken):
        self.broken, self.calls = broken, []

    def __call__(self, assignment, query):
        theta = TASK.problem.codes(list(assignment.values()))
        self.calls.append((theta, query))
        if not self.broken.isdisjoint(zip(TASK.problem.modules, theta, strict=True)):
            raise ConnectionError("404: no such model")
        observation = TASK.observe(Request(theta, QUERIES.index(query)))
        return observation.quality, observation.cost_usd


def evaluator_of(system, concurrency=1):
    settings = {"on_error": "zero", "deterministic": True, "name": "broken"}
    return FunctionEvaluator(TASK.problem, system, QUERIES, concurrency, **settings)


def searched(broken, make=make_scope_joint, concurrency=1, run_dir=None, budget=1e6, **settings):
    system = broken if callable(broken) else Broken(broken)
    settings = {"base": [llms[0] for llms in TASK.problem.llms], "batch_size": 4, **settings}
    optimizer = make(TASK.problem, seed=1, **settings)
    evaluator = evaluator_of(system, concurrency)
    return run(TASK.problem, optimizer, evaluator, budget, run_dir=run_dir), system


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_scope_joint, make_scope])
@pytest.mark.parametrize("space_search", ["grid", "branch_and_bound"])
@pytest.mark.parametrize("broken", [ALL, {("module0", 0), ("module1", 1)}])
def test_a_search_goes_on_without_them(make, space_search, broken, caplog):
    with caplog.at_level(logging.WARNING):
        result, _ = searched(broken, make, space_search=space_search)
    expected: dict[str, list[str]] = {}
    for module, code in sorted(broken):
        expected.setdefault(module, []).append(f"llm{code}")
    assert result.dropped == expected == result.summary()["dropped"]
    failed = [o for o in result.history if o.failed]
    assert len(failed) < len(result.history) / 2
    theta = result.recommendation.theta
    assert broken.isdisjoint(zip(TASK.problem.modules, theta, strict=True))
    lines = [r for r in caplog.records if "quality 0" in r.getMessage()]
    assert len(lines) == len({o.theta for o in failed}) + 1
    assert "llm0" in lines[-1].getMessage()
    assert f"{len(failed)} of {len(result.history)} calls failed" in lines[-1].getMessage()
    # After an LLM was dropped it is asked for in the rest of its batch at most.
    last = max(t for t, o in enumerate(result.history) if o.failed)
    assert last < len(result.history) - 1
    assert re.search(f"{len(failed)} failed; dropped for that: llm0", str(result))
    if make is make_scope_joint:
        rows = [*result.pareto().by_loss, *result.pareto().points]
        assert all(broken.isdisjoint(zip(row.llms, row.theta, strict=True)) for row in rows)
    for first, second, told in result.table().select("module0", "module1", "status").rows():
        codes = {("module0", int(first[-1])), ("module1", int(second[-1]))}
        assert (told == "dropped: its calls fail") is bool(codes & broken)


def test_all_but_the_reference_may_be_broken():
    broken = {
        (module, code)
        for i, module in enumerate(TASK.problem.modules)
        for code in range(3)
        if code != TASK.problem.theta_ref[i]
    }
    result, _ = searched(broken)
    assert result.recommendation.theta == TASK.problem.theta_ref
    assert not result.certified


@pytest.mark.parametrize("broken", [ALL, {("module1", 0)}])
@pytest.mark.slow
def test_one_result_at_any_concurrency_and_after_any_crash(broken, tmp_path):
    whole, _ = searched(broken, run_dir=tmp_path / "whole")
    many, _ = searched(broken, concurrency=4)
    assert list(many.history) == list(whole.history)
    assert many.dropped == whole.dropped

    class Dies(Broken):
        def __call__(self, assignment, query):
            if len(self.calls) >= 11:
                raise KeyboardInterrupt
            return super().__call__(assignment, query)

    for _ in range(1000):
        try:
            parts, _ = searched(Dies(broken), concurrency=2, run_dir=tmp_path / "parts")
            break
        except KeyboardInterrupt:
            continue
    assert list(parts.history) == list(whole.history)
    same = [r.summary() | {"timing": 0, "paths": 0} for r in (parts, whole)]
    assert same[0] == same[1]


@pytest.mark.slow
def test_without_failures_nothing_changes():
    """A search that fails nowhere leaves the posterior alone."""
    result, _ = searched(set())
    assert result.dropped == {}
    assert "dropped" not in result.summary()
    asked = [(o.theta, o.query) for o in result.history]
    plain = make_scope_joint(
        TASK.problem, base=[llms[0] for llms in TASK.problem.llms], seed=1, batch_size=4
    )
    same = run(TASK.problem, plain, TASK.evaluator(), 1e6)
    assert [(o.theta, o.query) for o in same.history] == asked


@pytest.mark.slow
def test_a_random_pool_is_drawn_anew_too():
    result, _ = searched(ALL, initial_pool="random", base=None)
    assert result.dropped.keys() <= {"module0", "module1"}
    assert ALL.isdisjoint(
        zip(TASK.problem.modules, result.recommendation.theta, strict=True)
    )  # fmt: skip


def test_a_failed_call_has_the_worst_outcomes():
    from scope_torch.constraints import at_most

    problem = replace(TASK.problem, constraints=[at_most("latency_s", 2, cap=10)])
    failed = Observation((0, 0), 0, 0.0, 0.0, failed="app")
    assert problem.grades(failed) == (0.0, 0.0)
    assert torch.tensor(problem.violations(problem.grades(failed))).min() > 0
