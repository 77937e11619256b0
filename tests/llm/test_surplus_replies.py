"""A reply belongs to its own request, whatever else a defective server sends on a connection."""

import pytest
from llm.client_cases import client_of, run
from llm.fake_endpoint import only_loopback  # noqa: F401
from llm.raw_server import RawServer, chat, response

from scope_torch.llm.chat import ChatCall, Message

CALLS = [ChatCall("a", (Message("user", f"question {i}"),), 32) for i in range(12)]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


def answer_to(request: dict) -> bytes:
    question = request["messages"][-1]["content"]
    return response(chat(question.replace("question", "answer"), USAGE))


class Defective:
    """Sends replies that nobody asked for: after a reply, or before the next one."""

    def __init__(self, when: str) -> None:
        self.when = when
        self.before: dict[int, bytes] = {}

    def __call__(self, request: dict, number: int) -> list[bytes]:
        own = answer_to(request)
        if self.when == "in the same packet":
            return [own + own]
        if self.when == "in the next packet":
            return [own, own]
        surplus = response(chat("nobody asked", USAGE))  # when the next request has come
        return [surplus, own] if number else [own]


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize(
    "when", ["in the same packet", "in the next packet", "after the next request"]
)
def test_a_surplus_reply_answers_no_other_request(when, concurrency):
    with RawServer(Defective(when)) as server:
        client = client_of(server, concurrency=concurrency)
        outcomes = run(client, *CALLS)
    assert [outcome.text for outcome in outcomes] == [f"answer {i}" for i in range(12)]
    assert len(server.requests) == 12
    assert client.billed_usd == pytest.approx(12 * (3 * 1.0 + 2 * 4.0) * 1e-6)
