"""Generated usages, fed to the client and to the endpoint: each is booked equally by both."""

import asyncio
import json
import random
from collections import Counter

import httpx
import pytest
from long_runs import IS_LONG

from scope_torch.llm.chat import ChatCall, Message
from scope_torch.llm.estimates import booked, most_of_call
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.retrying import Connection, RetryingClient
from scope_torch.llm.usage import usage_of
from scope_torch.serve.apis import CHAT
from scope_torch.serve.endpoint import Endpoint
from scope_torch.serve.ledger import Ledger, ModuleBill
from scope_torch.serve.reading import Reading

MINI = LLMInfo(
    "mini", 0.3, 2.5, cached_input_usd_per_mtok=0.03, cache_write_usd_per_mtok=0.375,
    cache_write_1h_usd_per_mtok=0.6, audio_input_usd_per_mtok=1.0, audio_output_usd_per_mtok=20.0,
    search_usd=0.01,
)  # fmt: skip
CALL = ChatCall("mini", (Message("user", "how are you today? " * 40),), 500)
GARBAGE = (
    None, True, False, -1, -7.0, 0.5, "", "many", "-3", "9" * 40, "1e3", "\ud800", [], [3], {},
    {"tokens": 3}, 10**8 + 1, 2**53, 2**63, 10**400, 1e308, 10**15, 1e15,
)  # fmt: skip
FORMS = (int, int, int, float, str, lambda n: f"{n}.0")


def truth(draw: random.Random) -> dict[str, int]:
    """Counts as they are."""
    prompt = draw.choice([1, 3, 90, 700, 2_000, 9_000, 50_000])
    said = draw.choice([1, 2, 40, 500, 3_000, 60_000])
    cached = draw.randint(0, prompt) if draw.random() < 0.5 else 0
    return {
        "prompt": prompt,
        "said": said,
        "cached": cached,
        "written": draw.randint(0, prompt - cached) if draw.random() < 0.3 else 0,
        "reasoning": draw.randint(0, said) if draw.random() < 0.4 else 0,
        "searches": draw.choice([0, 0, 0, 1, 3]),
    }


def openai(t: dict, names: tuple[str, str] = ("prompt", "completion")) -> dict:
    of, to = names
    return {
        f"{of}_tokens": t["prompt"],
        f"{to}_tokens": t["said"],
        "total_tokens": t["prompt"] + t["said"],
        f"{of}_tokens_details": {
            "cached_tokens": t["cached"],
            "cache_write_tokens": t["written"],
            "audio_tokens": 0,
        },
        f"{to}_tokens_details": {"reasoning_tokens": t["reasoning"]},
        "server_tool_use": {"web_search_requests": t["searches"]},
    }


def responses(t: dict) -> dict:
    return openai(t, ("input", "output"))


def anthropic(t: dict) -> dict:
    return {
        "input_tokens": t["prompt"] - t["cached"] - t["written"],
        "cache_read_input_tokens": t["cached"],
        "cache_creation_input_tokens": t["written"],
        "cache_creation": {"ephemeral_5m_input_tokens": t["written"]},
        "output_tokens": t["said"],
        "server_tool_use": {"web_search_requests": t["searches"]},
    }


def litellm(t: dict) -> dict:
    inner = {"cache_read_input_tokens": t["cached"], "cache_creation_input_tokens": t["written"]}
    return openai(t) | inner


def hit_and_miss(t: dict) -> dict:
    t["written"] = 0
    plain = openai(t)
    del plain["prompt_tokens_details"]
    return plain | {
        "prompt_cache_hit_tokens": t["cached"],
        "prompt_cache_miss_tokens": t["prompt"] - t["cached"],
    }


def hidden(t: dict) -> dict:
    """Reasoning in the total only."""
    t["reasoning"] = min(t["reasoning"], t["said"] - 1)
    return openai(t) | {"completion_tokens": t["said"] - t["reasoning"]}


def no_completion(t: dict) -> dict:
    told = openai(t)
    del told["completion_tokens"]
    return told


def beside(t: dict) -> dict:
    """Cached tokens beside the prompt; the total has them.

    As many reasoning tokens could be what the total has more, so there are none then.
    """
    t["written"] = 0
    t["cached"] = min(t["cached"], t["prompt"] - 1)
    t["reasoning"] *= t["reasoning"] != t["cached"]
    return openai(t) | {"prompt_tokens": t["prompt"] - t["cached"]}


def camel(t: dict) -> dict:
    def name(key: str) -> str:
        first, *rest = key.split("_")
        return first + "".join(part.title() for part in rest)

    def turned(value: object) -> object:
        is_dict = isinstance(value, dict)
        return {name(k): turned(v) for k, v in value.items()} if is_dict else value

    return turned(openai(t))


DIALECTS = (openai, responses, anthropic, litellm, hit_and_miss, hidden, no_completion, beside,
            camel)  # fmt: skip


def places(draw: random.Random, report: object) -> dict:
    """The reply around a report."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "it is fine"}}
    body = {"object": "chat.completion", "choices": [choice], "usage": report}
    where = draw.random()
    if where < 0.1:
        body |= {"usage": None}
        choice["usage"] = report
    elif where < 0.2:
        zeros = {"prompt_tokens": 0, "completion_tokens": 0}
        body |= {"usage": draw.choice([None, zeros]), "x_vendor": {"usage": report}}
    return body


def formed(draw: random.Random, value: object) -> object:
    """The same counts as 521, 521.0 or "521"."""
    if isinstance(value, dict):
        return {key: formed(draw, inner) for key, inner in value.items()}
    return draw.choice(FORMS)(value)


def damaged(draw: random.Random, report: dict) -> object:
    """A report with faults."""
    if draw.random() < 0.02:
        return draw.choice(GARBAGE)
    report = dict(report)
    for _ in range(draw.randint(1, 3)):
        key = draw.choice(list(report) or ["prompt_tokens"])
        if isinstance(report.get(key), dict) and draw.random() < 0.7:
            report[key] = damaged(draw, report[key])
        elif draw.random() < 0.3:
            report.pop(key, None)
        else:
            report[key] = draw.choice([*GARBAGE, 0, 5, 40_000_000, "5", 3_000_000.0])
    return report


def generated(draw: random.Random) -> tuple[bytes, dict | None]:
    """A reply, and the truth if it is told well."""
    told = truth(draw)
    report = draw.choice(DIALECTS)(told)
    is_whole = draw.random() < 0.5
    report = formed(draw, report) if is_whole else damaged(draw, report)
    body = places(draw, report)
    if draw.random() < 0.1:
        body["service_tier"] = draw.choice(["flex", "default", 7, None])
    return json.dumps(body).encode(), told if is_whole else None


class Client(RetryingClient):
    """The client, with replies of the test in place of a connection."""

    def _check_access(self) -> None:
        pass

    def _connect(self) -> Connection:
        async def send(_: dict) -> bytes:
            return self.reply

        async def close() -> None:
            pass

        return Connection(send, close)


async def both_bills(replies: list[bytes]) -> list[tuple[float, bool, ModuleBill]]:
    """For each reply the USD and the flag of the client, and the bill of the endpoint."""
    client = Client({"mini": MINI})
    endpoint = Endpoint("http://127.0.0.1:9/v1", prices=PriceList({"mini": MINI}),
                        chosen={"planner": "mini"})  # fmt: skip
    app, now = endpoint._app, {"reply": b""}

    def upstream(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=now["reply"])

    endpoint._upstream._client = httpx.AsyncClient(transport=httpx.MockTransport(upstream))
    messages = [{"role": m.role, "content": m.content} for m in CALL.messages]
    body = {"model": "planner", "messages": messages, "max_tokens": CALL.max_tokens}
    bills = []
    transport = httpx.ASGITransport(app.asgi())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as caller:
        for reply in replies:
            client.reply = now["reply"] = reply
            completion = await client.complete(CALL)
            app._ledger = Ledger()
            got = await caller.post("/v1/chat/completions", json=body)
            assert (got.status_code, got.content) == (200, reply)
            bill = app._ledger.by_module()["planner"]
            bills.append((completion.cost_usd, completion.estimated, bill))
    await client.close()
    return bills


@pytest.mark.parametrize("number", [1_000, 40_000 if IS_LONG else 2_000], ids=["few", "all"])
@pytest.mark.slow
def test_client_and_endpoint_book_the_same(number, monkeypatch):
    monkeypatch.setattr("scope_torch.serve.app.most_of", lambda *_: most_of_call(CALL))
    draw = random.Random(number)
    cases = [generated(draw) for _ in range(number)]
    kinds = Counter()
    bills = asyncio.run(both_bills([reply for reply, _ in cases]))
    for (reply, told), (usd, estimated, bill) in zip(cases, bills, strict=True):
        assert (bill.cost_usd, bool(bill.estimated_usd)) == (usd, estimated), reply
        kinds[estimated, told is not None] += 1
        usage = usage_of(json.loads(reply))
        if told is not None:
            check_told(told, usage, bill, reply)
        if usage is not None:
            assert bill.prompt_tokens >= usage.prompt_tokens, reply
            assert bill.completion_tokens >= usage.completion_tokens, reply
            assert usd >= PriceList({"mini": MINI}).cost_usd("mini", usage) * (1 - 1e-12), reply
        check_stream(reply, usd)
    assert min(kinds.values()) > number / 20
    assert len(kinds) == 4


def check_told(told: dict, usage, bill: ModuleBill, reply: bytes) -> None:
    """What was told well is read well, and booked as told unless it is far above the request."""
    found = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
    assert found == (told["prompt"], told["said"], told["cached"]), reply
    assert (usage.cache_write_tokens, usage.searches) == (told["written"], told["searches"]), reply
    if not bill.estimated_usd:
        uncached = told["prompt"] - told["cached"] - told["written"]
        micro = uncached * 0.3 + told["cached"] * 0.03 + told["written"] * 0.375
        usd = (micro + told["said"] * 2.5) / 1e6 + told["searches"] * 0.01
        assert bill.cost_usd == pytest.approx(usd, rel=1e-12), reply


def check_stream(reply: bytes, usd: float) -> None:
    """The same report at the end of a stream, before a chunk of zeros, is booked the same."""
    body = json.loads(reply)
    choice = body["choices"][0]
    delta = choice | {"delta": choice["message"], "finish_reason": "stop"}
    delta.pop("message")
    zeros = {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}}
    reading = Reading(CHAT, most_of_call(CALL), wants_usage=True)
    for chunk in (body | {"choices": [delta]}, zeros):
        reading.event(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    reading.event(b"data: [DONE]\n\n")
    usage = reading.bill()
    if usage_of(body) is not None:
        assert PriceList({"mini": MINI}).cost_usd("mini", usage) == usd, reply
    else:
        assert usage.estimated, reply


def test_the_rule_is_one():
    """What the endpoint books is `booked`, as for the client."""
    usage = usage_of({"usage": {"prompt_tokens": 10**7, "completion_tokens": 5}})
    most = most_of_call(CALL)
    found = booked(usage, most, 9)
    assert (found.prompt_tokens, found.completion_tokens, found.estimated) == (10**7, 500, True)
