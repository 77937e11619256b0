"""Small tasks on which every cost and quality is known."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Self

import numpy as np

from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem


@dataclass(frozen=True)
class KnownTask:
    """A table with the cost and quality of every configuration on every query, and its problem.

    Args:
        table: The values.
        problem: The problem on the table; the averages of theta_0 are those of the table.

    Examples:
        >>> task = KnownTask.random(seed=5, sizes=(4, 3), num_queries=6)
        >>> task.problem.space.size
        12
        >>> bool(task.best_cost < task.problem.reference_cost_usd)
        True
    """

    table: RecordedTable
    problem: SelectionProblem

    @classmethod
    def of(
        cls,
        cost: np.ndarray,
        quality: np.ndarray,
        theta_ref: tuple[int, ...],
        epsilon: float = 0.15,
    ) -> Self:
        """The task on given values.

        Args:
            cost: `M_1 x ... x M_N x Q` costs in USD.
            quality: `M_1 x ... x M_N x Q` qualities in [0, 1].
            theta_ref: Codes of theta_0.
            epsilon: Tolerated relative loss of quality.
        """
        table = table_of(cost, quality)
        reference = [llms[code] for llms, code in zip(table.llms, theta_ref, strict=True)]
        return cls(table, table.problem("random", reference, epsilon))

    @classmethod
    def random(
        cls,
        seed: int = 0,
        sizes: tuple[int, ...] = (4, 4, 4),
        num_queries: int = 16,
        graded: bool = True,
        epsilon: float = 0.15,
    ) -> Self:
        """A random task, in which something feasible costs under 0.7 of theta_0 if |Theta| > 1.

        Code 0 is the cheapest LLM of a module; dearer LLMs tend to be better. theta_0 is the
        configuration of highest average quality.

        Args:
            seed: Decides every value.
            sizes: Number of LLMs of each module.
            num_queries: Q.
            graded: Whether qualities are continuous; else they are 0 or 1.
            epsilon: Tolerated relative loss of quality.
        """
        for attempt in itertools.count():
            rng = np.random.default_rng((seed, attempt))
            cost, quality = _random_values(rng, sizes, num_queries, graded)
            mean_cost, mean_quality = cost.mean(-1), quality.mean(-1)
            theta_ref = np.unravel_index(mean_quality.argmax(), sizes)
            feasible = mean_quality >= (1 - epsilon) * mean_quality.max()
            improvable = mean_cost[feasible].min() < 0.7 * mean_cost[theta_ref]
            if (improvable or mean_cost.size == 1) and mean_quality.max() > 0:
                return cls.of(cost, quality, tuple(int(code) for code in theta_ref), epsilon)
        raise AssertionError

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of LLMs of each module."""
        return self.table.cost_usd.shape[:-1]

    @property
    def base(self) -> tuple[int, ...]:
        """Code 0 in every module; in a random task the cheapest LLM."""
        return (0,) * len(self.sizes)

    @property
    def mean_cost(self) -> np.ndarray:
        """c(theta) in USD by flat index: `|Theta|` (float64)."""
        return self.table.cost_usd.mean(-1).ravel()

    @property
    def mean_quality(self) -> np.ndarray:
        """s(theta) by flat index: `|Theta|` (float64)."""
        return self.table.quality.mean(-1).ravel()

    @property
    def best_cost(self) -> float:
        """c(theta_star) in USD: the least average cost at quality s_0 or more."""
        return float(self.mean_cost[self.mean_quality >= self.problem.s_0].min())

    def observe(self, request: Request) -> Observation:
        """The table's values for a request."""
        theta, query, replicate = request
        at = (*theta, query)
        cost, quality = float(self.table.cost_usd[at]), float(self.table.quality[at])
        return Observation(theta, query, cost, quality, replicate)

    def evaluator(self) -> TableEvaluator:
        """An evaluator that looks values up in the table."""
        return TableEvaluator(self.table)


def names(sizes: tuple[int, ...]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Names for modules, and for the LLMs of each."""
    modules = tuple(f"module{i}" for i in range(len(sizes)))
    return modules, tuple(tuple(f"llm{m}" for m in range(size)) for size in sizes)


def table_of(cost: np.ndarray, quality: np.ndarray) -> RecordedTable:
    """A table of `M_1 x ... x M_N x Q` costs in USD and qualities in [0, 1]."""
    modules, llms = names(cost.shape[:-1])
    queries = tuple(f"q{i}" for i in range(cost.shape[-1]))
    return RecordedTable(modules, llms, queries, cost, quality)


def _random_values(
    rng: np.random.Generator, sizes: tuple[int, ...], num_queries: int, graded: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Costs and qualities, `M_1 x ... x M_N x Q` each."""
    price, skill = np.zeros(sizes), np.zeros(sizes)
    for module, size in enumerate(sizes):
        shape = [1] * len(sizes)
        shape[module] = size
        price = price + np.sort(rng.lognormal(-7, 1.2, size)).reshape(shape)
        ability = 0.4 + 0.3 * np.arange(size) / max(1, size - 1) + rng.uniform(-0.15, 0.25, size)
        skill = skill + ability.reshape(shape) / len(sizes)
    cost = price[..., None] * rng.lognormal(0, 0.2, (*sizes, num_queries))
    ease = rng.normal(0, 0.1, num_queries)
    quality = np.clip(skill[..., None] + ease, 0.02, 0.98)
    if graded:
        return cost, np.clip(quality + rng.normal(0, 0.05, quality.shape), 0.0, 1.0)
    return cost, (rng.random(quality.shape) < quality).astype(np.float64)
