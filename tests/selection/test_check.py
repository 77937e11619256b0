"""`check`: one configuration beside another one; what is asked, paid, known, told, and decided."""

import json
import math
import random

import pytest
from long_runs import among_others
from selection.test_select import App, exactly

import scope_torch as st
from scope_torch.constraints import Constraint
from scope_torch.errors import InputError
from scope_torch.observation import Observation
from scope_torch.results.checked import Pair, limits_of, outcomes_of
from scope_torch.traces.reference import LoggedReference, save_reference
from scope_torch.traces.summary import LoggedQuery, Summary, TracedModule

Q = 150
PRO = {"plan": "pro", "solve": "pro"}
MINI = {"plan": "mini", "solve": "mini"}
NANO = {"plan": "nano", "solve": "pro"}


def arguments(**changes):
    return {
        "reference": PRO,
        "dataset": [(f"query {i}", f"QUERY {i}") for i in range(Q)],
        "metric": exactly,
        "max_quality_loss": 0.1,
        "budget_usd": 30.0,
        "name": "my_app",
    } | changes


def of(app, configuration):
    return [text for llms, text in app.calls if llms == tuple(configuration.values())]


@pytest.mark.parametrize("certificate", ["fresh", "sequence", "population"])
def test_a_good_one_passes_and_a_bad_one_fails(certificate):
    for configuration, verdict, status in ((MINI, "pass", 0), (NANO, "fail", 1)):
        app = App()
        found = st.check(app, configuration, **arguments(certificate=certificate))
        assert (found.verdict, found.exit_status) == (verdict, status)
        assert found.configuration == configuration
        assert found.reference == PRO
        n = len(found.pairs)
        assert len(of(app, configuration)) == len(of(app, PRO)) == n < Q
        assert found.spent_usd == pytest.approx(app.usd(), rel=1e-12)
        queries = [pair.new.query for pair in found.pairs]
        assert queries == [pair.reference.query for pair in found.pairs]
        assert (len(set(queries)) < n) == (certificate == "fresh")
        (limit,) = found.limits
        assert limit.kept is (verdict == "pass")
        assert limit.ratio.lower <= limit.ratio.value <= limit.ratio.upper
        assert (limit.loss.upper <= 0.1) == (verdict == "pass")
        assert (limit.loss.lower > 0.1) == (verdict == "fail")


@pytest.mark.slow
def test_the_order_is_that_of_the_seed():
    runs = [st.check(App(), MINI, **arguments(seed=seed)) for seed in (0, 0, 1)]
    orders = [[pair.new.query for pair in run.pairs] for run in runs]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("certificate", ["fresh", "sequence"])
def test_many_calls_at_a_time_find_the_same(certificate):
    alone = st.check(App(), NANO, **arguments(certificate=certificate))
    app = App()
    many = st.check(app, NANO, **arguments(certificate=certificate, concurrency=8))
    assert many.to_json()["limits"] == alone.to_json()["limits"]
    assert [p.new.query for p in many.pairs] == [p.new.query for p in alone.pairs]
    assert many.spent_usd == pytest.approx(app.usd(), rel=1e-12)
    assert len(alone.paid) <= len(many.paid) <= len(alone.paid) + 2 * 8


def test_money_ends_it_undecided():
    app = App()
    found = st.check(app, MINI, **arguments(budget_usd=0.3))
    assert (found.verdict, found.exit_status, found.stop_reason) == ("undecided", 3, "budget")
    assert app.usd() == pytest.approx(found.spent_usd, rel=1e-12)
    assert 0.3 < app.usd() <= 0.3 + 0.02
    assert "undecided (budget): plan=mini (was pro)" in str(found)


def test_draws_end_it_undecided():
    found = st.check(App(), MINI, **arguments(max_pairs=5))
    assert (found.verdict, found.stop_reason) == ("undecided", "no more draws")
    assert len(found.pairs) == 5
    assert found.limits[0].loss.upper > 0.1


def test_time_ends_it_undecided(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(ticks)))
    found = st.check(App(), MINI, **arguments(time_limit=12))
    assert (found.verdict, found.stop_reason) == ("undecided", "time limit")
    assert found.pairs


@pytest.mark.slow
def test_an_interrupted_check_goes_on(tmp_path):
    whole_app = App()
    whole = st.check(whole_app, MINI, **arguments(run_dir=tmp_path / "whole"))

    class Breaks(App):
        def __call__(self, models, text):
            if len(self.calls) == 21:
                raise KeyboardInterrupt
            return super().__call__(models, text)

    first, second = Breaks(), App()
    how = arguments(run_dir=tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        st.check(first, MINI, **how)
    found = st.check(second, MINI, **how)
    assert len(first.calls) + len(second.calls) == len(whole_app.calls)
    assert found.to_json() == whole.to_json()
    assert json.loads((tmp_path / "run" / "check.json").read_text()) == found.to_json()
    again = App()
    assert st.check(again, MINI, **how).to_json() == whole.to_json()
    assert again.calls == []


@pytest.mark.slow
def test_other_settings_are_refused_in_its_directory(tmp_path):
    st.check(App(), MINI, **arguments(run_dir=tmp_path))
    with pytest.raises(InputError, match="delta"):
        st.check(App(), MINI, **arguments(run_dir=tmp_path, delta=0.1))


@pytest.mark.slow
def test_a_search_that_chose_the_configuration_answers_for_nobody(tmp_path):
    """Where its reference was unlucky, a configuration that is too poor passed for that reason."""
    how = arguments(run_dir=tmp_path)
    chosen = st.select(App(), **how, models=["nano", "mini", "pro"], repeats=0).choice
    assert chosen == MINI
    app = App()
    found = st.check(app, MINI, **arguments(continue_from=tmp_path))
    drawn = [pair.new.query for pair in found.pairs]
    assert len(of(app, PRO)) == len(of(app, MINI)) == len(drawn)
    assert found.num_known == 0
    assert found.verdict == "pass"


@pytest.mark.slow
def test_an_older_search_answers_for_the_reference(tmp_path):
    """It has never seen the new configuration."""
    st.select(App(), **arguments(run_dir=tmp_path), models=["nano", "pro"], repeats=0)
    app = App()
    found = st.check(app, MINI, **arguments(continue_from=tmp_path))
    drawn = [pair.new.query for pair in found.pairs]
    assert len(of(app, PRO)) == len(drawn) - len(set(drawn))  # a second draw is asked
    assert len(of(app, MINI)) == len(drawn)
    assert found.num_known == len(set(drawn))
    assert found.verdict == "pass"
    assert f", {found.num_known} answers known" in str(found)


@pytest.mark.slow
def test_a_choice_on_the_same_queries_is_no_sample_for_tomorrow(tmp_path, caplog):
    st.select(App(), **arguments(run_dir=tmp_path), models=["nano", "mini", "pro"], repeats=0)
    st.check(App(), MINI, **arguments(continue_from=tmp_path, certificate="population"))
    assert "give queries that are new to it" in caplog.text


def test_copies_are_no_draws_of_tomorrow(caplog):
    """Where each of 12 questions is there 4 times, 12 are known and not 48."""
    pairs = [(f"query {i}", f"QUERY {i}") for i in range(12)] * 4
    for certificate, number in (("fresh", 0), ("population", 1)):
        st.check(App(), MINI, **arguments(dataset=pairs, certificate=certificate))
        assert caplog.text.count("36 of 48 queries have the input of another one") == number


@pytest.mark.slow
def test_fixed_answers_of_a_search_are_not_asked_again(tmp_path):
    st.select(App(), **arguments(run_dir=tmp_path), models=["nano", "mini", "pro"], repeats=0)
    app = App()
    found = st.check(app, MINI, **arguments(continue_from=tmp_path, certificate="sequence"))
    alone = st.check(App(), MINI, **arguments(certificate="sequence"))
    assert found.to_json()["limits"] == alone.to_json()["limits"]
    assert of(app, PRO) == []
    assert len(of(app, MINI)) < len(alone.pairs)


@pytest.mark.slow
def test_an_older_check_answers_too(tmp_path):
    st.check(App(), NANO, **arguments(run_dir=tmp_path))
    app = App()
    found = st.check(app, MINI, **arguments(continue_from=tmp_path, certificate="population"))
    assert 0 < found.num_known == len(found.pairs) - len(of(app, PRO))


@pytest.mark.slow
def test_a_logged_reference_is_never_asked():
    logged = LoggedReference(PRO, [LoggedQuery(f"q{i}", 1, 0.02, 1.0, None) for i in range(Q)])
    app = App()
    found = st.check(app, MINI, **arguments(reference=logged))
    assert "however answers vary, beside the reference's answers of the log; wrong" in str(found)
    assert "of the log" not in str(st.check(App(), MINI, **arguments()))
    assert found.verdict == "pass"
    assert of(app, PRO) == []
    # A change of the program alone, with the same LLMs
    worse = st.check(lambda *_: ("", 0.02), PRO, **arguments(reference=logged))
    assert worse.verdict == "fail"


@pytest.mark.parametrize("once", [False, True])
def test_a_file_with_the_answers_is_not_asked_either(tmp_path, once):
    """Where it calls the queries by their inputs; in any order, and also a data set read once."""
    path, given = tmp_path / "reference.json", arguments()
    names = [str(question) for question, _ in given["dataset"]]
    rows = [LoggedQuery(name, 1, 0.02, 1.0, None) for name in reversed(names)]
    modules = {module: TracedModule(llm) for module, llm in PRO.items()}
    save_reference(path, Summary(modules, rows), {})
    given["dataset"] = iter(given["dataset"]) if once else given["dataset"]
    app = App()
    found = st.check(app, MINI, **given | {"reference": str(path)})
    assert found.verdict == "pass"
    assert found.is_logged
    assert of(app, PRO) == []


@pytest.mark.slow
def test_a_recheck_says_that_its_reference_is_logged(tmp_path):
    """One answer to each query, however often it is drawn: that is not what it gives on average."""
    logged = LoggedReference(PRO, [LoggedQuery(f"q{i}", 1, 0.02, 1.0, None) for i in range(Q)])
    how = arguments(reference=logged, draws=50)
    good = st.recheck(App(), MINI, **how, run_dir=tmp_path / "good")
    assert "times the reference in the log" in str(good)
    bad = st.recheck(lambda *_: ("", 0.02), PRO, **how, run_dir=tmp_path / "bad")
    assert "does not hold, beside the reference's answers of the log: said on" in str(bad)
    asked = st.recheck(App(), NANO, **arguments(draws=150), run_dir=tmp_path / "asked")
    assert asked.alarm is not None
    assert "log" not in str(asked)


def test_a_least_quality_needs_no_reference():
    app = App()
    settings = arguments(max_quality_loss=None, min_quality=0.8)
    found = st.check(app, MINI, **settings)
    assert found.verdict == "pass"
    assert of(app, PRO) == []
    assert {pair.reference for pair in found.pairs} == {None}
    assert "quality >= 0.8: " in str(found)
    assert "reference" not in found.markdown()
    alone = st.check(App(), MINI, **settings | {"reference": None})
    assert alone.verdict == "pass"
    assert st.check(App(), NANO, **settings).verdict == "fail"


class Timed(App):
    """Says a latency too, which is 3 s with mini in the second module and 1 s else."""

    def __call__(self, models, text):
        output, usd = super().__call__(models, text)
        seconds = 3.0 if models["solve"] == "mini" else 1.0
        return {"output": output, "cost_usd": usd, "outcomes": {"latency_s": seconds}}


@pytest.mark.parametrize(
    ("constraint", "verdict", "broken"),
    [
        ("latency_s <= 4 cap 10", "pass", []),
        ("latency_s <= 2 cap 10", "fail", ["latency_s <= 2 cap 10"]),
        ("latency_s <= 3.5 * reference cap 10", "pass", []),
        ("latency_s <= 2 * reference cap 10", "fail", ["latency_s <= 2 * reference cap 10"]),
        ("cost_usd <= 0.002 cap 0.01", "pass", []),
        ("cost_usd <= 0.0003 cap 0.01", "fail", ["cost_usd <= 0.0003 cap 0.01"]),
        ("cost_usd <= 0.2 * reference cap 0.1", "pass", []),
    ],
)
def test_every_constraint_must_hold(constraint, verdict, broken):
    found = st.check(Timed(), MINI, **arguments(constraints=[constraint], max_pairs=600))
    assert found.verdict == verdict
    assert [str(one.constraint) for one in found.limits if one.kept is False] == broken
    assert len(found.limits) == 2


@pytest.mark.parametrize(
    ("text", "mine", "theirs", "number", "ends", "told"),
    [
        (
            "steps <= 1.2 * reference cap 60",
            40.0,
            4.0,
            120,
            (6.0, 15.0),
            "10 times the reference (6",
        ),
        (
            "steps <= 1.2 * reference cap 60",
            40.0,
            40.0,
            120,
            (0.9, 1.1),
            "1 times the reference (0.9",
        ),
        ("steps >= 0.9 * reference in [10, 60]", 12.0, 48.0, 120, (0.1, 0.4), "0.25 times the"),
        ("quality >= 0.9 * reference", 0.9, 0.3, 4, (0.0, None), "-200.0% (at most "),
    ],
)
def test_an_interval_holds_any_ratio_and_ends_where_nothing_is_known(
    text, mine, theirs, number, ends, told
):
    """Also ratios above 2, and below the least outcome."""

    def one(theta, query, value):
        return Observation((theta,), query, 0.01, min(value, 1.0), outcomes={"steps": value})

    pairs = [Pair(one(0, q, mine), one(1, q, theirs)) for q in range(number)]
    bound = Constraint.parse(text)
    (limit,) = limits_of([outcomes_of(pairs, bound)], [bound], 0.05, None, with_interval=True)
    low, value, high = limit.ratio.lower, limit.ratio.value, limit.ratio.upper
    assert value == pytest.approx(mine / theirs, rel=1e-12)
    assert ends[0] < low < value
    if ends[1] is None:
        assert high is None
    else:
        assert value < high < ends[1]
    assert told in str(limit)


@pytest.mark.slow
@pytest.mark.parametrize("certificate", ["fresh", "sequence", "population"])
def test_a_tail_is_too_long_although_the_mean_is_fine(certificate):
    class Tail(App):
        """Takes 20 s with mini on a fifth of the queries, and 1 s else."""

        def __call__(self, models, text):
            output, usd = super().__call__(models, text)
            slow = models["solve"] == "mini" and int(text.split()[1]) % 5 == 0
            outcomes = {"latency_s": 20.0 if slow else 1.0}
            return {"output": output, "cost_usd": usd, "outcomes": outcomes}

    def of(*constraints):
        how = arguments(constraints=constraints, certificate=certificate, budget_usd=100)
        return st.check(Tail(), MINI, **how)

    mean, tail = "latency_s <= 10 cap 30", "p95(latency_s) <= 8"
    assert of(mean).verdict == "pass"
    found = of(mean, tail)
    assert found.verdict == "fail"
    assert [str(one.constraint) for one in found.limits if one.kept is False] == [tail]
    (limit,) = [one for one in found.limits if str(one.constraint) == tail]
    slow = [pair.new.outcomes["latency_s"] > 8 for pair in found.pairs]
    assert limit.ratio.value == pytest.approx(1 - sum(slow) / len(slow))
    assert limit.ratio.upper < 0.95
    assert f"  {tail}: {100 * limit.ratio.value:.3g}% of runs (" in str(found)
    assert of("p70(latency_s) <= 8", "p70(cost_usd) <= 0.01").verdict == "pass"
    assert of("p70(cost_usd) <= 0.0001").verdict == "fail"


@pytest.mark.slow
def test_a_log_without_the_latency_is_refused_before_the_first_call():
    logged = LoggedReference(PRO, [LoggedQuery(f"q{i}", 1, 0.02, 1.0, None) for i in range(Q)])
    app, limits = Timed(), ["latency_s <= 2 * reference cap 10"]
    with pytest.raises(InputError, match="no 'latency_s' was observed"):
        st.check(app, MINI, **arguments(reference=logged, constraints=limits))
    assert app.calls == []
    timed = [row._replace(seconds=1.0) for row in logged.queries]
    how = arguments(reference=LoggedReference(PRO, timed), constraints=limits)
    assert st.check(app, MINI, **how).verdict == "fail"


def test_a_failing_application_counts_as_the_worst():
    class Fails(Timed):
        def __call__(self, models, text):
            if models["plan"] == "mini":
                raise RuntimeError("no")
            return super().__call__(models, text)

    how = arguments(constraints=["latency_s <= 4 cap 10"], on_error="zero")
    found = st.check(Fails(), MINI, **how)
    assert found.verdict == "fail"
    assert all(pair.new.failed for pair in found.pairs)
    assert f"failed: {len(found.pairs)} calls, which count as quality 0" in str(found)
    assert repr(found) == "<CheckResult fail: plan=mini (was pro), solve=mini (was pro)>"


def test_disagreements_show_the_answers():
    found = st.check(App(), NANO, **arguments())
    table = found.disagreements()
    assert table["quality_choice"].to_list() == [0.0] * len(table)
    assert table["answer_reference"].to_list() == table["expected"].to_list()
    assert table["input"].to_list() == table["answer_choice"].to_list()
    assert f"| {table['query'][0]} | {table['input'][0]} |" in found.markdown()


def test_a_comment_shows_no_mark_up_of_answers():
    def app(models, text):
        return ("<b>@all | `x`</b>" if models["a"] == "mini" else "yes"), 0.01

    data = [(f"[link](http://{i})", "yes") for i in range(40)]
    both = {"reference": {"a": "pro"}, "dataset": data}
    text = st.check(app, {"a": "mini"}, **arguments(**both)).markdown()
    assert "<b>" not in text
    assert "@all" not in text
    assert "[link](" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {rows[0].count("|")}


@pytest.mark.slow
def test_files_name_configurations(tmp_path):
    st.select(App(), **arguments(), models=["nano", "mini", "pro"]).save(tmp_path / "models.json")
    found = st.check(App(), tmp_path / "models.json", **arguments())
    assert found.configuration == MINI
    assert found.verdict == "pass"
    assert st.check(App(), "mini", **arguments()).configuration == MINI


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": MINI}, "the same"),
        ({"reference": None}, "give the reference= that it is relative to"),
        ({"reference": {"plan": "pro"}}, "modules"),
        ({"certificate": "bounds"}, "must be one of"),
        ({"delta": 0.0}, "delta"),
        ({"max_quality_loss": None}, "how good is good enough"),
        ({"max_pairs": 0}, "max_pairs"),
        ({"max_pairs": Q + 1, "certificate": "sequence"}, "each is asked once"),
        ({"optimizer": str}, "that is for select"),
        ({"dry_run": True}, "dry_run: that is for select"),
        ({"constraints": "latency_s <= 2 cap 10"}, "constraints='latency_s <= .* must be a list"),
        ({"constraints": None}, "constraints=None must be a list"),
        ({"budget_usd": -1}, "budget_usd"),
        ({"constraints": ["quality >= 0.5"]}, "bound the quality either by"),
        ({"constraints": ["cost_usd <= 0.1", "cost_usd <= 0.2"]}, "one for each outcome"),
        ({"constraints": ["latency_s"]}, "write it as"),
        ({"constraints": ["p95(latency_s) <= 8 cap 20"]}, "cap or range"),
        ({"constraints": ["p95(latency_s) <= 8"] * 2}, "one for each outcome"),
    ],
)
def test_what_cannot_be_used_is_refused_before_the_first_call(changes, message):
    app = App()
    with pytest.raises(InputError, match=message):
        st.check(app, MINI, **arguments(**changes))
    assert app.calls == []


class Flips(App):
    """Answers change from call to call, with a chance that is the same for all LLMs."""

    def __init__(self, chance, seed):
        super().__init__()
        self._luck, self._chance = random.Random(seed), chance

    def __call__(self, models, text):
        output, usd = super().__call__(models, text)
        if self._luck.random() < self._chance:
            output = text if output == text.upper() else text.upper()
        return output, usd


@pytest.mark.parametrize("chance", [among_others(0.05), 0.15])
@pytest.mark.slow
def test_answers_that_vary_decide_as_rarely_wrong(chance):
    """The configuration is the reference under another name, and a little worse: just too bad."""
    number, delta, wrong = 40, 0.2, 0
    data = [(f"query {i}", f"QUERY {i}") for i in range(40)]
    for seed in range(number):
        flips, luck = Flips(chance, seed), random.Random(-seed - 1)

        def app(models, text, flips=flips, luck=luck):
            output, usd = flips(PRO, text)
            lost = models["plan"] == "mini" and luck.random() < 0.1
            return ("" if lost else output), usd

        how = arguments(dataset=data, seed=seed, delta=delta, max_pairs=160)
        wrong += st.check(app, MINI, **how).verdict == "pass"
    assert wrong / number <= delta + 3 * math.sqrt(delta * (1 - delta) / number)


@pytest.fixture
def regraded(tmp_path):
    """A check of a search in June, by another metric, and how many calls and grades it made."""
    num = {"calls": 0, "grades": 0}
    how = {"dataset": [(i, str(i)) for i in range(40)], "max_quality_loss": 0.1, "progress": False}

    def app(_models, x):
        num["calls"] += 1
        return str(x), 0.01

    def dear(expected, output):
        num["grades"] += 1
        return float(expected == output), 0.05

    st.select(
        app, models={"a": ["nano", "pro"]}, reference="pro", metric=exactly, budget_usd=5,
        run_dir=tmp_path / "june", **how,
    )  # fmt: skip
    num["calls"] = 0

    def check(llm, budget_usd, folder="july", **more):
        return st.check(
            app, {"a": llm}, reference={"a": "pro"}, metric=dear, budget_usd=budget_usd,
            run_dir=tmp_path / folder, continue_from=tmp_path / "june", metric_version="2",
            **(how | more),
        )  # fmt: skip

    return check, num


@pytest.mark.slow
def test_grading_old_outputs_anew_is_on_the_bill(regraded):
    check, num = regraded
    found = check("mini", 9)
    assert found.spent_usd == pytest.approx(0.01 * num["calls"] + 0.05 * num["grades"], rel=1e-9)
    assert num["grades"] > 40  # the old outputs alone


@pytest.mark.parametrize("looks", [st.check, st.recheck])
def test_no_more_is_in_flight_than_the_budget_pays_for(tmp_path, looks):
    """What a call costs is known after the first one."""
    how = {"budget_usd": 2.0, "concurrency": 16, "progress": False}
    how |= {"run_dir": tmp_path} if looks is st.recheck else {}
    data = [(f"query {i}", f"QUERY {i}") for i in range(Q)]
    app = App()
    app.answer, app.cost = (lambda _, text: text.upper()), (lambda _: 0.9)
    found = looks(
        app, MINI, reference=PRO, dataset=data, metric=exactly, max_quality_loss=0.01, **how
    )
    assert found.spent_usd == pytest.approx(0.9 * len(app.calls))
    assert len(app.calls) <= 3


@pytest.mark.slow
def test_grades_that_took_the_budget_leave_none_for_calls(regraded):
    check, num = regraded
    found = check("mini", 1)
    assert (found.stop_reason, num["calls"], found.pairs) == ("budget", 0, [])
    assert found.spent_usd > 1
    assert found.verdict == "undecided"


@pytest.mark.slow
def test_known_pairs_still_decide_where_grading_them_took_the_budget(regraded):
    check, num = regraded
    rich = check("nano", 99, "rich", certificate="sequence")
    of_grades = 0.05 * num["grades"]
    assert rich.spent_usd == pytest.approx(of_grades)  # all was known
    poor = check("nano", of_grades - 0.03, "poor", certificate="sequence")
    assert (poor.verdict, len(poor.pairs)) == (rich.verdict, len(rich.pairs))


def test_a_failure_that_cost_nothing_tells_no_cost():
    class Fails(App):
        def __call__(self, models, text):
            answered = super().__call__(models, text)
            if len(self.calls) == 1:
                raise RuntimeError("not yet")
            return answered

    app = Fails()
    app.answer, app.cost = (lambda _, text: text.upper()), (lambda _: 0.9)
    how = arguments(budget_usd=2.0, concurrency=16, on_error="zero", max_quality_loss=0.01)
    found = st.check(app, MINI, **how)
    assert 1.8 <= found.spent_usd <= 2.0 + 0.9
