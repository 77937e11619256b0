"""The results of a search, measured on all of its queries."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from constrained import constrained_task

from scope_torch.errors import InputError
from scope_torch.observation import Observation, Request
from scope_torch.runs.evaluator import HasTruth
from scope_torch.runs.measured import (
    FILE,
    FOLDER,
    Measured,
    error_on_these,
    measure_results,
    measured_curve,
    measurement,
    read_measured,
)
from scope_torch.runs.recorded import RecordedRun, recorded_problem
from scope_torch.runs.runner import run_settings
from scope_torch.runs.trace import RecordedRow, recorded_curve
from scope_torch.search.optimizer import TraceRow
from scope_torch.tasks import Task
from scope_torch.tasks.simulated import simulated_task

BUDGET_USD = 2.0
A, B, C = (1, 0, 0), (0, 0, 1), (1, 1, 0)


class Paid:
    """An evaluator that counts what it is asked, and says that it costs money."""

    def __init__(self, task: Task) -> None:
        self.concurrency, self.fingerprint = 1, task.evaluator.fingerprint
        self.asked: list[Request] = []
        self._evaluator = task.evaluator

    def evaluate(self, requests):
        for request in requests:
            self.asked.append(request)
            yield from self._evaluator.evaluate([request])


class Method:
    """Name and settings of a method, for `run_settings`."""

    def settings(self) -> dict[str, str]:
        return {"name": "by hand"}


def imputation(tmp_path: Path, **changes) -> Task:
    """A simulated task with 8 configurations."""
    given = {"name": "imputation", "world": "data_imputation", "cache_dir": str(tmp_path / "cache")}
    return simulated_task(**given, llms=["GPT-4.1 Nano", "GPT-5.2"], **changes)


def recorded(path: Path, task: Task, thetas, *, budget_usd: float = BUDGET_USD) -> RecordedRun:
    """A run whose result changes to each of `thetas`, at 0, 0.1, 0.3, 0.6, ... USD."""
    settings = run_settings(task.problem, Method(), task.evaluator, budget_usd)  # type: ignore
    rows = [
        RecordedRow(TraceRow(t, t * (t + 1) / 20, t * (t + 1) / 20 + 0.01, "improved", theta), None)
        for t, theta in enumerate(thetas)
    ]
    problem = recorded_problem(json.loads(json.dumps(settings)))
    return RecordedRun(path, settings, problem, [], rows, None, None, False)


def truth_of(task: Task, theta) -> tuple[float, float]:
    assert isinstance(task.evaluator, HasTruth)
    index = task.problem.space.index_of(theta)
    cost, quality = task.evaluator.truth()
    return float(cost[index]), float(quality[index])


@pytest.mark.parametrize("repeats", [1, 3])
def test_without_noise_the_measured_curve_is_the_true_one(tmp_path, repeats):
    task = imputation(tmp_path, cost_noise=0.0)
    reference = task.problem.theta_ref
    run = recorded(tmp_path / "run", task, [reference, A, B, reference, A, C])
    found = measure_results(run, task.evaluator, repeats)
    assert [one.theta for one in found] == [reference, A, B, C]
    assert [one.repeats for one in found] == [0, repeats, repeats, repeats]
    for one in found:
        assert one.values == pytest.approx(truth_of(task, one.theta), rel=1e-12)
        if one.repeats == 3:
            assert (one.cost_se_usd, one.quality_se) == (0.0, 0.0)
    measured = measured_curve(run.problem, run.rows, {one.theta: one.values for one in found})
    rows = [RecordedRow(r.row, truth_of(task, r.row.theta_out)) for r in run.rows]
    true = recorded_curve(run.problem, rows)
    assert measured is not None
    assert true is not None
    for name in ("budget_usd", "cost_usd", "quality"):
        np.testing.assert_allclose(getattr(measured, name), getattr(true, name), rtol=1e-12)
    assert measured.violation(1.5) == pytest.approx(true.violation(1.5), rel=1e-12)
    assert measured.best_feasible_cost(1.5) == pytest.approx(true.best_feasible_cost(1.5))


@pytest.mark.slow
def test_with_noise_three_new_draws_agree_within_their_error(tmp_path):
    task = imputation(tmp_path, cost_noise=0.2, randomness=1.0)
    paid = Paid(task)
    found = measure_results(recorded(tmp_path / "run", task, [A, B, C]), paid, 3)
    assert {request.replicate for request in paid.asked} == {1, 2, 3}  # the search has seen 0
    for one in found[1:]:
        cost, quality = truth_of(task, one.theta)
        assert one.cost_se_usd is not None
        assert one.quality_se is not None
        assert 0 < abs(one.values[0] - cost) < 4 * one.cost_se_usd
        assert abs(one.values[1] - quality) < 4 * one.quality_se
        draws = np.array(
            [
                [(o.cost_usd, o.quality, *(o.module_cost_usd or ())) for o in observations]
                for number in (1, 2, 3)
                for observations in [
                    list(
                        task.evaluator.evaluate(
                            Request(one.theta, q, number) for q in range(task.problem.num_queries)
                        )
                    )
                ]
            ]
        )
        np.testing.assert_allclose(one.values, draws[..., :2].mean((0, 1)), rtol=1e-12)
        np.testing.assert_allclose(one.module_cost_usd, draws[..., 2:].mean((0, 1)), rtol=1e-12)
        errors = np.sqrt(draws[..., :2].var(0, ddof=1).sum(0) / 3) / draws.shape[1]
        np.testing.assert_allclose((one.cost_se_usd, one.quality_se), errors, rtol=1e-9)
        assert sum(one.module_cost_usd or ()) == pytest.approx(one.values[0])


def test_what_the_search_has_asked_again_is_no_new_draw(tmp_path):
    """scope_joint asks for pairs again; a store of replies would give these answers once more."""
    task = imputation(tmp_path, randomness=1.0)
    paid, run = Paid(task), recorded(tmp_path / "run", task, [A, B])
    run.observations.extend(task.evaluator.evaluate(Request(A, 5, number) for number in range(3)))
    measure_results(run, paid, 2)
    numbers = {(request.theta, request.replicate) for request in paid.asked}
    assert numbers == {(A, 3), (A, 4), (B, 1), (B, 2)}


def test_one_draw_is_what_the_search_has_seen(tmp_path):
    task = imputation(tmp_path, randomness=1.0)
    paid = Paid(task)
    (_, one) = measure_results(recorded(tmp_path / "run", task, [A]), paid)
    assert paid.asked == [Request(A, q) for q in range(task.problem.num_queries)]
    seen = list(task.evaluator.evaluate(paid.asked))
    qualities = np.array([o.quality for o in seen])
    assert one.values[1] == pytest.approx(qualities.mean())
    assert one.quality_se == pytest.approx(qualities.std(ddof=1) / math.sqrt(len(seen)))


@pytest.mark.parametrize("stop_after", [1, 156, 200, 311])
def test_an_interrupted_measurement_asks_for_nothing_twice(tmp_path, stop_after):
    task = imputation(tmp_path, randomness=1.0)
    whole = measure_results(recorded(tmp_path / "whole", task, [A, B]), task.evaluator)
    run, paid, seen = recorded(tmp_path / "run", task, [A, B]), Paid(task), []

    def interrupt(observation: Observation) -> None:
        seen.append(observation)
        if len(seen) == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_results(run, paid, observed=interrupt)
    assert stop_after <= len(paid.asked) < 2 * 156
    assert measure_results(run, paid) == whole
    assert len(paid.asked) == len({*paid.asked}) == 2 * 156
    assert measure_results(run, paid) == whole
    assert len(paid.asked) == 2 * 156


@pytest.mark.slow
def test_more_repeats_and_a_longer_run_ask_for_what_is_new(tmp_path):
    task = imputation(tmp_path, randomness=1.0)
    paid = Paid(task)
    measure_results(recorded(tmp_path / "run", task, [A]), paid, 2)
    measure_results(recorded(tmp_path / "run", task, [A]), paid, 3)
    longer = recorded(tmp_path / "run", task, [A, B], budget_usd=2 * BUDGET_USD)
    found = measure_results(longer, paid, 3)
    counts = Counter((request.theta, request.replicate) for request in paid.asked)
    assert counts == {(theta, number): 156 for theta in (A, B) for number in (1, 2, 3)}
    assert found == measure_results(longer, task.evaluator, 3)


def test_c_bf_and_violation_are_those_of_the_definitions(tmp_path):
    """Retyped: the least cost of all feasible results so far, and the average shortfall."""
    task = imputation(tmp_path, randomness=1.0, cost_noise=0.2)
    thetas = [task.problem.theta_ref, A, B, A, C]
    run = recorded(tmp_path / "run", task, thetas)
    found = measure_results(run, task.evaluator, 2)
    content = measurement(run, found)
    assert json.loads(json.dumps(content)) == content
    values = {one.theta: one.values for one in found}
    starts = [0.0, 0.1, 0.3, 0.6, 1.0]
    s_0 = (1 - 0.01) * task.problem.reference_quality
    assert [step["share_of_budget"] for step in content["curve"]] == [0.1, 0.25, 0.5, 1.0]
    assert content["curve"][-1]["violation"] > 0
    for step in content["curve"]:
        budget = step["share_of_budget"] * BUDGET_USD
        assert step["budget_usd"] == budget
        best, shortfall = math.inf, 0.0
        for i, (start, theta) in enumerate(zip(starts, thetas, strict=True)):
            end = min(budget, starts[i + 1]) if i + 1 < len(starts) else budget
            cost, quality = values[theta]
            if start <= budget:
                best = min(best, cost) if quality >= s_0 else best
                shortfall += max(s_0 - quality, 0) / s_0 * (end - start)
        assert step["best_feasible_cost_usd"] == pytest.approx(best, rel=1e-12)
        assert step["violation"] == pytest.approx(shortfall / budget, rel=1e-9)


def test_further_constraints_are_measured_too(tmp_path):
    task = Task(*constrained_task(0))
    theta = tuple((code + 1) % 2 for code in task.problem.theta_ref)
    run = recorded(tmp_path / "run", task, [theta])
    found = measure_results(run, task.evaluator)
    evaluator = task.evaluator
    latency = np.minimum(evaluator.latency[theta], 4.0).mean()  # type: ignore
    safety = evaluator.safety[theta].mean()  # type: ignore
    by_name = {"latency_s": latency, "safety": safety}
    expected = [by_name[limit.outcome] for limit in task.problem.others]
    assert found[1].values[2:] == pytest.approx(expected)
    curve = measured_curve(run.problem, run.rows, {one.theta: one.values for one in found})
    assert curve is not None
    shortfall = max(run.problem.s_0 - found[1].values[1], 0) / run.problem.s_0
    excess = [
        limit.violation(value) for limit, value in zip(run.problem.others, expected, strict=True)
    ]
    assert curve.violation(1.0) == pytest.approx(shortfall + sum(excess))


def test_what_is_written_is_read(tmp_path):
    task = imputation(tmp_path)
    run = recorded(tmp_path / "run", task, [A, C])
    found = measure_results(run, task.evaluator, 2)
    assert read_measured(run.path, run.problem) is None
    (run.path / FILE).write_text(json.dumps(measurement(run, found)))
    values = {one.theta: one.values for one in found}
    assert read_measured(run.path, run.problem) == (2, values)
    longer = recorded(tmp_path / "run", task, [A, C, B])
    assert measured_curve(longer.problem, longer.rows, values) is None  # B was not measured


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("results"),
        lambda content: content.pop("repeats"),
        lambda content: content["results"][1].pop("quality"),
        lambda content: content["results"][1].update(cost_usd="dear"),
        lambda content: content["results"][1].update(theta={"parse": "GPT-5.2"}),
        lambda content: content["results"][1]["theta"].update(parse="unknown LLM"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, change):
    task = imputation(tmp_path)
    run = recorded(tmp_path / "run", task, [A])
    content = measurement(run, measure_results(run, task.evaluator))
    change(content)
    (run.path / FILE).write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"measured.json is damaged .*move it away") as caught:
        read_measured(run.path, run.problem)
    assert "\n" not in str(caught.value)


def test_another_evaluator_and_no_repeats_are_refused(tmp_path):
    task = imputation(tmp_path)
    run = recorded(tmp_path / "run", task, [A])
    other = imputation(tmp_path, noise_seed=7).evaluator
    with pytest.raises(InputError, match=r"was made with .*give the arguments of that run"):
        measure_results(run, other)
    with pytest.raises(InputError, match="repeats=0 must be at least 1"):
        measure_results(run, task.evaluator, 0)
    assert not (run.path / FOLDER).exists()


def test_only_the_reference_needs_no_measurement(tmp_path):
    task = imputation(tmp_path)
    paid = Paid(task)
    run = recorded(tmp_path / "run", task, [task.problem.theta_ref])
    found = measure_results(run, paid, 5)
    given = (task.problem.reference_cost_usd, task.problem.reference_quality)
    assert (paid.asked, found) == ([], [Measured(task.problem.theta_ref, 0, given)])
    (*_, last) = measurement(run, found)["curve"]
    assert last["best_feasible_cost_usd"] == task.problem.reference_cost_usd
    assert last["violation"] == 0


def test_the_error_of_one_repeat_bounds_that_of_many():
    """The same answers a second time: no error; once: the spread over queries."""
    values = [0.0, 1.0, 1.0, 0.0]
    assert error_on_these([[value, value] for value in values]) == 0
    once = error_on_these([[value] for value in values])
    assert once == pytest.approx(np.std(values, ddof=1) / 2)
    assert error_on_these([[1.0]]) is None


def test_a_run_of_other_queries_is_refused_by_its_folder(tmp_path):
    """The folder belongs to one evaluator, so numbers of two systems are never mixed."""
    task, other = imputation(tmp_path), imputation(tmp_path, noise_seed=7)
    measure_results(recorded(tmp_path / "run", task, [A]), task.evaluator)
    run = recorded(tmp_path / "run", other, [A])
    with pytest.raises(InputError, match="holds a run with other settings: evaluator was"):
        measure_results(run, other.evaluator)
