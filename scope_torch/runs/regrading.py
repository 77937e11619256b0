"""Grades that a metric gives anew to kept outputs: what one has cost is on disk before the next."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from scope_torch.observation import Observation, Request
from scope_torch.runs.content import digest_of, json_of
from scope_torch.runs.evaluator import Evaluator, Regrades
from scope_torch.runs.journal import Journal

REGRADED = "regraded"  # a directory in that of a run
_Pair = tuple[tuple[int, ...], int]


class Grades(ExitStack):
    """Asks a metric, as long as there is money; not again for what an earlier process has paid for.

    Use it in a `with` statement.

    Args:
        evaluator: Has the metric.
        left_usd: Grading may cost so many USD, and what crosses it. What earlier processes have
            paid for grades is among them, also for those of a metric that was mended since.
        folder: Directory of a journal of all grades that cost money; None keeps none.
    """

    def __init__(self, evaluator: Evaluator, left_usd: float, folder: Path | None) -> None:
        super().__init__()
        self._evaluator, self._left_usd, self._folder = evaluator, left_usd, folder
        self._journal: Journal | None = None
        # Grades by pair and mark that no answer has got yet, the first ones first.
        self._kept = defaultdict[tuple[_Pair, str], list[Observation]](list)
        self._next = Counter[_Pair]()  # the replicate of the next grade of a pair
        if folder is not None and folder.exists():
            self._open(folder)

    def of(self, new: Observation, output: Any) -> tuple[Observation | None, float]:
        """An answer with its grade, or None; and what that has cost in USD.

        Raises:
            Exception: What the metric raises; what that has cost is in the journal as lost.
        """
        if not isinstance(self._evaluator, Regrades):
            return None, 0.0
        pair = new.theta, new.query
        # A grade is that of this metric, for this output.
        mark = digest_of(json_of([self._evaluator.fingerprint(), output]))
        if kept := self._kept[pair, mark]:
            found = kept.pop(0)
        elif self._left_usd < 0:
            return None, 0.0
        else:
            asked = Observation(*pair, 0.0, 0.0, self._next[pair], outcomes={mark: 0.0})
            found = self._asked(asked, new.request, output)
            self._left_usd -= found.judge_usd
        if found.failed is not None:
            return None, found.judge_usd
        return replace(new, quality=found.quality, judge_usd=found.judge_usd), found.judge_usd

    @property
    def superseded_usd(self) -> float:
        """USD of kept grades that no answer has got: another metric has given them."""
        return math.fsum(one.judge_usd for kept in self._kept.values() for one in kept)

    def _asked(self, asked: Observation, request: Request, output: Any) -> Observation:
        assert isinstance(self._evaluator, Regrades)
        try:
            grade, usd = self._evaluator.regraded(request, output)
        except BaseException as error:
            usd = getattr(error, "cost_usd", 0.0)
            self._keep(replace(asked, judge_usd=usd, failed="metric", lost=0))
            raise
        failed = "metric" if grade is None else None
        graded = replace(asked, quality=grade or 0.0, judge_usd=usd, failed=failed)
        self._keep(graded)
        self._next[graded.theta, graded.query] += 1
        return graded

    def _keep(self, graded: Observation) -> None:
        if graded.judge_usd and self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._open(self._folder).append([graded])

    def _open(self, folder: Path) -> Journal:
        if self._journal is None:
            self._journal = Journal(folder / "journal.jsonl")
            self.callback(self._journal.close)
            for one in self._journal.recorded:
                pair, (mark,) = (one.theta, one.query), one.outcomes or ("",)
                self._kept[pair, mark].append(one)
                self._next[pair] = max(self._next[pair], one.replicate + 1)
                self._left_usd -= one.judge_usd
        return self._journal
