"""The application behind the endpoint's address: finds module, query and LLM of a request."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from scope_torch.llm.billing import Usage
from scope_torch.llm.price_list import PriceList
from scope_torch.serve.apis import (
    APIS,
    CHAT,
    MESSAGES,
    Api,
    Refused,
    module_of,
    outgoing,
    wants_usage,
)
from scope_torch.serve.estimates import most_of
from scope_torch.serve.headers import check_caller, query_string
from scope_torch.serve.ledger import Ledger
from scope_torch.serve.queries import HEADER, Queries, QueryInFlight
from scope_torch.serve.reading import Reading
from scope_torch.serve.upstream import Request, Upstream, pieces_of, refusal

if TYPE_CHECKING:
    from starlette.requests import Request as Incoming
    from starlette.responses import Response

MAX_REQUEST_BYTES = 64 << 20

_PATH = re.compile(
    r"(?:/q/(?P<key>[^/]+))?/v1(?P<what>/chat/completions|/responses|/messages|/models)"
)


class Settings(NamedTuple):
    """What the endpoint was made with; see `Endpoint`."""

    prices: PriceList
    prefix: str
    host: str
    extra_body: dict[str, Any]
    chosen: dict[str, str] | None


class Choice(NamedTuple):
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
            check_caller(incoming.headers, self._settings.host)
            key, what = _route(incoming)
            choice = self._choice(key, incoming.headers.get(HEADER))
            if what == "/models":
                return Response(self._models(choice), media_type="application/json")
            return await self._forward(incoming, api, choice)
        except Refused as error:
            answer = refusal(api, error)
            return Response(answer.content, answer.status, answer.headers)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it

    async def _forward(self, incoming: Incoming, api: Api, choice: Choice) -> Response:
        from starlette.responses import Response, StreamingResponse

        try:
            body = await _body(incoming)
            request = self._request(incoming, api, body, choice)
        except Refused as error:
            if choice.query is not None:
                choice.query.refused = str(error)
            raise
        if choice.query is not None and not self._queries.enter(choice.query):
            self._queries.stray()
            raise _ended()
        answer = await self._upstream.forward(request)
        if answer.content is not None:
            return Response(answer.content, answer.status, answer.headers)
        return StreamingResponse(pieces_of(answer, api), answer.status, answer.headers)

    def _request(
        self, incoming: Incoming, api: Api, body: dict[str, Any], choice: Choice
    ) -> Request:
        """The request for the upstream."""
        settings = self._settings
        module = module_of(body.get("model"), choice.assignment, settings.prefix)
        llm = choice.assignment[module]
        info = settings.prices.own.get(llm)
        out = outgoing(api, body, llm, info, settings.extra_body)
        content = _encoded(out)
        most = most_of(api, out, len(content))

        def book(usage: Usage | None, failed: bool) -> None:
            usd = 0.0 if usage is None else settings.prices.cost_usd(llm, usage)
            self._ledger.book(module, usage, usd, failed=failed)
            if choice.query is not None:
                choice.query.ledger.book(module, usage, usd, failed=failed)
                choice.query.leave()

        reading = Reading(api, most, wants_usage(body))
        query = query_string(incoming.url.query)
        return Request(api, content, incoming.headers.items(), query, reading, book)

    def _choice(self, in_path: str | None, in_header: str | None) -> Choice:
        """The query of a request, or the choice for good.

        Raises:
            Refused: If it belongs to no query, or to two.
        """
        if in_path and in_header and in_path != in_header:
            raise Refused(409, f"the path names query {in_path!r:.99}, {HEADER} another; send one")
        key = in_path or in_header
        if key:
            query = self._queries.find(key)
            if query is None:
                self._queries.stray()
                raise _ended()
            return Choice(query.assignment, query)
        if self._settings.chosen is None:
            self._queries.stray()
            raise Refused(
                409,
                "this request belongs to no query in flight: run the application inside `with "
                "endpoint.query(assignment) as query:`, with query.base_url as its base URL, or "
                f"with query.headers ({HEADER}); `scope-torch serve` answers without queries",
            )
        return Choice(self._settings.chosen, None)

    def _models(self, choice: Choice) -> bytes:
        """The modules as a list of models, for clients of either API."""
        names = [f"{self._settings.prefix}{module}" for module in choice.assignment]
        of_openai = {"object": "model", "created": 0, "owned_by": "scope-torch"}
        of_anthropic = {"type": "model", "created_at": "1970-01-01T00:00:00Z"}
        data = [{"id": n, "display_name": n, **of_openai, **of_anthropic} for n in names]
        ends = {"first_id": names[0], "last_id": names[-1], "has_more": False}
        return json.dumps({"object": "list", "data": data, **ends}).encode()


def _api_of(incoming: Incoming) -> Api:
    """The API whose errors the caller reads."""
    path = incoming.url.path
    if "/messages" in path or "anthropic-version" in incoming.headers:
        return MESSAGES
    found = _PATH.fullmatch(path)
    return APIS.get(found["what"], CHAT) if found else CHAT


def _route(incoming: Incoming) -> tuple[str | None, str]:
    """The key of the query in the path, and the rest of the path.

    Raises:
        Refused: If there is nothing under this path or method.
    """
    found = _PATH.fullmatch(incoming.url.path)
    if found is None:
        raise Refused(
            404,
            f"there is nothing at {incoming.url.path!r:.200}: only /v1/chat/completions, "
            "/v1/responses, /v1/messages and /v1/models, also behind /q/KEY; send other requests "
            "to your provider",
        )
    method = "GET" if found["what"] == "/models" else "POST"
    if incoming.method != method:
        raise Refused(405, f"{found['what']} takes {method}, not {incoming.method}")
    return found["key"], found["what"]


async def _body(incoming: Incoming) -> dict[str, Any]:
    """The body of a request.

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
    return body


def _encoded(body: dict[str, Any]) -> bytes:
    """JSON in UTF-8, or in ASCII if a text has half of a surrogate pair."""
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(body).encode()


def _ended() -> Refused:
    return Refused(
        409,
        "this query is not in flight (any more): its `with endpoint.query(...)` has ended, so "
        "nothing is paid for it; take base_url or headers of the query that runs now",
    )
