"""What a search does beyond Algorithm 1: earlier answers, grids with holes, and when to stop.

| rule | what it adds | |
| --- | --- | --- |
| `known` | answers of earlier searches | `known.py` |
| `certificate` | the test of a candidate; may follow the search | `certificate.py` |
| `holes` | leaves out what nothing more can be found out about, and LLMs that fail | `holes.py` |
| `stopping` | skips iterations; the gap; free candidates; costs of own answers | `stopping.py` |
| `payoff` | ends a search that no longer pays | `payoff.py` |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from scope_torch.allowed import Allowed
from scope_torch.observation import Observation
from scope_torch.problem import SelectionProblem
from scope_torch.search.belief import Belief
from scope_torch.search.holes import Holes
from scope_torch.search.known import Known
from scope_torch.search.parts import Certificate, FollowsSearch, Minima, Payoff
from scope_torch.search.stopping import FREE_CANDIDATE, GAP_CLOSED, NO_LONGER_PAYS, Stopping
from scope_torch.search.turn import Turn

Theta = tuple[int, ...]


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
    ) -> None:
        self._problem, self._belief, self._payoff = problem, belief, payoff
        self.certificate, self.stopping = certificate, stopping
        self.known = Known(problem) if known is None else known
        self._holes = Holes(problem, belief.posterior)
        self._follows = certificate if isinstance(certificate, FollowsSearch) else None
        self._query_pool = None if self._follows is None else self._follows.query_pool
        self.ends_certified = self._query_pool is not None
        self._turns = 0

    def start(
        self, seed: int, pool: list[Theta], order: list[int], generator: torch.Generator
    ) -> tuple[list[Theta], list[int], int | None]:
        """Before Calibrate: its pool, the query order, and how many of the queries it looks at."""
        known = self.known
        for observation in (*known.observations, *known.reference):
            self.learn(observation)
        if not known.observations:
            return pool, order, self._query_pool
        generator.manual_seed(known.order_seed(seed))
        order = known.most_answered(pool, order)
        pool, num_queries = known.pool(pool, self._query_pool)
        return pool, order, num_queries

    def learn(self, observation: Observation) -> None:
        """Every observation."""
        self.stopping.record(observation)
        self._holes.record(observation)
        if self._follows is not None:
            self._follows.record(observation)
        self._belief.learn(observation)

    def calibrated(self) -> None:
        """After Calibrate."""
        self._holes.begin(self.certificate)

    def lower_bounds(self, u_out: float, theta_out: int) -> Minima:
        """Minima over what can improve on theta_out."""
        return self._belief.lower_bounds(*self.stopping.improvable(u_out, theta_out))

    def selected(self, theta: Theta, u_out: float) -> str | None:
        """theta_cand was selected; returns why the search ends, if it does."""
        if self.stopping.is_closed(u_out):
            return GAP_CLOSED
        num_observed = self._belief.surrogate.num_observed(theta)
        self._all_seen = self._holes.is_all(theta, num_observed)
        return None

    def turn(self, i: int, theta: Theta, order: Sequence[int], generator: torch.Generator) -> Turn:
        """The turn of theta_cand."""
        if self._follows is not None:
            self._follows.select(theta)
        self._turns += 1
        test = self.certificate.begin(self._turns, generator)
        trial = self.known.trial(theta, test, order)
        return Turn(i, theta, trial, self._belief, self._problem)

    def begun(self, turn: Turn, minima: Minima) -> str | None:
        """Before its first query."""
        if self._payoff is None or turn.is_known:
            return None
        return None if self._payoff.goes_on(turn.candidate, minima) else NO_LONGER_PAYS

    @property
    def left(self) -> Allowed:
        """What may be chosen still."""
        return self._holes.left

    def is_dropped(self, theta: Theta) -> bool:
        """Whether it uses an LLM whose calls keep failing."""
        return self._holes.is_dropped(theta)

    def is_dearer(self, theta: Theta) -> bool:
        """Whether its own answers say that theta_0 is no dearer."""
        return self.stopping.is_dearer(theta)

    def replaced(self, lower_c: Callable[[], float]) -> None:
        """theta_out is replaced; `lower_c` gives its L_c in USD."""
        if self.stopping.skips:
            self.stopping.replaced(lower_c())

    def ended(self, turn: Turn) -> str | None:
        """After its last query."""
        return FREE_CANDIDATE if self._all_seen and self.stopping.is_free(turn.theta) else None

    def updated(self, turn: Turn, theta_out: Theta) -> None:
        """The averages on Theta know of the turn."""
        theta = turn.theta
        num_observed = self._belief.surrogate.num_observed(theta)
        self._holes.observed(theta, num_observed)
        if self._holes.is_all(theta, num_observed) and self.stopping.is_dearer(theta):
            self._holes.leave_out([theta])  # it cannot be better than theta_0
        if self.stopping.skips and theta != theta_out and self._holes.is_repeated(theta):
            self._leave_out(theta, turn.row())

    def _leave_out(self, theta: Theta, bounds: Mapping[str, Any]) -> None:
        """Leaves out a candidate that was answered often, if its bounds are narrow."""
        if self._holes.is_narrow(bounds):
            if bounds["lower_g"] <= 0:  # it may be theta_star
                self.stopping.left_out(bounds["lower_c_usd"])
            self._holes.leave_out([theta])

    def settings(self) -> dict[str, Any]:
        """Of certificate and earlier answers."""
        return {**self.certificate.settings(), **self.known.settings()}

    def report(self) -> dict[str, Any]:
        """Of certificate and payoff, and the LLMs that are dropped."""
        of_payoff = self._payoff.report() if self._payoff else {}
        return {**self._holes.failing.report(), **self.certificate.report(), **of_payoff}
