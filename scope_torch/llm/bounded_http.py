"""HTTP clients that read replies up to a limit, and keep no connection."""

from __future__ import annotations

from typing import Any

from scope_torch.llm.billing import MAX_REPLY_BYTES

# h11 keeps surplus bytes of a reply, and takes them for the reply to the next request.
ONE_CALL = {"Connection": "close", "Accept-Encoding": "gzip, deflate"}
ENCODINGS = ("", "identity", "gzip", "deflate")  # unpacked in small pieces
_OF_TRANSFER = ("content-encoding", "content-length", "transfer-encoding")


class ReplyRefused(Exception):
    """A reply that is too large, or packed in a way that was not asked for."""


def bounded(client_type: Any) -> Any:
    """A subclass of httpx's or httpx2's AsyncClient that bounds every reply.

    Its `send` reads the whole reply, errors included. It raises ReplyRefused for a reply of more
    than `MAX_REPLY_BYTES` after unpacking, before it holds much more than that.

    Args:
        client_type: AsyncClient, or a subclass.
    """

    class BoundedClient(client_type):
        async def send(self, request: Any, *, stream: bool = False, **more: Any) -> Any:
            del stream  # the reply is in memory already
            response = await super().send(request, stream=True, **more)
            try:
                content = await _read(response)
            finally:
                await response.aclose()
            headers = [(k, v) for k, v in response.headers.multi_items() if k not in _OF_TRANSFER]
            return type(response)(
                response.status_code, headers=headers, content=content, request=request
            )

    return BoundedClient


async def _read(response: Any) -> bytes:
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ENCODINGS:
        raise ReplyRefused("sent a reply in an encoding that was not asked for")
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > MAX_REPLY_BYTES:
            raise ReplyRefused(f"sent more than {MAX_REPLY_BYTES} bytes")
    return bytes(content)
