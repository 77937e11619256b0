"""Completions from an OpenAI-compatible endpoint."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass
from typing import Any

from scope_torch.errors import InputError
from scope_torch.llm.failures import SendError, key_of, redact_logs
from scope_torch.llm.retrying import Connection, RetryingClient

_NOT_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError"})
_NO_KEY = "none"  # openai would otherwise send the key of OPENAI_API_KEY


@dataclass(eq=False, repr=False)
class OpenAIClient(RetryingClient):
    """A ChatClient of an endpoint that speaks the chat completions of OpenAI.

    The key is read from the environment when an event loop makes its first call, and is in no
    message. Redirects are refused: they would send the prompts elsewhere.

    Args:
        base_url: What `/chat/completions` comes after, such as `https://api.openai.com/v1`.

    The other settings are those of `RetryingClient`.

    Example:
        >>> client = OpenAIClient(load_llms(), "http://localhost:8000/v1", None, concurrency=4)
        >>> client.check(["GPT-5.2"])
        >>> completion = await client.complete(call)
        >>> await client.close()

    Raises:
        InputError: If a setting or a price cannot be used.
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
        client = openai.AsyncOpenAI(
            api_key=key_of(self.api_key_env, self._where()) or _NO_KEY,
            base_url=self.base_url,
            max_retries=0,  # what a failed attempt cost is counted by RetryingClient
            # less for connecting, so that what was never sent is known to be
            timeout=openai.Timeout(self.timeout_s, connect=self.timeout_s / 2),
            http_client=openai.DefaultAsyncHttpxClient(follow_redirects=False),
        )

        async def send(request: dict[str, Any]) -> bytes:
            try:
                raw = await client.chat.completions.with_raw_response.create(**request)
            except openai.APIStatusError as error:
                body = error.body
                message = body.get("message") if isinstance(body, dict) else body
                raise SendError(
                    str(message or ""),
                    status=error.status_code,
                    code=error.code,
                    retry_after=error.response.headers.get("retry-after"),
                ) from None
            except openai.APIConnectionError as error:
                kind = type(error.__cause__ or error).__name__
                raise SendError(f"was lost ({kind})", sent=kind not in _NOT_SENT) from None
            return raw.content

        return Connection(send, client.close)


def check_url(url: str | None) -> str:
    """Returns a base URL without trailing slash.

    Raises:
        InputError: If it is not a plain http(s) URL; one with a password in it is not shown.
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
            'calls of an endpoint need the package openai: pip install "scope-torch[llm]"'
        ) from None
    return openai
