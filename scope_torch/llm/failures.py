"""Failures of calls: which may pass when the call is sent again, and what was billed."""

from __future__ import annotations

import email.utils
import math
import re
import time
from typing import NamedTuple

from scope_torch.errors import printable
from scope_torch.llm.billing import BadReply, Usage
from scope_torch.llm.keys import redacted

MAX_WAIT_S = 60.0
_ABSURD_S = 86_400.0  # a quota may be that of a day
_PASSING = frozenset({408, 409, 425, 429})  # and 5xx: sending again may help
_OUTAGE = frozenset({429, 502, 503, 504})  # every other call would have failed as well
_CONGESTED = frozenset({429, 529})
_FATAL = frozenset({401, 402, 403, 404, 405})  # and redirects: every further call would fail too
# OpenRouter and xAI answer 403, too, to a prompt that their moderation refuses, and firewalls do.
_OF_CONTENT = re.compile(
    r"\bflagged\b|moderation|content[ _-](policy|filter)|(usage|use) (policy|policies|guidelines)"
    r"|\brefusal\b|prompt injection|\bsafety\b|\bsensitive\b|inappropriate|you have been blocked",
    re.IGNORECASE,
)
# Gemini and xAI answer 400 to a wrong key, Anthropic and Groq to one without credit or leave.
_OF_KEY = re.compile(
    r"(invalid|incorrect|missing)[ _](x-)?api[ _-]?(key|token)"
    r"|api[ _-]?key( is)? (not valid|expired|invalid)|api_key_invalid"
    r"|authentication_?error|unauthenticated|invalid authentication credentials"
    r"|organization has been (restricted|disabled)",
    re.IGNORECASE,
)
_OF_CREDIT = re.compile(
    r"insufficient_quota(?![\s\S]*allocated quota)|credit balance is too low|requires more credits"
    r"|(doesn't have any|used all available) credits|key limit exceeded",
    re.IGNORECASE,
)
_OF_PAYMENT = re.compile(r"insufficient (balance|credits?|funds)", re.IGNORECASE)  # with a 402
# 400 about an LLM, as 404 is; OpenRouter and DeepSeek have no code for it.
RETIRED = ("model_decommissioned", "model_not_found", "invalid_model")
SAYS_RETIRED = re.compile("is not a valid model id|^model not exist", re.IGNORECASE)


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
    congested: bool = False  # the server takes fewer requests than it gets
    wait_s: float | None = None  # seconds to wait, if the server said so
    odd_wait: str = ""  # what it said of it, if it cannot be followed, and what is done instead


def failure_of(error: SendError, most: Usage, api_key_env: str | None) -> Failure:
    """Classifies an answer with another status than 200, or a missing answer.

    An error status bills nothing. Lost connections and the statuses 408, 409, 425, 429 and 5xx may
    pass; 401 to 405 and redirects do not, nor does a 400 about the account or the LLM. A 403 about
    the prompt says nothing of others.

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
    said = f"{error.code} {error.reason}"
    refused = about_account(status, said)
    if refused == "credit":
        return Failure(f"answered {status}: no credit is left", again=False, fatal=True)
    if status == 403 and refused is None and _OF_CONTENT.search(said):
        return Failure("answered 403: its moderation refuses this prompt", again=False)
    if refused == "key" or status == 403:  # the reason may quote a part of it
        key = f"the key in ${api_key_env}" if api_key_env else "the key, or misses one"
        also = ", or not for this LLM or country" if status == 403 else ""
        told = f"answered {status}: it does not accept {key}{also}"
        return Failure(told, again=False, fatal=True)
    answered = f"answered {status}" + (f" ({reason})" if reason else "")
    is_gone = status == 400 and (error.code in RETIRED or SAYS_RETIRED.search(error.reason))
    if is_gone or status in _FATAL or 300 <= status < 400:
        mend = "; check base_url, and `model` in the price list"
        return Failure(answered + mend, again=False, fatal=True)
    again = status in _PASSING or status >= 500
    congested = status in _CONGESTED or (again and error.retry_after is not None)
    wait_s, odd = _wait_s(error.retry_after)
    return Failure(
        answered,
        again=again,
        outage=status in _OUTAGE,
        congested=congested,
        wait_s=wait_s,
        odd_wait=odd,
    )


def about_account(status: int, said: str) -> str | None:
    """What of the account an answer is about, `key` or `credit`: no further one would be better.

    Args:
        status: Of the answer of a provider of LLMs.
        said: What it says, with the code of the error.

    Returns:
        None if it is about neither.

    Examples:
        >>> about_account(401, "no"), about_account(402, "no"), about_account(400, "no")
        ('key', 'credit', None)
    """
    return {401: "key", 402: "credit"}.get(status) or account_in(status, said)


def account_in(status: int, said: str) -> str | None:
    """As `about_account`, of any service: by words alone.

    Examples:
        >>> account_in(400, "Your credit balance is too low to access the API.")
        'credit'
        >>> account_in(400, "Incorrect API key provided: na***ys."), account_in(401, "log in first")
        ('key', None)
    """
    is_of_payment = status == 402 and _OF_PAYMENT.search(said)
    if is_of_payment or (status in (400, 402, 403, 429) and _OF_CREDIT.search(said)):
        return "credit"
    return "key" if status in (400, 401, 403) and _OF_KEY.search(said) else None


def failure_of_bad(bad: BadReply, most: Usage, api_key_env: str | None) -> Failure:
    """Classifies an answer with status 200 that is not a usable reply; it may have been billed."""
    if bad.error is None:
        return Failure(str(bad), bad.usage or most)
    code, said = bad.error.get("code"), str(bad.error.get("message") or "")
    status = 400 if account_in(400, f"{code} {said}") else 500
    if type(code) is int and code >= 300:  # some servers answer 200 and put the status here
        status = code
    error = SendError(said, status=status, code=code if isinstance(code, str) else None)
    found = failure_of(error, most, api_key_env)
    # What was billed has begun to answer: waiting for it without end would bill without end.
    return found._replace(usage=bad.usage, outage=found.outage and bad.usage is None)


def _wait_s(retry_after: str | None) -> tuple[float | None, str]:
    """Seconds to wait by a Retry-After header, at most `MAX_WAIT_S`; and what is odd about it.

    None if the header says no time that can be waited for: then the usual wait follows. A server
    that says 0 would get the request again and again, so it says no time either.
    """
    if not retry_after:
        return None, ""
    seconds = seconds_of(retry_after)
    if 0 <= seconds <= MAX_WAIT_S:
        return seconds or None, ""
    told = f"Retry-After: {printable(retry_after):.60}, which is"
    if MAX_WAIT_S < seconds <= _ABSURD_S:
        return MAX_WAIT_S, f"{told} long; it is asked again every {MAX_WAIT_S:g} s"
    return None, f"{told} absurd; the usual wait is kept"


def seconds_of(retry_after: str | None) -> float:
    """Seconds from now that a Retry-After header says; NaN if it says none.

    Examples:
        >>> seconds_of("20"), seconds_of("soon")
        (20.0, nan)
    """
    try:
        return float(retry_after or "nan")
    except ValueError:
        pass
    try:
        return email.utils.parsedate_to_datetime(retry_after or "").timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return math.nan
