"""Averages of the answers of each configuration, as far as they were observed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from scope_torch.observation import Observation


class Averages:
    """Answers of one configuration, query by query; repeats of a query are averaged.

    Args:
        num_queries: Q.

    Attributes:
        num_again: How many answers were given before to the same query.
        num_changed: How many of these have another quality.
        cost_squares: Sum of the squared differences of all answers from the average of their query,
            in USD^2.
        quality_squares: Likewise of the qualities.

    Examples:
        >>> answers = Averages(num_queries=4)
        >>> answers.add(Observation((0,), query=2, cost_usd=0.1, quality=0.5))
        >>> answers.num_left, answers.cost_usd, answers.quality, answers.most_quality
        (3, 0.1, 0.5, 0.875)
    """

    def __init__(self, num_queries: int) -> None:
        self._num_queries = num_queries
        self._of_query: dict[int, tuple[int, float, float]] = {}  # number, USD, quality
        self._cost_usd = self._quality = 0.0  # sums over the queries seen
        self.num_again = self.num_changed = 0
        self.cost_squares = self.quality_squares = 0.0

    def add(self, observation: Observation) -> None:
        """Takes in an observation of this configuration."""
        number, cost, quality = self._of_query.get(observation.query, (0, 0.0, 0.0))
        self.num_again += number > 0
        self.num_changed += number > 0 and observation.quality != quality
        new_cost = cost + (observation.cost_usd - cost) / (number + 1)
        new_quality = quality + (observation.quality - quality) / (number + 1)
        self.cost_squares += (observation.cost_usd - cost) * (observation.cost_usd - new_cost)
        self.quality_squares += (observation.quality - quality) * (
            observation.quality - new_quality
        )
        self._of_query[observation.query] = number + 1, new_cost, new_quality
        self._cost_usd += new_cost - cost
        self._quality += new_quality - quality

    def __contains__(self, query: int) -> bool:
        return query in self._of_query

    @property
    def num_left(self) -> int:
        """Number of queries not yet observed."""
        return self._num_queries - len(self._of_query)

    @property
    def cost_usd(self) -> float:
        """Average cost in USD of the queries seen."""
        return self._cost_usd / len(self._of_query)

    def usd_on(self, other: Averages) -> float:
        """Sum of its costs, in USD, of the queries that another has answered; it has, too."""
        return math.fsum(self._of_query[query][1] for query in other._of_query)

    @property
    def quality(self) -> float:
        """Average quality of the queries seen."""
        return self._quality / len(self._of_query)

    @property
    def spread(self) -> float:
        """Standard deviation of the average of all queries, if that of every answer is 1."""
        return (
            math.sqrt(sum(1 / number for number, *_ in self._of_query.values())) / self._num_queries
        )

    @property
    def most_quality(self) -> float:
        """Average quality of all queries, if every answer that is still out were right."""
        return (self._quality + self.num_left) / self._num_queries


class AllAverages:
    """The `Averages` of every configuration that was observed, by configuration.

    Args:
        num_queries: Q.
    """

    def __init__(self, num_queries: int) -> None:
        self._num_queries = num_queries
        self._of: dict[tuple[int, ...], Averages] = {}

    def add(self, observation: Observation) -> None:
        """Takes in an observation."""
        self._of.setdefault(observation.theta, Averages(self._num_queries)).add(observation)

    @property
    def again(self) -> tuple[int, int]:
        """How many answers were others than before, and how many were asked for again."""
        found = self._of.values()
        return sum(one.num_changed for one in found), sum(one.num_again for one in found)

    def vary(self, report: Mapping[str, Any]) -> bool:
        """Whether answers vary: one was another when asked for again, or a search was told so.

        Args:
            report: Of the search.
        """
        return bool(self.again[0] or report.get("flips") or report.get("answers_vary"))

    def deviations(self, report: Mapping[str, Any]) -> tuple[float, float]:
        """Standard deviations of an answer from call to call, 0 where answers do not vary.

        Of its cost relative to the average cost, infinite if nothing was asked for again; and of
        its quality, to which one more pair belongs that varies as much as any can: none seen is not
        none.

        Args:
            report: Of the search.
        """
        if not self.vary(report):
            return 0.0, 0.0
        of, number = [one for one in self._of.values() if one.num_again], self.again[1]
        squares = sum(one.cost_squares / (one.cost_usd or 1.0) ** 2 for one in of)
        of_quality = sum(one.quality_squares for one in of) + 0.25
        return math.sqrt(squares / number) if number else math.inf, math.sqrt(
            of_quality / (number + 1)
        )

    def sure_quality(self, theta: tuple[int, ...], vary: bool) -> tuple[float, float]:
        """Its average quality if all answers that are still out were wrong, and if all were right.

        Args:
            theta: Codes of the configuration.
            vary: Whether answers vary; then nothing is sure.
        """
        own = self[theta]
        least = own.most_quality - own.num_left / self._num_queries
        return (0.0, 1.0) if vary else (least, own.most_quality)

    def luck(self, theta: tuple[int, ...], of: tuple[float, float]) -> tuple[float, float]:
        """Two standard errors of its average cost in USD and quality, by answers that vary.

        Bounds of the model are about the answers given; by so much their averages may be off.

        Args:
            theta: Codes of the configuration.
            of: The `deviations`, which are of all configurations.
        """
        own, (of_cost, of_quality) = self[theta], of
        usd = own.cost_usd if theta in self._of else 0.0
        return (2 * of_cost * usd * own.spread if usd else 0.0), 2 * of_quality * own.spread

    def __getitem__(self, theta: tuple[int, ...]) -> Averages:
        return self._of.get(theta) or Averages(self._num_queries)

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], Averages]]:
        return iter(self._of.items())
