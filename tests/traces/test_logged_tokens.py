"""What libraries write about tokens is read as what the provider has billed.

The counts are of one call of Claude Haiku 4.5: 130,213 prompt tokens, of them 128,955 from the
cache and 1,253 written to it, and 50 of completion (see issue 12306 of langfuse/langfuse).
"""

import json

import pytest

from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.traces.reading import read_traces
from scope_torch.traces.summary import TraceRules, summarize
from scope_torch.traces.tokens import Cached, cached_in, usage_in, used

HAIKU = LLMInfo(
    "claude-haiku-4-5", 1.0, 5.0, cached_input_usd_per_mtok=0.1, cache_write_usd_per_mtok=1.25
)
PRICES = PriceList({HAIKU.name: HAIKU})
PROMPT, READ, WRITTEN, SAID = 130_213, 128_955, 1_253, 50
FRESH = PROMPT - READ - WRITTEN
BILLED = (PROMPT, SAID, READ, WRITTEN)
USD = (FRESH + 0.1 * READ + 1.25 * WRITTEN + 5 * SAID) / 1e6  # 0.014717
# As pydantic-ai 1.62.0 writes it, without its cost.
PYDANTIC = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": HAIKU.name,
    "gen_ai.usage.input_tokens": PROMPT,
    "gen_ai.usage.output_tokens": SAID,
    "gen_ai.usage.details.input_tokens": FRESH,
    "gen_ai.usage.details.cache_read_input_tokens": READ,
    "gen_ai.usage.details.cache_creation_input_tokens": WRITTEN,
    "gen_ai.usage.details.output_tokens": SAID,
    "gen_ai.usage.details.cache_write_tokens": WRITTEN,
    "gen_ai.usage.details.cache_read_tokens": READ,
}
MESSAGES = {
    "input_tokens": FRESH,
    "cache_read_input_tokens": READ,
    "cache_creation_input_tokens": WRITTEN,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": WRITTEN},
    "output_tokens": SAID,
}


def billed(usage):
    return usage and (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
    )


def cost_of(*rows, tmp_path) -> float:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return summarize(read_traces([path]), TraceRules(prices=PRICES)).cost_usd


def printed(attributes: dict) -> dict:
    return {"context": {"trace_id": "t", "span_id": "s"}, "name": "chat", "attributes": attributes}


def otlp(attributes: dict, scope: str) -> dict:
    said = [
        {"key": key, "value": {"intValue": str(v)} if type(v) is int else {"stringValue": v}}
        for key, v in attributes.items()
    ]
    span = {"traceId": "t", "spanId": "s", "name": "chat", "attributes": said}
    return {"resourceSpans": [{"scopeSpans": [{"scope": {"name": scope}, "spans": [span]}]}]}


def observation(usage: dict, **more) -> dict:
    row = {"trace_id": "t", "id": "c", "type": "GENERATION", "provided_model_name": HAIKU.name}
    return {**row, "usage_details": usage, **more}


def gen_ai(prompt: int = PROMPT, **counts: int) -> dict:
    """Attributes of the conventions, and further counts with dots for `__`."""
    head = {"gen_ai.request.model": HAIKU.name, "gen_ai.usage.input_tokens": prompt}
    more = {key.replace("__", "."): value for key, value in counts.items()}
    return {**head, "gen_ai.usage.output_tokens": SAID, **more}


def test_the_cached_tokens_of_pydantic_ai_are_priced_as_such(tmp_path):
    assert round(USD, 6) == 0.014717
    assert cost_of(printed(PYDANTIC), tmp_path=tmp_path) == pytest.approx(USD, abs=1e-12)
    recorded = {**PYDANTIC, "operation.cost": 0.01471675}
    assert cost_of(printed(recorded), tmp_path=tmp_path) == 0.01471675


@pytest.mark.parametrize(
    ("usage", "more"),
    [
        # As Langfuse stored it in February 2026, with the names of OpenTelemetry.
        ({"input": PROMPT, "output": SAID, "cache_read_tokens": READ, "cache_write_tokens": WRITTEN,
          "total": PROMPT + SAID + READ + WRITTEN}, {}),
        ({"input": PROMPT, "output": SAID, "details.cache_read_input_tokens": READ,
          "details.cache_creation_input_tokens": WRITTEN, "details.cache_read_tokens": READ}, {}),
        # As it has stored it since: two counts of the details are left over, and counted already.
        ({"input": FRESH, "output": SAID, "input_cached_tokens": READ, "input_tokens": FRESH,
          "input_cache_creation": WRITTEN, "output_tokens": SAID}, {}),
        # Counted twice, but the attributes are there.
        ({"input": PROMPT, "output": SAID, "cache_read_input_tokens": READ,
          "cache_creation_input_tokens": WRITTEN},
         {"metadata": {"attributes": PYDANTIC, "scope": {"name": "pydantic-ai"}}}),
        ({"input": PROMPT, "output": SAID, "cache_read_input_tokens": READ},
         {"metadata": {"attributes": json.dumps(PYDANTIC)}}),
        # LiteLLM takes the cached tokens off the prompt, but not the written ones.
        ({"input": PROMPT - READ, "output": SAID, "total": PROMPT + SAID,
          "cache_creation_input_tokens": WRITTEN, "cache_read_input_tokens": READ}, {}),
        ({"input": PROMPT, "output": SAID, "total": PROMPT + SAID,
          "cache_creation_input_tokens": WRITTEN, "cache_read_input_tokens": READ}, {}),
        # Langfuse's callback for LangChain tells the written tokens in two ways.
        ({"input": FRESH, "output": SAID, "input_cache_read": READ,
          "cache_creation_ephemeral_5m_input_tokens": WRITTEN,
          "cache_creation_ephemeral_1h_input_tokens": 0,
          "cache_creation_input_tokens": WRITTEN}, {}),
        ({"input": FRESH, "output": SAID, "input_cached_tokens": READ, "input_cache_creation": 0,
          "input_cache_creation_5m": WRITTEN}, {}),
        (MESSAGES, {}),
    ],
)  # fmt: skip
def test_usage_through_langfuse(usage, more, tmp_path):
    row = observation(usage, **more)
    assert cost_of(row, tmp_path=tmp_path) == pytest.approx(USD, abs=1e-12)


def test_a_cost_of_langfuse_that_counts_tokens_twice_is_not_believed(tmp_path):
    usage = {"input": PROMPT, "output": SAID, "cache_read_tokens": READ}
    usage["cache_write_tokens"] = WRITTEN
    costs = {"input": 0.130213, "output": 0.00025, "total": 0.130463}
    row = observation(usage, cost_details=costs, total_cost=0.130463)
    assert cost_of(row, tmp_path=tmp_path) == pytest.approx(USD, abs=1e-12)
    # What was sent to it is believed, as LiteLLM sends its cost.
    sent = [
        observation(usage, cost_details={"total": 0.02}, total_cost=0.02),
        observation(usage, cost_details=costs, provided_cost_details={"total": 0.02}),
    ]
    assert [cost_of(row, tmp_path=tmp_path) for row in sent] == [0.02, 0.02]
    # So is what it has counted once.
    once = {"input": FRESH, "output": SAID, "input_cached_tokens": READ}
    once["input_cache_creation"] = WRITTEN
    row = observation(once, cost_details={"input": 0.01, "output": 0.01})
    assert cost_of(row, tmp_path=tmp_path) == 0.02
    # Without parts, a cost beside tokens that are counted twice is Langfuse's own.
    doubled = {"input": FRESH, "output": SAID, "input_tokens": FRESH, "output_tokens": SAID}
    row = observation(doubled, total_cost=0.5)
    assert cost_of(row, tmp_path=tmp_path) == pytest.approx((FRESH + 5 * SAID) / 1e6, abs=1e-12)


def test_the_user_s_own_details_go_before_the_attributes(tmp_path):
    attributes = {**PYDANTIC, "langfuse.observation.usage_details": "{}"}
    row = observation({"input": 1000}, metadata={"attributes": attributes})
    assert cost_of(row, tmp_path=tmp_path) == 0.001


@pytest.mark.parametrize(
    "attributes",
    [
        gen_ai(gen_ai__usage__cache_read__input_tokens=READ,
               gen_ai__usage__cache_creation__input_tokens=WRITTEN),
        gen_ai(gen_ai__usage__cache_read_input_tokens=READ,
               gen_ai__usage__cache_write_input_tokens=WRITTEN),
        gen_ai(gen_ai__usage__cache_read_tokens=READ, gen_ai__usage__cache_write_tokens=WRITTEN),
        gen_ai(gen_ai__usage__input_tokens__cached=READ,  # Sentry
               gen_ai__usage__input_tokens__cache_write=WRITTEN),
        gen_ai(gen_ai__usage__prompt_tokens_details__cached_tokens=READ,  # OpenLIT
               gen_ai__usage__prompt_tokens_details__cache_creation_tokens=WRITTEN),
        # Beside the prompt: more than it, or the total says so.
        gen_ai(FRESH, gen_ai__usage__cache_read_input_tokens=READ,
               gen_ai__usage__cache_creation_input_tokens=WRITTEN),
        gen_ai(FRESH, gen_ai__usage__cache_read_input_tokens=READ,
               gen_ai__usage__cache_write_input_tokens=WRITTEN,
               gen_ai__usage__total_tokens=PROMPT + SAID),
        {"llm.token_count.prompt": PROMPT, "llm.token_count.completion": SAID,
         "llm.token_count.prompt_details.cache_read": READ,
         "llm.token_count.prompt_details.cache_write": WRITTEN,
         "llm.token_count.total": PROMPT + SAID},
        {"llm.token_count.prompt": PROMPT, "llm.token_count.completion": SAID,
         "llm.token_count.prompt_details.cache_input": READ,
         "llm.token_count.prompt_details.cache_write": WRITTEN},
        {"gen_ai.usage.input_tokens": PROMPT, "gen_ai.usage.output_tokens": SAID,  # LangSmith
         "gen_ai.usage.input_token_details": json.dumps(
             {"cache_read": READ, "cache_creation": WRITTEN})},
        # Vercel AI SDK 6, and 5 with Anthropic.
        {"ai.usage.inputTokens": PROMPT, "ai.usage.outputTokens": SAID,
         "ai.usage.cachedInputTokens": READ,
         "ai.usage.inputTokenDetails.noCacheTokens": FRESH,
         "ai.usage.inputTokenDetails.cacheReadTokens": READ,
         "ai.usage.inputTokenDetails.cacheWriteTokens": WRITTEN},
        {"gen_ai.usage.input_tokens": FRESH, "gen_ai.usage.output_tokens": SAID,
         "ai.usage.cachedInputTokens": READ,
         "ai.response.providerMetadata": json.dumps({"anthropic": {"usage": MESSAGES}})},
        # Vercel AI SDK 4, which has the cached tokens of Bedrock nowhere else.
        {"ai.usage.promptTokens": FRESH, "ai.usage.completionTokens": SAID,
         "ai.response.providerMetadata": json.dumps({"bedrock": {"usage": {
             "cacheReadInputTokens": READ, "cacheWriteInputTokens": WRITTEN}}})},
    ],
)  # fmt: skip
def test_cached_tokens_inside_the_prompt_and_beside_it(attributes):
    assert billed(usage_in(attributes)) == BILLED


@pytest.mark.parametrize(
    ("scope", "prompt"),
    [
        ("opentelemetry.instrumentation.anthropic", 1000),
        ("opentelemetry.instrumentation.bedrock", 1900),  # it adds no cached tokens, nor its total
        ("openlit.instrumentation.anthropic", 1900),
    ],
)
def test_the_library_that_made_a_span_tells(scope, prompt, tmp_path):
    counts = gen_ai(1000, gen_ai__usage__cache_read__input_tokens=900)
    counts["gen_ai.usage.total_tokens"] = 1000 + SAID
    path = tmp_path / "otlp.jsonl"
    path.write_text(json.dumps(otlp(counts, scope)))
    (span,) = read_traces([path]).spans
    assert billed(span.usage) == (prompt, SAID, 900, 0)


@pytest.mark.parametrize(
    ("more", "prompt"),
    [
        ({"ai.model.provider": "amazon-bedrock"}, 1900),
        ({"ai.model.provider": "vertex.anthropic.messages"}, 1900),
        ({"ai.response.providerMetadata": '{"bedrock": {"usage": {"cacheReadInputTokens": 900}}}'},
         1900),
        ({"ai.model.provider": "openai.chat"}, 1000),
        ({"ai.model.provider": "amazon-bedrock",  # of AI SDK 6
          "ai.usage.inputTokenDetails.cacheReadTokens": 900}, 1000),
    ],
)  # fmt: skip
def test_version_5_of_the_vercel_ai_sdk_counts_as_the_provider_does(more, prompt):
    counts = {"ai.usage.inputTokens": 1000, "ai.usage.outputTokens": 7}
    counts |= {"ai.usage.cachedInputTokens": 900, "ai.usage.totalTokens": 1007}
    assert billed(usage_in({**counts, **more})) == (prompt, 7, 900, 0)


def test_the_end_of_a_stream_tells_the_completion():
    start = {**MESSAGES, "output_tokens": 1}
    counts = {"ai.usage.inputTokens": FRESH, "ai.usage.outputTokens": SAID}
    metadata = json.dumps({"anthropic": {"usage": start}})
    assert billed(usage_in({**counts, "ai.response.providerMetadata": metadata})) == BILLED


@pytest.mark.parametrize("form", [json.dumps, dict])
def test_logfire_keeps_the_report_of_the_provider(form):
    counts = {"gen_ai.usage.input_tokens": FRESH, "gen_ai.usage.output_tokens": SAID}
    assert billed(usage_in({**counts, "response_data": form({"usage": MESSAGES})})) == BILLED
    chat = {"prompt_tokens": 1000, "completion_tokens": 7}
    chat["prompt_tokens_details"] = {"cached_tokens": 900}
    counts = {"gen_ai.usage.input_tokens": 1000, "gen_ai.usage.output_tokens": 7}
    assert billed(usage_in({**counts, "response_data": form({"usage": chat})})) == (1000, 7, 900, 0)


def test_openai_in_the_vercel_ai_sdk_counts_cached_tokens_inside():
    openai = {"openai": {"cachedPromptTokens": 900, "reasoningTokens": 0}}
    counts = {"ai.usage.promptTokens": 1000, "ai.usage.completionTokens": 7}
    usage = usage_in({**counts, "ai.response.providerMetadata": json.dumps(openai)})
    assert billed(usage) == (1000, 7, 900, 0)


@pytest.mark.parametrize(
    ("details", "cached"),
    [
        ({"cache_read": 80, "cache_creation": 9}, (80, 9, 0)),
        ({"cache_read": 80, "cache_creation": 0, "ephemeral_5m_input_tokens": 3,
          "ephemeral_1h_input_tokens": 6}, (80, 9, 6)),  # langchain-anthropic
        ({"cache_read": None, "cache_creation": 9, "ephemeral_1h_input_tokens": 9}, (0, 9, 9)),
        ({"cache_read": 200_000, "cache_read_over_200k": 50}, (200_050, 0, 0)),  # LangSmith, Gemini
        ({"priority_cache_read": 80, "priority": 20}, (80, 0, 0)),  # langchain-openai
        ({"cache_audio_read": 5, "uncached_input_tokens": 7, "noCacheTokens": 7}, (0, 0, 0)),
    ],
)  # fmt: skip
def test_details_of_langsmith(details, cached, tmp_path):
    assert cached_in(details) == cached
    said = {"input_tokens": 300_000, "output_tokens": 7, "input_token_details": details}
    row = {"id": "t", "trace_id": "t", "run_type": "llm", "outputs": {"usage_metadata": said}}
    path = tmp_path / "runs.jsonl"
    for columns in ({}, {"prompt_tokens": 300_000, "completion_tokens": 7}):
        path.write_text(json.dumps({**row, **columns}))
        (span,) = read_traces([path]).spans
        assert billed(span.usage) == (300_000, 7, *cached[:2])
        assert span.usage.cache_write_1h_tokens == cached[2]


@pytest.mark.parametrize(
    ("counts", "billed_tokens"),
    [
        ({"completion": 7, "total": 107}, (100, 7)),
        ({"completion": 7, "total": 137, "reasoning": 30}, (100, 37)),  # Gemini, told beside
        ({"completion": 37, "total": 137, "reasoning": 30}, (100, 37)),
        ({"completion": None, "total": 137}, (100, 37)),
        ({"completion": 7, "total": 999}, (100, 7)),  # no reading adds up to it
        ({"completion": 7, "total": 0}, (100, 7)),
        ({"completion": 7, "total": 107, "reasoning": 30, "beside": True}, (100, 7)),
        ({"completion": 7, "reasoning": 30, "beside": True}, (100, 37)),
    ],
)
def test_the_total_tells_what_is_counted_twice(counts, billed_tokens):
    assert used(100, **counts)[:2] == billed_tokens


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_a_total_decides_against_the_custom_of_a_format(beside, inside):
    total = 1007 if inside else 1907
    usage = used(1000, 7, Cached(800, 100), total=total, beside=beside)
    assert billed(usage) == (1000 if inside else 1900, 7, 800, 100)


_NONE_OF_LANGFUSE = {  # as its API writes a generation without usage
    "usageDetails": {},
    "usage": {"unit": "TOKENS", "input": 0, "output": 0, "total": 0},
    "promptTokens": 0,
    "completionTokens": 0,
    "totalTokens": 0,
    "calculatedTotalCost": 0,
}


@pytest.mark.parametrize(
    "told",
    [
        {"id": "c", "traceId": "t", "type": "GENERATION", **_NONE_OF_LANGFUSE},
        {
            **{"id": "c", "trace_id": "t", "type": "GENERATION", "total_cost": 0},
            "usage_details": {"input": 0, "output": 0},
        },
        {
            **{"id": "c", "trace_id": "t", "run_type": "llm", "total_cost": 0.0},
            **{"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        },
    ],
    ids=["Langfuse's API", "Langfuse's export", "LangSmith"],
)
def test_zeros_of_a_call_say_nothing(told, tmp_path):
    """Else such a call is free, and the reference too cheap."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**told, "model": HAIKU.name}) + "\n")
    (span,) = read_traces([path]).spans
    assert span.is_call
    assert (span.usage, span.cost_usd) == (None, None)
    names = {"gen_ai.usage.input_tokens": 0, "gen_ai.usage.output_tokens": 0}
    assert usage_in(names) is None
    assert usage_in(names | {"gen_ai.usage.output_tokens": 1})[:2] == (0, 1)
