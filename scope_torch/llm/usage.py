"""The one reader of the tokens that a reply, or a part of a stream, reports as billed.

| API | prompt | of it cached, written | completion, reasoning included |
| --- | --- | --- | --- |
| chat completions | `prompt_tokens` | `prompt_tokens_details`; DeepSeek: `prompt_cache_hit_tokens` | `completion_tokens`, or `total_tokens` without the prompt if that is more |
| responses | `input_tokens` | `input_tokens_details` | `output_tokens`, likewise |
| messages | `input_tokens` + both, of all `iterations` | `cache_read_input_tokens`, `cache_creation_input_tokens` | `output_tokens` |
| Gemini, Bedrock, Ollama | `promptTokenCount`, `inputTokens`, `prompt_eval_count` | `cachedContentTokenCount`, `cacheReadInputTokens` | `candidatesTokenCount` + `thoughtsTokenCount`, `outputTokens`, `eval_count` |

Names may be in camelCase, and counts 521, 521.0 or "521". The report may be under `usage`, in the
first choice (Moonshot), or in a field of the vendor (`x_groq`).
"""  # noqa: E501 - a table

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

from scope_torch.llm.tool_calls import listed, mappings, parts_of_tools, searches_in

# No call reads or writes more: the longest context that was announced has as many (LTM-2-mini,
# magic.dev/blog/100m-token-context-windows, August 2024). A larger number is no count.
MAX_COUNT = 10**8


class Usage(NamedTuple):
    """Tokens and searches that were billed.

    Args:
        prompt_tokens: All prompt tokens; the next ones named here are a part of them.
        completion_tokens: All completion tokens, hidden reasoning included.
        cached_tokens: Prompt tokens that the provider's cache gave.
        estimated: Whether this is an upper estimate instead of the server's count.
        cache_write_tokens: Prompt tokens that were written to the provider's cache.
        cache_write_1h_tokens: The part of them that it keeps for an hour, at another price.
        reasoning_tokens: Completion tokens of reasoning.
        audio_in_tokens: Prompt tokens of audio.
        cached_audio_tokens: The part of them that the cache gave.
        audio_out_tokens: Completion tokens of audio.
        image_in_tokens: Prompt tokens of images.
        image_out_tokens: Completion tokens of images.
        searches: Searches of the web by the provider.
        file_searches: Searches of files by the provider.
        tier: The service tier or speed that the reply names, such as flex; "" for none.
        reported_usd: The cost that the reply names, in USD; None for none.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    estimated: bool = False
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    reasoning_tokens: int = 0
    audio_in_tokens: int = 0
    cached_audio_tokens: int = 0
    audio_out_tokens: int = 0
    image_in_tokens: int = 0
    image_out_tokens: int = 0
    searches: int = 0
    file_searches: int = 0
    tier: str = ""
    reported_usd: float | None = None


_PROMPT = (
    "prompt_tokens", "input_tokens", "prompt_token_count", "input_token_count",
    "prompt_eval_count",
)  # fmt: skip
_SAID = (
    "completion_tokens", "output_tokens", "candidates_token_count", "output_token_count",
    "completion_token_count", "eval_count",
)  # fmt: skip
_TOTAL = "total_tokens", "total_token_count"
# Beside `input_tokens`, these are no part of it.
_BESIDE = (
    "cache_read_input_tokens", "cache_creation_input_tokens", "cache_write_input_tokens",
    "cache_read_input_token_count", "cache_write_input_token_count",
)  # fmt: skip
_CACHED = (
    "cached_tokens", "cache_read_tokens", "cache_read", "prompt_cache_hit_tokens",
    "cached_content_token_count", "cached_prompt_text_tokens", _BESIDE[0], _BESIDE[3],
)  # fmt: skip
_WRITTEN = (
    "cache_write_tokens", "cache_creation_tokens", "cache_creation", _BESIDE[1], _BESIDE[2],
    _BESIDE[4],
)  # fmt: skip
_WRITTEN_5M = "ephemeral_5m_input_tokens", "ephemeral_5_m_input_tokens"
_WRITTEN_1H = "ephemeral_1h_input_tokens", "ephemeral_1_h_input_tokens"
_AUDIO = "audio_tokens", "audio"  # LangChain leaves out what it counts
_THOUGHTS = "thoughts_token_count"  # of Gemini
_REASONING = "reasoning_tokens", "thinking_tokens", _THOUGHTS
_SEARCHES = "web_search_requests", "web_search_calls", "num_search_queries"
_FILE_SEARCHES = "file_search_requests", "file_search_calls"
_SIDES = (
    ("prompt_tokens_details", "input_tokens_details", "input_token_details",
     "prompt_token_details"),
    ("completion_tokens_details", "output_tokens_details", "output_token_details",
     "completion_token_details", "candidates_tokens_details"),
)  # fmt: skip
_BESIDE_USAGE = {"service_tier", "output", "modelVersion"}  # where OpenAI and Gemini say more
_DETAILS_OF_WRITTEN = "cache_creation", "cache_creation_token_details", "cache_details"
_TOOLS = "server_tool_use", "server_side_tool_usage_details", "server_tool_use_details"
_TOKENS = Usage._fields[:3] + Usage._fields[4:14]  # those that are added up

# Fields of a reply that hold what was said, or what the application sent: never a report.
_WORDS = {"choices", "output", "content", "metadata", "message", "error", "tools", "text"}
_VENDORS = re.compile("usage|metrics|tokens")
_DIGITS = re.compile(r"\d{1,15}(\.0*)?")


class _CannotBe(Exception):
    """A main number of a report that is no count."""


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value of JSON can be a number of tokens."""
    return type(value) is int and 0 <= value <= MAX_COUNT


def count(value: Any) -> int | None:
    """A number of tokens, also as text or as 90.0; None if it is none.

    Examples:
        >>> count(90), count("90"), count(90.0), count(-1), count("many"), count(True)
        (90, 90, 90, None, None, None)
    """
    if isinstance(value, str):
        value = float(value) if _DIGITS.fullmatch(value) else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if is_count(value) else None


def usage_of(body: Any) -> Usage | None:
    """The usage in a decoded reply; None if it has none, or counts that cannot be.

    Args:
        body: The JSON of a reply. For a stream, what `merged` made of its events.

    Examples:
        >>> usage_of({"usage": {"prompt_tokens": 90, "completion_tokens": 7}})[:3]
        (90, 7, 0)
        >>> usage_of({"usage": {"input_tokens": 10, "cache_read_input_tokens": 80, "output_tokens": 7}})[:3]
        (90, 7, 80)
    """  # noqa: E501 - an example
    found = _best(_reports(body)) if isinstance(body, Mapping) else None
    return None if found is None else _with_body(found[1], body)


def merged(before: Mapping[str, Any], body: Any) -> dict[str, Any]:
    """What the parts of a stream have reported so far, for `usage_of`.

    Counts of a stream grow. The larger of two is the later one, and zeros at the end tell nothing.

    Args:
        before: What this function has returned for the earlier parts; {} at first.
        body: The JSON of the next part.
    """
    if not isinstance(body, Mapping):
        return dict(before)
    reports = _reports(body)
    found = _best(reports)
    report = found[0] if found is not None else reports[0] if reports else {}
    if found is not None and not (found[1].prompt_tokens or found[1].completion_tokens):
        report = {} if "usage" in before else report
    after = {key: body[key] for key in _BESIDE_USAGE if body.get(key) is not None}
    after |= parts_of_tools(body)
    return _larger(before, {**after, "usage": report} if report else after)


def _larger(before: Mapping[str, Any], after: Mapping[str, Any], depth: int = 3) -> dict[str, Any]:
    both = dict(before)
    for key, value in after.items():
        old = both.get(key)
        known, new = count(old), count(value)
        if isinstance(value, Mapping) and isinstance(old, Mapping) and depth:
            both[key] = _larger(old, value, depth - 1)
        elif known is not None:
            both[key] = max(known, new or 0)
        elif value is not None:
            both[key] = value
    return both


def _best(reports: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], Usage] | None:
    """The first report with tokens in it, and what it says; else the first one of zeros."""
    zeros = None
    for report in reports:
        try:
            usage = _read(_plain(report))
        except _CannotBe:
            continue
        if usage is not None and (usage.prompt_tokens or usage.completion_tokens):
            return report, usage
        zeros = zeros or (usage and (report, usage))
    return zeros


def _reports(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The places in a reply where servers report usage, in the order in which they are believed."""
    places = [body, *mappings(body.get("choices"))]
    named: list[Any] = []
    for key, value in body.items():
        if isinstance(value, Mapping) and key not in _WORDS:
            places.append(value)
            named += [value] if key != "usage" and _VENDORS.search(str(key).lower()) else []
    found = [place.get("usage") for place in places]
    found += named + ([body] if _PROMPT[-1] in body else [])  # Ollama has no field for it
    return [report for report in found if isinstance(report, Mapping)]


def _plain(report: Mapping[str, Any], depth: int = 3) -> dict[str, Any]:
    """A report with its names in snake_case, without nulls; lists by modality or ttl as names."""
    plain: dict[str, Any] = {}
    for key, value in report.items():
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(key)).lower()
        if isinstance(value, Mapping):
            value = _plain(value, depth - 1) if depth else None
        elif isinstance(value, list) and name.endswith("details"):
            parts = [_plain(part, 0) for part in value if isinstance(part, Mapping)]
            value = {_name_of(p): p.get("token_count", p.get("input_tokens")) for p in parts}
        elif isinstance(value, list) and name == "iterations":
            steps = [_plain(s, depth - 1) for s in value if depth and isinstance(s, Mapping)]
            value = [{k: v for k, v in step.items() if k != name} for step in steps]
        if value is not None:
            plain[name] = value
    return plain


def _name_of(part: Mapping[str, Any]) -> str:
    """By its modality, for Google's client an Enum; by how long it is kept, for Bedrock."""
    kind = f"ephemeral_{part['ttl']}_input" if "ttl" in part else part.get("modality")
    return f"{getattr(kind, 'value', kind)}_tokens".lower()


def _read(told: Mapping[str, Any]) -> Usage | None:
    """The usage in a report; None if it has no prompt or no completion.

    Raises:
        _CannotBe: If a main number is no count.
    """
    if _THOUGHTS in told and "prompt_token_count" in told:  # Gemini leaves out a count of 0
        told = {"candidates_token_count": 0, **told}
    prompt, said, total = (_main(told, names) for names in (_PROMPT, _SAID, _TOTAL))
    of_prompt, of_said = (_inner(told, names) for names in _SIDES)
    cached = max(_most(told, _CACHED), _most(of_prompt, _CACHED))
    written = max(_most(told, _WRITTEN), _most(of_prompt, _WRITTEN))
    beside = "prompt_tokens" not in told and any(_main(told, (name,)) for name in _BESIDE)
    kept_for = *(_inner(place, _DETAILS_OF_WRITTEN) for place in (told, of_prompt)), of_prompt
    long = max(_most(part, _WRITTEN_1H) for part in kept_for)
    # LangChain tells by time alone what Anthropic's cache got.
    written = max(written, long + max(_most(part, _WRITTEN_5M) for part in kept_for))
    if prompt is None:
        prompt = 0 if beside else None if total is None or said is None else total - said
    if said is None and total is not None and prompt is not None:
        said = total - prompt - (cached + written if beside else 0)
    if prompt is None or said is None or prompt < 0 or said < 0:
        return None
    if "candidates_token_count" in told:  # Gemini counts thoughts and the words of tools apart
        said += _most(told, _REASONING)
        prompt += _most(told, ("tool_use_prompt_token_count",))
    reasoning = max(_most(told, _REASONING), _most(of_said, _REASONING))
    more = None if total is None else total - prompt - said
    if _are_beside(beside, prompt, cached + written, more, reasoning):
        prompt += cached + written
    said = max(said, (total or 0) - prompt)  # some servers count hidden reasoning only in the total
    said += reasoning if reasoning > said else 0
    if not (is_count(prompt) and is_count(said)):
        raise _CannotBe
    cached = min(cached, prompt)
    written = min(written, prompt - cached)
    usage = Usage(
        prompt,
        said,
        cached,
        cache_write_tokens=written,
        cache_write_1h_tokens=min(long, written),
        reasoning_tokens=reasoning,
        **_modalities(prompt, said, cached + written, of_prompt, of_said, told),
        searches=max(_most(place, _SEARCHES) for place in (told, *_inners(told, _TOOLS))),
        file_searches=max(_most(place, _FILE_SEARCHES) for place in (told, *_inners(told, _TOOLS))),
        tier=_tier(told),
        reported_usd=_usd(told),
    )
    return _with_iterations(usage, told.get("iterations"))


def _are_beside(beside: bool, prompt: int, kept: int, more: int | None, reasoning: int) -> bool:
    """Whether cached and written tokens are no part of the prompt: the total decides.

    Args:
        beside: Whether they are not where their names have their usual meaning.
        prompt: Prompt tokens as told.
        kept: Cached and written tokens.
        more: What the total has beyond prompt and completion; None without a total.
        reasoning: Reasoning tokens, which may be in the total only, too.
    """
    if more is None or not kept:
        return beside or kept > prompt
    if beside:
        return kept > prompt or more != 0
    if more < kept:
        return False
    return kept > prompt or (more == kept and more != reasoning)


def _modalities(
    prompt: int,
    said: int,
    kept: int,
    of_prompt: Mapping[str, Any],
    of_said: Mapping[str, Any],
    told: Mapping[str, Any],
) -> dict[str, Any]:
    """Tokens of audio and of images."""
    heard = min(_most(of_prompt, _AUDIO), prompt)
    seen = min(_most(of_prompt, ("image_tokens",)), prompt - heard)
    spoken = min(_most(of_said, _AUDIO), said)
    places = _inner(of_prompt, ("cached_tokens_details",)), _inner(told, ("cache_tokens_details",))
    again = max(_most(place, _AUDIO) for place in places)
    return {
        "audio_in_tokens": heard,
        # Where both do not fit into the prompt, some tokens are of both kinds.
        "cached_audio_tokens": min(heard, kept, max(again, heard + kept - prompt)),
        "audio_out_tokens": spoken,
        "image_in_tokens": seen,
        "image_out_tokens": min(_most(of_said, ("image_tokens",)), said - spoken),
    }


def _with_iterations(usage: Usage, iterations: Any) -> Usage:
    """Anthropic's count without compaction becomes the sum of all steps, which are all billed."""
    known = [step for step in map(_read, listed(iterations)) if step is not None]
    sums = {name: sum(getattr(step, name) for step in known) for name in _TOKENS}
    fewer = sums["prompt_tokens"] < usage.prompt_tokens
    if fewer or sums["completion_tokens"] < usage.completion_tokens:
        return usage
    if not (is_count(sums["prompt_tokens"]) and is_count(sums["completion_tokens"])):
        raise _CannotBe
    sums |= {name: max(sums[name], getattr(usage, name)) for name in ("searches", "file_searches")}
    return usage._replace(**sums)


def _with_body(usage: Usage, body: Mapping[str, Any]) -> Usage:
    """Adds what is reported beside the usage: the tier, and calls of the provider's tools."""
    shown = searches_in(body)
    return usage._replace(
        tier=usage.tier or _tier({"service_tier": body.get("service_tier")}),
        searches=max(usage.searches, shown.web),
        file_searches=max(usage.file_searches, shown.files),
    )


def _tier(told: Mapping[str, Any]) -> str:
    tier = "fast" if told.get("speed") == "fast" else told.get("service_tier")
    return tier.lower()[:32] if isinstance(tier, str) else ""


def _usd(told: Mapping[str, Any]) -> float | None:
    """The cost that OpenRouter or Perplexity reports; None if it is only the fee for one's key."""
    cost = told.get("cost")
    cost = cost.get("total_cost") if isinstance(cost, Mapping) else cost
    upstream = _inner(told, ("cost_details",)).get("upstream_inference_cost")
    if told.get("is_byok", bool(upstream)) or not isinstance(cost, int | float):
        return None
    return float(cost) if 0 < cost < MAX_COUNT and cost is not True else None


def _main(told: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of these numbers that a report has; None if it has none.

    Raises:
        _CannotBe: If it is no count.
    """
    name = next((name for name in names if name in told), None)
    if name is None:
        return None
    found = count(value := told[name])
    if found is None and not (names is _TOTAL and type(value) is int and value < 0):
        raise _CannotBe
    return found


def _most(told: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The largest of these counts, which are names of the same; 0 if there is none."""
    return max(count(told.get(name)) or 0 for name in names)


def _inner(told: Mapping[str, Any], names: tuple[str, ...]) -> Mapping[str, Any]:
    return next(_inners(told, names), {})


def _inners(told: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    for name in names:
        if isinstance(inner := told.get(name), Mapping):
            yield inner
