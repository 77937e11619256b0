"""Which reported tokens are booked as told, and upper estimates for replies that tell none.

One rule for the client and for the endpoint. An estimate is never below a report of counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from scope_torch.llm.chat import ChatCall
from scope_torch.llm.usage import Usage, is_count

BYTES_PER_TOKEN = 2  # English text has 3 to 5; tables, code and other scripts have down to 2
TOKENS_PER_MESSAGE = 8  # for its role and the separators
# For what a request only names, images by URL, files and earlier turns; and for each image or file
# in it: a plain one of 2,000 bytes is 25,501 tokens of gpt-4o-mini.
REFERRED_TOKENS = 65_536
UNLIMITED_TOKENS = 16_384  # beyond what was received, if the request sets no limit

# Larger counts than these are not believed; they leave room for every tokenizer.
TIMES_ASKED_FOR = 10
HIDDEN_PROMPT_TOKENS = 4096  # some endpoints add a prompt of their own
HIDDEN_REASONING_TOKENS = 65_536  # some endpoints do not count reasoning against the limit

_LIMITS = "max_completion_tokens", "max_tokens", "max_output_tokens"
_DEARER_TIERS = "priority", "fast"
_REFERENCES = {
    "previous_response_id",
    "conversation",
    "prompt",
    "container",
    "file_id",
    "file_url",
    "fileUri",
    "file_uri",
    "cachedContent",
    "cached_content",
    # Tools of the provider: what they find becomes a part of the prompt.
    "web_search_options",
    "search_parameters",
    "data_sources",
    "mcp_servers",
    "plugins",
    "enable_search",
    "connectors",
}
# Models that search without being told to: by OpenRouter's ending, or Groq's name.
_SEARCHING = re.compile(r".+:online|(.+/)?compound(-.+)?")
_URLS = "url", "image_url", "document_url"
_DATA = "data", "file_data"
_DECLARED = "function_declarations", "functionDeclarations"
_OWN_TOOLS = {"function", "custom"}  # the application runs them
_OF_OWN = {"function", "parameters", "input_schema", "parameter_definitions", *_DECLARED}
_NO_WORDS = {
    "id", "type", "role", "object", "status", "index", "finish_reason", "call_id", "usage",
    # Gemini's, beside the content of a candidate.
    "finishReason", "safetyRatings", "citationMetadata", "groundingMetadata", "thoughtSignature",
    # OpenRouter's and Azure's, beside the message of a choice.
    "native_finish_reason", "content_filter_results", "error",
}  # fmt: skip


class Most(NamedTuple):
    """The most that a request can have asked for.

    Args:
        prompt_tokens: One for every 2 bytes of the request, and 65,536 if it refers to more.
        completion_tokens: Its limit, times the number of replies; None if it sets none.
        refers: Whether it refers to content that it does not contain, or lets the provider search.
        tier: The service tier that it asks for, if that one costs more; "" for none.
        replies: The number of replies.
        files: The number of images and files, but for the first that it only names: a small one
            may have many tokens.
    """

    prompt_tokens: int
    completion_tokens: int | None
    refers: bool = False
    tier: str = ""
    replies: int = 1
    files: int = 0


def most_of(limits: Iterable[str], body: Mapping[str, Any], num_bytes: int) -> Most:
    """The most tokens of a request of `num_bytes` bytes.

    Args:
        limits: Keys of the longest reply in tokens. Of two, the upstream may obey either one.
        body: The request.
        num_bytes: Its length as JSON.
    """
    config = body.get("generationConfig")
    if isinstance(config, dict):
        body = {**config, "n": config.get("candidateCount"), **body}
    refers = _refers(body)
    prompt = -(-num_bytes // BYTES_PER_TOKEN) + (REFERRED_TOKENS if refers else 0)
    named = sum(_is_address(key, value) for key, value in _parts(body))
    files = sum(_is_file(key, value) for key, value in _parts(body)) + max(0, named - 1)
    return Most(prompt, _limit(limits, body), refers, _tier(body), _replies(body), files)


def most_of_call(call: ChatCall, extra_body: Mapping[str, Any] | None = None) -> Most:
    """The most tokens of a call.

    The prompt counts as one token for every 2 bytes of UTF-8, and 8 tokens for every message. The
    completion counts as its limit, because hidden reasoning is billed too.

    Args:
        call: The call.
        extra_body: Keys that are sent with it; they may set another limit, or a number of replies.
    """
    body = {"model": call.llm, **(extra_body or {}), "": call.max_tokens}
    sizes = (len(m.content.encode("utf-8", "replace")) + len(m.role) for m in call.messages)
    prompt = sum(-(-size // BYTES_PER_TOKEN) + TOKENS_PER_MESSAGE for size in sizes)
    prompt += REFERRED_TOKENS if (refers := _refers(body)) else 0
    return Most(prompt, _limit(("", *_LIMITS), body) or 0, refers, _tier(body))


def booked(
    told: Usage | None, most: Most, said: int, *, final: bool = True, free: bool = False
) -> Usage | None:
    """The tokens to book for a reply: as told, or an upper estimate; None for nothing.

    Args:
        told: What it reports.
        most: The most that was asked for.
        said: Bytes of its words.
        final: Whether the counts cannot grow any more.
        free: Whether nothing was billed, unless the reply says otherwise.
    """
    if told is not None and not told.tier and most.tier:
        told = told._replace(tier=most.tier)
    if told is not None and final and believable(told, most, said):
        return told
    if free and not (told and told.prompt_tokens):
        return None
    return estimate(most, said, told, begun=not final)


def estimate(most: Most, said: int, told: Usage | None = None, *, begun: bool = False) -> Usage:
    """An upper estimate of the billed tokens.

    Where the request sets no limit, 16,384 tokens a reply beyond the words that came. Images and
    files may be billed by their size when unpacked, so each has 65,536 more.

    Args:
        most: The most that was asked for.
        said: Bytes of the reply's words that were received.
        told: What the reply reports; the estimate is not below it.
        begun: Whether that was told before the end, as at the start of Anthropic's streams: then
            the prompt is known.
    """
    completion = most.completion_tokens
    if completion is None:
        completion = -(-said // BYTES_PER_TOKEN) + UNLIMITED_TOKENS * most.replies
    told = told or Usage(0, 0, tier=most.tier)
    prompt = told.prompt_tokens
    if not (begun and prompt_believable(told, most)):
        prompt = max(prompt, most.prompt_tokens + REFERRED_TOKENS * most.files)
        told = told._replace(cached_tokens=0, cached_audio_tokens=0)
    completion = max(completion, told.completion_tokens)
    return told._replace(prompt_tokens=prompt, completion_tokens=completion, estimated=True)


def believable(usage: Usage, most: Most, said: int) -> bool:
    """Whether the counts fit the request and the reply.

    They do not if the prompt, or a reply with words, has no tokens, or if a count is far above the
    request: 10 times, plus room for files, a hidden prompt and reasoning.
    """
    if not usage.completion_tokens and said:
        return False
    if not prompt_believable(usage, most):
        return False
    if most.completion_tokens is None:
        return True
    limit = TIMES_ASKED_FOR * most.completion_tokens + HIDDEN_REASONING_TOKENS
    return usage.completion_tokens <= limit


def prompt_believable(usage: Usage, most: Most) -> bool:
    """Whether the count of prompt tokens fits the request."""
    if not usage.prompt_tokens:
        return not most.prompt_tokens
    limit = TIMES_ASKED_FOR * most.prompt_tokens + HIDDEN_PROMPT_TOKENS
    limit += REFERRED_TOKENS * most.files
    has_searched = usage.searches or usage.file_searches
    return most.refers or bool(has_searched) or usage.prompt_tokens <= limit


def said_bytes(value: Any) -> int:
    """Bytes of all text in a part of a reply, without its names and roles."""
    total, rest = 0, [value]
    while rest:  # a loop, because a reply may be nested deeply
        part = rest.pop()
        if isinstance(part, str):
            total += len(part.encode("utf-8", "replace"))
        elif isinstance(part, list):
            rest.extend(part)
        elif isinstance(part, dict):
            rest.extend(inner for key, inner in part.items() if key not in _NO_WORDS)
    return total


def _limit(limits: Iterable[str], body: Mapping[str, Any]) -> int | None:
    """The longest reply, times the number of replies; None if there is no limit."""
    asked = [body[key] for key in limits if is_count(body.get(key)) and body[key]]
    return max(asked) * _replies(body) if asked else None


def _replies(body: Mapping[str, Any]) -> int:
    return n if is_count(n := body.get("n")) and n else 1


def _tier(body: Mapping[str, Any]) -> str:
    tier = body.get("speed") or body.get("service_tier") or body.get("serviceTier")
    return tier if (tier := str(tier).lower()) in _DEARER_TIERS else ""


def _refers(body: Mapping[str, Any]) -> bool:
    """Whether a request names content that lies elsewhere."""
    tools, model = body.get("tools"), body.get("model")
    searches = isinstance(model, str) and _SEARCHING.fullmatch(model)
    if searches or any(map(_is_of_provider, tools if isinstance(tools, list) else ())):
        return True
    return any(_is_reference(key, value) for key, value in _parts(body))


def _parts(body: Any) -> Iterator[tuple[Any, Any]]:
    """All keys of a request with their values."""
    rest: list[Any] = [body]
    while rest:
        part = rest.pop()
        if isinstance(part, list):
            rest.extend(part)
        elif isinstance(part, dict):
            yield from part.items()
            # The schemas of tools may use any name.
            rest.extend(inner for key, inner in part.items() if key != "tools")


def _is_of_provider(tool: Any) -> bool:
    """Whether the provider runs a tool, such as web_search, file_search or code_interpreter.

    The application's own have the type function or custom, or a schema (Anthropic, Gemini).
    """
    if not isinstance(tool, dict) or tool.get("type") in _OWN_TOOLS:
        return False
    return tool.get("type") == "builtin_function" or not tool.keys() & _OF_OWN


def _is_reference(key: Any, value: Any) -> bool:
    if key == "web_search_options":  # {} asks for a search, too
        return value is not None
    if key == "type" and value == "item_reference":  # of an earlier message
        return True
    return (key in _REFERENCES and bool(value)) or _is_address(key, value)


def _is_address(key: Any, value: Any) -> bool:
    """Whether this is the URL of an image or a document."""
    return key in _URLS and isinstance(value, str) and not value.startswith("data:")


def _is_file(key: Any, value: Any) -> bool:
    """Whether this is an image or a file itself, of any API."""
    return isinstance(value, str) and (key in _DATA or (key in _URLS and value[:5] == "data:"))
