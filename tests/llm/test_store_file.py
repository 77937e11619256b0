"""The file of a ResponseStore: its content, and files that are refused."""

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from llm.fake_endpoint import (
    FakeEndpoint,
    Status,
    only_loopback,  # noqa: F401
)
from llm.store_cases import (
    CALL,
    KEY,
    LLMS,
    REPLY,
    Client,
    fixture_of_path,  # noqa: F401
    fixture_of_stores,  # noqa: F401
    numbered,
    rows,
    run,
)

from scope_torch.errors import InputError
from scope_torch.llm.chat import Completion, LLMError
from scope_torch.llm.client import OpenAIClient
from scope_torch.llm.store import ResponseStore
from scope_torch.llm.store_file import StoreFile


def test_the_key_is_not_in_the_file(path, open_store, monkeypatch):
    monkeypatch.setenv("TEST_LLM_KEY", KEY)
    answers = ["ok", Status(401, message=KEY), Status(200, {"error": {"message": KEY}, "usage": {
        "prompt_tokens": 1, "completion_tokens": 1}})]  # fmt: skip
    with FakeEndpoint(answers, key=KEY) as endpoint:
        client = OpenAIClient(LLMS, endpoint.url, "TEST_LLM_KEY", retries=0, concurrency=1)
        store = open_store(client)
        outcomes = run(store, *map(numbered, range(3)))
        asyncio.run(store.close())
    assert [type(outcome) for outcome in outcomes] == [Completion, LLMError, LLMError]
    files = list(path.parent.iterdir())
    assert path in files
    for file in files:
        assert KEY.encode() not in file.read_bytes()
    assert KEY not in repr(store)
    assert len(rows(path, "SELECT * FROM failures")) == 1


def error_of(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        ResponseStore(path, Client())
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_files_that_are_refused(tmp_path):
    path = tmp_path / "x"
    path.write_text("prompt,reply\n" * 100)
    assert "not a file of replies; move it away, or name another file" in error_of(path)
    assert path.read_text() == "prompt,reply\n" * 100
    assert "name a file that can be written" in error_of(tmp_path)
    assert "name a file that can be written" in error_of(path / "below")
    (tmp_path / "full, locked").touch()  # words that _mend looks for
    assert "name a file that can be written" in error_of(tmp_path / "full, locked" / "below")


def test_files_of_other_programs_are_left_alone(tmp_path):
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE replies (key TEXT)")
    db.close()
    before = path.read_bytes()
    assert "belongs to another program; name another file" in error_of(path)
    assert path.read_bytes() == before


def test_files_of_another_version(path):
    StoreFile(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 7")
    db.close()
    assert "is of version 7, this program reads version 2; name another file" in error_of(path)


def test_damaged_files(path, open_store):
    store = open_store(Client(replace(REPLY, text="x" * 100_000)))
    run(store, *map(numbered, range(20)))
    asyncio.run(store.close())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    try:
        damaged = open_store(Client())
    except InputError as error:
        outcomes = [error]
    else:
        outcomes = run(damaged, *map(numbered, range(20)))
    errors = [str(outcome) for outcome in outcomes if isinstance(outcome, InputError)]
    assert errors
    for error in errors:
        assert f"{path}: database disk image is malformed; it is damaged" in error


def test_a_closed_store_says_so(path):
    store = ResponseStore(path, Client())
    asyncio.run(store.close())
    (error,) = run(store, CALL)
    assert isinstance(error, InputError)
    assert "the store was closed; make a new one" in str(error)


def test_a_locked_file_says_so(path, monkeypatch):
    monkeypatch.setattr("scope_torch.llm.store_file._BUSY_S", 0.01)
    StoreFile(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert "another process holds it; end that one" in error_of(path)
    other.close()


def test_replies_are_on_the_disk_before_they_are_used(path):
    """A reply is committed in WAL mode with synchronous=FULL; a claim need not be."""
    file = StoreFile(path)
    statements = []
    file._db.set_trace_callback(statements.append)
    assert file.claim("k", "me", lambda *_: False)
    assert "PRAGMA synchronous = NORMAL" in statements
    statements.clear()
    file.keep("k", "me", "a", REPLY)
    assert statements[0] == "PRAGMA synchronous = FULL"
    assert statements[-1] == "COMMIT"
    assert file._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert file._db.execute("PRAGMA synchronous").fetchone() == (2,)
    file.close()
