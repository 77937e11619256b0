"""A client of OpenAI-compatible chat completions on the standard library alone."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any

from baselines.llm_transcript import Completion
from scope_torch.errors import InputError

MAX_RESPONSE_BYTES = 8 << 20
MAX_WAIT_S = 60.0
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


class _Refused(Exception):
    """A response, or none, that may be better next time."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects would carry the key to another host."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        """None: the redirect is an error like any other status."""


class ChatClient:
    """Sends chat completions, and again after passing failures.

    The key is read from the environment at every request, kept nowhere, and is in no message.

    Args:
        base_url: Where `/chat/completions` lies, such as `https://api.openai.com/v1`.
        api_key_env: Environment variable with the key; None or empty for a server without.
        timeout_s: Longest wait for the server, in seconds.
        retries: How often a request is repeated after a time-out, a lost connection, a malformed
            response, or status 429 or 5xx.
        backoff_s: First wait before repeating, in seconds; doubles each time. A server's
            `Retry-After` takes precedence.

    Raises:
        InputError: If the URL is not a plain http(s) URL.
    """

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None,
        *,
        timeout_s: float = 120.0,
        retries: int = 4,
        backoff_s: float = 1.0,
    ) -> None:
        self.base_url = check_url(base_url)
        self._api_key_env = api_key_env
        self._timeout_s, self._retries, self._backoff_s = timeout_s, retries, backoff_s
        self._opener = urllib.request.build_opener(_NoRedirect)

    def complete(self, body: dict[str, Any], n: int) -> Completion:
        """At least one and at most `n` replies.

        Args:
            body: The request without `n`.
            n: Number of replies to ask for.

        Raises:
            InputError: If there is no key, or the server cannot be used.
        """
        request = self._request({**body, "n": n} if n > 1 else body)
        for attempt in range(self._retries + 1):
            try:
                return _completion(self._send(request), n)
            except _Refused as refused:
                if attempt == self._retries:
                    raise InputError(
                        f"{self.base_url} {refused}, {attempt + 1} times; try again later, or "
                        "check backend.base_url"
                    ) from None
                wait_s = refused.wait_s
                time.sleep(self._backoff_s * 2**attempt if wait_s is None else wait_s)
        raise AssertionError

    def _request(self, body: dict[str, Any]) -> urllib.request.Request:
        headers = {"Content-Type": "application/json"}
        if self._api_key_env:
            headers["Authorization"] = f"Bearer {self._api_key()}"
        url, data = f"{self.base_url}/chat/completions", json.dumps(body).encode()
        return urllib.request.Request(url, data, headers, method="POST")

    def _api_key(self) -> str:
        key = os.environ.get(self._api_key_env or "", "").strip()
        if not key:
            raise InputError(
                f"${self._api_key_env} is not set; it must hold the key for {self.base_url} (or "
                "set backend.api_key_env to the variable that does, or to null if none is needed)"
            )
        if not (key.isascii() and key.isprintable()):  # http.client would show it in its error
            raise InputError(f"${self._api_key_env} has characters that no key has; set it anew")
        return key

    def _send(self, request: urllib.request.Request) -> bytes:
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                content = response.read(MAX_RESPONSE_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise self._failure(error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise _Refused(f"cannot be reached ({type(reason).__name__})") from None
        if len(content) > MAX_RESPONSE_BYTES:
            raise _Refused(f"sent more than {MAX_RESPONSE_BYTES} bytes")
        return content

    def _failure(self, error: urllib.error.HTTPError) -> Exception:
        """What to raise for an error status; the body of 401 and 403 may quote the key."""
        if error.code in _PASSING:
            return _Refused(f"answered {error.code}", _retry_after_s(error))
        if error.code in (401, 403):
            return InputError(
                f"{self.base_url} answered {error.code}: it does not accept the key in "
                f"${self._api_key_env}"
            )
        return InputError(
            f"{self.base_url} answered {error.code}{self._explanation(error)}; check "
            "backend.base_url, backend.model and the sampling settings of backend"
        )

    def _explanation(self, error: urllib.error.HTTPError) -> str:
        try:
            message = json.loads(error.read(65536))["error"]["message"]
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
        ):
            return ""
        key = os.environ.get(self._api_key_env or "", "").strip()
        text = " ".join(str(message).split())
        return f" ({(text.replace(key, '***') if key else text)[:200]})"


def check_url(url: str) -> str:
    """Returns a base URL without trailing slash.

    Raises:
        InputError: If it is not a plain http(s) URL; one with a password in it is not shown.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        plain = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        raise InputError(
            "backend.base_url is not a URL, such as http://localhost:8000/v1"
        ) from None
    if parts.username is not None or parts.password is not None:
        raise InputError("backend.base_url has a user in it; put the key into $api_key_env instead")
    if (
        not plain
        or parts.query
        or parts.fragment
        or not (url.isascii() and url.isprintable())
        or " " in url
    ):
        raise InputError(
            "backend.base_url must be a plain http(s) URL, such as http://localhost:8000/v1"
        )
    return url.rstrip("/")


def _retry_after_s(error: urllib.error.HTTPError) -> float | None:
    text = error.headers.get("Retry-After", "")
    return min(float(text), MAX_WAIT_S) if text.isascii() and text.isdigit() else None


def _completion(content: bytes, n: int) -> Completion:
    """Reads a response; a choice without text is an empty reply."""
    try:
        response = json.loads(content)
        choices: Sequence[Any] = response["choices"]
        texts = tuple(choice["message"].get("content") or "" for choice in choices)[:n]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError("no replies")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _Refused("sent a malformed response") from None
    tokens = _tokens(response.get("usage"))
    if tokens is None:
        return Completion(texts, requests=1, requests_without_usage=1)
    return Completion(texts, *tokens, requests=1)


def _tokens(usage: Any) -> tuple[int, int] | None:
    try:
        prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    except (KeyError, TypeError):
        return None
    counts = prompt, completion
    return counts if all(type(count) is int and count >= 0 for count in counts) else None
