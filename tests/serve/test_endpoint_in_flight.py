"""Many queries in flight, and applications that hang up: each pays its own bill."""

import asyncio
import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from serve.fake_upstream import LLMS, FakeUpstream, Say
from serve.serve_cases import (
    CHOICE,
    MESSAGES,
    PATHS,
    body_of,
    message_of,
    post,
    serving,
    wait_until,
)

from scope_torch.llm.estimates import Most
from scope_torch.serve.apis import CHAT
from scope_torch.serve.reading import Reading
from scope_torch.serve.upstream import Upstream, UpstreamRequest

NUM_QUERIES = 24


@pytest.mark.slow
def test_eight_in_flight_are_never_mixed_up():
    """Every reply says who asked; each ledger is equal to the upstream's own."""
    together = threading.Barrier(8, timeout=20)  # eight requests are inside at once, every time

    def answer(request: dict) -> Say:
        together.wait()
        said = request.get("messages") or request["input"]
        return Say(f"{request['model']} to {said[-1]['content']}")

    def one(number: int) -> dict[str, float]:
        llms = list(LLMS)
        choice = {m: llms[(number + i) % 3] for i, m in enumerate(CHOICE)}
        with endpoint.query(choice, f"query {number}") as query:
            texts = application(query, number)
        models = [LLMS[choice[module]].model or choice[module] for module in CHOICE]
        assert texts == [f"{model} to {number}" for model in models]
        return {f"{number} {m}": bill.cost_usd for m, bill in query.ledger.by_module().items()}

    with (
        FakeUpstream(answer) as upstream,
        serving(upstream.url) as endpoint,
        ThreadPoolExecutor(8) as pool,
    ):
        ledgers = [*pool.map(one, range(NUM_QUERIES))]
    booked = {tag: usd for ledger in ledgers for tag, usd in ledger.items()}
    assert booked == pytest.approx(upstream.usd_by_tag(), abs=1e-9)
    assert len(booked) == 3 * NUM_QUERIES
    total = endpoint.ledger.by_module()
    assert {bill.calls for bill in total.values()} == {NUM_QUERIES}
    assert endpoint.ledger.cost_usd == pytest.approx(sum(booked.values()), abs=1e-9)


def application(query, number: int) -> list[str]:
    """Three modules, three APIs, streamed or not."""
    import anthropic  # takes a second, in the workers that need it

    messages = [{"role": "user", "content": str(number)}]
    tags = {module: {"metadata": {"tag": f"{number} {module}"}} for module in CHOICE}
    with openai.OpenAI(base_url=query.base_url, api_key="x", max_retries=0) as client:
        chunks = client.chat.completions.create(
            model="scope/planner", messages=messages, stream=True, **tags["planner"]
        )
        planned = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
        solved = client.responses.create(model="scope/solver", input=messages, **tags["solver"])
    url = query.env["ANTHROPIC_BASE_URL"]
    with (
        anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as client,
        client.messages.stream(
            model="scope/critic", max_tokens=99, messages=messages, **tags["critic"]
        ) as stream,
    ):
        return [planned, solved.output_text, "".join(stream.text_stream)]


def test_a_stream_passes_as_it_comes(endpoint, upstream):
    gate = threading.Event()
    upstream.answer = lambda _: Say(gate=gate)
    with (
        endpoint.query(CHOICE) as query,
        openai.OpenAI(base_url=query.base_url, api_key="x") as client,
    ):
        chunks = iter(
            client.chat.completions.create(model="scope/planner", messages=MESSAGES, stream=True)
        )
        first = next(chunks)  # the upstream sends no more before the gate opens
        assert first.choices[0].delta.role == "assistant"
        gate.set()
        assert len([*chunks]) == 4


@pytest.mark.parametrize("path", PATHS)
def test_a_hang_up_in_a_stream_is_paid_in_full(endpoint, upstream, path):
    gate = threading.Event()
    upstream.answer = lambda _: Say("w " * 500, gate=gate)
    with endpoint.query(CHOICE) as query:
        hang_up(f"{query.base_url}{path}", body_of(path, stream=True, max_tokens=999), first=20)
        gate.set()
    (served,) = upstream.served
    bill = query.ledger.by_module()["planner"]
    assert (bill.completion_tokens, bill.estimated_usd) == (served.completion, 0.0)
    assert bill.cost_usd == pytest.approx(upstream.usd_by_tag()[""], abs=1e-12)


def test_a_hang_up_before_a_reply_is_paid_in_full(endpoint, upstream):
    gate = threading.Event()
    upstream.answer = lambda _: Say(gate=gate)
    with endpoint.query(CHOICE) as query:
        url = f"{query.base_url}{PATHS[0]}"
        hang_up(url, body_of(PATHS[0]), when=lambda: upstream.served)
        threading.Timer(0.2, gate.set).start()  # while the query waits for its requests
    assert query.ledger.cost_usd == pytest.approx(upstream.usd_by_tag()[""], abs=1e-12)
    assert query.ledger.by_module()["planner"].calls == 1


def test_a_query_that_has_ended_pays_for_nothing(endpoint, upstream):
    with endpoint.query(CHOICE) as query:
        pass
    got = post(f"{query.base_url}{PATHS[0]}", body_of(PATHS[0]))
    assert got.status == 409
    assert "has ended" in message_of(got)
    assert upstream.requests == []
    assert query.ledger.by_module() == {}


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_does_not_end_is_given_up_and_estimated(upstream, stream):
    gate = threading.Event()
    upstream.answer = lambda _: Say(gate=gate)
    with serving(upstream.url, timeout_s=0.5) as endpoint:
        with endpoint.query(CHOICE) as query:
            got = post(f"{query.base_url}{PATHS[0]}", body_of(PATHS[0], stream=stream))
        gate.set()
    if stream:
        assert (got.status, got.cut) == (200, True)
        assert b"had not answered after 0.5 s" in got.body
    else:
        assert (got.status, message_of(got)) == (504, "the upstream had not answered after 0.5 s")
    bill = query.ledger.by_module()["planner"]
    assert (bill.failed, bill.completion_tokens) == (1, 32)
    assert bill.estimated_usd == bill.cost_usd > upstream.usd_by_tag()[""]


def test_stop_waits_for_a_stream(upstream):
    gate = threading.Event()
    upstream.answer = lambda _: Say(gate=gate)
    with serving(upstream.url, chosen=CHOICE) as endpoint, ThreadPoolExecutor(1) as pool:
        url = f"{endpoint.url}/v1{PATHS[0]}"
        got = pool.submit(post, url, body_of(PATHS[0], stream=True))
        wait_until(lambda: upstream.served)
        threading.Timer(0.3, gate.set).start()
        endpoint.stop()
        assert got.result().body.endswith(b"data: [DONE]\n\n")
    assert endpoint.ledger.cost_usd == pytest.approx(upstream.usd_by_tag()[""], abs=1e-12)


def test_an_endpoint_starts_again(upstream):
    with serving(upstream.url) as endpoint:
        first = endpoint.url
    with endpoint, endpoint.query(CHOICE) as query:
        assert first.startswith("http://127.0.0.1:")
        assert post(f"{query.base_url}{PATHS[0]}", body_of(PATHS[0])).status == 200


def hang_up(url: str, body: dict, *, first: int = 0, when=lambda: True) -> None:
    """Sends a request, reads some bytes of the answer, and closes the connection."""
    host, path = url.removeprefix("http://").split("/", 1)
    connection = http.client.HTTPConnection(host, timeout=20)
    connection.request("POST", f"/{path}", json.dumps(body))
    if first:
        connection.getresponse().read(first)
    wait_until(when)
    connection.close()


def test_a_request_that_is_stopped_before_it_begins_is_answered():
    """Nobody counted it as ended, and its caller waited for ever."""
    booked = []

    async def main() -> int:
        upstream = Upstream("http://127.0.0.1:9/v1", None, 5.0)
        upstream.open()
        reading = Reading(CHAT, Most(1, 1), wants_usage=False)
        request = UpstreamRequest(
            CHAT, CHAT.path, b"{}", [], "", reading, lambda *told: booked.append(told)
        )
        asking = asyncio.create_task(upstream.forward(request))
        await asyncio.sleep(0)  # the task is made, and has not begun
        (task,) = upstream._tasks
        task.cancel()
        answer = await asyncio.wait_for(asking, 10)
        await upstream.close()
        return answer.status

    assert asyncio.run(main()) == 502
    assert booked == [(None, True)]
