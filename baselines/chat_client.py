"""LLAMBO's client of OpenAI-compatible chat completions, on the standard library alone.

`scope_torch.llm` decides which URLs, keys, sizes, counts and failures are acceptable. Its own
client is not used, because LLAMBO asks for several replies with one request.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scope_torch.baselines.llm_transcript import Replies
from scope_torch.errors import InputError
from scope_torch.llm.billing import MAX_REPLY_BYTES, Usage, parse_int
from scope_torch.llm.client import check_url
from scope_torch.llm.failures import SendError, failure_of
from scope_torch.llm.keys import check_key_env, key_of, without_key
from scope_torch.llm.usage import usage_of

MAX_RESPONSE_BYTES = MAX_REPLY_BYTES


class _Refused(Exception):
    """No response, or one of no use; the next attempt may go better."""

    def __init__(self, reason: str, wait_s: float | None = None, answered: bool = False) -> None:
        super().__init__(reason)
        self.wait_s, self.answered = wait_s, answered


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects would carry the key to another host."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        """None: the redirect is an error like any other status."""


class CompletionsClient:
    """Sends chat completions, and sends again after failures that pass.

    The key is read from the environment at every request, kept nowhere, and is in no message.

    Args:
        base_url: The URL before `/chat/completions`, such as `https://api.openai.com/v1`.
        api_key_env: Environment variable with the key; None or empty for a server without.
        timeout_s: Longest wait for the server, in seconds.
        retries: How often a request is sent again after a time-out, a lost connection, a malformed
            response, or a status that passes (`scope_torch.llm.failures`).
        backoff_s: First wait before that, in seconds; doubles each time. A server's `Retry-After`
            takes its place, up to 60 s.

    Raises:
        InputError: If the URL is not a plain http(s) URL, or `api_key_env` is not a name.
    """

    def __init__(
        self,
        base_url: str,
        api_key_env: str | None,
        *,
        timeout_s: float,
        retries: int,
        backoff_s: float,
    ) -> None:
        try:
            self.base_url = check_url(base_url)
            check_key_env(api_key_env)
        except InputError as error:
            raise InputError(f"backend.{error}") from None
        self._api_key_env = api_key_env
        self._timeout_s, self._retries, self._backoff_s = timeout_s, retries, backoff_s
        self._opener = urllib.request.build_opener(_NoRedirect)

    def complete(self, body: dict[str, Any], n: int) -> Replies:
        """At least one and at most `n` replies.

        Args:
            body: The request without `n`.
            n: Number of replies to ask for.

        Raises:
            InputError: If there is no key, or the server cannot be used.
        """
        request = self._request({**body, "n": n} if n > 1 else body)
        of_no_use = 0  # responses that are billed all the same
        for attempt in range(self._retries + 1):
            try:
                completion = _completion(self._send(request), n)
                return replace(
                    completion,
                    texts=tuple(without_key(text, self._api_key_env) for text in completion.texts),
                    requests=completion.requests + of_no_use,
                    requests_without_usage=completion.requests_without_usage + of_no_use,
                )
            except _Refused as refused:
                of_no_use += refused.answered
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
        if key := key_of(self._api_key_env, self.base_url):
            headers["Authorization"] = f"Bearer {key}"
        url, data = f"{self.base_url}/chat/completions", json.dumps(body).encode()
        return urllib.request.Request(url, data, headers, method="POST")

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
            raise _Refused(f"sent more than {MAX_RESPONSE_BYTES} bytes", answered=True)
        return content

    def _failure(self, error: urllib.error.HTTPError) -> Exception:
        """The exception to raise for an error status."""
        message, code = _explanation(error)
        retry_after = error.headers.get("Retry-After")
        told = SendError(message, status=error.code, code=code, retry_after=retry_after)
        failure = failure_of(told, Usage(0, 0), self._api_key_env)
        if failure.again:
            return _Refused(failure.reason, failure.wait_s)
        mend = "" if failure.fatal else "; check backend.model and the sampling settings of backend"
        return InputError(f"{self.base_url} {failure.reason}{mend}")


def _explanation(error: urllib.error.HTTPError) -> tuple[str, str | None]:
    """The server's message, and its word for the error; empty and None where it gives none."""
    try:
        told = json.loads(error.read(65536))["error"]
        message, code = str(told["message"]), told.get("code")
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError,
            RecursionError):  # fmt: skip
        return "", None
    return message, code if isinstance(code, str) else None


def _completion(content: bytes, n: int) -> Replies:
    """Reads a response; a choice without text is an empty reply."""
    try:
        response = json.loads(content, parse_int=parse_int)
        choices: Sequence[Any] = response["choices"]
        texts = tuple(choice["message"].get("content") or "" for choice in choices)[:n]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError("no replies")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _Refused("sent a malformed response", answered=True) from None
    usage = usage_of(response)
    if usage is None:
        return Replies(texts, requests=1, requests_without_usage=1)
    return Replies(texts, usage.prompt_tokens, usage.completion_tokens, requests=1)
