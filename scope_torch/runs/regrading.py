"""Grades that a metric gives anew to kept outputs: what one has cost is on disk before the next."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from scope_torch.observation import Observation, Request
from scope_torch.runs.content import digest_of, json_of
from scope_torch.runs.evaluator import Evaluator, Regrades
from scope_torch.runs.journal import Journal

REGRADED = "regraded"  # a directory in that of a run


class Grades(ExitStack):
    """Asks a metric, as long as there is money; not again for what an earlier process has paid for.

    Use it in a `with` statement.

    Args:
        evaluator: Has the metric.
        left_usd: Grading may cost so many USD, and what crosses it.
        folder: Directory of a journal of all grades that cost money; None keeps none.
    """

    def __init__(self, evaluator: Evaluator, left_usd: float, folder: Path | None) -> None:
        super().__init__()
        self._evaluator, self._left_usd, self._folder = evaluator, left_usd, folder
        self._journal: Journal | None = None
        self._number = Counter[Request]()  # how often a pair was graded
        self._kept: dict[Request, Observation] = {}
        if folder is not None and folder.exists():
            self._open(folder)

    def of(self, new: Observation, output: Any) -> tuple[Observation | None, float]:
        """An answer with its grade, or None; and what that has cost in USD.

        Raises:
            Exception: What the metric raises; what that has cost is in the journal as lost.
        """
        if self._left_usd < 0 or not isinstance(self._evaluator, Regrades):
            return None, 0.0
        pair = Request(new.theta, new.query)
        request = pair._replace(replicate=self._number[pair])
        self._number[pair] += 1
        # A grade is that of this metric, for this output.
        mark = {digest_of(json_of([self._evaluator.fingerprint(), output])): 0.0}
        found = self._kept.get(request)
        if found is None or found.outcomes != mark:
            asked = Observation(*request[:2], 0.0, 0.0, request.replicate, outcomes=mark)
            found = self._asked(asked, new.request, output)
        self._left_usd -= found.judge_usd
        if found.failed is not None:
            return None, found.judge_usd
        return replace(new, quality=found.quality, judge_usd=found.judge_usd), found.judge_usd

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
        if asked.request not in self._kept:
            self._keep(graded)
        return graded

    def _keep(self, graded: Observation) -> None:
        if graded.judge_usd and self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._open(self._folder).append([graded])

    def _open(self, folder: Path) -> Journal:
        if self._journal is None:
            self._journal = Journal(folder / "journal.jsonl")
            self.callback(self._journal.close)
            self._kept = {one.request: one for one in self._journal.recorded}
        return self._journal
