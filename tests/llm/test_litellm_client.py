"""LiteLLMClient with a stand-in for LiteLLM, which needs an older openai than the rest."""

import os
import sys
import types

import pytest
from llm.client_cases import (
    CALL,
    KEY,
    LLMS,
    MOST_USD,
    OK_USD,
    USAGE,
    run,
)

from scope_torch.llm.chat import LLMError
from scope_torch.llm.litellm_client import LiteLLMClient


class FakeLiteLLM(types.ModuleType):
    """The part of LiteLLM that the client uses."""

    class Timeout(Exception):
        status_code = 408

    class InternalServerError(Exception):
        status_code = 500
        message = "Connection error."

    class BadRequestError(Exception):
        status_code = 400
        message = "litellm.BadRequestError: unknown provider"

    class RateLimitError(Exception):
        status_code = 429
        message = ""
        response = types.SimpleNamespace(headers={"retry-after": "0"})

    def __init__(self, *outcomes: object) -> None:
        super().__init__("litellm")
        self.outcomes, self.requests = list(outcomes), []

    async def acompletion(self, **request: object) -> object:
        self.requests.append(request)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return types.SimpleNamespace(model_dump=lambda: outcome)


def test_litellm_is_another_way_of_sending(monkeypatch):
    reply = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": USAGE}
    litellm = FakeLiteLLM(FakeLiteLLM.RateLimitError(), FakeLiteLLM.Timeout(), reply)
    monkeypatch.setitem(sys.modules, "litellm", litellm)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delenv("LITELLM_LOCAL_MODEL_COST_MAP", raising=False)
    monkeypatch.setenv("TEST_LLM_KEY", KEY)
    client = LiteLLMClient(LLMS, "http://x/v1", "TEST_LLM_KEY", backoff_s=0.0, timeout_s=5)
    (completion,) = run(client, CALL)
    assert completion.text == "hi"
    assert completion.failed_usd == pytest.approx(MOST_USD)  # the time-out, not the refusal
    assert completion.cost_usd == pytest.approx(OK_USD + MOST_USD)
    messages = [{"role": m.role, "content": m.content} for m in CALL.messages]
    assert litellm.requests[2] == {
        "model": "a", "messages": messages, "max_tokens": 32, "temperature": 0.5, "timeout": 5,
        "num_retries": 0, "max_retries": 0, "api_base": "http://x/v1", "api_key": KEY,
    }  # fmt: skip
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
    litellm.outcomes = [FakeLiteLLM.BadRequestError()]
    client = LiteLLMClient(LLMS)
    (error,) = run(client, CALL)
    assert isinstance(error, LLMError)
    assert "'a': LiteLLM answered 400 (litellm.BadRequestError: unknown provider)" in str(error)
    assert "api_key" not in litellm.requests[3]
    litellm.outcomes = [FakeLiteLLM.InternalServerError()]  # LiteLLM's name for a lost connection
    (error,) = run(LiteLLMClient(LLMS, retries=0), CALL)
    assert isinstance(error, LLMError)
    assert error.cost_usd == pytest.approx(MOST_USD)
    assert "LiteLLM gave no answer (Connection error.)" in str(error)
    litellm.outcomes = [ZeroDivisionError()]
    assert isinstance(
        run(client, CALL)[0], ZeroDivisionError
    )  # an error of the program is not hidden


def test_every_call_has_a_connection_of_its_own(monkeypatch):
    """A stand-in for aiohttp; with the real one, LiteLLM 1.106 opens a connection for each call."""
    closed = []

    class Session:
        def __init__(self, connector: object) -> None:
            self.connector = connector

        async def close(self) -> None:
            closed.append(self)

    aiohttp = types.SimpleNamespace(ClientSession=Session, TCPConnector=lambda **kwargs: kwargs)
    reply = {"choices": [{"message": {"content": "hi"}}], "usage": USAGE}
    litellm = FakeLiteLLM(reply)
    monkeypatch.setitem(sys.modules, "litellm", litellm)
    monkeypatch.setitem(sys.modules, "aiohttp", aiohttp)
    assert run(LiteLLMClient(LLMS), CALL)[0].text == "hi"
    session = litellm.requests[0]["shared_session"]
    assert session.connector == {"force_close": True}
    assert closed == [session]
