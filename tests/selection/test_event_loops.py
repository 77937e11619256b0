"""Asynchronous clients that were used before the search belong to another event loop.

In a notebook `await app(...)` comes first. The error of asyncio names neither client nor mend.
"""

import asyncio
import functools
import gc
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from llm.fake_endpoint import only_loopback  # noqa: F401
from openai import AsyncOpenAI

import scope_torch as st
from scope_torch.errors import InputError
from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.observation import Request

# Connections of a loop that is closed cannot be closed any more.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
MEND = r"belongs to another event loop.* make the client inside the app, or a new one"
MESSAGE = {"role": "assistant", "content": "6"}
REPLY = {"id": "c1", "object": "chat.completion", "created": 1, "model": "nano",
         "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
         "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}  # fmt: skip


class KeepsAlive(BaseHTTPRequestHandler):
    """Answers over a connection that stays open, as servers of LLMs do."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps(REPLY).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True  # the connections that stay open end with the process

    def handle_error(self, *_):
        """Ignores that the client closed the connection."""


@pytest.fixture(autouse=True, scope="module")
def garbage():
    """What these tests leave behind is collected before those of others."""
    yield
    gc.collect()


@pytest.fixture
def url():
    with Server(("127.0.0.1", 0), KeepsAlive) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def by_openai(url):
    client = AsyncOpenAI(base_url=url, api_key="-")

    async def app(models, question):
        messages = [{"role": "user", "content": question}]
        reply = await client.chat.completions.create(model="nano", messages=messages)
        return reply.choices[0].message.content, 0.01 if models["answer"] == "pro" else 0.001

    return app


def by_httpx(url):
    client = httpx.AsyncClient()

    async def app(models, question):
        reply = await client.post(f"{url}/chat/completions", json={"said": question})
        said = reply.json()["choices"][0]["message"]["content"]
        return said, 0.01 if models["answer"] == "pro" else 0.001

    return app


def selected(app, **changes):
    return st.select(
        app,
        models={"answer": ["nano", "pro"]},
        dataset=[(f"{i} + {6 - i}", "6") for i in range(10)],
        metric=st.metrics.exact_match,
        reference="pro",
        max_quality_loss=0.1,
        budget_usd=1,
        **changes,
    )


async def in_a_notebook(app, **changes):
    """Two cells with `await`, and one that searches: it blocks the loop on which it runs."""
    await app({"answer": "pro"}, "1 + 5")
    await app({"answer": "pro"}, "2 + 4")
    return selected(app, **changes)


@pytest.mark.parametrize(
    ("make", "on_error"), [(by_openai, "raise"), (by_openai, "zero"), (by_httpx, "retry")]
)
def test_a_client_of_a_notebook(make, on_error, url):
    with pytest.raises(InputError, match=MEND):
        asyncio.run(in_a_notebook(make(url), on_error=on_error))


@pytest.mark.parametrize("make", [by_httpx, pytest.param(by_openai, marks=pytest.mark.slow)])
def test_a_client_of_a_loop_that_is_closed(make, url):
    app = make(url)
    asyncio.run(app({"answer": "pro"}, "1 + 5"))
    with pytest.raises(InputError, match=MEND):
        selected(app)


@pytest.mark.parametrize("make", [by_openai, pytest.param(by_httpx, marks=pytest.mark.slow)])
def test_a_function_that_starts_a_loop_for_each_query(make, url):
    """The client of its first query is of no use in the second one: the same mend."""
    app = make(url)
    with pytest.raises(InputError, match=MEND):
        selected(lambda models, question: asyncio.run(app(models, question)))


@pytest.mark.slow
def test_without_select(url):
    problem = st.SelectionProblem("app", ("answer",), (("nano", "pro"),), 1, (1,), 1.0, 0.01, 0.1)
    app = by_httpx(url)

    async def graded(models, question):
        said, usd = await app(models, question)
        return float(said == "6"), usd

    asyncio.run(graded({"answer": "pro"}, "1 + 5"))
    evaluator = FunctionEvaluator(problem, graded, ["1 + 5"], on_error="zero")
    with pytest.raises(InputError, match=MEND):
        list(evaluator.evaluate([Request((0,), 0)]))


@pytest.mark.parametrize("make", [by_openai, pytest.param(by_httpx, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_mends(make, url):
    """A client that was not used before, and one that the app makes itself; in a notebook."""
    make_once = functools.cache(lambda: make(url))

    async def app(models, question):
        return await make_once()(models, question)

    async def cells(app):
        return selected(app, concurrency=4)

    for right in (make(url), app):
        assert asyncio.run(cells(right)).choice == {"answer": "nano"}


@pytest.mark.slow
def test_another_error_stays_as_it_is():
    async def app(models, question):
        raise RuntimeError("no event loop in sight")

    with pytest.raises(RuntimeError, match="no event loop in sight"):
        selected(app)
