"""Each LLM in each module: what was seen of it, and why it was not chosen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem

Row = Mapping[str, Any]


class Cell(NamedTuple):
    """An LLM in a module.

    Attributes:
        queries: Different queries that were answered with it; 0 if it was not tried.
        quality: Average quality of these answers, in [0, 1]; of each query the average counts.
        cost_usd: Average cost of a query in USD, likewise.
        is_choice: Whether the choice has it there.
        is_reference: Whether the reference has it there.
        why: What became of most configurations with it, see `scope_torch.results.table`; "" if none
            was tried as a candidate.
    """

    queries: int
    quality: float | None
    cost_usd: float | None
    is_choice: bool
    is_reference: bool
    why: str

    def shade(self, num_queries: int) -> int:
        """0 to 5: how good its answers were; 0 on less than a tenth of all queries."""
        is_known = self.quality is not None and 10 * self.queries >= num_queries
        return round(5 * (self.quality or 0.0)) if is_known else 0


def heatmap(
    problem: SelectionProblem,
    observations: Sequence[Observation],
    rows: Sequence[Row],
    choice: tuple[int, ...],
) -> list[tuple[str, list[Cell | None]]]:
    """A row for each LLM, the cheapest seen first, and a cell for each module.

    Args:
        problem: What was searched.
        observations: All of them.
        rows: See `scope_torch.results.table.looked_at`.
        choice: Codes of theta_out.

    Returns:
        Names with their cells; None where the LLM is no candidate of the module.

    Examples:
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> problem = synthetic_task(num_queries=4).problem
        >>> seen = [Observation((0, 1), q, cost_usd=0.01, quality=float(q > 0)) for q in range(4)]
        >>> (name, (first, second)), *_ = heatmap(problem, seen, [], (0, 1))
        >>> name == problem.llms[0][0], first.quality, first.queries, second.queries
        (True, 0.75, 4, 0)
    """
    seen: dict[tuple[int, int], dict[int, list[Observation]]] = {}
    for one in observations:
        for module, code in enumerate(one.theta):
            seen.setdefault((module, code), {}).setdefault(one.query, []).append(one)
    fates: dict[tuple[int, int], Counter[str]] = {}
    for row in rows:
        for module, code in enumerate(row["theta"]):
            fates.setdefault((module, code), Counter())[row["status"]] += 1
    made: dict[str, list[Cell | None]] = {}
    for module, names in enumerate(problem.llms):
        for code, name in enumerate(names):
            cells = made.setdefault(name, [None] * problem.space.num_modules)
            at = module, code
            cell = _cell(seen.get(at, {}), fates.get(at, Counter()))
            is_choice, is_reference = choice[module] == code, problem.theta_ref[module] == code
            cells[module] = cell._replace(is_choice=is_choice, is_reference=is_reference)
    return sorted(made.items(), key=_cost)


def _cell(of_query: Mapping[int, Sequence[Observation]], fates: Counter[str]) -> Cell:
    told = Counter({status: n for status, n in fates.items() if status.startswith(_TOLD)})
    why = "" if not told else told.most_common(1)[0][0].removeprefix("dropped: ")
    if not of_query:
        return Cell(0, None, None, False, False, why)
    quality = _mean([_mean([o.quality for o in found]) for found in of_query.values()])
    cost = _mean([_mean([o.cost_usd for o in found]) for found in of_query.values()])
    return Cell(len(of_query), quality, cost, False, False, why)


_TOLD = ("dropped", "certified", "accepted", "not certified", "undecided")


def _cost(row: tuple[str, Sequence[Cell | None]]) -> tuple[float, str]:
    costs = [c.cost_usd for c in row[1] if c is not None and c.cost_usd is not None]
    return (min(costs) if costs else math.inf), row[0]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
