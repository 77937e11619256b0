"""Completions from an OpenAI-compatible endpoint."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass
from typing import Any

from scope_torch.errors import InputError
from scope_torch.llm.bounded_http import ONE_CALL, ReplyRefused, bounded
from scope_torch.llm.failures import SendError
from scope_torch.llm.keys import key_of, redact_logs
from scope_torch.llm.retrying import Connection, RetryingClient

# Kinds of errors after which a server cannot have got the request.
NOT_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError"})
# Kinds of errors while a request is built, such as by a header that cannot be one.
NOT_BUILT = frozenset({"LocalProtocolError", "UnsupportedProtocol", "InvalidURL", "UnicodeError"})
_NO_KEY = "none"  # without a key, openai would send the one in OPENAI_API_KEY
_OF_OPENAI = "https", "api.openai.com"


@dataclass(eq=False, repr=False)
class OpenAIClient(RetryingClient):
    """A ChatClient for an endpoint with the chat completions of OpenAI.

    The key is read from the environment at the first call of an event loop, and is in no message.
    Redirects are refused, because they would send the prompts to another address. Every call has a
    connection of its own: on a shared one, a server that answers twice would answer the next call
    with the surplus reply. A reply of more than 8 MiB is given up.

    Args:
        base_url: Address in front of `/chat/completions`, such as `https://api.openai.com/v1`.

    The other arguments are those of `RetryingClient`.

    Raises:
        InputError: If a setting or a price cannot be used.

    Examples:
        >>> from scope_torch.llm.prices import load_llms
        >>> OpenAIClient(load_llms(), "http://localhost:8000/v1", None, concurrency=4)
        OpenAIClient(http://localhost:8000/v1, 23 LLMs)

        >>> client.check(["GPT-5.2"])  # doctest: +SKIP
        >>> completion = await client.complete(call)  # doctest: +SKIP
        >>> await client.close()  # doctest: +SKIP
    """

    def __post_init__(self) -> None:
        self.base_url = check_url(self.base_url)
        super().__post_init__()

    def _check_access(self) -> None:
        _import_openai()
        key_of(self.api_key_env, self._where())

    def _connect(self) -> Connection:
        openai = _import_openai()
        redact_logs(("openai", "httpx", "httpcore"), self.api_key_env)
        key = key_of(self.api_key_env, self._where()) or _NO_KEY
        own = {**ONE_CALL, "Authorization": f"Bearer {key}"}
        client = openai.AsyncOpenAI(
            api_key=key,
            base_url=self.base_url,
            max_retries=0,  # RetryingClient sends again, and counts the cost of failed attempts
            # A shorter time to connect: then a request that was never sent ends as such.
            timeout=openai.Timeout(self.timeout_s, connect=self.timeout_s / 2),
            http_client=bounded(openai.DefaultAsyncHttpxClient)(follow_redirects=False),
            default_headers=own,
        )
        # The library takes more headers from the environment; only OpenAI may know those.
        more = {k: v for k, v in client._custom_headers.items() if k.title() not in own}
        if urllib.parse.urlsplit(self.base_url)[:2] != _OF_OPENAI:
            more, client.organization, client.project = {}, None, None
        client._custom_headers = more | own

        async def send(request: dict[str, Any]) -> bytes:
            try:
                raw = await client.chat.completions.with_raw_response.create(**request)
            except openai.APIStatusError as error:
                raise _refused(error) from None
            except ReplyRefused as error:
                raise SendError(str(error)) from None
            except openai.APIConnectionError as error:
                if isinstance(error.__cause__, ReplyRefused):  # so does openai 2
                    raise SendError(str(error.__cause__)) from None
                kinds = {kind.__name__ for kind in type(error.__cause__ or error).__mro__}
                kind = type(error.__cause__ or error).__name__
                sent = not kinds & (NOT_SENT | NOT_BUILT)
                raise SendError(f"was lost ({kind})", sent=sent) from None
            return raw.content

        return Connection(send, client.close)


def _refused(error: Any) -> SendError:
    """An answer with another status than 200."""
    body = error.body
    message = body.get("message") if isinstance(body, dict) else body
    return SendError(
        str(message or ""),
        status=error.status_code,
        code=error.code,
        retry_after=error.response.headers.get("retry-after"),
    )


def check_url(url: str | None) -> str:
    """Returns a base URL without trailing slash.

    Raises:
        InputError: If it is not a plain http(s) URL; the message does not show a password in it.
    """
    example = "such as https://api.openai.com/v1 or http://localhost:8000/v1"
    try:
        parts = urllib.parse.urlsplit(url or "")
        plain = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        plain, parts = False, urllib.parse.urlsplit("")
    if parts.username is not None or parts.password is not None:
        raise InputError("base_url has a user in it; put the key into an environment variable")
    odd = parts.query or parts.fragment
    if url is None or not plain or odd or not (url.isascii() and url.isprintable()) or " " in url:
        raise InputError(f"base_url must be a plain http(s) URL, {example}")
    return url.rstrip("/")


def _import_openai() -> Any:
    try:
        import openai
    except ImportError:
        raise InputError(
            'calls to an endpoint need the package openai: pip install "scope-torch[llm]"'
        ) from None
    return openai
