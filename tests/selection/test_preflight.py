"""Before a selection pays for its reference, each LLM of each module has answered once."""

from datetime import datetime

import pytest
from selection.test_select import App, exactly, settings

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.runs.recorded import read_run
from scope_torch.selection.preflight import cheapest, covering, query_of
from scope_torch.tasks.synthetic import synthetic_task
from scope_torch.watch.reading import view_of


def problem_of(llms, theta_ref=(0, 0), allowed=None):
    modules = tuple(f"m{i}" for i in range(len(llms)))
    return st.SelectionProblem(
        "p", modules, llms, 4, theta_ref, 1.0, 1.0, epsilon=0.1, allowed=allowed
    )


def pairs(thetas):
    return {pair for theta in thetas for pair in enumerate(theta)}


@pytest.mark.parametrize(
    ("llms", "expected"),
    [
        ((("a", "b", "c"), ("a", "b", "c")), [(0, 0), (1, 1), (2, 2)]),
        ((("a", "b"), ("x", "y", "z")), [(0, 0), (1, 1), (0, 2)]),
        ((("a", "b", "c"), ("b", "z")), [(0, 0), (1, 0), (2, 1)]),
        ((("a",),), [(0,)]),
    ],
)
def test_each_llm_of_each_module_is_covered_by_few_configurations(llms, expected):
    problem = problem_of(llms, (0,) * len(llms))
    found = covering(problem, [])
    assert found == expected
    assert pairs(found) == {(i, k) for i, names in enumerate(llms) for k in range(len(names))}
    assert len(found) == max(map(len, llms))


def test_only_allowed_configurations_are_asked():
    problem = problem_of(
        (("a", "b", "c"),) * 2, (0, 1), allowed=lambda llms: llms["m0"] != llms["m1"]
    )
    found = covering(problem, [])
    assert found[0] == (0, 1)
    assert all(problem.is_allowed(theta) for theta in found)
    assert pairs(found) == {(i, k) for i in range(2) for k in range(3)}


def test_an_llm_that_no_rule_allows_is_left_out():
    problem = problem_of((("a", "b"),) * 2, allowed=lambda llms: llms["m1"] != "b")
    assert pairs(covering(problem, [])) == {(0, 0), (0, 1), (1, 0)}


def test_what_is_known_is_not_asked():
    problem = problem_of((("a", "b", "c"),) * 2)
    assert covering(problem, [(0, 0), (1, 1), (2, 2)]) == []
    assert covering(problem, [(0, 0), (1, 1)]) == [(0, 0), (2, 2)]  # theta_0 beside the new one
    assert covering(problem, [(0, 0), (1, 1)], answered=[(0, 0)]) == [(2, 2)]


def test_a_wrong_name_ends_the_selection_before_the_reference_is_paid():
    app = App()

    def refuses(models, text):
        if "mini" in models.values():
            raise ConnectionError("model mini does not exist")
        return app(models, text)

    with pytest.raises(ConnectionError, match="mini does not exist") as raised:
        st.select(refuses, **settings(metric=exactly))
    assert "under {'plan': 'mini', 'solve': 'mini'}" in "".join(raised.value.__notes__)
    assert len(app.calls) == 2  # pro, nano


@pytest.mark.slow
def test_a_failed_run_is_not_the_cheapest():
    """A free failure once was: then all that was near it failed, and the reference was kept."""
    app = App()

    def breaks(models, text):
        if "nano" in models.values():
            raise ConnectionError("down")
        return app(models, text)

    result = st.select(breaks, **settings(metric=exactly, on_error="zero"))
    assert result.settings["optimizer"]["base"] == (1, 1)
    assert result.choice == {"plan": "mini", "solve": "mini"}


def test_nothing_works():
    def breaks(models, text):
        raise ConnectionError("no key")

    with pytest.raises(InputError, match=r"no configuration answered query 0: all 3 runs failed"):
        st.select(breaks, **settings(metric=exactly, on_error="zero"))


@pytest.mark.slow
def test_an_outcome_that_the_app_does_not_say_is_missed_by_the_first_run(tmp_path):
    app, says = App(), False

    def with_steps(models, text):
        output, usd = app(models, text)
        return {"output": output, "cost_usd": usd} | ({"outcomes": {"steps": 2.0}} if says else {})

    arguments = settings(metric=exactly, constraints=["steps <= 3 cap 10"], run_dir=tmp_path)
    with pytest.raises(InputError, match="the app says no 'steps'") as raised:
        st.select(with_steps, **arguments)
    assert len(app.calls) == 1
    assert "0.02 USD" in "".join(raised.value.__notes__)
    says = True  # mended
    result = st.select(with_steps, **arguments)
    assert result.certified
    assert result.bill.lost_usd == pytest.approx(0.02)
    assert result.bill.total_usd == pytest.approx(app.usd())


def test_the_cheapest_is_that_of_one_query():
    task = synthetic_task()
    observe = task.evaluator.evaluate
    thetas = [(0, 0), (1, 1), (4, 4), (0, 3)]
    found = [o for theta in thetas for o in observe([st.Request(theta, q) for q in (2, 7)])]
    assert query_of(found) == 2
    same = {o.theta: o.cost_usd for o in found if o.query == 2 and o.theta != (0, 3)}
    best = task.problem.names(min(same, key=same.__getitem__))
    assert cheapest(task.problem, found, 2) == best
    assert cheapest(task.problem, [], 2) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 2**70}, "seed"),
        ({"batch_size": 2.5}, r"batch_size=2\.5 must be a whole number"),
        ({"in_flight": 2.5}, r"in_flight=2\.5 must be a whole number"),
        ({"callbacks": [print]}, "has no method"),
        ({"callbacks": [st.Callback]}, "has no method"),
        ({"optimizer": lambda problem: problem}, "has no method"),
        ({"budget_usd": "3"}, "budget_usd='3' must be a number"),
        ({"repeats": -1}, "repeats=-1 must be a whole number, and at least 0"),
        ({"constraints": ["quality >= 0.9"]}, "max_quality_loss="),
    ],
)
def test_what_can_be_refused_is_refused_before_anything_is_paid(changes, message):
    app = App()
    with pytest.raises(InputError, match=message):
        st.select(app, **settings(**changes))
    assert app.calls == []


@pytest.mark.slow
def test_numbers_of_numpy_are_numbers(tmp_path):
    np = pytest.importorskip("numpy")
    changes = {
        "max_quality_loss": np.float32(0.1),
        "budget_usd": np.float64(3),
        "seed": np.int64(0),
    }
    app = App()
    result = st.select(app, **settings(metric=exactly, run_dir=tmp_path, **changes))
    assert result.certified
    again = st.select(app, **settings(metric=exactly, run_dir=tmp_path, **changes))
    assert again.replayed == len(result.history)


@pytest.mark.parametrize("concurrency", [1, 4, 16, 32])
def test_at_any_concurrency_no_more_is_in_flight_than_the_budget_pays_for(concurrency, tmp_path):
    app = App()
    with pytest.raises(InputError, match=r"of 40 queries, so about .* budget_usd=0\.1;") as raised:
        st.select(app, **settings(budget_usd=0.1, concurrency=concurrency, run_dir=tmp_path))
    probe = 2 * (1e-4 + 4e-4)
    assert app.usd() == pytest.approx(probe + 5 * 0.02)  # five pilots
    assert f"cost {app.usd() - probe:.3g} USD on 5 of 40" in str(raised.value)


@pytest.mark.parametrize("width", [{"batch_size": 8}, {"in_flight": 8}])
@pytest.mark.parametrize("concurrency", [1, 8])
def test_the_search_ends_near_its_budget_at_any_concurrency(concurrency, width):
    app = App()
    result = st.select(
        app, **settings(metric=exactly, budget_usd=0.85, concurrency=concurrency, **width)
    )
    assert app.usd() <= 0.85 + max(o.cost_usd for o in result.history)
    assert result.bill.total_usd == pytest.approx(app.usd(), rel=1e-12)


@pytest.mark.slow
def test_held_out_queries_are_reserved_at_what_the_choice_may_cost():
    app = App()
    changes = {"max_quality_loss": None, "objective": "quality", "holdout": 0.25}
    limit = "cost_usd <= 0.02 cap 0.03"
    result = st.select(
        app, **settings(metric=exactly, budget_usd=2, constraints=[limit], **changes)
    )
    assert app.usd() <= 2 + max(o.cost_usd for o in result.history)
    assert result.held_out is not None


def test_many_cheap_llms_are_not_taken_for_as_dear_as_the_reference():
    """What one run of theta_0 costs says nothing of 20 other LLMs."""
    paid = []

    def app(models, text):
        paid.append({"pro": 0.04}.get(models["answer"], 1e-4))
        return text.upper(), paid[-1]

    llms = ["pro", *(f"m{i}" for i in range(20))]
    how = {"models": {"answer": llms}, "reference": "pro", "dataset": settings()["dataset"][:10]}
    assert st.select(app, **settings(metric=exactly, budget_usd=0.6, **how)).certified
    assert sum(paid) < 0.6
    paid.clear()
    with pytest.raises(InputError, match=r"2 of 21 runs cost 0\.0401 USD, and budget_usd=0\.3;"):
        st.select(app, **settings(metric=exactly, budget_usd=0.3, **how))


def test_a_reference_that_is_too_dear_names_what_was_lost_before(tmp_path):
    app, dies = App(), True

    def flaky(models, text):
        said = app(models, text)
        if dies and len(app.calls) > 3:
            error = ConnectionError("down")
            error.cost_usd = 0.3
            raise error
        return said

    for _ in range(3):
        with pytest.raises(ConnectionError):
            st.select(flaky, **settings(metric=exactly, budget_usd=1, run_dir=tmp_path))
    dies = False
    with pytest.raises(InputError, match=r"0\.1 USD on 5 of 40.*, after 0\.9 USD were lost;"):
        st.select(flaky, **settings(metric=exactly, budget_usd=1, run_dir=tmp_path))


def test_a_preflight_that_dies_again_and_again_ends_with_the_budget(tmp_path):
    app = App()

    def dies(models, text):
        app(models, text)
        error = ConnectionError("down")
        error.cost_usd = 0.3
        raise error

    for _ in range(4):
        with pytest.raises(ConnectionError):
            st.select(dies, **settings(metric=exactly, budget_usd=1, run_dir=tmp_path))
    with pytest.raises(InputError, match=r"1\.2 USD were paid for runs that were lost, and budget"):
        st.select(dies, **settings(metric=exactly, budget_usd=1, run_dir=tmp_path))
    assert len(app.calls) == 4


class DearLater(App):
    """The held-out queries cost as many times as much as the others."""

    def __init__(self, times):
        super().__init__()
        selection = st.Selection(self, **settings(holdout=0.5))
        self.held, self.times, self.paid = {i.input for i in selection._setup.held_out}, times, 0.0

    def __call__(self, models, text):
        output, usd = super().__call__(models, text)
        usd *= self.times if text in self.held else 1
        self.paid += usd
        return output, usd


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize(
    ("times", "compared"), [(1, range(20, 21)), (10, range(6, 15)), (60, range(1, 2))]
)
@pytest.mark.slow
def test_held_out_queries_end_with_the_budget(concurrency, times, compared, tmp_path, caplog):
    app = DearLater(times)
    how = {"holdout": 0.5, "run_dir": tmp_path, "concurrency": concurrency}
    how = settings(metric=exactly, budget_usd=2.5, **how)
    result = st.select(app, **how)
    assert app.paid <= 2.5 + 0.02 * times
    assert result.bill.total_usd == pytest.approx(app.paid, rel=1e-12)
    number = result.held_out.num_queries
    assert number in compared
    told = f"compared are {number} of 20 held-out queries"
    assert (told in caplog.text) == (number < 20)
    assert [o.query for o in result.held_out.choice] == list(range(number))
    assert [o.query for o in result.held_out.reference] == list(range(number))
    recorded = view_of(read_run(tmp_path), datetime(2026, 11, 25)).result
    assert recorded.held_out.to_json() == result.held_out.to_json()
    assert recorded.bill.total_usd == pytest.approx(app.paid, rel=1e-12)
    # The same call pays nothing; a larger budget only for the rest.
    again = st.select(app, **how)
    assert again.bill == result.bill
    assert len(app.calls) == len(set(app.calls)) >= result.bill.num_calls
    more = st.select(app, **(how | {"budget_usd": 2.5 + 0.05 * 20 * times}))
    assert more.held_out.num_queries == 20
    assert len(app.calls) == len(set(app.calls))
    assert more.bill.total_usd == pytest.approx(app.paid, rel=1e-12)


@pytest.mark.slow
def test_a_price_list_of_today_resumes_on_a_later_day(tmp_path, monkeypatch):
    from datetime import date

    from scope_torch.llm.prices import LLMInfo

    own = {llm: LLMInfo(llm, 1.0, 2.0) for llm in ("nano", "mini", "pro")}
    monday, tuesday = st.PriceList(own), st.PriceList(own)
    monday.at, tuesday.at = date(2026, 1, 5), date(2026, 1, 6)

    def app(models, text):
        return App.answer(models, text), dict.fromkeys(models, (500, 250))

    first = st.select(app, **settings(metric=exactly, run_dir=tmp_path, prices=monday))
    again = st.select(app, **settings(metric=exactly, run_dir=tmp_path, prices=tuesday))
    assert again.replayed == len(first.history)
    assert again.prices == first.prices


@pytest.mark.slow
def test_published_prices_that_are_used_are_shown():
    def app(models, text):
        return App.answer(dict.fromkeys(models, "pro"), text), dict.fromkeys(models, (500, 250))

    llms = ["gpt-4o-mini", "gpt-4o"]
    result = st.select(
        app,
        **settings(
            metric=exactly,
            models=llms,
            reference={"plan": "gpt-4o", "solve": "gpt-4o"},
        ),
    )
    assert set(result.bill.prices) == set(llms)
    assert "gpt-4o-mini: 0.15 in, 0.6 out" in str(result.bill)


@pytest.mark.slow
def test_a_module_that_asks_nobody_with_another_llm_is_told_at_once(caplog):
    """As a cache of that module looks like, on the first query already."""

    def app(models, text):
        tokens = {module: (500, 250) if llm == "pro" else (0, 0) for module, llm in models.items()}
        return App.answer(models, text), tokens | {"plan": (500, 250)}

    from scope_torch.llm.prices import LLMInfo

    prices = {llm: LLMInfo(llm, 1.0, 2.0) for llm in ("nano", "mini", "pro")}
    st.select(app, **settings(metric=exactly, prices=prices))
    assert "'solve' asked an LLM under the reference, and none under" in caplog.text
    caplog.clear()
    st.select(app, **settings(metric=exactly, prices=prices, optional_modules=["solve"]))
    assert "asked an LLM under the reference" not in caplog.text


@pytest.mark.slow
def test_a_module_whose_tokens_nobody_tells_is_told_at_once_and_at_the_end(caplog):
    """Its LLMs would count as free, and the bill would be wrong without a word."""

    def app(models, text):
        return App.answer(models, text), {"plan": (500, 250)}

    from scope_torch.llm.prices import LLMInfo

    prices = {llm: LLMInfo(llm, 1.0, 2.0) for llm in ("nano", "mini", "pro")}
    result = st.select(app, **settings(metric=exactly, prices=prices))
    assert caplog.text.count("'solve' has no tokens and no cost in any run") == 1
    assert result.left_out["solve"] >= len(result.history)
    assert "solve was not asked in" in str(result)
    caplog.clear()
    result = st.select(app, **settings(metric=exactly, prices=prices, optional_modules=["solve"]))
    assert "has no tokens" not in caplog.text
    assert result.left_out == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["in_flight", "batch_size"])
def test_another_width_is_told_what_to_pass(name, tmp_path):
    st.select(App(), **settings(metric=exactly, run_dir=tmp_path, **{name: 4}))
    with pytest.raises(InputError, match=rf"{name} was 4, now 2 \(pass {name}=4\)"):
        st.select(App(), **settings(metric=exactly, run_dir=tmp_path, **{name: 2}))


@pytest.mark.slow
def test_one_width_in_the_place_of_the_other_names_one_mend(tmp_path):
    st.select(App(), **settings(metric=exactly, run_dir=tmp_path / "a", in_flight=4))
    with pytest.raises(InputError, match=r"in_flight was 4, now 1 \(pass in_flight=4\)\. ") as told:
        st.select(App(), **settings(metric=exactly, run_dir=tmp_path / "a", batch_size=4))
    assert "batch_size=" not in str(told.value)
    st.select(App(), **settings(metric=exactly, run_dir=tmp_path / "b", batch_size=4))
    with pytest.raises(
        InputError, match=r"batch_size was 4, now 1 \(pass batch_size=4\)\. "
    ) as told:
        st.select(App(), **settings(metric=exactly, run_dir=tmp_path / "b", in_flight=4))
    assert "in_flight=" not in str(told.value)


@pytest.mark.slow
@pytest.mark.parametrize("before", [{"concurrency": 4}, {"batch_size": 4}, {}])
def test_a_run_goes_on_as_it_began_at_any_concurrency(before, tmp_path):
    found = st.select(App(), **settings(metric=exactly, run_dir=tmp_path, **before))
    app = App()
    again = st.select(app, **settings(metric=exactly, run_dir=tmp_path, concurrency=8))
    assert list(again.history) == list(found.history)
    assert app.calls == []
