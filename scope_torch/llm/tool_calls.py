"""Calls of the provider's own tools in a reply, which are billed beside its tokens.

| API | a search of the web | a search of files |
| --- | --- | --- |
| chat completions | at least one if the reply cites pages | |
| responses | `web_search_call`, but not of a page that is only opened | `file_search_call` |
| Gemini | each of `webSearchQueries`; before Gemini 3 one for a reply | |
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

_NOT_BOOKED = "code_interpreter_call", "image_generation_call"  # of the responses API


class Searches(NamedTuple):
    """Numbers of searches."""

    web: int
    files: int


def searches_in(body: Mapping[str, Any]) -> Searches:
    """The searches that a reply shows; 0 where it shows none.

    Examples:
        >>> cited = {"annotations": [{"type": "url_citation", "url_citation": {"url": "https://"}}]}
        >>> searches_in({"choices": [{"message": cited}]})
        Searches(web=1, files=0)
    """
    kinds = [str(call.get("type")) for call in mappings(body.get("output")) if _is_billed(call)]
    for kind in set(_NOT_BOOKED).intersection(kinds):
        _warn_of(kind)
    web = kinds.count("web_search_call"), _google_searches(body), int(_cites(body))
    return Searches(max(web), kinds.count("file_search_call"))


def parts_of_tools(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a part of a stream shows of searches; the other parts may not."""
    found = {"candidates": body["candidates"]} if _google_searches(body) else {}
    return found | ({"choices": body["choices"]} if _cites(body) else {})


def listed(value: Any) -> list[Any]:
    """A list of a reply; [] for anything else."""
    return value if isinstance(value, list) else []


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """The objects in a list of a reply."""
    return [one for one in listed(value) if isinstance(one, Mapping)]


def _is_billed(call: Mapping[str, Any]) -> bool:
    """Opening a page that a search has found costs nothing of its own."""
    action = call.get("action")
    return not isinstance(action, Mapping) or action.get("type") in (None, "search")


def _google_searches(body: Mapping[str, Any]) -> int:
    told = [one.get("groundingMetadata") for one in mappings(body.get("candidates"))]
    found = sum(len(listed(one.get("webSearchQueries"))) for one in mappings(told))
    is_old = re.match(r"(models/)?gemini-[12]\b", str(body.get("modelVersion")))
    return min(found, 1) if is_old else found


def _cites(body: Mapping[str, Any]) -> bool:
    """Whether a chat completion, or a part of one, names pages; it does not count its searches."""
    said = [one.get(key) for one in mappings(body.get("choices")) for key in ("message", "delta")]
    notes = [note for one in mappings(said) for note in mappings(one.get("annotations"))]
    return any(note.get("type") == "url_citation" for note in notes)


@lru_cache
def _warn_of(kind: str) -> None:
    logger.warning(
        "a reply has a %r of the provider, which may bill it: that is in no cost here (this is "
        "said once)",
        kind,
    )
