"""The price list of the candidate LLMs."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from scope_torch.errors import InputError

PRICE_VERSION = 1


@dataclass(frozen=True)
class LLMInfo:
    """A candidate LLM: its price, what is known of it, and how it is called.

    Args:
        name: Its name in configurations.
        input_usd_per_mtok: Price of a million prompt tokens in USD.
        output_usd_per_mtok: Price of a million completion tokens in USD.
        cached_input_usd_per_mtok: Price of a million prompt tokens that the server reports as
            cached, in USD; None: as other prompt tokens.
        mmlu_pro: Score on MMLU-Pro in percent, if published.
        gpqa: Score on GPQA in [0, 1], without reasoning, if published.
        model: How the endpoint calls it; None: `name`. Two entries may share a model and differ in
            `prompting`.
        prompting: chat | few_shot: which prompts a compound system sends it.
        max_tokens_key: max_tokens | max_completion_tokens: what the endpoint calls the limit.
        takes_temperature: Whether it accepts a temperature.
        reasoning_effort: Sent if given.
    """

    name: str
    input_usd_per_mtok: float
    output_usd_per_mtok: float
    cached_input_usd_per_mtok: float | None = None
    mmlu_pro: float | None = None
    gpqa: float | None = None
    model: str | None = None
    prompting: str = "chat"
    max_tokens_key: str = "max_tokens"
    takes_temperature: bool = True
    reasoning_effort: str | None = None


def load_llms(path: Path | str | None = None) -> dict[str, LLMInfo]:
    """Reads a price list.

    Args:
        path: A TOML file like `scope_torch/data/llms.toml`; None for that one, the 23 LLMs of
            the paper (tab:llm-costs).

    Returns:
        The LLMs by name, in the order of the file.

    Raises:
        InputError: If the file cannot be read or is of another version, or a price is missing,
            negative or given twice.
    """
    content = read_toml(path, "llms.toml", PRICE_VERSION)
    llms: dict[str, LLMInfo] = {}
    for entry in content.get("llm", []):
        try:
            known = {k: v for k, v in entry.items() if k in LLMInfo.__dataclass_fields__}
            llm = LLMInfo(**known)
            prices = (llm.input_usd_per_mtok, llm.output_usd_per_mtok)
            scores = (score for score in (llm.mmlu_pro, llm.gpqa) if score is not None)
            usable = min(prices) >= 0 and all(map(math.isfinite, (*prices, *scores)))
        except (TypeError, AttributeError):
            usable, llm = False, None
        if llm is None or not usable or llm.name in llms:
            raise InputError(
                f"{path or 'llms.toml'}: the entry {entry} needs a name of its own, "
                "input_usd_per_mtok and output_usd_per_mtok (USD, at least 0), and scores, if any, "
                "that are numbers"
            )
        llms[llm.name] = llm
    return llms


def choose_llms(llms: dict[str, LLMInfo], names: Sequence[str] | None) -> list[LLMInfo]:
    """The LLMs called `names`, in that order; all if None.

    Raises:
        InputError: If one has no price.
    """
    if names is None:
        return list(llms.values())
    for name in names:
        if name not in llms:
            raise InputError(f"no price is known for LLM {name!r}; there are {list(llms)}")
    return [llms[name] for name in names]


def read_toml(path: Path | str | None, packaged: str, version: int) -> dict:
    """A versioned TOML file: `path`, or the packaged one.

    Raises:
        InputError: If it cannot be read, is not TOML, or is of another version.
    """
    source = files("scope_torch") / "data" / packaged if path is None else Path(path)
    try:
        content = tomllib.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path or packaged}: {error}") from error
    if content.get("version") != version:
        raise InputError(
            f"{path or packaged} is of version {content.get('version')}, this program reads "
            f"version {version}; start again from the packaged {packaged}"
        )
    return content
