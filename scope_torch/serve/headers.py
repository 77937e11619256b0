"""Headers: which go to the upstream, which come back, and who may ask."""

from __future__ import annotations

import hmac
import ipaddress
import re
import urllib.parse
from collections.abc import Iterable, Mapping

from scope_torch.llm.bounded_http import ONE_CALL
from scope_torch.llm.keys import key_of, without_secrets
from scope_torch.serve.apis import GENERATE, MESSAGES, Api, Refused
from scope_torch.serve.queries import HEADER

Headers = list[tuple[str, str]]

# Of one connection, or about the page that asks.
_OF_CONNECTION = re.compile(
    r"connection|keep-alive|te|trailers?|transfer-encoding|upgrade|expect|host|forwarded|origin"
    r"|referer|content-(type|length|encoding)|accept-encoding"
)
# Of the application's own account, which is not the account of the key in use.
_OWN = re.compile(
    r"auth|cookie|api[-_]?key|subscription[-_]key|token|secret|openai-(organization|project)|^proxy-"
    rf"|^x-forwarded-|^sec-|^x-goog-|^{HEADER}$"
)
_BACK = re.compile(
    r"content-type|retry-after(-ms)?|x-should-retry|(x-)?request-id|(x-ratelimit|anthropic|openai)-.+"
)


def to_upstream(
    app: Iterable[tuple[str, str]], api: Api, api_key_env: str | None, url: str = ""
) -> Headers:
    """The headers of a request: the application's, with the upstream's key.

    Dropped are headers of the connection, and all that belong to an account of the application.

    Raises:
        InputError: If the key is not set any more.
    """
    app = [(name.lower(), value) for name, value in app]
    named = {n.strip().lower() for k, v in app if k == "connection" for n in v.split(",")}
    kept = [
        (name, value)
        for name, value in app
        if not (name in named or _OF_CONNECTION.fullmatch(name) or _OWN.search(name))
    ]
    kept += [("content-type", "application/json"), *((k.lower(), v) for k, v in ONE_CALL.items())]
    key = key_of(api_key_env, "the upstream")
    if key and api is GENERATE:  # there, the other one is for tokens of OAuth
        kept.append(("x-goog-api-key", key))
    elif key:
        # Anthropic takes a Bearer for a token of OAuth; other servers of its API may want either.
        is_anthropic, is_token = _name(url) == "api.anthropic.com", key.startswith("sk-ant-oat")
        if is_token or not (api is MESSAGES and is_anthropic):
            kept.append(("authorization", f"Bearer {key}"))
        if api is MESSAGES and not is_token:
            kept.append(("x-api-key", key))
    return kept


def to_application(
    upstream: Iterable[tuple[bytes, bytes]], api_key_env: str | None
) -> dict[str, str]:
    """The headers of an answer that clients use, without secrets; a list, because a browser obeys
    some of the others.
    """
    # As bytes: decoded by httpx, a name in UTF-8 could not be written into a header again.
    pairs = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in upstream)
    return {
        name: without_secrets(value, api_key_env) for name, value in pairs if _BACK.fullmatch(name)
    }


def query_string(text: str) -> str:
    """The query string of a request without parameters that are keys."""
    pairs = urllib.parse.parse_qsl(text, keep_blank_values=True)
    kept = [(k, v) for k, v in pairs if not _OWN.search(k.lower()) and k.lower() != "key"]
    return urllib.parse.urlencode(kept)


def check_caller(headers: Mapping[str, str], hosts: Iterable[str], token: str | None) -> None:
    """Refuses callers without the token, and pages of other sites in a browser of this machine.

    Such a page can name any host after DNS rebinding, and cannot leave out the header Origin.

    Args:
        headers: Of the request.
        hosts: Names of this machine that callers may use, besides those of its loopback interface.
        token: What the caller must send as its key; None for nothing.

    Raises:
        Refused: If the header Host or Origin names another machine, or the token is wrong.
    """
    asked = _name(f"//{headers.get('host', '')}")
    if not (is_loopback(asked) or asked in hosts):
        raise Refused(
            403,
            f"the header Host names {asked!r:.200}; use 127.0.0.1 or localhost in the base URL, or "
            "make the endpoint with allowed_hosts=[that name]",
        )
    origin = headers.get("origin")
    if origin is not None and not is_loopback(_name(origin)):
        raise Refused(403, f"pages of {origin!r:.200} may not use this endpoint")
    if token is not None and not _has_token(headers, token):
        raise Refused(
            401, "this endpoint has a token; send it as the key of the API (OPENAI_API_KEY)"
        )


def _has_token(headers: Mapping[str, str], token: str) -> bool:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    named = [headers.get(name, "") for name in ("x-api-key", "x-goog-api-key")]
    sent = [*named, value.strip() if scheme.lower() == "bearer" else ""]
    return any(hmac.compare_digest(key.encode(), token.encode()) for key in sent)


def is_loopback(host: str) -> bool:
    """Whether a host is a name or an address of this machine's own interface."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name(url: str) -> str:
    try:
        return urllib.parse.urlsplit(url).hostname or ""
    except ValueError:
        return ""
