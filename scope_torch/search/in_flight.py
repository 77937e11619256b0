"""Algorithm 1 with many calls in flight: several candidates are open at once.

With real LLMs a search waits for calls nearly all of the time. Algorithm 1 needs the answer to one
call before it asks the next. Here a request is made although the answers to the last `lag` ones
are not known yet (`Pipelined`):

1. A candidate that is open asks its next query, in the order of its turn. Let P_i be the
   probability by the model that the open candidate i is feasible. It may have `GROWTH` P_i queries
   in flight for each answer. It may also have one for each answer, but no more than it still needs
   by the model to be given up or found feasible. In any case it may have `FIRST`, and not more at
   first: most candidates are given up after few answers.
2. If no open candidate may ask, the next one is chosen as in line alg:scope-main:select, among all
   that are not open: what would follow if those with P_i of at least `PROBABLE` were certified.
3. Neither is done where it is probably in vain: Algorithm 1 would not ask once a cheaper open
   candidate is certified. A configuration with mean cost c is asked only if c times the
   probability that one of them is feasible, 1 minus the product of 1 - P_i, is at most `IN_VAIN`
   times the least mean cost of them.

With one call in flight this is Algorithm 1 itself, and `SCOPE` runs.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from scope_torch.errors import InputError
from scope_torch.observation import Observation, Request
from scope_torch.search.optimizer import Steps
from scope_torch.search.parts import Minima
from scope_torch.search.pipeline import Pipelined
from scope_torch.search.scope import SCOPE
from scope_torch.search.stopping import GAP_CLOSED, NOTHING_FOUND, NOTHING_LEFT
from scope_torch.search.turn import Turn

FIRST = 2  # queries of a new candidate
GROWTH = 4  # times P_i: queries in flight for each answer of a candidate
IN_VAIN = 0.9  # expected waste of a call, for each USD that one of a cheaper open candidate costs
PROBABLE = 0.5  # P_i from which on the next candidate must be cheaper


class _Open:
    """An open candidate: its turn, and what of it is in flight.

    Attributes:
        mean_c: Mean of its cost in USD, at the last look.
        probability: P_i, that its g is at most -margin, likewise.
        needed: Further answers until its bounds on g leave out 0, if the mean stays; likewise.
    """

    def __init__(self, turn: Turn) -> None:
        self.turn, self._requests = turn, turn.batches(1)
        self.num_answered = self.num_asked = 0
        self.mean_c, self.probability, self.needed = math.inf, 0.0, 0.0

    @property
    def in_flight(self) -> int:
        return self.num_asked - self.num_answered

    @property
    def may_ask(self) -> bool:
        """Whether it may have one more query in flight; the last one of a pass ends that."""
        is_new_pass = self.num_asked % max(1, len(self.turn.trial.order)) == 0
        if self.turn.ended or (is_new_pass and self.in_flight):
            return False
        n = self.num_answered
        return self.in_flight < max(FIRST, GROWTH * self.probability * n, min(self.needed, n))

    def ask(self) -> Request | None:
        """Its next request; None if all is answered."""
        for (request,) in self._requests:
            self.num_asked += 1
            return request
        return None

    def look(self) -> None:
        """Brings `mean_c`, `probability` and `needed` up to date."""
        candidate, beta = self.turn.candidate, self.turn.beta()
        self.mean_c = candidate.mean_c
        mean = candidate.lower_g(beta._replace(g=0.0))
        sigma = (mean - candidate.lower_g(beta)) / beta.g
        self.needed = 0.0
        if sigma <= 0:
            self.probability = float(mean <= -self.turn.margin)
            return
        self.probability = math.erfc((mean + self.turn.margin) / (sigma * math.sqrt(2))) / 2
        n, Q = self.num_answered, len(self.turn.trial.order)
        if 0 < n < Q:  # the variance of an average of n of Q answers goes with 1 / n - 1 / Q
            variance = (mean / (beta.g * sigma)) ** 2 * (1 / n - 1 / Q)
            self.needed = 1 / (variance + 1 / Q) - n


class InFlight(SCOPE, Pipelined):
    """SCOPE with several candidates open at once; made by the makers with `in_flight` above 1.

    Args:
        problem: What to search.
        in_flight: Calls at a time that the search is made for, above 1.
        parts: See `SCOPE`.

    Raises:
        InputError: If a value is outside its range, or the bounds are those of a theorem: it is
            about one sequence of answers, and here each open candidate has its own.
    """

    def __init__(self, problem: Any, *, in_flight: int, **parts: Any) -> None:
        self._set_in_flight(in_flight, parts["batch_size"])
        if parts["belief"].bounds.mode == "theory":
            raise InputError(
                f"in_flight={in_flight}: the bounds of mode=theory hold for one call at a time; "
                "give in_flight=1, or batch_size"
            )
        self._open: list[_Open] = []
        self._asked_of: deque[_Open] = deque()
        self._i = 0
        self._is_stuck: str | None = None  # why no candidate can be chosen now
        self._ends: str | None = None  # why the search ends, once what is in flight has arrived
        self._waits_for: float | None = None  # mean cost in USD of one that is not asked yet
        self._probable: list[_Open] = []  # open ones with P_i >= PROBABLE, at the last choice
        super().__init__(problem, **parts)

    def _search(self) -> Steps:
        self.rules.begin(self)
        yield from self._calibrate()  # alg:scope-main:init0
        self._initialise()  # alg:scope-main:rules, alg:scope-main:init1
        while True:  # alg:scope-main:while
            request = self._next_request()
            if request is None and not self._asked_of:
                reason = self._ends or self._is_stuck
                assert reason is not None, "the cheapest open candidate may always ask"
                requests = self.rules.verify(reason, self._query_order)
                if requests is None:
                    return self._stop(reason)
                if requests:
                    self._trace("verifying")
                    yield from self._observe(requests)
                self.belief.refit()
                self._is_stuck = None
                continue
            for answer in (yield [] if request is None else [request]):
                self._take(answer)

    def _next_request(self) -> Request | None:
        while not self._ends:
            self._look()
            for one in self._open:
                if one.may_ask and (one.num_asked < FIRST or self._is_worth_it(one.mean_c, one)):
                    if (request := one.ask()) is not None:
                        self._asked_of.append(one)
                        return request
                    self._trace("completed", **one.turn.row())
                    self._end(one)  # others may be worth it now
                    break
            else:
                if not self._begin():
                    break
        return None

    def _look(self) -> None:
        for one in self._open:
            if not one.turn.ended:
                one.look()

    def _is_worth_it(self, mean_c: float, of: _Open | None = None) -> bool:
        """Whether to ask a configuration with this mean cost in USD is worth its expected waste.

        Args:
            mean_c: Of two that cost the same, the one that was opened first comes first.
            of: The configuration, if it is open.
        """
        infeasible, least_c, is_before = 1.0, mean_c, True
        for one in self._open:
            if one is of:
                is_before = False
            elif not one.turn.ended and (
                one.mean_c < mean_c or (is_before and one.mean_c == mean_c)
            ):
                infeasible *= 1 - one.probability
                least_c = min(least_c, one.mean_c)
        # The cheapest may always ask, also where 1 - quality has a mean below 0.
        return (1 - infeasible) * mean_c <= IN_VAIN * max(least_c, 0.0)

    def _begin(self) -> bool:
        """Opens the next candidate; returns whether it did."""
        probable = [one for one in self._open if one.probability >= PROBABLE and not one.turn.ended]
        if probable != self._probable:
            self._probable, self._is_stuck, self._waits_for = probable, None, None
        waits_for = self._waits_for
        if self._is_stuck or (waits_for is not None and not self._is_worth_it(waits_for)):
            return False
        self._waits_for = None
        self.belief.posterior.update()
        minima, theta = self._choose()  # alg:scope-main:select
        if theta is None:
            return False
        if not self.known.is_complete(theta) and not self._is_worth_asking(theta, minima):
            return False
        self._trace("selected", iteration=self._i, theta_cand=theta, num_queries=0)
        if reason := self.rules.selected(theta, self.u_out):
            self._is_stuck = reason
            self._ends = None if reason == GAP_CLOSED else reason
            return False
        turn = self.rules.turn(self._i, theta, self._query_order, self._generator)
        self._ends = self.rules.begun(turn)
        if self._ends:
            return False
        self._counts["candidates"] += 1
        turn.begin()
        self._open.append(one := _Open(turn))
        if turn.is_known:
            self._judge(turn)
        if turn.ended:
            self._end(one)
        return True

    def _is_worth_asking(self, theta: tuple[int, ...], minima: Minima) -> bool:
        """Whether its answers are expected to pay, and now."""
        candidate = self._candidate(theta)
        self._is_stuck = self.rules.pays(candidate, minima)
        if self._is_stuck:
            return False
        self._look()  # bounds may have been fitted or widened
        if not self._is_worth_it(candidate.mean_c):
            self._waits_for = candidate.mean_c
            return False
        return True

    def _choose(self) -> tuple[Minima, tuple[int, ...] | None]:
        """theta_cand among all that are not open; bounds are widened only if none is."""
        posterior, left = self.belief.posterior, self.rules.left
        if not self._open:
            minima = self._minima()
        else:
            posterior.restrict(left.without([one.turn.theta for one in self._open]))
            theta_out = self.problem.space.index_of(self._theta_out)
            u_out = min([self.u_out, *(one.mean_c for one in self._probable)])
            minima = self.rules.lower_bounds(u_out, theta_out)
        try:
            following = self._choice.next_iteration(self._i + 1, minima.least_g)
            if following is None:
                self._is_stuck = NOTHING_LEFT if minima.is_exact else NOTHING_FOUND
                return minima, None
            self._i = following
            return minima, self._select(following, minima)
        finally:
            if self._open:
                posterior.restrict(left)

    def _take(self, answer: Observation) -> None:
        """Takes in the answer to the oldest request: what the j-loop does with it."""
        one, u_out = self._asked_of.popleft(), self._u_out
        self._record(answer)
        one.num_answered += 1
        says_more = one.turn.update(answer)
        self._withdraw(one.turn)
        if says_more:
            self._judge(one.turn)
        if self._u_out != u_out:
            self._is_stuck = None
            for other in self._open:
                if other is not one and not other.turn.ended:
                    self._judge(other.turn)
        for other in [other for other in self._open if other.turn.ended and not other.in_flight]:
            self._end(other)

    def _end(self, one: _Open) -> None:
        """After the last answer of a candidate."""
        self._open.remove(one)
        self._is_stuck = None
        self._ends = self._ends or self.rules.ended(one.turn, self._theta_out)
        self.belief.posterior.update()
        self.rules.updated(one.turn, self._theta_out)

    def settings(self) -> dict[str, Any]:
        """See `Optimizer`."""
        return {**super().settings(), "in_flight": self.in_flight}
