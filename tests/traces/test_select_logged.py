"""`select` with a logged reference: the same search, and no call measures the reference."""

import random

import pytest

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.runs.recorded import read_run
from scope_torch.traces.reference import LoggedReference
from scope_torch.traces.summary import LoggedQuery
from scope_torch.watch.reading import result_of_run

PRICE = {"nano": 1e-4, "mini": 4e-4, "pro": 1e-2}  # USD of a call
SKILL = {"nano": 0.3, "mini": 0.98, "pro": 1.0}
MODELS = {"plan": "pro", "solve": "pro"}
QUESTIONS = [f"question {number}" for number in range(40)]


def answer(models, question):
    luck = random.Random(f"{sorted(models.items())} {question}")
    is_right = all(luck.random() < SKILL[llm] for llm in models.values())
    return question.upper() if is_right else "?"


def logged(**changes) -> LoggedReference:
    rows = [(f"t{i}", 1, 0.02, 1.0, 0.5) for i in range(len(QUESTIONS))]
    return LoggedReference(MODELS, [LoggedQuery(*row)._replace(**changes) for row in rows])


def selected(reference, **changes):
    """The result, and the runs of the application: (configuration, question)."""
    runs = []

    def app(models, question):
        runs.append((tuple(models.values()), question))
        return answer(models, question), sum(PRICE[llm] for llm in models.values())

    settings = {
        "models": {module: list(PRICE) for module in MODELS},
        "dataset": [(question, question.upper()) for question in QUESTIONS],
        "metric": st.metrics.exact_match,
        "max_quality_loss": 0.1,
        "budget_usd": 3.0,
        "base": "nano",
        "name": "app",
        "repeats": 0,
    } | changes
    return st.select(app, reference=reference, **settings), runs


@pytest.mark.slow
def test_the_search_is_the_same_and_the_reference_is_not_paid_for():
    measured, with_calls = selected(MODELS)
    result, without = selected(logged())
    asked = [(o.theta, o.query, o.cost_usd, o.quality) for o in result.history]
    assert asked == [(o.theta, o.query, o.cost_usd, o.quality) for o in measured.history]
    assert result.choice == measured.choice
    of_reference = [call for call in with_calls if call[0] == ("pro", "pro")]
    assert of_reference == [(("pro", "pro"), text) for text in QUESTIONS]
    assert without == [call for call in with_calls if call[0] != ("pro", "pro")]
    assert ("pro", "pro") not in {llms for llms, _ in without}
    assert (measured.bill.reference_usd, result.bill.reference_usd) == (pytest.approx(0.8), 0.0)
    paid = sum(PRICE[llm] for llms, _ in without for llm in llms)
    assert result.bill.total_usd == pytest.approx(paid, abs=1e-12)


@pytest.mark.slow
def test_a_probe_does_not_run_what_is_logged():
    """Nothing says where to start, so each LLM answers a query: all but the reference."""
    result, runs = selected(logged(), base=None)
    assert ("pro", "pro") not in {llms for llms, _ in runs}
    assert sorted(o.theta for o in result.probe) == [(0, 0), (1, 1)]
    paid = sum(PRICE[llm] for llms, _ in runs for llm in llms)
    assert result.bill.total_usd == pytest.approx(paid, abs=1e-12)


def test_the_plan_knows_that_nothing_is_measured():
    plan, runs = selected(logged(), dry_run=True)
    assert not runs
    assert "known from a log, no run" in str(plan)


@pytest.mark.slow
def test_a_stopped_selection_goes_on(tmp_path):
    first, _ = selected(logged(), run_dir=tmp_path)
    again, runs = selected(logged(), run_dir=tmp_path)
    assert runs == []
    assert again.choice == first.choice


@pytest.mark.slow
def test_the_order_of_the_log_need_not_be_that_of_the_data():
    rows = list(reversed(logged().queries))
    rows = [row._replace(quality=float(row.id != "t7")) for row in rows]
    names = [f"t{number}" for number in range(len(QUESTIONS))]
    result, _ = selected(LoggedReference(MODELS, rows).only(names), holdout=0.25)
    answers = result.problem.reference_answers
    numbers = [int(question.split()[1]) for question in result.queries]
    assert [quality for _, quality in answers] == [float(number != 7) for number in numbers]
    assert len(numbers) == 30


@pytest.mark.slow
def test_held_out_queries_know_the_log_too(tmp_path):
    settings = {"holdout": 0.25, "base": None, "run_dir": tmp_path}
    plan, _ = selected(logged(), dry_run=True, **settings)
    assert "the choice answers the held-out queries" in str(plan)
    result, runs = selected(logged(), **settings)
    assert ("pro", "pro") not in {llms for llms, _ in runs}
    assert [(o.cost_usd, o.quality) for o in result.held_out.reference] == [(0.02, 1.0)] * 10
    paid = sum(PRICE[llm] for llms, _ in runs for llm in llms)
    assert result.bill.total_usd == pytest.approx(paid, abs=1e-12)
    for read in (result_of_run(read_run(tmp_path)), selected(logged(), **settings)[0]):
        assert read.held_out.to_json() == result.held_out.to_json()
        assert read.bill.amounts == result.bill.amounts


@pytest.mark.slow
def test_held_out_answers_that_were_paid_for_stay(tmp_path, monkeypatch):
    """An early version asked the reference again."""
    settings = {"holdout": 0.25, "base": None, "run_dir": tmp_path}
    with monkeypatch.context() as early:
        early.setattr("scope_torch.selection.held_out._logged_held_out", lambda *_: [])
        first, asked = selected(logged(), **settings)
    assert [llms for llms, _ in asked].count(("pro", "pro")) == 10
    again, runs = selected(logged(), **settings)
    assert runs == []
    assert again.bill.amounts == first.bill.amounts


@pytest.mark.slow
def test_a_constraint_on_the_latency_knows_the_reference():
    result, _ = selected(logged(), constraints=["latency_s <= 1.0 cap 10"])
    assert result.problem.reference_outcomes == {"latency_s": 0.5}


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        (logged(quality=None), "'t0' has no cost or no score in the log"),
        (logged().only(["t0"]), r"40 queries, and 1 in the log .*reference.only\("),
    ],
)
def test_an_incomplete_log_is_refused_before_any_call(reference, told):
    with pytest.raises(InputError, match=told):
        selected(reference)


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"seconds": None}, "no 'latency_s' was observed"), ({"quality": 0.0}, "right on none of 40")],
)
def test_a_log_that_gives_no_threshold_is_refused_before_any_call(changes, told):
    def app(models, question):
        raise AssertionError

    settings = {"models": {module: list(PRICE) for module in MODELS}, "budget_usd": 3.0}
    settings |= {"dataset": QUESTIONS, "max_quality_loss": 0.1}
    with pytest.raises(InputError, match=told):
        st.select(app, reference=logged(**changes), constraints=["latency_s <= 1"], **settings)


@pytest.mark.slow
def test_the_llms_of_an_incomplete_log_are_measured():
    _, runs = selected(dict(logged(quality=None)))
    assert runs[0] == (("pro", "pro"), QUESTIONS[0])
