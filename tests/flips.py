"""Answers that flip, shared by the tests of certificates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from scope_torch.observation import Observation, Request


class Flipped:
    """An evaluator's 0/1 answers, each of them the other way round with probability `flips`."""

    concurrency = 1

    def __init__(self, evaluator, flips: float, seed: int) -> None:
        self._evaluator, self._flips = evaluator, flips
        self._rng = np.random.default_rng([seed, 1])

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        for o in self._evaluator.evaluate(requests):
            yield replace(o, quality=abs(o.quality - (self._rng.random() < self._flips)))

    def fingerprint(self) -> str:
        return f"{self._evaluator.fingerprint()} flipped {self._flips}"


class Drawn:
    """An evaluator whose every answer is 0 or 1, drawn anew with the expectation given.

    Args:
        cost_usd: Sizes x queries.
        expected: Likewise, the expected qualities in [0, 1].
        seed: Decides the draws.
    """

    concurrency = 1

    def __init__(self, cost_usd: np.ndarray, expected: np.ndarray, seed: int) -> None:
        self._cost, self._expected = cost_usd, expected
        self._rng = np.random.default_rng([seed, 2])

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Observation]:
        for theta, query, replicate in requests:
            at = (*theta, query)
            right = float(self._rng.random() < self._expected[at])
            yield Observation(theta, query, float(self._cost[at]), right, replicate)

    def fingerprint(self) -> str:
        return "drawn"
