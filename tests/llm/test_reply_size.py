"""The memory that a reply takes is bounded, whatever a server sends."""

import gzip
import json
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator

import pytest
from llm.client_cases import CALL, MOST_USD, client_of, run
from llm.fake_endpoint import only_loopback  # noqa: F401
from llm.raw_server import RawServer, chat, response
from llm.store_cases import ROOT

from scope_torch.llm import billing
from scope_torch.llm.chat import Completion, LLMError

MIB = 1 << 20
USAGE = {"prompt_tokens": 5, "completion_tokens": 2}
OPENED = b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n%s\r\n"


def bomb(status: int = 200) -> Iterator[bytes]:
    """3 GB of spaces in 3 MB of gzip."""
    yield OPENED % (status, b"Content-Encoding: gzip\r\n")
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    for _ in range(3000):
        piece = packer.compress(b" " * 1_000_000) + packer.flush(zlib.Z_SYNC_FLUSH)
        yield chunk(piece)


def spaces(status: int = 200) -> Iterator[bytes]:
    """4 GB of spaces."""
    yield OPENED % (status, b"")
    for _ in range(4096):
        yield chunk(b" " * MIB)


def layers() -> Iterable[bytes]:
    """Packed twice: one small piece would become gigabytes."""
    packed = gzip.compress(gzip.compress(bytes(100 * MIB)))
    return [response(packed, "Content-Encoding: gzip, gzip")]


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


ANSWERS = {
    "gzip bomb": bomb,
    "endless spaces": spaces,
    "gzip bomb as an error": lambda: bomb(400),
    "endless error": lambda: spaces(500),
    "packed twice": layers,
}

# The limit is on the memory of the whole process, above what it has when the server answers.
CHILD = """
import asyncio, resource, sys
from pathlib import Path
import openai
from scope_torch.llm.chat import ChatCall, LLMError, Message
from scope_torch.llm.client import OpenAIClient
from scope_torch.llm.prices import LLMInfo

async def main():
    client = OpenAIClient({"a": LLMInfo("a", 1.0, 4.0)}, sys.argv[1], None, retries=0)
    await client.complete(ChatCall("a", (Message("user", "warm up"),), 32))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 256 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for name in sys.argv[2:]:
        try:
            await client.complete(ChatCall("a", (Message("user", name),), 32))
        except LLMError as error:
            print(error)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is one of Linux")
@pytest.mark.parametrize("are_errors", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_huge_replies_are_given_up_within_256_mib(are_errors):
    def answer(request: dict, number: int) -> Iterable[bytes]:
        asked = request["messages"][0]["content"]
        return [response(chat("ok", USAGE))] if asked == "warm up" else ANSWERS[asked]()

    names = [name for name in ANSWERS if ("error" in name) == are_errors]
    with RawServer(answer) as server:
        child = subprocess.run(
            [sys.executable, "-c", CHILD, server.url, *names],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert child.returncode == 0, child.stderr[-2000:]
    for name, told in zip(names, child.stdout.splitlines(), strict=True):
        refused = "an encoding that was not asked for" if name == "packed twice" else "8388608 byte"
        assert refused in told


def test_a_huge_reply_may_have_been_billed(monkeypatch):
    monkeypatch.setattr("scope_torch.llm.bounded_http.MAX_REPLY_BYTES", 1000)
    with RawServer(lambda *_: response(chat("x" * 1000, USAGE))) as server:
        client = client_of(server, retries=1)
        (error,) = run(client, CALL)
    assert isinstance(error, LLMError)
    assert "sent more than 1000 bytes, 2 times" in str(error)
    assert error.cost_usd == client.billed_usd == pytest.approx(2 * MOST_USD)


@pytest.mark.parametrize("packed", ["gzip", "deflate", "identity", ""])
def test_replies_may_be_packed(packed):
    pack = {"gzip": gzip.compress, "deflate": zlib.compress}.get(packed, bytes)
    header = [f"Content-Encoding: {packed}"] if packed else []
    with RawServer(lambda *_: response(pack(chat("it is é", USAGE)), *header)) as server:
        (completion,) = run(client_of(server), CALL)
    assert isinstance(completion, Completion), completion
    assert completion.text == "it is é"
    assert not completion.estimated


def test_the_longest_text_fits_however_it_is_escaped():
    """Six bytes a character, in a reply that is not cut."""
    text = "é" * billing.MAX_TEXT_CHARS
    body = chat(text, USAGE)
    assert 6 * billing.MAX_TEXT_CHARS < len(body) < billing.MAX_REPLY_BYTES
    assert json.loads(body)["choices"][0]["message"]["content"] == text
    with RawServer(lambda *_: response(body)) as server:
        (completion,) = run(client_of(server), CALL)
    assert completion.text == text
