"""The four APIs: their paths, errors, limits, and the body that goes to the upstream."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scope_torch.errors import InputError
from scope_torch.llm.prices import LLMInfo

_IN_PATH = ("model", "stream")
_NOT_COUNTED = (*_IN_PATH, "generationConfig")
_RESERVED = (*_IN_PATH, "messages", "input", "contents")


@dataclass(frozen=True)
class Api:
    """One API of chat.

    Args:
        path: Its path behind `/v1`; Gemini's is `/models/{model}:generateContent` instead.
        limits: Keys of the longest reply in tokens.
        said: Keys of a reply under which an LLM's words are.
    """

    path: str
    limits: tuple[str, ...]
    said: tuple[str, ...]

    def error(self, status: int, message: str) -> bytes:
        """The body of an error, in the format of this API."""
        kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
        error: dict[str, Any] = {"type": kind, "message": message}
        if self is MESSAGES:
            return json.dumps({"type": "error", "error": error}).encode()
        if self is GENERATE:
            name = _STATUSES.get(status, "FAILED_PRECONDITION" if status < 500 else "UNAVAILABLE")
            of_google = {"code": status, "message": message, "status": name}
            return json.dumps({"error": of_google}).encode()
        return json.dumps({"error": error | {"param": None, "code": f"scope_{status}"}}).encode()

    def error_event(self, status: int, message: str) -> bytes:
        """An event that ends a stream with an error."""
        return b"event: error\ndata: " + self.error(status, message) + b"\n\n"


_ERRORS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large",
}  # fmt: skip
_STATUSES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    504: "DEADLINE_EXCEEDED",
}  # fmt: skip
COUNT_TOKENS = "/countTokens"  # of Gemini
RESPONSE_ID = "[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,199}"  # never `..`: it becomes a part of a path
CHAT = Api("/chat/completions", ("max_completion_tokens", "max_tokens"), ("choices",))
RESPONSES = Api("/responses", ("max_output_tokens",), ("output",))
MESSAGES = Api("/messages", ("max_tokens",), ("content",))
GENERATE = Api("/generateContent", ("maxOutputTokens",), ("candidates",))  # Gemini's own
APIS = {api.path: api for api in (CHAT, RESPONSES, MESSAGES, GENERATE)}


class Refused(Exception):
    """A request or a reply that is not passed on.

    Args:
        status: Status for the application.
        message: What is wrong and how to mend it; without the key.
        again: Whether the application's client may send the request again by itself.
    """

    def __init__(self, status: int, message: str, *, again: bool = False) -> None:
        super().__init__(message)
        self.status, self.again = status, again
        # Clients would send a 409 or a 502 again; most of them obey this header.
        self.headers = {} if again else {"x-should-retry": "false"}


def check_extra_body(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """The keys that are added to every request.

    Raises:
        InputError: If one of them is the application's own, or no JSON.
    """
    extra = dict(extra or {})
    if wrong := [key for key in _RESERVED if key in extra]:
        raise InputError(f"extra_body has {wrong}, which the application decides; leave them out")
    try:
        json.dumps(extra, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"extra_body cannot be sent as JSON ({error}); mend it") from None
    return extra


def module_of(model: object, assignment: Mapping[str, str], prefix: str) -> str:
    """The module that a request means by the name of a model.

    Raises:
        Refused: If there is no such module.
    """
    if isinstance(model, str):
        for name in (model, model.removeprefix(prefix)):
            if name in assignment:
                return name
    names = ", ".join(f"{prefix}{module}" for module in assignment)
    raise Refused(404, f"there is no module {model!r:.200}; ask for one of these models: {names}")


def outgoing(
    api: Api, body: Mapping[str, Any], llm: str, info: LLMInfo | None, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """The body for the upstream: the application's, with the LLM in place of the module.

    Args:
        api: The API of the request.
        body: What the application sent.
        llm: The LLM that answers.
        info: Its entry in the price list; None for none. What the entry says about calls holds:
            its `model`, `reasoning_effort`, `max_tokens_key`, and whether it takes a temperature.
        extra: Keys to add.
    """
    out: dict[str, Any] = {**body, "model": (info and info.model) or llm}
    if api is GENERATE:
        given = out.pop("generation_config", None)  # both spellings are Google's
        out["generationConfig"] = _in_camel_case(out.get("generationConfig", given))
    if info is not None:
        _as_listed(api, out, info)
    more = dict(extra)
    if api is GENERATE:  # all settings are in there, so the application's stay beside the extra
        given = more.pop("generation_config", None)
        config = _in_camel_case(more.get("generationConfig", given))
        more["generationConfig"] = {**out["generationConfig"], **config}
    return {**out, **more}


def address(what: str, out: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Path at the upstream and body of a request; Gemini's names model and stream in the path.

    Args:
        what: Its path behind `/v1`.
        out: The body, with both.

    Examples:
        >>> address("/generateContent", {"model": "gemini-3.5-flash", "stream": True})
        ('/models/gemini-3.5-flash:streamGenerateContent', {})
    """
    if what not in (GENERATE.path, COUNT_TOKENS):
        return what, dict(out)
    verb = "streamGenerateContent" if out.get("stream") else what[1:]
    model = urllib.parse.quote(out["model"], safe="/")
    dropped = _IN_PATH if out.get("generationConfig") and what == GENERATE.path else _NOT_COUNTED
    return f"/models/{model}:{verb}", {k: v for k, v in out.items() if k not in dropped}


def asking_for_usage(api: Api, out: dict[str, Any]) -> dict[str, Any]:
    """The body with the wish for usage, which only streams of chat completions need."""
    if not (api is CHAT and out.get("stream")):
        return out
    options = out.get("stream_options")
    options = options if isinstance(options, dict) else {}
    return out | {"stream_options": {**options, "include_usage": True}}


def encoded(body: dict[str, Any]) -> bytes:
    """JSON in UTF-8, or in ASCII if a text has half of a surrogate pair."""
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(body).encode()


def _as_listed(api: Api, out: dict[str, Any], info: LLMInfo) -> None:
    """Without it, two entries of one model would be the same, and some LLMs would refuse."""
    config = out["generationConfig"] if api is GENERATE else out
    if not info.takes_temperature:
        config.pop("temperature", None)
    if info.reasoning_effort is not None and api is GENERATE:
        given = config.get("thinkingConfig") or {}
        if not given.keys() & {"thinkingLevel", "thinkingBudget"}:
            config["thinkingConfig"] = {**given, "thinkingLevel": info.reasoning_effort.upper()}
    elif info.reasoning_effort is not None and api is CHAT:
        out.setdefault("reasoning_effort", info.reasoning_effort)
    elif info.reasoning_effort is not None:
        part = "reasoning" if api is RESPONSES else "output_config"
        given = out.get(part)
        if given is None or isinstance(given, dict):
            out[part] = {"effort": info.reasoning_effort, **(given or {})}
    if api is CHAT and info.max_tokens_key != "max_tokens" and "max_tokens" in out:
        out.setdefault(info.max_tokens_key, out.pop("max_tokens"))


def _in_camel_case(config: Any) -> dict[str, Any]:
    """A copy of Gemini's settings with one spelling of names, as far as factors are among them."""
    config = config if isinstance(config, dict) else {}
    named = {re.sub(r"_([a-z])", lambda at: at[1].upper(), key): v for key, v in config.items()}
    if isinstance(named.get("thinkingConfig"), dict):
        named["thinkingConfig"] = _in_camel_case(named["thinkingConfig"])
    return named


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether the application asked for the usage of a streamed chat completion."""
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))
