"""SCOPE: Algorithm 1 (alg:scope-main), line by line.

| symbol | here | |
| --- | --- | --- |
| theta_out, U_out | `_theta_out`, `_u_out` | the configuration returned, its cost bound in USD |
| theta_cand | `theta_cand` | the configuration under evaluation |
| L_zeta,t, U_zeta,t | `candidate.lower_c(beta)`, ... | eq:lcb-ours; USD (c), units of quality (g) |
| beta_zeta,t | `_beta()` | eq:beta-def, or what takes its place |
| J_max | `_j_max` | how often the query observed most often has been observed |
| Lambda | | the budget; `runs/runner.py` ends the search (line alg:scope-main:stop) |

The parts are explained in `parts.py`; `scope_torch.methods` composes SCOPE, SCOPE-Rand,
SCOPE-Coarse and scope_joint.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch

from scope_torch.bounds.assumptions import basis_of, certified_by
from scope_torch.bounds.base import Beta, ConfidenceBounds
from scope_torch.errors import InputError
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.calibrate import InitialPool, calibrate, minus_quality
from scope_torch.search.front import Estimates, estimates_of
from scope_torch.search.holes import Holes
from scope_torch.search.known import Known, Trial
from scope_torch.search.optimizer import Basis, Recommendation, SequentialOptimizer, Steps
from scope_torch.search.parts import (
    Candidate,
    Certificate,
    Choice,
    FollowsSearch,
    M,
    MakeCandidate,
    Minima,
    Payoff,
    Posterior,
    Surrogate,
    interval,
)
from scope_torch.search.stopping import (
    FREE_CANDIDATE,
    GAP_CLOSED,
    NO_LONGER_PAYS,
    NOTHING_FOUND,
    NOTHING_LEFT,
    Stopping,
)
from scope_torch.space import check_seed

Observing = Generator[Sequence[Request], Sequence[Observation], Sequence[Observation]]


class SCOPE(SequentialOptimizer):
    """Sequential confidence-bound-based optimization via partial evaluation.

    Made by `make_scope` and `make_scope_joint` from plain settings.

    Args:
        problem: What to search.
        surrogate: Takes in the observations.
        posterior: Its averages on all of Theta.
        make_candidate: Its bounds at theta_cand.
        bounds: beta.
        pool: Theta_init of Calibrate.
        choice: Picks theta_cand.
        certificate: Certifies theta_cand.
        stopping: Skips iterations and ends the search.
        payoff: Ends the search when it no longer pays; None: never for that reason.
        seed: Decides the query order, the random pool and all ties.
        u_out: U_out before the first certificate in USD; None for U_{c,t_0}(theta_0), but no less
            than c(theta_0), which tuned half-widths may put it below.
        prune: Whether a candidate is dropped early (line alg:scope-main:break); SCOPE-Coarse: no.
        batch_size: Queries of the j-loop observed at a time; 1 is the paper, None all of them.
        known: Observations of earlier searches; None: none, as in the paper.
        name: Name in results.

    Raises:
        InputError: If the seed or the batch size is outside its range.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        *,
        surrogate: Surrogate,
        posterior: Posterior[M],
        make_candidate: MakeCandidate,
        bounds: ConfidenceBounds,
        pool: InitialPool,
        choice: Choice[M],
        certificate: Certificate,
        stopping: Stopping,
        payoff: Payoff | None = None,
        seed: int,
        u_out: float | None = None,
        prune: bool = True,
        batch_size: int | None = 1,
        known: Known | None = None,
        name: str = "scope",
    ) -> None:
        if batch_size is not None and (batch_size < 1 or batch_size != int(batch_size)):
            raise InputError(f"batch_size={batch_size} must be a whole number >= 1, or None")
        self.name, self.problem, self.seed = name, problem, check_seed(seed)
        self.surrogate, self.bounds = surrogate, bounds
        self.prune, self.batch_size = prune, batch_size
        self._posterior: Posterior[Any] = posterior
        self._choice: Choice[Any] = choice
        self._make_candidate, self._certificate = make_candidate, certificate
        self._follows = certificate if isinstance(certificate, FollowsSearch) else None
        self._query_pool = self._follows.query_pool if self._follows is not None else None
        self._num_calibrated = self._query_pool
        self._payoff = payoff
        self._stopping, self._initial_pool, self._first_u_out = stopping, pool, u_out
        self._generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(problem.num_queries, generator=self._generator)
        self._query_order: list[int] = order.tolist()
        self._pool = pool.draw(problem.space, self._generator)
        self.known = Known(problem) if known is None else known
        self._holes = Holes(problem, posterior)
        self._j = [0] * problem.num_queries
        self._j_max = 0
        self._theta_out, self._certified = problem.theta_ref, False
        self._u_out: float | None = None
        self._candidates = self._pruned = 0
        self._basis: Basis = basis_of(self.settings())
        super().__init__()

    def _search(self) -> Steps:
        self._take_in_known()
        yield from self._calibrate()  # alg:scope-main:init0
        self._initialise()  # alg:scope-main:rules, alg:scope-main:init1
        i: int | None = 0
        while True:  # alg:scope-main:while
            minima = self._minima()
            i = self._choice.next_iteration(i + 1, minima.least_g)
            if i is None:
                return self._stop(NOTHING_LEFT if minima.is_exact else NOTHING_FOUND)
            theta_cand = self._select(i, minima)  # alg:scope-main:select
            self._trace("selected", iteration=i, theta_cand=theta_cand, num_queries=0)
            if self._stopping.is_closed(self.u_out):
                return self._stop(GAP_CLOSED)
            all_seen = self._holes.is_all(theta_cand, self.surrogate.num_observed(theta_cand))
            trial = self._begin(theta_cand)
            candidate = self._make_candidate(theta_cand, trial.order, trial.in_order)
            if trial.order and self._payoff and not self._payoff.goes_on(candidate, minima):
                return self._stop(NO_LONGER_PAYS)
            yield from self._evaluate(i, theta_cand, candidate, trial)
            if all_seen and self._stopping.is_free(theta_cand):
                return self._stop(FREE_CANDIDATE)
            yield
            self._posterior.update()
            self._holes.observed(theta_cand, self.surrogate.num_observed(theta_cand))

    def _take_in_known(self) -> None:
        """Observations of earlier searches, for model and certificate, and theta_0's answers."""
        for observation in (*self.known.observations, *self.known.reference):
            self._learn(observation)
        if self.known.observations:
            self._generator.manual_seed(self.known.order_seed(self.seed))
            self._query_order = self.known.most_answered(self._pool, self._query_order)
            self._pool, self._num_calibrated = self.known.pool(self._pool, self._query_pool)

    def _calibrate(self) -> Steps:
        """Algorithm 2; SCOPE-Coarse has an empty pool, and skips it."""
        cheaper_first = self._initial_pool.ties == "cheaper"
        several = self.problem.num_constraints > 1 and self.problem.objective == "cost"
        g = self._g if several else minus_quality
        order = self._query_order[: self._num_calibrated]
        of = self.problem.queries_of if self.problem.offered else None
        rounds = calibrate(self._pool, order, cheaper_first=cheaper_first, g=g, queries_of=of)
        requests = next(rounds) if self._pool else []
        while requests:
            observations = yield from self._observe(requests)
            try:
                requests = rounds.send(observations)
            except StopIteration:
                break
        yield

    def _initialise(self) -> None:
        """Fixes the bounds, and U_out of theta_0."""
        self._posterior.update()
        self._holes.begin(self._certificate)
        self.bounds.fit(self.surrogate, self._posterior.least_slope)
        reference, beta = self._candidate(self.problem.theta_ref), self._beta()
        if self._first_u_out is None:
            upper_c = reference.upper_c(beta)
            self._u_out = max(upper_c, self.problem.first_u_out)
        else:
            self._u_out = self._first_u_out
        self._trace("calibrated", **interval(reference, beta))

    def _minima(self) -> Minima:
        """Lower bounds on Theta, widened while nothing can improve on theta_out.

        The choice says so: it knows the margin that a certificate asks for.
        """
        minima = self._lower_bounds()
        while self._choice.next_iteration(1, minima.least_g) is None and self.bounds.widen():
            minima = self._lower_bounds()
            self._trace("widened")
        self._stopping.select(minima.least_c)
        return minima

    def _lower_bounds(self) -> Minima:
        theta_out = self.problem.space.index_of(self._theta_out)
        most_c, excluded = self._stopping.improvable(self.u_out, theta_out)
        return self._posterior.lower_bounds(self._beta(), most_c, excluded)

    def _select(self, i: int, minima: Minima) -> tuple[int, ...]:
        scale = self.problem.reference_cost_usd if self.problem.objective == "cost" else 1.0
        if (best := self.known.take_best()) is not None:  # its evaluation costs nothing
            return best
        index = self._choice.select(i, minima, scale, self.seed)
        return self.problem.space.theta_at(index)

    def _begin(self, theta_cand: tuple[int, ...]) -> Trial:
        """Draws the order of the candidate's queries, if its certificate needs one."""
        if self._follows is not None:
            self._follows.select(theta_cand)
        test = self._certificate.begin(self._candidates + 1, self._generator)
        return self.known.trial(theta_cand, test, self._query_order)

    def _evaluate(
        self, i: int, theta_cand: tuple[int, ...], candidate: Candidate, trial: Trial
    ) -> Steps:
        """The j-loop: lines alg:scope-main:sort to alg:scope-main:break."""
        self._candidates += 1
        about: dict[str, Any] = {"iteration": i, "theta_cand": theta_cand}
        upper_g = candidate.upper_g(self._beta(candidate))
        num_queries = len(self.problem.queries_of(theta_cand))
        batch_size = self.batch_size or num_queries
        num_known = num_queries - len(trial.order)
        certified = len(trial.order) < self.problem.num_queries and trial.begin(upper_g)
        if not trial.order:
            about["num_queries"] = num_queries
            if self._judge(candidate, certified, trial.margin, about):
                return
        for start in range(num_known, num_queries, batch_size):  # alg:scope-main:for
            most = min(batch_size, num_queries - start)
            batch = candidate.next_queries(most)  # alg:scope-main:sort, by eq:uncertainty-score
            observations = yield [Request(theta_cand, q) for q in batch]  # alg:scope-main:observe
            ended = False
            for j, observation in enumerate(observations, start + 1):
                self._record(observation)
                if ended:  # the rest of the batch is paid for, and belongs to the model
                    continue
                grades = self.problem.grades(observation)
                y_g = self.problem.violations(grades)
                candidate.update(observation.query, self._loss(observation), *y_g)
                previous_upper_g, upper_g = upper_g, candidate.upper_g(self._beta(candidate))
                certified = trial.update(grades, min(upper_g, previous_upper_g))
                about["num_queries"] = j
                ended = self._judge(candidate, certified, trial.margin, about)
            if ended:
                return
        while trial.again():  # beyond the paper: answers that vary
            certified = yield from trial.ask_again(theta_cand, batch_size, self._record)
            candidate = self._candidate(theta_cand)
            if self._judge(candidate, certified, trial.margin, about):
                return
        self._trace("completed", **about, **interval(candidate, self._beta(candidate)))

    def _judge(
        self, candidate: Candidate, certified: bool, margin: float, about: dict[str, Any]
    ) -> bool:
        """Makes theta_cand theta_out, or gives it up; returns whether its j-loop ends."""
        beta, ended = self._beta(candidate), False
        if candidate.upper_c(beta) <= self.u_out and certified:  # alg:scope-main:update
            self._improve(candidate, beta, about)
            ended = self._query_pool is not None
        if self._is_hopeless(candidate, beta, margin):  # alg:scope-main:break
            ended = True
            self._pruned += 1
            self._trace("pruned", **about, **interval(candidate, beta))
        return ended

    def _improve(self, candidate: Candidate, beta: Beta, about: dict[str, Any]) -> None:
        """Makes theta_cand theta_out."""
        theta_cand, upper_c = about["theta_cand"], candidate.upper_c(beta)
        if theta_cand != self._theta_out and self._stopping.skips:
            self._stopping.replaced(self._candidate(self._theta_out).lower_c(beta))
        changed = (theta_cand, upper_c) != (self._theta_out, self._u_out)
        self._theta_out, self._u_out, self._certified = theta_cand, upper_c, True
        if changed:
            self._trace("improved", **about, **interval(candidate, beta))

    def _is_hopeless(self, candidate: Candidate, beta: Beta, margin: float) -> bool:
        """Whether theta_cand can, within the bounds, not be certified or not improve theta_out."""
        if not self.prune:
            return False
        return candidate.lower_g(beta) > -margin or candidate.lower_c(beta) > self.u_out

    def _candidate(self, theta: tuple[int, ...]) -> Candidate:
        """Bounds at `theta`."""
        return self._make_candidate(theta, self._query_order)

    def _beta(self, candidate: Candidate | None = None) -> Beta:
        """beta_t; `candidate` knows of its own observations since the last selection."""
        if self.bounds.gain is None:  # no information is asked for, which may wait for a device
            return self.bounds.beta(self._j_max)
        information = self.surrogate.information() if candidate is None else candidate.information
        return self.bounds.beta(self._j_max, information)

    def _observe(self, requests: Sequence[Request]) -> Observing:
        """Observations of `requests`; a pair that is known is not asked for."""
        new = [request for request in requests if self.known.answer(request) is None]
        observed = iter((yield new) if new else ())
        answers: list[Observation] = []
        for request in requests:
            answer = self.known.answer(request)
            if answer is None:
                if (answer := next(observed, None)) is None:  # the budget is spent
                    break
                self._record(answer)
            answers.append(answer)
        return answers

    def _record(self, observation: Observation) -> None:
        super()._record(observation)
        self._learn(observation)

    def _learn(self, observation: Observation) -> None:
        self._stopping.record(observation)
        if self._follows is not None:
            self._follows.record(observation)
        loss, y_g = self._loss(observation), self._g(observation)
        self.surrogate.observe(observation.theta, observation.query, loss, *y_g)
        self._j[observation.query] += 1
        self._j_max = max(self._j_max, self._j[observation.query])

    def _loss(self, observation: Observation) -> float:
        return self.problem.loss(observation.cost_usd, observation.quality)

    def _g(self, observation: Observation) -> tuple[float, ...]:
        return self.problem.violations(self.problem.grades(observation))

    @property
    def u_out(self) -> float:
        """U_out in USD.

        Raises:
            RuntimeError: Before Calibrate has ended.
        """
        if self._u_out is None:
            raise RuntimeError("U_out is defined after Calibrate (line alg:scope-main:init1)")
        return self._u_out

    def recommend(self) -> Recommendation:
        """theta_out: certified or accepted, see `basis_of`, or still theta_0."""
        basis = self._basis if self._certified else "reference"
        gap = self._stopping.gap(self._u_out)
        return Recommendation(self._theta_out, basis, self._u_out, gap)

    def estimates(self) -> Estimates | None:
        """All averages, for `front_of`; None before Calibrate has ended."""
        return None if self._u_out is None else estimates_of(self._posterior, self._interval)

    def _interval(self, theta: tuple[int, ...]) -> dict[str, float]:
        """Bounds at `theta`: two standard deviations if they are credible, else as they are."""
        candidate = self._candidate(theta)
        credible = self.bounds.mode == "credible"
        return interval(candidate, Beta(2.0, 2.0) if credible else self._beta(candidate))

    def settings(self) -> dict[str, Any]:
        """Everything that decides what is asked; see `Optimizer`."""
        return {
            "name": self.name,
            "seed": self.seed,
            "prune": self.prune,
            "batch_size": self.batch_size,
            "gap_tolerance": self._stopping.gap_tolerance,
            "bounds": self.bounds.settings(),
            **self._initial_pool.settings(),
            **self._choice.settings(),
            **self.surrogate.settings(),
            **self._posterior.settings(),
            **self._certificate.settings(),
            **self.known.settings(),
        }

    def report(self) -> dict[str, Any]:
        """Bounds, counts, and what "certified" rests on; see `Optimizer`."""
        return {
            **self.bounds.report(),
            "candidates": self._candidates,
            "candidates_pruned": self._pruned,
            **self.known.report(),
            "selection": self._posterior.report(),
            **self._certificate.report(),
            **(self._payoff.report() if self._payoff else {}),
            "assumptions": certified_by(self.settings()),
            **self.surrogate.report(),
        }
