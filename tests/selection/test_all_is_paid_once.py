"""The bill is what was paid, and a budget holds, whatever comes before and after the search."""

import random
from collections import Counter
from contextlib import suppress

import pytest
from selection.test_again import Varying
from selection.test_select import PRICE, REFERENCE, App, exactly, settings

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.runs.journal import read_journal
from scope_torch.runs.recorded import read_run
from scope_torch.selection.sampling import split
from scope_torch.watch.reading import result_of_run


@pytest.mark.slow
@pytest.mark.parametrize("repeat", [False, True])
def test_pilots_are_in_the_bill(tmp_path, repeat):
    app = App()
    arguments = settings(metric=exactly, run_dir=tmp_path, repeat=repeat)
    st.select(app, **arguments, dry_run="pilot")
    result = st.select(app, **arguments)
    assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)
    assert result_of_run(read_run(tmp_path)).bill == result.bill  # as the page shows it
    (tmp_path / "result.json").unlink()  # of an unfinished search
    assert result_of_run(read_run(tmp_path)).bill.probe_usd == result.bill.probe_usd


@pytest.mark.slow
@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("stop", [1, 6, 44, 50])  # preflight, reference, its end, search
def test_pilots_of_a_selection_that_was_stopped_are_not_asked_again(tmp_path, stop, repeat):
    def stopping(models, text):
        if len(app.calls) == stop:
            raise KeyboardInterrupt
        return app(models, text)

    app, arguments = App(), settings(metric=exactly, run_dir=tmp_path, repeat=repeat)
    with pytest.raises(KeyboardInterrupt):
        st.select(stopping, **arguments)
    number = len(app.calls)
    text = str(st.select(app, **arguments, dry_run="pilot"))
    has_measured = (tmp_path / "reference/journal.jsonl").exists()
    assert len(app.calls) == number + (0 if has_measured else 3 - (not repeat))
    assert " pilots cost 0.0" in text
    assert "2.20 USD are left for the search" in text
    measured = len(read_journal(tmp_path / "reference/journal.jsonl"))
    left = f"{40 - measured} runs" if measured < 40 else "known from this directory, no run"
    assert f"reference plan=pro, solve=pro: {left}" in text
    result = st.select(app, **arguments)
    assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)


@pytest.mark.slow
def test_a_pilot_of_another_run_is_refused(tmp_path):
    st.select(App(), **settings(metric=exactly, run_dir=tmp_path))
    app, other = App(), [(f"other {i}", f"OTHER {i}") for i in range(40)]
    with pytest.raises(InputError, match="40 of 40 queries are new or changed"):
        st.select(app, **settings(metric=exactly, run_dir=tmp_path, dataset=other), dry_run="pilot")
    assert app.calls == []


@pytest.mark.slow
def test_pilots_of_a_reference_that_is_known_are_in_the_bill(tmp_path):
    st.select(App(), **settings(metric=exactly, run_dir=tmp_path / "june"))
    app = App()
    changes = {"run_dir": tmp_path / "july", "continue_from": tmp_path / "june"}
    st.select(app, **settings(metric=exactly, **changes), dry_run="pilot")
    result = st.select(app, **settings(metric=exactly, **changes))
    assert app.usd() == pytest.approx(0.06)
    assert result.bill.total_usd == pytest.approx(app.usd())


@pytest.mark.slow
@pytest.mark.parametrize("budget_usd", [2.4, 3.0, 4.0])
def test_a_judge_is_reserved_for_the_held_out_queries_too(budget_usd):
    app, grades = App(), []

    def judge(expected, output):
        grades.append(0.01)
        return exactly(expected, output), 0.01

    result = st.select(app, **settings(metric=judge, budget_usd=budget_usd, holdout=0.3))
    paid = app.usd() + sum(grades)
    assert result.bill.total_usd == pytest.approx(paid)
    assert paid <= budget_usd + 0.03


def test_second_answers_leave_the_held_out_queries_their_money():
    app = App()
    result = st.select(app, **settings(metric=exactly, budget_usd=1.05, holdout=0.2, repeats=None))
    assert 0 < result.varies.asked < 30
    assert result.held_out.num_queries == 8
    assert app.usd() <= 1.05 + 0.02


@pytest.mark.slow
def test_a_larger_budget_keeps_the_second_answers(tmp_path):
    app = App()
    arguments = settings(metric=exactly, run_dir=tmp_path, repeats=None)
    small = st.select(app, **(arguments | {"budget_usd": 0.9}))
    large = st.select(app, **(arguments | {"budget_usd": 3.0}))
    assert small.varies == large.varies
    assert len(large.history) >= len(small.history)
    assert large.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)


@pytest.mark.parametrize("repeats", [0, 3])
@pytest.mark.slow
def test_what_an_older_run_saw_of_varying_answers_is_not_forgotten(tmp_path, repeats):
    changes = {"max_quality_loss": 0.3, "budget_usd": 6}
    first = settings(metric=exactly, run_dir=tmp_path / "june", repeats=None) | changes
    older = st.select(Varying(0.2), **first)
    assert older.varies.changed > 0
    again = settings(metric=exactly, run_dir=tmp_path / "july", repeats=repeats) | changes
    result = st.select(Varying(0.2, seed=1), **again, continue_from=tmp_path / "june")
    assert result.varies.asked == 30 + repeats
    assert result.varies.changed >= older.varies.changed
    assert result.report["flips"] > 0


@pytest.mark.slow
def test_a_certificate_by_bounds_is_doubted_where_answers_vary():
    make = lambda problem: st.make_scope(problem, base="nano")  # noqa: E731
    found = [
        st.select(
            Varying(0.1, seed),
            **settings(metric=exactly, optimizer=make, max_quality_loss=0.3, repeats=None),
        )
        for seed in range(4)
    ]
    certified = [one for one in found if one.certified and one.varies.changed]
    assert certified
    assert all("which this certificate does not allow for" in str(one) for one in certified)


@pytest.mark.slow
def test_the_condition_of_a_certificate_is_never_cut():
    long = {f"a_rather_long_name_of_a_module_{i}": ["nano", "mini", "pro"] for i in range(2)}
    result = st.select(
        App(),
        **settings(
            metric=exactly,
            models=long,
            reference="pro",
            constraints=["latency_s <= 2 cap 10"],
            holdout=0.2,
        ),
    )
    assert result.certified
    assert "if answers do not vary" in str(result)
    assert max(map(len, str(result).splitlines())) < 110


@pytest.mark.slow
def test_words_for_a_metric_that_never_matches_and_a_dry_run_that_is_none():
    with pytest.raises(InputError, match=r"right on none of 40 queries.* does the metric compare"):
        st.select(App(), **settings(metric=lambda *_: 0.0))
    with pytest.raises(InputError, match="dry_run='pilots' must be"):
        st.select(App(), **settings(dry_run="pilots"))
    assert st.select(App(), **settings(metric=exactly, continue_from=None)).certified


def test_an_app_that_raises_what_generators_mean_otherwise():
    def app(models, text):
        return next(iter(()))

    with pytest.raises(RuntimeError, match=r"it raised StopIteration"):
        st.select(app, **settings(metric=exactly))


class Outlier(App):
    """An answer of the cheap LLMs to some queries is dear: a search ends far beyond its budget."""

    def __call__(self, models, text):
        output, usd = super().__call__(models, text)
        dear = 0.5 if "pro" not in models.values() and text.endswith("7") else 0.0
        self.paid = getattr(self, "paid", 0.0) + usd + dear
        return output, usd + dear


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"repeat": True}, {"metric_version": "1"}], ids=str)
def test_a_larger_budget_asks_held_out_queries_only_for_the_rest(tmp_path, how):
    budget, counts, app = 1.25, [], Outlier()
    while not counts or counts[-1] < 20:
        arguments = settings(holdout=0.5, budget_usd=budget, run_dir=tmp_path, **how)
        result = st.select(app, **arguments)
        counts.append(result.held_out.num_queries if result.held_out else 0)
        held = {text for text, _ in settings()["dataset"]} - set(result.queries)
        asked = Counter(call for call in app.calls if call[1] in held)
        assert max(asked.values(), default=1) == 1
        budget += 0.03
    assert len({number for number in counts if 0 < number < 20}) >= 2
    assert result.bill.total_usd == pytest.approx(app.paid, rel=1e-12)


class Flaky(App):
    """Fails at random, once in eight calls; the reference never does. Knows what is asked twice."""

    def __init__(self, seed):
        super().__init__()
        self.luck = random.Random(seed)

    def __call__(self, models, text):
        answer = super().__call__(models, text)
        if models != REFERENCE and self.luck.random() < 0.125:
            raise TimeoutError("slow")
        return answer

    @staticmethod
    def answer(_, text):
        return text.upper()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_call_that_failed_is_not_asked_until_it_succeeds(seed, tmp_path):
    """Else what fails in 12.5% of its calls is certified to lose at most 5%, sooner or later."""
    given = {"metric": exactly, "on_error": "zero", "max_quality_loss": 0.05}
    app = Flaky(seed)
    june = st.select(app, **settings(**given, run_dir=tmp_path / "june"))
    assert sum(one.failed is not None for one in june.history) > 0
    assert set(Counter(app.calls).values()) == {1}
    # What failed at times is asked anew, all of it: failures alone would be asked until they end.
    july = st.select(
        app, **settings(**given, run_dir=tmp_path / "july", continue_from=tmp_path / "june")
    )
    failing = {one.theta for one in june.history if one.failed is not None}
    assert failing.isdisjoint(one.theta for one in july.known)
    for result in (june, july):
        theta, reference = result.recommendation.theta, result.problem.theta_ref
        runs = [one for one in (*result.known, *result.history) if one.theta == theta]
        told = {one.query: one.quality for one in reversed(runs)}
        if result.certified and theta != reference and len(told) == 40:
            assert sum(told.values()) >= 0.95 * 40


@pytest.mark.slow
def test_an_outage_is_over_in_the_next_search(tmp_path):
    """All calls of an LLM failed in June; in July it answers, and is chosen."""
    app = App()
    given = settings(metric=exactly, on_error="zero")

    def down(models, text):
        if "mini" in models.values():
            raise TimeoutError("down")
        return app(models, text)

    june = st.select(down, **given, run_dir=tmp_path / "june")
    assert sum(one.failed is not None for one in june.history) > 0
    july = st.select(app, **given, run_dir=tmp_path / "july", continue_from=tmp_path / "june")
    assert july.choice == {"plan": "mini", "solve": "mini"}
    assert july.certified


@pytest.mark.slow
def test_what_is_lost_on_held_out_queries_counts_against_the_budget(tmp_path):
    """A program that a supervisor starts again and again does not spend without end."""
    lost_usd, given = 0.0, settings(metric=exactly, run_dir=tmp_path, holdout=0.5, budget_usd=2.0)
    _, held_out = split(given["dataset"], 0.5, seed=0)

    def app(models, text):
        nonlocal lost_usd
        if text == held_out[9][0]:
            lost_usd += 0.2
            error = RuntimeError("no")
            error.cost_usd = 0.2
            raise error
        return text.upper(), PRICE[models["plan"]] + PRICE[models["solve"]]

    for _ in range(30):
        try:
            result = st.select(app, **given)
        except RuntimeError:
            continue
        break
    assert lost_usd >= 0.2
    assert result.bill.total_usd <= 2.0 + 0.2
    assert result.bill.total_usd >= lost_usd


@pytest.mark.slow
@pytest.mark.parametrize("is_piloted", [False, True])
@pytest.mark.parametrize("stop", [20, 60])  # in the reference, and in the search
def test_a_failure_is_paid_once_whatever_on_error_is_today(tmp_path, stop, is_piloted):
    app, number, fails = App(), 0, True

    def failing(models, text):
        nonlocal number
        number += 1
        if number == stop:
            raise KeyboardInterrupt
        output, usd = app(models, text)
        if fails and text == "query 0" and models == REFERENCE:
            error = TimeoutError("slow")
            error.cost_usd = usd
            raise error
        return output, usd

    how = settings(metric=exactly, run_dir=tmp_path)
    if is_piloted:
        st.select(failing, **how, on_error="zero", dry_run="pilot")
    with pytest.raises(KeyboardInterrupt):
        st.select(failing, **how, on_error="zero")
    fails = False
    result = st.select(failing, **how, on_error="raise")
    assert sum(one.failed is not None for one in result.reference) == 1
    assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)


@pytest.mark.parametrize("budget_usd", [0.015, 0.05, 0.065])
def test_pilots_take_their_share_of_the_budget(tmp_path, monkeypatch, budget_usd):
    """Each run costs 0.02 USD; a dry run stops after the one that crosses the budget."""
    for llm in PRICE:
        monkeypatch.setitem(PRICE, llm, 0.01)
    app, arguments = App(), settings(metric=exactly, run_dir=tmp_path, budget_usd=budget_usd)
    with suppress(InputError):
        st.select(app, **arguments, dry_run="pilot")
    number = len(app.calls)
    with pytest.raises(InputError, match="raise it"):
        st.select(app, **arguments)
    assert app.usd() < budget_usd + 0.02
    assert budget_usd > 0.06 or len(app.calls) == number


@pytest.mark.slow
def test_pilots_that_were_never_flown_are_not_in_the_bill(tmp_path):
    """A search that knows the reference would have copied them, at the price of then."""
    st.select(App(), **settings(metric=exactly, run_dir=tmp_path / "june"))

    def stopping(models, text):
        if len(app.calls) == 1:
            raise KeyboardInterrupt
        return app(models, text)

    app, changes = App(), {"run_dir": tmp_path / "july", "continue_from": tmp_path / "june"}
    with pytest.raises(KeyboardInterrupt):
        st.select(stopping, **settings(metric=exactly, **changes), dry_run="pilot")
    result = st.select(app, **settings(metric=exactly, **changes))
    assert result.bill.total_usd == pytest.approx(app.usd()) == pytest.approx(0.02)
