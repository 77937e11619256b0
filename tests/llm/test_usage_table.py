"""Usage as public bug reports and documentation show it, and its price by hand.

Prices are those of 1 June 2026 in USD for a million tokens, retyped from the providers' pages.
"""

import ast
import logging
from datetime import date
from enum import Enum, StrEnum
from pathlib import Path

import pytest

import scope_torch
from scope_torch.llm import usage as usage_module
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.tool_calls import _warn_of
from scope_torch.llm.usage import Usage, merged, usage_of

PRICES = PriceList(at=date(2026, 6, 1))
HAIKU = "claude-haiku-4-5"  # 1, write 1.25, read 0.10, output 5; 10 for 1,000 searches
CACHING = {"prompt_tokens": 12_307, "completion_tokens": 550, "total_tokens": 12_857}
COMPACTION = [
    {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500},
    {"type": "message", "input_tokens": 23_000, "output_tokens": 1_000},
]
PLAIN = {"prompt_tokens": 1_000, "completion_tokens": 2_000, "total_tokens": 3_000}


class Modality(StrEnum):
    """Written as Google's is: `str(Modality.AUDIO)` is no value."""

    AUDIO = "AUDIO"

    __str__ = Enum.__str__


def usd_of(llm: str, usage: dict, **more: object) -> float:
    found = usage_of({"id": "x", "usage": usage, **more})
    assert found is not None
    return PRICES.cost_usd(llm, found)


@pytest.mark.parametrize(
    ("llm", "body", "micro_usd"),
    [
        # Written tokens at top level, as LiteLLM reports Anthropic's: a part of the prompt.
        (HAIKU, {"usage": {**CACHING, "cache_creation_input_tokens": 12_304}},
         3 * 1 + 12_304 * 1.25 + 550 * 5),
        (HAIKU, {"usage": {**CACHING, "cache_read_input_tokens": 12_304}},
         3 * 1 + 12_304 * 0.1 + 550 * 5),
        # Cached tokens beside the prompt: 300 + 6,752 + 435 = 7,487. Grok 4: 3, cached 0.75, 15.
        ("grok-4-0709", {"usage": {
            "prompt_tokens": 300, "completion_tokens": 435, "total_tokens": 7_487,
            "prompt_tokens_details": {"cached_tokens": 6_752}}},
         300 * 3 + 6_752 * 0.75 + 435 * 15),
        # GPT audio: 2.50, output 10, output of audio 64.
        ("gpt-audio", {"usage": {
            "prompt_tokens": 16, "completion_tokens": 592, "total_tokens": 608,
            "completion_tokens_details": {"audio_tokens": 482, "text_tokens": 110}}},
         16 * 2.5 + 110 * 10 + 482 * 64),
        (HAIKU, {"usage": {
            "input_tokens": 7_200, "output_tokens": 1_000,
            "server_tool_use": {"web_search_requests": 2}}},
         7_200 * 1 + 1_000 * 5 + 2 * 10_000),
        # platform.claude.com/docs/en/build-with-claude/compaction
        (HAIKU, {"usage": {
            "input_tokens": 23_000, "output_tokens": 1_000, "iterations": COMPACTION}},
         203_000 * 1 + 4_500 * 5),
        # GPT-5 mini: 0.25, output 2; flex half of it; priority 0.45, output 3.60.
        ("gpt-5-mini", {"usage": PLAIN}, 1_000 * 0.25 + 2_000 * 2),
        ("gpt-5-mini", {"usage": PLAIN, "service_tier": "default"}, 1_000 * 0.25 + 2_000 * 2),
        ("gpt-5-mini", {"usage": PLAIN, "service_tier": "flex"}, 1_000 * 0.125 + 2_000 * 1),
        ("gpt-5-mini", {"usage": PLAIN, "service_tier": "priority"}, 1_000 * 0.45 + 2_000 * 3.6),
        # Gemini: thoughts are in the total only; the completion may be missing.
        ("gemini-2.5-flash", {"usage": {"prompt_tokens": 9, "total_tokens": 1_049}},
         9 * 0.3 + 1_040 * 2.5),
        ("gemini-2.5-flash", {"usageMetadata": {
            "promptTokenCount": 900, "candidatesTokenCount": 40, "thoughtsTokenCount": 1_000,
            "totalTokenCount": 1_940, "cachedContentTokenCount": 500,
            "promptTokensDetails": [
                {"modality": "TEXT", "tokenCount": 700},
                {"modality": "AUDIO", "tokenCount": 200}]}},
         200 * 0.3 + 200 * 1 + 500 * 0.03 + 1_040 * 2.5),
        # The same with audio of the cache: 0.1 in the place of 1.
        ("gemini-2.5-flash", {"usageMetadata": {
            "promptTokenCount": 900, "candidatesTokenCount": 40, "totalTokenCount": 940,
            "cachedContentTokenCount": 500,
            "promptTokensDetails": [
                {"modality": "TEXT", "tokenCount": 700},
                {"modality": "AUDIO", "tokenCount": 200}],
            "cacheTokensDetails": [
                {"modality": "TEXT", "tokenCount": 350},
                {"modality": "AUDIO", "tokenCount": 150}]}},
         350 * 0.3 + 50 * 1 + 350 * 0.03 + 150 * 0.1 + 40 * 2.5),
        # As Google's client has it.
        ("gemini-2.5-flash", {"usage_metadata": {
            "prompt_token_count": 900, "candidates_token_count": 40, "total_token_count": 940,
            "prompt_tokens_details": [{"modality": Modality.AUDIO, "token_count": 200}]}},
         700 * 0.3 + 200 * 1 + 40 * 2.5),
        # Nothing but thoughts before the limit; the words of a tool are a part of the prompt.
        ("gemini-2.5-flash", {"usageMetadata": {
            "promptTokenCount": 900, "toolUsePromptTokenCount": 50, "thoughtsTokenCount": 1_000,
            "totalTokenCount": 1_950}},
         950 * 0.3 + 1_000 * 2.5),
        # LangChain's `usage_metadata`: all is inside; what is kept for an hour costs 2.
        (HAIKU, {"usage": {
            "input_tokens": 1_000, "output_tokens": 10, "total_tokens": 1_010,
            "input_token_details": {
                "cache_read": 50, "cache_creation": 0,
                "ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 500}}},
         50 * 1 + 50 * 0.1 + 400 * 1.25 + 500 * 2 + 10 * 5),
        ("gpt-audio", {"usage": {
            "input_tokens": 16, "output_tokens": 592, "total_tokens": 608,
            "output_token_details": {"audio": 482, "reasoning": 0}}},
         16 * 2.5 + 110 * 10 + 482 * 64),
        # Gemini 2.5 Flash Image: an image is 1,290 tokens of 30.
        ("gemini-2.5-flash-image", {"usage": {
            "prompt_tokens": 10, "completion_tokens": 1_300,
            "completion_tokens_details": {"image_tokens": 1_290}}},
         10 * 0.3 + 10 * 2.5 + 1_290 * 30),
        # OpenAI's searches are items of the output; opening a page is none. GPT-4.1: 2, 8.
        ("gpt-4.1", {"usage": {"input_tokens": 8_000, "output_tokens": 100}, "output": [
            {"type": "web_search_call", "action": {"type": "search"}},
            {"type": "web_search_call", "action": {"type": "open_page"}},
            {"type": "file_search_call"}, {"type": "message"}]},
         8_000 * 2 + 100 * 8 + 10_000 + 2_500),
        # DeepSeek at noon UTC: 0.27, hit 0.07, output 1.10.
        ("deepseek-chat", {"usage": {
            "prompt_tokens": 1_000, "completion_tokens": 250, "prompt_cache_hit_tokens": 900}},
         100 * 0.27 + 900 * 0.07 + 250 * 1.1),
        # Bedrock's Converse: the prompt is what no cache gave.
        (HAIKU, {"usage": {
            "inputTokens": 100, "outputTokens": 10, "totalTokens": 1_110,
            "cacheReadInputTokens": 800, "cacheWriteInputTokens": 200}},
         100 * 1 + 800 * 0.1 + 200 * 1.25 + 10 * 5),
        # docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_CacheDetail.html
        (HAIKU, {"usage": {
            "inputTokens": 100, "outputTokens": 10, "totalTokens": 1_110,
            "cacheReadInputTokens": 800, "cacheWriteInputTokens": 200,
            "cacheDetails": [{"inputTokens": 150, "ttl": "1h"}, {"inputTokens": 50, "ttl": "5m"}]}},
         100 * 1 + 800 * 0.1 + 50 * 1.25 + 150 * 2 + 10 * 5),
    ],
)  # fmt: skip
def test_a_report_is_priced_as_the_provider_does(llm, body, micro_usd, caplog):
    found = usage_of(body)
    assert found is not None
    assert PRICES.cost_usd(llm, found) == pytest.approx(micro_usd / 1e6, rel=1e-14)
    assert caplog.text == ""


def test_the_figures_of_the_report():
    """What was booked wrongly before, rounded as it was reported."""
    assert round(usd_of(HAIKU, {**CACHING, "cache_creation_input_tokens": 12_304}), 6) == 0.018133
    assert round(usd_of(HAIKU, {**CACHING, "cache_read_input_tokens": 12_304}), 6) == 0.003983
    searched = {"input_tokens": 7_200, "output_tokens": 1_000}
    assert usd_of(HAIKU, searched) == 0.0122
    assert usd_of(HAIKU, searched | {"server_tool_use": {"web_search_requests": 2}}) == 0.0322
    assert usd_of("gpt-5-mini", PLAIN, service_tier="flex") == 0.002125
    assert usd_of("gpt-5-mini", PLAIN, service_tier="priority") == 0.00765


@pytest.mark.parametrize(
    "body",
    [
        {"usage": {"prompt_tokens": 521, "completion_tokens": 30}},
        {"usage": {"prompt_tokens": 521.0, "completion_tokens": 30.0}},
        {"usage": {"prompt_tokens": "521", "completion_tokens": "30.0"}},
        {"usage": {"promptTokens": 521, "completionTokens": 30}},
        {"usage": {"inputTokens": 521, "outputTokens": 30}},
        {"usage": {"prompt_tokens": 521, "total_tokens": 551}},
        {"usage": {"completion_tokens": 30, "total_tokens": 551}},
        {"usage": None, "choices": [{"usage": {"prompt_tokens": 521, "completion_tokens": 30}}]},
        {"choices": [{"delta": {}, "usage": {"input_tokens": 521, "output_tokens": 30}}]},
        {"x_groq": {"id": "r", "usage": {"prompt_tokens": 521, "completion_tokens": 30}}},
        {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
         "x_groq": {"usage": {"prompt_tokens": 521, "completion_tokens": 30}}},
        {"usage_metadata": {"prompt_token_count": 521, "candidates_token_count": 30}},
        {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 521, "outputTokenCount": 30}},
        {"model": "llama3", "prompt_eval_count": 521, "eval_count": 30},
        {"usage": {"prompt_tokens": 521, "completion_tokens": 30, "total_tokens": -1}},
    ],
)  # fmt: skip
def test_whatever_the_form_the_counts_are_those_told(body):
    assert usage_of(body)[:2] == (521, 30)


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        # Moonshot: cached tokens at top level.
        ({"prompt_tokens": 90, "completion_tokens": 7, "cached_tokens": 80}, (90, 7, 80)),
        # Without a total, more cached than there is prompt: beside it.
        ({"prompt_tokens": 10, "completion_tokens": 7,
          "prompt_tokens_details": {"cached_tokens": 80}}, (90, 7, 80)),
        # Beside it, and hidden reasoning: 10 + 80 + 7 + 50.
        ({"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 147,
          "prompt_tokens_details": {"cached_tokens": 80}}, (90, 57, 80)),
        # The total says that Anthropic's names are a part of the prompt here.
        ({"input_tokens": 90, "output_tokens": 7, "total_tokens": 97,
          "cache_read_input_tokens": 80}, (90, 7, 80)),
        # A prompt that the cache gave as a whole.
        ({"input_tokens": 0, "output_tokens": 7, "cache_read_input_tokens": 80}, (80, 7, 80)),
        # Reasoning beside the completion, and in no total (Perplexity's deep research).
        ({"prompt_tokens": 33, "completion_tokens": 7, "total_tokens": 40,
          "reasoning_tokens": 70}, (33, 77, 0)),
        # Steps that are less than the whole are no reason to book less.
        ({"input_tokens": 90, "output_tokens": 7,
          "iterations": [{"input_tokens": 5, "output_tokens": 5}]}, (90, 7, 0)),
        ({"input_tokens": 90, "output_tokens": 7, "iterations": ["x", {}]}, (90, 7, 0)),
    ],
)  # fmt: skip
def test_where_cached_tokens_and_reasoning_are_counted(usage, counts):
    assert usage_of({"usage": usage})[:3] == counts


def test_zeros_tell_that_nothing_was_billed():
    assert usage_of({"usage": {"prompt_tokens": 0, "completion_tokens": 0}})[:2] == (0, 0)


def test_parts_of_a_stream_are_merged():
    start = {"usage": {"input_tokens": 2, "cache_read_input_tokens": 9, "output_tokens": 1,
                       "cache_creation": {"ephemeral_1h_input_tokens": 3},
                       "cache_creation_input_tokens": 4, "service_tier": "priority"}}  # fmt: skip
    ends = [
        {"usage": {"output_tokens": 15}},
        {"usage": {"input_tokens": 0, "output_tokens": 15, "cache_creation": None}},
        {"usage": {"input_tokens": "none", "output_tokens": 15.0}},
        {"usage": {"input_tokens": 0, "output_tokens": 0}},
        {},
        None,
    ]
    for end in ends:
        told = merged(merged({}, start), end)
        usage = usage_of(merged(told, {"usage": {"output_tokens": 15}}))
        assert usage[:3] == (15, 15, 9)
        assert (usage.cache_write_tokens, usage.cache_write_1h_tokens) == (4, 3)
        assert usage.tier == "priority"


def test_a_deep_report_ends():
    deep: object = {}
    for _ in range(5000):
        deep = {"usage": deep, "iterations": [deep], "prompt_tokens": 5, "completion_tokens": 2}
    assert usage_of({"usage": deep})[:2] == (5, 2)
    assert usage_of(merged(merged({}, {"usage": deep}), {"usage": deep}))[:2] == (5, 2)


# openrouter.ai/docs/guides/administration/usage-accounting
@pytest.mark.parametrize(
    ("told", "warns"),
    [
        ({"cost": 0.0195}, True),
        ({"cost": 0.0205}, True),
        ({"cost": 0.0199}, False),
        ({"cost": 0.0203}, False),
        ({"cost": {"total_cost": 0.03}}, True),  # Perplexity
        ({"cost": 0.001, "is_byok": True}, False),  # the fee for a key of one's own
        ({"cost": 0.001, "cost_details": {"upstream_inference_cost": 0.02}}, False),
        ({"cost": 0.03, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.03}}, True),
        ({"cost": 0}, False),
        ({"cost": "free"}, False),
        ({"cost": True}, False),
    ],
)
def test_a_cost_that_is_told_is_a_check(told, warns, caplog, monkeypatch):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("scope_torch.llm.billing._differing", set())
    usage = usage_of({"usage": {"prompt_tokens": 10_000, "completion_tokens": 2_000, **told}})
    for _ in range(3):  # Haiku 4.5: 10,000 x 1 + 2,000 x 5
        assert PRICES.cost_usd(HAIKU, usage) == pytest.approx(0.02)
    assert len(caplog.records) == warns


def test_what_has_no_price_is_said_once(caplog):
    caplog.set_level(logging.WARNING)
    told = {**PLAIN, "completion_tokens_details": {"audio_tokens": 5}}
    for _ in range(3):
        assert usd_of("gpt-4o-2024-05-13", told) == usd_of("gpt-4o-2024-05-13", PLAIN)
        usd_of("gpt-4o-2024-05-13", PLAIN, service_tier="scale")
        usd_of("gpt-4o-2024-08-06", {**PLAIN, "completion_tokens_details": {"image_tokens": 5}})
    messages = [record.getMessage() for record in caplog.records]
    names = "output_audio_mtok", "service tier scale", "output_image_mtok"
    assert [n in m for n, m in zip(names, messages, strict=True)] == [True] * 3


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"output": [{"type": "file_search_call"}]}, "file searches"),
        ({"usage": {"completion_tokens_details": {"image_tokens": 1_290}}}, "image tokens"),
        ({"usage": {"prompt_tokens_details": {"image_tokens": 258}}}, "image tokens"),
        ({"service_tier": "priority"}, "the service tier priority"),
        (
            {"usage": {"completion_tokens_details": {"audio_tokens": 5}}},
            "audio_output_usd_per_mtok",
        ),
        ({"service_tier": "default"}, None),
        ({"service_tier": "batch"}, None),  # it has a price for that
    ],
)
def test_what_own_prices_lack_is_said_once(body, named, caplog):
    llm = f"with {body}"
    own = PriceList({llm: LLMInfo(llm, 0.25, 2.0, batch_factor=0.5)})
    usage = usage_of({**body, "usage": {**PLAIN, **body.get("usage", {})}})
    factor = 0.5 if usage.tier == "batch" else 1.0
    for _ in range(3):
        assert own.cost_usd(llm, usage) == factor * (1_000 * 0.25 + 2_000 * 2.0) / 1e6
    assert [f"the price of {named} of" in r.getMessage() for r in caplog.records] == (
        [True] if named else []
    )


def test_names_of_usage_are_read_in_one_file():
    """A second reader would read the same reply differently.

    `traces` is left out: libraries name their own columns and attributes like counts of a reply.
    It hands them all to this file, see `test_every_count_with_a_price_of_its_own_is_read`.
    """
    names = {
        name
        for value in vars(usage_module).values()
        if isinstance(value, tuple)
        for name in (value if all(isinstance(v, str) for v in value) else sum(value, ()))
    }
    assert {"prompt_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens"} <= names
    package = Path(scope_torch.__file__).parent
    files = [*package.glob("llm/*.py"), *package.glob("serve/*.py")]
    files.append(package / "baselines" / "chat_client.py")
    for file in files:
        texts = {
            node.value
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        if file.name in ("choices.py", "factors.py"):
            texts -= {"thinking_tokens"}  # a budget of a request, not what was used
        # The metrics name fields of our own bills.
        assert file.name in ("usage.py", "metrics.py") or not texts & names, file


CITES = {"annotations": [{"type": "url_citation", "url_citation": {"url": "https://a.example"}}]}


def test_a_reply_that_cites_pages_has_searched():
    """GPT-4.1's search: 0.01. Its API of chat completions counts none."""
    report = {"prompt_tokens": 521, "completion_tokens": 30}
    whole = usage_of({"choices": [{"message": {"content": "a", **CITES}}], "usage": report})
    told = {}
    for part in ({"delta": {"content": "a"}}, {"delta": CITES}, {"delta": {}}):
        told = merged(told, {"choices": [part]})
    streamed = usage_of(merged(told, {"choices": [], "usage": report}))
    assert whole == streamed == Usage(521, 30, searches=1)
    usd = PRICES.cost_usd("gpt-4.1", whole)
    assert usd == pytest.approx((521 * 2 + 30 * 8 + 10_000) / 1e6, rel=1e-14)
    other = {"annotations": [{"type": "file_citation"}]}
    assert usage_of({"choices": [{"message": other}], "usage": report}) == Usage(521, 30)
    counted = report | {"num_search_queries": 3}
    found = usage_of({"choices": [{"message": CITES}], "usage": counted})
    assert (found.searches, found.prompt_tokens) == (3, 521)


def test_a_tool_that_no_price_list_has_is_named(caplog):
    _warn_of.cache_clear()
    report = {"input_tokens": 521, "output_tokens": 30}
    for _ in range(2):
        usage_of({"output": [{"type": "code_interpreter_call"}], "usage": report})
        assert usage_of({"output": [{"type": {}}], "usage": report}) == Usage(521, 30)
    (told,) = caplog.messages
    assert "'code_interpreter_call' of the provider" in told
