"""The price of a call: from a price list of one's own, else from the published prices of a day."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time
from decimal import ROUND_HALF_EVEN, Context, localcontext
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from scope_torch.errors import InputError
from scope_torch.factors import LLM
from scope_torch.llm.billing import STANDARD_TIERS, Usage, check_reported, cost_usd, warn_unpriced
from scope_torch.llm.prices import OTHER_PRICES, LLMInfo, check_llm, in_batch, load_llms

Cached = Literal["as_billed", "uncached"]

_PACKAGE, _BATCH, _CACHED = "genai-prices", "batch", "cached_input_usd_per_mtok"
_NOON = time(12, tzinfo=UTC)  # some providers have other prices at night
_DECIMAL = Context(28, ROUND_HALF_EVEN, traps=[])  # the application may have set two digits
_SAID = "input_mtok", "output_mtok", "cache_read_mtok"
# openrouter.ai/docs/guides/routing/model-variants; routes choose among providers, or add searches.
_FREE, _ROUTES = ":free", ("nitro", "floor", "exacto", "online")
_LOCAL = {"ollama", "ollama_chat", "lm_studio", "llamafile", "vllm", "hosted_vllm"}
_PROVIDER = re.compile(r"([^:/]+)([:/])(.+)")


class PriceList:
    """Prices of LLMs in USD.

    An LLM in `own` has that price. Any other name is looked up in the package genai-prices: dated
    prices, with tiers by the length of the prompt, and prices of reading and writing caches.
    Names that end with `:free` (OpenRouter) cost nothing. A choice with factors, such as
    "gpt-5.2 effort=low", costs what its LLM costs, unless `own` has its whole name. Nothing is
    fetched: its prices are those of the installed release. They are decimal numbers, which are
    added exactly and rounded once to float64, so by less than 1.2e-16 of a cost.

    Args:
        own: Path of a price list (see `load_llms`), or LLMs by name. Declare LLMs that cost nothing
            here, with prices of 0. None for published prices only.
        cached: `as_billed`; or `uncached`: cached prompt tokens cost what others do. What a
            provider's cache holds depends on the order of a search, so the same configuration may
            look cheaper later; deployed, it may find other caches.
        at: The day of the published prices; None for today, or for the day on which a run began
            that goes on.
        batch: Whether tokens cost what they do in a batch (Message Batches, Batch API): for an
            application that sends its calls so. An LLM of `own` needs a `batch_factor`.

    Attributes:
        own: LLMs of the own price list by name.
        at: That day.
        batch: As given.

    Raises:
        InputError: If the price list cannot be read, or `cached` is unknown.

    Examples:
        >>> prices = PriceList({"mine": LLMInfo("mine", 0.5, 1.0)}, at=date(2026, 6, 1))
        >>> prices.cost_usd("mine", Usage(1_000_000, 1_000_000))
        1.5
        >>> prices.cost_usd("gpt-4o-mini", Usage(1_000_000, 0, 500_000))
        0.1125
        >>> PriceList(batch=True, at=date(2026, 11, 1)).usd_per_mtok("claude-haiku-4-5")
        (0.5, 2.5)
    """

    def __init__(
        self,
        own: Mapping[str, LLMInfo] | Path | str | None = None,
        *,
        cached: Cached = "as_billed",
        at: date | None = None,
        batch: bool = False,
    ) -> None:
        if cached not in ("as_billed", "uncached"):
            raise InputError(f"cached={cached!r} must be as_billed or uncached")
        is_path = isinstance(own, str | Path)
        self.own = load_llms(own) if is_path else dict(own or {})
        for name, llm in self.own.items():
            if not isinstance(llm, LLMInfo):
                raise InputError(
                    f"prices[{name!r}]={llm!r} must be an LLMInfo of scope_torch.llm.prices, with "
                    f"USD for a million tokens: LLMInfo({name!r}, 0.25, 2.0)"
                )
            check_llm(llm)
        self._source = str(own) if is_path else "own prices"
        self._cached, self.batch = cached, batch
        self.at, self._is_dated = at or datetime.now(UTC).date(), at is not None
        self._provider: str | None = None  # whose published prices come first; "" for nobody's

    def __repr__(self) -> str:
        kind = f"batch prices of {self.at}" if self.batch else f"published prices of {self.at}"
        return f"PriceList({len(self.own)} own LLMs, {kind})"

    @property
    def facts(self) -> dict[str, Any]:
        """What a run that is resumed must have in common with its beginning."""
        facts: dict[str, Any] = {"prices_at": self.at.isoformat()}
        facts |= {"prices_of": self._provider} if self._provider else {}
        return {**facts, "prices_in_batch": True} if self.batch else facts

    def resumed(self, facts: Mapping[str, Any]) -> PriceList:
        """A copy with the prices that a run began with, unless a day was given; see `facts`."""
        begun = self.of_day(facts.get("prices_at"))
        begun._provider = facts.get("prices_of", "")
        return begun

    def of_day(self, day: str | None) -> PriceList:
        """A copy with the published prices of a day, unless one was given, or this is None."""
        other = copy.copy(self)
        if not self._is_dated and day is not None:
            other.at = date.fromisoformat(day)
        return other

    def asked_at(self, base_url: str) -> PriceList:
        """A copy that prefers prices of the provider at an address, if it prefers nobody's yet."""
        asked = copy.copy(self)
        if asked._provider is None:
            asked._provider = _provider_at(base_url.lower())
        return asked

    def cost_usd(self, llm: str, usage: Usage, seconds: float | None = None) -> float:
        """The cost of a call in USD.

        Args:
            llm: The LLM.
            usage: What was billed.
            seconds: How long the call took; None if not known. Only an LLM `is_timed` needs it.

        Raises:
            InputError: If the LLM has no price, or needs the seconds.
        """
        if self._cached == "uncached":
            usage = usage._replace(
                cached_tokens=0, cached_audio_tokens=0, cache_write_tokens=0,
                cache_write_1h_tokens=0, reported_usd=None,
            )  # fmt: skip
        own, llm = self._own(llm, usage.tier), self._priced(llm)
        usd = cost_usd(own, usage, seconds) if own else self._published_usd(llm, usage)
        check_reported(llm, usage, usd)
        return usd

    def listed(self, llm: str) -> LLMInfo | None:
        """An LLM of the own price list, or one that costs nothing by its name; None for others.

        Args:
            llm: An LLM, or a choice with factors.
        """
        name = self._priced(llm)
        return self.own.get(name, LLMInfo(name, 0.0, 0.0) if name.endswith(_FREE) else None)

    def _priced(self, llm: str) -> str:
        """The name that a price is looked up by: the LLM of a choice with factors."""
        return llm if llm in self.own else LLM.parse(llm).llm

    def _own(self, llm: str, tier: str = "") -> LLMInfo | None:
        """An LLM of the price list, or one that costs nothing; None for published prices.

        Raises:
            InputError: If it has no batch price, and needs one.
        """
        if (own := self.listed(llm)) is None:
            return None
        if self.batch:
            self.check([llm])
        is_batch = self.batch or (tier == _BATCH and own.batch_factor is not None)
        return in_batch(own) if is_batch else own

    def _published_usd(self, llm: str, usage: Usage) -> float:
        from genai_prices import Usage as PublishedUsage

        price = self._model_price(llm, usage.tier)
        if unpriced := _unpriced(price, usage):
            warn_unpriced(llm, unpriced)
        # Nobody tells which of the cached tokens were images: as many as do not fit beside them.
        cached_audio = min(usage.cached_audio_tokens, usage.cached_tokens)
        audio_or_cached = usage.audio_in_tokens + usage.cached_tokens - cached_audio
        fresh = max(0, usage.prompt_tokens - audio_or_cached)
        counts = PublishedUsage(
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cache_write_1h_tokens=usage.cache_write_1h_tokens,
            output_reasoning_tokens=usage.reasoning_tokens,
            input_audio_tokens=usage.audio_in_tokens,
            cache_audio_read_tokens=cached_audio,
            output_audio_tokens=usage.audio_out_tokens,
            input_image_tokens=min(usage.image_in_tokens, fresh),
            cache_image_read_tokens=0,
            output_image_tokens=usage.image_out_tokens,
            web_searches=usage.searches,
            storage_searches=usage.file_searches,
        )
        with localcontext(_DECIMAL):
            return float(price.calc_price(counts)["total_price"])

    def usd_per_mtok(self, llm: str) -> tuple[float, float]:
        """USD for a million prompt tokens and a million completion tokens, of short prompts.

        Raises:
            InputError: If the LLM has no price.
        """
        if (own := self._own(llm)) is not None:
            return own.input_usd_per_mtok, own.output_usd_per_mtok
        price = self._model_price(self._priced(llm))
        return _base(price.input_mtok) or 0.0, _base(price.output_mtok) or 0.0

    def is_timed(self, llm: str) -> bool:
        """Whether an LLM costs the seconds of a machine, `gpu_hour_usd`, in place of tokens."""
        own = self.listed(llm)
        return own is not None and own.gpu_hour_usd is not None

    def check(self, names: Iterable[str]) -> None:
        """Refuses LLMs without a price.

        Raises:
            InputError: If there is one; the message names all of them.
        """
        names = list(dict.fromkeys(map(self._priced, names)))
        if unknown := [n for n in names if self.listed(n) is None and self._found(n) is None]:
            raise InputError(
                f"no price is known for {', '.join(map(repr, unknown))}; give prices= a file "
                f'prices.toml with version = 1 and, for each, [[llm]] name = "{unknown[0]}", '
                "input_usd_per_mtok = 0.25, "
                "output_usd_per_mtok = 2.0 (USD for a million tokens)" + _hint(unknown)
            )
        if self.batch and (unknown := [n for n in names if not self._has_batch_price(n)]):
            raise InputError(
                f"no batch price is known for {', '.join(map(repr, unknown))} on {self.at}; give "
                "prices= a file that has it, with batch_factor = 0.5 if tokens in a batch cost "
                "half of its prices, or leave out batch=True"
            )

    def _has_batch_price(self, llm: str) -> bool:
        if (own := self.listed(llm)) is not None:
            return own.batch_factor is not None
        return _at_tier(self._found(llm), datetime.combine(self.at, _NOON), _BATCH) is not None

    def describe(self, names: Iterable[str]) -> dict[str, Any]:
        """The prices of LLMs, JSON-serialisable, for bills.

        Returns:
            By name USD per million tokens (`input_usd_per_mtok`, `output_usd_per_mtok`,
            `cached_input_usd_per_mtok`), `cached`, `source`, in `others` what else has a price, and
            of published ones `at`, the day, and the `model` whose prices they are. Those of batches
            have `batch`, which is True, those of machines `usd_per_s`, for a second of a call.

        Raises:
            InputError: If an LLM has no price.

        Examples:
            >>> found = PriceList(at=date(2026, 6, 1)).describe(["gpt-4o-mini"])["gpt-4o-mini"]
            >>> found["input_usd_per_mtok"], found["at"]
            (0.15, '2026-06-01')
        """
        return {name: self._described(name) for name in names}

    def _described(self, llm: str) -> dict[str, Any]:
        llm = self._priced(llm)
        given, said = self.usd_per_mtok(llm)
        values = {"input_usd_per_mtok": given, "output_usd_per_mtok": said, "cached": self._cached}
        values |= {"batch": True} if self.batch else {}
        if (own := self._own(llm)) is not None:
            values |= {_CACHED: own.cached_input_usd_per_mtok}
            values |= {"source": self._source if llm in self.own else "free by its name"}
            values |= {"usd_per_s": own.usd_per_s} if self.is_timed(llm) else {}
            others = {key: getattr(own, key) for key in OTHER_PRICES}
        else:
            price = vars(self._model_price(llm))
            values |= {_CACHED: _base(price.get("cache_read_mtok")), "model": self._found(llm).id}
            values["source"] = f"{_PACKAGE} {metadata.version(_PACKAGE)}"
            values["at"] = self.at.isoformat()
            others = {key: _base(usd) for key, usd in price.items() if key not in _SAID}
        return {**values, "others": {k: usd for k, usd in others.items() if usd is not None}}

    def _found(self, llm: str) -> Any:
        return _published(llm, self._provider)

    def _model_price(self, llm: str, tier: str = "") -> Any:
        """The published price on the day, at a service tier."""
        self.check([llm])
        model, noon = self._found(llm), datetime.combine(self.at, _NOON)
        if self.batch:
            return _at_tier(model, noon, _BATCH)
        standard = model.get_prices(noon)
        if tier in STANDARD_TIERS:
            return standard
        found = _at_tier(model, noon, tier)
        if found is None:
            warn_unpriced(llm, (f"the service tier {tier}",))
        return standard if found is None else found


def _at_tier(model: Any, noon: datetime, tier: str) -> Any:
    """The price of a model at a service tier; None if none was recorded for that day's prices.

    Prices of tiers were recorded later than they began, so a later day also tells them, as long as
    the standard price is the same.
    """
    standard = model.get_prices(noon)
    if tier == _BATCH and model.id.endswith(f":{_BATCH}"):  # OpenRouter's name of such a route
        return standard
    # OpenAI's and Google's name of a tier; Anthropic's name of its fast mode; batches.
    context = {"service_tier": tier, "speed": tier, "processing": tier}
    variants = [v for v in model.price_variants or () if tier in v.when.values()]
    starts = {getattr(v.constraint, "start_date", None) for v in variants}
    later = [datetime.combine(start, _NOON) for start in sorted(filter(None, starts))]
    for day in (noon, *later):
        told = any(v.constraint is None or v.constraint.active(day) for v in variants)
        if told and model.get_prices(day) == standard:
            return model.get_prices(day, context)
    return None


def _unpriced(price: Any, usage: Usage) -> tuple[str, ...]:
    """What of a usage has no published price, though it usually costs more than text."""
    needed = {
        "input_audio_mtok": usage.audio_in_tokens,
        "output_audio_mtok": usage.audio_out_tokens,
        "output_image_mtok": usage.image_out_tokens,
        "web_searches_kcount": usage.searches,
        "storage_searches_kcount": usage.file_searches,
    }
    return tuple(name for name, number in needed.items() if number and not getattr(price, name))


@lru_cache(maxsize=4096)
def _published(llm: str, asked: str | None) -> Any:
    """The model with this name in genai-prices; None if it knows none.

    A provider may be in front of the name: `openai/gpt-5-mini`, `anthropic:claude-haiku-4-5`. A tag
    behind it, as of a local `deepseek-r1:7b`, makes it another model. The provider that is asked
    comes first: OpenRouter's `openai/gpt-5-mini` is its own. Only one with a colon is before it.
    """
    head, _, tail = llm.rpartition(":")
    if head and tail in _ROUTES:
        return _published(head, asked)
    of_asked = [(llm, asked)] if asked else []
    ways: list[tuple[str, str | None]] = [*of_asked, (llm, None)]
    if found := _PROVIDER.fullmatch(llm):
        provider, separator, model = found.groups()
        if provider in _LOCAL:
            return None
        ways = [*of_asked, (model, provider), (llm, None)]
        if separator == ":":
            ways = [(model, provider), *of_asked, (model, None), (llm, None)]
    if llm.removeprefix("openai/").startswith("ft:"):
        ways = [(llm.removeprefix("openai/"), "openai")]
    for name, provider in ways:
        model = _find(name, provider)
        if model is not None and (name.startswith("ft:") or _has_tag(model.id, name)):
            # What another provider gives away, the one that is asked may bill.
            is_free = not any(vars(model.get_prices(datetime.now(UTC))).values())
            if not (is_free and asked and provider not in (asked, ways[0][1])):
                return model
    return None


def _find(name: str, provider: str | None) -> Any:
    try:
        from genai_prices.data_snapshot import get_snapshot

        return get_snapshot().find_provider_model(name, None, provider, None)[1]
    except (ImportError, LookupError):
        return None


def _provider_at(base_url: str) -> str:
    """The provider in genai-prices behind an address; "" if it knows none."""
    try:
        from genai_prices.data_snapshot import get_snapshot

        return get_snapshot().find_provider(None, None, base_url).id
    except (ImportError, LookupError):
        return ""


def _has_tag(model: str, name: str) -> bool:
    """Whether a published model is the one with the tag in a name, if it has one."""
    # Versions of Bedrock are no tags: `anthropic.claude-haiku-4-5-20251001-v1:0`.
    _, colon, tag = name.rpartition(":")
    return not colon or tag.isdigit() or model.endswith(f":{tag}")


def _hint(unknown: list[str]) -> str:
    if any("ft:" in name for name in unknown):
        return "; a fine-tuned model (ft:) costs more than its base: its provider's page has both"
    if any(":" in name or name.partition("/")[0] in _LOCAL for name in unknown):
        return "; a model of your own machine may have prices of 0"
    return ""


def _base(price: Any) -> float | None:
    """The price of the first tier."""
    return None if price is None else float(getattr(price, "base", price))
