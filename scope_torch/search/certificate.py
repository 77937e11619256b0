"""When a candidate is certified to be feasible (line alg:scope-main:update)."""

from __future__ import annotations

from typing import Any

import torch

from scope_torch.bounds.betting import BettingSequence, check_sequence, margin_at, share_of_delta
from scope_torch.problem import SelectionProblem


class ByBounds:
    """The paper's: certified if U_{g,t} <= 0 or U_{g,t-1} <= 0. It is its own `Test`."""

    order: list[int] | None = None

    def begin(self, k: int, generator: torch.Generator) -> ByBounds:  # noqa: ARG002
        """See `Certificate`; every candidate has the same test."""
        return self

    def update(self, quality: float, upper_g: float) -> bool:  # noqa: ARG002
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
    them certifies an infeasible configuration is at most delta: the k-th gets `share_of_delta`.

    Args:
        problem: Gives Q and s_0.
        delta: Failure probability of all candidates together, in (0, 1).
        flips: How often the same call gets another answer than usual, see
            `scope_torch.bounds.betting.margin`; 0: never.

    Raises:
        InputError: If a number is outside its range.
    """

    def __init__(self, problem: SelectionProblem, delta: float, flips: float = 0.0) -> None:
        check_sequence(delta, flips)
        self.delta, self.flips = delta, flips
        self._num_queries, self._s_0 = problem.num_queries, problem.s_0
        self._next = 1

    def margin(self) -> float:
        if self.flips == 0:
            return 0.0
        share = self.share(self._next)
        return margin_at(self._num_queries, self._s_0, share, self.flips)[0]

    def share(self, k: int) -> float:
        return share_of_delta(k, self.delta)

    def begin(self, k: int, generator: torch.Generator) -> _SequenceTest:
        """See `Certificate`."""
        share = self.share(k)
        self._next = k + 1
        order = torch.randperm(self._num_queries, generator=generator).tolist()
        sequence = BettingSequence(self._num_queries, self._s_0, share, self.flips)
        return _SequenceTest(sequence, order)

    def settings(self) -> dict[str, Any]:
        """See `Certificate`."""
        return {"sequence_delta": self.delta, "sequence_flips": self.flips}

    def report(self) -> dict[str, Any]:
        """See `Certificate`."""
        return {"certificate": "sequence", "delta": self.delta}


class _SequenceTest:
    """The `Test` of one candidate."""

    def __init__(self, sequence: BettingSequence, order: list[int]) -> None:
        self._sequence = sequence
        self.margin = sequence.margin
        self.order: list[int] | None = order

    def update(self, quality: float, upper_g: float) -> bool:  # noqa: ARG002
        """See `Test`."""
        return self._sequence.update(quality)
