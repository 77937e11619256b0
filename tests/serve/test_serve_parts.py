"""The parts of the endpoint by themselves: events, estimates, bodies, headers, ledgers."""

import json
import random
import threading
from datetime import date

import pytest
from serve.fake_upstream import FakeUpstream, Say, Served
from serve.serve_cases import CHOICE, MESSAGES, PATHS, body_of, post, serving

from scope_torch.llm.billing import Usage
from scope_torch.llm.estimates import Most, believable, estimate, most_of, said_bytes
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.selection.setup import _price_list
from scope_torch.serve.apis import APIS, CHAT, RESPONSES, outgoing
from scope_torch.serve.apis import MESSAGES as ANTHROPIC
from scope_torch.serve.endpoint import Endpoint
from scope_torch.serve.headers import query_string, to_upstream
from scope_torch.serve.ledger import Ledger, ModuleBill
from scope_torch.serve.reading import Events, Reading, data_of

MOST = Most(10, 32, False)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_events_are_whole_wherever_the_stream_is_cut(end):
    draw = random.Random(end)
    texts = [f"data: {i}\nid: {'x' * draw.randrange(9)}\n\n" for i in range(200)]
    stream = "".join(texts).replace("\n", end).encode()
    for most in (1, 2, 3, 7, 1000, len(stream)):
        events, found, rest = Events(), [], stream
        while rest:
            size = draw.randint(1, most)
            found += events.feed(rest[:size])
            rest = rest[size:]
        found.append(events.rest())
        assert b"".join(found) == stream
        assert [data_of(event) for event in found if data_of(event)] == [
            str(i).encode() for i in range(200)
        ]


def test_an_event_of_many_pieces_is_found_in_time():
    """Each piece is looked at once; 8 MiB in pieces of 1 KiB would take minutes otherwise."""
    events = Events()
    for _ in range(8000):
        assert [*events.feed(b"x" * 1024)] == []
    assert len([*events.feed(b"\n\n")]) == 1


@pytest.mark.parametrize(
    ("usage", "said", "right"),
    [
        (Usage(10, 5), 9, True),
        (Usage(10, 0), 0, True),
        (Usage(10, 0), 9, False),
        (Usage(0, 5), 9, False),
        (Usage(100 + 4096, 5), 9, True),
        (Usage(100 + 4097, 5), 9, False),
        (Usage(10, 320 + 65_536), 9, True),
        (Usage(10, 320 + 65_537), 9, False),
    ],
)
def test_which_counts_are_believed(usage, said, right):
    assert believable(usage, MOST, said) == right


def test_what_a_request_refers_to_is_not_bounded():
    assert believable(Usage(10**6, 5), MOST._replace(refers=True), 9)
    assert believable(Usage(10, 10**6), MOST._replace(completion_tokens=None), 9)


@pytest.mark.parametrize(
    ("path", "more", "limit", "refers"),
    [
        (PATHS[0], {}, 32, False),
        (PATHS[0], {"max_completion_tokens": 20, "n": 3}, 96, False),
        (PATHS[0], {"max_tokens": None}, None, False),
        (PATHS[0], {"max_tokens": True, "n": "x"}, None, False),
        (PATHS[1], {"max_output_tokens": 7, "max_tokens": 3}, 7, False),
        (PATHS[1], {"previous_response_id": "r1"}, 32, True),
        (PATHS[1], {"previous_response_id": None}, 32, False),
        (PATHS[1], {"input": [{"type": "item_reference", "id": "m1"}]}, 32, True),
        (PATHS[0], {"messages": [{"content": [{"image_url": {"url": "https://x/y"}}]}]}, 32, True),
        (PATHS[0], {"messages": [{"content": [{"image_url": {"url": "data:,y"}}]}]}, 32, False),
        (PATHS[1], {"input": [{"content": [{"image_url": "https://x/y"}]}]}, 32, True),
        (PATHS[2], {"messages": [{"content": [{"source": {"file_id": "f"}}]}]}, 32, True),
        (PATHS[0], {"tools": [{"parameters": {"prompt": {"type": "string"}}}]}, 32, False),
        (PATHS[1], {"tools": [{"type": "function", "name": "f"}]}, 32, False),
        (PATHS[2], {"tools": [{"name": "f", "input_schema": {}}]}, 32, False),
        (PATHS[2], {"tools": [{"type": "custom", "name": "f"}]}, 32, False),
        (PATHS[2], {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 32, True),
        (PATHS[1], {"tools": [{"type": "web_search"}]}, 32, True),
        (PATHS[1], {"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}, 32, True),
        (PATHS[1], {"tools": [{"type": "code_interpreter"}]}, 32, True),
        (PATHS[0], {"tools": [{"google_search": {}}]}, 32, True),
        (PATHS[0], {"data_sources": [{"type": "azure_search"}]}, 32, True),
        (PATHS[0], {"web_search_options": {}}, 32, True),
        (PATHS[0], {"plugins": [{"id": "web"}]}, 32, True),
        (PATHS[0], {"model": "openai/gpt-4o:online"}, 32, True),
        (PATHS[0], {"model": "groq/compound-mini"}, 32, True),
        (PATHS[0], {"model": "compound-beta"}, 32, True),
        (PATHS[0], {"model": "my-compounds"}, 32, False),
        # Moonshot's, Qwen's, Cohere's and Mistral's.
        (PATHS[0], {"tools": [{"type": "builtin_function", "function": {"name": "$web_search"}}]},
         32, True),
        (PATHS[0], {"tools": [{"type": "function", "function": {"name": "$web_search"}}]},
         32, False),
        (PATHS[0], {"tools": [{"name": "f", "parameter_definitions": {}}]}, 32, False),
        (PATHS[0], {"enable_search": True}, 32, True),
        (PATHS[0], {"enable_search": False}, 32, False),
        (PATHS[0], {"connectors": [{"id": "web-search"}]}, 32, True),
        (PATHS[0], {"messages": [{"content": [{"document_url": "https://x/y.pdf"}]}]}, 32, True),
        (PATHS[0], {"messages": [{"content": [{"document_url": "data:,y"}]}]}, 32, False),
    ],
)  # fmt: skip
def test_the_most_of_a_request(path, more, limit, refers):
    most = most_of(APIS[path].limits, body_of(path) | more, 1001)
    assert most[:3] == (501 + (65_536 if refers else 0), limit, refers)


@pytest.mark.parametrize(
    ("path", "more", "replies"),
    [
        (PATHS[0], {"n": 8}, 8),
        (PATHS[0], {"n": True}, 1),
        (PATHS[0], {"n": 0}, 1),
        ("/generateContent", {"generationConfig": {"candidateCount": 8}}, 8),
    ],
)
def test_every_one_of_the_replies_that_were_asked_for_may_be_billed(path, more, replies):
    unlimited = most_of(APIS[path].limits, more, 100)
    assert estimate(unlimited, 200)[1] == 100 + replies * 16_384


@pytest.mark.parametrize(
    "more",
    [
        {"native_finish_reason": "stop"},
        {"content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}},
        {"error": {"code": 502, "message": "Upstream failed"}},
    ],
)
def test_what_hosts_say_about_an_empty_choice_are_no_words_of_the_llm(more):
    assert said_bytes([{"index": 0, "message": {"role": "assistant", "content": ""}, **more}]) == 0


def test_estimates():
    assert estimate(MOST, 999) == Usage(10, 32, 0, estimated=True)
    unlimited = MOST._replace(completion_tokens=None)
    assert estimate(unlimited, 999) == Usage(10, 500 + 16_384, 0, estimated=True)
    begun = estimate(MOST, 0, Usage(7, 40, 3), begun=True)
    assert begun == Usage(7, 40, 3, estimated=True)
    assert estimate(MOST, 0, Usage(7, 40, 3)) == Usage(10, 40, 0, estimated=True)
    assert estimate(MOST, 0, Usage(700, 4, 3)) == Usage(700, 32, 0, estimated=True)
    assert said_bytes({"role": "x" * 99, "content": ["\u00e9", {"text": "ab"}, None, 3]}) == 4


@pytest.mark.parametrize(
    ("urls", "most_tokens"),
    [
        (["data:image/png;base64,eA=="], 500 + 65_536),  # 25,501 tokens of gpt-4o-mini, if plain
        (["data:,x", "data:,y"], 500 + 2 * 65_536),
        (["https://x/y"], 500 + 65_536),
        (["https://x/y", "https://x/z", "data:,x"], 500 + 3 * 65_536),
        ([], 500),
    ],
)
def test_each_image_may_have_many_tokens(urls, most_tokens):
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    body = {"messages": [{"role": "user", "content": images}], "max_tokens": 9}
    most = most_of(APIS[PATHS[0]].limits, body, 1_000)
    assert estimate(most, 0) == Usage(most_tokens, 9, 0, estimated=True)
    assert estimate(most, 0, Usage(7, 2), begun=True) == Usage(7, 9, 0, estimated=True)


def test_a_deeply_nested_reply_is_read():
    deep: object = "ab"
    for _ in range(900):
        deep = [deep]
    assert said_bytes(deep) == 2


INFO = LLMInfo("a", 1.0, 1.0, model="vendor/a", reasoning_effort="low", takes_temperature=False,
               max_tokens_key="max_completion_tokens")  # fmt: skip


@pytest.mark.parametrize(
    ("api", "info", "changed"),
    [
        (CHAT, None, {"model": "a"}),
        (CHAT, LLMInfo("a", 1.0, 1.0), {"model": "a"}),
        (CHAT, INFO, {"model": "vendor/a", "reasoning_effort": "low",
                      "max_completion_tokens": 32, "max_tokens": None, "temperature": None}),
        (RESPONSES, INFO, {"model": "vendor/a", "reasoning": {"effort": "low"},
                           "temperature": None}),
        (ANTHROPIC, INFO, {"model": "vendor/a", "output_config": {"effort": "low"},
                           "temperature": None}),
    ],
)  # fmt: skip
def test_the_body_follows_the_price_list(api, info, changed):
    body = body_of(api.path, temperature=0, odd={"kept": [1]})
    before = json.dumps(body)
    expected = {k: v for k, v in (body | changed | {"x": 1}).items() if v is not None}
    assert outgoing(api, body, "a", info, {"x": 1}) == expected
    assert json.dumps(body) == before


def test_the_application_decides_its_reasoning():
    assert outgoing(CHAT, {"reasoning_effort": "high"}, "a", INFO, {})["reasoning_effort"] == "high"
    own = {"reasoning": {"effort": "high"}}
    assert outgoing(RESPONSES, own, "a", INFO, {})["reasoning"] == {"effort": "high"}
    other = {"reasoning": {"summary": "auto"}}  # says nothing of how much
    assert outgoing(RESPONSES, other, "a", INFO, {})["reasoning"] == {
        "effort": "low",
        "summary": "auto",
    }


def test_headers_of_the_account_stay_here(monkeypatch):
    monkeypatch.setenv("UP_KEY", "sk-up")
    own = {"Authorization": "a", "X-Api-Key": "a", "Api-Key": "a", "Cookie": "a", "X-Goog-Api": "a"}
    own |= {"Ocp-Apim-Subscription-Key": "a", "X-Auth-Token": "a", "OpenAI-Project": "a"}
    own |= {"Connection": "close, X-Hop", "X-Hop": "a", "Keep-Alive": "a", "Host": "a"}
    own |= {"X-Forwarded-For": "a", "Sec-Fetch-Site": "a", "Content-Length": "9", "Origin": "a"}
    kept = {
        "anthropic-version": "1",
        "user-agent": "u",
        "http-referer": "r",
        "idempotency-key": "k",
    }
    sent = to_upstream([*own.items(), *kept.items()], ANTHROPIC, "UP_KEY")
    assert dict(sent) == kept | {
        "content-type": "application/json",
        "connection": "close",
        "accept-encoding": "gzip, deflate",
        "authorization": "Bearer sk-up",
        "x-api-key": "sk-up",
    }
    assert len(sent) == len(dict(sent))
    assert query_string("beta=true&api_key=a&key=b&x=&access_token=c") == "beta=true&x="


@pytest.mark.slow
def test_a_ledger_is_safe_in_threads():
    ledger = Ledger()

    def book() -> None:
        for i in range(500):
            ledger.book("a", Usage(2, 1, 1, estimated=i % 2 == 0), 0.25, failed=True)

    threads = [threading.Thread(target=book) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.by_module() == {"a": ModuleBill(4000, 4000, 8000, 4000, 4000, 1000.0, 500.0)}
    assert (ledger.cost_usd, ledger.estimated_usd) == (1000.0, 500.0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_the_bill_of_a_reply_is_that_of_the_upstream(path, stream):
    """Read from the bytes of the fake upstream."""
    with FakeUpstream(lambda _: Say("one two three")) as upstream:
        options = {"stream_options": {"include_usage": True}} if stream else {}
        got = post(upstream.url + path, body_of(path, "medium", stream=stream, **options))
    reading = Reading(APIS[path], MOST, False)
    if stream:
        passed = [reading.event(event) for event in Events().feed(got.body)]
        assert passed.count(False) == (path == PATHS[0])
        assert reading.ended
    else:
        reading.whole(got.body)
    (served,) = upstream.served
    usage = reading.bill()
    assert usage is not None
    assert served == Served("medium", "", *usage[:3])
    assert (usage.estimated, reading.failed) == (False, False)


def test_half_of_a_surrogate_pair_goes_through(endpoint, upstream):
    body = body_of(PATHS[0]) | {"messages": [{"role": "user", "content": "\ud800 \u00e9"}]}
    with endpoint.query(CHOICE) as query:
        assert post(query.base_url + PATHS[0], body).status == 200
    assert upstream.requests[0]["messages"] == body["messages"] != MESSAGES


def test_a_deeply_nested_request_goes_through_or_is_refused(endpoint, upstream):
    for depth in (50, 700, 2000):
        body = b'{"model": "planner", "x": ' + b"[" * depth + b"]" * depth + b"}"
        with endpoint.query(CHOICE) as query:
            got = post(query.base_url + PATHS[0], body)
        assert got.status == (200 if len(upstream.requests) else 400)
        upstream.requests.clear()


def test_an_endpoint_has_the_prices_of_its_host(tmp_path):
    own = PriceList({"mine": LLMInfo("mine", 1.0, 2.0)}, at=date(2026, 11, 1))
    url = "https://api.groq.com/openai/v1"
    found = Endpoint(url, api_key_env="", prices=own).prices
    assert found.usd_per_mtok("openai/gpt-oss-120b") == (0.15, 0.6)
    assert found.usd_per_mtok("mine") == (1.0, 2.0)
    assert _price_list(own, url, tmp_path).facts == found.facts
    began = {"prices_at": "2026-11-01"}  # by a version that did not look at the host
    (tmp_path / "reference").mkdir()
    settings = {"problem": began, "optimizer": {"name": "x"}, "evaluator": "x", "budget_usd": 1}
    (tmp_path / "reference/settings.json").write_text(json.dumps(settings))
    resumed = _price_list(own, url, tmp_path)
    assert resumed.facts == Endpoint(url, api_key_env="", prices=resumed).prices.facts == began


@pytest.mark.parametrize("api", [CHAT, ANTHROPIC])
@pytest.mark.parametrize("host", ["api.anthropic.com", "api.anthropic.com.x.org", "127.0.0.1"])
def test_anthropic_gets_its_key_in_one_header(monkeypatch, api, host):
    monkeypatch.setenv("UP_KEY", "sk-up")
    sent = dict(to_upstream([], api, "UP_KEY", f"https://{host}/v1/messages"))
    assert ("x-api-key" in sent) == (api is ANTHROPIC)
    assert ("authorization" in sent) == (api is CHAT or host != "api.anthropic.com")
    monkeypatch.setenv("UP_KEY", "sk-ant-oat01-of-oauth")
    sent = dict(to_upstream([], api, "UP_KEY", f"https://{host}/v1/messages"))
    assert sent["authorization"] == "Bearer sk-ant-oat01-of-oauth"
    assert "x-api-key" not in sent


def test_the_address_of_a_request_decides_its_headers(monkeypatch):
    monkeypatch.setenv("UP_KEY", "sk-up")
    urls = []

    def seen(*given):
        urls.append(given[-1])
        return to_upstream(*given)

    monkeypatch.setattr("scope_torch.serve.upstream.to_upstream", seen)
    with (
        FakeUpstream() as upstream,
        serving(upstream.url, api_key_env="UP_KEY") as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        assert post(query.base_url + PATHS[2], body_of(PATHS[2])).status == 200
    assert urls == [upstream.url + PATHS[2]]
