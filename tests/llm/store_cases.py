"""A call, a client that counts, and stores that tests close; for the tests of the store."""

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from scope_torch.llm.chat import ChatCall, Completion, Message
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.store import ResponseStore

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-canary-1b7c55d0e3"
A = LLMInfo("a", 1.0, 4.0)
LLMS = {"a": A, "few": replace(A, name="few", model="a", prompting="few_shot"),
        "b": LLMInfo("b", 2.0, 2.0)}  # fmt: skip
CALL = ChatCall("a", (Message("user", "one two three"),), 32)
REPLY = Completion("é\0 it", 10, 3, 4, 0.25, 0.05, 1.5, "length", True)


def numbered(number: int) -> ChatCall:
    return replace(CALL, replicate=number)


@dataclass
class Client:
    """A client that returns REPLY or raises, after `before`."""

    outcome: Completion | BaseException = REPLY
    before: Callable[[], None] | None = None
    gate: asyncio.Event | None = None
    llms: dict[str, LLMInfo] = field(default_factory=lambda: LLMS)
    calls: list[ChatCall] = field(default_factory=list)

    async def complete(self, call: ChatCall) -> Completion:
        self.calls.append(call)
        if self.before:
            self.before()
        await (self.gate.wait() if self.gate else asyncio.sleep(0))
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture(name="path")
def fixture_of_path(tmp_path) -> Path:
    return tmp_path / "new" / "replies.sqlite"


@pytest.fixture(name="open_store")
def fixture_of_stores(path):
    stores = []

    def opened(client, **settings) -> ResponseStore:
        stores.append(ResponseStore(path, client, **settings))
        return stores[-1]

    yield opened
    for store in stores:
        asyncio.run(store.close())


def run(store, *calls: ChatCall) -> list:
    async def main() -> list:
        return await asyncio.gather(*map(store.complete, calls), return_exceptions=True)

    return asyncio.run(main())


def ledger(store: ResponseStore) -> tuple[float, float, float, int]:
    """USD billed, replayed, and billed in the whole file; calls in flight."""
    total = store.total_billed_usd()
    return store.billed_usd, store.replayed_usd, total, store.in_flight


def rows(path: Path, query: str) -> list[tuple]:
    with sqlite3.connect(path) as db:
        found = db.execute(query).fetchall()
    db.close()
    return found
