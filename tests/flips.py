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
