"""Streams of chat completions: the wish for their usage, errors in them, and what is passed on."""

import json

import pytest
from serve.path_server import Asked, Reply, path_server
from serve.serve_cases import CHOICE, PATHS, body_of, post, serving

USAGE = {"prompt_tokens": 9, "completion_tokens": 4}
USD = (9 * 1.0 + 4 * 4.0) * 1e-6  # at the prices of `medium`
WORDS = {"choices": [{"index": 0, "delta": {"content": "it is"}, "finish_reason": "stop"}]}
TOLD = {"choices": [], "usage": USAGE}


def stream(*events: dict) -> str:
    return "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n"


def test_an_error_that_repeats_the_request_refuses_no_stream_options():
    """FastAPI's errors have the whole request in them."""

    def answer(asked: Asked) -> Reply:
        if not asked.body["messages"]:
            return Reply({"detail": [{"type": "too_short", "input": asked.body}]}, 422)
        return Reply(stream(WORDS, *[TOLD] * ("stream_options" in asked.body)))

    body = body_of(PATHS[0], stream=True)
    with (
        path_server(answer) as (url, asked),
        serving(url) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        assert post(query.base_url + PATHS[0], body | {"messages": []}).status == 422
        assert post(query.base_url + PATHS[0], body).status == 200
    assert ["stream_options" in one.body for one in asked] == [True, False, True]
    bill = query.ledger.by_module()["planner"]
    assert (bill.calls, bill.failed, bill.estimated_usd) == (2, 1, 0.0)


OVERLOADED = {"type": "overloaded_error", "message": "Overloaded"}
ERRORS = [
    (PATHS[0], {"error": {"code": 502, "message": "Provider returned error"}}),
    (PATHS[0], {"error": {"code": 502}, "choices": [{"delta": {"content": ""}}]}),  # OpenRouter's
    (PATHS[0], {"choices": [{"delta": {"content": ""}, "error": {"code": 502}}]}),
    (PATHS[1], {"type": "error", "code": "server_error", "message": "x"}),
    (PATHS[1], {"type": "response.failed", "response": {"error": {"code": "server_error"}}}),
    (PATHS[2], {"type": "error", "error": OVERLOADED}),
]
SAID = {
    PATHS[0]: WORDS,
    PATHS[1]: {"type": "response.output_text.delta", "delta": "it is"},
    PATHS[2]: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "it is"}},
}


@pytest.mark.parametrize(("path", "error"), ERRORS)
@pytest.mark.parametrize("says", [False, True])
def test_a_stream_that_is_only_an_error_costs_nothing(path, error, says):
    events = [SAID[path], error] if says else [error]
    with (
        path_server(lambda _: Reply(stream(*events))) as (url, _),
        serving(url) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        assert post(query.base_url + path, body_of(path, stream=True)).status == 200
    bill = query.ledger.by_module()["planner"]
    assert (bill.calls, bill.failed, bill.estimated_usd > 0) == (1, 1, says)
    assert bill.cost_usd == bill.estimated_usd


QUOTA = {"code": "insufficient_quota", "message": "You exceeded your current quota."}
OF_ACCOUNT = [
    (PATHS[0], stream({"error": QUOTA}), "no credit is left"),
    (PATHS[0], stream({"error": {"code": 402, "message": "pay"}}), "no credit is left"),
    (PATHS[0], {"error": QUOTA}, "no credit is left"),
    (PATHS[1], stream({"type": "error", "error": QUOTA}), "no credit is left"),
    (PATHS[1], stream({"type": "error", **QUOTA}), "no credit is left"),
    (
        PATHS[1],
        stream({"type": "response.failed", "response": {"error": QUOTA}}),
        "no credit is left",
    ),
    (PATHS[1], {"status": "failed", "error": QUOTA, "output": []}, "no credit is left"),
    (
        PATHS[2],
        stream({"type": "error", "error": {"type": "authentication_error"}}),
        "accept the key",
    ),
]


@pytest.mark.parametrize(("path", "body", "words"), OF_ACCOUNT)
def test_a_used_up_account_is_told_by_an_error_with_status_200(path, body, words):
    def answer(_: Asked) -> Reply:
        return Reply(body if len(asked) < 2 else stream(SAID[path]))

    with (
        path_server(answer) as (url, asked),
        serving(url) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        post(query.base_url + path, body_of(path, stream=True))
        assert words in (query.account_fault() or "")
        post(query.base_url + path, body_of(path, stream=True))
    assert query.account_fault() is None


@pytest.mark.parametrize(("path", "error"), ERRORS)
@pytest.mark.parametrize("says", [False, True])
def test_after_an_error_in_a_stream_the_next_configuration_answers(path, error, says):
    """Four requests all went to the LLM that fails."""

    def answer(asked: Asked) -> Reply:
        events = [*[SAID[path]] * says, error] if asked.body["model"] == "medium" else [SAID[path]]
        return Reply(stream(*events))

    chain = {"chosen": {"planner": "medium"}, "fallbacks": [{"planner": "large"}]}
    with path_server(answer) as (url, asked), serving(url, **chain) as endpoint:
        for _ in range(3):
            assert post(f"{endpoint.url}/v1{path}", body_of(path, stream=True)).status == 200
    assert [one.body["model"] for one in asked] == ["medium", "large", "large"]


@pytest.mark.parametrize("error", [{"code": 400}, {"type": "invalid_request_error"}, "no"])
def test_an_error_about_the_request_moves_nothing(error):
    chain = {"chosen": {"planner": "medium"}, "fallbacks": [{"planner": "large"}]}
    reply = Reply(stream({"error": error}))
    with path_server(lambda _: reply) as (url, asked), serving(url, **chain) as endpoint:
        for _ in range(3):
            post(f"{endpoint.url}/v1{PATHS[0]}", body_of(PATHS[0], stream=True))
    assert [one.body["model"] for one in asked] == ["medium"] * 3


def test_an_error_by_its_type_with_status_200_is_answered_by_the_next_configuration():
    def answer(asked: Asked) -> Reply:
        is_down = asked.body["model"] == "medium"
        return Reply({"type": "error", "error": OVERLOADED} if is_down else {"content": ["it is"]})

    chain = {"chosen": {"planner": "medium"}, "fallbacks": [{"planner": "large"}]}
    with path_server(answer) as (url, asked), serving(url, **chain) as endpoint:
        got = post(f"{endpoint.url}/v1{PATHS[2]}", body_of(PATHS[2]))
    assert b"it is" in got.body
    assert [one.body["model"] for one in asked] == ["medium", "large"]


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("more", [{}, {"citations": ["https://x.org"]}, {"error": {"code": 502}}])
def test_only_the_usage_that_we_asked_for_is_kept_back(asks, more):
    last = {**TOLD, "id": "1", "service_tier": "default", "prompt_filter_results": []}
    reply = Reply(stream(WORDS, {**last, **more}))
    with (
        path_server(lambda _: reply) as (url, _),
        serving(url, asks_for_usage=asks) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        got = post(query.base_url + PATHS[0], body_of(PATHS[0], stream=True))
    assert (got.body == reply.body.encode()) == (not asks or bool(more))
    assert b"it is" in got.body
    assert query.ledger.by_module()["planner"].cost_usd == pytest.approx(USD)


def test_a_server_that_refuses_our_wish_is_passed_on_whole():
    def answer(asked: Asked) -> Reply:
        if "stream_options" in asked.body:
            return Reply({"error": {"message": "unknown: stream_options"}}, 400)
        return Reply(stream(WORDS, TOLD))

    with (
        path_server(answer) as (url, _),
        serving(url) as endpoint,
        endpoint.query(CHOICE) as query,
    ):
        for _ in range(2):
            got = post(query.base_url + PATHS[0], body_of(PATHS[0], stream=True))
            assert got.body.decode() == stream(WORDS, TOLD)
