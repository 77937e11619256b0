"""The query in flight of this thread or task, for applications in the same process.

`Endpoint.query` sets it in a context variable. Tasks of asyncio and `asyncio.to_thread` inherit it;
a thread that an application starts has it if it runs in `contextvars.copy_context()`.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, TypeVar

from scope_torch.errors import InputError
from scope_torch.factors import choice_of
from scope_torch.serve.queries import QueryInFlight

Client = TypeVar("Client")

IN_FLIGHT: ContextVar[QueryInFlight | None] = ContextVar("scope_query_in_flight", default=None)


def base_url() -> str:
    """The base URL of the query in flight, for a client that is made for each query.

    Raises:
        InputError: If no query is in flight here.
    """
    return _query().base_url


def models() -> dict[str, Any]:
    """The choice of each module, such as an `LLM` whose `prompt` the application takes.

    Raises:
        InputError: If no query is in flight here.
    """
    query = _query()
    query.is_read = True
    return {module: choice_of(choice) for module, choice in query.assignment.items()}


def headers() -> dict[str, str]:
    """The headers of the query in flight, for requests to `Endpoint.url` + `/v1`.

    Raises:
        InputError: If no query is in flight here.

    Examples:
        >>> headers()
        Traceback (most recent call last):
        ...
        scope_torch.errors.InputError: no query is in flight here; call this inside `with \
endpoint.query(assignment):`, start threads with contextvars.copy_context().run, and name the LLM \
that a metric asks: select(judge=...)
    """
    return _query().headers


def tagged(client: Client) -> Client:
    """Lets each request of a client carry the header of the query that is in flight by then.

    So one client serves all queries. It uses the client's public `event_hooks`; a request outside
    of a query stays as it is.

    Args:
        client: Client or AsyncClient of httpx or httpx2, such as `openai.DefaultHttpxClient()`.

    Returns:
        The same client.
    """
    http: Any = client

    def tag(request: Any) -> None:
        if (query := IN_FLIGHT.get()) is not None:
            request.headers.update(query.headers)

    async def tag_later(request: Any) -> None:
        tag(request)

    hooks = http.event_hooks
    hook = tag_later if hasattr(http, "aclose") else tag
    http.event_hooks = {**hooks, "request": [*hooks.get("request", ()), hook]}
    return client


def _query() -> QueryInFlight:
    query = IN_FLIGHT.get()
    if query is None:
        raise InputError(
            "no query is in flight here; call this inside `with endpoint.query(assignment):`, "
            "start threads with contextvars.copy_context().run, and name the LLM that a metric "
            "asks: select(judge=...)"
        )
    return query
