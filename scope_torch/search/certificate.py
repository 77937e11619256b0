"""When a candidate is certified to be feasible (line alg:scope-main:update)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scope_torch.bounds.betting import BettingSequence, check_delta, share_of_delta
from scope_torch.bounds.repeats import Repeats
from scope_torch.errors import InputError
from scope_torch.problem import SelectionProblem
from scope_torch.search.fresh import ByFreshAnswers
from scope_torch.search.known import Known
from scope_torch.search.population import ByPopulation


class ByBounds:
    """The paper's: certified if U_{g,t} <= 0 or U_{g,t-1} <= 0. It is its own `Test`."""

    order: list[int] | None = None
    margin = 0.0
    refuted = False
    by_answers = False

    def next_margin(self) -> float:
        """What g of the next candidate must be below 0 by: nothing."""
        return 0.0

    def begin(self, k: int, generator: torch.Generator) -> ByBounds:  # noqa: ARG002
        """See `Certificate`; every candidate has the same test."""
        return self

    def update(self, grades: Sequence[float], upper_g: float) -> bool:  # noqa: ARG002
        """See `Test`."""
        return upper_g <= 0

    def again(self) -> bool:
        """See `Test`: never."""
        return False

    def end(self) -> None:
        """See `Test`."""

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

    **Several constraints.** A candidate has a sequence for each, all with the whole share delta_k,
    and is certified once every one of them has certified. If a configuration is infeasible, some
    constraint does not hold, and to certify the configuration the sequence of that one must be
    wrong. So nothing is divided by K.

    The same call must always get the same answer. Where answers vary, see `ByFreshAnswers`.

    Args:
        problem: Gives Q and the thresholds.
        delta: Failure probability of all candidates together, in (0, 1).

    Raises:
        InputError: If a number is outside its range.
    """

    margin = 0.0
    by_answers = True

    def __init__(self, problem: SelectionProblem, delta: float) -> None:
        check_delta(delta)
        self.delta = delta
        self._num_queries = problem.num_queries
        self._thresholds = [limit.threshold for limit in problem.limits]

    def next_margin(self) -> float:
        """What g of the next candidate must be below 0 by: nothing."""
        return self.margin

    def begin(self, k: int, generator: torch.Generator) -> _SequenceTest:
        """See `Certificate`."""
        share = share_of_delta(k, self.delta)
        order = torch.randperm(self._num_queries, generator=generator).tolist()
        sequences = [BettingSequence(self._num_queries, s_0, share) for s_0 in self._thresholds]
        return _SequenceTest(sequences, order)

    def settings(self) -> dict[str, Any]:
        """See `Certificate`; `sequence_flips` stands in journals of all versions."""
        return {"sequence_delta": self.delta, "sequence_flips": 0.0}

    def report(self) -> dict[str, Any]:
        """See `Certificate`."""
        return {"certificate": "sequence", "delta": self.delta}


class _SequenceTest:
    """The `Test` of one candidate."""

    margin = 0.0

    def __init__(self, sequences: list[BettingSequence], order: list[int]) -> None:
        self._sequences = sequences
        self.order: list[int] | None = order

    def update(self, grades: Sequence[float], upper_g: float) -> bool:  # noqa: ARG002
        """See `Test`."""
        pairs = zip(self._sequences, grades, strict=True)
        certified = [sequence.update(grade) for sequence, grade in pairs]  # each takes in its own
        return all(certified)

    @property
    def refuted(self) -> bool:
        """See `Test`."""
        return any(sequence.refuted for sequence in self._sequences)

    def again(self) -> bool:
        """See `Test`: never."""
        return False

    def end(self) -> None:
        """See `Test`."""


def certificate_of(
    problem: SelectionProblem,
    delta: float | None,
    flips: float | Repeats,
    kind: str = "sequence",
    seed: int = 0,
    query_pool: int | None = None,
    known: Known | None = None,
) -> ByBounds | BySequence | ByFreshAnswers | ByPopulation:
    """The certificate of plain settings.

    Args:
        problem: What to search.
        delta: None for `ByBounds`; a number for the others.
        flips: See `flips_of`. With `sequence` 0 is `BySequence`, anything else `ByFreshAnswers`;
            the others do not ask.
        kind: With a delta: `sequence` or `population`.
        seed: See `ByPopulation`.
        query_pool: Likewise.
        known: Observations of earlier searches, see `scope_torch.search.known`.

    Raises:
        InputError: If a value is outside its range.
    """
    if kind == "population" and delta is not None:
        if known is not None:
            known.check_reference()
        num_others = 0 if known is None else known.num_others
        return ByPopulation(problem, delta, seed, query_pool, num_others)
    if query_pool is not None:
        raise InputError(
            f"query_pool={query_pool} needs certificate=population: other certificates are about "
            "all queries"
        )
    if delta is None:
        return ByBounds()
    return BySequence(problem, delta) if flips == 0 else ByFreshAnswers(problem, delta, flips)


def flips_of(
    flips: float | str | Repeats | None, reference_repeats: Sequence[int] | None
) -> float | Repeats:
    """How much answers vary, as users say it; 0 if the same call always gets the same answer.

    Args:
        flips: How often the same call gets another answer than usual, in [0, 1/2]; None for 0; what
            repeated answers showed; or `auto`, which makes that of `reference_repeats`.
        reference_repeats: How many queries the reference answered otherwise the second time, of how
            many it was asked twice.

    Raises:
        InputError: If a value is outside its range, or only one of `auto` and `reference_repeats`
            is given.

    Examples:
        >>> flips_of(None, None), flips_of(0.1, None), flips_of("auto", [3, 30]).rate
        (0.0, 0.1, 0.1)
    """
    if (flips == "auto") != (reference_repeats is not None):
        raise InputError(
            f"certificate_flips={flips}, reference_repeats={reference_repeats}: auto needs the "
            "repeats, and they need auto; ask the reference about 30 queries a second time, and "
            "give [queries answered otherwise, queries asked twice]"
        )
    if reference_repeats is not None:
        return _of_counts(reference_repeats)
    if isinstance(flips, Repeats):
        return flips
    try:
        number = float(flips or 0.0)
    except ValueError:
        raise InputError(f"certificate_flips={flips!r} must be a number, or auto") from None
    if not 0 <= number <= 0.5:
        raise InputError(f"certificate_flips={flips} must lie in [0, 1/2]")
    return number


def _of_counts(counts: Sequence[int]) -> Repeats:
    """Repeated answers of which only it is known how many changed."""
    is_pair = len(counts) == 2 and not any(number % 1 for number in counts)
    if not is_pair or not 0 <= counts[0] <= counts[1] or counts[1] < 1:
        raise InputError(
            f"reference_repeats={list(counts)} must be two whole numbers: how many queries were "
            "answered otherwise the second time, of how many answered twice"
        )
    changed, asked = int(counts[0]), int(counts[1])
    return Repeats((1.0,) * asked, (0.0,) * changed + (1.0,) * (asked - changed))
