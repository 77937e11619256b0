"""The application behind the endpoint's address: finds module, query and LLM of a request."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from scope_torch.factors import LLM
from scope_torch.llm.estimates import Most, most_of
from scope_torch.llm.price_list import PriceList
from scope_torch.llm.usage import Usage
from scope_torch.serve.apis import (
    APIS,
    CHAT,
    COUNT_TOKENS,
    GENERATE,
    MESSAGES,
    RESPONSE_ID,
    RESPONSES,
    Api,
    Refused,
    address,
    asking_for_usage,
    encoded,
    module_of,
    outgoing,
    wants_usage,
)
from scope_torch.serve.chain import Chain, as_answer, troubles_of
from scope_torch.serve.factors import set_factors
from scope_torch.serve.headers import check_caller, query_string
from scope_torch.serve.ledger import Ledger
from scope_torch.serve.metrics import CONTENT_TYPE, metrics_text
from scope_torch.serve.queries import HEADER, Queries, QueryInFlight
from scope_torch.serve.reading import Reading
from scope_torch.serve.upstream import Answer, Upstream, UpstreamRequest, pieces_of, refusal

if TYPE_CHECKING:
    from starlette.requests import Request as Incoming
    from starlette.responses import Response

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 64 << 20
_HANG_UP_S = 0.02  # so long after a request it may be seen that nobody waits for its answer

_KEY = re.compile(r"/q/(?P<key>[^/]+)")
_PATH = re.compile(
    rf"(?:{_KEY.pattern})?/v1(?P<what>/chat/completions|/responses|/messages|/models"
    rf"|/messages/count_tokens|/responses/{RESPONSE_ID}(?:/cancel|/input_items)?)"
)
# Clients put their version of the API behind our address; the upstream's own is in its base URL.
_OF_GEMINI = re.compile(
    rf"(?:{_KEY.pattern})?(?:/v1)?/v1(?:alpha|beta)?/models(?:/(?P<model>.+):"
    r"(?P<what>generateContent|streamGenerateContent|countTokens)|/(?P<one>[^:]+))?"
)
_WHAT_OF_GEMINI = {
    "generateContent": GENERATE.path,
    "streamGenerateContent": GENERATE.path,
    "countTokens": COUNT_TOKENS,
}
_METRICS, _MODELS = "/metrics", "/models"
_SAME = "idempotency-key"  # the same request; another LLM is another one
_COUNTS = "/messages/count_tokens", "/responses/input_tokens", COUNT_TOKENS


class Settings(NamedTuple):
    """What the endpoint was made with; see `Endpoint`."""

    prices: PriceList
    prefix: str
    hosts: frozenset[str]
    token: str | None
    extra_body: dict[str, Any]
    host: str
    chain: Chain | None
    asks_for_usage: bool


class Routing(NamedTuple):
    """Who answers the modules of a request, and where it is booked."""

    assignment: Mapping[str, str]
    query: QueryInFlight | None


class App:
    """Answers requests of applications.

    Args:
        settings: Settings of the endpoint.
        queries: The queries in flight.
        upstream: Where requests are forwarded to.
        ledger: The bills of all queries together.
    """

    def __init__(
        self, settings: Settings, queries: Queries, upstream: Upstream, ledger: Ledger
    ) -> None:
        self._settings, self._queries = settings, queries
        self._upstream, self._ledger = upstream, ledger

    def asgi(self) -> Any:
        """The application as ASGI servers take it."""
        from starlette.applications import Starlette
        from starlette.routing import Route

        methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
        return Starlette(routes=[Route("/{path:path}", self.answer, methods=methods)])

    async def answer(self, incoming: Incoming) -> Response:
        """Answers one request."""
        from starlette.requests import ClientDisconnect
        from starlette.responses import Response

        api = _api_of(incoming)
        try:
            check_caller(incoming.headers, self._settings.hosts, self._settings.token)
            key, what = _route(incoming)
            if what == _METRICS:
                active = 0 if self._settings.chain is None else self._settings.chain.active
                text = metrics_text(self._ledger, active)
                return Response(text, headers={"content-type": CONTENT_TYPE})
            routing = await self._routing(incoming, what, key)
            if what.startswith(_MODELS):
                found = self._models(routing, what.removeprefix(_MODELS))
                return Response(json.dumps(found), media_type="application/json")
            return await self._forward(incoming, api, what, routing)
        except Refused as error:
            in_path = _KEY.match(incoming.scope["path"])  # also where there is nothing
            key = in_path["key"] if in_path else incoming.headers.get(HEADER, "")
            self._queries.refuse(key, error)
            answer = refusal(api, error)
            return Response(answer.content, answer.status, answer.headers)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it

    async def _forward(self, incoming: Incoming, api: Api, what: str, routing: Routing) -> Response:
        asks = what == api.path
        if asks and routing.query is None and self._settings.chain is not None:
            return await self._by_chain(incoming, api, self._settings.chain)
        body: dict[str, Any] = {}
        if asks:
            body = await _body(incoming, api)
            request = self._request(incoming, api, body, routing)
        else:
            request = await self._unbilled(incoming, api, what, routing)
        if routing.query is not None and not self._queries.enter(routing.query, asks):
            await self._stray(incoming, routing.query.key)
            raise _ended()
        answer = await self._upstream.forward(request)
        if asks and routing.query is not None and answer.content is not None:
            module = module_of(body.get("model"), routing.assignment, self._settings.prefix)
            routing.query.note(module, *troubles_of(answer))
        return _response(answer, pieces_of(answer, api))

    async def _by_chain(self, incoming: Incoming, api: Api, chain: Chain) -> Response:
        """The answer of the first configuration that gives one; the last error if none does."""
        body = await _body(incoming, api)
        module = module_of(body.get("model"), chain.entries[0], self._settings.prefix)
        request, answer, llm, reason, refused = None, None, "", None, None
        for assignment in chain.attempts(module):
            try:
                request = self._request(incoming, api, body, Routing(assignment, None))
            except Refused as error:  # a fallback with a factor that this API cannot set
                if assignment == chain.entries[0]:
                    raise
                refused, name = error, assignment[module]
                logger.warning("fallback %r of %r cannot be asked: %s", name, module, error)
                chain.fail(module, name)
                continue
            if reason is not None:
                self._ledger.fall_back(module, llm, reason)
                told = "%s: %r failed (%s), so %r is asked"
                logger.warning(told, module, llm, reason, assignment[module])
                request.headers = [pair for pair in request.headers if pair[0] != _SAME]
            llm = assignment[module]
            answer = await self._upstream.forward(request)
            reason = chain.judge(module, llm, answer)
            if reason is None or await incoming.is_disconnected():
                break
        if request is None or answer is None:
            raise refused or Refused(503, "no fallback can be asked")
        pieces = chain.watched(module, llm, pieces_of(answer, api), request.reading)
        return _response(answer, pieces)

    def _request(
        self, incoming: Incoming, api: Api, body: dict[str, Any], routing: Routing
    ) -> UpstreamRequest:
        """The request for the upstream."""
        settings = self._settings
        prices = (routing.query and routing.query.prices) or settings.prices
        module, llm, out = self._outgoing(api, body, routing)
        asks = settings.asks_for_usage and out["model"] not in self._upstream.no_stream_options
        asking = asking_for_usage(api, out) if asks else out
        path, sent = address(api.path, asking)
        content, plain, began_s = encoded(sent), None, monotonic()
        if asking is not out and out.get("stream_options") is None:
            plain = encoded(out)

        def book(usage: Usage | None, failed: bool) -> None:
            took_s = monotonic() - began_s
            try:
                usd = 0.0 if usage is None else prices.cost_usd(llm, usage, took_s)
                self._ledger.book(module, usage, usd, llm=llm, failed=failed)
                if routing.query is not None:
                    routing.query.ledger.book(module, usage, usd, llm=llm, failed=failed)
            finally:
                if routing.query is not None:
                    # Of a stream this is all; a whole answer is looked at once more, as it is.
                    routing.query.note(module, *troubles_of(as_answer(reading.error)))
                    routing.query.leave()

        most = most_of(api.limits, asking, len(content))
        reading = Reading(api, most, asking is out or wants_usage(body))
        query, headers = query_string(incoming.url.query), incoming.headers.items()
        return UpstreamRequest(
            api, path, content, headers, query, reading, book, plain=plain, model=out["model"]
        )

    async def _unbilled(
        self, incoming: Incoming, api: Api, what: str, routing: Routing
    ) -> UpstreamRequest:
        """A request that costs nothing: it counts tokens, or is about an earlier response."""
        content = b""
        if what in _COUNTS:
            body = await _body(incoming, api)
            what, out = address(what, self._outgoing(api, body, routing, asks=False)[2])
            content = encoded(out)

        def book(_usage: Usage | None, _failed: bool) -> None:
            if routing.query is not None:
                routing.query.leave()

        reading, headers = Reading(api, Most(0, 0), True), incoming.headers.items()
        query, method = query_string(incoming.url.query), incoming.method
        return UpstreamRequest(api, what, content, headers, query, reading, book, method=method)

    def _outgoing(
        self, api: Api, body: dict[str, Any], routing: Routing, *, asks: bool = True
    ) -> tuple[str, str, dict[str, Any]]:
        """Module, choice and body of a request; what counts tokens takes no factors."""
        settings = self._settings
        module = module_of(body.get("model"), routing.assignment, settings.prefix)
        choice = LLM.parse(routing.assignment[module])
        info = settings.prices.listed(choice)
        out = outgoing(api, body, choice.llm, info, settings.extra_body if asks else {})
        if asks:
            set_factors(api, out, choice, info, settings.host)
        return module, choice, out

    async def _routing(self, incoming: Incoming, what: str, in_path: str | None) -> Routing:
        """The query of a request, or the LLMs chosen for good.

        Raises:
            Refused: If it belongs to no query, or to two.
        """
        in_header = incoming.headers.get(HEADER)
        if in_path and in_header and in_path != in_header:
            raise Refused(409, f"the path names query {in_path!r:.99}, {HEADER} another; send one")
        key, chain = in_path or in_header, self._settings.chain
        query = self._queries.find(key) if key else None
        if query is not None:
            return Routing(query.assignment, query)
        if not key and chain is not None:
            return Routing(chain.entries[chain.active], None)
        if not what.startswith(_MODELS):  # a list of models asks no LLM
            await self._stray(incoming, key)
        if key:
            raise _ended()
        raise Refused(
            409,
            "this request belongs to no query in flight: run the application inside `with "
            "endpoint.query(assignment) as query:`, with query.base_url as its base URL, or "
            f"with query.headers ({HEADER}); `scope-torch serve` answers without queries",
        )

    async def _stray(self, incoming: Incoming, key: str | None) -> None:
        """Counts a request of no query in flight, unless the application has cancelled it."""
        await asyncio.sleep(_HANG_UP_S)
        if not await incoming.is_disconnected():
            self._queries.stray(key)

    def _models(self, routing: Routing, name: str) -> dict[str, Any]:
        """The modules as a list of models, or the one named, for clients of any API."""
        names = [f"{self._settings.prefix}{module}" for module in routing.assignment]
        of_openai = {"object": "model", "created": 0, "owned_by": "scope-torch"}
        of_anthropic = {"type": "model", "created_at": "1970-01-01T00:00:00Z"}
        data = [{"id": n, "display_name": n, **of_openai, **of_anthropic} for n in names]
        of_google = [{"name": f"models/{n}", "displayName": n} for n in names]
        if name:
            module = module_of(name, routing.assignment, self._settings.prefix)
            at = [*routing.assignment].index(module)
            return data[at] | of_google[at]
        ends: dict[str, Any] = {"first_id": names[0], "last_id": names[-1], "has_more": False}
        return {"object": "list", "data": data, **ends, "models": of_google}


def _api_of(incoming: Incoming) -> Api:
    """The API whose errors the caller reads."""
    path = incoming.scope["path"]
    found, of_gemini = _PATH.fullmatch(path), _OF_GEMINI.fullmatch(path)
    what = found["what"] if found else ""
    if what in APIS:
        return APIS[what]
    if what.startswith("/responses/"):
        return RESPONSES
    if "/messages" in path or "anthropic-version" in incoming.headers:
        return MESSAGES
    if (of_gemini and of_gemini["model"]) or "x-goog-api-key" in incoming.headers:
        return GENERATE
    return CHAT


def _route(incoming: Incoming) -> tuple[str | None, str]:
    """The key of the query in the path, and the rest of the path.

    Raises:
        Refused: If there is nothing under this path or method.
    """
    path = incoming.scope["path"]
    found = _PATH.fullmatch(path) or _OF_GEMINI.fullmatch(path)
    if found is None and path != _METRICS:
        raise Refused(
            404,
            f"there is nothing at {path!r:.200}: only /v1/chat/completions, /v1/responses, "
            "/v1/messages, /v1beta/models/MODULE:generateContent and /v1/models, also behind "
            "/q/KEY, and /metrics; for other requests, such as embeddings, give the application a "
            "client of its own whose base URL is your provider's",
        )
    named = {"key": None, "what": _METRICS} if found is None else found.groupdict()
    key, what = named["key"], named["what"] or _MODELS + (named.get("one") or "")
    what = _WHAT_OF_GEMINI.get(what, what)
    methods = _methods(what)
    if incoming.method not in methods:
        raise Refused(405, f"{what:.200} takes {' or '.join(methods)}, not {incoming.method}")
    return key, what


def _methods(what: str) -> tuple[str, ...]:
    """The methods that a path takes."""
    parts = what.split("/")
    if what.startswith((_MODELS, _METRICS)):
        return ("GET", "HEAD")
    if parts[-1] == "input_items":
        return ("GET",)
    is_response = len(parts) == 3 and parts[1] == "responses" and what not in _COUNTS
    return ("GET", "DELETE") if is_response else ("POST",)


async def _body(incoming: Incoming, api: Api) -> dict[str, Any]:
    """The body of a request, with the model and the wish for a stream that Gemini's path names.

    Raises:
        Refused: If it is too large, packed, or no JSON object.
    """
    if incoming.headers.get("content-encoding", "identity") != "identity":
        raise Refused(415, "this endpoint reads no packed requests; send them as they are")
    content = bytearray()
    async for piece in incoming.stream():
        content += piece
        if len(content) > MAX_REQUEST_BYTES:
            raise Refused(413, f"the request has more than {MAX_REQUEST_BYTES} bytes")
    try:
        body = json.loads(bytes(content))
        json.dumps(body, allow_nan=False)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Refused(400, "the body of the request is no JSON object")
    if api is GENERATE and (found := _OF_GEMINI.fullmatch(incoming.scope["path"])):
        body |= {"model": found["model"], "stream": found["what"].startswith("stream")}
        if body["stream"] and incoming.query_params.get("alt") != "sse":
            raise Refused(400, "ask for a stream with ?alt=sse, as Google's own clients do")
    return body


def _response(answer: Answer, pieces: AsyncIterator[bytes]) -> Response:
    """The answer, whole or as a stream of pieces."""
    from starlette.responses import Response, StreamingResponse

    if answer.content is not None:
        return Response(answer.content, answer.status, answer.headers)
    return StreamingResponse(pieces, answer.status, answer.headers)


def _ended() -> Refused:
    return Refused(
        409,
        "this query is not in flight (any more): its `with endpoint.query(...)` has ended, so "
        "nothing is paid for it; take base_url or headers of the query that runs now",
    )
