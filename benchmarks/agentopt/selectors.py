"""AgentOpt's own selectors on a recorded table, for both objectives.

The agent that they run is a look-up in the table, so no LLM is called. AgentOpt keeps replies, so a
pair that is run again costs nothing here either. It breaks ties by seconds, which the tables lack:
a run counts `_SECONDS_PER_TOKEN` for each output token. The seed shuffles the queries, and seeds
the selectors that draw. LMProposalModelSelector is left out: it asks an LLM.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.agentopt.choices import Choice, cost_row, quality_row
from scope_torch.evaluators.table import RecordedTable
from scope_torch.problem import SelectionProblem

SELECTORS = {
    "brute_force": "BruteForceModelSelector",
    "random_search": "RandomSearchModelSelector",
    "hill_climbing": "HillClimbingModelSelector",
    "arm_elimination": "ArmEliminationModelSelector",
    "epsilon_lucb": "EpsilonLUCBModelSelector",
    "threshold_se": "ThresholdBanditSEModelSelector",
    "bayesian": "BayesianOptimizationModelSelector",
}
# Its user trusts only the configurations that were run on the most queries.
SURVIVORS = "arm_elimination, survivors"
OF_COST = (*SELECTORS, SURVIVORS)
_SEEDED = {"random_search", "hill_climbing"}  # these take a seed; the others use none or `random`
_SECONDS_PER_TOKEN = 0.01
SAME = 1e-9  # averages closer than this are equal


class Sampled(NamedTuple):
    """Averages of a configuration over the queries that it was run on, in USD and of quality."""

    cost_usd: float
    quality: float
    num_queries: int


class Lookup:
    """The table as an application of AgentOpt, and in place of its tracker of LLM calls.

    Args:
        table: The recorded table, without holes. Without the outcome `output_tokens` all runs
            take equally long.

    Attributes:
        asked: The cells that were run: codes of the LLMs, then the query.
    """

    def __init__(self, table: RecordedTable) -> None:
        self.table = table
        self.asked: set[tuple[int, ...]] = set()
        self._last: tuple[int, ...] = ()

    def __call__(self, combination: dict[str, str]) -> Application:
        """The application with these LLMs, as AgentOpt makes it."""
        return Application(self, self.codes(combination))

    def codes(self, combination: dict[str, str]) -> tuple[int, ...]:
        """Codes of the LLMs of a combination, module by module."""
        table = self.table
        named = zip(table.modules, table.llms, strict=True)
        return tuple(llms.index(combination[module]) for module, llms in named)

    def quality(self, cell: tuple[int, ...]) -> float:
        """Runs one cell: it is paid for the first time."""
        self.asked.add(cell)
        self._last = cell
        return float(self.table.quality[cell])

    @property
    def spend_usd(self) -> float:
        """Cost of all cells that were run, in USD."""
        return float(sum(self.table.cost_usd[cell] for cell in sorted(self.asked)))

    def sampled(self) -> dict[tuple[int, ...], Sampled]:
        """What the report shows of each configuration that was run."""
        cells: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for cell in sorted(self.asked):
            cells.setdefault(cell[:-1], []).append(cell)
        cost, quality = self.table.cost_usd, self.table.quality
        return {
            codes: Sampled(
                float(np.mean([cost[cell] for cell in run])),
                float(np.mean([quality[cell] for cell in run])),
                len(run),
            )
            for codes, run in cells.items()
        }

    # What the selectors ask of a tracker

    def start(self) -> None:
        """Nothing to start: there are no calls to intercept."""

    def stop(self) -> None:
        """Nothing to stop."""

    @contextlib.contextmanager
    def track(self, **_: Any) -> Generator[None]:
        """Nothing to track."""
        yield

    def get_cached_latency(self, **_: Any) -> float:
        """Seconds of the last run."""
        tokens = self.table.outcomes.get("output_tokens")
        return 0.0 if tokens is None else _SECONDS_PER_TOKEN * float(tokens[self._last])

    def get_usage(self, **_: Any) -> dict[str, tuple[int, int]]:
        """No tokens: AgentOpt's prices decide nothing but ties."""
        return {}

    def get_records(self) -> list[Any]:
        """No calls."""
        return []


class Application:
    """A configuration that answers queries from the table."""

    def __init__(self, lookup: Lookup, codes: tuple[int, ...]) -> None:
        self.lookup, self.codes = lookup, codes

    def run(self, query: int) -> float:
        """The recorded quality of a query, by its index."""
        return self.lookup.quality((*self.codes, query))


def best_quality(table: RecordedTable, selector: str, seed: int) -> dict[str, Any]:
    """One run of a selector: its own choice, the best average score."""
    lookup, combination = _run(table, selector, seed)
    choice = Choice(lookup.spend_usd, lookup.codes(combination))
    return {"selector": selector, "seed": seed, **quality_row(table, choice)}


def least_cost(
    table: RecordedTable, problem: SelectionProblem, selector: str, seed: int
) -> dict[str, Any]:
    """One run of a selector, and the choice that its user makes of its report.

    The user takes the cheapest configuration whose average score in the run is at least s_0; the
    reference if there is none. The threshold of `threshold_se` is s_0; the others know none.
    """
    settings = {"threshold": problem.s_0} if selector == "threshold_se" else {}
    lookup, _ = _run(table, selector.partition(",")[0], seed, **settings)
    sampled = lookup.sampled()
    if selector == SURVIVORS:
        most = max(means.num_queries for means in sampled.values())
        sampled = {codes: means for codes, means in sampled.items() if means.num_queries == most}
    enough = [codes for codes, means in sampled.items() if means.quality >= problem.s_0 - SAME]
    chosen = min(enough, key=sampled.__getitem__, default=problem.theta_ref)
    choice = Choice(lookup.spend_usd, chosen)
    row = {"selector": selector, "seed": seed, **cost_row(table, problem, choice)}
    return {**row, "found": int(bool(enough))}


def _run(
    table: RecordedTable, selector: str, seed: int, **settings: Any
) -> tuple[Lookup, dict[str, str]]:
    """The cells that a selector has run until it stopped, and its choice."""
    import agentopt.model_selection as agentopt  # pyright: ignore[reportMissingImports]

    queries = list(range(len(table.queries)))
    random.Random(seed).shuffle(queries)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    lookup = Lookup(table)
    made = getattr(agentopt, SELECTORS[selector])(
        agent=lookup,
        models={m: list(llms) for m, llms in zip(table.modules, table.llms, strict=True)},
        eval_fn=lambda _expected, quality: quality,
        dataset=[(query, "") for query in queries],
        tracker=lookup,
        **({"seed": seed} if selector in _SEEDED else {}),
        **settings,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        return lookup, made.select_best().get_best_combo()
