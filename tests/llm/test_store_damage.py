"""A damaged store is refused: no reply, cost or total is silently another one."""

import asyncio
import math
import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from llm.store_cases import (
    CALL,
    REPLY,
    A,
    Client,
    fixture_of_path,  # noqa: F401
    fixture_of_stores,  # noqa: F401
    numbered,
    rows,
    run,
)

from scope_torch.errors import InputError
from scope_torch.llm.chat import Completion, LLMError
from scope_torch.llm.store import ResponseStore, call_key
from scope_torch.llm.store_file import StoreFile

VERSION_1 = """
CREATE TABLE replies (key TEXT PRIMARY KEY, model TEXT, stored_at REAL, text, prompt_tokens,
    completion_tokens, cached_tokens, cost_usd, failed_usd, latency_s, finish_reason, estimated);
CREATE TABLE failures (key TEXT, model TEXT, failed_at REAL, cost_usd REAL, reason TEXT);
CREATE TABLE claims (key TEXT PRIMARY KEY, owner TEXT, claimed_at REAL);
PRAGMA application_id = 1396920144;
PRAGMA user_version = 1;
"""


def stored(path: Path, column: str, value: object) -> None:
    """Changes a value of the only reply."""
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE replies SET {column} = ?", (value,))
    db.close()


def change(path: Path, column: str, value: object) -> InputError:
    """The error of a store whose only reply has another value."""
    store = ResponseStore(path, Client())
    run(store, CALL)
    stored(path, column, value)
    (error,) = run(store, CALL)
    with pytest.raises(InputError, match="is damaged"):
        store.total_billed_usd()
    asyncio.run(store.close())
    assert isinstance(error, InputError), error
    return error


@pytest.mark.parametrize(
    ("column", "value"),
    [("cost_usd", 0.25000000000000006), ("cost_usd", -5.0), ("cost_usd", None), ("text", "é\0 iu"),
     ("prompt_tokens", 11), ("estimated", 0), ("finish_reason", "stop"), ("model", "b"),
     ("checksum", None)],
)  # fmt: skip
def test_a_value_that_was_changed_is_noticed(path, column, value):
    error = change(path, column, value)
    assert f"{path}: the row with key '3f3464c4b5c7300d" in str(error)
    assert "its checksum is wrong" in str(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [("cost_usd", -5.0), ("cost_usd", math.inf), ("cost_usd", "0.25"), ("cost_usd", None),
     ("failed_usd", b"\0"), ("text", 3), ("text", None), ("prompt_tokens", 1.5),
     ("completion_tokens", -1), ("finish_reason", None), ("estimated", "yes"),
     ("latency_s", "1")],
)  # fmt: skip
def test_values_of_a_wrong_type_are_noticed_in_an_old_store(path, name, value):
    """A store of version 1 may have been damaged before it got its checksums."""
    old_store(path, **{name: value})
    store = ResponseStore(path, Client())
    (error,) = run(store, CALL)
    asyncio.run(store.close())
    assert isinstance(error, InputError), error
    assert f"is damaged ({name}={value!r})" in str(error)


def old_store(path: Path, **changed: object) -> None:
    """A store of version 1 with one reply and one failure."""
    path.parent.mkdir(exist_ok=True)
    values = {**vars(REPLY), "estimated": 1, **changed}
    with sqlite3.connect(path) as db:
        db.executescript(VERSION_1)
        marks = ", ".join("?" * 12)
        row = call_key(CALL, A), "a", 1.7e9, *values.values()
        db.execute(f"INSERT INTO replies VALUES ({marks})", row)
        db.execute("INSERT INTO failures VALUES ('k', 'a', 1.7e9, 0.5, 'lost')")
    db.close()


def test_an_old_store_goes_on(path, open_store):
    old_store(path)
    client = Client()
    store = open_store(client)
    assert run(store, CALL) == [REPLY]
    assert client.calls == []
    assert store.total_billed_usd() == 0.75
    assert run(store, numbered(1)) == [REPLY]
    again = open_store(client)
    assert run(again, CALL, numbered(1)) == [REPLY, REPLY]
    assert again.total_billed_usd() == 1.0
    stored(path, "cost_usd", 0.125)
    assert "its checksum is wrong" in str(run(open_store(client), CALL)[0])


def test_the_checksum_of_a_reply_stays_what_it_is(path, open_store, monkeypatch):
    """Else every stored reply would be refused."""
    monkeypatch.setattr("scope_torch.llm.store_file.time.time", lambda: 1.7e9)
    run(open_store(Client()), CALL)
    (checksum,) = rows(path, "SELECT checksum FROM replies")[0]
    assert checksum.startswith("629f3e46b83a5cfc")


def test_a_failure_that_was_changed_is_noticed(path, open_store):
    store = open_store(Client(LLMError("no reply", cost_usd=0.5)))
    run(store, CALL)
    assert store.total_billed_usd() == 0.5
    with sqlite3.connect(path) as db:
        db.execute("UPDATE failures SET cost_usd = 0.25")
    db.close()
    with pytest.raises(InputError, match="is damaged"):
        store.total_billed_usd()


def test_a_claim_of_nonsense_is_one_of_another_machine(path, open_store):
    StoreFile(path).close()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO claims VALUES (?, 'x', 'y')", (call_key(CALL, A),))
    db.close()
    assert run(open_store(Client(), claim_limit_s=0.0, poll_s=0.01), CALL) == [REPLY]


CALLS = [numbered(i) for i in range(30)]


def whole_store(path: Path) -> tuple[bytes, list[Completion], float]:
    """Content of the file of a store, its replies, and its total in USD."""
    draw = random.Random(1)

    class Varied(Client):
        async def complete(self, call):
            if call.replicate % 10 == 9:
                raise LLMError("no reply", cost_usd=draw.random())
            text = "x" * draw.randrange(900)
            return replace(REPLY, text=text, cost_usd=draw.random(), latency_s=draw.random())

    store = ResponseStore(path, Varied())
    replies = run(store, *CALLS)
    total = store.total_billed_usd()
    asyncio.run(store.close())
    return path.read_bytes(), replies, total


class Nobody(Client):
    async def complete(self, call):
        raise AssertionError("a reply that is stored was to be paid for again")


def outcome(path: Path) -> tuple[list, float] | InputError:
    try:
        store = ResponseStore(path, Nobody())
    except InputError as error:
        return error
    try:
        found = run(store, *[call for call in CALLS if call.replicate % 10 != 9])
        errors = [reply for reply in found if isinstance(reply, InputError)]
        return errors[0] if errors else (found, store.total_billed_usd())
    except InputError as error:
        return error
    finally:
        asyncio.run(store.close())


def flip(path: Path, whole: bytes, bit: int) -> None:
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    for name in ("-wal", "-shm"):
        Path(f"{path}{name}").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "number", [60, pytest.param(2000, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_flipped_bits_change_nothing_silently(path, number):
    whole, replies, total = whole_store(path)
    expected = [reply for reply in replies if isinstance(reply, Completion)], total
    assert len(expected[0]) == 27
    assert outcome(path) == expected
    noticed = 0
    for bit in random.Random(number).sample(range(8 * len(whole)), number):
        flip(path, whole, bit)
        found = outcome(path)
        noticed += isinstance(found, InputError)
        assert isinstance(found, InputError) or found == expected, bit
    assert noticed > number / 3
