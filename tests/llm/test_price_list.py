"""Published prices by day and tier, own prices that override them, and caches."""

import pickle
from datetime import date
from decimal import Context, Inexact, localcontext

import pytest

from scope_torch.errors import InputError
from scope_torch.llm.billing import Usage
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo

DAY = date(2026, 6, 1)
MTOK = 1e6


def usd(*parts):
    """Tokens x USD per million tokens, by hand."""
    return sum(tokens * price for tokens, price in parts) / MTOK


@pytest.mark.parametrize(
    ("llm", "usage", "expected"),
    [
        # openai.com/api/pricing: GPT-4o mini 0.15, cached 0.075, output 0.60
        ("gpt-4o-mini", Usage(1000, 100), usd((1000, 0.15), (100, 0.6))),
        ("openai/gpt-4o-mini", Usage(1000, 100, 400), usd((600, 0.15), (400, 0.075), (100, 0.6))),
        # platform.claude.com/docs/en/about-claude/pricing: Haiku 4.5 1, read 0.1, write 1.25, 5
        (
            "anthropic:claude-haiku-4-5",
            Usage(1000, 100, 400, cache_write_tokens=300),
            usd((300, 1.0), (400, 0.1), (300, 1.25), (100, 5.0)),
        ),
        # ai.google.dev/gemini-api/docs/pricing: Gemini 2.5 Pro up to 200k 1.25 and 10, above 2.50
        # and 15, for all tokens of the call
        ("gemini-2.5-pro", Usage(200_000, 1000), usd((200_000, 1.25), (1000, 10))),
        ("gemini-2.5-pro", Usage(200_001, 1000), usd((200_001, 2.5), (1000, 15))),
    ],
)
def test_published_prices(llm, usage, expected):
    assert PriceList(at=DAY).cost_usd(llm, usage) == pytest.approx(expected, rel=1e-14)


def test_decimal_numbers_of_the_application_round_no_bill():
    usage = Usage(123_457, 7_891, 1_000)
    prices = PriceList(at=DAY)
    told = prices.cost_usd("gpt-5-mini", usage)
    with localcontext(Context(2, traps=[Inexact])):
        assert prices.cost_usd("gpt-5-mini", usage) == told


def test_the_price_of_the_day():
    """openai.com: o3 fell from 10 and 40 USD to 2 and 8 on 10 June 2025."""
    usage = Usage(1_000_000, 1_000_000)
    assert PriceList(at=date(2025, 6, 9)).cost_usd("o3", usage) == 50.0
    assert PriceList(at=date(2025, 6, 11)).cost_usd("o3", usage) == 10.0
    assert PriceList(at=date(2025, 6, 9)).usd_per_mtok("o3") == (10.0, 40.0)


def test_own_prices_come_first():
    own = {"gpt-4o-mini": LLMInfo("gpt-4o-mini", 1.0, 2.0), "local": LLMInfo("local", 0.0, 0.0)}
    prices = PriceList(own, at=DAY)
    assert prices.cost_usd("gpt-4o-mini", Usage(1_000_000, 1_000_000)) == 3.0
    assert prices.cost_usd("local", Usage(10**9, 10**9)) == 0.0
    assert prices.usd_per_mtok("gpt-4o") == (2.5, 10.0)
    assert prices.describe(["local"])["local"]["source"] == "own prices"


def test_own_price_of_a_cache_write():
    llm = LLMInfo("mine", 1.0, 5.0, cached_input_usd_per_mtok=0.1, cache_write_usd_per_mtok=1.25)
    usage = Usage(1000, 100, 400, cache_write_tokens=300)
    expected = usd((300, 1.0), (400, 0.1), (300, 1.25), (100, 5.0))
    assert PriceList({"mine": llm}).cost_usd("mine", usage) == pytest.approx(expected, rel=1e-15)
    plain = LLMInfo("mine", 1.0, 5.0)  # without prices of their own they cost what others do
    assert PriceList({"mine": plain}).cost_usd("mine", usage) == pytest.approx(1500 / MTOK)


def test_without_caches():
    usage = Usage(1000, 100, 400, cache_write_tokens=300)
    for llm in ("claude-haiku-4-5", "mine"):
        own = {"mine": LLMInfo("mine", 1.0, 5.0, 0.1)}
        prices = PriceList(own, cached="uncached", at=DAY)
        assert prices.cost_usd(llm, usage) == pytest.approx(usd((1000, 1.0), (100, 5.0)))
        assert prices.describe([llm])[llm]["cached"] == "uncached"


def test_a_price_list_from_a_file(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text(
        'version = 1\n[[llm]]\nname = "mine"\ninput_usd_per_mtok = 0.5\noutput_usd_per_mtok = 1.5\n'
    )
    prices = PriceList(path, at=DAY)
    assert prices.usd_per_mtok("mine") == (0.5, 1.5)
    assert prices.describe(["mine"])["mine"]["source"] == str(path)


def test_what_a_bill_says_of_a_published_price():
    found = PriceList(at=DAY).describe(["openai/gpt-4o-mini"])["openai/gpt-4o-mini"]
    assert found.pop("source").startswith("genai-prices 0.")
    assert found.pop("others")["web_searches_kcount"] == 10.0
    assert found == {
        "input_usd_per_mtok": 0.15,
        "output_usd_per_mtok": 0.6,
        "cached_input_usd_per_mtok": 0.075,
        "cached": "as_billed",
        "model": "gpt-4o-mini",
        "at": "2026-06-01",
    }


def test_unknown_names_are_refused_with_the_mend():
    prices = PriceList()
    with pytest.raises(InputError, match=r"for 'small', 'nobody/x'; .*prices.toml .*\"small\""):
        prices.check(["gpt-4o-mini", "small", "nobody/x", "small"])
    with pytest.raises(InputError, match="no price is known for 'small'"):
        prices.cost_usd("small", Usage(1, 1))
    with pytest.raises(InputError, match="cached='sometimes'"):
        PriceList(cached="sometimes")  # type: ignore[arg-type]


def test_a_copy_by_pickle_has_the_same_prices():
    prices = PriceList({"mine": LLMInfo("mine", 1.0, 5.0)}, cached="uncached", at=DAY)
    copy = pickle.loads(pickle.dumps(prices))
    names = ["mine", "gpt-4o-mini"]
    assert copy.describe(names) == prices.describe(names)
    assert copy.at == DAY


def test_free_models_of_openrouter_cost_nothing():
    prices = PriceList(at=DAY)
    for name in (
        "deepseek/deepseek-r1:free",
        "openrouter/deepseek/deepseek-r1:free",
        "new/one:free",
    ):
        prices.check([name])
        assert prices.cost_usd(name, Usage(10**6, 10**6)) == 0.0
        assert prices.usd_per_mtok(name) == (0.0, 0.0)
        assert prices.describe([name])[name]["source"] == "free by its name"
    own = PriceList({"x:free": LLMInfo("x:free", 1.0, 1.0)})  # a price of one's own comes first
    assert own.cost_usd("x:free", Usage(10**6, 0)) == 1.0


@pytest.mark.parametrize(
    "name", ["deepseek-r1:7b", "deepseek-r1:latest", "gpt-oss:20b", "ollama/deepseek-r1",
             "ollama/gpt-oss:20b", "lm_studio/deepseek-r1", "deepseek/deepseek-r1:7b"]
)  # fmt: skip
def test_a_local_model_has_no_published_price(name):
    with pytest.raises(InputError, match=f"no price is known for '{name}'.*own machine"):
        PriceList(at=DAY).check([name])


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        ("anthropic:claude-haiku-4-5", "claude-haiku-4-5"),
        ("google-gla:gemini-2.5-flash", "gemini-2.5-flash"),
        ("openrouter/anthropic/claude-haiku-4.5:nitro", "openrouter/anthropic/claude-haiku-4.5"),
        ("openrouter/anthropic/claude-haiku-4.5:online", "openrouter/anthropic/claude-haiku-4.5"),
    ],
)
def test_names_with_a_colon(name, same_as):
    prices = PriceList(at=DAY)
    assert prices.usd_per_mtok(name) == prices.usd_per_mtok(same_as)
    bedrock = "bedrock/anthropic.claude-haiku-4-5-20251001-v1:0"  # in one region: 10% more
    assert prices.usd_per_mtok(bedrock) == (1.1, 5.5)


def test_fine_tuned_models():
    """openai.com/api/pricing: GPT-4o mini fine-tuned 0.30 and 1.20."""
    prices = PriceList(at=DAY)
    for name in ("ft:gpt-4o-mini-2024-07-18:org::id", "openai/ft:gpt-4o-mini-2024-07-18:org::id"):
        assert prices.usd_per_mtok(name) == (0.3, 1.2)
    with pytest.raises(
        InputError, match=r"'ft:gpt-nobody-knows:org::id'.*prices\.toml.*costs more"
    ):
        prices.check(["ft:gpt-nobody-knows:org::id"])


def test_own_prices_of_audio_searches_and_long_writes(caplog):
    usage = Usage(
        1000, 100, 400, cache_write_tokens=300, cache_write_1h_tokens=100, audio_in_tokens=200,
        cached_audio_tokens=50, audio_out_tokens=60, searches=2,
    )  # fmt: skip
    llm = LLMInfo(
        "mine", 1.0, 5.0, cached_input_usd_per_mtok=0.1, cache_write_usd_per_mtok=1.25,
        cache_write_1h_usd_per_mtok=2.0, audio_input_usd_per_mtok=10.0,
        audio_output_usd_per_mtok=20.0, search_usd=0.01,
    )  # fmt: skip
    expected = usd((150, 1), (150, 10), (400, 0.1), (200, 1.25), (100, 2), (40, 5), (60, 20)) + 0.02
    assert PriceList({"mine": llm}).cost_usd("mine", usage) == pytest.approx(expected, rel=1e-14)
    assert caplog.text == ""
    plain = LLMInfo("without", 1.0, 5.0)
    for _ in range(2):
        found = PriceList({"without": plain}).cost_usd("without", usage)
        assert found == pytest.approx(usd((1000, 1), (100, 5)), rel=1e-14)
    (record,) = caplog.records
    assert "audio_input_usd_per_mtok and audio_output_usd_per_mtok and search_usd" in record.message


def test_cached_audio_has_a_price_of_its_own():
    """ai.google.dev/gemini-api/docs/pricing: 2.5 Flash 0.30, cached 0.03; audio 1, cached 0.10."""
    usage = Usage(1000, 0, 400, audio_in_tokens=300, cached_audio_tokens=100)
    expected = usd((400, 0.3), (200, 1), (300, 0.03), (100, 0.1))
    assert PriceList(at=DAY).cost_usd("gemini-2.5-flash", usage) == pytest.approx(
        expected, rel=1e-14
    )
    without = PriceList(cached="uncached", at=DAY).cost_usd("gemini-2.5-flash", usage)
    assert without == pytest.approx(usd((700, 0.3), (300, 1)), rel=1e-14)


def test_cached_images_are_priced_once():
    """100 words and 1,000 of an image, of which a cache gave 800: 300 are left to be images."""
    usage = Usage(1_100, 0, 800, image_in_tokens=1_000)
    prices = PriceList(at=DAY)
    found = prices.cost_usd("gpt-image-1", usage)
    assert found == pytest.approx(usd((800, 1.25), (300, 10)), rel=1e-14)
    uncached = prices.cost_usd("gpt-image-1", usage._replace(cached_tokens=0))
    assert uncached == pytest.approx(usd((100, 5), (1_000, 10)), rel=1e-14)


@pytest.mark.slow
def test_every_published_model_prices_every_usage():
    """No model refuses a usage with all kinds of tokens in it."""
    from genai_prices.data_snapshot import get_snapshot

    usage = Usage(
        1000, 500, 600, False, 200, 100, 100, audio_in_tokens=300, cached_audio_tokens=200,
        audio_out_tokens=50, image_in_tokens=90, image_out_tokens=40, searches=2, file_searches=1,
        tier="flex",
    )  # fmt: skip
    prices, count = PriceList(at=DAY), 0
    for provider in get_snapshot().providers:
        for model in provider.models:
            name = f"{provider.id}/{model.id}"
            try:
                prices.check([name])
            except InputError:
                continue
            assert prices.cost_usd(name, usage) >= 0.0
            count += 1
    assert count > 1000


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (LLMInfo("nano", -0.1, 0.4), "USD, at least 0"),
        (LLMInfo("nano", float("nan"), 0.4), "USD, at least 0"),
        (LLMInfo("nano", "0.1", 0.4), "USD, at least 0"),
        (0.1, r"prices\['nano'\]=0.1 must be an LLMInfo of scope_torch.llm.prices"),
    ],
)
def test_own_prices_are_checked_like_those_of_a_file(own, message):
    """A price below 0 may hide in the sum of a call."""
    with pytest.raises(InputError, match=message):
        PriceList({"nano": own})


OPENROUTER = "https://openrouter.ai/api/v1"


@pytest.mark.parametrize(
    ("base_url", "llm", "expected"),
    [
        # groq.com/pricing and openrouter.ai: the same open weights have another price at each host
        ("https://api.groq.com/openai/v1", "openai/gpt-oss-120b", (0.15, 0.6)),
        ("https://api.groq.com/openai/v1", "llama-3.3-70b-versatile", (0.59, 0.79)),
        (OPENROUTER, "google/gemma-3-12b-it", (0.05, 0.15)),
        (OPENROUTER, "google/gemma-3-12b-it:nitro", (0.05, 0.15)),
        (OPENROUTER, "gpt-4o-mini", (0.15, 0.6)),  # it has no such name: the usual ways
        ("https://api.groq.com/openai/v1", "openrouter:google/gemma-3-12b-it", (0.05, 0.15)),
        ("http://localhost:8000/v1", "gpt-4o-mini", (0.15, 0.6)),
    ],
)
def test_the_host_that_is_asked_sends_the_invoice(base_url, llm, expected):
    prices = PriceList(at=date(2026, 11, 1))
    assert prices.asked_at(base_url).usd_per_mtok(llm) == expected
    assert "prices_of" not in prices.facts  # the given list is as it was


@pytest.mark.parametrize(
    "base_url", ["https://api.together.xyz/v1", "https://api.groq.com/openai/v1"]
)
def test_what_another_provider_gives_away_is_not_free_here(base_url):
    prices = PriceList(at=date(2026, 11, 1))
    assert prices.usd_per_mtok("google/gemma-3-12b-it") == (0.0, 0.0)  # Google's free tier
    assert prices.asked_at(base_url).usd_per_mtok("google:gemma-3-12b-it") == (0.0, 0.0)
    with pytest.raises(InputError, match="no price is known for 'google/gemma-3-12b-it'"):
        prices.asked_at(base_url).check(["google/gemma-3-12b-it"])


def test_a_run_that_began_without_a_host_goes_on_without_it():
    groq, day = PriceList().asked_at("https://api.groq.com/openai/v1"), {"prices_at": "2026-11-01"}
    assert groq.facts["prices_of"] == "groq"
    for began in (day, day | {"prices_of": "openrouter"}):
        resumed = groq.resumed(began)
        assert resumed.asked_at("https://api.groq.com/openai/v1").facts == began
    assert groq.facts["prices_of"] == "groq"  # the given list is as it was
