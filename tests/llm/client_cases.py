"""A call, its prices, and ways to make it; for the tests of the clients."""

import asyncio
import traceback

import pytest
from llm.fake_endpoint import (
    FakeEndpoint,
)

from scope_torch.llm.chat import ChatCall, Completion, LLMError, Message
from scope_torch.llm.client import OpenAIClient
from scope_torch.llm.prices import LLMInfo

KEY = "sk-canary-9f31c07aa2"
LLMS = {
    llm.name: llm
    for llm in (
        LLMInfo("a", 1.0, 4.0),
        LLMInfo("thinker", 2.0, 8.0, cached_input_usd_per_mtok=0.5, model="org/t",
                max_tokens_key="max_completion_tokens", takes_temperature=False,
                reasoning_effort="low"),
    )
}  # fmt: skip
CALL = ChatCall("a", (Message("system", "be brief"), Message("user", "one two three")), 32, 0.5)
# the rule, by hand: 8 + 13 characters and the roles' 6 + 4, two to a token; 8 for a message
MOST_PROMPT = (8 + 6) // 2 + 8 + (13 + 4 + 1) // 2 + 8
MOST_USD = (MOST_PROMPT * 1.0 + 32 * 4.0) * 1e-6
OK_USD = (5 * 1.0 + 2 * 4.0) * 1e-6  # 5 words asked, 2 said
USAGE = {"prompt_tokens": 5, "completion_tokens": 2}


def client_of(endpoint, **settings) -> OpenAIClient:
    values = {"api_key_env": None, "backoff_s": 0.0, "retries": 2}
    return OpenAIClient(LLMS, endpoint.url, **{**values, **settings})


def run(client, *calls: ChatCall) -> list:
    """Makes calls at the same time; returns replies or errors."""

    async def main() -> list:
        try:
            return await asyncio.gather(*map(client.complete, calls), return_exceptions=True)
        finally:
            await client.close()

    return asyncio.run(main())


def ask(answer, call: ChatCall = CALL, **settings):
    """The outcome of one call, the client, and the endpoint."""
    with FakeEndpoint(answer) as endpoint:
        client = client_of(endpoint, **settings)
        (outcome,) = run(client, call)
    return outcome, client, endpoint


def replied(answer, call: ChatCall = CALL, **settings) -> Completion:
    outcome, client, _ = ask(answer, call, **settings)
    assert isinstance(outcome, Completion), outcome
    assert client.billed_usd == pytest.approx(outcome.cost_usd)
    return outcome


def failed(answer, call: ChatCall = CALL, **settings) -> tuple[LLMError, int]:
    """The error, and the number of requests before it."""
    outcome, client, endpoint = ask(answer, call, **settings)
    assert isinstance(outcome, LLMError), outcome
    assert "\n" not in str(outcome)
    assert client.billed_usd == pytest.approx(outcome.cost_usd)
    assert outcome.latency_s > 0
    return outcome, len(endpoint.requests)


def all_said(error: BaseException) -> str:
    """A traceback with everything that an exception shows, its causes included."""
    lines = traceback.format_exception(error)
    while error is not None:
        lines += [str(error), repr(error), repr(vars(error))]
        error = error.__cause__ or error.__context__
    return "".join(lines)
