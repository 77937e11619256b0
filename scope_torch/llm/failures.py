"""Failures of calls: which may pass when the call is sent again, and what was billed."""

from __future__ import annotations

import contextlib
import email.utils
import logging
import math
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from scope_torch.errors import InputError
from scope_torch.llm.billing import BadReply, Usage

_PASSING = frozenset({408, 409, 425, 429})  # and 5xx: sending again may help
_OUTAGE = frozenset({429, 502, 503, 504})  # every other call would have failed as well
_FATAL = frozenset({401, 402, 403, 404, 405})  # and redirects: every further call would fail too


class SendError(Exception):
    """A request got no answer, or an answer with another status than 200.

    Args:
        reason: What happened, without the key.
        status: Status of the answer; None if there was none.
        code: The server's code of the error.
        retry_after: The header Retry-After.
        sent: Whether the server may have received the request, and bills it.
    """

    def __init__(
        self,
        reason: str,
        *,
        status: int | None = None,
        code: str | None = None,
        retry_after: str | None = None,
        sent: bool = True,
    ) -> None:
        super().__init__(reason)
        self.reason, self.status, self.code = reason, status, code
        self.retry_after, self.sent = retry_after, sent


class Failure(NamedTuple):
    """An attempt that gave no reply."""

    reason: str
    usage: Usage | None = None  # tokens that were billed; None if nothing was
    again: bool = True  # sending again may help
    fatal: bool = False  # every further call would fail too
    outage: bool = False  # every other call would have failed as well
    unreachable: bool = False  # nothing was sent
    wait_s: float | None = None  # seconds to wait, if the server said so


def failure_of(error: SendError, most: Usage, api_key_env: str | None) -> Failure:
    """Classifies an answer with another status than 200, or a missing answer.

    An error status bills nothing. Lost connections and the statuses 408, 409, 425, 429 and 5xx may
    pass; 401 to 405 and redirects do not.

    Args:
        error: What happened.
        most: Upper estimate of the tokens, for a request that was sent but not answered.
        api_key_env: Environment variable with the key.
    """
    status, reason = error.status, redacted(error.reason, api_key_env)
    if status is None:
        if error.sent:
            return Failure(reason, most)
        return Failure(reason, outage=True, unreachable=True)
    if status in (401, 403):  # the reason may quote a part of the key
        key = f"the key in ${api_key_env}" if api_key_env else "the key, or misses one"
        return Failure(f"answered {status}: it does not accept {key}", again=False, fatal=True)
    if status == 402 or error.code == "insufficient_quota":
        return Failure(f"answered {status}: no credit is left", again=False, fatal=True)
    answered = f"answered {status}" + (f" ({reason})" if reason else "")
    if status in _FATAL or 300 <= status < 400:
        mend = "; check base_url, and `model` in the price list"
        return Failure(answered + mend, again=False, fatal=True)
    again = status in _PASSING or status >= 500
    outage = status in _OUTAGE
    return Failure(answered, again=again, outage=outage, wait_s=_wait_s(error.retry_after))


def failure_of_bad(bad: BadReply, most: Usage, api_key_env: str | None) -> Failure:
    """Classifies an answer with status 200 that is not a usable reply; it may have been billed."""
    if bad.error is None:
        return Failure(str(bad), bad.usage or most)
    code = bad.error.get("code")  # some servers answer 200 and put the error's status here
    error = SendError(
        str(bad.error.get("message") or ""),
        status=code if type(code) is int and code >= 300 else 500,
        code=code if isinstance(code, str) else None,
    )
    return failure_of(error, most, api_key_env)._replace(usage=bad.usage)


def redacted(text: str, api_key_env: str | None) -> str:
    """The text in one line of up to 200 characters, without secrets of the environment."""
    return _without_secrets(" ".join(text.split()), api_key_env)[:200]


def redact_logs(libraries: tuple[str, ...], api_key_env: str | None) -> None:
    """Keeps the key out of the logs of libraries, whenever they make their loggers.

    At level DEBUG they log the headers of every response, in which a proxy may repeat the key.

    Args:
        libraries: Their names, without the number that some add to it (httpcore2).
        api_key_env: Environment variable with the key.
    """
    make = logging.getLogRecordFactory()
    if not isinstance(make, _RedactingFactory):
        make = _RedactingFactory(make)
        logging.setLogRecordFactory(make)
    make.keys |= {(library, api_key_env) for library in libraries}


class _RedactingFactory:
    """Makes log records without secrets; filters would have to be added to each new logger."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make
        # (library, variable with its key); replaced as a whole, because threads read it
        self.keys: frozenset[tuple[str, str | None]] = frozenset()

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        # A record that logging.makeLogRecord restores has no name yet.
        library = (record.name or "").partition(".")[0].rstrip("0123456789")
        for name, api_key_env in self.keys:
            if name == library:
                text = _without_secrets(record.getMessage(), api_key_env)
                record.msg, record.args = text, None
        return record


def _without_secrets(text: str, api_key_env: str | None) -> str:
    for name, value in os.environ.items():
        named = any(word in name.upper() for word in ("KEY", "TOKEN", "SECRET", "PASSWORD"))
        secret = value.strip()
        # A shorter value could be a part of ordinary words.
        if (named or name == api_key_env) and len(secret) >= 6:
            text = text.replace(secret, "***")
    return text


def key_of(env: str | None, where: str) -> str | None:
    """The key in the environment variable `env`; None if no variable is given.

    Args:
        env: Name of the variable; None or "" for an endpoint without a key.
        where: The endpoint, for the error message.

    Raises:
        InputError: If the variable is not set, or its value cannot be a key.
    """
    if not env:
        return None
    key = os.environ.get(env, "").strip()
    if not key:
        raise InputError(
            f"${env} is not set; it must hold the key for {where} (or set api_key_env to the "
            "variable that does, or to null if none is needed)"
        )
    # Such a key would be shown in an error of the HTTP library.
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InputError(f"${env} has characters that no key has; set it anew")
    return key


def _wait_s(retry_after: str | None) -> float | None:
    """Seconds to wait by a Retry-After header, which is a number or a date; None if neither."""
    if not retry_after:
        return None
    with contextlib.suppress(ValueError):
        seconds = float(retry_after)
        return max(seconds, 0.0) if math.isfinite(seconds) else None
    with contextlib.suppress(ValueError, TypeError):
        at = email.utils.parsedate_to_datetime(retry_after).timestamp()
        return max(at - time.time(), 0.0)
    return None
