"""A run that goes on at other prices would mix two costs: it is refused, with the mend."""

import contextlib
import copy
import json
from datetime import date
from decimal import Decimal

import pytest
from llm.fake_endpoint import only_loopback  # noqa: F401
from selection.test_select import PRICE, App, exactly, in_june_2025, settings
from serve.fake_upstream import FakeUpstream
from serve.serve_cases import PATHS, body_of, post

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.serve.current import base_url


class Tokens(App):
    """Says tokens, and stops at a call."""

    def __init__(self, stop=None):
        super().__init__()
        self.stop = stop

    def __call__(self, models, text):
        if len(self.calls) == self.stop:
            raise KeyboardInterrupt
        return super().__call__(models, text)[0], dict.fromkeys(models, (900, 100))


def prices(**times):
    return {
        llm: LLMInfo(llm, 1e3 * usd * times.get(llm, 1), 1e3 * usd * times.get(llm, 1))
        for llm, usd in PRICE.items()
    }


def select(app, **changes):
    return st.select(app, **settings(metric=exactly, **changes))


@pytest.mark.slow
@pytest.mark.parametrize("stop", [10, 85, None])
def test_a_run_does_not_go_on_at_other_prices(tmp_path, stop):
    folder = tmp_path / "june"
    with contextlib.suppress(KeyboardInterrupt):
        select(Tokens(stop), run_dir=folder, prices=prices())
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    app = Tokens()
    with pytest.raises(InputError, match=r"other prices of 'mini': input_usd_.* Restore them, or"):
        select(app, run_dir=folder, prices=prices(mini=20))
    assert app.calls == []
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files
    july = select(app, run_dir=tmp_path / "july", prices=prices(mini=20), continue_from=folder)
    alone = select(Tokens(), prices=prices(mini=20))
    assert july.choice == alone.choice
    assert select(Tokens(), run_dir=folder, prices=prices()).bill.total_usd > 0


def test_pilots_and_the_run_have_one_price(tmp_path):
    folder = tmp_path / "june"
    select(Tokens(), run_dir=folder, prices=prices(), dry_run="pilot")
    for dry_run in ("pilot", False):
        app = Tokens()
        with pytest.raises(InputError, match=r"'pro': .* or choose another run_dir"):
            select(app, run_dir=folder, prices=prices(pro=2), dry_run=dry_run)
        with pytest.raises(InputError, match=r"the metric was .* or choose another run_dir"):
            select(app, run_dir=folder, prices=prices(), metric_version="2", dry_run=dry_run)
        assert app.calls == []  # no search can continue from pilots alone


def test_a_check_does_not_go_on_at_other_prices(tmp_path):
    def check(app, **times):
        how = settings(metric=exactly, run_dir=tmp_path, prices=prices(**times))
        how = {
            key: value
            for key, value in how.items()
            if key not in ("models", "reference", "repeats")
        }
        both = [dict.fromkeys(("plan", "solve"), llm) for llm in ("mini", "pro")]
        return st.check(app, both[0], reference=both[1], **how)

    with pytest.raises(KeyboardInterrupt):
        check(Tokens(5))
    app = Tokens()
    with pytest.raises(InputError, match="other prices of 'mini'") as refused:
        check(app, mini=3)
    assert app.calls == []
    assert check(app).pairs, refused  # the refusal has let go of the journal


def test_published_prices_of_a_check_have_their_own_day(tmp_path, monkeypatch):
    """That of o3 fell on 2025-06-10."""

    def app(_, text):
        return text.upper(), {"model": (1_000, 100)}

    def check(budget_usd, **more):
        data = [(str(i) + "a", str(i) + "A") for i in range(300)]
        how = {"dataset": data, "metric": exactly, "min_quality": 0.9, "run_dir": tmp_path}
        return st.check(app, "o3", budget_usd=budget_usd, **how, **more)

    in_june_2025(monkeypatch, 9)
    check(0.03)
    in_june_2025(monkeypatch, 11)
    with pytest.raises(InputError, match="began with other prices of 'o3': input_usd_per_mtok"):
        check(0.5, prices=PriceList(at=date(2025, 6, 11)))
    assert {one.cost_usd for one in check(0.5).paid} == {1_000 * 10e-6 + 100 * 40e-6}


@pytest.mark.slow
def test_pilots_have_the_day_of_the_run(tmp_path, monkeypatch):
    def app(models, text):
        return text.upper(), dict.fromkeys(models, (1_000, 100))

    how = {"models": ["gpt-4o-mini", "o3"], "reference": "o3", "run_dir": tmp_path / "june"}
    in_june_2025(monkeypatch, 9)
    select(app, **how, dry_run="pilot")
    in_june_2025(monkeypatch, 11)
    with pytest.raises(InputError, match="began with other prices of 'o3'"):
        select(app, **how, prices=PriceList(at=date(2025, 6, 11)))
    found = select(app, **how)
    assert {one.cost_usd for one in found.reference} == {0.014}
    again = select(app, **how | {"run_dir": tmp_path / "july"}, continue_from=tmp_path / "june")
    assert again.problem.reference_cost_usd == pytest.approx(0.0028)  # a fifth


@pytest.mark.slow
def test_a_recheck_at_several_prices_is_not_taken_for_one_of_the_first(tmp_path):
    folder = tmp_path / "watch"

    def watch(times):
        data = settings(metric=exactly)
        how = {name: data[name] for name in ("dataset", "metric", "budget_usd", "name")}
        how |= {"min_quality": 0.5, "draws": 5, "run_dir": folder}
        st.recheck(Tokens(), dict.fromkeys(("plan", "solve"), "pro"), prices=prices(**times), **how)

    def known(**times):
        how = {"prices": prices(**times), "continue_from": folder, "run_dir": tmp_path / str(times)}
        select(Tokens(), **how)
        return json.loads((tmp_path / str(times) / "known.json").read_text())["sources"][0]

    watch({})
    assert known()["used"] == 5
    for pro in (0.2, 1):
        watch({"pro": pro})
        source = known(pro=pro)
        assert source["used"] == 0
        assert set(source["left_out"]) == {"several_prices"}
    watch({"pro": 0.2})
    first = json.loads((folder / "prices.json").read_text())["prices"]
    (folder / "prices.json").write_text(json.dumps({"prices": first}))  # of an early version
    assert known(pro=0.3)["used"] == 0  # its result says so


def of_o3(app, **changes):
    how = {"models": ["o3", "gpt-4o-mini"], "reference": "o3", "max_quality_loss": 0.3}
    data = [(f"q {i}", f"Q {i}") for i in range(12)]
    return st.select(
        app, dataset=data, metric=exactly, budget_usd=5, repeats=0, name="o3", **how, **changes
    )


def prices_of_o3(result):
    price = result.prices["o3"]
    return price["at"], price["input_usd_per_mtok"], result.problem.reference_cost_usd


@pytest.mark.slow
@pytest.mark.parametrize("dry_run", [False, True, "pilot"])
def test_a_price_list_is_not_changed_by_a_run_that_goes_on(tmp_path, monkeypatch, dry_run):
    def app(_, text):
        return text.upper(), {"model": (1_000, 100)}

    in_june_2025(monkeypatch, 9)
    old = of_o3(app, run_dir=tmp_path / "9", prices=st.PriceList())
    in_june_2025(monkeypatch, 11)
    prices = st.PriceList()
    again = of_o3(app, run_dir=tmp_path / "9", prices=prices, dry_run=dry_run)
    if not dry_run:
        assert prices_of_o3(again) == prices_of_o3(old) == ("2025-06-09", 10.0, 0.014)
    new = of_o3(app, run_dir=tmp_path / "11", prices=prices)
    assert prices_of_o3(new) == ("2025-06-11", 2.0, pytest.approx(0.0028))


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 7, None])
def test_a_run_does_not_go_on_at_prices_that_a_release_has_corrected(tmp_path, monkeypatch, stop):
    """Of the day on which it began; a new release of the package says something else of it."""

    def app(_, text):
        calls.append(text)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return text.upper(), {"model": (1_000, 100)}

    def corrected(self, llm, tier=""):
        price = copy.copy(published(self, llm, tier))
        price.input_mtok = Decimal(3) if llm == "o3" else price.input_mtok
        return price

    published, calls = PriceList._model_price, []
    with contextlib.suppress(KeyboardInterrupt):
        of_o3(app, run_dir=tmp_path / "june")
    monkeypatch.setattr(PriceList, "_model_price", corrected)
    calls.clear()
    with pytest.raises(
        InputError, match=r"other prices of 'o3': input_usd_per_mtok was 2.0, now 3"
    ):
        of_o3(app, run_dir=tmp_path / "june")
    assert calls == []
    stop = None
    july = of_o3(app, run_dir=tmp_path / "july", continue_from=tmp_path / "june")
    assert [one.cost_usd for one in july.reference] == pytest.approx([0.0038] * 12)


@pytest.mark.slow
def test_an_endpoint_books_a_run_that_goes_on_at_its_own_prices(tmp_path, monkeypatch):
    stop = [5]

    def app(models, text):
        if not stop[0]:
            raise KeyboardInterrupt
        stop[0] -= 1
        assert post(base_url() + PATHS[0], body_of(PATHS[0], "scope/model")).status == 200
        return text.upper()

    in_june_2025(monkeypatch, 9)
    with FakeUpstream() as upstream:
        before = st.Endpoint(upstream.url, api_key_env="")
        with pytest.raises(KeyboardInterrupt):
            of_o3(app, run_dir=tmp_path / "9", endpoint=before)
        in_june_2025(monkeypatch, 11)
        stop[0] = 99
        with st.Endpoint(upstream.url, api_key_env="") as endpoint:
            old = of_o3(app, run_dir=tmp_path / "9", endpoint=endpoint)
            booked = before.ledger.cost_usd + endpoint.ledger.cost_usd
            assert booked == pytest.approx(old.bill.total_usd, rel=1e-12)
            new = of_o3(app, run_dir=tmp_path / "11", endpoint=endpoint)
    assert prices_of_o3(old)[:2] == ("2025-06-09", 10.0)
    assert prices_of_o3(new)[:2] == ("2025-06-11", 2.0)
    assert len({one.cost_usd for one in old.reference}) == 1
    assert old.problem.reference_cost_usd > 4 * new.problem.reference_cost_usd
