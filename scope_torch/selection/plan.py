"""What a selection will do and what it may cost, told before the first call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TOO_DEAR_AFTER = 5  # queries of the reference, to say what all of them will cost
_TOKENS = 1000, 250  # prompt and completion of a call in the example


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
        prices: (input, output) USD per million tokens by LLM; None if the application says what a
            run costs.
        base: The cheap LLMs around which the search starts, by module; None if there are none, or
            a probe will tell.
        has_probe: Whether each LLM answers one query first, which tells where the search starts.
        is_logged: Whether the reference is known from a log.

    Examples:
        >>> LLMS = ("nano", "pro")
        >>> candidates = {"plan": LLMS, "solve": LLMS}
        >>> reference = {"plan": "pro", "solve": "pro"}
        >>> print(Plan("my_app", candidates, reference, 40, 0, 5.0, has_probe=True))
        my_app: 2 modules (plan 2, solve 2 LLMs): 4 configurations, 40 queries
        1. probe: each LLM answers one query; the cheapest is where the search starts
        2. reference plan=pro, solve=pro: 40 runs; stopped after 5 if they would take over 5 USD
        3. search: with the rest of 5 USD, in which everything is counted
    """

    name: str
    llms: Mapping[str, Sequence[str]]
    reference: Mapping[str, str]
    num_queries: int
    num_held_out: int
    budget_usd: float
    prices: Mapping[str, tuple[float, float]] | None = None
    base: Mapping[str, str] | None = None
    has_probe: bool = False
    is_logged: bool = False

    @property
    def num_configurations(self) -> int:
        """|Theta|."""
        size = 1
        for names in self.llms.values():
            size *= len(names)
        return size

    def __str__(self) -> str:
        modules = ", ".join(f"{module} {len(names)}" for module, names in self.llms.items())
        held_out = f", {self.num_held_out} held out" if self.num_held_out else ""
        reference = ", ".join(f"{module}={llm}" for module, llm in self.reference.items())
        budget = f"{self.budget_usd:g} USD"
        steps = [
            f"reference {reference}: known from a log, no run"
            if self.is_logged
            else f"reference {reference}: {self.num_queries} runs; stopped after {TOO_DEAR_AFTER} "
            f"if they would take over {budget}",
            f"search: with the rest of {budget}, in which everything is counted",
        ]
        if self.has_probe:
            probe = "probe: each LLM answers one query; the cheapest is where the search starts"
            steps.insert(0, probe)
        if self.num_held_out:
            both = "choice and reference answer the held-out queries, paid from the budget too"
            steps.append(f"at the end {both}")
        head = (
            f"{self.name}: {len(self.llms)} modules ({modules} LLMs): {self.num_configurations:,} "
            f"configurations, {self.num_queries} queries{held_out}"
        )
        numbered = [f"{number}. {step}" for number, step in enumerate(steps, 1)]
        return "\n".join([head, *numbered, *self._example()])

    def _example(self) -> list[str]:
        """What the budget would buy at a stated number of tokens."""
        if self.prices is None:
            return []
        reference = self._usd_per_run(self.reference)
        number = 1 if self.is_logged else self.num_queries
        lines = [
            f"For example, at {_TOKENS[0]} prompt and {_TOKENS[1]} completion tokens for each "
            f"module, {'a run of ' if self.is_logged else ''}the reference costs "
            f"{reference * number:.3g} USD,"
        ]
        number = 0 if self.is_logged else self.num_queries
        left = self.budget_usd - reference * (number + 2 * self.num_held_out)
        if left <= 0:
            return [*lines, "which is more than the budget: nothing would be left for the search."]
        buys = f"and the rest buys {left / reference:,.0f} more runs of it" if reference else ""
        if self.base and (base := self._usd_per_run(self.base)):
            llms = ", ".join(dict.fromkeys(self.base.values()))
            buys += f", or {left / base:,.0f} of the cheapest ({llms})"
        return [*lines, f"{buys}."] if buys else lines

    def _usd_per_run(self, llms: Mapping[str, str]) -> float:
        """At the tokens of the example."""
        prices = self.prices or {}
        prompt, completion = _TOKENS
        pairs = [prices[llm] for llm in llms.values()]
        return sum(prompt * given + completion * said for given, said in pairs) / 1e6
