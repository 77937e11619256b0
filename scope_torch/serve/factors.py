"""The factors of a choice in a request: which key of which API each of them is.

| factor | chat completions | responses | messages | generateContent |
| --- | --- | --- | --- | --- |
| `effort` | `reasoning_effort` | `reasoning.effort` | `output_config.effort` | `thinkingLevel` |
| `temperature`, `top_p` | same name | same name | same name | `temperature`, `topP` |
| `max_tokens` | same, or `max_completion_tokens` | `max_output_tokens` | same | `maxOutputTokens` |
| `thinking_tokens` | by host | none | `thinking` | `thinkingBudget` |

Chat completions know no budget of thinking tokens, so their host decides:

| host | `thinking_tokens` | `effort` |
| --- | --- | --- |
| generativelanguage.googleapis.com | `extra_body.google.thinking_config` | as above |
| openrouter.ai | `reasoning.max_tokens` | `reasoning.effort` |
| api.anthropic.com | `thinking` | none: it ignores `reasoning_effort` |
| any other | none | as above |

A factor takes the place of what the application sent. One that cannot be set is refused, because
two candidates would else be one. Other factors, such as `prompt`, are the application's own.

From the types of `openai` 3.57, `anthropic` 2.14 and `google-genai` 3.6, and from what others quote
of ai.google.dev/gemini-api/docs/openai, openrouter.ai/docs/guides/best-practices/reasoning-tokens,
and under platform.claude.com/docs/en of build-with-claude/extended-thinking.
"""

from __future__ import annotations

from typing import Any, NoReturn

from scope_torch.factors import LLM
from scope_torch.llm.prices import LLMInfo
from scope_torch.llm.usage import is_count
from scope_torch.serve.apis import CHAT, GENERATE, MESSAGES, RESPONSES, Api, Refused

ANTHROPIC = "api.anthropic.com"
GOOGLE = "generativelanguage.googleapis.com"
OPENAI = "api.openai.com"
OPENROUTER = "openrouter.ai"

_NATIVE = {"temperature": "temperature", "top_p": "topP", "max_tokens": "maxOutputTokens"}
_LEAST_BUDGET = 1024  # Anthropic refuses less, OpenRouter raises it
_SAMPLING = {"temperature": 1, "top_p": 0.95}  # and the least that Claude takes while it thinks


def set_factors(
    api: Api, out: dict[str, Any], choice: LLM, info: LLMInfo | None, host: str
) -> None:
    """Sets the factors of a choice in the body for the upstream.

    Args:
        api: The API of the request.
        out: The body, which changes.
        choice: A choice that `check_factors` has let pass.
        info: Its entry in the price list; None for none.
        host: The host of the upstream.

    Raises:
        Refused: If the API has no key for one, or not for two of them together.

    Examples:
        >>> body = {"model": "gpt-5.2", "max_tokens": 900}
        >>> set_factors(CHAT, body, LLM("gpt-5.2", effort="low", max_tokens=500), None, OPENAI)
        >>> body
        {'model': 'gpt-5.2', 'max_tokens': 500, 'reasoning_effort': 'low'}
    """
    factors: dict[str, Any] = choice.factors
    if api is GENERATE:
        _set_native(out["generationConfig"], choice, host)
        return
    if api is CHAT and host == ANTHROPIC and factors.get("temperature", 0) > 1:
        _refuse(api, choice, host, "temperature above 1", "it would take it for 1")
    out.update((name, factors[name]) for name in _SAMPLING if name in factors)
    if "max_tokens" in factors:
        key = _limit_key(api, out, info, host)
        for other in api.limits:
            out.pop(other, None)
        out[key] = factors["max_tokens"]
    effort, budget = factors.get("effort"), factors.get("thinking_tokens")
    if effort is not None and budget is not None and api is CHAT and host in (GOOGLE, OPENROUTER):
        _refuse(api, choice, host, "effort beside thinking_tokens", "give one of them")
    if effort is not None:
        _set_effort(api, out, choice, host)
    if budget is not None:
        _set_budget(api, out, choice, host)


def _limit_key(api: Api, out: dict[str, Any], info: LLMInfo | None, host: str) -> str:
    """The key of the longest reply: that of the price list, else of the application."""
    if api is not CHAT:
        return api.limits[0]
    if info is not None and info.max_tokens_key != "max_tokens":
        return info.max_tokens_key
    usual = "max_completion_tokens" if host == OPENAI else "max_tokens"
    return next((key for key in api.limits if out.get(key) is not None), usual)


def _set_effort(api: Api, out: dict[str, Any], choice: LLM, host: str) -> None:
    effort = choice.factors["effort"]
    if api is MESSAGES:
        out["output_config"] = _part(out, "output_config") | {"effort": effort}
    elif api is RESPONSES or host == OPENROUTER:
        out.pop("reasoning_effort", None)
        others = _part(out, "reasoning", without=("max_tokens", "enabled"))
        out["reasoning"] = others | {"effort": effort}
    elif host == ANTHROPIC:
        _refuse(api, choice, host, "effort", "let the application ask for /messages")
    else:
        if host == GOOGLE:  # which takes one of both
            _set_google(out, {})
        out["reasoning_effort"] = effort


def _set_budget(api: Api, out: dict[str, Any], choice: LLM, host: str) -> None:
    budget: Any = choice.factors["thinking_tokens"]
    is_claudes = api is MESSAGES or (api is CHAT and host == ANTHROPIC)
    if not (is_claudes or (api is CHAT and host in (GOOGLE, OPENROUTER))):
        mend = "give effort=, where none or minimal may be the least, or ask another API"
        _refuse(api, choice, host, "thinking_tokens", mend)
    if 0 < budget < _LEAST_BUDGET and host != GOOGLE:
        _refuse(api, choice, host, f"thinking_tokens below {_LEAST_BUDGET}", "give 0, or more")
    if is_claudes:
        shown = {k: v for k, v in _part(out, "thinking").items() if k == "display"}
        on = {"type": "enabled", "budget_tokens": budget, **shown}
        out["thinking"] = on if budget else {"type": "disabled"}
    elif host == OPENROUTER:
        out.pop("reasoning_effort", None)
        others = _part(out, "reasoning", without=("effort", "enabled", "max_tokens"))
        out["reasoning"] = others | ({"max_tokens": budget} if budget else {"effort": "none"})
    else:
        out.pop("reasoning_effort", None)
        _set_google(out, {"thinking_budget": budget})
    if budget:
        _make_room(api, out, choice, host)


def _make_room(api: Api, out: dict[str, Any], choice: LLM, host: str) -> None:
    """Lets the application's own settings go with thinking."""
    factors: dict[str, Any] = choice.factors
    budget = factors["thinking_tokens"]
    for key in api.limits:  # it counts the budget too
        if is_count(out.get(key)) and out[key] <= budget:
            out[key] += budget
    if api is not MESSAGES and "claude" not in str(out["model"]).lower():
        return
    out.pop("top_k", None)
    for name, least in _SAMPLING.items():
        if name not in factors:
            out.pop(name, None)
        elif factors[name] < least:
            mend = f"Claude takes at least {least} while it thinks"
            _refuse(api, choice, host, f"such {name} beside thinking_tokens", mend)


def _set_google(out: dict[str, Any], thinking: dict[str, Any]) -> None:
    """Sets Gemini's thinking, in place of what the application said of how much it is."""
    body = _part(out, "extra_body")
    google = _part(body, "google")
    kept = _part(google, "thinking_config", without=("thinking_budget", "thinking_level"))
    if kept or thinking or "thinking_config" in google:
        google["thinking_config"] = kept | thinking
        out["extra_body"] = body | {"google": google}


def _set_native(config: dict[str, Any], choice: LLM, host: str) -> None:
    """Sets all factors in the `generationConfig` of Gemini's own API."""
    factors: dict[str, Any] = choice.factors
    config.update((key, factors[name]) for name, key in _NATIVE.items() if name in factors)
    effort, budget = factors.get("effort"), factors.get("thinking_tokens")
    if effort is None and budget is None:
        return
    if effort is not None and budget is not None:
        _refuse(GENERATE, choice, host, "effort beside thinking_tokens", "give one of them")
    if effort == "none":
        _refuse(GENERATE, choice, host, "effort none", "give thinking_tokens=0")
    thinking = _part(config, "thinkingConfig", without=("thinkingBudget", "thinkingLevel"))
    if effort is not None:
        thinking["thinkingLevel"] = effort.upper()  # as Google's clients write it
    else:
        thinking["thinkingBudget"] = budget
        if not budget:
            thinking.pop("includeThoughts", None)  # refused where nothing is thought
        elif is_count(limit := config.get("maxOutputTokens")) and limit <= budget:
            config["maxOutputTokens"] = limit + budget  # it counts the budget too
    config["thinkingConfig"] = thinking


def _part(body: dict[str, Any], key: str, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """A copy of an object in a body; empty if there is none."""
    part = body.get(key)
    return {k: v for k, v in part.items() if k not in without} if isinstance(part, dict) else {}


def _refuse(api: Api, choice: LLM, host: str, what: str, mend: str) -> NoReturn:
    raise Refused(400, f"{choice!r}: {api.path} of {host} has no {what}; {mend}")
