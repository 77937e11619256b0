"""What a search does beyond Algorithm 1: earlier answers, grids with holes, and when to stop.

| rule | what it adds | |
| --- | --- | --- |
| `known` | answers of earlier searches | `known.py` |
| `certificate` | the test of a candidate; may follow the search | `certificate.py` |
| `holes` | leaves out what nothing more can be found out about, and LLMs that fail | `holes.py` |
| `stopping` | skips iterations; the gap; free candidates; costs of own answers | `stopping.py` |
| `payoff` | ends a search that no longer pays | `payoff.py` |
| `verification` | asks what would refute the model that wants to stop | `verify.py` |
| `own` | rules of one's own | `Rule` |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from scope_torch.allowed import Allowed
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.belief import Belief
from scope_torch.search.calibrate import InitialPool
from scope_torch.search.holes import Holes
from scope_torch.search.known import Known
from scope_torch.search.optimizer import Recommendation
from scope_torch.search.parts import Candidate, Certificate, FollowsSearch, Minima, Payoff
from scope_torch.search.stopping import (
    FREE_CANDIDATE,
    GAP_CLOSED,
    NO_LONGER_PAYS,
    NOTHING_FOUND,
    NOTHING_LEFT,
    Stopping,
)
from scope_torch.search.turn import Turn
from scope_torch.search.verify import Verification

Theta = tuple[int, ...]
_UNTRIED = "no candidate pays much, and the model is untried"
_OF_MODEL = (_UNTRIED, NOTHING_LEFT, NOTHING_FOUND, GAP_CLOSED)  # what only the model says


class Search(Protocol):
    """What a rule may look at: SCOPE, between two events."""

    problem: SelectionProblem
    belief: Belief
    t: int
    spend_usd: float

    @property
    def u_out(self) -> float:
        """U_out in USD; defined from the first candidate on."""
        ...

    def recommend(self) -> Recommendation:
        """theta_out."""
        ...


class Rule:
    """Something beside Algorithm 1 that is told of its events; a rule overrides what it needs.

    An event that returns a text ends the search, and the text is its `stop_reason`. What a rule
    returns may depend on what it was told and on what it sees of the search, and on nothing else:
    a run resumes by replaying its journal.

    Examples:
        >>> class AtMost(Rule):
        ...     def __init__(self, most):
        ...         self._most = most
        ...     def begin(self, search):
        ...         self._number = 0
        ...     def ended(self, turn):
        ...         self._number += 1
        ...         return "enough candidates" if self._number == self._most else None
        ...     def settings(self):
        ...         return {"most": self._most}
        >>> from scope_torch import make_scope, run
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> task = synthetic_task()
        >>> search = make_scope(task.problem, base="small", rules=[AtMost(2)])
        >>> run(task.problem, search, task.evaluator, budget_usd=9.0).stop_reason
        'enough candidates'
    """

    def begin(self, search: Search) -> None:
        """Before the first request."""

    def learn(self, observation: Observation) -> None:
        """Every observation, in the order asked; those of earlier searches come first."""

    def selected(self, theta: Theta) -> str | None:
        """theta_cand (codes) was selected, and nothing is asked of it yet."""

    def begun(self, turn: Turn) -> str | None:
        """Before the first query of theta_cand."""

    def ended(self, turn: Turn) -> str | None:
        """After the last query of theta_cand; `recommend` of the search says what became of it."""

    def settings(self) -> dict[str, Any]:
        """The arguments, JSON-serialisable: a run with others is another run."""
        return {}

    def report(self) -> dict[str, Any]:
        """What belongs into a result, JSON-serialisable."""
        return {}


class Rules:
    """All rules of one search, asked in a fixed order at the events of Algorithm 1."""

    def __init__(
        self,
        problem: SelectionProblem,
        belief: Belief,
        certificate: Certificate,
        stopping: Stopping,
        payoff: Payoff | None = None,
        known: Known | None = None,
        own: Sequence[Rule] = (),
        verification: Verification | None = None,
        calibration_queries: int | None = None,
    ) -> None:
        self._problem, self._belief, self._payoff = problem, belief, payoff
        self._verification, self._calibration_queries = verification, calibration_queries
        self.certificate, self.stopping = certificate, stopping
        self.known = Known(problem) if known is None else known
        self._holes = Holes(problem, belief.posterior)
        self._follows = certificate if isinstance(certificate, FollowsSearch) else None
        self._query_pool = None if self._follows is None else self._follows.query_pool
        self.ends_certified = self._query_pool is not None
        self._own = list(own)
        self._refuted: set[Theta] = set()
        self._tied: dict[Theta, float] = {}  # their L_c in USD
        self._asked = math.inf, 0  # u_out and theta_out of the last minima
        self._turns = 0

    def begin(self, search: Search) -> None:
        """Before the first request."""
        for rule in self._own:
            rule.begin(search)

    def start(
        self, seed: int, pool: list[Theta], order: list[int], generator: torch.Generator
    ) -> tuple[list[Theta], list[int], int | None]:
        """Before Calibrate: its pool, the query order, and how many of the queries it looks at."""
        known = self.known
        for observation in (*known.observations, *known.reference):
            self._take_in(observation, is_earlier=True)
        if not known.observations:
            return pool, order, self._query_pool
        generator.manual_seed(known.order_seed(seed))
        order = known.most_answered(pool, order)
        pool, num_queries = known.pool(pool, self._query_pool)
        return pool, order, num_queries

    def learn(self, observation: Observation) -> None:
        """Every observation of this search."""
        if self._verification is not None:
            self._verification.record(observation)
        self._take_in(observation)

    def _take_in(self, observation: Observation, is_earlier: bool = False) -> None:
        self.stopping.record(observation)
        self._holes.record(observation, is_earlier)
        if self._follows is not None:
            self._follows.record(observation)
        self._belief.learn(observation)
        for rule in self._own:
            rule.learn(observation)

    @property
    def left(self) -> Allowed:
        """What may be chosen still."""
        return self._holes.left

    @property
    def calibrated_enough(self) -> tuple[int, float] | None:
        """See `enough` of `calibrate`: half of s_0, on average, is right often enough."""
        number = self._calibration_queries
        return None if number is None else (number, self._problem.s_0 / 2)

    def redraw(
        self, pool: list[Theta], initial: InitialPool, generator: torch.Generator
    ) -> list[Theta]:
        """Another pool for Calibrate, if every member of this one uses an LLM that fails."""
        if not all(map(self.is_dropped, pool)):
            return []
        return initial.draw(self._problem.space, generator, self._holes.left)

    def calibrated(self) -> None:
        """After Calibrate."""
        self._holes.begin(self.certificate)

    def lower_bounds(self, u_out: float, theta_out: int) -> Minima:
        """Minima over what can improve on theta_out."""
        self._asked = u_out, theta_out
        return self._belief.lower_bounds(*self.stopping.improvable(u_out, theta_out))

    def selected(self, theta: Theta, u_out: float) -> str | None:
        """theta_cand was selected; returns why the search ends, if it does."""
        if self.stopping.is_closed(u_out):
            self._turns += 1  # the search may go on, and the trace has the candidate
            return GAP_CLOSED
        return _first(rule.selected(theta) for rule in self._own)

    def turn(self, i: int, theta: Theta, order: Sequence[int], generator: torch.Generator) -> Turn:
        """The turn of theta_cand."""
        if self._follows is not None:
            self._follows.select(theta)
        self._turns += 1
        test = self.certificate.begin(self._turns, generator)
        trial = self.known.trial(theta, test, order)
        turn = Turn(i, theta, trial, self._belief, self._problem)
        num_observed = self._belief.surrogate.num_observed(theta)
        turn.is_repeat = self._holes.is_all(theta, num_observed)
        return turn

    def pays(self, candidate: Candidate, minima: Minima) -> str | None:
        """Before theta_cand is asked anything; returns why it is not worth that."""
        if self._verification and self._verification.is_due(candidate, minima):
            return _UNTRIED
        if self._payoff and not self._payoff.goes_on(candidate, minima):
            return NO_LONGER_PAYS
        return None

    def begun(self, turn: Turn, minima: Minima | None = None) -> str | None:
        """Before its first query; without `minima` it is known to pay."""
        if minima and not turn.is_known:
            if self._own:  # what they have looked at since may be what the minima are made of
                minima = self.lower_bounds(*self._asked)
            if reason := self.pays(turn.candidate, minima):
                return reason
        return _first(rule.begun(turn) for rule in self._own)

    def verify(self, reason: str, order: Sequence[int]) -> list[Request] | None:
        """What to ask where the model says that nothing pays; None if the search ends."""
        if self._verification is None or reason not in _OF_MODEL:
            return None
        requests = self._verification.requests(order, self._holes.left)
        return requests or ([] if reason == _UNTRIED else None)

    def is_tied(self, turn: Turn, u_out: float, theta_out: Theta) -> bool:
        """Whether theta_cand costs what theta_out does, call by call; it is noted."""
        lower_c = turn.candidate.lower_c(turn.beta())
        if self._vary or not self.stopping.is_tied(turn.theta, theta_out, lower_c, u_out):
            return False
        self._tied[turn.theta] = lower_c
        return True

    def is_dropped(self, theta: Theta) -> bool:
        """Whether it uses an LLM whose calls keep failing."""
        return self._holes.is_dropped(theta)

    def answered(self, turn: Turn) -> None:
        """theta_cand has an answer more."""
        if turn.trial.refuted:
            self._refuted.add(turn.theta)

    def is_wrong(self, theta: Theta) -> bool:
        """Whether its own answers say that it is infeasible, or that theta_0 is no dearer."""
        return theta in self._refuted or self.stopping.is_dearer(theta)

    def is_beaten(self, theta: Theta, theta_out: Theta) -> bool:
        """Whether its own answers say that theta_0 or theta_out is no dearer."""
        if self.stopping.is_dearer(theta):
            return True
        return not self._vary and self.stopping.is_beaten(theta, theta_out)

    @property
    def _vary(self) -> bool:
        """Whether answers vary; the theorem's have noise, so their averages are not known."""
        return self.known.answers_vary or self._belief.bounds.mode == "theory"

    def replaced(self, lower_c: Callable[[], float]) -> None:
        """theta_out is replaced; `lower_c` gives its L_c in USD."""
        if self.stopping.skips:
            self.stopping.replaced(lower_c())

    def ended(self, turn: Turn, theta_out: Theta) -> str | None:
        """After its last query."""
        turn.trial.end()
        is_free = turn.is_repeat and self.stopping.is_free(turn.theta)
        if is_free or (turn.theta == theta_out and self.stopping.is_least(theta_out)):
            return FREE_CANDIDATE
        return _first(rule.ended(turn) for rule in self._own)

    def updated(self, turn: Turn, theta_out: Theta) -> None:
        """The averages on Theta know of the turn."""
        theta = turn.theta
        num_observed = self._belief.surrogate.num_observed(theta)
        self._holes.observed(theta, num_observed)
        if self._holes.is_all(theta, num_observed) and self.is_beaten(theta, theta_out):
            self._holes.leave_out([theta])
        elif theta in self._tied:
            self.stopping.left_out(self._tied[theta])
            self._holes.leave_out([theta])
        if self.stopping.skips and self._holes.is_repeated(theta):
            self._leave_out(theta, turn.row())

    def _leave_out(self, theta: Theta, bounds: Mapping[str, Any]) -> None:
        """Leaves out a candidate that was answered often, if its bounds are narrow."""
        if self._holes.is_narrow(bounds):
            if bounds["lower_g"] <= 0:  # it may be theta_star
                self.stopping.left_out(bounds["lower_c_usd"])
            self._holes.leave_out([theta])

    def settings(self) -> dict[str, Any]:
        """Of certificate, earlier answers and rules of one's own."""
        own = [{"rule": type(rule).__name__, **rule.settings()} for rule in self._own]
        of_own: dict[str, Any] = {"rules": own} if own else {}
        if self.stopping.least_u_out < 0:
            of_own["u_out_floor"] = False
        if self._calibration_queries is not None:
            of_own["calibration_queries"] = self._calibration_queries
        for part in (self._payoff, self._verification):
            of_own |= {} if part is None else part.settings()
        return {**self.certificate.settings(), **self.known.settings(), **of_own}

    def report(self) -> dict[str, Any]:
        """Of certificate and payoff, and the LLMs that are dropped."""
        report = {**self._holes.failing.report(), **self.certificate.report()}
        if self.known.answers_vary and "flips" not in report:
            report["answers_vary"] = True
        parts = [part for part in (self._payoff, self._verification) if part is not None]
        for part in parts:
            report |= part.report()
        return report

    def report_of_own(self) -> dict[str, Any]:
        """Of rules of one's own, whose keys must not hide others, such as `delta`."""
        return dict(pair for rule in self._own for pair in rule.report().items())


def _first(reasons: Iterable[str | None]) -> str | None:
    """The first reason to end the search; every rule is asked."""
    return next(filter(None, list(reasons)), None)
