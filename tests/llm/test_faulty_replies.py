"""Thousands of faulty replies: each call ends with its own reply or an LLMError, and its bill."""

import gzip
import json
import math
import random
from collections import Counter
from collections.abc import Callable

import pytest
from llm.client_cases import client_of, run
from llm.fake_endpoint import only_loopback  # noqa: F401
from llm.raw_server import CUT, RawServer, chat, response
from llm.store_cases import fixture_of_path  # noqa: F401
from long_runs import only_long

from scope_torch.llm.chat import ChatCall, Completion, LLMError, Message
from scope_torch.llm.estimates import most_of_call
from scope_torch.llm.store import ResponseStore

EXACT, MOST, NOTHING = "exact", "most", "nothing"
USAGE = {"prompt_tokens": 9, "completion_tokens": 4}
EXACT_USD = (9 * 1.0 + 4 * 4.0) * 1e-6
HUGE = 10**400
ODD_VALUES = (None, True, -1, 0.5, "many", [], {}, HUGE, 2**53 + 1, 2**63, -HUGE, 10**15)

Fault = Callable[[str, random.Random], tuple[bytes | list[bytes], str]]


def odd_usage(text: str, draw: random.Random) -> tuple[bytes, str]:
    usage = USAGE | {draw.choice(list(USAGE)): draw.choice(ODD_VALUES)}
    return response(chat(text, usage)), MOST


def no_tokens(text: str, draw: random.Random) -> tuple[bytes, str]:
    usage = draw.choice([dict.fromkeys(USAGE, 0), *(USAGE | {name: 0} for name in USAGE)])
    return response(chat(text, usage)), MOST


def odd_total(text: str, draw: random.Random) -> tuple[bytes, str]:
    total = draw.choice([HUGE, 2**63, 10**15])
    return response(chat(text, USAGE | {"total_tokens": total})), MOST


def odd_details(text: str, draw: random.Random) -> tuple[bytes, str]:
    odd = draw.choice([value for value in ODD_VALUES if value != 0.5])
    usage = USAGE | {"prompt_tokens_details": {"cached_tokens": odd}, "total_tokens": -1}
    return response(chat(text, usage | {"completion_tokens_details": odd})), EXACT


def odd_reason(text: str, draw: random.Random) -> tuple[bytes, str]:
    reason = draw.choice([None, 3, [], {}, "", "\ud800\0", "x" * 100_000])
    return response(chat(text, USAGE, reason)), EXACT


def surplus(text: str, draw: random.Random) -> tuple[list[bytes], str]:
    own, other = response(chat(text, USAGE)), response(chat("not asked for", USAGE))
    return draw.choice([[own + own], [own, other], [own + b"\r\n\0", other]]), EXACT


def packed(text: str, draw: random.Random) -> tuple[bytes, str]:
    body = gzip.compress(chat(text, USAGE))
    damage = draw.choice([None, 4, len(body) // 2])
    if damage is None:
        return response(body, "Content-Encoding: gzip"), EXACT
    return response(body[:damage] + b"\0" + body[damage:], "Content-Encoding: gzip"), "either"


def broken_json(text: str, draw: random.Random) -> tuple[bytes, str]:
    body = chat(text, USAGE)
    bad = [body[: draw.randrange(1, len(body))], b"", b"null", b"3", b"[" * 10**5, b"\xff" + body]
    return response(draw.choice(bad)), MOST


def no_choices(text: str, draw: random.Random) -> tuple[bytes, str]:
    odd = draw.choice([None, [], {}, [None], ["x"], [{}], [{"message": {"content": 3}}]])
    return response(json.dumps({"choices": odd, "usage": USAGE}).encode()), EXACT


def cut(text: str, draw: random.Random) -> tuple[list[bytes], str]:
    whole = response(chat(text, USAGE))
    return [whole[: draw.randrange(1, len(whole))], CUT], MOST


def bad_framing(text: str, draw: random.Random) -> tuple[list[bytes], str]:
    body = chat(text, USAGE)
    start = b"HTTP/1.1 200 X\r\n"
    heads = (
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"Content-Length: x\r\n\r\n",
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: 9\r\nContent-Length: 10\r\n\r\n",
        b"no header\r\n\r\n",
        b"X: \0\r\n\r\n",
    )
    return [draw.choice([*(start + head for head in heads), b"SSH-2.0-x\r\n"]) + body, CUT], MOST


def too_large(text: str, draw: random.Random) -> tuple[list[bytes], str]:
    head = b"HTTP/1.1 200 X\r\nContent-Length: %d\r\n\r\n" % (9 << 20)
    return [head, *[b" " * (1 << 20)] * 9, CUT], MOST


def status(text: str, draw: random.Random) -> tuple[bytes, str]:
    message = json.dumps({"error": {"message": text, "code": draw.choice([None, 3, "x", []])}})
    body = draw.choice([message.encode(), b"", b"\xff", b"[]", b'{"error": 3}'])
    return response(body, status=draw.choice([400, 408, 409, 413, 422, 500, 501])), NOTHING


def fine(text: str, draw: random.Random) -> tuple[bytes, str]:
    return response(chat(text, USAGE)), EXACT


FAULTS = (odd_usage, no_tokens, odd_total, odd_details, odd_reason, surplus, packed, broken_json,
          no_choices, cut, bad_framing, status, fine)  # fmt: skip


class Endpoint:
    """Answers each attempt with a fault drawn by seed; keeps what each question should cost."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.bills: dict[str, list[str]] = {}
        self.kinds: Counter[str] = Counter()

    def __call__(self, request: dict, number: int) -> list[bytes]:
        question = request["messages"][-1]["content"]
        attempts = self.bills.setdefault(question, [])
        draw = random.Random(f"{self.seed} {question} {len(attempts)}")
        fault = too_large if draw.random() < 0.005 else draw.choice(FAULTS)
        answer, bill = fault(question.replace("question", "answer"), draw)
        attempts.append(bill)
        self.kinds[fault.__name__] += 1
        return answer if isinstance(answer, list) else [answer]


def call_of(number: int) -> ChatCall:
    return ChatCall("a", (Message("user", f"question {number}."),), 32)


def bounds_usd(bills: list[str], most_usd: float) -> tuple[float, float]:
    """The least and the largest amount that these attempts can have been billed."""
    least = {EXACT: EXACT_USD, MOST: most_usd, NOTHING: 0.0, "either": EXACT_USD}
    largest = least | {"either": most_usd}
    return sum(least[bill] for bill in bills), sum(largest[bill] for bill in bills)


@pytest.mark.parametrize(
    "number", [150, pytest.param(2000, marks=[pytest.mark.slow, only_long])], ids=["few", "all"]
)
def test_faulty_replies_change_nothing_silently(path, number):
    calls = [call_of(i) for i in range(number)]
    endpoint = Endpoint(seed=number)
    with RawServer(endpoint) as server:
        settings = {"retries": 3, "max_failures_in_a_row": 10**6, "concurrency": 8}
        client = client_of(server, timeout_s=30.0, **settings)
        outcomes = run(ResponseStore(path, client), *calls)
        again = run(ResponseStore(path, client), *[
            call for call, outcome in zip(calls, outcomes, strict=True)
            if isinstance(outcome, Completion)
        ])  # fmt: skip
    assert again == [outcome for outcome in outcomes if isinstance(outcome, Completion)]
    assert sum(endpoint.kinds.values()) - endpoint.kinds["fine"] >= number
    for i, (call, outcome) in enumerate(zip(calls, outcomes, strict=True)):
        assert isinstance(outcome, Completion | LLMError), (i, outcome)
        if isinstance(outcome, Completion):
            assert outcome.text == f"answer {i}."
        most = most_of_call(call)
        most_usd = (most.prompt_tokens * 1.0 + most.completion_tokens * 4.0) * 1e-6
        bills = endpoint.bills[call.messages[0].content]
        least_usd, largest_usd = bounds_usd(bills, most_usd)
        assert least_usd - 1e-12 <= outcome.cost_usd <= largest_usd + 1e-12, (i, bills)
    total_usd = math.fsum(outcome.cost_usd for outcome in outcomes)
    assert client.billed_usd == pytest.approx(total_usd)
    store = ResponseStore(path, client)
    assert store.total_billed_usd() == pytest.approx(total_usd)
    run(store)
