"""What a selection has cost, by what it was paid for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scope_torch.factors import LLM
from scope_torch.html_table import html_table
from scope_torch.observation import Observation
from scope_torch.results.digits import plain, usd


@dataclass(frozen=True)
class Bill:
    """Amounts in USD, and numbers of calls; a call is one run of the application on one query.

    Args:
        reference_usd: Measuring theta_0 before the search.
        again_usd: Its second answers to some queries, which show how much answers vary.
        probe_usd: The preflight: each LLM of each module answers one query.
        search_usd: The search, without repeats.
        in_flight_usd: Calls that were under way when the search ended; answers to held-out queries
            that are in no comparison, as of an earlier choice.
        held_out_usd: Choice and reference on held-out queries.
        judge_usd: Grading the answers, where a metric asks an LLM; in none of the others.
        lost_usd: Calls that raised an error and ended an earlier process of this search, or whose
            worker was lost.
        repeats_usd: What kept answers would have cost; not paid, and not in the total.
        num_kept: Observations that a kept answer gave, without a call.
        num_calls: Calls that were paid for, without those in flight.
        num_failed: Calls that failed, and count as quality 0.
        num_lost: Calls whose worker was lost before anybody knew what they cost.
        num_known: Answers of earlier searches that were taken over.
        known_usd: What these would cost today; not paid, and not in the total.
        prices: By LLM its prices, their source and day, see `PriceList.describe`; None if unknown.

    Examples:
        >>> prices = {"nano": {"input_usd_per_mtok": 0.05, "output_usd_per_mtok": 0.4,
        ...     "source": "genai-prices 0.2.3", "at": "2026-06-01"}}
        >>> print(Bill(reference_usd=0.41, search_usd=0.52, in_flight_usd=0.01, num_calls=312,
        ...     prices=prices))
        reference      0.41 USD
        search         0.52 USD
        in flight      0.01 USD
        total          0.94 USD for 312 calls, 0 failed
        nano: 0.05 in, 0.4 out (USD per million tokens; genai-prices 0.2.3, 2026-06-01)
    """

    reference_usd: float = 0.0
    again_usd: float = 0.0
    probe_usd: float = 0.0
    search_usd: float = 0.0
    in_flight_usd: float = 0.0
    held_out_usd: float = 0.0
    judge_usd: float = 0.0
    lost_usd: float = 0.0
    repeats_usd: float = 0.0
    num_kept: int = 0
    num_calls: int = 0
    num_failed: int = 0
    num_lost: int = 0
    num_known: int = 0
    known_usd: float = 0.0
    prices: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def total_usd(self) -> float:
        """What was paid in all, in USD."""
        return math.fsum(self.amounts.values())

    @property
    def amounts(self) -> dict[str, float]:
        """What was paid in USD, by what for."""
        return {
            "reference": self.reference_usd,
            "again": self.again_usd,
            "preflight": self.probe_usd,
            "search": self.search_usd,
            "in flight": self.in_flight_usd,
            "held out": self.held_out_usd,
            "judge": self.judge_usd,
            "lost": self.lost_usd,
        }

    @property
    def beside(self) -> dict[str, float]:
        """What was paid, but is no cost of a configuration, by its key in `result.json`."""
        paid = {"judge_usd": self.judge_usd, "lost_usd": self.lost_usd, "num_lost": self.num_lost}
        return {name: amount for name, amount in paid.items() if amount}

    def __str__(self) -> str:
        lines = [f"{name:<10} {paid:>8} USD{about}" for name, paid, about in self._rows()]
        return "\n".join([*lines, *(f"{llm}: {price}" for llm, price in self._prices())])

    def _repr_html_(self) -> str:
        """For notebooks."""
        amounts = ((name, f"{paid} USD{about}") for name, paid, about in self._rows())
        return html_table([*amounts, *self._prices()])

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        """What for, how many USD, and what is to be said of it."""
        for name, paid in self.amounts.items():
            if paid:
                yield name, usd(paid), ""
        failed = f"{self.num_calls} calls, {self.num_failed} failed"
        lost = f"; {self.num_lost} lost with a worker, at unknown cost" if self.num_lost else ""
        yield "total", usd(self.total_usd), f" for {failed}{lost}"
        if self.repeats_usd:
            yield "not paid", usd(self.repeats_usd), ": answers that were kept"
        if self.num_known:
            taken = f"{self.num_known} answers of earlier searches"
            yield "not paid", usd(self.known_usd), f": {taken}"

    def _prices(self) -> Iterator[tuple[str, str]]:
        """The price of each LLM once, if all of its choices have it."""
        told: dict[str, dict[str, str]] = {}
        for name, price in (self.prices or {}).items():
            told.setdefault(LLM.parse(name).llm, {})[name] = _price(price)
        for llm, prices in told.items():
            alike = len(set(prices.values())) == 1
            yield from ({llm: next(iter(prices.values()))} if alike else prices).items()


def bill_of(result: Any) -> Bill:
    """What a run and its measurements have cost, of its `RunResult`."""
    repeats, taken_over = result.repeats or [], set(result.known)
    reference = [one for one in result.reference or [] if one not in taken_over]
    held_out = [] if result.held_out is None else result.held_out.paid
    measured = [*reference, *result.reference_again, *result.probe, *held_out]
    paid = [*measured, *result.history]
    judge_usd = judge_cost_of(paid) - judge_cost_of(repeats)
    anew_usd = regraded_usd(result.report.get("known", {}).get("sources", ()))
    anew_usd += 0.0 if result.held_out is None else result.held_out.regraded_usd
    num_failed = sum(one.failed is not None for one in paid)
    return Bill(
        reference_usd=cost_of(reference),
        again_usd=cost_of(result.reference_again),
        probe_usd=cost_of(result.probe),
        search_usd=max(0.0, cost_of(result.history) - cost_of(repeats)),
        in_flight_usd=result.surplus_usd,
        held_out_usd=cost_of(held_out),
        judge_usd=max(0.0, judge_usd) + anew_usd,
        lost_usd=math.fsum(one.paid_usd for one in result.lost),
        repeats_usd=cost_of(repeats) + judge_cost_of(repeats),
        num_kept=len(repeats),
        num_calls=len(paid) - len(repeats) + len(result.lost),
        num_failed=max(num_failed, result.num_failed),
        num_lost=sum(not one.paid_usd for one in result.lost),
        num_known=len(result.known),
        known_usd=cost_of(result.known),
        prices=result.prices,
    )


def cost_of(observations: Iterable[Observation] | None) -> float:
    """Their cost in USD; 0 for None.

    Examples:
        >>> cost_of([Observation((0,), query=0, cost_usd=0.5, quality=1.0)])
        0.5
    """
    return math.fsum(observation.cost_usd for observation in observations or ())


def repeats_of(repeats: Sequence[Observation]) -> dict[str, Any]:
    """Number and cost of the observations that a kept answer gave, for `result.json`."""
    judge_usd = judge_cost_of(repeats)
    found = {"num_repeats": len(repeats), "repeats_usd": cost_of(repeats) + judge_usd}
    return {**found, "repeats_judge_usd": judge_usd} if judge_usd else found


def judge_cost_of(observations: Iterable[Observation]) -> float:
    """What grading them has cost in USD."""
    return math.fsum(observation.judge_usd for observation in observations)


def regraded_usd(sources: Iterable[Mapping[str, Any]]) -> float:
    """What it has cost in USD to grade kept outputs of older runs anew, see `Source`."""
    return math.fsum(source.get("regraded_usd", 0.0) for source in sources)


def _price(price: Mapping[str, Any]) -> str:
    parts = [
        f"{plain(price[key])} {name}"
        for key, name in (("input_usd_per_mtok", "in"), ("output_usd_per_mtok", "out"))
        if price.get(key) is not None
    ]
    about = [str(price[key]) for key in ("source", "at") if price.get(key)]
    if (usd_per_s := price.get("usd_per_s")) is not None:
        return f"{plain(3600 * usd_per_s)} (USD for an hour of calls; {', '.join(about)})"
    about += ["in a batch"] if price.get("batch") else []
    return f"{', '.join(parts)} (USD per million tokens; {', '.join(about)})"
