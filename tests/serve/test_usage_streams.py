"""Usage in streams and in requests of the provider's tools: what is booked, and whether exactly."""

import json

import pytest
from serve.serve_cases import PATHS, body_of

from scope_torch.llm.estimates import Most, most_of
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.usage import Usage
from scope_torch.serve.apis import APIS, CHAT, MESSAGES, RESPONSES, Api
from scope_torch.serve.reading import Reading

MOST = Most(500, 1_000)


def read(api: Api, *events: object, most: Most = MOST) -> Reading:
    """A stream; an event is JSON, or text as it comes."""
    reading = Reading(api, most, wants_usage=True)
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        reading.event(f"data: {data}\n\n".encode())
    return reading


def chunk(text: str | None = None, end: str | None = None, index: int = 0, **more: object) -> dict:
    delta = {} if text is None else {"content": text}
    return {"choices": [{"index": index, "delta": delta, "finish_reason": end}], **more}


def usage(prompt: int, said: int) -> dict:
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": said}}


LAST = {"choices": [], **usage(90, 7)}
DONE = "[DONE]"
GROQ = {"x_groq": {"id": "r", **usage(90, 7)}}
MOONSHOT = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", **usage(90, 7)}]}


@pytest.mark.parametrize(
    "events",
    [
        [chunk("a"), chunk(end="stop"), LAST, DONE],
        [chunk("a"), chunk(end="stop"), LAST],  # cut after the report
        [chunk("a"), chunk(end="stop", **usage(90, 7))],
        [chunk("a"), MOONSHOT, DONE],
        [chunk("a"), MOONSHOT],
        [chunk("a"), chunk(end="stop", **GROQ), DONE],
        [chunk("a"), LAST, {"choices": [], **usage(0, 0)}, DONE],  # zeros at the end tell nothing
        [chunk("a"), LAST, chunk(end="stop", usage=None), DONE],
        [chunk("a"), LAST, chunk(end="stop", usage={}), DONE],
        [chunk("a", **usage(90, 1)), chunk("b", **usage(90, 2)), LAST, DONE],  # running counts
        [chunk("a", **usage(90, 1)), chunk("b", "stop", **usage(90, 7))],
        [chunk("a", **usage(90, 1)), chunk("b", "stop", **usage(90, 7)), LAST],
        [chunk("a", **usage(90, 7)), DONE],  # no reason to end, but an end
        [chunk("a", index=0), chunk("b", index=1), chunk(end="stop", index=0),
         chunk(end="stop", index=1, **usage(90, 7))],
    ],
)  # fmt: skip
def test_a_told_end_is_booked_exactly(events):
    assert read(CHAT, *events).bill() == Usage(90, 7)


@pytest.mark.parametrize(
    ("events", "booked"),
    [
        # vLLM's continuous_usage_stats: the count of a cut stream is that of its first words.
        ([chunk("a", **usage(90, 1)), chunk("b", **usage(90, 2))], (90, 1_000)),
        ([{"choices": [], **usage(90, 0)}, chunk("b")], (90, 1_000)),
        ([chunk("a", **usage(90, 1)), chunk("b")], (90, 1_000)),
        ([chunk("a", end="stop", index=0, **usage(90, 1)), chunk("b", index=1)], (90, 1_000)),
        ([chunk("a", index=1), chunk("b", "stop", **usage(90, 5))], (90, 1_000)),
        ([chunk("a", **usage(90, 2_000)), chunk("b")], (90, 2_000)),
        ([chunk("a", **usage(10**6, 2)), chunk("b")], (10**6, 1_000)),
        ([chunk("a"), chunk("b")], (500, 1_000)),
    ],
)
def test_a_cut_stream_is_an_estimate_that_keeps_the_prompt(events, booked):
    bill = read(CHAT, *events).bill()
    assert (bill[:2], bill.estimated) == (booked, True)


def test_words_after_an_error_are_not_free():
    error = {"error": {"code": 502}}
    assert read(CHAT, error, DONE).bill() is None
    assert read(CHAT, error, chunk("a"), DONE).bill().estimated
    assert read(CHAT, error, LAST, DONE).bill() == Usage(90, 7)


START = {"type": "message_start", "message": {"usage": {
    "input_tokens": 12, "cache_read_input_tokens": 400, "cache_creation_input_tokens": 30,
    "cache_creation": {"ephemeral_1h_input_tokens": 20}, "output_tokens": 1}}}  # fmt: skip
TEXT = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "it is"}}
STOP = {"type": "message_stop"}
TRUE = Usage(442, 57, 400, cache_write_tokens=30, cache_write_1h_tokens=20)


@pytest.mark.parametrize(
    "told",
    [
        {"output_tokens": 57},
        {"input_tokens": 0, "output_tokens": 57},
        {"input_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0,
         "cache_creation": {"ephemeral_1h_input_tokens": 0}, "output_tokens": 57},
        {"input_tokens": None, "output_tokens": 57},
        {"input_tokens": 12, "cache_read_input_tokens": 400, "output_tokens": 57},
    ],
)  # fmt: skip
def test_the_end_of_a_message_does_not_forget_its_start(told):
    events = [START, TEXT, {"type": "message_delta", "delta": {}, "usage": told}]
    for tail in ([], [STOP]):
        assert read(MESSAGES, *events, *tail).bill() == TRUE


@pytest.mark.parametrize("delta", [{}, {"usage": None}])
@pytest.mark.parametrize("ends", [False, True])
def test_a_message_whose_reply_nobody_counted_keeps_its_start(delta, ends):
    """A gateway may end a message without its usage; 1 token at the start is not the reply."""
    end = [{"type": "message_delta", "delta": {}, **delta}, STOP] if ends else []
    bill = read(MESSAGES, START, TEXT, *end).bill()
    assert bill == TRUE._replace(completion_tokens=1_000, estimated=True)


def test_compaction_and_searches_in_a_stream():
    steps = [{"input_tokens": 180_000, "output_tokens": 3_500},
             {"input_tokens": 23_000, "output_tokens": 1_000}]  # fmt: skip
    told = {"output_tokens": 1_000, "iterations": steps,
            "server_tool_use": {"web_search_requests": 2}}  # fmt: skip
    start = {"type": "message_start", "message": {"usage": {
        "input_tokens": 23_000, "output_tokens": 1}}}  # fmt: skip
    end = {"type": "message_delta", "delta": {}, "usage": told}
    bill = read(MESSAGES, start, TEXT, end, STOP, most=Most(23_000, 8_000)).bill()
    assert (bill[:2], bill.searches, bill.estimated) == ((203_000, 4_500), 2, False)


def test_the_last_response_of_a_stream_is_read():
    done = {"type": "response.completed", "response": {
        "usage": {"input_tokens": 90, "output_tokens": 7}, "service_tier": "flex",
        "output": [{"type": "web_search_call"}]}}  # fmt: skip
    bill = read(RESPONSES, {"type": "response.created", "response": {"usage": None}}, done).bill()
    assert bill == Usage(90, 7, searches=1, tier="flex")


@pytest.mark.parametrize(
    ("path", "more", "reply"),
    [
        (PATHS[2], {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, {}),
        (PATHS[1], {"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}, {}),
        (PATHS[1], {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, {}),
        (PATHS[0], {"data_sources": [{"type": "azure_search", "parameters": {}}]}, {}),
        (PATHS[0], {"web_search_options": {}}, {}),
        (PATHS[0], {"model": "x:online"}, {}),
        (PATHS[0], {}, {"server_tool_use": {"web_search_requests": 1}}),  # the reply says it
    ],
)
def test_what_the_providers_tools_read_is_booked_as_told(path, more, reply):
    """Haiku 4.5: 290,000 x 1 + 2,000 x 5."""
    api, body = APIS[path], {**body_of(path), "max_tokens": 4_000, **more}
    names = ("prompt", "completion") if path == PATHS[0] else ("input", "output")
    told = dict(zip((f"{name}_tokens" for name in names), (290_000, 2_000), strict=True))
    reading = Reading(api, most_of(api.limits, body, len(json.dumps(body))), wants_usage=False)
    reading.whole(json.dumps({api.said[0]: [{"text": "it is"}], "usage": told | reply}).encode())
    bill = reading.bill()
    usd = PriceList().cost_usd("claude-haiku-4-5", bill)
    assert not bill.estimated
    assert usd == pytest.approx(0.30 + 0.01 * bool(reply))


def test_a_request_of_a_dearer_tier_is_estimated_at_its_price():
    body = body_of(PATHS[0]) | {"service_tier": "priority"}
    most = most_of(CHAT.limits, body, 1_000)
    assert read(CHAT, chunk("a"), most=most).bill() == Usage(
        500, 32, estimated=True, tier="priority"
    )
    told = {"choices": [], **usage(90, 7)}
    assert read(CHAT, told, most=most).bill().tier == "priority"
    assert read(CHAT, told | {"service_tier": "default"}, most=most).bill().tier == "default"
    assert most_of(CHAT.limits, body | {"service_tier": "flex"}, 1_000).tier == ""


URL = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "input_image", "image_url": URL},
        {"type": "file", "file": {"file_data": URL}},
        {"type": "image", "source": {"type": "base64", "data": "iVBORw0KGgo="}},
        {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}},
    ],
)
def test_a_small_image_may_have_many_tokens(part):
    """OpenAI bills an image of 1024 x 1024 to gpt-4o-mini as 25,501 tokens, whatever its bytes."""
    body = {"model": "x", "max_tokens": 32, "messages": [{"role": "user", "content": [part]}]}
    most = most_of(CHAT.limits, body, len(json.dumps(body)))
    assert (most.refers, most.files) == (False, 1)
    told = {"choices": [], **usage(25_515, 7)}
    assert read(CHAT, chunk("a"), told, DONE, most=most).bill() == Usage(25_515, 7)
    absurd = {"choices": [], **usage(10**5, 7)}
    assert read(CHAT, chunk("a"), absurd, DONE, most=most).bill().estimated
    assert read(CHAT, chunk("a"), told, DONE, most=most._replace(files=0)).bill().estimated
