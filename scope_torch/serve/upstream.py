"""Sends requests to the upstream, and reads every reply to its end, because it is paid for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

from scope_torch.errors import InputError
from scope_torch.llm.billing import MAX_REPLY_BYTES
from scope_torch.llm.bounded_http import ENCODINGS
from scope_torch.llm.client import NOT_BUILT, NOT_SENT
from scope_torch.llm.estimates import Most
from scope_torch.llm.keys import holds_key, key_of, redact_logs, without_key, without_secrets
from scope_torch.llm.usage import Usage
from scope_torch.serve.apis import GENERATE, Api, Refused
from scope_torch.serve.headers import Headers, to_application, to_upstream
from scope_torch.serve.reading import Events, Reading

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

_STREAM = "text/event-stream"
_END = b""
_GONE = 401, 403, 404, 410
_FIRST_LOOK_S, _LAST_LOOK_S = 0.25, 8.0  # how soon a background response is asked for, and asked


@dataclass
class UpstreamRequest:
    """A request on its way.

    Args:
        api: Its API.
        path: Its path at the upstream.
        content: The body for the upstream.
        headers: The application's headers.
        query: The query string, without question mark.
        reading: Reads the bill of the reply.
        book: Takes the billed tokens (None for nothing) and whether it failed; called once, before
            the application has the end of the reply, but for a background response.
        method: Its method.
        plain: The body without `stream_options`, if the application did not ask for them.
        model: The name of the LLM at the upstream.
        is_booked: Whether `book` was called.
    """

    api: Api
    path: str
    content: bytes
    headers: Headers
    query: str
    reading: Reading
    book: Callable[[Usage | None, bool], None]
    method: str = "POST"
    plain: bytes | None = None
    model: str = ""
    is_booked: bool = False

    def end(self, *, cut: bool = False) -> None:
        """Books the request, the first time."""
        if not self.is_booked:
            self.is_booked = True
            self.book(self.reading.bill(), self.reading.failed or cut)


class StreamCut(Exception):
    """A stream ended too early; the connection to the application is closed likewise."""


@dataclass
class Answer:
    """An answer for the application.

    Args:
        status: Status.
        headers: Headers.
        content: The body; None for a stream.
        pieces: The events of a stream, as they come; then `_END`, or the error that cut it.
        refused: Why the upstream's own answer, if there was one, is not passed on.
    """

    status: int
    headers: dict[str, str]
    content: bytes | None = None
    pieces: asyncio.Queue[bytes | Refused] | None = None
    refused: Refused | None = None


class Upstream:
    """The endpoint that requests are forwarded to.

    Redirects are refused, because they would send the prompts to another address. Every request has
    a connection of its own: on a shared one, a server that answers twice would answer the next
    request with the surplus reply.

    Args:
        base_url: Address in front of `/chat/completions`.
        api_key_env: Environment variable with the key; None for none.
        timeout_s: The longest time of one request, in seconds.

    Attributes:
        no_stream_options: LLMs at the upstream that refuse `stream_options`.
    """

    def __init__(self, base_url: str, api_key_env: str | None, timeout_s: float) -> None:
        self._base_url, self._key_env, self._timeout_s = base_url, api_key_env, timeout_s
        self.no_stream_options: set[str] = set()
        self._waiting: dict[str, Reading] = {}  # of background responses, by their paths
        self._client: httpx.AsyncClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.check_access()

    def check_access(self) -> None:
        """Raises InputError if the key is not set."""
        key_of(self._key_env, f"the endpoint at {self._base_url}")

    def open(self) -> None:
        """Makes the client, in the event loop that uses it."""
        import httpx

        redact_logs(("httpx", "httpcore"), self._key_env)
        self._client = httpx.AsyncClient(
            follow_redirects=False,
            # A shorter time to connect: then a request that was never sent ends as such.
            timeout=httpx.Timeout(self._timeout_s, connect=self._timeout_s / 2),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            # No cookie of one reply is sent with the next request, which may be another's.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    async def close(self) -> None:
        """Waits for the requests in flight, and closes the client."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._timeout_s + 1)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def forward(self, request: UpstreamRequest) -> Answer:
        """The answer to a request. It is read to its end even if nobody waits for it any more."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not request.is_booked:  # cancelled before its first step, so it sent nothing
                request.reading.free = True
                request.end(cut=True)
            if not answer.done():
                answer.set_result(refusal(request.api, Refused(502, "the endpoint was stopped")))

        task = asyncio.create_task(self._forward(request, answer))
        self._tasks.add(task)
        task.add_done_callback(ended)
        return await answer

    async def _forward(self, request: UpstreamRequest, answer: asyncio.Future[Answer]) -> None:
        reading, whole = request.reading, None
        trouble = Refused(502, "the endpoint was stopped")
        pieces: asyncio.Queue[bytes | Refused] = asyncio.Queue()

        def begin(status: int, headers: dict[str, str]) -> None:
            if not answer.done():  # the application may have hung up
                answer.set_result(Answer(status, headers, pieces=pieces))

        try:
            async with asyncio.timeout(self._timeout_s):
                whole = await self._exchange(request, begin, pieces)
                if reading.waits() and request.path == request.api.path:
                    if not answer.done():
                        answer.set_result(whole)
                    await self._wait_for_usage(request)
        except Exception as error:
            trouble = self._trouble(error, reading)
        finally:  # also if the task is cancelled
            cut = whole is None and not reading.ended
            try:
                request.end(cut=cut)
            finally:
                pieces.put_nowait(trouble if cut else _END)
                if not answer.done():
                    answer.set_result(whole or refusal(request.api, trouble))

    async def _exchange(
        self,
        request: UpstreamRequest,
        begin: Callable[[int, dict[str, str]], None],
        pieces: asyncio.Queue[bytes | Refused],
    ) -> Answer:
        """Sends the request and reads the reply; a stream goes into `pieces`."""
        response = await self._send(request)
        try:
            status, kind = response.status_code, response.headers.get("content-type", "")
            _check(response, request.reading)
            headers = to_application(response.headers.raw, self._key_env)
            if status < 300 and kind.partition(";")[0].strip().lower() == _STREAM:
                begin(status, headers)
                await self._pump(response, request, pieces)
                return Answer(status, headers, pieces=pieces)
            content = await _read(response)
        finally:
            await response.aclose()
        if status in (400, 422) and request.plain is not None and b"stream_options" in content:
            request.content, request.plain = request.plain, None
            request.reading.wants_usage = True  # what comes now is not due to us
            request.reading.failed = request.reading.free = False  # it is sent, and paid, anew
            answer = await self._exchange(request, begin, pieces)
            if answer.status < 300:  # else the error only repeats what was sent
                self.no_stream_options.add(request.model)
            return answer
        request.reading.whole(content)
        waiting = self._waiting.get(request.path)  # the application may ask before us
        if waiting is not None and status < 300 and request.method == "GET":
            waiting.whole(content)
        return Answer(status, headers, await self._shown(content, request.reading))

    async def _send(self, request: UpstreamRequest) -> httpx.Response:
        """Sends the request; an error while it is built costs nothing."""
        assert self._client is not None
        base_url = self._base_url
        if request.api is GENERATE:
            base_url = base_url.removesuffix("/openai")  # Google's address for chat completions
        url = base_url + request.path + (f"?{request.query}" if request.query else "")
        headers = to_upstream(request.headers, request.api, self._key_env, url)
        try:
            # As bytes: the server has decoded them so, and httpx would refuse what is not ASCII.
            pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
            sent = self._client.build_request(
                request.method, url, content=request.content, headers=pairs
            )
        except Exception as error:
            raise self._not_built(type(error).__name__, request.reading) from None
        return await self._client.send(sent, stream=True)

    @staticmethod
    def _not_built(kind: str, reading: Reading) -> Refused:
        reading.free = True
        return Refused(502, f"this request cannot be sent on ({kind}); look at its headers")

    async def _wait_for_usage(self, request: UpstreamRequest) -> None:
        """Asks for a background response until it tells its usage."""
        reading, wait_s = request.reading, _FIRST_LOOK_S
        ask = replace(
            request, method="GET", path=f"{request.path}/{reading.later}", content=b"", query="",
            reading=Reading(request.api, Most(0, 0), False),
        )  # fmt: skip
        self._waiting[ask.path] = reading
        try:
            while reading.waits():
                await asyncio.sleep(wait_s)
                if reading.waits() and await self._look(ask) in _GONE:
                    return  # it will not be told
                wait_s = min(2 * wait_s, _LAST_LOOK_S)
        finally:
            del self._waiting[ask.path]

    async def _look(self, ask: UpstreamRequest) -> int | None:
        """Asks for a background response; returns the status, None if no answer came."""
        try:
            return (await self._exchange(ask, lambda *_: None, asyncio.Queue())).status
        except Exception as error:  # a later look may get an answer
            logger.info("a background response was not told (%s)", type(error).__name__)
            return None

    async def _pump(
        self, response: Any, request: UpstreamRequest, pieces: asyncio.Queue[bytes | Refused]
    ) -> None:
        """Passes the events of a stream on, as they come, up to the one that ends it."""
        events, reading = Events(), request.reading
        async for piece in response.aiter_bytes():
            for event in events.feed(piece):
                passes = reading.event(event)
                if reading.ended:
                    request.end()
                if passes:
                    pieces.put_nowait(await self._shown(event, reading))
                if reading.ended:
                    return
        if rest := events.rest():
            reading.event(rest)
            pieces.put_nowait(await self._shown(rest, reading))

    async def _shown(self, content: bytes, reading: Reading) -> bytes:
        """A reply or an event: without secrets if it is an error, and never with the key.

        Errors have many forms. The key tells one that is not known, and other replies stay as they
        are, byte by byte.
        """
        if not reading.failed and not holds_key(content, self._key_env):
            return content
        redact = without_secrets if reading.failed else without_key
        text = content.decode("utf-8", "surrogateescape")
        shown = await asyncio.to_thread(redact, text, self._key_env)
        return shown.encode("utf-8", "surrogateescape")

    def _trouble(self, error: Exception, reading: Reading) -> Refused:
        """Why a request got no whole reply; says to `reading` if it was never sent."""
        if isinstance(error, Refused):
            return error
        if isinstance(error, InputError):  # the key is not set any more
            reading.free = True
            return Refused(502, str(error))
        if isinstance(error, TimeoutError):
            waited = f"the upstream had not answered after {self._timeout_s:g} s"
            return Refused(504, waited, again=True)
        kind = type(error).__name__
        if kind in NOT_BUILT:
            return self._not_built(kind, reading)
        if kind in NOT_SENT:
            reading.free = True
            unreachable = f"the upstream cannot be reached ({kind}); check its base URL"
            return Refused(502, unreachable, again=True)
        status = 504 if "Timeout" in kind else 502
        return Refused(status, f"the connection to the upstream was lost ({kind})", again=True)


async def pieces_of(answer: Answer, api: Api) -> AsyncIterator[bytes]:
    """The pieces of a stream for the application.

    Raises:
        StreamCut: If the upstream cut it; the last piece is then an error event.
    """
    assert answer.pieces is not None
    while (piece := await answer.pieces.get()) is not _END:
        if isinstance(piece, Refused):
            yield api.error_event(piece.status, str(piece))
            raise StreamCut(str(piece))
        yield piece


def _check(response: Any, reading: Reading) -> None:
    """Refuses redirects and unknown encodings.

    Raises:
        Refused: If the reply is one of these.
    """
    status = response.status_code
    reading.failed = reading.free = status >= 300
    if 300 <= status < 400:
        raise Refused(502, f"the upstream answered {status}, a redirect; check its base URL")
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ENCODINGS:
        raise Refused(502, "the upstream sent a reply in an encoding that was not asked for")


async def _read(response: Any) -> bytes:
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > MAX_REPLY_BYTES:
            raise Refused(502, f"the upstream sent more than {MAX_REPLY_BYTES} bytes")
    return bytes(content)


def refusal(api: Api, refused: Refused) -> Answer:
    """The answer that says what was refused, in the format of an API."""
    headers = {"content-type": "application/json", **refused.headers}
    content = api.error(refused.status, str(refused))
    return Answer(refused.status, headers, content, refused=refused)
