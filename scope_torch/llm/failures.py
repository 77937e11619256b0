"""What can go wrong with a call: what passes, what does not, and what each was billed for."""

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

_PASSING = frozenset({408, 409, 425, 429})  # and 5xx
_OUTAGE = frozenset({429, 502, 503, 504})
_FATAL = frozenset({401, 402, 403, 404, 405})  # and redirects


class SendError(Exception):
    """A request that was not answered with status 200.

    Args:
        reason: What happened, without the key.
        status: The status it was answered with; None if it was not answered.
        code: The server's word for the error.
        retry_after: The header of that name.
        sent: Whether the server may have worked on it, and bill it.
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
    usage: Usage | None = None  # what it was billed for
    again: bool = True  # may go better next time
    fatal: bool = False
    outage: bool = False  # says nothing about the call: any other would have failed as well
    unreachable: bool = False  # nothing was sent
    wait_s: float | None = None


def failure_of(error: SendError, most: Usage, api_key_env: str | None) -> Failure:
    """What to make of an answer other than 200, or of none.

    An error status bills nothing. Statuses 408, 409, 425, 429 and 5xx pass, and so do lost
    connections; 401 to 405 and redirects never do.

    Args:
        error: What happened.
        most: What a request is counted for that was sent but not answered.
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
    """What to make of an answer 200 that is no reply; it may have been billed like one."""
    if bad.error is None:
        return Failure(str(bad), bad.usage or most)
    code = bad.error.get("code")  # some servers answer 200 and put the status here
    error = SendError(
        str(bad.error.get("message") or ""),
        status=code if type(code) is int and code >= 300 else 500,
        code=code if isinstance(code, str) else None,
    )
    return failure_of(error, most, api_key_env)._replace(usage=bad.usage)


def redacted(text: str, api_key_env: str | None) -> str:
    """The text in one line of 200 characters, without what the environment keeps secret."""
    return _without_secrets(" ".join(text.split()), api_key_env)[:200]


def redact_logs(libraries: tuple[str, ...], api_key_env: str | None) -> None:
    """Keeps the key out of what these libraries log, whenever they make their loggers.

    At level DEBUG they log the headers of every response, and a proxy may echo the key in one.

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
    """Makes log records; a filter would have to be added to each logger after it is made."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make
        self.keys: frozenset[tuple[str, str | None]] = frozenset()  # threads may read it

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        # no name: logging.makeLogRecord, of a record made before
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
        if (named or name == api_key_env) and len(secret) >= 6:  # shorter ones are parts of words
            text = text.replace(secret, "***")
    return text


def key_of(env: str | None, where: str) -> str | None:
    """The key in environment variable `env`; None if that is None or empty.

    Raises:
        InputError: If it is not set, or cannot be a key.
    """
    if not env:
        return None
    key = os.environ.get(env, "").strip()
    if not key:
        raise InputError(
            f"${env} is not set; it must hold the key for {where} (or set api_key_env to the "
            "variable that does, or to null if none is needed)"
        )
    if not (key.isascii() and key.isprintable()) or " " in key:  # an error would show it
        raise InputError(f"${env} has characters that no key has; set it anew")
    return key


def _wait_s(retry_after: str | None) -> float | None:
    """Seconds of a Retry-After header: a number, or a date."""
    if not retry_after:
        return None
    with contextlib.suppress(ValueError):
        seconds = float(retry_after)
        return max(seconds, 0.0) if math.isfinite(seconds) else None
    with contextlib.suppress(ValueError, TypeError):
        at = email.utils.parsedate_to_datetime(retry_after).timestamp()
        return max(at - time.time(), 0.0)
    return None
