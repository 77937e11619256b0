"""Asks two configurations for one query after another, in a given order."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from scope_torch.evaluators.function import FunctionEvaluator
from scope_torch.evaluators.retired import retired_in
from scope_torch.files import inside
from scope_torch.observation import Observation, Request
from scope_torch.results.bill import regraded_usd
from scope_torch.results.checked import Pair
from scope_torch.runs.deadline import TIME_IS_OVER
from scope_torch.runs.journal import lost_in
from scope_torch.runs.older import KNOWN
from scope_torch.runs.opening import describe_prices, open_run_dir
from scope_torch.runs.regrading import REGRADED
from scope_torch.runs.runner import problem_settings
from scope_torch.runs.source import ObservationSource
from scope_torch.selection.before import known_of, logged_reference
from scope_torch.selection.setup import Setup
from scope_torch.tracking.heard import HEARD


@dataclass(frozen=True)
class Asked:
    """What was asked.

    Args:
        pairs: In the order of the draws.
        why_it_ended: `decided`, `budget`, `time limit`, `retired` or `no more draws`.
        paid: All observations that were paid for, also those in flight at the end.
        lost_usd: Paid for calls that gave no observation, and for grading old ones anew, in USD.
        num_known: Answers that were known and not asked again.
    """

    pairs: Sequence[Pair]
    why_it_ended: str
    paid: Sequence[Observation]
    lost_usd: float
    num_known: int


@dataclass
class _Begun:
    """A pair that is asked; `waits` for the reference's answer."""

    new: Observation | None
    reference: Observation | None
    waits: bool = False

    @property
    def is_complete(self) -> bool:
        return self.new is not None and not self.waits


class Pairs:
    """A configuration and, if asked for, theta_0 on the same queries.

    Args:
        setup: Of a selection between the two.
        theta: Codes of the configuration.
        evaluator: Makes the observations.
        draws: The queries, in the order in which they are drawn.
        has_reference: Whether theta_0 answers too.
        is_fixed: Whether answers do not change: every known one then counts, as often as it is
            drawn. Otherwise a known answer of theta_0 counts once, and none of the configuration: a
            search chooses those that had lucky answers.

    Attributes:
        graded_usd: What grading known answers anew has cost, also when the directory was begun, and
            where the metric raised.
    """

    def __init__(
        self,
        setup: Setup,
        theta: tuple[int, ...],
        evaluator: FunctionEvaluator,
        draws: Iterator[int],
        has_reference: bool,
        is_fixed: bool,
    ) -> None:
        self._setup, self._theta, self._evaluator = setup, theta, evaluator
        self._draws, self._has_reference, self._is_fixed = draws, has_reference, is_fixed
        self._begun = deque[_Begun]()  # pairs that are not complete, in the order of the draws
        self._pairs, self._num_known, self._is_decided = list[Pair](), 0, False
        known = known_of(setup, evaluator, counts=self._counted())
        evaluator.paid(known.observations)
        lost = [] if setup.folder is None else lost_in(inside(setup.folder, REGRADED))
        lost_usd = math.fsum(one.paid_usd for one in lost)
        self.graded_usd = regraded_usd(known.sources) + lost_usd
        self._known = {one.request: one for one in known.observations if not one.replicate}
        self._is_chosen = theta in known.tried
        self._logged = {one.query: one for one in logged_reference(setup)}

    def _counted(self) -> set[tuple[int, ...]]:
        """Whose known answers may count; see `forget_chosen`."""
        counted = {self._setup.problem.theta_ref} if self._has_reference else set()
        if self._is_fixed:
            return {*counted, self._theta}
        folder = self._setup.folder
        if folder is not None and (folder / KNOWN).exists():  # then they have their grades
            return counted
        is_chosen = self._theta in known_of(self._setup, self._evaluator, keeps=False).tried
        return set() if is_chosen else counted

    def forget_chosen(self) -> bool:
        """Leaves out all known answers if a search has tried the configuration; returns whether.

        A search has then chosen it by these answers, also by theta_0's: where that was unlucky, a
        configuration that is too poor passes the search, and would pass here for the same reason.
        """
        self._known = {} if self._is_chosen else self._known
        return self._is_chosen

    def ask(
        self,
        settings: Mapping[str, Any],
        decides: Callable[[Sequence[Pair]], bool],
        most: int,
        budget_usd: float,
        total_usd: float | None = None,
        for_days: bool = False,
    ) -> Asked:
        """Asks until it is decided, or money, time or draws run out.

        What is decided depends on the order of the draws, not on how many calls are in flight.

        Args:
            settings: What decides what is asked, JSON-serialisable.
            decides: Whether these pairs decide; asked after each pair.
            most: Number of draws, for the progress bar.
            budget_usd: In USD.
            total_usd: The budget that the directory keeps, which may rise; None: `budget_usd`.
            for_days: Whether prices may change, and an LLM that is retired is an end like others.
        """
        setup, evaluator = self._setup, self._evaluator
        in_flight, self._decides = setup.at_a_time.get("in_flight", 1), decides
        journal = None
        if setup.folder is not None:
            kept_usd = budget_usd if total_usd is None else total_usd
            whole = self._settings({**settings, "in_flight": in_flight}, kept_usd)
            journal = open_run_dir(setup.folder, whole, evaluator)
            evaluator.remember(journal.recorded)
        source = ObservationSource(evaluator, journal, deadline=setup.deadline)
        spent_usd, num_told, reason = 0.0, 0, "no more draws"
        shown = tqdm(total=most, desc=str(settings["name"]), disable=not setup.shows, file=HEARD)

        def left_usd() -> float:
            return budget_usd - self.graded_usd - spent_usd - source.lost_usd(num_told)

        try:
            if setup.folder is not None:
                describe_prices(setup.folder, evaluator, may_change=for_days)
            is_paid_for = left_usd() >= 0  # what was graded anew may have taken the budget
            # What is known still counts.
            ask = self._ask if is_paid_for else lambda: self._ask() and ()
            reason = reason if is_paid_for else "budget"
            observations = source.pipeline(ask, 2 * in_flight - 1, left_usd)
            with contextlib.closing(observations), shown:
                for observation in observations:
                    spent_usd += observation.paid_usd
                    num_told += 1
                    self._tell(observation)
                    shown.update(len(self._pairs) - shown.n)
                    if self._is_decided:
                        break
                    if left_usd() < 0:
                        reason = "budget"
                        break
                    if source.is_late:
                        reason = TIME_IS_OVER
                        break
            reason = TIME_IS_OVER if source.is_cut else reason
        except Exception as error:
            if not (for_days and retired_in(error)):
                raise
            reason = "retired"
        finally:
            if journal is not None:
                journal.close()
        reason = "decided" if self._is_decided else reason
        lost_usd = math.fsum(one.paid_usd for one in source.lost) + self.graded_usd
        return Asked(self._pairs, reason, source.paid, lost_usd, self._num_known)

    def _ask(self) -> Sequence[Request]:
        """What the next pair needs; none if it is decided, or there are no more draws."""
        theta_ref = self._setup.problem.theta_ref
        for query in () if self._is_decided else self._draws:
            pair = _Begun(self._answer(self._theta, query), None)
            wanted = [] if pair.new else [Request(self._theta, query)]
            if self._has_reference:
                pair.reference = self._logged.get(query) or self._answer(theta_ref, query)
                if pair.reference is None:
                    wanted.insert(0, Request(theta_ref, query))
                    pair.waits = True
            self._begun.append(pair)
            if wanted:
                return wanted
            self._settle()
            if self._is_decided:
                break
        return ()

    def _answer(self, theta: tuple[int, ...], query: int) -> Observation | None:
        """A known answer that may count here."""
        if not self._is_fixed and theta == self._theta:
            return None
        known = self._known.get(key := Request(theta, query))
        if known is not None:
            self._num_known += 1
            if not self._is_fixed:
                del self._known[key]
        return known

    def _tell(self, observation: Observation) -> None:
        pair = next(one for one in self._begun if not one.is_complete)
        if pair.waits:
            pair.reference, pair.waits = observation, False
        else:
            pair.new = observation
        self._settle()

    def _settle(self) -> None:
        """Looks at the pairs that are complete, one after another."""
        while not self._is_decided and self._begun and self._begun[0].is_complete:
            new, reference = (pair := self._begun.popleft()).new, pair.reference
            assert new is not None
            self._pairs.append(Pair(new, reference))
            self._is_decided = self._decides(self._pairs)

    def _settings(self, of_test: Mapping[str, Any], budget_usd: float) -> dict[str, Any]:
        """Everything that decides what is asked."""
        setup = self._setup
        both = {"configuration": list(self._theta), "seed": setup.seed}
        return {
            "problem": problem_settings(setup.problem),
            "optimizer": {**of_test, **both},
            "evaluator": self._evaluator.fingerprint(),
            "budget_usd": budget_usd,
        }
