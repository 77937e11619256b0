"""The price of a call: from a price list of one's own, else from the published prices of a day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from scope_torch.errors import InputError
from scope_torch.llm.billing import Usage, cost_usd
from scope_torch.llm.prices import LLMInfo, load_llms

Cached = Literal["as_billed", "uncached"]

_PACKAGE = "genai-prices"
_NOON = time(12, tzinfo=UTC)  # some providers have other prices at night
_MTOK = 1_000_000


class PriceList:
    """Prices of LLMs in USD.

    An LLM in `own` has that price. Any other name is looked up in the package genai-prices: dated
    prices, with tiers by the length of the prompt, and prices of reading and writing caches.
    Nothing is fetched: its prices are those of the installed release. They are decimal numbers,
    which are added exactly and rounded once to float64, so by less than 1.2e-16 of a cost.

    Args:
        own: Path of a price list (see `load_llms`), or LLMs by name. Declare LLMs that cost nothing
            here, with prices of 0. None for published prices only.
        cached: `as_billed`; or `uncached`: cached prompt tokens cost what others do. What a
            provider's cache holds depends on the order of a search, so the same configuration may
            look cheaper later; deployed, it may find other caches.
        at: The day of the published prices; None for today, or for the day on which a run began
            that goes on.

    Attributes:
        own: LLMs of the own price list by name.
        at: That day.

    Raises:
        InputError: If the price list cannot be read, or `cached` is unknown.

    Examples:
        >>> prices = PriceList({"mine": LLMInfo("mine", 0.5, 1.0)}, at=date(2026, 6, 1))
        >>> prices.cost_usd("mine", Usage(1_000_000, 1_000_000))
        1.5
        >>> prices.cost_usd("gpt-4o-mini", Usage(1_000_000, 0, 500_000))
        0.1125
    """

    def __init__(
        self,
        own: Mapping[str, LLMInfo] | Path | str | None = None,
        *,
        cached: Cached = "as_billed",
        at: date | None = None,
    ) -> None:
        if cached not in ("as_billed", "uncached"):
            raise InputError(f"cached={cached!r} must be as_billed or uncached")
        is_path = isinstance(own, str | Path)
        self.own = load_llms(own) if is_path else dict(own or {})
        self._source = str(own) if is_path else "own prices"
        self._cached: Cached = cached
        self.at, self._is_dated = at or datetime.now(UTC).date(), at is not None

    def __repr__(self) -> str:
        return f"PriceList({len(self.own)} own LLMs, published prices of {self.at})"

    def resume(self, day: date) -> None:
        """Takes the prices of the day on which a run began, unless a day was given."""
        if not self._is_dated:
            self.at = day

    def cost_usd(self, llm: str, usage: Usage) -> float:
        """The cost of a call in USD.

        Raises:
            InputError: If the LLM has no price.
        """
        if self._cached == "uncached":
            usage = Usage(usage.prompt_tokens, usage.completion_tokens)
        if llm in self.own:
            return cost_usd(self.own[llm], usage)
        from genai_prices import Usage as PublishedUsage

        counts = PublishedUsage(
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cache_write_1h_tokens=usage.cache_write_1h_tokens,
        )
        return float(self._model_price(llm).calc_price(counts)["total_price"])

    def usd_per_mtok(self, llm: str) -> tuple[float, float]:
        """USD for a million prompt tokens and a million completion tokens, of short prompts.

        Raises:
            InputError: If the LLM has no price.
        """
        if llm in self.own:
            return self.own[llm].input_usd_per_mtok, self.own[llm].output_usd_per_mtok
        price = self._model_price(llm)
        return _base(price.input_mtok) or 0.0, _base(price.output_mtok) or 0.0

    def check(self, names: Iterable[str]) -> None:
        """Refuses LLMs without a price.

        Raises:
            InputError: If there is one; the message names all of them.
        """
        unknown = [name for name in names if name not in self.own and _published(name) is None]
        if unknown:
            names = ", ".join(map(repr, dict.fromkeys(unknown)))
            raise InputError(
                f"no price is known for {names}; give prices= a file prices.toml with version = 1 "
                f'and, for each, [[llm]] name = "{unknown[0]}", input_usd_per_mtok = 0.25, '
                "output_usd_per_mtok = 2.0 (USD for a million tokens)"
            )

    def describe(self, names: Iterable[str]) -> dict[str, Any]:
        """The prices of LLMs, JSON-serialisable, for bills.

        Returns:
            By name USD per million tokens (`input_usd_per_mtok`, `output_usd_per_mtok`,
            `cached_input_usd_per_mtok`), `cached`, `source`, and of published ones `at`, the day,
            and the `model` whose prices they are.

        Raises:
            InputError: If an LLM has no price.

        Examples:
            >>> found = PriceList(at=date(2026, 6, 1)).describe(["gpt-4o-mini"])["gpt-4o-mini"]
            >>> found["input_usd_per_mtok"], found["at"]
            (0.15, '2026-06-01')
        """
        return {name: self._described(name) for name in names}

    def _described(self, llm: str) -> dict[str, Any]:
        given, said = self.usd_per_mtok(llm)
        values = {"input_usd_per_mtok": given, "output_usd_per_mtok": said, "cached": self._cached}
        if llm in self.own:
            cached = self.own[llm].cached_input_usd_per_mtok
            return {**values, "cached_input_usd_per_mtok": cached, "source": self._source}
        cached = _base(self._model_price(llm).cache_read_mtok)
        return {
            **values,
            "cached_input_usd_per_mtok": cached,
            "model": _published(llm).id,
            "source": f"{_PACKAGE} {metadata.version(_PACKAGE)}",
            "at": self.at.isoformat(),
        }

    def _model_price(self, llm: str) -> Any:
        """The published price on the day."""
        self.check([llm])
        return _published(llm).get_prices(datetime.combine(self.at, _NOON))


@lru_cache(maxsize=4096)
def _published(llm: str) -> Any:
    """The model with this name in genai-prices; None if it knows none.

    A provider may be in front of the name: `openai/gpt-5-mini`, `anthropic:claude-haiku-4-5`.
    """
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError:
        return None
    provider, separator, model = llm.replace(":", "/", 1).partition("/")
    ways = [(model, provider)] if separator else []
    for name, of in [*ways, (llm, None)]:
        try:
            return get_snapshot().find_provider_model(name, None, of, None)[1]
        except LookupError:
            continue
    return None


def _base(price: Any) -> float | None:
    """The price of the first tier."""
    return None if price is None else float(getattr(price, "base", price))
