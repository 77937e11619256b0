"""`select(continue_from=...)`: next month's search knows what this month's observed."""

import contextlib
import json
import math
import random
import shutil
from dataclasses import replace

import pytest
from selection.test_select import App, exactly, settings

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.usage import Usage
from scope_torch.observation import Observation
from scope_torch.runs.earlier import known_from, refuse_missing
from scope_torch.runs.journal import read_journal
from scope_torch.runs.repricing import repriced

TOKENS = {"plan": (1000, 100), "solve": (2000, 50)}


class Tokens(App):
    """Says its tokens in the place of its bill."""

    def __call__(self, models, text):
        answer, _ = super().__call__(models, text)
        return answer, TOKENS


def prices(**usd_per_mtok):
    """A price list: prompt tokens at so much, completion tokens at four times as much."""
    return {
        name: LLMInfo(name, input_usd_per_mtok=usd, output_usd_per_mtok=4 * usd)
        for name, usd in ({"nano": 0.1, "mini": 0.4, "pro": 10.0} | usd_per_mtok).items()
    }


@pytest.fixture(scope="module")
def june(tmp_path_factory):
    """A finished search that nobody changes, and its application."""
    folder = tmp_path_factory.mktemp("june")
    app, result = first(folder)
    return folder / "june", app, result


@pytest.fixture
def after_june(june, tmp_path):
    """The same search in the folder of the test."""
    shutil.copytree(june[0], tmp_path / "june")


def first(tmp_path, app=None, **changes):
    app = app or App()
    result = st.select(app, **settings(metric=exactly, run_dir=tmp_path / "june", **changes))
    return app, result


def july(tmp_path, app=None, **changes):
    app = app or App()
    changes = {"run_dir": tmp_path / "july", "continue_from": tmp_path / "june"} | changes
    result = st.select(app, **settings(metric=exactly, **changes))
    return app, result


@pytest.mark.slow
def test_the_same_again_costs_nothing(tmp_path):
    before, older = first(tmp_path)
    app, result = july(tmp_path)
    assert app.calls == []
    assert result.choice == older.choice == {"plan": "mini", "solve": "mini"}
    assert result.recommendation.basis == "certified"
    assert result.bill.total_usd == 0
    assert result.bill.num_known == len(set(before.calls))
    assert result.bill.known_usd == pytest.approx(before.usd(), rel=1e-12)
    assert "earlier answers" in str(result)
    saved = json.loads((tmp_path / "july" / "result.json").read_text())
    (source,) = saved["known"]["sources"]
    assert source["used"] == len(set(before.calls))
    assert source["path"] == str((tmp_path / "june").resolve())
    assert saved["known"]["counted"]


@pytest.mark.slow
def test_a_new_llm_is_all_that_is_asked(tmp_path):
    first(tmp_path, models=["nano", "pro"])
    app, result = july(tmp_path, models=["nano", "mini", "pro"])
    fresh = App()
    st.select(fresh, **settings(metric=exactly))
    assert result.choice == {"plan": "mini", "solve": "mini"}
    assert result.recommendation.basis == "certified"
    assert all("mini" in llms for llms, _ in app.calls)
    assert 0 < app.usd() < 0.2 * fresh.usd()
    assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)


@pytest.mark.slow
def test_what_may_not_be_chosen_any_more_stands_in_for_nothing(tmp_path):
    """June's choice is forbidden in July: it is no row of the front, and no fallback."""
    first(tmp_path)

    def rule(llms):
        return list(llms.values()) in (["pro", "pro"], ["pro", "mini"])

    _, result = july(tmp_path, allowed=rule)
    front = result.pareto()
    assert all(rule(row.llms) for row in (*front.by_loss, *front.points))
    path = result.save(tmp_path / "models.json", fallbacks=2)
    assert all(rule(one["models"]) for one in json.loads(path.read_text())["fallbacks"])
    rows = result.table().to_dicts()
    forbidden = [row for row in rows if not rule({m: row[m] for m in ("plan", "solve")})]
    assert {row["status"] for row in forbidden} == {"not allowed"}


@pytest.mark.slow
@pytest.mark.usefixtures("after_june")
def test_codes_may_differ(tmp_path):
    """Names count, not positions: neither of LLMs nor of modules nor of queries."""
    dataset = settings()["dataset"]
    app, result = july(
        tmp_path,
        models={"solve": ["pro", "nano", "mini"], "plan": ["mini", "pro", "nano"]},
        reference={"solve": "pro", "plan": "pro"},
        dataset=dataset[::-1],
    )
    assert app.calls == []
    assert result.choice == {"solve": "mini", "plan": "mini"}


@pytest.mark.slow
def test_queries_may_come_and_go(tmp_path):
    before, _ = first(tmp_path)
    dataset = [(f"query {i}", f"QUERY {i}") for i in range(10, 50)]
    app, result = july(tmp_path, dataset=dataset)
    assert not set(before.calls) & set(app.calls)
    assert {text for llms, text in app.calls if llms == ("pro", "pro")} == {
        f"query {i}" for i in range(40, 50)
    }
    left_out = result.report["known"]["sources"][0]["left_out"]
    assert left_out["no_query"] > 0
    assert result.problem.num_queries == 40


@pytest.mark.slow
def test_the_same_question_twice_is_two_queries(tmp_path):
    dataset = [(f"query {i % 7}", f"QUERY {i % 7}") for i in range(40)]
    before, _ = first(tmp_path, dataset=dataset)
    app, result = july(tmp_path, dataset=dataset[::-1])
    assert len(before.calls) > 40
    assert app.calls == []
    assert result.bill.total_usd == 0
    assert result.report["known"]["sources"][0]["left_out"] == {}


@pytest.mark.slow
@pytest.mark.usefixtures("after_june")
def test_an_llm_may_go(tmp_path):
    app, result = july(tmp_path, models=["nano", "pro"])
    assert "mini" not in {llm for llms, _ in app.calls for llm in llms}
    known = result.report["known"]
    assert known["sources"][0]["left_out"]["no_candidate"] > 0
    assert known["num_others"] == 9 - 4


@pytest.mark.slow
@pytest.mark.usefixtures("after_june")
def test_a_threshold_may_change(tmp_path):
    app, result = july(tmp_path, max_quality_loss=0.5)
    assert result.problem.s_0 == 0.5
    assert ("pro", "pro") not in {llms for llms, _ in app.calls}


@pytest.mark.slow
def test_new_prices_alone_cost_nothing_if_what_is_known_decides(tmp_path):
    """What was paid then is told apart from what it costs today."""
    first(tmp_path, Tokens(), prices=prices())
    app, result = july(tmp_path, Tokens(), prices=prices(mini=0.3))
    assert app.calls == []
    assert result.choice == {"plan": "mini", "solve": "mini"}
    (source,) = result.report["known"]["sources"]
    assert source["repriced"] > 0
    assert 0 < result.bill.known_usd < source["usd_then"]
    tokens = sum(4 * said + given for given, said in TOKENS.values())
    assert result.problem.reference_cost_usd == pytest.approx(tokens * 10.0 / 1e6)


@pytest.mark.slow
def test_new_prices_may_lead_to_another_choice(tmp_path):
    """Mini becomes dearer than pro."""
    before, _ = first(tmp_path, Tokens(), prices=prices())
    app, result = july(tmp_path, Tokens(), prices=prices(mini=20.0))
    assert "mini" not in result.choice.values()
    assert len(app.calls) < len(before.calls) / 5
    assert not set(before.calls) & set(app.calls)


@pytest.mark.slow
def test_the_prices_of_a_run_are_kept(tmp_path):
    first(tmp_path, Tokens(), prices=prices())
    kept = json.loads((tmp_path / "june" / "prices.json").read_text())["prices"]
    assert kept["mini"]["input_usd_per_mtok"] == 0.4
    assert len(json.loads((tmp_path / "june" / "queries.json").read_text())["queries"]) == 40


@pytest.mark.slow
def test_a_search_that_continues_is_resumed(tmp_path):
    """From its own files, even if the older run has gone."""
    first(tmp_path, models=["nano", "pro"])

    class Stopped(App):
        def __call__(self, models, text):
            if len(self.calls) == 5:
                raise KeyboardInterrupt
            return super().__call__(models, text)

    stopped = Stopped()
    with pytest.raises(KeyboardInterrupt):
        july(tmp_path, stopped, models=["nano", "mini", "pro"])
    shutil.rmtree(tmp_path / "june")
    app, result = july(tmp_path, models=["nano", "mini", "pro"])
    assert not set(stopped.calls) & set(app.calls)
    assert result.choice == {"plan": "mini", "solve": "mini"}
    total = math.fsum([stopped.usd(), app.usd()])
    assert result.bill.total_usd == pytest.approx(total, rel=1e-12)


@pytest.mark.slow
def test_a_chain_of_searches(tmp_path):
    """What a search took over is taken over from it."""
    first(tmp_path, models=["nano", "pro"])
    july(tmp_path, models=["nano", "mini", "pro"])
    app, result = july(tmp_path, run_dir=tmp_path / "august", continue_from=tmp_path / "july")
    assert app.calls == []
    assert result.choice == {"plan": "mini", "solve": "mini"}


@pytest.mark.slow
def test_several_older_runs(tmp_path):
    first(tmp_path, models=["nano", "pro"])
    st.select(App(), **settings(metric=exactly, models=["mini", "pro"], run_dir=tmp_path / "b"))
    app, result = july(tmp_path, continue_from=[tmp_path / "june", tmp_path / "b"])
    assert [source["used"] > 0 for source in result.report["known"]["sources"]] == [True, True]
    assert {llms for llms, _ in app.calls} <= {("nano", "mini"), ("mini", "nano")}


@pytest.mark.parametrize("priced", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.slow
def test_what_a_run_has_taken_over_counts_once(tmp_path, priced):
    app, more = (Tokens(), {"prices": prices()}) if priced else (App(), {})
    first(tmp_path, app, models=["nano", "pro"], **more)
    more = {"prices": prices(pro=11.0)} if priced else {}
    # july's own answers, beside june's
    july(tmp_path, Tokens() if priced else App(), models=["nano", "mini", "pro"], **more)
    if priced:  # august, at the prices of today
        more = {"prices": prices(pro=12.0)}

    def known(*names):
        paths = [tmp_path / name for name in names]
        fresh = Tokens() if priced else App()
        run_dir = tmp_path / f"from {'-'.join(names)}"
        _, result = july(tmp_path, fresh, run_dir=run_dir, continue_from=paths, **more)
        rounded = [replace(one, cost_usd=round(one.cost_usd, 9)) for one in result.known]
        return sorted(map(str, (replace(one, module_cost_usd=None) for one in rounded))), result

    alone, _ = known("july")
    both, result = known("june", "july")
    assert both == alone
    used = [source["used"] for source in result.report["known"]["sources"]]
    assert sum(used) == len(alone)
    assert used[0] > 0
    assert used[1] > 0
    assert result.report["known"]["sources"][1]["left_out"] == {"taken_before": used[0]}
    for names in [("july", "june"), ("july", "july"), ("june", "july", "from july")]:
        assert known(*names)[0] == alone, names
    (tmp_path / "june").rename(tmp_path / "june of last year")
    assert known("june of last year", "july")[0] == alone
    assert known("june of last year", "from july")[0] == alone


@pytest.mark.slow
@pytest.mark.usefixtures("after_june")
def test_what_two_runs_made_counts_twice(tmp_path):
    st.select(App(), **settings(metric=exactly, run_dir=tmp_path / "b"))
    _, one = july(tmp_path)
    _, two = july(
        tmp_path, run_dir=tmp_path / "two", continue_from=[tmp_path / "june", tmp_path / "b"]
    )
    assert len(two.known) == 2 * len(one.known)


def swapped(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, "<>").replace(new, old).replace("<>", new))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.usefixtures("after_june")
def test_an_edited_list_of_llms_does_not_swap_their_answers(tmp_path, early, finished):
    june = tmp_path / "june"
    if early:  # wrote no hash here
        content = json.loads((june / "settings.json").read_text())
        del content["hash"]
        (june / "settings.json").write_text(json.dumps(content))
        july(tmp_path, run_dir=tmp_path / "before")
    swapped(june / "settings.json", '"nano"', '"mini"')
    if not finished:
        (june / "result.json").unlink()
    if early and not finished:
        return  # nothing knows better
    with pytest.raises(InputError, match=r"settings\.json is damaged"):
        july(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("queries.json", None, None), ("prices.json", "0.1", "0.4"), ("known.json", "true", "false")],
)
def test_what_a_later_search_must_know_has_a_hash(tmp_path, name, old, new):
    first(tmp_path, Tokens(), prices=prices())
    july(tmp_path, Tokens(), prices=prices())
    if old is None:
        old, new = json.loads((tmp_path / "july" / name).read_text())["queries"][:2]
    swapped(tmp_path / "july" / name, old, new)
    with pytest.raises(InputError, match=rf"{name} is damaged \(its content does not match"):
        july(
            tmp_path,
            Tokens(),
            prices=prices(),
            run_dir=tmp_path / "august",
            continue_from=tmp_path / "july",
        )


@pytest.mark.slow
@pytest.mark.usefixtures("after_june")
def test_repeat_asks_again(tmp_path):
    """Where answers vary, old ones tell the model which configuration to try, and no more."""
    app, result = july(tmp_path, repeat=True, repeats=None)
    assert not result.report["known"]["counted"]
    assert len(app.calls) >= 20
    assert result.choice == {"plan": "mini", "solve": "mini"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "other"}, "is a run of 'my_app', this is one of 'other'"),
        ({"reference": {"plan": "pro", "act": "pro"}}, r"has the modules \['plan', 'solve'\]"),
        ({"continue_from": "nowhere"}, "nowhere is not the directory of a run"),
        ({"optimizer": lambda problem: st.make_scope(problem, base="nano")}, "default search"),
    ],
)
@pytest.mark.usefixtures("after_june")
def test_what_cannot_be_continued_is_refused(tmp_path, changes, message):
    app = App()
    with pytest.raises(InputError, match=message):
        july(tmp_path, app, **changes)
    assert app.calls == []
    assert not (tmp_path / "july").exists()


@pytest.mark.usefixtures("after_june")
def test_a_part_of_a_run_is_named_as_such(tmp_path):
    part = tmp_path / "june" / "reference"
    with pytest.raises(InputError, match="reference is a part of a run: name the run itself"):
        st.select(App(), **settings(continue_from=part))
    with pytest.raises(InputError, match="name the run itself"):  # before a live task pays
        refuse_missing([part], tmp_path / "new")


@pytest.mark.slow
@pytest.mark.usefixtures("after_june")
def test_a_directory_keeps_what_it_continues_from(tmp_path):
    july(tmp_path)
    with pytest.raises(InputError, match="restore continue_from"):
        july(tmp_path, continue_from=[tmp_path / "june", tmp_path / "other"])
    for dry_run in (True, False):
        with pytest.raises(InputError, match=r"from \['.*june'\], not from none; restore conti"):
            july(tmp_path, continue_from=(), dry_run=dry_run)


@pytest.mark.slow
@pytest.mark.usefixtures("after_june")
@pytest.mark.parametrize("stop", [5, 30, None])
def test_a_run_that_began_alone_stays_alone(tmp_path, stop):
    """The refusal leaves its directory as it is."""
    app, folder = App(), tmp_path / "july"

    def stopped(models, text):
        if len(app.calls) == stop:
            raise KeyboardInterrupt
        return app(models, text)

    with contextlib.suppress(KeyboardInterrupt):
        july(tmp_path, stopped, continue_from=())
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"july continues from no other run, not from \['.*june"):
        july(tmp_path)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files
    again = july(tmp_path, continue_from=())[1]
    assert again.bill.num_known == 0
    how = {"continue_from": folder, "run_dir": tmp_path / "august"}
    assert july(tmp_path, **how)[1].bill.num_known > 0


@pytest.mark.usefixtures("after_june")
def test_a_check_that_began_alone_stays_alone(tmp_path):
    def check(**how):
        given = settings(metric=exactly, run_dir=tmp_path / "check", **how)
        given = {k: v for k, v in given.items() if k not in ("models", "reference", "repeats")}
        both = [dict.fromkeys(("plan", "solve"), llm) for llm in ("mini", "pro")]
        return st.check(App(), both[0], reference=both[1], **given)

    first = check()
    with pytest.raises(InputError, match="check continues from no other run, not from"):
        check(continue_from=tmp_path / "june")
    assert check().to_json() == first.to_json()


def test_a_module_keeps_its_cost_to_the_last_digit_where_no_price_changed():
    one = Observation(
        (0, 0), 0, 0.3, 1.0, module_cost_usd=(0.1, 0.2), module_tokens=((1, 1), (7, 7))
    )
    price = {"a": {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 3.0}}
    assert repriced(one, ["a", "a"], price, price) is one
    # A cached call costs less than its tokens: its share of the new price is the same.
    twice = {"a": {"input_usd_per_mtok": 2.0, "output_usd_per_mtok": 6.0}}
    assert repriced(one, ["a", "a"], price, twice).module_cost_usd == (0.2, 0.4)
    assert repriced(one, ["a", "a"], None, twice).cost_usd == pytest.approx((8 + 56) / 1e6)


@pytest.mark.parametrize(
    ("then", "now", "usd", "expected"),
    [
        ((10, 1.0), (10, 5.0), 2.8, "no_cached_tokens"),  # 8 of 10 were cached, but who knows
        ((10, 1.0), (10, 5.0), 10.0, 10.0),  # none was
        ((10, 1.0), (20, 5.0), 10.0, 20.0),
        ((10, 1.0), (20, 2.0), 2.8, 5.6),  # they keep their share
        ((10, 1.0), (10, "uncached"), 2.8, 10.0),
        ((10, 1.0), (10, None), 2.8, 10.0),
        ((10, 1.0), (10, "uncached"), 12.0, "no_cached_tokens"),  # more than tokens
        ((10, "uncached"), (10, 1.0), 10.0, "no_cached_tokens"),
        ((10, None), (10, 1.0), 10.0, "no_cached_tokens"),
        ((10, "uncached"), (5, "uncached"), 10.0, 5.0),
        ((10, "uncached"), (10, None), 10.0, 10.0),
        ((0, None), (10, 1.0), 0.0, "no_cached_tokens"),  # which cost nothing then
        ((0, 0.0), (10, None), 0.0, 10.0),
    ],
)
def test_answers_with_cached_tokens_cost_what_they_do_today_or_are_left_out(
    then, now, usd, expected
):
    """A million prompt tokens; nobody kept how many of them were cached."""

    def priced(usd_per_mtok, cached):
        kinds = {"cached": "uncached" if cached == "uncached" else "as_billed"}
        kinds["cached_input_usd_per_mtok"] = 1.0 if cached == "uncached" else cached
        return {"a": {"input_usd_per_mtok": usd_per_mtok, "output_usd_per_mtok": 40.0} | kinds}

    one = Observation((0,), 0, usd, 1.0, module_tokens=((1_000_000, 0),))
    found = repriced(one, ["a"], priced(*then), priced(*now))
    assert (found if isinstance(found, str) else found.cost_usd) == expected


@pytest.mark.parametrize(
    ("key", "then", "now", "usd", "expected"),
    [
        ("cache_write_usd_per_mtok", 12.5, 20.0, 12.0, "no_cached_tokens"),  # 8 of 10 were written
        ("cache_write_usd_per_mtok", 12.5, 20.0, 10.0, 10.0),  # none was
        ("cache_write_usd_per_mtok", None, 12.5, 10.0, "no_cached_tokens"),
        ("cache_write_usd_per_mtok", 12.5, None, 12.0, "no_cached_tokens"),
        ("cache_write_usd_per_mtok", 12.5, 12.5, 12.0, 12.0),
        ("audio_input_usd_per_mtok", 30.0, 40.0, 20.0, "no_cached_tokens"),
        ("audio_output_usd_per_mtok", 80.0, 90.0, 10.0, 10.0),
        ("search_usd", 0.01, 0.02, 10.5, "no_cached_tokens"),
        ("search_usd", 0.01, 0.02, 10.0, 10.0),
    ],
)
def test_answers_whose_other_prices_changed(key, then, now, usd, expected):
    """A million prompt tokens at 10 USD."""

    def described(price):
        llm = LLMInfo("a", 10.0, 40.0, **{key: price})
        return PriceList({"a": llm}).describe(["a"])

    one = Observation((0,), 0, usd, 1.0, module_tokens=((1_000_000, 0),))
    found = repriced(one, ["a"], described(then), described(now))
    assert (found if isinstance(found, str) else found.cost_usd) == expected
    early = {"a": {k: value for k, value in described(then)["a"].items() if k != "others"}}
    assert repriced(one, ["a"], early, described(now)) == one  # which did not say them


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "kind", "words"),
    [
        ("cached_input_usd_per_mtok", "cached_tokens", "cached_input_usd_per_mtok was"),
        ("cache_write_usd_per_mtok", "cache_write_tokens", "others was .*cache_write_usd_per_mtok"),
    ],
)
def test_a_price_of_cached_tokens_asks_again_where_some_were(tmp_path, key, kind, words):
    def of(cached_usd):
        info = {key: cached_usd}
        return {name: replace(llm, **info) for name, llm in prices().items()}

    def app(models, text):
        cached = {kind: 900 * int(text.endswith("7"))}
        return text.upper(), {module: Usage(1000, 10, **cached) for module in models}

    first(tmp_path, app, prices=of(0.01))
    with pytest.raises(InputError, match=words):
        first(tmp_path, app, prices=of(0.02))
    result = july(tmp_path, app, prices=of(0.02))[1]
    (source,) = result.report["known"]["sources"]
    assert source["left_out"] == {"no_cached_tokens": 8}
    fresh = st.select(app, **settings(metric=exactly, prices=of(0.02)))
    assert result.problem.reference_cost_usd == pytest.approx(fresh.problem.reference_cost_usd)


def test_a_search_does_not_continue_from_itself(after_june, tmp_path):
    app = App()
    with pytest.raises(InputError, match="is this run: leave it out, and it goes on"):
        july(tmp_path, app, run_dir=tmp_path / "june", max_quality_loss=0.3)
    assert app.calls == []
    known = {"problem": None, "evaluator": None, "run_dir": tmp_path / "june"}
    with pytest.raises(InputError, match="is this run"):
        known_from([tmp_path / "june"], **known)


def test_attempts_that_failed_cost_what_they_did():
    """They are in the cost, but in that of no module: 0.9 USD for two modules at 0.1 and 0.2."""
    tokens = ((1_000_000, 0), (1_000_000, 0))
    one = Observation((0, 1), 0, 0.9, 1.0, module_cost_usd=(0.1, 0.2), module_tokens=tokens)
    price = {llm: {"input_usd_per_mtok": 0.1, "output_usd_per_mtok": 1.0} for llm in "ab"}
    price["b"] = {"input_usd_per_mtok": 0.2, "output_usd_per_mtok": 1.0}
    dearer = price | {"a": {"input_usd_per_mtok": 0.4, "output_usd_per_mtok": 1.0}}
    found = repriced(one, ["a", "b"], price, dearer)
    assert found.module_cost_usd == pytest.approx((0.4, 0.2))
    assert found.cost_usd == pytest.approx(0.4 + 0.2 + 0.6)


@pytest.mark.slow
@pytest.mark.parametrize("repeat", [True, False])
def test_equal_answers_count_as_often_as_they_came_where_answers_vary(tmp_path, repeat):
    """If those that agree were one, a system that is right 8 times of 10 would seem 50%."""
    luck, calls, skill = random.Random(5), [], 0.8

    def app(models, text):
        calls.append(text)
        return (text if luck.random() < skill else "?"), {"nano": 0.001, "pro": 0.01}[models["a"]]

    how = {
        "models": {"a": ["nano", "pro"]},
        "reference": "pro",
        "dataset": [(f"query {i}", f"query {i}") for i in range(8)],
        "metric": exactly,
        "max_quality_loss": 0.3,
        "budget_usd": 3,
        "repeat": repeat,
    }
    st.select(app, **how, run_dir=tmp_path / "one")
    again = len(read_journal(tmp_path / "one" / "again" / "journal.jsonl"))
    own = read_journal(tmp_path / "one" / "journal.jsonl")
    assert len(own) - len({(o.theta, o.query, o.quality) for o in own}) > 0
    num_calls = len(calls)
    two = st.select(app, **how, run_dir=tmp_path / "two", continue_from=tmp_path / "one")
    assert two.report["known"]["sources"][0]["used"] == num_calls - again
