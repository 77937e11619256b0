"""Clients as they are: openai, anthropic and curl ask for a module, and an LLM answers."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from serve.fake_upstream import FakeUpstream, Say
from serve.serve_cases import CHOICE, MESSAGES, PATHS, body_of, post

from scope_torch.serve import current

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
IMAGE = "data:image/png;base64,iVBORw0KGgo="
SAID = "it is fine."


@pytest.fixture
def query(endpoint):
    with endpoint.query(CHOICE) as query:
        yield query


@pytest.fixture
def client(query):
    with openai.OpenAI(base_url=query.base_url, api_key="scope", max_retries=0) as client:
        yield client


def check_bill(query, upstream: FakeUpstream, module: str = "planner") -> None:
    (served,) = upstream.served
    bill = query.ledger.by_module()[module]
    assert (bill.calls, bill.failed, bill.estimated_usd) == (1, 0, 0.0)
    tokens = bill.prompt_tokens, bill.completion_tokens, bill.cached_tokens
    assert tokens == (served.prompt, served.completion, served.cached)
    assert query.ledger.cost_usd == pytest.approx(sum(upstream.usd_by_tag().values()), abs=1e-15)


def test_openai_chat(client, query, upstream):
    reply = client.chat.completions.create(model="scope/planner", messages=MESSAGES)
    assert (reply.choices[0].message.content, reply.model) == (SAID, "medium")
    assert upstream.requests == [{"model": "medium", "messages": MESSAGES}]
    check_bill(query, upstream)


def test_the_model_at_the_upstream_is_that_of_the_price_list(client, query, upstream):
    client.chat.completions.create(model="solver", messages=MESSAGES)
    assert upstream.requests[0]["model"] == "vendor/small-1"
    check_bill(query, upstream, "solver")


@pytest.mark.parametrize("asked", [True, False, None])
def test_openai_chat_streamed(client, query, upstream, asked):
    options = {} if asked is None else {"stream_options": {"include_usage": asked}}
    chunks = [*client.chat.completions.create(
        model="scope/planner", messages=MESSAGES, stream=True, **options
    )]  # fmt: skip
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == SAID
    assert len([chunk for chunk in chunks if chunk.usage is not None]) == bool(asked)
    assert len([chunk for chunk in chunks if not chunk.choices]) == bool(asked)
    assert upstream.requests[0]["stream_options"] == {"include_usage": True}
    check_bill(query, upstream)


@pytest.mark.parametrize("stream", [False, True])
def test_tools_and_images_pass(client, query, upstream, stream):
    upstream.answer = lambda _: Say(tool=("look_up", {"key": "a\u00e9\ud83d\ude00"}))
    parts = [{"type": "text", "text": "\u00fc"}, {"type": "image_url", "image_url": {"url": IMAGE}}]
    sent = {"messages": [{"role": "user", "content": parts}], "tools": [TOOL], "seed": 3}
    reply = client.chat.completions.create(
        model="scope/planner", stream=stream, extra_body={"odd": [1, None]}, **sent
    )
    if stream:
        calls = [
            call for chunk in reply for c in chunk.choices for call in c.delta.tool_calls or ()
        ]
    else:
        calls = reply.choices[0].message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == [{"key": "a\u00e9\U0001f600"}]
    got = upstream.requests[0]
    assert {key: got[key] for key in sent} == sent
    assert got["odd"] == [1, None]
    check_bill(query, upstream)


@pytest.mark.slow
def test_openai_responses(client, query, upstream):
    assert client.responses.create(model="scope/planner", input="hi").output_text == SAID
    check_bill(query, upstream)


@pytest.mark.slow
def test_openai_responses_streamed(client, query, upstream):
    with client.responses.stream(model="scope/planner", input="hi") as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == SAID
    assert kinds[-1] == "response.completed"
    check_bill(query, upstream)


def test_openai_async_with_one_client_for_all_queries(endpoint, upstream):
    async def app(client):
        reply = await client.chat.completions.create(model="scope/planner", messages=MESSAGES)
        return reply.model

    async def one(client, llm):
        with endpoint.query({"planner": llm}) as query:
            answer = await asyncio.gather(app(client), app(client))
            return answer, query.ledger.by_module()["planner"].calls

    async def main():
        http = current.tagged(openai.DefaultAsyncHttpxClient())
        url = f"{endpoint.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="scope", http_client=http) as client:
            return [await one(client, llm) for llm in ("medium", "large")]

    assert asyncio.run(main()) == [(["medium"] * 2, 2), (["large"] * 2, 2)]
    assert endpoint.ledger.cost_usd == pytest.approx(upstream.usd_by_tag()[""], abs=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["httpx", "openai"])
def test_one_client_of_eight_threads(endpoint, upstream, kind):
    """Each thread has a query of its own in its context."""
    upstream.answer = lambda request: Say(f"{request['model']} to {request['messages'][0]['name']}")
    http = current.tagged(httpx.Client() if kind == "httpx" else openai.DefaultHttpxClient())
    url = f"{endpoint.url}/v1/chat/completions"

    def app(number: int) -> str:
        message = {"role": "user", "content": "hi", "name": str(number)}
        reply = http.post(url, json={"model": "scope/planner", "messages": [message]})
        return reply.json()["choices"][0]["message"]["content"]

    def one(number: int) -> tuple[str, int]:
        llm = ("medium", "large")[number % 2]
        with endpoint.query({"planner": llm}) as query:
            said = app(number)
        assert said == f"{llm} to {number}"
        return llm, query.ledger.by_module()["planner"].calls

    with http, ThreadPoolExecutor(8) as pool:
        assert {calls for _, calls in pool.map(one, range(40))} == {1}
        assert http.post(url, json={"model": "scope/planner"}).status_code == 409  # of no query


def test_current_names_the_query_in_flight(endpoint):
    with endpoint.query(CHOICE) as query:
        assert (current.base_url(), current.headers()) == (query.base_url, query.headers)
        with endpoint.query(CHOICE) as inner:
            assert current.base_url() == inner.base_url != query.base_url
        assert current.base_url() == query.base_url


def test_anthropic(query, upstream):
    import anthropic  # takes a second, in the workers that need it

    with anthropic.Anthropic(base_url=query.env["ANTHROPIC_BASE_URL"], api_key="own") as client:
        reply = client.beta.messages.create(
            model="scope/planner",
            max_tokens=99,
            messages=MESSAGES,
            betas=["odd-2026"],
            extra_query={"beta": "true", "api_key": "own"},
        )
    assert reply.content[0].text == SAID
    assert upstream.paths == ["/v1/messages?beta=true"]
    assert upstream.headers[0]["anthropic-beta"] == "odd-2026"
    assert upstream.headers[0]["anthropic-version"]
    assert "own" not in upstream.headers[0].values()
    check_bill(query, upstream)


def test_anthropic_streamed_and_with_tools(query, upstream):
    import anthropic  # takes a second, in the workers that need it

    with anthropic.Anthropic(base_url=query.env["ANTHROPIC_BASE_URL"], api_key="own") as client:
        with client.messages.stream(
            model="scope/planner", max_tokens=99, messages=MESSAGES
        ) as stream:
            assert "".join(stream.text_stream) == SAID
        check_bill(query, upstream)
        upstream.answer = lambda _: Say(tool=("look_up", {"key": 1}))
        tool = {"name": "look_up", "input_schema": {"type": "object"}}
        reply = client.messages.create(
            model="scope/solver", max_tokens=99, messages=MESSAGES, tools=[tool]
        )
    assert reply.content[0].input == {"key": 1}
    assert upstream.requests[1]["tools"] == [tool]


def test_both_clients_list_the_modules(client, query):
    import anthropic  # takes a second, in the workers that need it

    names = [f"scope/{module}" for module in CHOICE]
    assert [model.id for model in client.models.list()] == names
    with anthropic.Anthropic(base_url=query.env["ANTHROPIC_BASE_URL"], api_key="own") as other:
        assert [model.id for model in other.models.list()] == names


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_reply_comes_back_byte_by_byte(query, upstream, path, stream):
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    through = post(query.base_url + path, body_of(path, **more))
    direct = post(upstream.url + path, body_of(path, "medium", **more))
    assert through.status == direct.status == 200
    assert through.body == direct.body
    assert through.headers["content-type"] == direct.headers["Content-Type"]


APP = """
import openai, sys
client = openai.OpenAI()
reply = client.chat.completions.create(
    model="scope/planner", messages=[{"role": "user", "content": sys.argv[1]}])
chunks = client.chat.completions.create(
    model="scope/solver", messages=[{"role": "user", "content": "and?"}], stream=True)
text = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
print(openai.__version__.partition(".")[0], reply.choices[0].message.content == text)
"""


def run_app(query, *folders: str) -> str:
    """Runs an application in a process of its own, with nothing but its environment."""
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, **query.env, "PYTHONPATH": os.pathsep.join([*folders, root])}
    done = subprocess.run(
        [sys.executable, "-c", APP, "hello"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_process_needs_only_its_environment(query, upstream):
    major = openai.__version__.partition(".")[0]
    assert run_app(query) == f"{major} True\n"
    assert query.ledger.cost_usd == pytest.approx(upstream.usd_by_tag()[""], abs=1e-15)
    assert {m: bill.calls for m, bill in query.ledger.by_module().items()} == {
        "planner": 1,
        "solver": 1,
    }


@pytest.mark.slow
@pytest.mark.skipif(
    not Path(os.environ.get("SCOPE_OPENAI2", ""), "openai").is_dir(),
    reason="needs a folder with openai 2",
)
def test_openai_2(query, upstream):
    """The folder is made by `pip install --target FOLDER "openai<3"`."""
    assert run_app(query, os.environ["SCOPE_OPENAI2"]) == "2 True\n"
    assert query.ledger.cost_usd == pytest.approx(upstream.usd_by_tag()[""], abs=1e-15)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("stream", [False, True])
def test_curl(query, upstream, stream):
    body = {"model": "scope/planner", "messages": MESSAGES, "stream": stream}
    command = ["curl", "-sS", "--noproxy", "*", f"{query.base_url}/chat/completions"]
    command += ["-H", "Authorization: Bearer own", "-d", json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    if stream:
        assert done.stdout.endswith("data: [DONE]\n\n")
    else:
        assert json.loads(done.stdout)["choices"][0]["message"]["content"] == SAID
    assert "authorization" not in upstream.headers[0]
    check_bill(query, upstream)
