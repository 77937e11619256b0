"""When a candidate is certified to be feasible (line alg:scope-main:update)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scope_torch.bounds.betting import (
    BettingSequence,
    check_sequence,
    flips_of_repeats,
    share_of_delta,
)
from scope_torch.errors import InputError
from scope_torch.problem import SelectionProblem
from scope_torch.search.known import Known
from scope_torch.search.population import ByPopulation

_OF_REPEATS = 0.1  # part of delta that the bound on flips may be wrong with
_ANY = 0.5  # flips of an outcome that varies in any way
_LATER = 20  # see `share_of_delta`; chosen by simulation, LOG.md


class ByBounds:
    """The paper's: certified if U_{g,t} <= 0 or U_{g,t-1} <= 0. It is its own `Test`."""

    order: list[int] | None = None
    margin = 0.0

    def next_margin(self) -> float:
        """What g of the next candidate must be below 0 by: nothing."""
        return 0.0

    def begin(self, k: int, generator: torch.Generator) -> ByBounds:  # noqa: ARG002
        """See `Certificate`; every candidate has the same test."""
        return self

    def update(self, grades: Sequence[float], upper_g: float) -> bool:  # noqa: ARG002
        """See `Test`."""
        return upper_g <= 0

    def settings(self) -> dict[str, Any]:
        """See `Certificate`."""
        return {}

    def report(self) -> dict[str, Any]:
        """See `Certificate`."""
        return {"certificate": "bounds"}


class BySequence:
    """By the candidate's own answers in uniformly random order, whatever the model says.

    Each candidate has a confidence sequence of its own (`BettingSequence`). The chance that any of
    them certifies an infeasible configuration is at most delta:

    1. The k-th candidate has a share delta_k, fixed before the search (`share_of_delta`). All
       shares add up to delta at most.
    2. Which configuration becomes the k-th candidate may depend on all observations before. Then
       the order of its queries is drawn afresh, and its answers are new. Given all that was
       before, its sequence is wrong with probability at most delta_k.
    3. So the expected number of wrong sequences is at most the sum of the delta_k.

    If answers flip, a candidate has to exceed s_0 by a margin that grows with k. `next_margin`
    tells it to the choice, `margin` of the test to the rule that gives a candidate up. Most
    candidates are given up early, and the serious ones are rarely the very first. So the shares
    of the first eight are lower than without flips, those after them higher.

    **Several constraints.** A candidate has a sequence for each, all with the whole share delta_k,
    and is certified once every one of them has certified. If a configuration is infeasible, some
    constraint does not hold, and to certify the configuration the sequence of that one must be
    wrong. So nothing is divided by K. With flips, quality is taken to flip that often, and every
    other outcome to vary from call to call in any way within its range (1/2).

    Args:
        problem: Gives Q and the thresholds.
        delta: Failure probability of all candidates together, in (0, 1).
        flips: How often the same call gets another answer than usual, see
            `scope_torch.bounds.betting.margin`; 0: never.
        repeats: Instead of `flips`, how many of how many queries the reference answered otherwise
            the second time. `flips_of_repeats` makes a bound of it at a tenth of delta, and the
            candidates share the rest. It is assumed that no answer of a candidate flips more often.

    Raises:
        InputError: If a number is outside its range.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        delta: float,
        flips: float = 0.0,
        repeats: tuple[int, int] | None = None,
    ) -> None:
        check_sequence(delta, flips)
        self.delta, self.repeats = delta, repeats
        self._shared = delta
        if repeats is not None:
            flips = flips_of_repeats(*repeats, delta * _OF_REPEATS)
            self._shared = delta * (1 - _OF_REPEATS)
        self.flips = flips
        self._num_queries = problem.num_queries
        self._thresholds = [limit.threshold for limit in problem.limits]
        self._begun = 0

    def next_margin(self) -> float:
        """What g of the next candidate must be below 0 by, in units of quality."""
        return self._sequences(self._begun + 1)[0].margin if self.flips > 0 else 0.0

    def begin(self, k: int, generator: torch.Generator) -> _SequenceTest:
        """See `Certificate`."""
        self._begun = k
        order = torch.randperm(self._num_queries, generator=generator).tolist()
        return _SequenceTest(self._sequences(k), order)

    def _sequences(self, k: int) -> list[BettingSequence]:
        """Those of the k-th candidate, one for each constraint."""
        share = share_of_delta(k, self._shared, _LATER if self.flips > 0 else 1)
        flips = [self.flips, *[_ANY if self.flips > 0 else 0.0] * (len(self._thresholds) - 1)]
        return [
            BettingSequence(self._num_queries, threshold, share, p)
            for threshold, p in zip(self._thresholds, flips, strict=True)
        ]

    def settings(self) -> dict[str, Any]:
        """See `Certificate`."""
        of_repeats = {} if self.repeats is None else {"sequence_repeats": list(self.repeats)}
        return {"sequence_delta": self.delta, "sequence_flips": self.flips, **of_repeats}

    def report(self) -> dict[str, Any]:
        """See `Certificate`; with flips also the margin that the next candidate would need."""
        noise: dict[str, Any] = {}
        if self.flips > 0:
            noise = {"flips": self.flips, "next_margin": self.next_margin()}
        if self.repeats is not None:
            noise["repeats"] = list(self.repeats)
        return {"certificate": "sequence", "delta": self.delta, **noise}


class _SequenceTest:
    """The `Test` of one candidate."""

    def __init__(self, sequences: list[BettingSequence], order: list[int]) -> None:
        self._sequences = sequences
        self.margin = sequences[0].margin
        self.order: list[int] | None = order

    def update(self, grades: Sequence[float], upper_g: float) -> bool:  # noqa: ARG002
        """See `Test`."""
        pairs = zip(self._sequences, grades, strict=True)
        certified = [sequence.update(grade) for sequence, grade in pairs]  # each takes in its own
        return all(certified)


def certificate_of(
    problem: SelectionProblem,
    delta: float | None,
    flips: float | str,
    repeats: Sequence[int] | None,
    kind: str = "sequence",
    seed: int = 0,
    query_pool: int | None = None,
    known: Known | None = None,
) -> ByBounds | BySequence | ByPopulation:
    """The certificate of plain settings.

    Args:
        problem: What to search.
        delta: None for `ByBounds`; a number for `BySequence`, or for `ByPopulation`.
        flips: See `BySequence`; `auto`: made of `repeats`.
        repeats: See `BySequence`.
        kind: With a delta: `sequence` or `population`.
        seed: See `ByPopulation`.
        query_pool: Likewise.
        known: Observations of earlier searches, see `scope_torch.search.known`.

    Raises:
        InputError: If a value is outside its range, or only one of `auto` and `repeats` is given.
    """
    if kind == "population" and delta is not None:
        if flips != 0 or repeats is not None:
            raise InputError(
                f"certificate_flips={flips}, reference_repeats={repeats}: certificate=population "
                "holds however often answers flip; leave both out"
            )
        if known is not None:
            known.check_reference()
        num_others = 0 if known is None else known.num_others
        return ByPopulation(problem, delta, seed, query_pool, num_others)
    if query_pool is not None:
        raise InputError(
            f"query_pool={query_pool} needs certificate=population: other certificates are about "
            "all queries"
        )
    if (flips == "auto") != (repeats is not None):
        cost_usd = problem.num_queries * problem.reference_cost_usd
        raise InputError(
            f"certificate_flips={flips}, reference_repeats={repeats}: auto needs the repeats, and "
            "they need auto; ask the reference all queries a second time (about "
            f"{cost_usd:.3g} USD), and give [queries answered otherwise, queries asked twice]"
        )
    if isinstance(flips, str):
        flips = 0.0 if flips == "auto" else _number("certificate_flips", flips)
    check_sequence(delta, flips)
    if delta is None:
        return ByBounds()
    return BySequence(problem, delta, flips, None if repeats is None else _pair(repeats))


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InputError(f"{name}={value!r} must be a number, or auto") from None


def _pair(repeats: Sequence[int]) -> tuple[int, int]:
    if len(repeats) != 2:
        raise InputError(f"reference_repeats={list(repeats)} must be two whole numbers")
    return repeats[0], repeats[1]
