"""When a candidate is certified although answers vary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from scope_torch.bounds.assumptions import flips_by
from scope_torch.bounds.betting import check_delta
from scope_torch.bounds.fresh import PASSES, FreshBet, Purse, excess, wins
from scope_torch.bounds.repeats import Repeats
from scope_torch.errors import InputError
from scope_torch.problem import SelectionProblem

_TOLD = 30  # repeated answers that a number given for the flips counts as
_LEAST = math.log(0.5)  # log K below which a bet is no longer worth another pass


class ByFreshAnswers:
    """By answers of the candidate from calls that were made after it was chosen.

    A candidate answers all queries once, in random order. If its average is above s_0 then, a bet
    is opened (`FreshBet`), and it answers all queries again, up to `PASSES` times, until the bet
    has won or has lost half of its stake. The chance that any candidate is certified whose
    expected average over the queries is below s_0 is at most delta, however answers vary: the first
    answers, for which it may have been chosen, only make forecasts. Candidates that are given up
    before their bet cost nothing of delta; see `Purse`.

    **Several constraints.** A candidate has a bet for each, with one stake, and is certified once
    all have won. What the worst left of the stake comes back. If a configuration is infeasible,
    the bet on a constraint that does not hold is the one that `Purse` speaks of. So nothing is
    divided by K.

    How much answers vary decides only what is worth trying: a candidate should promise to exceed
    s_0 by `next_margin`. The search starts from what it is told, and learns from repeated answers.

    Args:
        problem: Gives Q and the thresholds.
        delta: Failure probability of all candidates together, in (0, 1).
        flips: How often the same call gets another answer than usual, in (0, 1/2]; or what repeated
            answers of the reference showed.

    Raises:
        InputError: If a number is outside its range.
    """

    by_answers = True

    def __init__(self, problem: SelectionProblem, delta: float, flips: float | Repeats) -> None:
        check_delta(delta)
        self.delta, self.purse = delta, Purse(delta)
        self._repeats = flips if isinstance(flips, Repeats) else None
        if isinstance(flips, Repeats):
            # One more pair, of an answer that varies as much as any can: none seen is not none.
            self._pairs: float = flips.asked + 1
            self._sum = flips.variance * flips.asked + 0.25
        elif 0 < flips <= 0.5:
            self._pairs, self._sum = _TOLD, _TOLD * flips * (1 - flips)
        else:
            raise InputError(f"certificate_flips={flips} must lie in [0, 1/2]")
        self._told = self.variance
        self._num_queries = problem.num_queries
        self._thresholds = [limit.threshold for limit in problem.limits]
        self._tests: list[_FreshTest] = []  # not closed

    @property
    def variance(self) -> float:
        """Of a grade from call to call, averaged over queries, as far as is known."""
        return self._sum / self._pairs

    def learn(self, first: np.ndarray, second: np.ndarray) -> None:
        """Takes in two grades of a candidate on each query (`Q` each, float64)."""
        self._pairs += len(first)
        self._sum += float(((first - second) ** 2).sum()) / 2

    def next_margin(self) -> float:
        """What g of the next candidate must be below 0 by, in units of quality."""
        return excess(self._num_queries, self.purse.stake, self.variance)

    def begin(self, k: int, generator: torch.Generator) -> _FreshTest:  # noqa: ARG002
        """See `Certificate`; closes the bets of the candidates that have ended."""
        for test in self._tests:
            if test.ended:
                test.close()
        order = torch.randperm(self._num_queries, generator=generator).tolist()
        test = _FreshTest(self, self._thresholds, order, self.next_margin())
        self._tests = [*(test for test in self._tests if not test.ended), test]
        return test

    def settings(self) -> dict[str, Any]:
        """See `Certificate`."""
        of_repeats = {} if self._repeats is None else {"sequence_repeats": self._counts()}
        told = {"sequence_variance": self._told, "sequence_passes": PASSES}
        return {"sequence_delta": self.delta, **told, **of_repeats}

    def report(self) -> dict[str, Any]:
        """See `Certificate`; also the margin that the next candidate needs.

        `flips` is how often an answer is another than usual, if all queries vary alike.
        """
        of_repeats = {} if self._repeats is None else {"repeats": self._counts()}
        return {
            "certificate": "sequence",
            "delta": self.delta,
            "flips": flips_by(self.variance),
            "next_margin": self.next_margin(),
            **of_repeats,
        }

    def _counts(self) -> list[int]:
        assert self._repeats is not None
        return [self._repeats.changed, self._repeats.asked]


class _FreshTest:
    """The `Test` of one candidate; it is told the passes one after another, each in `order`."""

    def __init__(
        self,
        certificate: ByFreshAnswers,
        thresholds: Sequence[float],
        order: list[int],
        margin: float,
    ) -> None:
        self.order: list[int] | None = order
        self._wanted = margin
        self.refuted = False  # answers vary
        self._certificate, self._thresholds = certificate, thresholds
        self._num_queries = len(order)
        self._pass: list[Sequence[float]] = []
        self._first = np.zeros(0)  # `Q x K` grades of the first pass, once it has ended
        self._bets: list[FreshBet] = []
        self._stake, self._passes, self._certified = 0.0, 0, False
        self.ended = False

    def update(self, grades: Sequence[float], upper_g: float) -> bool:  # noqa: ARG002
        """See `Test`; a pass is settled when it is complete."""
        self._pass.append(grades)
        if len(self._pass) == self._num_queries:
            answers = np.array(self._pass, dtype=np.float64)
            self._pass = []
            if len(self._first):
                self._settle(answers)
            else:
                self._first = answers
        return self._certified

    def _settle(self, answers: np.ndarray) -> None:
        if self._passes == 0:
            self._certificate.learn(self._first[:, 0], answers[:, 0])
        self._passes += 1
        for bet, column in zip(self._bets, answers.T, strict=True):
            bet.settle(column)
        self._certified = self._certified or wins(self._stake, self._log_capital())

    @property
    def margin(self) -> float:
        """See `Test`: what it should promise, less what luck may have taken from its average."""
        answers = self._num_queries * (self._passes + 1)
        return max(0.0, self._wanted - math.sqrt(self._certificate.variance / answers))

    def _log_capital(self) -> float:
        return min(bet.log_capital for bet in self._bets)

    def again(self) -> bool:
        """See `Test`: while its bet may still be won."""
        if self._certified or self._passes == PASSES or not len(self._first):
            return False
        if not self._bets:
            if not (self._first.mean(0) > self._thresholds).all():
                return False
            self._stake = self._certificate.purse.take()
            self._bets = [
                FreshBet(s_0, self._first[:, i]) for i, s_0 in enumerate(self._thresholds)
            ]
        return self._log_capital() >= _LEAST

    def end(self) -> None:
        """See `Test`; its bet is closed when the next candidate begins."""
        self.ended = True

    def close(self) -> None:
        """Ends its bet."""
        if self._bets:
            is_complete = not self._pass
            left = self._log_capital() if is_complete else -math.inf
            self._certificate.purse.give_back(self._stake, left)
