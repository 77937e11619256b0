"""Queries with known answers, for a live compound system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


class Query(NamedTuple):
    """An element of a data set.

    Attributes:
        fields: What the system may see, by name: JSON-serialisable values.
        gold: What the metric compares with; never shown to the system.
    """

    fields: Mapping[str, Any]
    gold: Any


class Metric(Protocol):
    """Grades an output."""

    def __call__(self, output: str, query: Query) -> float:
        """Quality in [0, 1]; never raises because of what an LLM wrote."""
        ...


class Dataset(NamedTuple):
    """What a compound system is searched on, and deployed on.

    Attributes:
        name: Shown in paths, logs and plots.
        queries: The Q queries of the search.
        held_out: Queries that the search never sees (RQ2).
        metric: Quality of an output.
    """

    name: str
    queries: tuple[Query, ...]
    held_out: tuple[Query, ...]
    metric: Metric
