"""The price list of the candidate LLMs."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError

PRICE_VERSION = 1


@dataclass(frozen=True)
class LLMInfo:
    """A candidate LLM: its price, its public scores, and how to call it.

    Args:
        name: Its name in configurations.
        input_usd_per_mtok: Price of a million prompt tokens in USD.
        output_usd_per_mtok: Price of a million completion tokens in USD.
        mmlu_pro: Score on MMLU-Pro in percent; None if not published.
        gpqa: Score on GPQA in [0, 1], without reasoning; None if not published.
        cached_input_usd_per_mtok: Price of a million prompt tokens that the server reports as
            cached, in USD; None for the price of other prompt tokens.
        cache_write_usd_per_mtok: Price of a million prompt tokens that the server reports as
            written to its cache, in USD; None for the price of other prompt tokens.
        cache_write_1h_usd_per_mtok: The same for tokens that are kept for an hour; None for the
            price of other written tokens.
        audio_input_usd_per_mtok: Price of a million prompt tokens of audio in USD; None for the
            price of text.
        audio_output_usd_per_mtok: Price of a million completion tokens of audio in USD; likewise.
        search_usd: Price of one search of the web by the provider in USD; None for nothing.
        model: Its name at the endpoint; None for `name`. Two entries may have the same model and
            differ in `prompting`.
        prompting: chat | few_shot: the style of prompts that a compound system sends to it.
        max_tokens_key: max_tokens | max_completion_tokens: the endpoint's name for the limit.
        takes_temperature: Whether it accepts a temperature.
        reasoning_effort: Sent with every call; None to send none.
        tokens_per_s: Completion tokens per second after the first, above 0; None if not known.
        first_token_s: Seconds to the first token of a reply, at least 0; None if not known.
        batch_factor: What all its prices of tokens are multiplied by in a batch, in [0, 1]; None if
            it has no batch price.
        gpu_hour_usd: USD for an hour of the machine that serves it; its tokens then cost nothing.
            None for an LLM that is paid by tokens.
        concurrent_calls: How many calls share that machine at a time, on average, above 0; below 1
            if it is idle in between.
    """

    name: str
    input_usd_per_mtok: float
    output_usd_per_mtok: float
    mmlu_pro: float | None = None
    gpqa: float | None = None
    cached_input_usd_per_mtok: float | None = None
    model: str | None = None
    prompting: str = "chat"
    max_tokens_key: str = "max_tokens"
    takes_temperature: bool = True
    reasoning_effort: str | None = None
    tokens_per_s: float | None = None
    first_token_s: float | None = None
    cache_write_usd_per_mtok: float | None = None
    cache_write_1h_usd_per_mtok: float | None = None
    audio_input_usd_per_mtok: float | None = None
    audio_output_usd_per_mtok: float | None = None
    search_usd: float | None = None
    batch_factor: float | None = None
    gpu_hour_usd: float | None = None
    concurrent_calls: float = 1.0

    @property
    def usd_per_s(self) -> float | None:
        """USD for a second of a call; None for an LLM that is paid by tokens.

        Examples:
            >>> LLMInfo("local", 0.0, 0.0, gpu_hour_usd=3.6, concurrent_calls=8).usd_per_s
            0.000125
        """
        if self.gpu_hour_usd is None:
            return None
        return self.gpu_hour_usd / 3600 / self.concurrent_calls


def load_llms(path: Path | str | None = None) -> dict[str, LLMInfo]:
    """Reads a price list.

    Args:
        path: A TOML file like `scope_torch/data/llms.toml`; None for that file, which has the 23
            LLMs of the paper (tab:llm-costs).

    Returns:
        The LLMs by name, in the order of the file.

    Raises:
        InputError: If the file cannot be read or is of another version, a price is missing,
            negative or given twice, a key is unknown, or a field has a value that cannot be used.

    Examples:
        >>> llms = load_llms()
        >>> len(llms), llms["GPT-5.2"].input_usd_per_mtok, llms["GPT-5.2"].output_usd_per_mtok
        (23, 1.75, 14.0)
    """
    content = read_toml(path, "llms.toml", PRICE_VERSION)
    llms: dict[str, LLMInfo] = {}
    _check_keys(f"{path or 'llms.toml'}", content, _OF_LIST)
    entries = content.get("llm", [])
    if not isinstance(entries, list):
        raise InputError(f"{path or 'llms.toml'}: the entry {entries!r} needs [[llm]], {_PRICED}")
    for entry in entries:
        try:
            known = {k: v for k, v in entry.items() if k in LLMInfo.__dataclass_fields__}
            llm = LLMInfo(**({**_NO_TOKENS, **known} if "gpu_hour_usd" in known else known))
            needed = _PRICED if llm.name in llms else _missing(llm)
        except (TypeError, AttributeError):
            llm, needed = None, _PRICED
        if llm is None or needed:
            raise InputError(f"{path or 'llms.toml'}: the entry {entry} needs {needed}")
        _check_keys(f"{path or 'llms.toml'}: {llm.name!r}", entry, LLMInfo.__dataclass_fields__)
        llms[llm.name] = llm
    return llms


def in_batch(llm: LLMInfo) -> LLMInfo:
    """An LLM that has a `batch_factor`, at its prices in a batch; a search costs the same.

    Examples:
        >>> in_batch(LLMInfo("mini", 0.25, 2.0, batch_factor=0.5)).output_usd_per_mtok
        1.0
    """
    prices: dict[str, float | None] = {
        key: value for key, value in vars(llm).items() if key.endswith("_usd_per_mtok")
    }
    factor = llm.batch_factor
    assert factor is not None
    scaled: dict[str, Any] = {k: None if v is None else v * factor for k, v in prices.items()}
    return replace(llm, **scaled)


def _check_keys(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuses keys that nobody reads, because a price in one of them would be missed.

    Raises:
        InputError: If there is one.
    """
    known = list(known)
    for key in given:
        if key not in known and not _NOTE.fullmatch(key):
            near = get_close_matches(key, known, 1)
            meant = f"; did you mean {near[0]}?" if near else ";"
            raise InputError(
                f"{where} has the unknown key {key!r}{meant} Keys for remarks are note and names "
                "that end with _source"
            )


def check_llm(llm: LLMInfo) -> None:
    """Checks an LLM that does not come from a price list.

    Raises:
        InputError: If a value cannot be used, as in `load_llms`.
    """
    if needed := _missing(llm):
        raise InputError(f"{llm} needs {needed}")


_NOTE = re.compile("note|(.+_)?source|price_date")
_OF_LIST = "version", "llm", "file"  # files of local LLMs, for scripts/local_llms.py
_NO_TOKENS: dict[str, Any] = {"input_usd_per_mtok": 0.0, "output_usd_per_mtok": 0.0}
_PRICED = (
    "a name of its own, input_usd_per_mtok and output_usd_per_mtok (USD, at least 0), and scores, "
    "if any, that are numbers"
)


def _missing(llm: LLMInfo) -> str:
    """What the entry of an LLM needs to be usable; empty if nothing."""
    prices = (llm.input_usd_per_mtok, llm.output_usd_per_mtok)
    scores = [score for score in (llm.mmlu_pro, llm.gpqa) if score is not None]
    named = isinstance(llm.name, str) and llm.name
    if not (named and all(map(_is_price, prices)) and all(map(_is_number, scores))):
        return _PRICED
    for key in (*OTHER_PRICES, "cached_input_usd_per_mtok", "gpu_hour_usd"):
        price = getattr(llm, key)
        if not (price is None or _is_price(price)):
            return f"{key}, if any, in USD and at least 0"
    for key in ("model", "reasoning_effort"):
        value = getattr(llm, key)
        if not (value is None or (isinstance(value, str) and value)):
            return f"{key}, if any, that is text"
    for key, allowed in _CHOICES.items():
        if getattr(llm, key) not in allowed:
            return f"{key} to be one of {list(allowed)}"
    if not ((factor := llm.batch_factor) is None or (_is_price(factor) and factor <= 1)):
        return "batch_factor, if any, from 0 to 1"
    calls = llm.concurrent_calls
    if not (_is_price(calls) and calls > 0):
        return "concurrent_calls, if any, above 0"
    if llm.gpu_hour_usd is not None and (any(prices) or llm.batch_factor is not None):
        return "gpu_hour_usd, or prices of tokens and their batch_factor, not both"
    speed, first = llm.tokens_per_s, llm.first_token_s
    if not (speed is None or (_is_price(speed) and speed > 0)):
        return "tokens_per_s, if any, above 0"
    if not (first is None or _is_price(first)):
        return "first_token_s, if any, at least 0"
    if not isinstance(llm.takes_temperature, bool):
        return "takes_temperature to be true or false"
    return ""


OTHER_PRICES = (  # than those of tokens that are no audio, and in no cache
    "cache_write_usd_per_mtok",
    "cache_write_1h_usd_per_mtok",
    "audio_input_usd_per_mtok",
    "audio_output_usd_per_mtok",
    "search_usd",
)
_CHOICES = {
    "prompting": ("chat", "few_shot"),
    "max_tokens_key": ("max_tokens", "max_completion_tokens"),
}


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # A whole number may be too large for a float.
    return number and abs(value) <= sys.float_info.max


def _is_price(value: Any) -> bool:
    return _is_number(value) and value >= 0


def choose_llms(llms: dict[str, LLMInfo], names: Sequence[str] | None) -> list[LLMInfo]:
    """The LLMs with these names, in this order; all LLMs if `names` is None.

    Raises:
        InputError: If a name is not in the price list.
    """
    if names is None:
        return list(llms.values())
    for name in names:
        if name not in llms:
            raise InputError(f"no price is known for LLM {name!r}; there are {list(llms)}")
    return [llms[name] for name in names]


def read_toml(path: Path | str | None, packaged: str, version: int) -> dict[str, Any]:
    """Reads a TOML file with a version.

    Args:
        path: The file; a plain name that is not in the working directory is looked up in the
            package. None for the packaged file.
        packaged: Name of the packaged file.
        version: The version that this program reads.

    Raises:
        InputError: If the file cannot be read, is not TOML, or is of another version.
    """
    inside = files("scope_torch") / "data" / (packaged if path is None else Path(path).name)
    outside = None if path is None else Path(path)
    by_name = outside is None or (outside.parent == Path() and not outside.exists())
    source = inside if by_name and inside.is_file() else outside or inside
    try:
        content = tomllib.loads(source.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path or packaged}: {error}") from error
    except RecursionError as error:
        raise InputError(f"cannot read {path or packaged}: too deeply nested") from error
    if content.get("version") != version:
        raise InputError(
            f"{path or packaged} is of version {content.get('version')}, this program reads "
            f"version {version}; start again from the packaged {packaged}"
        )
    return content
