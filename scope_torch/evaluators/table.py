"""Recorded runs: every configuration on every query."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from scope_torch.errors import InputError
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem, codes_of
from scope_torch.space import ConfigSpace


@dataclass(frozen=True)
class RecordedTable:
    """Cost and quality of every configuration on every query.

    Args:
        modules: Names of the N modules.
        llms: Candidate LLMs of each module, in code order.
        queries: Identifiers of the Q queries, in index order.
        cost_usd: `M_1 x ... x M_N x Q` costs in USD (float64).
        quality: `M_1 x ... x M_N x Q` qualities in [0, 1] (float64).

    Raises:
        InputError: If shapes do not fit, or a value is missing or outside its range.
    """

    modules: tuple[str, ...]
    llms: tuple[tuple[str, ...], ...]
    queries: tuple[str, ...]
    cost_usd: np.ndarray
    quality: np.ndarray

    def __post_init__(self) -> None:
        shape = (*(len(names) for names in self.llms), len(self.queries))
        for what, values in {"cost_usd": self.cost_usd, "quality": self.quality}.items():
            if values.shape != shape:
                raise InputError(f"{what} has shape {values.shape}, expected {shape}")
        self._check(self.cost_usd, "cost_usd", np.inf, "a number >= 0 (USD)")
        self._check(self.quality, "quality", 1.0, "in [0, 1]; rescale it")

    def _check(self, values: np.ndarray, what: str, most: float, expected: str) -> None:
        bad = ~(np.isfinite(values) & (values >= 0) & (values <= most))
        if bad.any():
            *theta, query = np.argwhere(bad)[0].tolist()
            value = values[(*theta, query)]
            raise InputError(f"{what}={value} at {self.cell(theta, query)} must be {expected}")

    def cell(self, theta: Sequence[int], query: int) -> str:
        """How messages name a cell."""
        names = [llms[code] for llms, code in zip(self.llms, theta, strict=True)]
        return f"{dict(zip(self.modules, names, strict=True))}, query {self.queries[query]}"

    @property
    def space(self) -> ConfigSpace:
        """Theta."""
        return ConfigSpace(self.cost_usd.shape[:-1])

    def first(self, num_queries: int) -> RecordedTable:
        """The table of the first queries.

        Raises:
            InputError: If there are fewer, or none is asked for.
        """
        if not 1 <= num_queries <= len(self.queries):
            raise InputError(
                f"num_queries={num_queries} must be 1 to {len(self.queries)}, the queries recorded"
            )
        part = slice(num_queries)
        cost, quality = self.cost_usd[..., part], self.quality[..., part]
        return replace(self, queries=self.queries[part], cost_usd=cost, quality=quality)

    def problem(self, name: str, reference: Sequence[str], epsilon: float) -> SelectionProblem:
        """The selection problem on this table, with theta_0 measured from it.

        Args:
            name: Name of the task.
            reference: One LLM name for each module.
            epsilon: Tolerated relative loss of quality, in (0, 1).

        Raises:
            InputError: If the reference is not in the table, or epsilon outside its range.
        """
        theta_ref = codes_of(reference, self.modules, self.llms, "reference")
        return SelectionProblem(
            name=name,
            modules=self.modules,
            llms=self.llms,
            num_queries=len(self.queries),
            theta_ref=theta_ref,
            reference_quality=float(self.quality[theta_ref].mean()),
            reference_cost_usd=float(self.cost_usd[theta_ref].mean()),
            epsilon=epsilon,
        )


class TableEvaluator:
    """Replays a recorded table. A repeated observation gives the recorded value again.

    Args:
        table: The recorded runs.
    """

    concurrency = 1
    free = True

    def __init__(self, table: RecordedTable) -> None:
        self.table = table

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        """See `Evaluator`."""
        for theta, query, replicate in requests:
            at = (*theta, query)
            cost, quality = self.table.cost_usd[at], self.table.quality[at]
            yield Observation(theta, query, float(cost), float(quality), replicate)

    def truth(self) -> tuple[Tensor, Tensor]:
        """See `HasTruth`; the averages of the table."""
        cost, quality = self.table.cost_usd.mean(-1), self.table.quality.mean(-1)
        return torch.from_numpy(cost.ravel()), torch.from_numpy(quality.ravel())

    def fingerprint(self) -> str:
        """See `Evaluator`; a hash of the whole content."""
        table = self.table
        digest = hashlib.sha256(repr((table.modules, table.llms, table.queries)).encode())
        digest.update(np.ascontiguousarray(table.cost_usd).tobytes())
        digest.update(np.ascontiguousarray(table.quality).tobytes())
        return digest.hexdigest()[:16]
