"""`recheck`: days of draws in one directory, alarms, what is paid, prices, logged traces."""

import json
import os
import random
from datetime import date

import pytest
from selection.test_select import exactly, in_june_2025

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scope_torch.runs.finished import load_runs
from scope_torch.selection.recheck import recheck_traces
from scope_torch.traces.reading import Traces
from scope_torch.traces.span import Score, Span

CHOICE = {"answer": "mini"}


class Provider:
    """Its LLM is right with a chance that it may change."""

    def __init__(self, skill=0.97):
        self.skill, self.calls, self._luck = {"mini": skill, "pro": 0.98}, [], random.Random(1)

    def __call__(self, models, text):
        self.calls.append((models["answer"], text))
        is_right = self._luck.random() < self.skill[models["answer"]]
        return (text.upper() if is_right else text), {"mini": 0.001, "pro": 0.01}[models["answer"]]


def look(provider, folder, choice=CHOICE, **changes):
    settings = {
        "dataset": [(f"query {i}", f"QUERY {i}") for i in range(60)],
        "metric": exactly,
        "min_quality": 0.9,
        "budget_usd": 2,
        "run_dir": folder,
        "draws": 25,
        "name": "my_app",
    }
    return st.recheck(provider, choice, **settings | changes)


def on(monkeypatch, day):
    class Day(date):
        @classmethod
        def today(cls):
            return cls(2026, 11, day)

    monkeypatch.setattr("scope_torch.selection.recheck.date", Day)


def test_the_draws_stay_in_the_folder_if_the_app_enters_another_one(tmp_path, monkeypatch):
    provider = Provider()

    def enters(models, text):
        os.chdir("/")
        return provider(models, text)

    for number in (25, 50):
        monkeypatch.chdir(tmp_path)
        found = look(enters, "watch")
        assert (len(found.pairs), found.num_new, found.total_usd) == (
            number,
            25,
            pytest.approx(0.001 * number, rel=1e-12),
        )


@pytest.mark.slow
def test_a_change_of_the_provider_is_an_alarm(tmp_path, monkeypatch):
    provider = Provider()
    for day in range(1, 9):
        on(monkeypatch, day)
        found = look(provider, tmp_path)
        assert found.alarm is None
        assert found.exit_status == 0
        assert (len(found.pairs), found.num_new) == (25 * day, 25)
        assert found.spent_usd == pytest.approx(0.025)
        assert found.evidence < 1
    provider.skill["mini"] = 0.6
    for day in range(9, 13):
        on(monkeypatch, day)
        found = look(provider, tmp_path)
        if found.alarm:
            break
    assert found.exit_status == 1
    assert found.days[found.alarm.draw] in ("2026-11-09", "2026-11-10", "2026-11-11")
    assert abs(found.alarm.since - 200) < 12
    assert len(provider.calls) == len(found.pairs)
    assert "quality >= 0.9 does not hold: said on 2026-11-" in str(found)
    assert str(found).startswith("ALARM: answer=mini\n")
    told = json.loads((tmp_path / "recheck.json").read_text())
    assert told == json.loads(json.dumps(found.to_json()))
    assert told["alarm"]["day"] == found.days[found.alarm.draw]
    provider.skill["mini"] = 1.0
    on(monkeypatch, 20)
    later = look(provider, tmp_path)
    assert later.alarm == found.alarm  # it stays
    assert later.days[-1] == "2026-11-20"


def test_queries_are_drawn_with_replacement_in_one_order(tmp_path):
    one, two = Provider(), Provider()
    look(one, tmp_path / "a", draws=80)
    for draws in (10, 30, 40):
        look(two, tmp_path / "b", draws=draws)
    assert [text for _, text in one.calls] == [text for _, text in two.calls]
    assert len({text for _, text in one.calls}) < 60


def test_a_crash_loses_no_draw(tmp_path):
    class Breaks(Provider):
        def __call__(self, models, text):
            if len(self.calls) == 12:
                raise KeyboardInterrupt
            return super().__call__(models, text)

    first, second = Breaks(1.0), Provider(1.0)
    with pytest.raises(KeyboardInterrupt):
        look(first, tmp_path)
    found = look(second, tmp_path)
    assert len(first.calls) + len(second.calls) == len(found.pairs) == 25
    assert found.spent_usd == found.total_usd == pytest.approx(0.025)  # no report told of 0.012
    third = look(Provider(1.0), tmp_path, draws=1)
    assert (third.spent_usd, third.total_usd) == pytest.approx((0.001, 0.026))


def test_what_a_stopped_look_paid_is_in_the_next_report(tmp_path):
    luck, told = random.Random(3), 0.0
    provider = Provider(1.0)

    def breaks(models, text):
        output, usd = provider(models, text)
        if luck.random() < 0.05:
            error = RuntimeError("outage")
            error.cost_usd = usd
            raise error
        return output, usd

    for draws in (25, 10, 30, 5, 20):
        try:
            told += look(breaks, tmp_path, draws=draws, concurrency=4).spent_usd
        except RuntimeError:
            continue
    found = look(provider, tmp_path, draws=1)
    assert told + found.spent_usd == pytest.approx(0.001 * len(provider.calls))
    assert found.total_usd == pytest.approx(0.001 * len(provider.calls))
    written = json.loads((tmp_path / "recheck.json").read_text())
    del written["total_usd"]  # of an early version
    (tmp_path / "recheck.json").write_text(json.dumps(written))
    assert look(provider, tmp_path, draws=2).spent_usd == pytest.approx(0.002)


def test_a_clock_that_goes_back_moves_no_draw_to_another_day(monkeypatch, tmp_path):
    """As on a flight, or where a wrong clock is set over midnight."""
    days = [26, 25, 26, 25, 27]
    for day in days:
        on(monkeypatch, day)
        result = look(Provider(), tmp_path, draws=2)
    assert result.days == [f"2026-11-{day}" for day in days for _ in range(2)]


@pytest.mark.parametrize("draws", [1, 30])
def test_a_look_that_was_stopped_with_calls_in_flight_goes_on_with_fewer_draws(tmp_path, draws):
    whole = look(Provider(1.0), tmp_path, concurrency=4)
    (tmp_path / "days.json").unlink()
    journal = tmp_path / "journal.jsonl"
    of_draws = [pair.new.request for pair in whole.pairs]
    arrived = [*of_draws[:8], *of_draws[9:15]]  # the ninth was in flight
    lines = journal.read_text().splitlines()
    lines = [f"{line}\n" for line in lines if Observation.from_json(line).request in arrived]
    journal.write_text("".join(lines))
    provider = Provider(1.0)
    found = look(provider, tmp_path, draws=draws, concurrency=4)
    assert found.num_new == len(found.pairs) == max(15, draws)
    assert len(provider.calls) == len(found.pairs) - 14
    assert [pair.new.request for pair in found.pairs[:25]] == of_draws[: len(found.pairs)]


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 0.5])
def test_a_journal_that_lost_draws_is_refused(tmp_path, kept):
    """They would be paid again, and be called those of their day."""
    provider = Provider()
    for _ in range(2):
        look(provider, tmp_path, draws=5)
    lines = (tmp_path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "journal.jsonl").write_bytes(b"".join(lines[: int(kept * len(lines))]))
    with pytest.raises(InputError, match=r"journal\.jsonl has [05] of 10 draws; restore the file"):
        look(provider, tmp_path, draws=5)
    assert len(provider.calls) == 10


def test_a_last_line_that_is_damaged_is_observed_again(tmp_path):
    provider = Provider()
    look(provider, tmp_path, draws=5)
    content = (tmp_path / "journal.jsonl").read_bytes()
    (tmp_path / "journal.jsonl").write_bytes(content[:-9])
    assert look(provider, tmp_path, draws=5).num_new == 5
    assert len(provider.calls) == 5 + 1 + 5


def test_a_damaged_report_is_refused_before_a_call(tmp_path):
    """Else every day would pay for draws, and end without a word of them."""
    provider = Provider()
    look(provider, tmp_path, draws=5)
    (tmp_path / "recheck.json").write_text("{")
    with pytest.raises(InputError, match=r"recheck\.json is damaged"):
        look(provider, tmp_path, draws=5)
    assert len(provider.calls) == 5


def test_what_a_search_chose_by_says_nothing_of_its_choice(tmp_path):
    provider = Provider(1.0)
    data = [(f"query {i}", f"QUERY {i}") for i in range(60)]
    how = {"dataset": data, "metric": exactly, "budget_usd": 5, "repeats": 0, "name": "my_app"}
    how |= {"models": {"answer": ["mini", "pro"]}, "reference": "pro", "max_quality_loss": 0.1}
    st.select(provider, run_dir=tmp_path / "search", **how)
    provider.calls.clear()
    beside = {"min_quality": None, "max_quality_loss": 0.1, "reference": {"answer": "pro"}}
    look(provider, tmp_path / "watch", continue_from=tmp_path / "search", **beside)
    assert [llm for llm, _ in provider.calls] == ["pro", "mini"] * 25


def test_a_reference_that_is_never_right_has_no_ratio(tmp_path):
    provider = Provider(0.0)
    provider.skill["pro"] = 0.0
    beside = {"min_quality": None, "max_quality_loss": 0.1, "reference": {"answer": "pro"}}
    text = str(look(provider, tmp_path, **beside))
    assert "unknown times the reference in 25 draws" in text
    assert "nan" not in text


def test_money_ends_a_look_and_the_next_one_goes_on(tmp_path):
    found = look(Provider(), tmp_path, budget_usd=0.0045)
    assert len(found.pairs) == 5
    found = look(Provider(), tmp_path, budget_usd=0.0105)
    assert found.num_new == 11
    assert len(found.pairs) == 16


@pytest.mark.slow
def test_beside_a_reference(tmp_path):
    provider = Provider()
    settings = {"min_quality": None, "max_quality_loss": 0.1, "reference": {"answer": "pro"}}
    found = look(provider, tmp_path, draws=100, **settings)
    assert found.alarm is None
    assert [llm for llm, _ in provider.calls] == ["pro", "mini"] * 100
    provider.skill["mini"] = 0.5
    assert look(provider, tmp_path, draws=100, **settings).alarm is not None
    assert "times the reference" in str(look(provider, tmp_path, draws=1, **settings))


@pytest.mark.slow
def test_the_reference_may_fall_with_it(tmp_path):
    """A bound relative to the reference is about the two, not about the questions."""
    provider = Provider(0.5)
    provider.skill["pro"] = 0.5
    settings = {"min_quality": None, "max_quality_loss": 0.1, "reference": {"answer": "pro"}}
    assert look(provider, tmp_path, draws=200, **settings).alarm is None


def test_other_constraints_have_their_own_detector(tmp_path):
    class Slow(Provider):
        seconds = 1.0

        def __call__(self, models, text):
            output, usd = super().__call__(models, text)
            return {"output": output, "cost_usd": usd, "outcomes": {"latency_s": self.seconds}}

    provider, how = Slow(), {"constraints": ["latency_s <= 2 cap 10", "cost_usd <= 0.01 cap 0.1"]}
    assert look(provider, tmp_path, draws=60, **how).alarm is None
    provider.seconds = 6.0
    found = look(provider, tmp_path, draws=60, **how)
    assert found.alarm.constraint.outcome == "latency_s"
    assert 60 <= found.alarm.since <= found.alarm.draw < 120


def test_a_new_price_is_told(tmp_path):
    from scope_torch.llm.prices import LLMInfo

    def app(models, text):
        return text.upper(), {"answer": (1000, 100)}

    def prices(usd):
        return {"mini": LLMInfo("mini", usd, 4.0)}

    assert look(app, tmp_path, prices=prices(1.0)).prices == {}
    found = look(app, tmp_path, prices=prices(1.0))
    assert "price of" not in str(found)
    found = look(app, tmp_path, prices=prices(2.5))
    assert found.prices == {"mini": ((1.0, 4.0), (2.5, 4.0))}
    assert "price of mini: 2.5, 4 USD per million tokens (in, out), was 1, 4" in str(found)


def test_a_published_price_that_falls_is_told(tmp_path, monkeypatch):
    """Prices have dates: that of o3 fell on 2025-06-10, and no release of genai-prices came."""

    def app(_, text):
        return text.upper(), {"answer": (1_000, 100)}

    def of_o3():
        how = {"dataset": [("a", "A"), ("b", "B")], "metric": exactly, "min_quality": 0.5}
        return st.recheck(app, {"answer": "o3"}, budget_usd=1, run_dir=tmp_path, draws=5, **how)

    in_june_2025(monkeypatch, 9)
    first = of_o3()
    in_june_2025(monkeypatch, 11)
    found = of_o3()
    assert first.prices == {}
    assert found.prices == {"o3": ((10.0, 40.0), (2.0, 8.0))}
    assert "price of o3: 2, 8 USD per million tokens (in, out), was 10, 40" in str(found)
    assert (first.spent_usd, found.spent_usd) == pytest.approx((0.07, 0.014))


def test_a_report_passes_over_what_is_no_search(tmp_path):
    look(Provider(), tmp_path / "watch")
    how = {"dataset": ["a", "b"], "min_quality": 0.5, "budget_usd": 1}
    st.check(lambda *_: (1.0, 0.01), CHOICE, run_dir=tmp_path / "check", **how)
    with pytest.raises(InputError, match="no finished run"):
        load_runs(tmp_path)


def test_other_settings_are_refused(tmp_path):
    look(Provider(), tmp_path)
    with pytest.raises(InputError, match="limits"):
        look(Provider(), tmp_path, min_quality=0.8)
    with pytest.raises(InputError, match="queries"):
        look(Provider(), tmp_path, dataset=[("a", "A"), ("b", "B")])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draws": 0}, "draws"),
        ({"false_alarm_every": 0}, "false_alarm_every"),
        ({"min_quality": None, "max_quality_loss": 0.1}, "reference="),
        ({"min_quality": None}, "how good is good enough"),
        ({"holdout": 0.2}, "that is for select"),
        ({"run_dir": None}, "run_dir=None must be a path"),
        ({"run_dir": 5}, "run_dir=5 must be a path"),
    ],
)
def test_what_cannot_be_used_is_refused_before_the_first_call(tmp_path, changes, message):
    provider = Provider()
    with pytest.raises(InputError, match=message):
        look(provider, tmp_path, **changes)
    assert provider.calls == []


def traces(qualities, llm="mini", at_once=1):
    """Four a day from the first of November on; the files are in another order."""
    spans, scores = [], []
    for number, quality in enumerate(qualities):
        start = 1_793_491_200 + 21_600 * (number // at_once)  # 2026-11-01
        of = {"start": float(start), "seconds": 1.0}
        spans.append(Span(f"t{number}", "a", None, "app", **of))
        spans.append(Span(f"t{number}", "b", "a", "answer", **of))
        call = {"llm": llm, "is_call": True, "cost_usd": 0.001}
        spans.append(Span(f"t{number}", "c", "b", "chat", **of, **call))
        scores.append(Score(f"t{number}", "right", quality))
    order = random.Random(0).sample(range(len(qualities)), len(qualities))
    return Traces([span for i in order for span in spans[3 * i : 3 * i + 3]], scores)


def test_logged_traces_need_no_call():
    good, bad = [1.0] * 60, [0.0, 1.0] * 20
    found = recheck_traces(traces(good), CHOICE, min_quality=0.9)
    assert found.alarm is None
    assert len(found.pairs) == 60
    assert (found.days[0], found.days[-1]) == ("2026-11-01", "2026-11-15")
    found = recheck_traces(traces(good + bad), CHOICE, min_quality=0.9)
    assert found.alarm.since == 60
    assert found.days[found.alarm.since] == "2026-11-16"
    assert 64 < found.alarm.draw < 90
    with pytest.raises(InputError, match="the traces ran"):
        recheck_traces(traces(good, llm="nano"), CHOICE, min_quality=0.9)
    # A log tells the LLM, and often not how it was asked.
    low = {"answer": st.LLM("mini", effort="low")}
    assert recheck_traces(traces(good), low, min_quality=0.9).alarm is None
    with pytest.raises(InputError, match="the traces ran"):
        recheck_traces(traces(good, llm="nano"), low, min_quality=0.9)


@pytest.mark.slow
def test_traces_of_one_time_are_no_alarm():
    """A log of whole days: failures of a day must not stand before its successes."""
    luck = random.Random(0)
    qualities = [float(luck.random() < 0.95) for _ in range(1000)]
    for at_once in (50, 1000):
        found = recheck_traces(traces(qualities, at_once=at_once), CHOICE, min_quality=0.9)
        assert found.alarm is None
        assert found.evidence < 0.1
        again = recheck_traces(traces(qualities, at_once=at_once), CHOICE, min_quality=0.9)
        assert again.pairs == found.pairs


@pytest.mark.slow
def test_what_grading_anew_has_cost_is_of_the_first_day(tmp_path):
    """It is in no later day's budget; else these make no draw, and lose those that were made."""
    data = [(i, str(i)) for i in range(40)]

    def app(models, x):
        return str(x), 0.01

    def dear(expected, output):
        return float(expected == output), 0.05

    how = {"dataset": data, "max_quality_loss": 0.1, "progress": False, "name": "x"}
    st.select(
        app, models={"a": ["nano", "pro"]}, reference="pro", budget_usd=5, metric=exactly,
        run_dir=tmp_path / "june", **how,
    )  # fmt: skip
    for day, budget_usd in enumerate([4.0, 0.7, 0.7], start=1):
        found = st.recheck(
            app, {"a": "mini"}, reference={"a": "pro"}, metric=dear, budget_usd=budget_usd, draws=5,
            run_dir=tmp_path / "watch", continue_from=tmp_path / "june", **how,
        )  # fmt: skip
        assert (len(found.pairs), found.num_new) == (5 * day, 5)
