"""Recorded tables: cost and quality of configurations on queries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scope_torch.constraints import COST, QUALITY, Constraint
from scope_torch.errors import InputError, whole_number
from scope_torch.observation import Observation, Request, checked_outcomes
from scope_torch.problem import SelectionProblem, codes_of
from scope_torch.space import ConfigSpace

_ONCE_DENSE = 2_000_000_000  # bytes of an array of a partial table that was once held densely
_BLANKS = 1 << 10  # configurations without a row that are hashed together


@dataclass(frozen=True)
class RecordedTable:
    """Cost and quality of every configuration on every query.

    Args:
        modules: Names of the N modules.
        llms: Candidate LLMs of each module, in the order of their codes.
        queries: Identifiers of the Q queries, in the order of their indices.
        cost_usd: `M_1 x ... x M_N x Q` costs in USD (float64); see `rows`. Nested lists too.
        quality: `M_1 x ... x M_N x Q` qualities in [0, 1] (float64).
        outcomes: Other recorded numbers by name, `M_1 x ... x M_N x Q` each (float64, finite).
        partial: Whether cells may be missing: NaN in all of the arrays.
        listed: With `partial`, the only configurations that may be chosen, as codes; None: all
            that have a cell.
        rows: `R x N` codes (int64), rising by flat index, of the only configurations with a cell:
            the arrays are then `R x Q`, one row for each. None: they are as above.

    Raises:
        InputError: If shapes do not fit, a value is missing or outside its range, or an outcome has
            the name of the cost or of the quality.

    Examples:
        >>> table = RecordedTable(
        ...     modules=("answer",),
        ...     llms=(("mini", "pro"),),
        ...     queries=("a", "b"),
        ...     cost_usd=np.array([[0.001, 0.002], [0.01, 0.02]]),
        ...     quality=np.array([[0.0, 1.0], [1.0, 1.0]]),
        ... )
        >>> problem = table.problem("demo", reference=["pro"], epsilon=0.1)
        >>> problem.reference_cost_usd, problem.reference_quality, problem.s_0
        (0.015, 1.0, 0.9)
    """

    modules: tuple[str, ...]
    llms: tuple[tuple[str, ...], ...]
    queries: tuple[str, ...]
    cost_usd: np.ndarray
    quality: np.ndarray
    outcomes: dict[str, np.ndarray] = field(default_factory=dict)
    partial: bool = False
    listed: tuple[tuple[int, ...], ...] | None = None
    rows: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in {COST, QUALITY} & set(self.outcomes):  # else a bound on it would be of another
            raise InputError(f"outcome {name!r} has the name of the table's own; give it another")
        object.__setattr__(self, COST, _numbers(COST, self.cost_usd))
        object.__setattr__(self, QUALITY, _numbers(QUALITY, self.quality))
        others = {name: _numbers(name, values) for name, values in self.outcomes.items()}
        object.__setattr__(self, "outcomes", others)
        of_theta = self.space.sizes if self.rows is None else (len(self.rows),)
        shape = (*of_theta, len(self.queries))
        known = {"cost_usd": self.cost_usd, "quality": self.quality}
        for name, values in [*known.items(), *self.outcomes.items()]:
            if values.shape != shape:
                raise InputError(f"{name} has shape {values.shape}, expected {shape}")
        checked_outcomes(dict.fromkeys(self.outcomes, 0.0))  # the names
        self._check(self.cost_usd, "cost_usd", (0.0, np.inf), "a number >= 0 (USD)")
        self._check(self.quality, "quality", (0.0, 1.0), "in [0, 1]; rescale it")
        for name, values in self.outcomes.items():
            self._check(values, name, (-np.inf, np.inf), "a finite number")

    def _check(
        self, values: np.ndarray, name: str, limits: tuple[float, float], expected: str
    ) -> None:
        bad = ~(np.isfinite(values) & (values >= limits[0]) & (values <= limits[1]))
        if self.partial:
            bad &= self.present | ~np.isnan(values)
        if bad.any():
            *at, query = np.argwhere(bad)[0].tolist()
            value, theta = (
                values[(*at, query)],
                at if self.rows is None else self.rows[at[0]].tolist(),
            )
            raise InputError(f"{name}={value} at {self.cell(theta, query)} must be {expected}")

    @property
    def present(self) -> np.ndarray:
        """Which cells were recorded: booleans of the shape of the arrays."""
        return ~np.isnan(self.cost_usd)

    def where(self, theta: Sequence[int]) -> tuple[int, ...] | None:
        """Where a configuration is in the arrays; None if it has no row."""
        if self.rows is None:
            return tuple(theta)
        row = self._row_of.get(tuple(theta))
        return None if row is None else (row,)

    @cached_property
    def _row_of(self) -> dict[tuple[int, ...], int]:
        assert self.rows is not None
        return {tuple(theta): row for row, theta in enumerate(self.rows.tolist())}

    @cached_property
    def index(self) -> np.ndarray | None:
        """Flat indices of `rows` (int64), rising; None if every configuration has a row."""
        if self.rows is None:
            return None
        return self.space.rank(torch.from_numpy(self.rows)).numpy()

    def cell(self, theta: Sequence[int], query: int) -> str:
        """Name of a cell in error messages: the LLM of each module, and the query."""
        llms = dict(zip(self.modules, self._names(theta), strict=True))
        return f"{llms}, query {self.queries[query]}"

    @property
    def space(self) -> ConfigSpace:
        """Theta, the space of configurations."""
        return ConfigSpace(tuple(map(len, self.llms)))

    def first(self, num_queries: int) -> RecordedTable:
        """The table with only the first `num_queries` queries.

        Raises:
            InputError: If `num_queries` is below 1 or above the number of recorded queries.
        """
        more = ", the queries recorded"
        kept = slice(whole_number("num_queries", num_queries, 1, len(self.queries), more))
        cost, quality = self.cost_usd[..., kept], self.quality[..., kept]
        return replace(
            self,
            queries=self.queries[kept],
            cost_usd=cost,
            quality=quality,
            outcomes={name: values[..., kept] for name, values in self.outcomes.items()},
        )

    def problem(self, name: str, reference: Sequence[str], epsilon: float) -> SelectionProblem:
        """The selection problem on this table; takes the answers of theta_0 from the table.

        Of a partial table, only what was recorded may be chosen, see `allowed` and `offered` of
        `SelectionProblem`.

        Args:
            name: Name of the task.
            reference: theta_0, one LLM name for each module.
            epsilon: Tolerated relative loss of quality, in (0, 1).

        Raises:
            InputError: If the reference is not in the table, or not on every query, or epsilon is
                outside its range.
        """
        theta_ref = codes_of(reference, self.modules, self.llms, "reference")
        self._check_reference(theta_ref)
        at = self.where(theta_ref)
        assert at is not None
        cost_usd, quality = self.cost_usd[at], self.quality[at]
        return SelectionProblem(
            name=name,
            modules=self.modules,
            llms=self.llms,
            num_queries=len(self.queries),
            theta_ref=theta_ref,
            reference_quality=float(quality.mean(dtype=np.float64)),
            reference_cost_usd=float(cost_usd.mean(dtype=np.float64)),
            epsilon=epsilon,
            reference_answers=tuple(zip(cost_usd.tolist(), quality.tolist(), strict=True)),
            allowed=self._recorded(),
            offered=self._offered(),
        )

    def _check_reference(self, theta_ref: tuple[int, ...]) -> None:
        at = self.where(theta_ref)
        missing = list(range(len(self.queries)))
        if at is not None:
            missing = np.flatnonzero(np.isnan(self.cost_usd[at])).tolist()
        if missing:
            raise InputError(
                f"{len(missing)} cells of the reference are missing, first "
                f"{self.cell(theta_ref, missing[0])}: every other configuration is compared with "
                "it; record them, or take a reference that was recorded on every query"
            )
        if self.listed is not None and theta_ref not in self.listed:
            llms = dict(zip(self.modules, self._names(theta_ref), strict=True))
            raise InputError(f"task.configurations lacks the reference, {llms}; add it")

    def _names(self, theta: Sequence[int]) -> list[str]:
        return [names[code] for names, code in zip(self.llms, theta, strict=True)]

    def _recorded(self) -> tuple[tuple[int, ...], ...] | None:
        """The configurations with a cell, of those that are listed; None if these are all."""
        if not self.partial:
            return None
        has_cell: np.ndarray = np.asarray(self.present.any(-1))
        recorded = self._codes_where(has_cell)
        if self.listed is not None:
            return tuple(sorted(set(self.listed) & set(recorded)))
        return None if len(recorded) == self.space.size else tuple(recorded)

    def _codes_where(self, mask: np.ndarray) -> list[tuple[int, ...]]:
        """The configurations for which something holds, by flat index."""
        codes = np.argwhere(mask) if self.rows is None else self.rows[mask]
        return list(map(tuple, codes.tolist()))

    def _offered(self) -> dict[tuple[int, ...], tuple[int, ...]] | None:
        """The queries of the configurations that have cells, but not on all queries."""
        if not self.partial:
            return None
        present = self.present
        has_holes: np.ndarray = np.asarray(present.any(-1) & ~present.all(-1))
        queries = (tuple(np.flatnonzero(one).tolist()) for one in present[has_holes])
        return dict(zip(self._codes_where(has_holes), queries, strict=True)) or None


def _numbers(name: str, values: Any) -> np.ndarray:
    """An array as it is, as fingerprints of old have it; nested lists, tensors and texts as one."""
    if isinstance(values, np.ma.MaskedArray):  # what is masked was not recorded
        return np.ma.filled(values.astype(np.float64), np.nan)
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return values
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}") from error


class TableEvaluator:
    """Observes the values of a recorded table; a repeated observation has the same values.

    Args:
        table: The recorded table.

    Examples:
        >>> table = RecordedTable(
        ...     ("answer",), (("mini", "pro"),), ("a",), np.array([[0.1], [0.2]]), np.ones((2, 1))
        ... )
        >>> (observation,) = TableEvaluator(table).evaluate([Request(theta=(1,), query=0)])
        >>> observation.cost_usd, observation.quality
        (0.2, 1.0)
    """

    concurrency = 1
    free = True
    copies = True  # a repeated observation is no new answer

    def __init__(self, table: RecordedTable) -> None:
        self.table = table

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        """Looks up every request in the table; see `Evaluator`."""
        for theta, query, replicate in requests:
            cell = (*(self.table.where(theta) or ()), query)
            if len(cell) == 1 or np.isnan(cost := self.table.cost_usd[cell]):
                raise InputError(f"{self.table.cell(theta, query)} was never recorded")
            quality = self.table.quality[cell]
            named = {name: float(values[cell]) for name, values in self.table.outcomes.items()}
            yield Observation(
                theta, query, float(cost), float(quality), replicate, outcomes=named or None
            )

    def truth(self) -> tuple[Tensor, Tensor]:
        """The averages of the table over its queries; see `HasTruth`.

        NaN where a configuration was not recorded on every query.
        """
        return self._everywhere(self.table.cost_usd), self._everywhere(self.table.quality)

    def true_outcomes(self, limits: Sequence[Constraint]) -> list[Tensor]:
        """The average outcome of each constraint by flat index; see `HasTrueOutcomes`.

        Examples:
            >>> from scope_torch.constraints import at_most
            >>> tokens = {"tokens": np.array([[3.0, 5.0], [8.0, 80.0]])}
            >>> ones = np.ones((2, 2))
            >>> table = RecordedTable(("a",), (("mini", "pro"),), ("x", "y"), ones, ones, tokens)
            >>> TableEvaluator(table).true_outcomes([at_most("tokens", 5, cap=10)])
            [tensor([4., 9.], dtype=torch.float64)]
        """
        return [self._everywhere(self._counted(limit)) for limit in limits]

    def _everywhere(self, values: np.ndarray) -> Tensor:
        """Averages over queries by flat index, NaN where there is no row: `|Theta|`."""
        means, index = torch.from_numpy(values.mean(-1, dtype=np.float64).ravel()), self.table.index
        if index is None:
            return means
        every = torch.full((self.table.space.size,), np.nan, dtype=torch.float64)
        return every.index_copy_(0, torch.from_numpy(index), means)

    def average_outcome(self, theta: Sequence[int], limit: Constraint) -> float:
        """That of one configuration."""
        at = self.table.where(theta)
        return (
            float("nan") if at is None else float(self._counted(limit)[at].mean(dtype=np.float64))
        )

    def _counted(self, limit: Constraint) -> np.ndarray:
        """What counts for a constraint."""
        table = self.table
        known = {"cost_usd": table.cost_usd, "quality": table.quality, **table.outcomes}
        if limit.outcome not in known:
            raise InputError(
                f"{limit}: the table has no outcome {limit.outcome!r}, but {list(known)}; name its "
                "column in task.outcome_columns"
            )
        return limit.counted_all(known[limit.outcome])

    def query_keys(self) -> list[str]:
        """See `HasQueryKeys`: the identifiers of the table."""
        return [str(query) for query in self.table.queries]

    def fingerprint(self) -> str:
        """A hash of the whole content of the table; named outcomes add to it."""
        table = self.table
        digest = hashlib.sha256(repr((table.modules, table.llms, table.queries)).encode())
        self._hash(table.cost_usd, digest)
        self._hash(table.quality, digest)
        if table.listed is not None:
            digest.update(repr(table.listed).encode())
        for name, values in table.outcomes.items():
            digest.update(repr(name).encode())
            self._hash(values, digest)
        return digest.hexdigest()[:16]

    def _hash(self, values: np.ndarray, digest: Any) -> None:
        """Adds the bytes of an array to a hash, as if every configuration had a row.

        Journals were written when that was so. A table too large for it has none: there the rows
        alone are added.
        """
        index, size = self.table.index, self.table.space.size
        row_bytes = 8 * values.shape[-1]
        if index is None or size * row_bytes > _ONCE_DENSE:
            if index is not None:
                digest.update(index.tobytes())
            digest.update(np.ascontiguousarray(values).tobytes())
            return
        blank = np.full((_BLANKS, values.shape[-1]), np.nan).tobytes()
        gaps = np.diff(index, prepend=-1, append=size) - 1
        for gap, row in zip(gaps.tolist(), [*values, values[:0]], strict=True):
            for _ in range(gap // _BLANKS):
                digest.update(blank)
            digest.update(blank[: gap % _BLANKS * row_bytes])
            digest.update(np.ascontiguousarray(row).tobytes())
