"""The HTTP server behind the endpoint's address."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

from scope_torch.serve.upstream import StreamCut

if TYPE_CHECKING:
    import uvicorn

_KEEP_ALIVE_S = 60
HALF_SENT_S = 60.0  # without a further byte of a request that has begun


def server_of(app: Any, graceful_s: int, listens: threading.Event) -> uvicorn.Server:
    """A server that says when it listens, and leaves the loggers of this process alone.

    Args:
        app: What it serves.
        graceful_s: How long it waits for its answers when it stops, in seconds.
        listens: Is set when it listens.
    """
    import uvicorn

    protocol = _protocol()

    class Server(uvicorn.Server):
        async def startup(self, *args: Any, **kwargs: Any) -> None:
            await super().startup(*args, **kwargs)
            listens.set()

    return Server(
        uvicorn.Config(
            app,
            loop="asyncio",
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=None,
            access_log=True,  # False would silence the access log of the whole process
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=graceful_s,
        )
    )


def _protocol() -> Any:
    """A connection that is closed if a request stays half-sent, and at once when it stops."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.logger, self.access_log = _logger(), False
            self._half_sent: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def shutdown(self) -> None:
            super().shutdown()
            if self.conn.their_state is h11.SEND_BODY:
                self.transport.abort()

        def _is_half_sent(self) -> bool:
            return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

        def _watch(self) -> None:
            self._forget()
            if self._is_half_sent() and not self.transport.is_closing():
                self._half_sent = self.loop.call_later(HALF_SENT_S, self.transport.abort)

        def _forget(self) -> None:
            if self._half_sent is not None:
                self._half_sent.cancel()
                self._half_sent = None

    return Protocol


def _logger() -> logging.Logger:
    """The logger of the HTTP server, without streams that were cut on purpose."""
    logger = logging.getLogger("scope_torch.serve.http")
    if not logger.filters:
        logger.addFilter(lambda record: not _is_cut(record.exc_info))
    return logger


def _is_cut(exc_info: Any) -> bool:
    return bool(exc_info) and isinstance(exc_info[1], StreamCut)
