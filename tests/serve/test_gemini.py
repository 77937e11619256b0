"""Gemini's own API: `/v1beta/models/MODULE:generateContent`, whole and as a stream."""

import json
from typing import Any

import pytest
from serve.fake_upstream import CACHED, Say, Status
from serve.path_server import Reply, path_server
from serve.serve_cases import CHOICE, message_of, post, serving

from scope_torch.llm.estimates import Most, most_of
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.usage import Usage, usage_of
from scope_torch.serve.apis import GENERATE
from scope_torch.serve.reading import Reading

CONTENTS = [{"role": "user", "parts": [{"text": "how are you today?"}]}]
VERBS = ("generateContent", "streamGenerateContent?alt=sse")
KEY = "of-the-upstream"


def asked_for(verb: str, module: str = "scope/planner", version: str = "v1beta") -> str:
    return f"/{version}/models/{module}:{verb}"


def body(**config: Any) -> dict:
    return {"contents": CONTENTS, "generationConfig": {"maxOutputTokens": 32, **config}}


def parts_of(content: bytes, verb: str) -> list[dict]:
    if verb == VERBS[0]:
        return [json.loads(content)]
    return [json.loads(event.removeprefix(b"data: ")) for event in content.split(b"\n\n") if event]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("module", ["scope/planner", "planner"])
@pytest.mark.parametrize("version", ["v1beta", "v1", "v1alpha", "v1/v1beta"])
def test_a_reply_is_passed_on_and_booked_to_the_cent(endpoint, upstream, verb, module, version):
    with endpoint.query(CHOICE) as query:
        url = query.env["GOOGLE_GEMINI_BASE_URL"]
        got = post(url + asked_for(verb, module, version), body())
    parts = parts_of(got.body, verb)
    said = [part["text"] for one in parts for part in one["candidates"][0]["content"]["parts"]]
    assert "".join(said) == "it is fine."
    assert upstream.paths == [f"/v1/models/medium:{verb}"]
    assert upstream.requests == [body()]
    bill = query.ledger.by_module()["planner"]
    (served,) = upstream.served
    assert (bill.calls, bill.failed, bill.estimated_usd) == (1, 0, 0.0)
    assert (bill.prompt_tokens, bill.completion_tokens) == (served.prompt, served.completion)
    assert bill.cached_tokens == CACHED
    assert bill.cost_usd == pytest.approx(sum(upstream.usd_by_tag().values()), abs=1e-15)


def test_a_query_by_its_header_and_a_model_with_another_name(endpoint, upstream):
    with endpoint.query(CHOICE) as query:
        url = endpoint.url + asked_for(VERBS[0], "scope/solver")
        assert post(url, body(), query.headers).status == 200
    assert upstream.paths == ["/v1/models/vendor/small-1:generateContent"]
    assert query.ledger.by_llm().keys() == {("solver", "small")}


def test_the_key_of_the_upstream_takes_the_place_of_the_applications(upstream, monkeypatch):
    monkeypatch.setenv("GEMINI_KEY", KEY)
    with serving(upstream.url, api_key_env="GEMINI_KEY", chosen=CHOICE) as endpoint:
        url = endpoint.url + asked_for(VERBS[0]) + "?key=mine&x=1"
        post(url, body(), {"x-goog-api-key": "mine", "x-goog-api-client": "google-genai"})
    (headers,) = upstream.headers
    assert headers["x-goog-api-key"] == KEY
    assert "authorization" not in headers
    assert "mine" not in json.dumps(headers)
    assert upstream.paths == ["/v1/models/medium:generateContent?x=1"]


def test_the_token_of_the_endpoint_is_google_s_key(upstream):
    with serving(upstream.url, token="secret", chosen=CHOICE) as endpoint:
        url = endpoint.url + asked_for(VERBS[0])
        wrong = post(url, body(), {"x-goog-api-key": "other"})
        assert (wrong.status, wrong.json()["error"]["status"]) == (401, "UNAUTHENTICATED")
        assert post(url, body(), {"x-goog-api-key": "secret"}).status == 200


def test_a_request_of_another_api_with_google_s_header_is_billed(endpoint, upstream):
    said = {"model": "scope/planner", "messages": [{"role": "user", "content": "hi"}]}
    for header in ("x-goog-api-key", "anthropic-version"):
        with endpoint.query(CHOICE) as query:
            assert post(f"{query.base_url}/chat/completions", said, {header: "-"}).status == 200
        assert query.ledger.cost_usd > 0.0


@pytest.mark.parametrize(
    ("url", "sent", "status", "name", "what"),
    [
        (asked_for(VERBS[0], "gemini-3.5-flash"), body(), 404, "NOT_FOUND", "scope/planner"),
        (asked_for("streamGenerateContent"), body(), 400, "INVALID_ARGUMENT", "alt=sse"),
        (asked_for("batchGenerateContent"), body(), 404, "NOT_FOUND", "generateContent"),
        (asked_for(VERBS[0]), [1], 400, "INVALID_ARGUMENT", "no JSON object"),
    ],
)
def test_errors_are_google_s(endpoint, upstream, url, sent, status, name, what):
    with endpoint.query(CHOICE) as query:
        base_url = query.env["GOOGLE_GEMINI_BASE_URL"]
        got = post(base_url + url, sent, {"x-goog-api-key": "-"})
    error = got.json()["error"]
    assert (got.status, error["code"], error["status"]) == (status, status, name)
    assert what in error["message"]
    assert upstream.requests == []
    after = post(base_url + asked_for(VERBS[0]), body())
    assert (after.status, after.json()["error"]["status"]) == (409, "FAILED_PRECONDITION")
    assert "not in flight" in message_of(after)


def test_tokens_are_counted_for_nothing_and_modules_are_listed(endpoint, upstream):
    upstream.answer = lambda _: Status(200, b'{"totalTokens": 9}')
    with endpoint.query(CHOICE) as query:
        url = query.env["GOOGLE_GEMINI_BASE_URL"]
        got = post(url + asked_for("countTokens"), {"contents": CONTENTS})
        assert got.json() == {"totalTokens": 9}
        names = post(f"{url}/v1beta/models", {}, method="GET").json()["models"]
    assert upstream.paths == ["/v1/models/medium:countTokens"]
    assert upstream.requests == [{"contents": CONTENTS}]
    assert [one["name"] for one in names] == [f"models/scope/{module}" for module in CHOICE]
    assert query.ledger.by_module() == {}


def test_the_address_of_chat_completions_serves_both():
    """Google's own for chat completions ends with /v1beta/openai."""
    own = PriceList({"m": LLMInfo("m", 1.0, 4.0)})
    with path_server(lambda _: Reply({"candidates": []})) as (url, asked):
        address = f"{url.removesuffix('/v1')}/v1beta"
        for base_url in (address, f"{address}/openai"):
            with serving(base_url, prices=own, chosen={"planner": "m"}) as endpoint:
                post(endpoint.url + asked_for(VERBS[0]), body())
    assert {request.path for request in asked} == {"/v1beta/models/m:generateContent"}


def test_a_chain_goes_on_where_gemini_fails(upstream):
    gone = {"error": {"code": 404, "message": "models/large is not found for API version v1beta",
                      "status": "NOT_FOUND"}}  # fmt: skip

    def answer(_: dict) -> Say | Status:
        is_large = upstream.paths[-1].startswith("/v1/models/large")
        return Status(404, json.dumps(gone).encode()) if is_large else Say("fine")

    upstream.answer = answer
    chain = {"chosen": {"planner": "large"}, "fallbacks": [{"planner": "medium"}]}
    with serving(upstream.url, **chain) as endpoint:
        got = post(endpoint.url + asked_for(VERBS[0]), body())
        assert got.json()["candidates"][0]["content"]["parts"] == [{"text": "fine"}]
        assert endpoint.ledger.fallbacks() == {("planner", "large", "404"): 1}


THINKING = {"thinkingConfig": {"thinkingBudget": 900, "includeThoughts": True}}


@pytest.mark.parametrize(
    ("choice", "given", "expected"),
    [
        ("m", {"temperature": 1, "topK": 4}, {"temperature": 1, "topK": 4}),
        ("m effort=low", {}, {"thinkingConfig": {"thinkingLevel": "LOW"}}),
        ("m effort=low", THINKING, {"thinkingConfig": {"thinkingLevel": "LOW",
                                                       "includeThoughts": True}}),
        ("m thinking_tokens=512", {"thinkingConfig": {"thinkingLevel": "HIGH"}},
         {"maxOutputTokens": 544, "thinkingConfig": {"thinkingBudget": 512}}),
        ("m thinking_tokens=512 max_tokens=2000", {},
         {"maxOutputTokens": 2000, "thinkingConfig": {"thinkingBudget": 512}}),
        ("m thinking_tokens=0", THINKING, {"thinkingConfig": {"thinkingBudget": 0}}),
        ("m temperature=0.2 top_p=0.9", {"temperature": 1, "topP": 0.1},
         {"temperature": 0.2, "topP": 0.9}),
        ("m prompt=v1", {}, {}),
        # What the price list says of calls.
        ("listed", {}, {"thinkingConfig": {"thinkingLevel": "HIGH"}}),
        ("listed", THINKING, THINKING),
        ("listed effort=low", {"temperature": 1}, {"thinkingConfig": {"thinkingLevel": "LOW"}}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("snake", [False, True])
def test_the_body_that_gemini_gets(choice, given, expected, snake):
    own = PriceList({"m": LLMInfo("m", 1.0, 4.0),
                     "listed": LLMInfo("listed", 1.0, 4.0, model="m", reasoning_effort="high",
                                       takes_temperature=False)})  # fmt: skip
    sent = body(**given)
    if snake:
        names = {"generationConfig": "generation_config", "maxOutputTokens": "max_output_tokens",
                 "thinkingConfig": "thinking_config", "thinkingBudget": "thinking_budget",
                 "thinkingLevel": "thinking_level", "includeThoughts": "include_thoughts",
                 "topP": "top_p", "topK": "top_k"}  # fmt: skip
        text = json.dumps(sent)
        for camel, other in names.items():
            text = text.replace(f'"{camel}"', f'"{other}"')
        sent = json.loads(text)
    with (
        path_server(lambda _: Reply({"candidates": []})) as (url, asked),
        serving(url, prices=own, chosen={"planner": choice}) as endpoint,
    ):
        got = post(endpoint.url + asked_for(VERBS[0]), sent)
        assert got.status == 200, got.body
    (request,) = asked
    assert request.path == "/v1/models/m:generateContent"
    config = {"maxOutputTokens": 32, **expected}
    assert request.body == {"contents": CONTENTS, "generationConfig": config}


@pytest.mark.parametrize(
    ("choice", "what"),
    [
        ("medium effort=low thinking_tokens=9", "no effort beside thinking_tokens; give one"),
        ("medium effort=none", "no effort none; give thinking_tokens=0"),
    ],
)
def test_what_gemini_cannot_set_is_refused(upstream, choice, what):
    with serving(upstream.url, chosen={"planner": choice}) as endpoint:
        got = post(endpoint.url + asked_for(VERBS[0]), body())
    assert (got.status, upstream.requests) == (400, [])
    assert what in message_of(got)


def usage(prompt: int, said: int | None = None, thoughts: int = 0, **more: Any) -> dict:
    told = {"promptTokenCount": prompt, "totalTokenCount": prompt + (said or 0) + thoughts, **more}
    told |= {} if said is None else {"candidatesTokenCount": said}
    return {"usageMetadata": told | ({"thoughtsTokenCount": thoughts} if thoughts else {})}


def part(text: str, ends: str | None = None, index: int = 0, **more: Any) -> dict:
    one = {"index": index, "content": {"parts": [{"text": text}]}}
    return {"candidates": [one | ({"finishReason": ends} if ends else {})], **more}


def read(*events: dict) -> Usage | None:
    reading = Reading(GENERATE, Most(500, 1_000), wants_usage=False)
    for event in events:
        assert reading.event(b"data: " + json.dumps(event).encode() + b"\n\n")
    return reading.bill()


@pytest.mark.parametrize(
    ("events", "booked"),
    [
        ([part("a", **usage(90, 1)), part("b", "STOP", **usage(90, 7, 40))], (90, 47, 40)),
        # The last words, and only then the count.
        ([part("a"), part("b", "STOP"), {**usage(90, 7)}], (90, 7, 0)),
        ([part("a", "STOP", **usage(90, 3)), part("b", "STOP", 1, **usage(90, 7))], (90, 7, 0)),
        # All was thought, or the prompt was blocked.
        ([{"candidates": [{"finishReason": "MAX_TOKENS"}], **usage(90, None, 30)}], (90, 30, 30)),
        ([{"promptFeedback": {"blockReason": "SAFETY"}, **usage(90)}], (90, 0, 0)),
        ([{"candidates": [{"finishReason": "SAFETY", "safetyRatings": [{"category": "X"}]}],
           **usage(90)}], (90, 0, 0)),
    ],
)  # fmt: skip
def test_a_told_end_is_booked_as_told(events, booked):
    prompt, said, thoughts = booked
    assert read(*events) == Usage(prompt, said, reasoning_tokens=thoughts)
    if len(events) == 1:
        reading = Reading(GENERATE, Most(500, 1_000), wants_usage=False)
        reading.whole(json.dumps(events[0]).encode())
        assert reading.bill() == Usage(prompt, said, reasoning_tokens=thoughts)


@pytest.mark.parametrize(
    ("events", "booked"),
    [
        ([part("a", **usage(90, 1))], (90, 1_000)),
        ([part("a", "STOP", **usage(90, 3)), part("b", None, 1, **usage(90, 7))], (90, 1_000)),
        ([part("a")], (500, 1_000)),
    ],
)
def test_a_cut_stream_is_an_estimate(events, booked):
    bill = read(*events)
    assert bill is not None
    assert (bill[:2], bill.estimated) == (booked, True)


def test_an_error_with_status_200_is_free():
    reading = Reading(GENERATE, Most(500, 1_000), wants_usage=False)
    reading.whole(b'{"error": {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED"}}')
    assert (reading.failed, reading.bill()) == (True, None)


@pytest.mark.parametrize(("model", "searches"), [("gemini-2.5-flash", 1), ("gemini-3.5-flash", 3)])
def test_searches_of_google_are_on_the_bill(model, searches):
    """35 USD for a thousand replies with searches, from Gemini 3 on 14 USD for a thousand."""
    grounded = {"groundingMetadata": {"webSearchQueries": ["a", "b", "c"]}, "finishReason": "STOP"}
    end = {"candidates": [part("b")["candidates"][0] | grounded], "modelVersion": model}
    whole = end | usage(1_000, 100)
    usd = searches * (0.035 if searches == 1 else 0.014)
    own = usage_of(whole)
    streamed = read(part("a", **usage(1_000, 1), modelVersion=model), whole, {})
    for bill in (own, streamed):
        assert bill == Usage(1_000, 100, searches=searches)
        without = PriceList().cost_usd(model, bill._replace(searches=0))
        assert PriceList().cost_usd(model, bill) == pytest.approx(without + usd)


@pytest.mark.parametrize(
    ("more", "most"),
    [
        ({}, (None, False)),
        ({"generationConfig": {"maxOutputTokens": 70, "candidateCount": 3}}, (210, False)),
        ({"tools": [{"functionDeclarations": [{"name": "look_up"}]}]}, (None, False)),
        ({"tools": [{"google_search": {}}]}, (None, True)),
        ({"cachedContent": "cachedContents/c"}, (None, True)),
        ({"contents": [{"parts": [{"fileData": {"fileUri": "https://f"}}]}]}, (None, True)),
    ],
)
def test_the_most_that_a_request_can_have_asked_for(more, most):
    sent = {"contents": CONTENTS, **more}
    asked = most_of(GENERATE.limits, sent, 1_000)
    assert (asked.completion_tokens, asked.refers) == most
    assert asked.prompt_tokens == 500 + 65_536 * most[1]


@pytest.mark.parametrize("name", ["generationConfig", "generation_config"])
def test_the_settings_of_the_application_stay_beside_those_of_extra_body(upstream, name):
    more = {name: {"thinking_config": {"thinkingBudget": 0}, "topK": 1}, "labels": {"a": "b"}}
    own = {"responseMimeType": "application/json", "maxOutputTokens": 50, "topK": 9}
    with serving(upstream.url, extra_body=more) as endpoint, endpoint.query(CHOICE) as query:
        url = query.base_url.removesuffix("/v1") + asked_for(VERBS[0])
        assert post(url, {"contents": CONTENTS, "generationConfig": own}).status == 200
    (sent,) = upstream.requests
    assert sent["generationConfig"] == own | {"topK": 1, "thinkingConfig": {"thinkingBudget": 0}}
    assert sent["labels"] == {"a": "b"}
    assert "generation_config" not in sent
