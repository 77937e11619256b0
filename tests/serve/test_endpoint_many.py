"""Five hundred queries at once: every token is on the bill of the query that asked."""

import asyncio
import json
import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from threading import Event, Thread

import httpx
import pytest
from serve.fake_upstream import LLMS, prices
from serve.serve_cases import serving

from scope_torch.llm.billing import Usage

NUM_QUERIES = 500
NUM_CLIENTS = 20
NUM_SOCKETS = 4 * NUM_QUERIES + 200  # two ends of two connections for every query


@pytest.fixture(autouse=True)
def many_sockets() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < NUM_SOCKETS:
        pytest.skip(f"this machine lets a process have {limits[1]} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], NUM_SOCKETS), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Together:
    """An upstream that answers when all requests are inside, the last one first."""

    def __init__(self) -> None:
        self.inside = 0
        self.all_inside = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].split()[0])
        asked = json.loads(await reader.readexactly(length))
        number = int(asked["messages"][0]["content"])
        self.inside += 1
        if self.inside == NUM_QUERIES:
            self.all_inside.set()
        await self.all_inside.wait()
        await asyncio.sleep((NUM_QUERIES - number) / 1000)
        usage = {"prompt_tokens": number + 1, "completion_tokens": 2 * number + 1}
        text = {"role": "assistant", "content": f"{asked['model']} to {number}"}
        if asked.get("stream"):
            choice = {"index": 0, "delta": text, "finish_reason": "stop"}
            events = [{"choices": [choice]}, {"choices": [], "usage": usage}]
            body = "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n"
        else:
            body = json.dumps({"choices": [{"index": 0, "message": text}], "usage": usage})
        kind = "text/event-stream" if asked.get("stream") else "application/json"
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        await writer.drain()
        writer.close()


@contextmanager
def together() -> Iterator[str]:
    """The address of such an upstream, in a thread of its own."""
    listens, found = Event(), {}

    async def serve() -> None:
        found["stop"], found["loop"] = asyncio.Event(), asyncio.get_running_loop()
        server = await asyncio.start_server(Together().answer, "127.0.0.1", 0, backlog=NUM_QUERIES)
        found["port"] = server.sockets[0].getsockname()[1]
        listens.set()
        await found["stop"].wait()
        server.close()

    thread = Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert listens.wait(20)
    try:
        yield f"http://127.0.0.1:{found['port']}/v1"
    finally:
        found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join()


@pytest.mark.slow
def test_five_hundred_in_flight_are_never_mixed_up():
    choices = [list(LLMS)[i % 3] for i in range(NUM_QUERIES)]

    async def one(client: httpx.AsyncClient, url: str, number: int) -> str:
        said = {"max_tokens": 2000, "messages": [{"role": "user", "content": str(number)}]}
        said |= {"stream": number % 2 == 1}
        body = {"model": "scope/planner", **said}
        got = await client.post(f"{url}/chat/completions", json=body)
        assert got.status_code == 200, got.text
        return got.text

    async def ask(urls: list[str]) -> list[str]:
        # A client looks through all its connections whenever one ends: each has a few of them.
        clients = [httpx.AsyncClient(timeout=120, verify=False) for _ in range(NUM_CLIENTS)]
        async with AsyncExitStack() as open_:
            for client in clients:
                await open_.enter_async_context(client)
            asking = (one(clients[i % NUM_CLIENTS], url, i) for i, url in enumerate(urls))
            return await asyncio.gather(*asking)

    with together() as url, serving(url, timeout_s=120.0) as endpoint, ExitStack() as open_:
        queries = [open_.enter_context(endpoint.query({"planner": llm})) for llm in choices]
        texts = asyncio.run(ask([query.base_url for query in queries]))
    for number, (llm, query, text) in enumerate(zip(choices, queries, texts, strict=True)):
        assert f'"{LLMS[llm].model or llm} to {number}"' in text
        bill = query.ledger.by_module()["planner"]
        used = Usage(number + 1, 2 * number + 1)
        assert (bill.calls, bill.prompt_tokens, bill.completion_tokens) == (1, *used[:2])
        assert (bill.cost_usd, bill.failed) == (prices().cost_usd(llm, used), 0)
    whole = endpoint.ledger.by_module()["planner"]
    assert (whole.calls, whole.prompt_tokens) == (500, 500 * 501 // 2)
    assert whole.completion_tokens == 500 * 500
