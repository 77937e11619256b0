"""What a selection will do and what it may cost, told before the search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scope_torch.results.digits import plain, usd

TOO_DEAR_AFTER = 5  # queries of the reference, to say what all of them will cost


@dataclass(frozen=True)
class Pilot:
    """What a few runs of the reference showed.

    Args:
        number: How many there were.
        usd: What all of them have cost, in USD.
        seconds: How long a run takes; None if that is not known.
        concurrency: Runs at a time.
    """

    number: int
    usd: float
    seconds: float | None
    concurrency: int


@dataclass(frozen=True)
class Plan:
    """What `select` will do; `print` shows it.

    Args:
        name: Name of the problem.
        llms: The candidates of each module.
        reference: theta_0, by module.
        num_queries: Q, the number of queries searched on.
        num_held_out: Number of queries kept for the end.
        budget_usd: Everything together may cost this much, and the call that crosses it.
        prices: (input, output) USD per million tokens by LLM; None if they are not known.
        num_first: Runs of the preflight, on one query.
        repeats: How many queries the reference answers twice.
        is_logged: Whether the reference is known from a log.
        num_known: Answers that earlier searches know.
        num_reference: Queries that theta_0 has yet to answer.
        num_measured: Those that it has answered in this directory, which its budget has paid.
        reference_queries: Of how many queries theta_0's answer is wanted; None for all.
        pilot: What pilots showed; None without them.
        num_allowed: How many configurations may be chosen; None for all.

    Examples:
        >>> LLMS = ("nano", "pro")
        >>> candidates = {"plan": LLMS, "solve": LLMS}
        >>> reference = {"plan": "pro", "solve": "pro"}
        >>> how = {"num_first": 2, "num_reference": 40, "repeats": 30}
        >>> print(Plan("my_app", candidates, reference, 40, 0, 5.0, **how))
        my_app: 2 modules (plan 2, solve 2 LLMs): 4 configurations, 40 queries
        1. preflight: each LLM of each module answers one query, in 2 runs
        2. reference plan=pro, solve=pro: 40 runs; stopped after 5 if all would take over 5 USD
        3. again: the reference answers 30 of them twice, which shows how much answers vary
        4. search: with the rest of 5 USD, in which everything is counted
        What it costs is not known; dry_run="pilot" runs the reference on 3 queries and tells.
    """

    name: str
    llms: Mapping[str, Sequence[str]]
    reference: Mapping[str, str]
    num_queries: int
    num_held_out: int
    budget_usd: float
    prices: Mapping[str, tuple[float, float]] | None = None
    num_first: int = 0
    repeats: int = 0
    is_logged: bool = False
    num_known: int = 0
    num_reference: int = 0
    num_measured: int = 0
    reference_queries: int | None = None
    pilot: Pilot | None = None
    num_allowed: int | None = None

    @property
    def num_configurations(self) -> int:
        """How many may be chosen; without a rule |Theta|."""
        every = math.prod(map(len, self.llms.values()))
        return every if self.num_allowed is None else self.num_allowed

    def __str__(self) -> str:
        modules = ", ".join(f"{module} {len(names)}" for module, names in self.llms.items())
        held_out = f", {self.num_held_out} held out" if self.num_held_out else ""
        head = (
            f"{self.name}: {len(self.llms)} module{'s' * (len(self.llms) > 1)} ({modules} LLMs): "
            f"{self.num_configurations:,} configurations, {self.num_queries} queries{held_out}"
        )
        known = f"known from earlier runs: {self.num_known:,} answers"
        numbered = [f"{number}. {step}" for number, step in enumerate(self._steps(), 1)]
        return "\n".join([head, *([known] if self.num_known else []), *numbered, *self._costs()])

    def _steps(self) -> list[str]:
        budget = f"{self.budget_usd:g} USD"
        steps: list[str] = []
        if self.num_first:
            runs = f"{self.num_first} run{'s' * (self.num_first > 1)}"
            steps.append(f"preflight: each LLM of each module answers one query, in {runs}")
        theta_0 = ", ".join(f"{module}={llm}" for module, llm in self.reference.items())
        left = self.num_reference
        if self.is_logged:
            steps.append(f"reference {theta_0}: known from a log, no run")
        elif not left:
            whence = "this directory" if self.num_measured else "earlier runs"
            steps.append(f"reference {theta_0}: known from {whence}, no run")
        else:
            too_dear = f"; stopped after {TOO_DEAR_AFTER} if all would take over {budget}"
            only = self.reference_queries
            of_all = "" if only is None else f" for {only} of the {self.num_queries} queries"
            steps.append(f"reference {theta_0}: {left} runs{of_all}{too_dear}")
        if self.repeats:
            why = "which shows how much answers vary"
            steps.append(f"again: the reference answers {self.repeats} of them twice, {why}")
        steps.append(f"search: with the rest of {budget}, in which everything is counted")
        if self.num_held_out:
            who = "the choice answers" if self.is_logged else "choice and reference answer"
            steps.append(f"at the end {who} the held-out queries, paid from the budget too")
        return steps

    def _costs(self) -> list[str]:
        """Prices, if they are known; USD and minutes, if pilots have shown them."""
        lines: list[str] = []
        if self.prices is not None:
            of_llms = [f"{llm} {plain(i)}, {plain(o)}" for llm, (i, o) in self.prices.items()]
            lines.append(f"USD per million tokens (in, out): {'; '.join(of_llms)}")
        if self.pilot is None:
            pilots = 'dry_run="pilot" runs the reference on 3 queries and tells'
            return [*lines, f"What it costs is not known; {pilots}."]
        pilot, each = self.pilot, self.pilot.usd / self.pilot.number
        held_out = self.num_held_out * (1 if self.is_logged else 2)
        number = self.num_reference + self.num_measured + self.repeats + held_out
        took = "" if pilot.seconds is None else f" and {plain(pilot.seconds, 2)} s"
        lines.append(
            f"{pilot.number} pilots cost {usd(pilot.usd)} USD: {usd(each)} USD{took} a run."
        )
        if number:
            lines.append(
                f"So reference and held-out queries cost about {usd(each * number)} USD"
                f"{self._minutes(number)},"
            )
        left = self.budget_usd - each * number
        if left <= 0:
            return [*lines, "which is more than the budget: nothing would be left for the search."]
        runs = f", as much as {left / each:,.0f} runs of the reference" if each else ""
        minutes = self._minutes(left / each) if each else ""
        return [*lines, f"and {usd(left)} USD are left for the search{runs}{minutes}."]

    def _minutes(self, runs: float) -> str:
        if self.pilot is None or self.pilot.seconds is None:
            return ""
        minutes = runs / self.pilot.concurrency * self.pilot.seconds / 60
        return f" ({plain(minutes, 2)} minutes)" if minutes >= 1 else " (less than a minute)"
