"""Makes the fixtures: one small application, logged by four real instrumentation libraries.

    python -m venv /tmp/traces && /tmp/traces/bin/pip install pytest openai opentelemetry-sdk \\
        opentelemetry-instrumentation-openai-v2 openinference-instrumentation-openai langfuse \\
        langsmith opentelemetry-proto 'opentelemetry-util-genai<1.2'
    PYTHONPATH=.:tests /tmp/traces/bin/python tests/traces/make_fixtures.py tests/traces/fixtures

The application has two modules, `plan` (gpt-4o-mini) and `solve` (gpt-4o), and calls the official
`openai` client. Its upstream is `FakeEndpoint` on this machine, which adds up its bill: the file
`billed.json` has for every run the tokens and USD that the upstream has billed for each module. The
second question asks `solve` twice, the third one fails once in `plan` and is called again.

| fixture | from the real library | from the documentation |
| --- | --- | --- |
| `otlp.jsonl` | spans of opentelemetry-instrumentation-openai-v2; OTLP JSON of the SDK's encoder and opentelemetry-proto, with ids in hex as the collector's file exporter writes them | the event `gen_ai.evaluation.result` is added by the application |
| `console.jsonl` | the same spans, by `ReadableSpan.to_json()` as ConsoleSpanExporter prints them | the same |
| `openinference.jsonl` | spans of openinference-instrumentation-openai, by `to_json(indent=None)` | attributes `evaluations.0.evaluation.*` are set by the application |
| `langfuse.jsonl` | names, types, parents, times, models and usage that the SDK's `langfuse.openai` and `create_score` have sent to a server on this machine | names of the columns (export field reference: `observations_v2/`, `scores/`); the server's rule that OpenAI's counts become buckets that do not overlap; `cost_details`, which the server computes from its price list |
| `langsmith.jsonl` | runs and feedback that the SDK's `wrap_openai`, `traceable` and `create_feedback` have sent | the columns that the server adds (run data format): tokens, costs, `feedback_stats` |

The sidecar `made_by.json` has the versions of the libraries.
"""  # noqa: E501 - a table

from __future__ import annotations

import base64
import gzip
import json
import os
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llm.fake_endpoint import FakeEndpoint, Say, Status, count_tokens

LIBRARIES = (
    "openai",
    "opentelemetry-sdk",
    "opentelemetry-instrumentation-openai-v2",
    "opentelemetry-util-genai",
    "openinference-instrumentation-openai",
    "langfuse",
    "langsmith",
)
LLMS = {"plan": "gpt-4o-mini", "solve": "gpt-4o"}
QUESTIONS = [f"What is {number} plus {number}?" for number in (2, 3, 5, 7)]
CORRECT = [1.0, 1.0, 0.0, 1.0]
# USD per million tokens of prompt, cached prompt, completion: the upstream's bill.
USD_PER_MTOK = {"gpt-4o-mini": (0.15, 0.075, 0.6), "gpt-4o": (2.5, 1.25, 10.0)}
Ask = Callable[[str, str], str]


class Upstream(FakeEndpoint):
    """Answers the application; fails once for the third question, and caches a part of prompts."""

    def __init__(self) -> None:
        self.failed = False
        super().__init__(self._reply)

    def _reply(self, request: dict[str, Any]) -> Say | Status:
        text = str(request["messages"][-1]["content"])
        if QUESTIONS[2] in text and not self.failed:
            self.failed = True
            return Status(500, message="overloaded")
        prompt = sum(count_tokens(message["content"]) for message in request["messages"])
        said = f"The {request['model']} says: add the two numbers of {text}"
        usage = {
            "prompt_tokens": prompt + 1000,
            "completion_tokens": count_tokens(said),
            "total_tokens": prompt + 1000 + count_tokens(said),
            "prompt_tokens_details": {"cached_tokens": 512 if QUESTIONS[1] in text else 0},
        }
        return Say(said, usage)


def application(question: str, ask: Ask, module: Callable[[str], Any]) -> str:
    """Plans, then solves; `module` makes the span of a module."""
    with module("plan"):
        try:
            plan = ask(LLMS["plan"], f"Plan: {question}")
        except Exception:  # the application tries again
            plan = ask(LLMS["plan"], f"Plan: {question}")
    with module("solve"):
        answer = ask(LLMS["solve"], f"{question} {plan}")
        if question == QUESTIONS[1]:
            answer = ask(LLMS["solve"], f"Check: {question} {answer}")
    return answer


@contextmanager
def upstream() -> Iterator[tuple[Upstream, Any]]:
    """The upstream, and a client of it."""
    import openai

    with Upstream() as running:
        client = openai.OpenAI(base_url=running.url, api_key="no-key", max_retries=0)
        yield running, client
        client.close()


def asking(client: Any) -> Ask:
    """Asks an LLM by chat completions."""

    def ask(llm: str, text: str) -> str:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
        reply = client.chat.completions.create(model=llm, messages=messages)
        return reply.choices[0].message.content

    return ask


def usd_of(llm: str, prompt: int, cached: int, completion: int) -> float:
    """The upstream's bill for a call."""
    full, reduced, said = USD_PER_MTOK[llm]
    return ((prompt - cached) * full + cached * reduced + completion * said) / 1e6


def bill(served: list[tuple[str, int, int, int]]) -> dict[str, Any]:
    """What the upstream has billed, by module."""
    found: dict[str, Any] = {}
    for module, llm in LLMS.items():
        calls = [call for call in served if call[0] == llm]
        found[module] = {
            "calls": len(calls),
            "prompt_tokens": sum(call[1] for call in calls),
            "completion_tokens": sum(call[2] for call in calls),
            "cached_tokens": sum(call[3] for call in calls),
            "cost_usd": sum(usd_of(llm, call[1], call[3], call[2]) for call in calls),
        }
    return found


def traced(instrument: Callable[[Any], Any], score: Callable[[Any, float], None]) -> Any:
    """Spans of the application by OpenTelemetry's SDK, and the bill."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("application")
    instrumentor = instrument(provider)
    with upstream() as (running, client):
        for number, question in enumerate(QUESTIONS):
            with tracer.start_as_current_span("answer") as root:
                root.set_attribute("app.question", f"q{number}")
                application(question, asking(client), tracer.start_as_current_span)
                score(root, CORRECT[number])
    instrumentor.uninstrument()
    return exporter.get_finished_spans(), bill(running.served)


def genai() -> Any:
    """Spans by opentelemetry-instrumentation-openai-v2."""
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor

    def instrument(provider: Any) -> Any:
        OpenAIInstrumentor().instrument(tracer_provider=provider)
        return OpenAIInstrumentor()

    def score(root: Any, value: float) -> None:
        facts = {"gen_ai.evaluation.name": "correct", "gen_ai.evaluation.score.value": value}
        root.add_event("gen_ai.evaluation.result", facts)

    return traced(instrument, score)


def openinference() -> Any:
    """Spans by openinference-instrumentation-openai."""
    from openinference.instrumentation.openai import OpenAIInstrumentor

    def instrument(provider: Any) -> Any:
        OpenAIInstrumentor().instrument(tracer_provider=provider)
        return OpenAIInstrumentor()

    def score(root: Any, value: float) -> None:
        root.set_attribute("evaluations.0.evaluation.name", "correct")
        root.set_attribute("evaluations.0.evaluation.score", value)

    return traced(instrument, score)


def otlp_lines(spans: Any) -> list[str]:
    """A line for each batch of two traces, as the collector's file exporter writes them."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    traces = list(dict.fromkeys(span.context.trace_id for span in spans))
    lines: list[str] = []
    for start in range(0, len(traces), 2):
        batch = [span for span in spans if span.context.trace_id in traces[start : start + 2]]
        content = MessageToDict(encode_spans(batch))
        for resource in content["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    for key in ("traceId", "spanId", "parentSpanId"):
                        if key in span:  # OTLP JSON has ids in hex, protobuf's in base64
                            span[key] = base64.b64decode(span[key]).hex()
        lines.append(json.dumps(content))
    return lines


class Sink:
    """A server on this machine that keeps every request: (path, headers, body)."""

    def __init__(self, reply: str = "{}") -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def _keep(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                elif self.headers.get("Content-Encoding") == "zstd":
                    raise ValueError("zstd is not read here")
                elif self.headers.get("Content-Encoding") == "deflate":
                    body = zlib.decompress(body)
                headers = {name.lower(): value for name, value in self.headers.items()}
                sink.requests.append((self.path, headers, body))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply.encode())

            do_POST = do_PATCH = do_GET = _keep

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


def langfuse_rows() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of `observations_v2/` and `scores/`, from the requests of Langfuse's SDK."""
    sink = Sink()
    os.environ |= {
        "LANGFUSE_PUBLIC_KEY": "pk-lf-none",
        "LANGFUSE_SECRET_KEY": "sk-lf-none",
        "LANGFUSE_HOST": sink.url,
        "LANGFUSE_BASE_URL": sink.url,
    }
    import openai as plain
    from langfuse import get_client
    from langfuse.openai import openai

    assert openai is plain  # it is wrapped in place, so this part runs last
    langfuse = get_client()

    def module(name: str) -> Any:
        return langfuse.start_as_current_observation(name=name, as_type="span")

    with upstream() as (running, client):
        for number, question in enumerate(QUESTIONS):
            with langfuse.start_as_current_observation(
                name="answer", as_type="span", metadata={"question": f"q{number}"}
            ) as root:
                application(question, asking(client), module)
                langfuse.create_score(name="correct", value=CORRECT[number], trace_id=root.trace_id)
        langfuse.flush()
    return [*_observations(sink), *_scores(sink)], bill(running.served)


def _observations(sink: Sink) -> Iterator[dict[str, Any]]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    for path, _, body in sink.requests:
        if not path.endswith("/v1/traces"):
            continue
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                yield from map(_observation, scope.spans)


def _observation(span: Any) -> dict[str, Any]:
    """A span in the columns of the export."""
    sent = {item.key: item.value.string_value for item in span.attributes}
    usage = json.loads(sent.get("langfuse.observation.usage_details") or "{}")
    model = sent.get("langfuse.observation.model.name", "")
    cached = ((usage.get("prompt_tokens_details") or {}).get("cached_tokens")) or 0
    buckets: dict[str, int] = {}
    if usage:
        buckets = {
            "input": usage["prompt_tokens"] - cached,
            "output": usage["completion_tokens"],
            "total": usage["total_tokens"],
        }
        if cached:
            buckets["input_cached_tokens"] = cached
    costs: dict[str, float] = {}
    if buckets:
        full, reduced, said = USD_PER_MTOK[model]
        costs = {"input": buckets["input"] * full / 1e6, "output": buckets["output"] * said / 1e6}
        if cached:
            costs["input_cached_tokens"] = cached * reduced / 1e6
        costs["total"] = usd_of(model, usage["prompt_tokens"], cached, usage["completion_tokens"])
    seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    question = sent.get("langfuse.observation.metadata.question")
    return {
        "id": span.span_id.hex(),
        "trace_id": span.trace_id.hex(),
        "project_id": "project",
        "environment": "default",
        "type": sent["langfuse.observation.type"].upper(),
        "parent_observation_id": span.parent_span_id.hex(),
        "start_time": _timestamp(span.start_time_unix_nano),
        "end_time": _timestamp(span.end_time_unix_nano),
        "name": span.name,
        "metadata": {} if question is None else {"question": json.loads(question)},
        "level": sent.get("langfuse.observation.level") or "DEFAULT",
        "status_message": sent.get("langfuse.observation.status_message") or "",
        "input": "",
        "output": "",
        "provided_model_name": model,
        "usage_details": buckets,
        "cost_details": costs,
        "total_cost": costs.get("total", 0),
        "latency": seconds,
        "trace_name": "answer",
    }


def _timestamp(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def _scores(sink: Sink) -> Iterator[dict[str, Any]]:
    for path, _, body in sink.requests:
        if path.endswith("/scores"):
            yield from map(_score, json.loads(body))


def _score(sent: dict[str, Any]) -> dict[str, Any]:
    """A score in the columns of the export."""
    return {
        "id": sent["id"],
        "timestamp": sent["timestamp"],
        "trace_id": sent["traceId"],
        "observation_id": sent.get("observationId"),
        "name": sent["name"],
        "value": sent["value"],
        "source": "API",
        "data_type": "NUMERIC",
        "string_value": None,
    }


def langsmith_rows() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Runs in the run data format, from the requests of LangSmith's SDK."""
    ingest = {"use_multipart_endpoint": True, "size_limit": 100, "size_limit_bytes": 20_971_520}
    threads = {"scale_up_qsize_trigger": 1000, "scale_up_nthreads_limit": 1}
    threads["scale_down_nempty_trigger"] = 4
    sink = Sink(json.dumps({"batch_ingest_config": ingest | threads}))
    os.environ |= {"LANGSMITH_TRACING": "true", "LANGSMITH_API_KEY": "ls-none"}
    os.environ["LANGSMITH_ENDPOINT"] = sink.url
    from langsmith import Client, trace, tracing_context
    from langsmith.wrappers import wrap_openai

    server = Client(api_url=sink.url, api_key="ls-none")
    with upstream() as (running, client), tracing_context(client=server, enabled=True):
        ask = asking(wrap_openai(client))
        for number, question in enumerate(QUESTIONS):
            with trace("answer", metadata={"question": f"q{number}"}, client=server) as root:
                application(question, ask, lambda name: trace(name, client=server))
            server.create_feedback(root.id, "correct", score=CORRECT[number], trace_id=root.id)
        server.flush()
    return list(_runs(sink).values()), bill(running.served)


def _runs(sink: Sink) -> dict[str, dict[str, Any]]:
    runs: dict[str, dict[str, Any]] = {}
    scores: dict[str, tuple[str, float]] = {}
    for path, headers, body in sink.requests:
        if not path.endswith("/runs/multipart") and "feedback" not in path:
            continue
        for name, content in _parts(headers, body):
            kind, _, rest = name.partition(".")
            if kind == "feedback":
                sent = json.loads(content)
                scores[str(sent["run_id"])] = (sent["key"], sent["score"])
            elif kind in ("post", "patch"):
                run_id, _, field = rest.partition(".")
                known = runs.setdefault(run_id, {})
                value = json.loads(content)
                known.update({field: value} if field else value)
    return {key: _run(run, scores.get(key)) for key, run in runs.items()}


def _parts(headers: dict[str, str], body: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a multipart body; of a feedback sent alone, the body."""
    if "multipart" not in headers.get("content-type", ""):
        yield "feedback", body
        return
    head = f"Content-Type: {headers['content-type']}\r\n\r\n".encode()
    for part in message_from_bytes(head + body).get_payload():
        yield part.get_param("name", header="content-disposition"), part.get_payload(decode=True)


def _run(sent: dict[str, Any], score: tuple[str, float] | None) -> dict[str, Any]:
    """A run with the columns that the server adds."""
    kept = "id trace_id parent_run_id dotted_order name run_type start_time end_time error"
    run = {key: sent.get(key) for key in kept.split()}
    metadata = (sent.get("extra") or {}).get("metadata") or {}
    names = ("ls_model_name", "ls_provider", "ls_model_type", "question")
    run["extra"] = {"metadata": {key: metadata[key] for key in names if key in metadata}}
    run["status"] = "error" if sent.get("error") else "success"
    if sent.get("error"):
        run["error"] = str(sent["error"]).splitlines()[0]
    used = (sent.get("outputs") or {}).get("usage_metadata") if run["run_type"] == "llm" else None
    if used:
        cached = (used.get("input_token_details") or {}).get("cache_read") or 0
        prompt, completion = used["input_tokens"], used["output_tokens"]
        usd = usd_of(metadata["ls_model_name"], prompt, cached, completion)
        run |= {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": used["total_tokens"],
            "prompt_token_details": {"cache_read": cached},
            "total_cost": f"{usd:.10f}",
        }
    run["feedback_stats"] = None
    if score is not None:
        run["feedback_stats"] = {score[0]: {"n": 1, "avg": score[1]}}
    return run


def main(folder: Path) -> None:
    """Writes the fixtures."""
    folder.mkdir(parents=True, exist_ok=True)
    spans, of_genai = genai()
    inferred, of_openinference = openinference()
    runs, of_langsmith = langsmith_rows()
    rows, of_langfuse = langfuse_rows()
    lines = {
        "otlp": otlp_lines(spans),
        "console": [span.to_json() for span in spans],
        "openinference": [span.to_json(indent=None) for span in inferred],
        "langfuse": [json.dumps(row) for row in rows],
        "langsmith": [json.dumps(run) for run in runs],
    }
    for name, texts in lines.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{text}\n" for text in texts))
    bills = {
        "otlp": of_genai,
        "console": of_genai,
        "openinference": of_openinference,
        "langfuse": of_langfuse,
        "langsmith": of_langsmith,
    }
    made_by = {name: version(name) for name in LIBRARIES}
    for name, content in (("billed", bills), ("made_by", made_by)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
