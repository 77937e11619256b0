"""The tokens of a logged call: what libraries write, read as what the provider has billed.

Most count the cached tokens inside the prompt, as the conventions of OpenTelemetry say. Some count
them beside it, as Anthropic's and Bedrock's APIs do. A total that is logged too decides.

| written by | cached and written tokens |
| --- | --- |
| OpenTelemetry's own libraries; OpenInference; pydantic-ai; LangChain; LangSmith; OpenLLMetry (Anthropic, OpenAI); Vercel AI SDK 6 | inside the prompt |
| OpenLLMetry (Bedrock), OpenLIT (Anthropic, Bedrock) | beside it; the scope of the span says so |
| Vercel AI SDK 4 and 5 (Anthropic, Bedrock) | beside it; the provider's own counts are in `ai.response.providerMetadata` |
| Logfire (Anthropic) | until March 2026 nowhere but in the provider's own counts, in `response_data`; then inside |
| Strands with Bedrock | beside it; the total says so |
| Langfuse | beside it, in buckets of their own |
| LiteLLM in Langfuse | cached tokens beside it, written ones inside; the total says so |
"""  # noqa: E501 - a table

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from scope_torch.llm.usage import Usage, count, usage_of
from scope_torch.traces.span import decoded, first_in, mapping_in, text_in

SCOPE = "otel.scope.name"  # as exporters without scopes call the library that made a span
_BESIDE = (
    "opentelemetry.instrumentation.bedrock",
    "openlit.instrumentation.anthropic",
    "openlit.instrumentation.bedrock",
)
_CACHED_OF_5 = "ai.usage.cachedInputTokens"  # all that AI SDK 5 tells of them, and 6 beside others
_COUNTS = re.compile(r"(gen_ai|llm|ai)\.(usage|token_count)\.")
_PROMPT = (
    "gen_ai.usage.input_tokens",
    "llm.token_count.prompt",
    "gen_ai.usage.prompt_tokens",
    "llm.usage.prompt_tokens",
    "ai.usage.inputTokens",
    "ai.usage.promptTokens",
)
_COMPLETION = (
    "gen_ai.usage.output_tokens",
    "llm.token_count.completion",
    "gen_ai.usage.completion_tokens",
    "llm.usage.completion_tokens",
    "ai.usage.outputTokens",
    "ai.usage.completionTokens",
)
_TOTAL = (
    "gen_ai.usage.total_tokens",
    "llm.token_count.total",
    "llm.usage.total_tokens",
    "ai.usage.totalTokens",
)
_REASONING = (
    "gen_ai.usage.reasoning.output_tokens",
    "llm.token_count.completion_details.reasoning",
    "gen_ai.usage.details.reasoning_tokens",
    "gen_ai.usage.reasoning_tokens",
    "ai.usage.reasoningTokens",
)
_TIER = re.compile(r"((gen_ai|openai|llm)\.[\w.]*)?service_?tier", re.IGNORECASE)
_SEARCHES = re.compile("search(es|requests|calls|queries)$")
_MODALITY = re.compile("audio|image(?!s|count)")
_NO_TOKENS = re.compile("seconds|duration|cost")


class Cached(NamedTuple):
    """Prompt tokens that a cache gave, and those it got; `long` of these for an hour."""

    read: int = 0
    written: int = 0
    long: int = 0


def cached_in(counts: Mapping[str, Any]) -> Cached:
    """The cached tokens in counts by name, however a library spells it.

    Two spellings of one count are in many logs, and count once. Written tokens may be told as a
    whole, by how long they are kept, or both.

    Examples:
        >>> cached_in({"cache_read.input_tokens": 80, "details.cache_read_tokens": 80})
        Cached(read=80, written=0, long=0)
        >>> cached_in({"cache_creation": 0, "ephemeral_1h_input_tokens": 9, "cachedInputTokens": 2})
        Cached(read=2, written=9, long=9)
    """
    most: dict[str, int] = dict.fromkeys(("read", "over_200k", "whole", "short", "long"), 0)
    for name, value in counts.items():
        kind = cached_kind(name)
        if kind is not None and (tokens := count(value)) is not None:
            most[kind] = max(most[kind], tokens)
    written = max(most["whole"], most["short"] + most["long"])
    return Cached(most["read"] + most["over_200k"], written, most["long"])


def cached_kind(name: str) -> str | None:
    """Which cached tokens a name counts; None if none, or only the audio among them."""
    plain = re.sub("[^a-z0-9]", "", name.lower())
    if "audio" in plain or "uncached" in plain or "nocache" in plain:
        return None
    if "ephemeral1h" in plain or ("cachecreation" in plain and plain.endswith("1h")):
        return "long"
    if "ephemeral5m" in plain or ("cachecreation" in plain and plain.endswith("5m")):
        return "short"
    if "cachecreation" in plain or "cachewrite" in plain:
        return "whole"
    if any(word in plain for word in ("cacheread", "cached", "cacheinput")):
        return "over_200k" if "over200k" in plain else "read"
    return None


def further_in(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Audio, images and searches in counts by name, as a report has them.

    A name without a side is one of the completion: pydantic-ai copies OpenAI's details of it.

    Examples:
        >>> further_in({"output_audio_tokens": 482})["output_tokens_details"]
        {'audio_tokens': 482}
    """
    sides: dict[str, dict[str, int]] = {"searches": {}, "cached": {}, "input": {}, "output": {}}
    for name, value in counts.items():
        plain = re.sub("[^a-z0-9]", "", _COUNTS.sub("", name).lower())
        if _SEARCHES.search(plain):
            side = "searches"
            key = f"{'file' if 'filesearch' in plain else 'web'}_search_requests"
        elif (found := _MODALITY.search(plain)) and not _NO_TOKENS.search(plain):
            is_of_prompt = "input" in plain or "prompt" in plain
            side = "cached" if "cache" in plain else "input" if is_of_prompt else "output"
            key = f"{found[0]}_tokens"
        else:
            continue
        sides[side][key] = max(sides[side].get(key, 0), count(value) or 0)
    return {
        **sides["searches"],
        "input_tokens_details": {**sides["input"], "cached_tokens_details": sides["cached"]},
        "output_tokens_details": sides["output"],
    }


def tier_in(*places: Mapping[str, Any]) -> str | None:
    """The first service tier in these places; what was asked for comes last in each of them.

    Examples:
        >>> tier_in({"openai.request.service_tier": "auto", "llm.response.service_tier": "flex"})
        'flex'
    """
    for place in places:
        names = filter(_TIER.fullmatch, place)
        if (tier := text_in(place, *sorted(names, key=lambda n: "request" in n))) is not None:
            return tier
    return None


def used(
    prompt: Any,
    completion: Any,
    cached: Cached | None = None,
    *,
    total: Any = None,
    reasoning: Any = None,
    beside: bool = False,
    further: Mapping[str, Any] | None = None,
) -> Usage | None:
    """The tokens of a call; None if neither prompt nor completion is a count.

    Cached tokens are inside the prompt or beside it, and reasoning inside the completion or beside
    it: the total tells, if one of these readings adds up to it. More cached tokens than prompt
    tokens are beside.

    Args:
        prompt: Prompt tokens.
        completion: Completion tokens.
        cached: The cached tokens.
        total: All tokens.
        reasoning: Tokens of reasoning that are told apart.
        beside: Whether cached tokens and reasoning are beside, if the total does not tell.
        further: What else a report has: see `further_in`.

    Examples:
        >>> used(1000, 7, Cached(900))[:3], used(100, 7, Cached(900))[:3]
        ((1000, 7, 900), (1000, 7, 900))
        >>> used(1000, 7, Cached(900), total=1907)[:3]
        (1900, 7, 900)
        >>> used(None, None) is None, used(0, 0) is None  # Langfuse writes zeros for none
        (True, True)
    """
    given, said, every = count(prompt), count(completion), count(total)
    read, written, long = cached or Cached()
    if (given is None and said is None) or not any((given, said, every, read, written)):
        return None
    apart = count(reasoning) or 0
    given = given or 0
    prompts = [given, given + read + written, given + read, given + written]
    usual = prompts[1] if beside or prompts[0] < read + written else prompts[0]
    if said is None:
        said = max(0, (every or 0) - usual)
    said_all = said + apart if beside else said
    readings = [(p, c) for p in (usual, *prompts) for c in (said_all, said, said + apart)]
    fitting = (r for r in readings if sum(r) == every and r[0] >= read + written)
    sent, answered = next(fitting, (usual, said_all))
    # In the words of Anthropic's API, where no two of the counts overlap.
    reported = {
        "input_tokens": sent - read - written,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "cache_creation": {"ephemeral_1h_input_tokens": long},
        "output_tokens": answered,
        **(further or {}),
    }
    return usage_of({"usage": reported})


def usage_in(attributes: Mapping[str, Any]) -> Usage | None:
    """The tokens in the attributes of a span; None if they tell none.

    Examples:
        >>> pydantic = {"gen_ai.usage.input_tokens": 90, "gen_ai.usage.details.cache_read_tokens": 80}
        >>> usage_in(pydantic)[:3]
        (90, 0, 80)
    """  # noqa: E501 - an example
    told = {key: value for key, value in attributes.items() if _COUNTS.match(key)}
    for side in ("input", "output"):
        details = decoded(attributes, f"gen_ai.usage.{side}_token_details")
        told |= {f"{side}.{key}": value for key, value in details.items()}
    cached = cached_in(told)
    prompt, completion, total, reasoning = (
        first_in(attributes, names) for names in (_PROMPT, _COMPLETION, _TOTAL, _REASONING)
    )
    provider = decoded(attributes, "ai.response.providerMetadata")
    anthropic, openai = mapping_in(provider, "anthropic"), mapping_in(provider, "openai")
    response = decoded(attributes, "response_data")
    asked = decoded(attributes, "llm.invocation_parameters")
    tier = tier_in(response, openai, attributes, asked)
    for place in (anthropic, response):
        reported = dict(mapping_in(place, "usage"))
        if "output_tokens" in reported and (said := count(completion)) is not None:
            reported["output_tokens"] = said  # of a stream, the report may be that of its start
        if (exact := usage_of({"usage": reported, "service_tier": tier})) is not None:
            return exact
    beside = text_in(attributes, SCOPE) in _BESIDE
    if not any(cached_in({key: told[key] for key in told if key != _CACHED_OF_5})):
        made_by = text_in(attributes, "ai.model.provider") or ""
        bedrock = mapping_in(mapping_in(provider, "bedrock"), "usage")
        beside |= bool(anthropic or bedrock) or "anthropic" in made_by or "bedrock" in made_by
        cached = cached_in({_CACHED_OF_5: cached.read, **anthropic, **bedrock, **openai})
    if beside and count(prompt) is not None:  # a total may leave out what is beside
        prompt, total = (count(prompt) or 0) + cached.read + cached.written, None
    further = {**further_in(told), "service_tier": tier}
    return used(prompt, completion, cached, total=total, reasoning=reasoning, further=further)
