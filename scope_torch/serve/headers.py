"""Headers: which go to the upstream, which come back, and who may ask."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from collections.abc import Iterable, Mapping

from scope_torch.llm.bounded_http import ONE_CALL
from scope_torch.llm.keys import key_of, without_secrets
from scope_torch.serve.apis import MESSAGES, Api, Refused
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


def to_upstream(app: Iterable[tuple[str, str]], api: Api, api_key_env: str | None) -> Headers:
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
    if key := key_of(api_key_env, "the upstream"):
        kept.append(("authorization", f"Bearer {key}"))
        if api is MESSAGES:
            kept.append(("x-api-key", key))
    return kept


def to_application(upstream: Mapping[str, str], api_key_env: str | None) -> dict[str, str]:
    """The headers of an answer that clients use, without secrets; a list, because a browser obeys
    some of the others.
    """
    return {
        name.lower(): without_secrets(value, api_key_env)
        for name, value in upstream.items()
        if _BACK.fullmatch(name.lower())
    }


def query_string(text: str) -> str:
    """The query string of a request without parameters that are keys."""
    pairs = urllib.parse.parse_qsl(text, keep_blank_values=True)
    kept = [(k, v) for k, v in pairs if not _OWN.search(k.lower()) and k.lower() != "key"]
    return urllib.parse.urlencode(kept)


def check_caller(headers: Mapping[str, str], host: str) -> None:
    """Refuses pages of other sites in a browser of this machine, which can reach the endpoint too.

    A page can name any host after DNS rebinding, and cannot leave out the header Origin.

    Raises:
        Refused: If the header Host or Origin names neither this machine nor `host`.
    """
    asked = _name(f"//{headers.get('host', '')}")
    if not (is_loopback(asked) or asked == host.lower()):
        raise Refused(
            403,
            f"the header Host names {asked!r:.200}; use 127.0.0.1, localhost or {host} in the base "
            "URL, or start the endpoint with the host that clients use",
        )
    origin = headers.get("origin")
    if origin is not None and not is_loopback(_name(origin)):
        raise Refused(403, f"pages of {origin!r:.200} may not use this endpoint")


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
