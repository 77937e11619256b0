"""Queries with known answers, for a live compound system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


class Query(NamedTuple):
    """A query of a data set, with its known answer.

    Attributes:
        fields: The input of the system: JSON-serialisable values by name.
        gold: The known answer, for the metric; never shown to the system.
    """

    fields: Mapping[str, Any]
    gold: Any


class Metric(Protocol):
    """Grades an output."""

    def __call__(self, output: str, query: Query) -> float:
        """Quality in [0, 1] of an output; must not raise, whatever an LLM wrote."""
        ...


class Dataset(NamedTuple):
    """Queries for the search, held-out queries, and a metric.

    Attributes:
        name: Name of the data set, shown in paths, logs and plots.
        queries: The Q queries of the search.
        held_out: Queries that the search never sees (RQ2).
        metric: Grades an output.
    """

    name: str
    queries: tuple[Query, ...]
    held_out: tuple[Query, ...]
    metric: Metric
