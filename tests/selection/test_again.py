"""How much answers vary is measured, told, and allowed for."""

import json
import random
import re

import pytest
from selection.test_select import PRICE, App, exactly, settings

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.llm.prices import LLMInfo


class Varying(App):
    """A share of its right answers is wrong, another one each time."""

    def __init__(self, share, seed=0):
        super().__init__()
        self.share, self.random = share, random.Random(seed)

    def __call__(self, models, text):
        output, usd = super().__call__(models, text)
        return ("?" if self.random.random() < self.share else output), usd


def selected(app, number=80, **changes):
    dataset = [(f"query {i}", f"QUERY {i}") for i in range(number)]
    arguments = settings(metric=exactly, dataset=dataset, budget_usd=8, repeats=None)
    return st.select(app, **(arguments | {"max_quality_loss": 0.2} | changes))


@pytest.mark.slow
def test_the_reference_answers_thirty_queries_twice():
    app = App()
    result = selected(app)
    asked = [text for llms, text in app.calls if llms == ("pro", "pro")]
    assert len(asked) == 80 + 30
    assert len(set(asked)) == 80
    assert (result.varies.asked, result.varies.changed) == (30, 0)
    assert result.bill.again_usd == pytest.approx(30 * 0.02)
    assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)
    assert "if answers do not vary (reference: 0 of 30 did, at most 12%)" in str(result)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 7])
def test_a_number_says_how_many(number):
    app = App()
    result = selected(app, repeats=number)
    assert sum(llms == ("pro", "pro") for llms, _ in app.calls) == 80 + number
    assert (0 if result.varies is None else result.varies.asked) == number


@pytest.mark.slow
def test_where_answers_vary_the_certificate_asks_again_and_says_so(tmp_path):
    app = Varying(0.1)
    result = selected(app, run_dir=tmp_path)
    assert result.varies.changed > 0
    assert result.certified
    theta = result.recommendation.theta
    answers = [o for o in result.history if o.theta == theta]
    assert len(answers) >= 2 * 80  # not once each
    assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)
    low, high = result.varies.interval
    told = re.search(r"although (.*)% \((.*)% to (.*)%\) of answers change", result.why)
    rate, least, most = map(float, told.groups())
    assert rate == pytest.approx(100 * result.varies.rate, rel=0.05)
    assert 90 * low <= least <= 100 * low  # rounded to the safe side
    assert 100 * high <= most <= 110 * high
    assert told.group() in " ".join(str(result).split())
    written = json.loads((tmp_path / "result.json").read_text())["repeated_answers"]
    assert written["changed"] == result.varies.changed
    low, high = written["interval"]
    assert low < written["rate"] < high
    saved = json.loads(result.save(tmp_path / "models.json").read_text())
    assert saved["repeated_answers"] == written
    result.save(tmp_path / "report.html")
    assert "of answers change" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_a_resumed_selection_is_the_same(tmp_path):
    first = selected(Varying(0.1), run_dir=tmp_path)
    app = Varying(0.1, seed=1)
    again = selected(app, run_dir=tmp_path)
    assert app.calls == []
    assert again.summary()["result_hash"] == first.summary()["result_hash"]
    assert again.bill == first.bill


@pytest.mark.slow
@pytest.mark.parametrize(("before", "now"), [(0, 30), (7, 30), (7, 0), (None, 5)])
def test_a_run_that_goes_on_keeps_its_number_and_says_so(tmp_path, caplog, before, now):
    first, app = selected(App(), run_dir=tmp_path, repeats=before), App()
    selected(App(), run_dir=tmp_path, repeats=before)
    selected(App(), run_dir=tmp_path)
    assert "repeats=" not in caplog.text
    again = selected(app, run_dir=tmp_path, repeats=now)
    assert app.calls == []
    assert again.bill == first.bill
    asked = 30 if before is None else before
    assert f"repeats={now} is not what this run began with: it asked {asked} q" in caplog.text
    assert "continue_from= and another run_dir" in caplog.text


@pytest.mark.slow
def test_next_month_takes_over_what_was_seen(tmp_path):
    first = selected(Varying(0.1), run_dir=tmp_path / "june")
    app = Varying(0.1, seed=1)
    again = selected(app, run_dir=tmp_path / "july", continue_from=tmp_path / "june")
    assert again.varies == first.varies
    assert again.bill.again_usd == 0
    assert not any(llms == ("pro", "pro") for llms, _ in app.calls)


@pytest.mark.slow
def test_a_budget_that_is_nearly_spent_asks_fewer_again():
    app = App()
    result = selected(app, budget_usd=1.8)
    assert 0 < result.varies.asked < 30
    assert app.usd() <= 1.8 + 0.02


@pytest.mark.slow
def test_a_budget_of_any_size_is_a_budget():
    assert selected(App(), budget_usd=1e308).varies.asked == 30


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"repeat": True}, {"repeat": True, "reference": "mini"}], ids=str)
def test_what_has_answered_all_queries_was_tried(tmp_path, how):
    st.select(App(), **settings(metric=exactly, run_dir=tmp_path))
    how = {"models": {"plan": list(PRICE), "solve": list(PRICE)}, "reference": "pro"} | how
    result = st.select(App(), **settings(metric=exactly, continue_from=tmp_path, **how))
    rows = result.table().rows(named=True)
    answered = [row["status"] for row in rows if row["queries"] == 40]
    assert "not tried" not in answered
    assert "not certified" in answered
    assert {row["queries"] for row in rows if row["status"] in ("reference", "choice")} == {40}


@pytest.mark.slow
def test_the_reference_has_answered_all_queries():
    rows = st.select(App(), **settings(metric=exactly)).table().rows(named=True)
    assert [row["queries"] for row in rows if row["status"] == "reference"] == [40]


class Once(App):
    """The reference answers each query once."""

    def __call__(self, models, text):
        answered = super().__call__(models, text)
        if set(models.values()) == {"pro"} and self.calls.count(self.calls[-1]) > 1:
            raise TimeoutError("no reply")
        return answered


@pytest.mark.slow
def test_second_answers_that_failed_have_changed():
    result = selected(Once(), on_error="zero", repeats=7)
    assert result.varies.asked == result.varies.changed == result.bill.num_failed == 7
    assert "100% (59% to 100%) of answers change" in result.why


class Cached(Varying):
    """Keeps each answer by LLMs and input, as DSPy does; what it replays costs nothing."""

    def __init__(self, share, of_cache, seed=0):
        super().__init__(share, seed)
        self.known, self.of_cache = {}, of_cache

    def __call__(self, models, text):
        key = (*models.values(), text)
        if key in self.known:
            return self.known[key], self.of_cache
        self.known[key], usd = super().__call__(models, text)
        return self.known[key], usd if self.of_cache == 0.0 else dict.fromkeys(models, (500, 100))


@pytest.mark.slow
@pytest.mark.parametrize("of_cache", [0.0, {}, {"plan": (500, 100)}], ids=str)
def test_second_answers_of_a_cache_are_none(of_cache, caplog):
    prices = {llm: LLMInfo(llm, 1000 * usd, 0.0) for llm, usd in PRICE.items()}
    prices = None if of_cache == 0.0 else prices
    result = selected(Cached(0.1, of_cache), prices=prices, budget_usd=100)
    assert result.varies is None
    told = "which is not known: all 30 second answers came from a cache"
    assert told in result.why
    assert told in " ".join(str(result).split())
    assert "30 of 30 second answers came from a cache" in caplog.text


@pytest.mark.slow
def test_second_answers_that_a_cache_forgot_count():
    app = Cached(0.3, 0.0)

    def forgetful(models, text):
        keeps = int(text.split()[1]) % 2
        return app(models, text) if keeps else Varying.__call__(app, models, text)

    result = selected(forgetful)
    asked_twice = [one.query for one in result.reference_again if one.cost_usd]
    assert result.varies.asked == len(asked_twice)
    assert 0 < len(asked_twice) < len(result.reference_again) == 30
    assert result.varies.changed > 0


def test_pilots_that_cost_more_than_the_budget_name_a_mend():
    mend = r"the pilots: 1 of 3 runs of the reference cost 0.02 USD, and budget_usd=0.01; raise it"
    with pytest.raises(InputError, match=mend + ": all queries cost about 1.6 USD"):
        selected(App(), budget_usd=0.01, dry_run="pilot")


@pytest.mark.slow
def test_of_several_older_runs_the_one_that_saw_a_change_counts(tmp_path):
    selected(Varying(0.2, seed=1), run_dir=tmp_path / "june")
    selected(App(), run_dir=tmp_path / "july")
    older = [tmp_path / "june", tmp_path / "july"]
    result = selected(App(), run_dir=tmp_path / "august", continue_from=older)
    assert result.varies.changed > 0
    assert result.report["flips"]


@pytest.mark.slow
def test_second_answers_of_another_reference_say_nothing(tmp_path):
    selected(App(), run_dir=tmp_path / "june")
    app, mini = App(), dict.fromkeys(("plan", "solve"), "mini")
    how = {"continue_from": tmp_path / "june", "run_dir": tmp_path / "july", "reference": mini}
    july = selected(app, **how)
    assert july.bill.again_usd == pytest.approx(30 * App.cost(mini))
    assert {one.theta for one in july.reference_again} == {july.problem.theta_ref}
    assert july.varies.asked == len(july.reference_again) == 30


@pytest.mark.slow
def test_another_seed_is_refused_with_the_run_that_can_be_continued_from(tmp_path):
    selected(App(), run_dir=tmp_path / "june")
    with pytest.raises(InputError, match="does not ask for") as caught:
        selected(App(), run_dir=tmp_path / "june", seed=1)
    assert f"With continue_from={str(tmp_path / 'june')!r} select" in str(caught.value)


@pytest.mark.slow
def test_another_metric_does_not_make_answers_fixed(tmp_path, caplog):
    selected(Varying(0.2, seed=1), run_dir=tmp_path / "june")
    how = {"continue_from": tmp_path / "june", "metric": st.metrics.contains}
    asked = selected(Varying(0.2, seed=1), run_dir=tmp_path / "july", **how)
    assert asked.varies.asked == 30
    assert "answers changed" not in caplog.text
    selected(Varying(0.2, seed=1), run_dir=tmp_path / "august", repeats=0, **how)
    assert f"answers changed from call to call in {tmp_path / 'june'}, by another" in caplog.text


@pytest.mark.slow
def test_failures_of_the_reference_are_known_with_its_other_answers(tmp_path):
    """Asked anew alone, they would be until they succeed, and the threshold would rise."""
    seen = set()

    def app(models, text):
        number = int(text.split()[1])
        is_first = (models["plan"], number) not in seen
        seen.add((models["plan"], number))
        if models["plan"] == "pro" and number % 5 == 0 and is_first:
            raise RuntimeError("503")
        return text.upper(), App.cost(models)

    how = {"on_error": "zero", "repeats": 0}
    june = selected(app, run_dir=tmp_path / "june", **how)
    assert june.problem.reference_quality == pytest.approx(0.8, abs=0.02)
    july = selected(app, run_dir=tmp_path / "july", continue_from=tmp_path / "june", **how)
    assert july.problem.reference_quality == june.problem.reference_quality
