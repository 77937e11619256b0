"""Prices of tokens in a batch: published ones, own ones, and who refuses them."""

import re
from datetime import date

import pytest

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.llm.billing import Usage
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo, load_llms
from scope_torch.observation import Observation
from scope_torch.results.bill import Bill
from scope_torch.runs.repricing import repriced

DAY = date(2026, 11, 1)
USAGE = Usage(100_000, 10_000, 40_000, cache_write_tokens=20_000)


@pytest.mark.parametrize(
    ("llm", "expected"),
    [
        # developers.openai.com/api/docs/pricing, Batch: GPT-5 mini 0.125, cached 0.0125, 1
        ("gpt-5-mini", 0.6 * 0.125 + 0.4 * 0.0125 + 0.1 * 1),
        # platform.claude.com, Batch processing: Haiku 4.5 0.50 and 2.50, caches halved too
        ("anthropic/claude-haiku-4-5", 0.4 * 0.5 + 0.4 * 0.05 + 0.2 * 0.625 + 0.1 * 2.5),
        # docs.x.ai, Batch API: 20% off 1.25, 0.20 and 2.50
        ("grok-4.3", 0.6 * 1.0 + 0.4 * 0.16 + 0.1 * 2.0),
        # openrouter.ai names the route: GLM 5.3 in batches 0.45, cached 0.10, 2
        ("openrouter/z-ai/glm-5.3:batch", 0.6 * 0.45 + 0.4 * 0.1 + 0.1 * 2.0),
    ],
)
def test_published_batch_prices(llm, expected):
    prices = PriceList(batch=True, at=DAY)
    assert prices.cost_usd(llm, USAGE) == pytest.approx(expected / 10, rel=1e-14)
    live = USAGE._replace(tier="priority")  # what a reply says of its tier changes nothing
    assert prices.cost_usd(llm, live) == prices.cost_usd(llm, USAGE)


def test_a_cache_of_google_costs_the_same_in_a_batch():
    """ai.google.dev/gemini-api/docs/pricing: 2.5 Flash 0.30 and 2.50 are halved, cached 0.03."""
    found = PriceList(batch=True, at=DAY).cost_usd("gemini-2.5-flash", Usage(1000, 100, 400))
    assert found == pytest.approx((600 * 0.15 + 400 * 0.03 + 100 * 1.25) / 1e6, rel=1e-14)


def test_a_batch_price_that_is_the_standard_price_is_known():
    """developers.openai.com lists 1 and 2 USD for both."""
    assert PriceList(batch=True, at=DAY).usd_per_mtok("gpt-3.5-turbo-1106") == (1.0, 2.0)


def test_own_batch_prices(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text(
        'version = 1\n[[llm]]\nname = "mine"\ninput_usd_per_mtok = 1.0\noutput_usd_per_mtok = 5.0\n'
        "cached_input_usd_per_mtok = 0.1\ncache_write_usd_per_mtok = 1.25\nsearch_usd = 0.01\n"
        "batch_factor = 0.6\n"
    )
    usage = Usage(1000, 100, 400, cache_write_tokens=300, searches=2)
    parts = 300 * 1.0 + 400 * 0.1 + 300 * 1.25 + 100 * 5.0
    batch, live = PriceList(path, batch=True), PriceList(path)
    assert batch.cost_usd("mine", usage) == pytest.approx(0.6 * parts / 1e6 + 0.02, rel=1e-14)
    assert live.cost_usd("mine", usage) == pytest.approx(parts / 1e6 + 0.02, rel=1e-14)
    told = usage._replace(tier="batch")  # as Anthropic's usage of a batch says
    assert batch.cost_usd("mine", told) == live.cost_usd("mine", told)
    assert live.cost_usd("mine", told) == batch.cost_usd("mine", usage)


def test_an_llm_without_a_batch_price_is_refused_by_name():
    own = {"mine": LLMInfo("mine", 1.0, 5.0), "gpt-5-mini": LLMInfo("gpt-5-mini", 1.0, 2.0)}
    prices = PriceList(own, batch=True, at=DAY)
    names = ["mine", "gpt-5-mini", "claude-3-haiku", "gpt-5-nano", "x/y:free"]
    refused = "'mine', 'gpt-5-mini', 'claude-3-haiku', 'x/y:free' on 2026-11-01; .*batch_factor"
    with pytest.raises(InputError, match=f"no batch price is known for {refused}"):
        prices.check(names)
    for name in ("mine", "claude-3-haiku"):
        with pytest.raises(InputError, match=f"no batch price is known for '{name}'"):
            prices.describe([name])
    with pytest.raises(InputError, match="no price is known for 'nobody'"):
        prices.check(["nobody", "mine"])


def test_a_batch_price_recorded_for_another_standard_price_is_none():
    """o3 cost 10 and 40 USD until 10 June 2025; half of today's 2 and 8 says nothing of then."""
    assert PriceList(batch=True, at=DAY).usd_per_mtok("o3") == (1.0, 4.0)
    with pytest.raises(InputError, match="no batch price is known for 'o3' on 2025-06-09"):
        PriceList(batch=True, at=date(2025, 6, 9)).check(["o3"])


@pytest.mark.parametrize("factor", [-0.1, 1.5, "half", True])
def test_a_factor_that_cannot_be_is_refused(tmp_path, factor):
    path = tmp_path / "prices.toml"
    text = {True: "true"}.get(factor, repr(factor))
    path.write_text(
        'version = 1\n[[llm]]\nname = "mine"\ninput_usd_per_mtok = 1.0\noutput_usd_per_mtok = 5.0\n'
        f"batch_factor = {text}\n"
    )
    with pytest.raises(InputError, match="batch_factor, if any, from 0 to 1"):
        load_llms(path)


def test_the_bill_says_that_prices_are_of_batches():
    prices = PriceList(batch=True, at=DAY).describe(["gpt-5-mini"])
    assert prices["gpt-5-mini"]["batch"] is True
    said = r"gpt-5-mini: 0\.125 in, 1 out .*genai-prices .*, 2026-11-01, in a batch\)"
    assert re.search(said, str(Bill(prices=prices)))
    assert "batch" not in PriceList(at=DAY).describe(["gpt-5-mini"])["gpt-5-mini"]


def test_a_live_run_is_repriced_for_batches():
    """1000 x 0.25 + 100 x 2 USD per million tokens, then half of it."""
    one = Observation((0,), 0, cost_usd=0.00045, quality=1.0, module_tokens=((1000, 100),))
    live, batch = (PriceList(batch=b, at=DAY).describe(["gpt-5-mini"]) for b in (False, True))
    found = repriced(one, ["gpt-5-mini"], live, batch).cost_usd
    assert found == pytest.approx((1000 * 0.125 + 100 * 1.0) / 1e6, rel=1e-14)


def test_an_endpoint_refuses_batch_prices():
    with pytest.raises(InputError, match=r"live calls.*leave out batch=True"):
        st.Endpoint("http://127.0.0.1:9/v1", prices=PriceList(batch=True))


def answer(models, question):
    return question, {"only": (1000, 100)}


def selected(run_dir=None, **prices):
    return st.select(
        answer, models={"only": ["gpt-5-mini", "gpt-5-nano"]}, dataset=[(str(i), str(i)) for i in
        range(20)], metric=st.metrics.exact_match, reference="gpt-5-mini", max_quality_loss=0.2,
        budget_usd=1, run_dir=run_dir, progress=False, **prices,
    )  # fmt: skip


@pytest.mark.slow
def test_select_in_batches(tmp_path):
    result = selected(tmp_path, prices=PriceList(batch=True, at=DAY))
    assert result.choice == {"only": "gpt-5-nano"}
    assert result.problem.reference_cost_usd == pytest.approx((1000 * 0.125 + 100) / 1e6, rel=1e-12)
    with pytest.raises(InputError, match="batch was True, now None"):
        selected(tmp_path, prices=PriceList(at=DAY))
    with pytest.raises(InputError, match="live calls"):
        selected(endpoint="http://127.0.0.1:9/v1", prices=PriceList(batch=True, at=DAY))
