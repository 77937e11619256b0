"""Audio, images, searches and service tiers of a log are priced as those of a reply.

Prices are those of 1 June 2026 in USD for a million tokens, retyped from the providers' pages.
"""

import json
from datetime import date

import pytest

from scope_torch.llm.price_list import PriceList
from scope_torch.traces.reading import read_traces
from scope_torch.traces.summary import TraceRules, summarize

PRICES = PriceList(at=date(2026, 6, 1))
SPOKEN = 16 * 2.5 + 110 * 10 + 482 * 64  # GPT audio: 31,988
HEARD = 10 * 2.5 + 90 * 32 + 7 * 10
DRAWN = 10 * 0.3 + 10 * 2.5 + 1_290 * 30  # Gemini 2.5 Flash Image
SEARCHED = 7_200 * 1 + 1_000 * 5 + 2 * 10_000  # Claude Haiku 4.5: 32,200
PRIORITY = 1_000 * 0.45 + 2_000 * 3.6  # GPT-5 mini: 7,650
FLEX = 1_000 * 0.125 + 2_000 * 1


def span(llm: str, prompt: int, said: int, **more: object) -> dict:
    """A span with further attributes, with dots for `__`."""
    told = {"gen_ai.request.model": llm, "gen_ai.usage.input_tokens": prompt}
    told |= {"gen_ai.usage.output_tokens": said}
    told |= {key.replace("__", "."): value for key, value in more.items()}
    return {"context": {"trace_id": "t", "span_id": "s"}, "name": "chat", "attributes": told}


def openinference(llm: str, prompt: int, said: int, **more: object) -> dict:
    count = "llm.token_count"
    told = {"llm.model_name": llm, "openinference.span.kind": "LLM"}
    told |= {f"{count}.prompt": prompt, f"{count}.completion": said}
    told |= {f"{count}.{key.replace('__', '.')}": value for key, value in more.items()}
    return {"context": {"trace_id": "t", "span_id": "s"}, "name": "chat", "attributes": told}


def observation(llm: str, usage: dict, **more: object) -> dict:
    row = {"trace_id": "t", "id": "c", "type": "GENERATION", "provided_model_name": llm}
    return {**row, "usage_details": usage, **more}


def langsmith(
    llm: str, prompt: int, said: int, response: dict | None = None, reply: dict | None = None,
    **details: object,
) -> dict:  # fmt: skip
    usage = {"input_tokens": prompt, "output_tokens": said, "total_tokens": prompt + said}
    outputs: dict = {"usage_metadata": {**usage, **details}, **(reply or {})}
    if response is not None:  # as LangChain's tracer writes the message
        message = {"lc": 1, "kwargs": {"response_metadata": response}}
        outputs["generations"] = [[{"text": "", "message": message}]]
    row = {"id": "t", "trace_id": "t", "run_type": "llm", "name": "c", "outputs": outputs}
    return {**row, "extra": {"metadata": {"ls_model_name": llm}}}


AUDIO, HAIKU, MINI, IMAGE = "gpt-audio", "claude-haiku-4-5", "gpt-5-mini", "gemini-2.5-flash-image"
ROWS = [
    # pydantic-ai also copies OpenAI's details of the completion, and Gemini's with their modality.
    (span(AUDIO, 16, 592, gen_ai__usage__details__output_audio_tokens=482,
          gen_ai__usage__details__audio_tokens=482), SPOKEN),
    (span(AUDIO, 16, 592, gen_ai__usage__details__audio_tokens=482), SPOKEN),
    (span(AUDIO, 100, 7, gen_ai__usage__details__input_audio_tokens=90), HEARD),
    (span(IMAGE, 10, 1_300, gen_ai__usage__details__image_candidates_tokens=1_290), DRAWN),
    (span(AUDIO, 16, 592, gen_ai__usage__completion_tokens_details__audio=482), SPOKEN),  # OpenLIT
    (span(AUDIO, 16, 592, gen_ai__usage__output_token_details=json.dumps({"audio": 482})), SPOKEN),
    (span(AUDIO, 100, 7, gen_ai__usage__input_token_details=json.dumps({"audio": 90})), HEARD),
    (openinference(AUDIO, 16, 592, completion_details__audio=482), SPOKEN),
    (openinference(AUDIO, 100, 7, prompt_details__audio=90), HEARD),
    (langsmith(AUDIO, 16, 592, output_token_details={"audio": 482}), SPOKEN),
    (langsmith(AUDIO, 100, 7, input_token_details={"audio": 90}), HEARD),
    ({**langsmith(AUDIO, 0, 0), "prompt_tokens": 16, "completion_tokens": 592,
      "completion_token_details": {"audio": 482}}, SPOKEN),
    (observation(AUDIO, {"input": 16, "output": 110, "output_audio_tokens": 482}), SPOKEN),
    (observation(AUDIO, {"input": 10, "output": 7, "input_audio_tokens": 90}), HEARD),
    (observation(IMAGE, {"input": 10, "output": 10, "output_modality_IMAGE": 1_290}), DRAWN),
    # Searches.
    (span(HAIKU, 7_200, 1_000, gen_ai__usage__details__web_search_requests=2), SEARCHED),
    (observation(HAIKU, {"input": 7_200, "output": 1_000, "web_search_requests": 2}), SEARCHED),
    (observation(HAIKU, {"input": 7_200, "output": 1_000,
                         "server_tool_use": {"web_search_requests": 2}}), SEARCHED),
    (langsmith(HAIKU, 7_200, 1_000, {"usage": {"server_tool_use": {"web_search_requests": 2}}}),
     SEARCHED),
    (langsmith("gpt-4.1", 8_000, 100, reply={"output": [  # as it wraps OpenAI's client
        {"type": "web_search_call", "action": {"type": "search"}}, {"type": "file_search_call"}]}),
     8_000 * 2 + 100 * 8 + 10_000 + 2_500),
    (span("gpt-4.1", 8_000, 100, gen_ai__usage__details__file_search_calls=1),
     8_000 * 2 + 100 * 8 + 2_500),
    # Tiers: what the reply names goes before what was asked for.
    (span(MINI, 1_000, 2_000, gen_ai__openai__response__service_tier="priority"), PRIORITY),
    (span(MINI, 1_000, 2_000, openai__response__service_tier="flex",
          openai__request__service_tier="priority"), FLEX),
    (span(MINI, 1_000, 2_000, gen_ai__openai__request__service_tier="flex"), FLEX),
    (span(MINI, 1_000, 2_000, response_data=json.dumps(
        {"service_tier": "flex", "usage": {"input_tokens": 1_000, "output_tokens": 2_000}})), FLEX),
    (span(MINI, 1_000, 2_000, ai__response__providerMetadata=json.dumps(
        {"openai": {"serviceTier": "flex"}})), FLEX),
    (langsmith(MINI, 1_000, 2_000, {"service_tier": "priority"}), PRIORITY),
    (langsmith(MINI, 1_000, 2_000, input_token_details={"flex": 1_000, "flex_cache_read": 0}),
     FLEX),
    (observation(MINI, {"input": 1_000, "output": 2_000},
                 model_parameters={"service_tier": "flex"}), FLEX),
]  # fmt: skip


def read(row: dict, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    return read_traces([path])


@pytest.mark.parametrize(("row", "micro_usd"), ROWS)
def test_what_is_logged_beside_text_has_its_price(row, micro_usd, tmp_path, caplog):
    found = summarize(read(row, tmp_path), TraceRules(prices=PRICES))
    assert found.cost_usd == pytest.approx(micro_usd / 1e6, rel=1e-14)
    assert caplog.text == ""


def test_every_count_with_a_price_of_its_own_is_read(tmp_path):
    """A count that `usage.py` has and no log passes on is lost without a word."""
    both = {"input_token_details": {"cache_read": 5, "cache_creation": 4, "audio": 3, "image": 1}}
    both["input_token_details"] |= {"ephemeral_1h_input_tokens": 4, "cache_audio_read": 2}
    rows = [row for row, _ in ROWS] + [langsmith(AUDIO, 100, 7, **both)]
    found = [call.usage for row in rows for call in read(row, tmp_path).spans]
    read_fields = {f for usage in found for f, value in usage._asdict().items() if value}
    # A reasoning token costs what others of the completion do, or less.
    left = {"estimated", "reported_usd", "reasoning_tokens"}
    assert set(found[0]._fields) - read_fields == left


@pytest.mark.parametrize(
    "counts",
    [
        {"input_audio_seconds": 90},
        {"prompt_tokens_details.image_count": 1},
        {"details.input_audio_tokens": -5},
        {"details.input_audio_tokens": "many"},
        {"research_tokens": 3},
    ],
)
def test_other_counts_are_no_tokens(counts, tmp_path):
    told = {f"gen_ai__usage__{key}": value for key, value in counts.items()}
    (call,) = read(span(AUDIO, 100, 7, **told), tmp_path).spans
    assert call.usage == (100, 7, *call.usage._field_defaults.values())
