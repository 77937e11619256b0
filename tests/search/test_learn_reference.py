"""A model that takes in theta_0's answers, which were paid for before the search."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from tables import make_task

from scope_torch.errors import InputError
from scope_torch.methods import make_scope_joint
from scope_torch.observation import Observation, Request
from scope_torch.runs.runner import run
from scope_torch.search.calibrate import calibrate

Q = 12


@pytest.fixture
def task():
    return make_task(3, (4, 3), Q, graded=False)


@pytest.fixture
def answers(task):
    """theta_0's, as a search would observe them."""
    return [task.observe(Request(task.problem.theta_ref, query)) for query in range(Q)]


@pytest.fixture
def problem(task, answers):
    return replace(task.problem, reference_answers=[(o.cost_usd, o.quality) for o in answers])


def make(problem, **settings):
    return make_scope_joint(problem, base="llm0", device="cpu", seed=1, **settings)


def searched(task, problem, run_dir=None, **settings):
    optimizer, evaluator = make(problem, **settings), task.evaluator()
    return run(problem, optimizer, evaluator, budget_usd=task.budget(20), run_dir=run_dir)


def posterior_means(search, observations):
    """Of the average cost and quality of all configurations, without any search."""
    surrogate = search.belief.surrogate
    for o in observations:
        surrogate.observe(
            o.theta, o.query, o.cost_usd, *search.problem.violations(search.problem.grades(o))
        )
    return surrogate.weights()


def test_the_model_is_that_of_the_same_observations(problem, answers):
    search = make(problem, learn_reference=True)
    search.ask()
    assert search.belief.surrogate.num_observed(problem.theta_ref) == Q
    by_hand = posterior_means(make(problem), answers)
    assert (search.belief.surrogate.weights() == by_hand).all()


def test_nobody_pays_for_them(task, problem):
    result = searched(task, problem, learn_reference=True)
    assert result.history.spend_usd == pytest.approx(sum(o.cost_usd for o in result.history))
    assert result.known == []
    assert result.bill.num_known == 0


def test_answers_that_a_search_before_took_in_are_not_repeated(problem, answers):
    search = make(problem, known=answers[:5], learn_reference=True)
    search.ask()
    assert search.belief.surrogate.num_observed(problem.theta_ref) == Q
    assert len(search.rules.known.reference) == Q - 5


def test_the_default_does_not_learn_them(problem):
    search = make(problem)
    search.ask()
    assert search.belief.surrogate.num_observed(problem.theta_ref) == 0
    assert "learn_reference" not in search.settings()


def test_a_run_with_another_setting_is_not_resumed(task, problem, tmp_path):
    searched(task, problem, tmp_path / "run", learn_reference=True)
    assert make(problem, learn_reference=True).settings()["learn_reference"] is True
    with pytest.raises(InputError, match="learn_reference"):
        searched(task, problem, tmp_path / "run")


def test_without_answers_it_is_refused(problem):
    unknown = replace(problem, reference_answers=None)
    with pytest.raises(InputError, match=r"learn_reference=true, but .* no reference_answers"):
        make(unknown, learn_reference=True)


def test_answers_without_the_other_outcomes_are_refused(problem):
    several = replace(problem, constraints=["latency_s<=0.5"])
    with pytest.raises(InputError, match=r"with 2 constraints.*learn_reference=false"):
        make(several, learn_reference=True)


def calibrated(quality: float, of_one: float) -> None:
    """Calibrate where all answers have one quality, but for the second configuration's first."""
    rounds = calibrate([(0,), (1,), (2,)], list(range(8)))
    requests = next(rounds)
    while requests:
        answers = [
            Observation(theta, q, 0.1, of_one if (theta, q) == ((1,), 0) else quality)
            for theta, q, _ in requests
        ]
        try:
            requests = rounds.send(answers)
        except StopIteration:
            return


def test_a_calibrate_without_a_right_answer_warns(caplog):
    with caplog.at_level(logging.WARNING):
        calibrated(0.0, 1.0)
        calibrated(1.0, 1.0)
        assert caplog.records == []
        calibrated(0.0, 0.0)
    (record,) = caplog.records
    assert "have quality 0" in record.message
    assert "base" in record.message
