"""A live compound system of two modules, an endpoint that pays attention, and runs on it."""

import asyncio
import contextlib
import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm.fake_endpoint import Behaviour, FakeEndpoint, count_tokens

from scope_torch.evaluators.live import LiveEvaluator
from scope_torch.llm.chat import Message
from scope_torch.llm.client import OpenAIClient
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.store import ResponseStore
from scope_torch.methods import make_scope
from scope_torch.observation import Request
from scope_torch.problem import SelectionProblem
from scope_torch.results.result import RunResult
from scope_torch.runs.runner import run
from scope_torch.search.optimizer import Recommendation, SequentialOptimizer, Steps
from scope_torch.systems.graph import CompoundSystem, Module, ParseError
from scope_torch.tasks.dataset import Query
from scope_torch.testing.problems import names

MODULES, CANDIDATES = names((3, 2))
LLMS = {f"llm{i}": LLMInfo(f"llm{i}", 1.0 + i, 4.0 * (1 + i), model=f"m{i}") for i in range(3)}
QUERIES = tuple(Query({"text": f"query{q}" + " word" * q}, f"gold{q}") for q in range(6))
MAX_TOKENS = 24
Answer = Callable[[dict], Behaviour]


def toy(version: str = "1", parts: Sequence[str] = ("first", "second")) -> CompoundSystem:
    """`module0` makes a call for each part, `module1` one; "garbled" cannot be parsed."""

    def parse(replies: Sequence[str], _: Any) -> str:
        if any("garbled" in reply or not reply for reply in replies):
            raise ParseError("garbled")
        return " ".join(replies)

    def ask(text: str) -> tuple[Message, ...]:
        return Message("system", "be brief"), Message("user", text)

    first = Module(
        "module0",
        ("text",),
        lambda inputs, _: [ask(f"{part} {inputs['text']}") for part in parts],
        parse,
        lambda inputs: f"plain {inputs['text']}",
        MAX_TOKENS,
    )
    second = Module(
        "module1",
        ("module0",),
        lambda inputs, _: [ask(f"last {inputs['module0']}")],
        parse,
        lambda _: "",
        MAX_TOKENS,
    )
    return CompoundSystem("toy", (first, second), version)


def grade(output: str, query: Query) -> float:
    """0 if there is no output, else what the output and the query make of it, at least 0.4."""
    return 0.4 + zlib.crc32(f"{query.gold} {output}".encode()) % 61 / 100 if output else 0.0


def prompt_of(request: dict) -> str:
    return request["messages"][-1]["content"]


def identity(request: dict) -> str:
    return json.dumps(request, sort_keys=True)


def say(request: dict) -> str:
    """One to five words that depend on all of the request."""
    seed = zlib.crc32(identity(request).encode())
    return " ".join(f"w{(seed >> i) % 97}" for i in range(1 + seed % 5))


@dataclass
class Script:
    """Answers like `say`, unless `trouble` has another answer; keeps what it was paid for."""

    trouble: Callable[[dict, int], Behaviour | None] = lambda _request, _number: None
    asked: Counter = field(default_factory=Counter)
    paid: Counter = field(default_factory=Counter)

    def __call__(self, request: dict) -> Behaviour:
        key = identity(request)
        number, self.asked[key] = self.asked[key], self.asked[key] + 1
        answer = self.trouble(request, number)
        if answer is None:
            self.paid[key] += 1
            return say(request)
        return answer


@dataclass
class Live:
    """An evaluator and what is behind it."""

    evaluator: LiveEvaluator
    client: OpenAIClient
    store: ResponseStore


@contextlib.contextmanager
def live_on(
    endpoint: FakeEndpoint,
    directory: Path,
    *,
    concurrency: int = 4,
    system: CompoundSystem | None = None,
    queries: Sequence[Query] = QUERIES,
    metric: Any = grade,
    llms: dict[str, LLMInfo] = LLMS,
    key: str | None = None,
    store: str = "replies.sqlite",
    **settings: Any,
) -> Iterator[Live]:
    values = {"backoff_s": 0.0, "retries": 1, "concurrency": 16, **settings}
    client = OpenAIClient(llms, endpoint.url, key, **values)
    replies = ResponseStore(directory / store, client)
    made = system or toy()
    evaluator = LiveEvaluator(
        MODULES, CANDIDATES, made, queries, metric, llms, replies, concurrency
    )
    try:
        yield Live(evaluator, client, replies)
    finally:
        evaluator.close()
        asyncio.run(replies.close())


def problem(num_queries: int = len(QUERIES)) -> SelectionProblem:
    return SelectionProblem("toy", MODULES, CANDIDATES, num_queries, (2, 1), 0.7, 3e-4, 0.05)


BUDGET_USD = 0.0025  # some 20 observations


def search(
    live: Live,
    run_dir: Path | None,
    callbacks: Sequence[Any] = (),
    budget_usd: float = BUDGET_USD,
    **settings: Any,
) -> RunResult:
    """A whole run of SCOPE on the toy."""
    made = problem(len(live.evaluator.queries))
    scope = make_scope(made, base="llm0", gap_tolerance=None, device="cpu", **settings)
    return run(made, scope, live.evaluator, budget_usd, run_dir=run_dir, callbacks=callbacks)


class Sweep(SequentialOptimizer):
    """Asks for everything at once, once."""

    name = "sweep"

    def __init__(self, thetas: Sequence[tuple[int, ...]], num_queries: int = len(QUERIES)) -> None:
        self.problem, self._thetas = problem(num_queries), thetas
        super().__init__()

    def _search(self) -> Steps:
        queries = range(self.problem.num_queries)
        observations = yield [Request(theta, q) for theta in self._thetas for q in queries]
        for observation in observations:
            self._record(observation)

    def recommend(self) -> Recommendation:
        return Recommendation(self.problem.theta_ref, "reference")

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "thetas": [list(theta) for theta in self._thetas]}

    def report(self) -> dict[str, Any]:
        return {}


def sweep(live: Live, run_dir: Path | None, thetas=((0, 0), (1, 1)), callbacks=()) -> RunResult:
    optimizer = Sweep(thetas)
    return run(optimizer.problem, optimizer, live.evaluator, 1.0, run_dir=run_dir,
               callbacks=callbacks)  # fmt: skip


def values(result) -> list[tuple]:
    """What a search saw: all of it but the seconds."""
    return [(o.request, o.cost_usd, o.quality, o.module_tokens) for o in result.history]


def price_usd(model: str, prompt: int, completion: int) -> float:
    number = int(model[1:])
    return (prompt * (1.0 + number) + completion * 4.0 * (1 + number)) / 1e6


def call_usd(request: dict, text: str | None = None) -> float:
    """Tokens x price of a call, retyped."""
    prompt = sum(count_tokens(message["content"]) for message in request["messages"])
    return price_usd(request["model"], prompt, count_tokens(say(request) if text is None else text))


def most_usd(request: dict) -> float:
    """The stated estimate of a call that may have been billed, retyped."""
    sizes = [len(m["content"].encode()) + len(m["role"]) for m in request["messages"]]
    prompt = sum(math.ceil(size / 2) + 8 for size in sizes)
    return price_usd(request["model"], prompt, request["max_tokens"])


def request_body(code: int, text: str) -> dict:
    """What is sent to an LLM of the toy."""
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": text},
    ]
    return {
        "model": f"m{code}",
        "messages": messages,
        "max_tokens": MAX_TOKENS,
        "temperature": 0.0,
    }


def calls_of(theta: tuple[int, int], query: int) -> list[list[dict]]:
    """The requests of a configuration on a query, by module, if all goes well."""
    text = QUERIES[query].fields["text"]
    first = [request_body(theta[0], f"{which} {text}") for which in ("first", "second")]
    last = request_body(theta[1], "last " + " ".join(map(say, first)))
    return [first, [last]]
