"""SCOPE: Algorithm 1 (alg:scope-main), line by line.

| symbol | here | |
| --- | --- | --- |
| theta_out, U_out | `_theta_out`, `u_out` | the configuration returned, its cost bound in USD |
| theta_cand | `turn` | the configuration under evaluation, see `turn.py` |
| L_zeta,t, U_zeta,t | `turn.candidate`, with `turn.beta()` | eq:lcb-ours, see `belief.py` |
| Lambda | | the budget; `runs/runner.py` ends the search (line alg:scope-main:stop) |

What the paper does not have is in `rules.py`. `scope_torch.methods` composes a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scope_torch.bounds.assumptions import basis_of, certified_by
from scope_torch.errors import whole_number
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.belief import Belief
from scope_torch.search.calibrate import InitialPool, calibrate
from scope_torch.search.front import Estimates
from scope_torch.search.optimizer import (
    Basis,
    Observing,
    Reason,
    Recommendation,
    SequentialOptimizer,
    Steps,
)
from scope_torch.search.parts import Choice, Minima, interval
from scope_torch.search.rules import Rules
from scope_torch.search.stopping import NOTHING_FOUND, NOTHING_LEFT
from scope_torch.search.turn import Turn
from scope_torch.space import check_seed


class SCOPE(SequentialOptimizer):
    """Sequential confidence-bound-based optimization via partial evaluation.

    Made by `make_scope` and `make_scope_joint` from plain settings.

    Args:
        problem: What to search.
        belief: Bounds on the averages of all configurations.
        pool: Theta_init of Calibrate.
        choice: Picks theta_cand.
        rules: The certificate, and what the paper does not have.
        seed: Decides the query order, the random pool and all ties.
        u_out: The first U_out in USD; None for theta_0's (alg:scope-main:init1), or the least.
        prune: Whether a candidate is dropped early (line alg:scope-main:break); SCOPE-Coarse: no.
        batch_size: Queries of the j-loop observed at a time; 1 is the paper, None all of them.
        name: Name in results.

    Raises:
        InputError: If the seed or the batch size is outside its range.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        *,
        belief: Belief,
        pool: InitialPool,
        choice: Choice[Any],
        rules: Rules,
        seed: int,
        u_out: float | None = None,
        prune: bool = True,
        batch_size: int | None = 1,
        name: str = "scope",
    ) -> None:
        if batch_size is not None:
            batch_size = whole_number("batch_size", batch_size, 1, more=", or None")
        self.name, self.problem, self.seed = name, problem, check_seed(seed)
        self.prune, self.batch_size = prune, batch_size
        self.belief, self.rules, self.known = belief, rules, rules.known
        self._choice, self._initial_pool, self._first_u_out = choice, pool, u_out
        self._generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(problem.num_queries, generator=self._generator)
        self._query_order: list[int] = order.tolist()
        self._theta_out, self._certified = problem.theta_ref, False
        self._u_out: float | None = None
        self._before = self._theta_out, self._u_out, False
        self._counts = {"candidates": 0, "candidates_pruned": 0}
        self._basis: Basis = basis_of(self.settings())
        super().__init__()

    def _search(self) -> Steps:
        self.rules.begin(self)
        yield from self._calibrate()  # alg:scope-main:init0
        self._initialise()  # alg:scope-main:rules, alg:scope-main:init1
        i = 0
        while True:  # alg:scope-main:while
            minima = self._minima()
            following = self._choice.next_iteration(i + 1, minima.least_g)
            if following is None:
                reason = NOTHING_LEFT if minima.is_exact else NOTHING_FOUND
            else:
                reason = yield from self._iterate(i := following, minima)
            if reason:
                requests = self.rules.verify(reason, self._query_order)
                if requests is None:
                    return self._stop(reason)
                if requests:  # see verify.py
                    self._trace("verifying")
                    yield from self._observe(requests)
                self.belief.refit()

    def _iterate(self, i: int, minima: Minima) -> Reason:
        theta_cand = self._select(i, minima)  # alg:scope-main:select
        self._trace("selected", iteration=i, theta_cand=theta_cand, num_queries=0)
        if reason := self.rules.selected(theta_cand, self.u_out):
            return reason
        turn = self.rules.turn(i, theta_cand, self._query_order, self._generator)
        if reason := self.rules.begun(turn, minima):
            return reason
        yield from self._evaluate(turn)
        if reason := self.rules.ended(turn, self._theta_out):
            return reason
        yield
        self.belief.posterior.update()
        self.rules.updated(turn, self._theta_out)
        return None

    def _evaluate(self, turn: Turn) -> Steps:
        """The j-loop: lines alg:scope-main:sort to alg:scope-main:break."""
        self._counts["candidates"] += 1
        turn.begin()
        if turn.is_known:
            self._judge(turn)
        for batch in turn.batches(self.batch_size):  # alg:scope-main:sort, alg:scope-main:for
            for answer in (yield batch):  # alg:scope-main:observe
                self._record(answer)
                says_more = turn.update(answer)
                self._withdraw(turn)
                if says_more:
                    self._judge(turn)
        if not turn.ended:
            self._trace("completed", **turn.row())

    def _judge(self, turn: Turn) -> None:
        """Makes theta_cand theta_out, or gives it up."""
        beta, candidate, is_out = turn.beta(), turn.candidate, self.rules.is_dropped(turn.theta)
        is_better = candidate.upper_c(beta) <= self.u_out and turn.certified
        if is_better and not (is_out or self.rules.is_beaten(turn.theta, self._theta_out)):
            self._improve(turn, candidate.upper_c(beta))  # alg:scope-main:update
            turn.ended = self.rules.ends_certified
        is_hopeless = candidate.lower_g(beta) > -turn.margin or candidate.lower_c(beta) > self.u_out
        is_hopeless = is_hopeless or self.rules.is_tied(turn, self.u_out, self._theta_out)
        if is_out or (self.prune and is_hopeless):  # :break
            turn.ended = True
            self._counts["candidates_pruned"] += 1
            self._trace("pruned", **turn.row())

    def _improve(self, turn: Turn, upper_c: float) -> None:
        if turn.theta != self._theta_out:
            self.rules.replaced(lambda: self._candidate(self._theta_out).lower_c(turn.beta()))
            self._before = self._theta_out, self._u_out, self._certified
        before = self._theta_out, self._u_out
        self._theta_out, self._u_out, self._certified = turn.theta, upper_c, True
        if before != (turn.theta, upper_c):
            self._trace("improved", **turn.row())

    def _withdraw(self, turn: Turn) -> None:
        """Gives back what theta_cand has replaced, once its own answers speak against it."""
        self.rules.answered(turn)
        if turn.theta == self._theta_out and self.rules.is_wrong(turn.theta):
            self._theta_out, self._u_out, self._certified = self._before
            self._trace("withdrawn", **turn.row())
            if self.rules.is_wrong(self._theta_out):  # of several open candidates
                self._keep_reference("withdrawn")

    def _calibrate(self) -> Steps:
        """Algorithm 2; SCOPE-Coarse has an empty pool, and skips it."""
        pool = self._initial_pool.draw(self.problem.space, self._generator)
        start = self.rules.start(self.seed, pool, self._query_order, self._generator)
        pool, self._query_order, num_queries = start
        while pool:
            yield from calibrate(
                pool,
                self._query_order[:num_queries],
                observe=self._observe,
                g=self.belief.g_of,
                queries_of=self.problem.queries_of if self.problem.offered else None,
                is_dropped=self.rules.is_dropped,
                enough=self.rules.calibrated_enough,
            )
            pool = self.rules.redraw(pool, self._initial_pool, self._generator)
        yield

    def _initialise(self) -> None:
        """Fixes the bounds, and U_out of theta_0."""
        self.belief.posterior.update()
        self.rules.calibrated()
        self.belief.fit()
        self._keep_reference("calibrated")

    def _keep_reference(self, event: str) -> None:
        """theta_out is theta_0."""
        reference, beta = self._candidate(self.problem.theta_ref), self.belief.beta()
        most = max(reference.upper_c(beta), self.rules.stopping.least_u_out)
        self._theta_out, self._certified = self.problem.theta_ref, False
        self._u_out = most if self._first_u_out is None else self._first_u_out
        self._trace(event, **interval(reference, beta))

    def _minima(self) -> Minima:
        """Lower bounds on Theta, widened while by the choice nothing can improve on theta_out."""
        theta_out = self.problem.space.index_of(self._theta_out)
        minima = self.rules.lower_bounds(self.u_out, theta_out)
        while self._choice.next_iteration(1, minima.least_g) is None and self.belief.bounds.widen():
            minima = self.rules.lower_bounds(self.u_out, theta_out)
            self._trace("widened")
        self.rules.stopping.select(minima.least_c)
        return minima

    def _select(self, i: int, minima: Minima) -> tuple[int, ...]:
        if (best := self.known.take_best()) is not None:  # its evaluation costs nothing
            return best
        index = self._choice.select(i, minima, self.problem.scale, self.seed)
        return self.problem.space.theta_at(index)

    def _candidate(self, theta: tuple[int, ...]) -> Any:
        return self.belief.at(theta, self._query_order)

    def _observe(self, requests: Sequence[Request]) -> Observing:
        return self.known.observe(requests, super()._observe)

    def _record(self, observation: Observation) -> None:
        super()._record(observation)
        self.rules.learn(observation)
        if self.rules.is_dropped(self._theta_out):  # only earlier searches know its answers
            self._keep_reference("withdrawn")

    @property
    def u_out(self) -> float:
        """U_out in USD; raises RuntimeError before Calibrate has ended."""
        if self._u_out is None:
            raise RuntimeError("U_out is defined after Calibrate (line alg:scope-main:init1)")
        return self._u_out

    def recommend(self) -> Recommendation:
        """theta_out: certified or accepted, see `basis_of`, or still theta_0."""
        basis, u_out = self._basis if self._certified else "reference", self._u_out
        return Recommendation(self._theta_out, basis, u_out, self.rules.stopping.gap(u_out))

    def estimates(self) -> Estimates | None:
        """All averages, for `front_of`; None before Calibrate has ended."""
        return None if self._u_out is None else self.belief.estimates(self._query_order)

    def settings(self) -> dict[str, Any]:
        """Everything that decides what is asked; see `Optimizer`."""
        return {
            "name": self.name,
            "seed": self.seed,
            "prune": self.prune,
            "batch_size": self.batch_size,
            "gap_tolerance": self.rules.stopping.gap_tolerance,
            "bounds": self.belief.bounds.settings(),
            **self._initial_pool.settings(),
            **self._choice.settings(),
            **self.belief.settings(),
            **self.rules.settings(),
        }

    def report(self) -> dict[str, Any]:
        """Bounds, counts, and what "certified" rests on; see `Optimizer`."""
        return self.rules.report_of_own() | {
            **self.belief.bounds.report(),
            **self._counts,
            **self.known.report(),
            "selection": self.belief.posterior.report(),
            **self.rules.report(),
            "assumptions": certified_by(self.settings()),
            **self.belief.surrogate.report(),
        }
