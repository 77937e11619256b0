"""Usage as seven providers report it, and its price to the last digit.

Names of keys and kinds of counts are those of the documentation named beside each payload, the
numbers those of its example, or made up where it shows none. Prices are retyped from the pages of
the providers; they are those of 1 June 2026.
"""

from datetime import date

import pytest

from scope_torch.llm.billing import Usage
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.usage import usage_of

DAY = date(2026, 6, 1)

# platform.openai.com/docs/api-reference/chat/object and /docs/guides/prompt-caching
OPENAI_CHAT = {
    "prompt_tokens": 2006,
    "completion_tokens": 300,
    "total_tokens": 2306,
    "prompt_tokens_details": {"cached_tokens": 1920, "audio_tokens": 0},
    "completion_tokens_details": {
        "reasoning_tokens": 192,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    },
}
# platform.openai.com/docs/api-reference/responses/object
OPENAI_RESPONSES = {
    "input_tokens": 12033,
    "input_tokens_details": {"cached_tokens": 11904},
    "output_tokens": 44,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 12077,
}
# platform.claude.com/docs/en/build-with-claude/prompt-caching
ANTHROPIC = {
    "input_tokens": 2048,
    "cache_read_input_tokens": 1800,
    "cache_creation_input_tokens": 248,
    "output_tokens": 503,
    "cache_creation": {"ephemeral_5m_input_tokens": 148, "ephemeral_1h_input_tokens": 100},
}
# ai.google.dev/gemini-api/docs/openai: thoughts are in the total only
GEMINI = {"prompt_tokens": 9, "completion_tokens": 40, "total_tokens": 1049}
# api-docs.deepseek.com/api/create-chat-completion
DEEPSEEK = {
    "prompt_tokens": 1000,
    "completion_tokens": 250,
    "total_tokens": 1250,
    "prompt_cache_hit_tokens": 640,
    "prompt_cache_miss_tokens": 360,
    "completion_tokens_details": {"reasoning_tokens": 200},
}
# docs.x.ai/docs/guides/reasoning: completion_tokens are those without reasoning
XAI = {
    "prompt_tokens": 32,
    "completion_tokens": 9,
    "total_tokens": 135,
    "prompt_tokens_details": {"text_tokens": 32, "audio_tokens": 0, "cached_tokens": 6},
    "completion_tokens_details": {"reasoning_tokens": 94, "audio_tokens": 0},
}
# docs.mistral.ai/api: counts without details
MISTRAL = {"prompt_tokens": 16, "completion_tokens": 34, "total_tokens": 50}
# openrouter.ai/docs/use-cases/usage-accounting
OPENROUTER = {
    "completion_tokens": 2,
    "completion_tokens_details": {"reasoning_tokens": 0},
    "cost": 0.95,
    "cost_details": {"upstream_inference_cost": 19},
    "prompt_tokens": 194,
    "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 100, "audio_tokens": 0},
    "total_tokens": 196,
}


@pytest.mark.parametrize(
    ("llm", "reported", "usage", "micro_usd"),
    [
        # GPT-5 mini: 0.25, cached 0.025, output 2
        ("gpt-5-mini", OPENAI_CHAT, (2006, 300, 1920), 86 * 0.25 + 1920 * 0.025 + 300 * 2),
        # GPT-4.1: 2, cached 0.50, output 8
        ("gpt-4.1", OPENAI_RESPONSES, (12033, 44, 11904), 129 * 2 + 11904 * 0.5 + 44 * 8),
        # Haiku 4.5: 1, read 0.10, write 1.25, for an hour 2, output 5
        (
            "claude-haiku-4-5",
            ANTHROPIC,
            (4096, 503, 1800, False, 248, 100),
            2048 * 1 + 1800 * 0.1 + 148 * 1.25 + 100 * 2 + 503 * 5,
        ),
        # Gemini 2.5 Flash: 0.30, output with thinking 2.50
        ("gemini-2.5-flash", GEMINI, (9, 1040, 0), 9 * 0.3 + 1040 * 2.5),
        # deepseek-chat at noon UTC: 0.27, hit 0.07, output 1.10
        ("deepseek-chat", DEEPSEEK, (1000, 250, 640), 360 * 0.27 + 640 * 0.07 + 250 * 1.1),
        # Grok 3 mini: 0.30, cached 0.075, output with reasoning 0.50
        ("xai/grok-3-mini", XAI, (32, 103, 6), 26 * 0.3 + 6 * 0.075 + 103 * 0.5),
        # Mistral Large: 2, output 6
        ("mistral-large-latest", MISTRAL, (16, 34, 0), 16 * 2 + 34 * 6),
        # Haiku 4.5 by OpenRouter: 1, write 1.25, output 5
        (
            "openrouter/anthropic/claude-haiku-4.5",
            OPENROUTER,
            (194, 2, 0, False, 100),
            94 * 1 + 100 * 1.25 + 2 * 5,
        ),
    ],
)
def test_a_reply_of_a_provider_is_priced(llm, reported, usage, micro_usd):
    found = usage_of({"id": "x", "usage": reported})
    assert found is not None
    assert found[: len(usage)] == usage
    usd = PriceList(at=DAY).cost_usd(llm, found)
    assert usd == pytest.approx(micro_usd / 1e6, rel=1e-15, abs=0)


def test_without_caches_all_prompt_tokens_cost_the_same():
    prices = PriceList(cached="uncached", at=DAY)
    found = prices.cost_usd("claude-haiku-4-5", usage_of({"usage": ANTHROPIC}))
    assert found == pytest.approx((4096 * 1 + 503 * 5) / 1e6, rel=1e-15)


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"usage": None},
        {"usage": {}},
        {"usage": {"prompt_tokens": 5}},
        {"usage": {"prompt_tokens": -1, "completion_tokens": 5}},
        {"usage": {"prompt_tokens": 5.5, "completion_tokens": 5}},
        {"usage": {"prompt_tokens": True, "completion_tokens": 5}},
        {"usage": {"prompt_tokens": 2**60, "completion_tokens": 5}},
        {"usage": {"input_tokens": "five", "output_tokens": 5}},
        {"usage": {"input_tokens": "5" * 5000, "output_tokens": 5}},
        {"usage": {"input_tokens": float("nan"), "output_tokens": 5}},
        {"usage": {"input_tokens": [5], "output_tokens": 5}},
        {"usage": {"prompt_tokens": 5, "completion_tokens": 10**8 + 1}},
        {"usage": [{"prompt_tokens": 5, "completion_tokens": 5}]},
        {"metadata": {"usage": {"prompt_tokens": 5, "completion_tokens": 5}}},
        {"error": {"usage": {"prompt_tokens": 5, "completion_tokens": 5}}},
        {"usage": {"input_tokens": 5, "output_tokens": 5, "cache_read_input_tokens": -3}},
        {"usage": {"cache_read_input_tokens": 5}},
    ],
)
def test_counts_that_cannot_be(body):
    assert usage_of(body) is None


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({"input_tokens": 7, "output_tokens": 3}, (7, 3)),
        ({"input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": None}, (7, 3)),
        ({"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": None}, (7, 3)),
        # More cached than there are: at most all.
        ({**MISTRAL, "prompt_tokens_details": {"cached_tokens": 99}}, (16, 34, 16)),
        (
            {**MISTRAL, "prompt_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 99}},
            (16, 34, 10, False, 6),
        ),
    ],
)
def test_odd_counts(reported, usage):
    assert usage_of({"usage": reported}) == Usage(*usage)
