"""`select`: an application, a data set and a reference in; the choice, with its bill, out."""

import asyncio
import json
import math
import os
import random
from contextlib import ExitStack
from datetime import date, datetime
from types import SimpleNamespace

import pytest

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.llm.prices import LLMInfo
from scope_torch.runs.finished import load_runs
from scope_torch.selection.sampling import split
from scope_torch.selection.steps import served

PRICE = {"nano": 1e-4, "mini": 4e-4, "pro": 1e-2}  # USD of a call
SKILL = {"nano": 0.6, "mini": 0.99, "pro": 1.0}
REFERENCE = {"plan": "pro", "solve": "pro"}


class App:
    """Two modules; an input in capitals is the right answer. Knows its own bill."""

    def __init__(self):
        self.calls = []

    def __call__(self, models, text):
        self.calls.append((tuple(models.values()), text))
        return self.answer(models, text), self.cost(models)

    @staticmethod
    def answer(models, text):
        luck = random.Random(f"{sorted(models.items())} {text}")
        is_right = all(luck.random() < SKILL[llm] for llm in models.values())
        return text.upper() if is_right else text

    @staticmethod
    def cost(models):
        return sum(PRICE[llm] for llm in models.values())

    def usd(self):
        return math.fsum(PRICE[llm] for llms, _ in self.calls for llm in llms)


def settings(**changes):
    return {
        "models": list(PRICE),
        "reference": REFERENCE,
        "dataset": [(f"query {i}", f"QUERY {i}") for i in range(40)],
        "metric": st.metrics.exact_match,
        "max_quality_loss": 0.1,
        "budget_usd": 3.0,
        "name": "my_app",
        "repeats": 0,
    } | changes


def in_june_2025(monkeypatch, day):
    """Published prices are those of a day: that of o3 fell on 2025-06-10."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2025, 6, day, tzinfo=tz)

    monkeypatch.setattr("scope_torch.llm.price_list.datetime", Clock)


def exactly(expected, output):
    return float(expected == output)


def paid(result):
    """Everything that was called for, from the observations."""
    held_out = result.held_out
    parts = [result.probe, result.reference, result.history]
    parts += [] if held_out is None else [held_out.choice, held_out.reference]
    usd = math.fsum(o.cost_usd for part in parts for o in part)
    return usd - math.fsum(o.cost_usd for o in result.repeats or ()) + result.surplus_usd


@pytest.mark.slow
def test_the_choice_and_the_bill_of_a_selection():
    app = App()
    result = st.select(app, **settings(metric=exactly, holdout=0.1))
    assert result.choice == {"plan": "mini", "solve": "mini"}
    assert result.recommendation.basis == "certified"
    assert result.problem.reference_quality == 1.0
    assert result.problem.reference_cost_usd == pytest.approx(0.02)
    assert len(result.reference) == result.problem.num_queries == 36
    assert result.held_out.num_queries == len(result.held_out.choice) == 4
    assert paid(result) == pytest.approx(app.usd(), rel=1e-12)
    assert len(set(app.calls)) == len(app.calls)  # nothing is asked twice
    assert app.usd() < 3.0
    assert result.queries == [text for text in result.queries if ("x", text) not in app.calls]


@pytest.mark.slow
def test_the_search_does_not_see_the_held_out_queries():
    app = App()
    result = st.select(app, **settings(metric=exactly, holdout=0.25))
    kept = {f"query {i}" for i in range(40)} - set(result.queries)
    assert len(kept) == 10
    asked = {llms for llms, text in app.calls if text in kept}
    assert asked == {tuple(result.choice.values()), ("pro", "pro")}


@pytest.mark.slow
def test_a_search_of_the_same_problem_by_hand_is_the_same():
    """`select` is a thin face: the same objects, put together by hand, give the same result."""
    result = st.select(App(), **settings(metric=exactly))
    dataset = settings()["dataset"]

    def graded(models, pair):
        text, expected = pair
        return exactly(expected, App.answer(models, text)), App.cost(models)

    llms = tuple(PRICE)
    problem = st.SelectionProblem(
        "my_app",
        ("plan", "solve"),
        (llms, llms),
        40,
        (2, 2),
        1.0,
        result.problem.reference_cost_usd,
        0.1,
    )
    left = 3.0 - math.fsum(o.cost_usd for o in [*result.probe, *result.reference])
    by_hand = st.run(
        problem,
        st.make_scope_joint(problem, base="nano", seed=0, budget_usd=left),
        FunctionEvaluator(problem, graded, dataset),
        left,
    )
    assert by_hand.recommendation == result.recommendation
    assert [o.request for o in by_hand.history] == [o.request for o in result.history]


@pytest.mark.slow
@pytest.mark.parametrize("stop_after", [1, 20, 90])  # preflight, reference, search
def test_a_selection_that_breaks_goes_on_where_it_stopped(stop_after, tmp_path):
    whole = App()
    expected = st.select(whole, **settings(metric=exactly, run_dir=tmp_path / "whole", holdout=0.1))
    first, second = App(), App()

    def breaks(models, text):
        if len(first.calls) == stop_after:
            raise KeyboardInterrupt
        return first(models, text)

    with pytest.raises(KeyboardInterrupt):
        st.select(breaks, **settings(metric=exactly, run_dir=tmp_path / "run", holdout=0.1))
    found = st.select(second, **settings(metric=exactly, run_dir=tmp_path / "run", holdout=0.1))
    assert first.calls + second.calls == whole.calls
    assert found.recommendation == expected.recommendation
    assert found.summary()["result_hash"] == expected.summary()["result_hash"]
    journal = "run/journal.jsonl", "whole/journal.jsonl"
    assert (tmp_path / journal[0]).read_bytes() == (tmp_path / journal[1]).read_bytes()


@pytest.mark.slow
def test_the_reference_is_not_measured_again_and_stays_as_it_was(tmp_path):
    calls = []

    def moving(models, text):  # another answer each time it is asked
        calls.append(text)
        return (text.upper() if len(calls) % 7 else text), App.cost(models)

    arguments = settings(metric=exactly, run_dir=tmp_path, max_quality_loss=0.3)
    first = st.select(moving, **arguments)
    number = len(calls)
    again = st.select(moving, **arguments)
    assert len(calls) == number
    assert again.problem == first.problem
    assert 0.7 < first.problem.reference_quality < 1
    frozen = json.loads((tmp_path / "settings.json").read_text())["problem"]
    assert frozen["reference_quality"] == first.problem.reference_quality


@pytest.mark.slow
def test_a_larger_budget_goes_on(tmp_path):
    def spend(budget_usd):
        app = App()
        make = lambda problem: st.make_scope_joint(problem, base="nano")  # noqa: E731
        arguments = settings(metric=exactly, run_dir=tmp_path, optimizer=make)
        return app, st.select(app, **(arguments | {"budget_usd": budget_usd}))

    _, small = spend(0.81)
    app, large = spend(3.0)
    assert small.stop_reason == "budget"
    assert len(large.history) > len(small.history)
    assert ("pro", "pro") not in {llms for llms, _ in app.calls}


@pytest.mark.slow
def test_an_app_may_enter_another_folder(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    app = App()

    def enters(models, text):
        os.chdir(tmp_path / "elsewhere")
        return app(models, text)

    for folder, earlier in (("june", ()), ("july", "june")):
        how = {"run_dir": folder, "continue_from": earlier, "holdout": 0.1}
        for _ in range(2):
            monkeypatch.chdir(tmp_path)
            result = st.select(enters, **settings(**how))
            assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)
        assert result.run_dir == tmp_path / folder
        app.calls.clear()
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.slow
def test_an_asynchronous_app_with_tokens_and_prices():
    prices = {llm: LLMInfo(llm, 1e3 * usd, 2e3 * usd) for llm, usd in PRICE.items()}
    tokens = (500, 250)  # so a call costs PRICE[llm]

    async def app(models, text):
        await asyncio.sleep(0)
        return App.answer(models, text), dict.fromkeys(models, tokens)

    found = st.select(app, **settings(metric=exactly, prices=prices, concurrency=4))
    alone = st.select(App(), **settings(metric=exactly, in_flight=4, base="nano"))
    assert found.choice == alone.choice == {"plan": "mini", "solve": "mini"}
    assert len(found.probe) == 2  # each LLM answers once; the prices tell which is the cheapest
    assert [o.request for o in found.history] == [o.request for o in alone.history]
    assert found.history[0].module_tokens == (tokens, tokens)
    assert found.prices.keys() >= set()


@pytest.mark.slow
def test_a_resumed_run_keeps_the_day_of_its_prices(tmp_path):
    own = {llm: LLMInfo(llm, 1e3 * usd, 2e3 * usd) for llm, usd in PRICE.items()}

    def app(models, text):
        return App.answer(models, text), dict.fromkeys(models, (500, 250))

    january = st.PriceList(own, at=date(2026, 1, 5))
    arguments = settings(metric=exactly, run_dir=tmp_path)
    first = st.select(app, **arguments, prices=january)
    again = st.select(app, **arguments, prices=own)  # today, by default
    assert again.replayed == len(first.history)
    frozen = json.loads((tmp_path / "reference/settings.json").read_text())
    assert frozen["problem"]["prices_at"] == "2026-01-05"
    with pytest.raises(InputError, match=r"prices_at was '2026-01-05', now '2026-02-01'"):
        st.select(app, **arguments, prices=st.PriceList(own, at=date(2026, 2, 1)))


@pytest.mark.slow
def test_an_app_that_grades_itself():
    def graded(models, text):
        return exactly(text.upper(), App.answer(models, text)), App.cost(models)

    inputs = [text for text, _ in settings()["dataset"]]
    result = st.select(graded, **settings(metric=None, dataset=inputs))
    assert result.choice == {"plan": "mini", "solve": "mini"}
    assert result.answers == {}
    assert result.expected is None


@pytest.mark.slow
def test_a_reference_that_fails_is_told(caplog):
    def fails_at_seven(models, text):
        if text == "query 7":
            raise ConnectionError("down")
        return App.answer(models, text), App.cost(models)

    result = st.select(fails_at_seven, **settings(metric=exactly, on_error="zero", base="nano"))
    assert result.problem.reference_quality == 39 / 40
    assert "1 of 40 runs of the reference failed" in caplog.text
    assert result.bill.num_failed == 1 + sum(o.query == 7 for o in result.history)


def test_a_reference_that_only_fails_is_no_fault_of_the_metric():
    def fails(models, text):
        if models["plan"] == "pro":
            raise ConnectionError("down")
        return App.answer(models, text), App.cost(models)

    with pytest.raises(InputError, match="all 40 runs of the reference failed"):
        st.select(fails, **settings(metric=exactly, on_error="zero", base="nano"))


@pytest.mark.slow
def test_outputs_are_kept_by_configuration_and_query():
    result = st.select(App(), **settings(metric=exactly, holdout=0.1))
    for observation in result.history:
        output = result.answers[observation.theta, observation.query]
        models = result.problem.names(observation.theta)
        assert output == App.answer(models, result.queries[observation.query])
        assert result.expected[observation.query] == result.queries[observation.query].upper()
    assert "expected" in result.disagreements().columns


@pytest.mark.slow
def test_outputs_are_there_after_a_resume_too(tmp_path):
    first = st.select(App(), **settings(metric=exactly, run_dir=tmp_path))
    with open(tmp_path / "outputs.jsonl", "a") as file:
        file.write('{"llms": ["nano"')  # cut by a crash
    app = App()
    again = st.select(app, **settings(metric=exactly, run_dir=tmp_path))
    assert app.calls == []
    assert again.answers == first.answers


@pytest.mark.slow
def test_result_json_has_all_that_was_measured(tmp_path):
    how = {"run_dir": tmp_path, "holdout": 0.1, "repeats": 5}
    result = st.select(app := App(), **settings(metric=exactly, **how))
    written = json.loads((tmp_path / "result.json").read_text())
    assert written == json.loads(json.dumps(result.summary()))
    parts = "spend", "reference", "again", "preflight", "surplus"
    told = sum(written[f"{part}_usd"] for part in parts) - written["repeats_usd"]
    assert told + written["held_out"]["cost_usd"] == pytest.approx(app.usd(), rel=1e-12)
    assert written["reference_usd"] == pytest.approx(36 * 0.02)
    low, high = written["reference_quality_interval"]
    assert low < result.problem.reference_quality == 1.0 == high
    assert written["held_out"]["num_queries"] == 4


@pytest.mark.slow
def test_a_report_does_not_take_the_reference_for_a_run(tmp_path):
    st.select(App(), **settings(metric=exactly, run_dir=tmp_path / "a", holdout=0.1))
    groups, remarks = load_runs(tmp_path)
    assert [len(runs) for runs in groups.values()] == [1]
    assert remarks == []


def test_an_endpoint_that_runs_already_goes_on():
    with st.Endpoint("http://127.0.0.1:1/v1") as endpoint:
        with served(endpoint, st.PriceList()) as running:
            assert running.url == endpoint.url
        assert endpoint.is_started


def test_an_endpoint_that_two_selections_share_listens_until_the_last_ends():
    """It stopped when the first ended, and the runs of the other one failed."""
    endpoint, first, second = st.Endpoint("http://127.0.0.1:1/v1"), ExitStack(), ExitStack()
    first.enter_context(served(endpoint, st.PriceList()))
    running = second.enter_context(served(endpoint, st.PriceList()))
    first.close()
    assert running.url == endpoint.url
    second.close()
    assert not endpoint.is_started
    with served(endpoint, st.PriceList()):
        assert endpoint.is_started


@pytest.mark.slow
def test_a_least_quality_instead_of_a_loss():
    result = st.select(App(), **settings(metric=exactly, max_quality_loss=None, min_quality=0.5))
    assert result.problem.s_0 == 0.5
    assert result.problem.epsilon is None
    assert result.choice["plan"] == "nano" or result.choice["solve"] == "nano"


@pytest.mark.slow
def test_latency_is_measured_and_relative_constraints_know_the_reference():
    def app(models, text):
        return {
            "output": App.answer(models, text),
            "cost_usd": App.cost(models),
            "outcomes": {"steps": 2.0 if models["plan"] == "nano" else 5.0},
        }

    limits = ["latency_s <= 30 cap 60", "steps <= 1.0 * reference cap 10"]
    result = st.select(app, **settings(metric=exactly, constraints=limits))
    assert result.problem.reference_outcomes["steps"] == 5.0
    assert 0 < result.problem.reference_outcomes["latency_s"] < 30
    assert result.recommendation.basis == "certified"
    assert set(result.history[0].outcomes) == {"latency_s", "steps"}


def test_a_bound_relative_to_the_reference_takes_any_cap():
    """Before the reference is measured, 400 / 1.2 stands for it, and is rounded up."""
    for limit in ("steps <= 1.2 * reference cap 400", "steps <= 0.9 * reference cap 60"):
        plan = st.select(App(), **settings(constraints=[limit], dry_run=True))
        assert "9 configurations" in str(plan)


@pytest.mark.slow
def test_the_best_quality_for_a_price():
    limit = "cost_usd <= 0.001 cap 0.03"
    arguments = settings(metric=exactly, max_quality_loss=None, objective="quality")
    result = st.select(App(), **(arguments | {"constraints": [limit]}))
    assert result.choice == {"plan": "mini", "solve": "mini"}


def test_a_dry_run_calls_nothing_and_invents_nothing():
    app = App()
    prices = {llm: LLMInfo(llm, 1e3 * usd, 2e3 * usd) for llm, usd in PRICE.items()}
    text = str(st.select(app, **settings(holdout=0.1, dry_run=True, prices=prices, repeats=None)))
    assert app.calls == []
    assert "9 configurations, 36 queries, 4 held out" in text
    assert "1. preflight: each LLM of each module answers one query, in 3 runs" in text
    assert "the reference answers 30 of them twice" in text
    assert "pro 10, 20" in text  # its prices
    assert "What it costs is not known" in text
    assert "nothing would be left" not in text


@pytest.mark.parametrize(("concurrency", "rounds"), [(1, 3), (2, 2), (8, 2)])
def test_pilots_say_how_long_a_run_takes(monkeypatch, concurrency, rounds):
    """The first one is alone, because nobody knows what it costs."""
    clock = SimpleNamespace(perf_counter=iter([1.0, 7.0]).__next__)
    monkeypatch.setattr("scope_torch.selection.pilot.time", clock)
    plan = st.select(App(), **settings(metric=exactly, concurrency=concurrency), dry_run="pilot")
    assert plan.pilot.seconds == 6 / rounds


@pytest.mark.slow
def test_pilots_say_what_it_costs_and_are_not_paid_twice(tmp_path):
    app = App()
    arguments = settings(metric=exactly, run_dir=tmp_path, holdout=0.1)
    text = str(st.select(app, **arguments, dry_run="pilot"))
    assert app.calls == [(("pro", "pro"), item) for item in searched_by(arguments)[:3]]
    assert "3 pilots cost 0.06 USD: 0.02 USD and " in text
    runs = 36 + 2 * 4
    assert f"about {runs * 0.02:.2f} USD (less than a minute)" in text
    left = 3.0 - runs * 0.02
    assert f"{left:.2f} USD are left for the search, as much as {left / 0.02:.0f} runs" in text
    again = str(st.select(app, **arguments, dry_run="pilot"))
    assert len(app.calls) == 3
    assert "and 0.0" not in again  # nobody has measured the seconds
    result = st.select(app, **arguments)
    assert len(set(app.calls)) == len(app.calls)
    assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)
    with pytest.raises(InputError, match=r"2 of 3 runs of the reference cost 0\.04 USD.*raise it"):
        st.select(app, **settings(run_dir=tmp_path / "poor", budget_usd=0.04, dry_run="pilot"))


def searched_by(arguments):
    dataset = [text for text, _ in arguments["dataset"]]
    return split(dataset, arguments["holdout"], 0)[0]


@pytest.mark.slow
def test_a_dry_run_knows_what_earlier_runs_know(tmp_path):
    app = App()
    st.select(app, **settings(metric=exactly, run_dir=tmp_path / "june"))
    number = len(app.calls)
    arguments = settings(metric=exactly, continue_from=tmp_path / "june", dry_run=True)
    text = str(st.select(app, **arguments, run_dir=tmp_path / "july"))
    assert f"known from earlier runs: {number} answers" in text
    assert "known from earlier runs, no run" in text
    assert "preflight" not in text
    assert len(app.calls) == number
    assert not (tmp_path / "july").exists()


@pytest.mark.slow
def test_a_reference_that_costs_too_much_is_stopped_after_five_queries(tmp_path):
    app = App()
    with pytest.raises(InputError, match=r"0.1 USD on 5 of 40 .* 0.8 USD on all, .*=0.5; raise"):
        st.select(app, **settings(budget_usd=0.5, base="nano", run_dir=tmp_path))
    assert len(app.calls) == 5 + 2  # before them the others answer one query
    st.select(app, **settings(budget_usd=3, base="nano", run_dir=tmp_path))
    assert len(set(app.calls)) == len(app.calls)


@pytest.mark.slow
def test_without_a_common_llm_the_search_starts_anywhere():
    models = {"plan": ["nano", "pro"], "solve": ["mini", "pro"]}
    app = App()
    result = st.select(
        app,
        **settings(metric=exactly, models={**models, "solve": ["mini"]}, reference=["pro", "mini"]),
    )
    assert [result.problem.names(one.theta)["plan"] for one in result.probe] == ["nano"]
    assert result.settings["optimizer"]["initial_pool"] == "random"


@pytest.mark.slow
def test_silent_without_a_terminal_and_told_on_request(capsys):
    st.select(App(), **settings())
    assert capsys.readouterr() == ("", "")
    st.select(App(), **settings(progress=True))
    out, err = capsys.readouterr()
    assert out == ""
    assert "reference: quality 1 " in err
    assert "9 configurations, 40 queries" in err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": "nano"}, "models='nano' must be a list"),
        ({"models": {"plan": "nano"}}, r"models\['plan'\]='nano' must be a list"),
        ({"reference": "ultra"}, "'ultra', which is not among its models"),
        ({"reference": {"plan": "pro"}, "models": {"plan": ["pro"], "solve": ["pro"]}}, "each of"),
        ({"reference": ["pro"], "models": {"plan": ["pro"], "solve": ["pro"]}}, "one LLM for each"),
        ({"dataset": []}, "dataset is empty"),
        ({"dataset": "questions"}, "must be a list"),
        ({"dataset": ["question"]}, r"dataset\[0\]='question' must be a pair"),
        ({"max_quality_loss": None}, "how good is good enough"),
        ({"min_quality": 0.9}, "not both"),
        (
            {"objective": "quality"},
            r"leave out max_quality_loss=0.1, .* constraints=\['cost_usd <= 0.01 cap 0.1'\]$",
        ),
        (
            {"objective": "quality", "max_quality_loss": None, "min_quality": 0.9},
            "leave out min_quality=0.9, and bound the cost",
        ),
        (
            {"objective": "quality", "max_quality_loss": None},
            r"^objective=quality, constraints=\[\]: bound the cost of a query",
        ),
        ({"max_quality_loss": 5}, "max_quality_loss=5"),
        ({"budget_usd": 0}, "budget_usd=0"),
        ({"holdout": 1.5}, "holdout=1.5"),
        ({"holdout": 0.001}, "leaves nothing"),
        ({"base": "ultra"}, "ultra"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"concurrency": 0, "batch_size": 1}, "concurrency=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"base": "nano", "optimizer": print}, "base='nano': that is for the default"),
        ({"in_flight": 4, "optimizer": print}, "in_flight=4: that is for the default"),
        ({"in_flight": 4, "batch_size": 4}, "in_flight=4 and batch_size=4: give one"),
        ({"constraints": ["latency < 2"]}, "write it as"),
        ({"prices": {"nano": LLMInfo("nano", 1.0, 1.0)}}, "mini"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"budget_usd": "1"}, "budget_usd='1' must be a number"),
        ({"budget_usd": None}, "budget_usd=None must be a number"),
        ({"max_quality_loss": "0.1"}, "max_quality_loss='0.1' must be a number"),
        ({"holdout": "0.2"}, "holdout='0.2' must be a number"),
        ({"concurrency": "4"}, "concurrency='4' must be a whole number"),
        ({"batch_size": "4"}, "batch_size='4' must be a whole number"),
        ({"deployment_queries": "100"}, "deployment_queries='100' must be a number"),
        ({"seed": "1"}, "seed='1' must be a whole number"),
        ({"seed": 1.5}, "seed=1.5 must be a whole number"),
        ({"metric": "exact_match"}, "metric='exact_match' must be a function"),
        ({"dataset": None}, "dataset=None must be a list"),
        ({"reference": None}, "which is not among its models"),
    ],
)
def test_a_wrong_setting_is_refused_before_the_first_call(changes, message):
    app = App()
    with pytest.raises(InputError, match=message):
        st.select(app, **settings(**changes))
    assert app.calls == []


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("just text", r"'just text'; return \(output, USD\)"),
        (("text", "free"), "'free' is not a number"),
        (("text", {"plan": (1, 2)}), "no price is known for .pro.; give prices="),
        ({"output": "text", "usd": 1}, r"return \(output, USD\)"),
    ],
)
def test_an_app_that_returns_something_else_is_told_so(returned, message):
    with pytest.raises(InputError, match=message):
        st.select(lambda *_: returned, **settings())


@pytest.mark.slow
def test_plan_and_result_count_what_may_be_chosen():
    listed = [{"plan": llm, "solve": "pro"} for llm in PRICE]
    given = settings(metric=exactly, allowed=listed)
    assert "3 configurations, 40 queries" in str(st.select(App(), **given, dry_run=True))
    assert "searched 3 configurations, looked at" in str(st.select(App(), **given))


def test_the_held_out_share_is_that_of_the_seed():
    parts = [split(range(50), 0.2, seed) for seed in (0, 0, 1)]
    assert parts[0] == parts[1] != parts[2]
    for searched, held_out in parts:
        assert sorted(searched + held_out) == list(range(50))
        assert len(held_out) == 10
