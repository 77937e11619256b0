"""OpenAIClient before its first call, and the secrecy of the key."""

import logging
import sys
import time
from urllib.parse import urlsplit

import openai
import pytest
from llm.client_cases import (
    CALL,
    KEY,
    LLMS,
    all_said,
    ask,
    client_of,
    run,
)
from llm.fake_endpoint import (
    Cut,
    FakeEndpoint,
    Status,
    only_loopback,  # noqa: F401
)

from scope_torch.errors import InputError
from scope_torch.llm import client as module_of_client
from scope_torch.llm.chat import ChatCall, Message
from scope_torch.llm.client import OpenAIClient, check_url
from scope_torch.llm.estimates import Most, estimate, most_of_call
from scope_torch.llm.keys import key_of, without_key
from scope_torch.llm.litellm_client import LiteLLMClient
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.usage import Usage


@pytest.mark.parametrize("is_openai", [True, False])
@pytest.mark.parametrize("name", ["Authorization", "authorization"])
def test_headers_of_the_environment_go_to_openai_alone(is_openai, name, monkeypatch):
    """The library sends what these variables say, to any host, and it beats the key."""
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"{name}: Bearer sk-of-a-gateway\nX-Gateway: gw-1")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    monkeypatch.setenv("TEST_LLM_CREDENTIAL", KEY)
    with FakeEndpoint(["ok"]) as endpoint:
        if is_openai:
            monkeypatch.setattr(module_of_client, "_OF_OPENAI", urlsplit(endpoint.url)[:2])
        run(client_of(endpoint, api_key_env="TEST_LLM_CREDENTIAL"), CALL)
    sent = {k.lower(): v for k, v in endpoint.headers[0].items()}
    assert sent["authorization"] == f"Bearer {KEY}"
    assert "sk-of-a-gateway" not in str(sent)
    own = {"openai-organization": "org-1", "openai-project": "proj-1"}
    if int(openai.__version__.partition(".")[0]) > 2:  # before, it reads no headers
        own["x-gateway"] = "gw-1"
    found = {k: v for k, v in sent.items() if k in {"x-gateway", *own}}
    assert found == (own if is_openai else {})


@pytest.mark.parametrize(
    "answer",
    [
        ["ok"],
        lambda _: Status(401, message=f"Incorrect API key provided: {KEY}"),
        lambda _: Status(400, message=f"bad header {KEY}"),
        lambda _: Status(500, message="x" * 190 + KEY),
        lambda _: Status(404, {"error": KEY}),
        lambda _: Status(200, {"error": {"message": f"key {KEY}", "code": 400}}),
        lambda _: Cut(KEY),
    ],
)
def test_the_key_is_in_no_message(answer, monkeypatch, caplog):
    monkeypatch.setenv("TEST_LLM_CREDENTIAL", KEY)
    with caplog.at_level(logging.DEBUG), FakeEndpoint(answer, key=KEY) as endpoint:
        client = client_of(endpoint, api_key_env="TEST_LLM_CREDENTIAL", retries=1)
        (outcome,) = run(client, CALL)
    assert endpoint.headers[0]["authorization"] == f"Bearer {KEY}"
    said = all_said(outcome) if isinstance(outcome, BaseException) else repr(outcome)
    for text in (said, repr(client), str(vars(client)), caplog.text):
        assert KEY not in text
        assert KEY[:14] not in text


def test_a_server_without_key_is_not_sent_another_ones(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    _, _, endpoint = ask(["ok"])
    assert KEY not in str(endpoint.headers)


def test_a_key_that_is_missing_or_odd(monkeypatch):
    client = OpenAIClient(LLMS, "http://127.0.0.1:1/v1", "TEST_LLM_KEY")
    monkeypatch.delenv("TEST_LLM_KEY", raising=False)
    with pytest.raises(InputError, match=r"\$TEST_LLM_KEY is not set; it must hold the key for h"):
        client.check(["a"])
    assert isinstance(run(client, CALL)[0], InputError)
    for odd in ("sk-\n" + KEY, "schlüssel-" + KEY, "two " + KEY):
        monkeypatch.setenv("TEST_LLM_KEY", odd)
        with pytest.raises(InputError, match="has characters that no key has") as caught:
            client.check(["a"])
        assert KEY not in all_said(caught.value)
    monkeypatch.setenv("TEST_LLM_KEY", f" {KEY}\n")
    client.check(["a"])
    assert key_of("TEST_LLM_KEY", "x") == KEY
    assert key_of(None, "x") is key_of("", "x") is None


def test_llms_without_a_price():
    client = OpenAIClient(LLMS, "http://127.0.0.1:1/v1", None)
    with pytest.raises(InputError, match=r"no price is known for LLM 'b'; there are \['a', 'th"):
        client.check(["a", "b"])
    assert isinstance(run(client, ChatCall("b", CALL.messages, 3))[0], InputError)
    with pytest.raises(InputError, match="input_usd_per_mtok"):
        OpenAIClient({"a": LLMInfo("a", float("nan"), 1.0)}, "http://127.0.0.1:1/v1", None)


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("timeout_s", 0, "must be a number above 0"),
        ("timeout_s", float("inf"), "must be a number above 0"),
        ("retries", -1, "must be a whole number of at least 0"),
        ("retries", 1.5, "must be a whole number of at least 0"),
        ("backoff_s", -0.1, "must be a number of at least 0"),
        ("backoff_s", "1", "must be a number of at least 0"),
        ("concurrency", 0, "must be a whole number of at least 1"),
        ("concurrency", True, "must be a whole number of at least 1"),
        ("requests_per_minute", 0, "must be a whole number of at least 1"),
        ("tokens_per_minute", -5, "must be a whole number of at least 1"),
        ("max_failures_in_a_row", 0, "must be a whole number of at least 1"),
    ],
)
def test_settings_that_are_refused(name, value, named):
    with pytest.raises(InputError, match=f"{name}={value!r} {named}"):
        OpenAIClient(LLMS, "http://127.0.0.1:1/v1", None, **{name: value})


@pytest.mark.parametrize(
    "url",
    [None, "", "localhost:8000", "ftp://x/v1", "http://", "http://[x", "http://x/v1?a=1",
     "http://x/v1#a", "http://x/ v1", "http://x:99999/v1", "http://exämple/v1"],
)  # fmt: skip
def test_urls_that_are_refused(url):
    with pytest.raises(InputError, match="base_url must be a plain http"):
        OpenAIClient(LLMS, url, None)


def test_urls():
    assert check_url("https://x.org/v1/") == "https://x.org/v1"
    with pytest.raises(InputError, match="base_url has a user in it") as caught:
        check_url(f"https://me:{KEY}@x.org/v1")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "package", "extra"),
    [(OpenAIClient, "openai", "llm"), (LiteLLMClient, "litellm", "litellm")],
)
def test_a_missing_package_is_named(make, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    client = make(LLMS, "http://127.0.0.1:1/v1", None)
    with pytest.raises(InputError) as caught:
        client.check(["a"])
    assert f'pip install "scope-torch[{extra}]"' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_upper_estimate_of_a_prompt():
    """2 bytes of UTF-8 a token, rounded up, roles included; 8 tokens for every message."""
    messages = (Message("user", "日本"), Message("user", "\ud800"))
    most = most_of_call(ChatCall("a", messages, 9))
    assert most == Most(5 + 8 + 3 + 8, 9)
    assert estimate(most, 0) == Usage(5 + 8 + 3 + 8, 9, estimated=True)
    assert most_of_call(ChatCall("a", (), 9)) == Most(0, 9)


@pytest.mark.parametrize(
    ("extra", "limit", "more_prompt"),
    [
        ({"n": 3}, 27, 0),
        ({"max_completion_tokens": 20}, 20, 0),  # the endpoint may obey either
        ({"max_tokens": 4, "n": 2}, 18, 0),
        ({"web_search_options": {}}, 9, 65_536),
        ({"tools": [{"type": "web_search"}]}, 9, 65_536),
        ({"tools": [{"type": "function", "function": {}}]}, 9, 0),
    ],
)
def test_the_upper_estimate_follows_the_extra_body(extra, limit, more_prompt):
    most = most_of_call(ChatCall("a", (Message("user", "hi"),), 9), extra)
    assert most[:2] == (3 + 8 + more_prompt, limit)
    assert most_of_call(ChatCall("a:online", (), 9), extra).refers  # as at the endpoint


@pytest.mark.slow
def test_a_long_run_of_backslashes_is_searched_in_linear_time(monkeypatch):
    """Eight times the text took 64 times as long, in a regular expression that nothing stops."""
    monkeypatch.setenv("TEST_LLM_CREDENTIAL", KEY)

    def took(length: int) -> float:
        text, times = "\\" * length, []
        for _ in range(3):
            began = time.thread_time()
            assert without_key(text, "TEST_LLM_CREDENTIAL") == text
            times.append(time.thread_time() - began)
        return min(times)

    took(1)  # the pattern is made
    assert took(16_000) < 24 * took(2_000)
    assert "***" in without_key("\\" * 200 + KEY, "TEST_LLM_CREDENTIAL")
