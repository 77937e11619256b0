"""SCOPE: Algorithm 1 (alg:scope-main), with SCOPE-Rand and SCOPE-Coarse as settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from gpytorch.kernels import Kernel

from scope_torch.bounds import Beta, ConfidenceBounds
from scope_torch.bounds.assumptions import certified_by
from scope_torch.bounds.base import check_made_for
from scope_torch.bounds.betting import BettingSequence, check_sequence, share_of_delta
from scope_torch.errors import InputError
from scope_torch.model.incremental import QuerySurrogate
from scope_torch.model.joint import JointSurrogate
from scope_torch.model.kernels import HammingMatern52Kernel, describe_kernel
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.calibrate import calibrate
from scope_torch.search.candidate import Candidate, QueryCandidate, interval
from scope_torch.search.optimizer import Recommendation, SequentialOptimizer, Steps, TraceRow
from scope_torch.space import check_seed
from scope_torch.space_search.branched import (
    MAX_NODES,
    BranchedBounds,
    BranchedPosterior,
    make_posterior,
)
from scope_torch.space_search.grid import GridPosterior, LowerBounds

InitialPool = Literal["base", "random", "none"]
Surrogate = QuerySurrogate | JointSurrogate
Posterior = GridPosterior | BranchedPosterior
_STOP = "no other configuration can improve on theta_out in these bounds"
_STOP_UNPROVEN = "none found that can improve on theta_out in these bounds within max_nodes"


class SCOPE(SequentialOptimizer):
    """Sequential confidence-bound-based optimization via partial evaluation.

    Args:
        problem: What to search.
        bounds: Confidence bounds.
        seed: Decides the query order, the random pool and all ties.
        base: Codes of the configuration with theta_base in every module (eq:theta-1-def); needed
            for `initial_pool="base"` only.
        initial_pool: Theta_init of Calibrate: the neighbours of `base` (SCOPE), as many `random`
            configurations (SCOPE-Rand), or `none` to skip Calibrate (SCOPE-Coarse).
        prune: Whether a candidate is dropped early (line alg:scope-main:break); SCOPE-Coarse: no.
        alpha: Exponent of the dynamic constraint, in (0, 1/2).
        lam: lambda of the surrogates, at least 1e-9.
        batch_size: Queries of the j-loop observed at a time; 1 is the paper, None all of them.
        gap_tolerance: Stop once the optimality gap is at most this fraction of u_out; 0: once no
            other configuration can improve on theta_out within the bounds. Iterations whose
            candidate could not improve on theta_out (L_c > u_out) are skipped: they would be
            pruned after one observation. None: to the letter of alg:scope-main, which pays for
            these observations until the budget is spent.
        space_search: How minima over Theta are found: `grid` enumerates up to 2e8 configurations,
            `branch_and_bound` finds the same in more, `auto` takes what fits.
        max_nodes: At which a search by branch and bound gives up the proof, see
            `BranchedPosterior`.
        sequence_delta: None: theta_cand is certified by U_g <= 0. A number: by a confidence
            sequence of its own (`BettingSequence`), which is wrong for any of them with at most
            this probability; its queries are then observed in uniformly random order.
        sequence_flips: `flips` of `margin`; 0: the same call is always answered the same.
        kernel: k; default Matern 5/2.
        device: Where the algebra over Theta runs; None for CUDA if present.
        name: Name in results.

    Raises:
        InputError: If a value is outside its range, or Theta is too large for `space_search`.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        bounds: ConfidenceBounds,
        *,
        seed: int,
        base: Sequence[int] | None = None,
        initial_pool: InitialPool = "base",
        prune: bool = True,
        alpha: float = 1 / 3,
        lam: float = 1e-6,
        batch_size: int | None = 1,
        gap_tolerance: float | None = 0.0,
        space_search: str = "auto",
        max_nodes: int = MAX_NODES,
        sequence_delta: float | None = None,
        sequence_flips: float = 0.0,
        kernel: Kernel | None = None,
        device: torch.device | str | None = None,
        name: str = "scope",
    ) -> None:
        check_sequence(sequence_delta, sequence_flips)
        if not 0 < alpha < 0.5:
            raise InputError(f"alpha={alpha} must lie in (0, 1/2)")
        if batch_size is not None and (batch_size < 1 or batch_size != int(batch_size)):
            raise InputError(f"batch_size={batch_size} must be a whole number >= 1, or None")
        check_seed(seed)
        if gap_tolerance is not None and not gap_tolerance >= 0:
            raise InputError(f"gap_tolerance={gap_tolerance} must be at least 0, or None")
        if initial_pool not in ("base", "random", "none"):
            raise InputError(f"initial_pool={initial_pool!r} must be base, random or none")
        if initial_pool == "base" and base is None:
            raise InputError("base=None: Calibrate needs a base LLM; name a cheap one")
        self.name = name
        self.problem, self.bounds, self.seed = problem, bounds, seed
        self.base = None if initial_pool != "base" else problem.space.check(base or (), "base")
        self.initial_pool: InitialPool = initial_pool
        self.prune, self.alpha, self.gap_tolerance = prune, alpha, gap_tolerance
        self.batch_size = batch_size
        self.kernel = HammingMatern52Kernel() if kernel is None else kernel
        device = ("cuda" if torch.cuda.is_available() else "cpu") if device is None else device
        check_made_for(bounds, self.kernel, lam, problem.space.num_modules)
        self.surrogate, self._posterior = self._model(
            lam, torch.device(device), space_search, max_nodes
        )
        generator = torch.Generator().manual_seed(seed)
        self._query_order = torch.randperm(problem.num_queries, generator=generator).tolist()
        self.sequence_delta, self.sequence_flips = sequence_delta, sequence_flips
        self._order_generator = generator
        self._pool = self._initial_pool(generator)
        self._j = [0] * problem.num_queries
        self._j_max = 0
        self._theta_out, self._certified = problem.theta_ref, False
        self._u_out: float | None = None
        self._least_c: float | None = None
        self._candidates = self._pruned = 0
        self._charged: set[tuple[int, ...]] = set()  # configurations that ever cost anything
        super().__init__()

    def _model(
        self, lam: float, device: torch.device, space_search: str, max_nodes: int
    ) -> tuple[Surrogate, Posterior]:
        """The surrogate, and its posterior on all of Theta."""
        space, num_queries = self.problem.space, self.problem.num_queries
        surrogate = QuerySurrogate(space, self.kernel, num_queries, lam, device)
        posterior = make_posterior(
            surrogate,
            space,
            self.kernel,
            space_search=space_search,
            max_nodes=max_nodes,
            device=device,
        )
        return surrogate, posterior

    def _candidate(self, theta: tuple[int, ...], order: Sequence[int] | None = None) -> Candidate:
        """theta_cand, its queries observed in `order`; None: the most uncertain first."""
        assert isinstance(self.surrogate, QuerySurrogate)
        in_order = order is not None
        return QueryCandidate(self.surrogate, theta, order or self._query_order, in_order)

    def _beta(self, candidate: Candidate | None = None) -> Beta:
        """Of what was observed; between selections, `candidate` knows of its own observations."""
        information = self.surrogate.information() if candidate is None else candidate.information
        return self.bounds.beta(self._j_max, information)

    def _new_sequence(self) -> tuple[BettingSequence, list[int]] | tuple[None, None]:
        """Of the next candidate, with a uniformly random order of its queries."""
        if self.sequence_delta is None:
            return None, None
        num_queries = self.problem.num_queries
        delta = share_of_delta(self._candidates, self.sequence_delta)
        order = torch.randperm(num_queries, generator=self._order_generator).tolist()
        return BettingSequence(num_queries, self.problem.s_0, delta, self.sequence_flips), order

    def _fit_bounds(self) -> None:
        assert isinstance(self.surrogate, QuerySurrogate)
        self.bounds.fit(self.surrogate, self._posterior.least_slope)

    def _initial_pool(self, generator: torch.Generator) -> list[tuple[int, ...]]:
        space = self.problem.space
        if self.initial_pool == "none":
            return []
        if self.initial_pool == "random":
            return space.sample(1 + sum(size - 1 for size in space.sizes), generator)
        assert self.base is not None
        return space.neighbours(self.base)

    def _search(self) -> Steps:
        """alg:scope-main, line by line."""
        if self._pool:
            yield from self._calibrate()
        yield
        posterior = self._posterior
        posterior.update()
        self._fit_bounds()
        self._u_out = self._initial_u_out()
        reference = self._candidate(self.problem.theta_ref)
        self._trace("calibrated", bounds=interval(reference, self._beta()))
        i = 0
        while True:
            lower = self._lower_bounds()
            while lower.least_g >= 0 and self.bounds.widen():
                lower = self._lower_bounds()
                self._trace("widened")
            self._least_c = lower.least_c
            i = self._next_iteration(i + 1, lower.least_g)
            if i == 0:
                return self._stop(_STOP if lower.is_exact else _STOP_UNPROVEN)
            theta_cand = self._select(i, lower)
            self._trace("selected", i, theta_cand, 0)
            if self._gap_is_closed():
                return self._stop("optimality gap within gap_tolerance")
            all_seen = self.surrogate.num_observed(theta_cand) == self.problem.num_queries
            yield from self._evaluate(i, theta_cand)
            if all_seen and theta_cand not in self._charged:  # or it might go on for ever
                return self._stop("the best candidate is free and observed on every query")
            yield
            posterior.update()

    def _lower_bounds(self) -> LowerBounds | BranchedBounds:
        assert self._u_out is not None
        beta = self._beta()
        if self.gap_tolerance is None:  # the paper looks at all of Theta
            return self._posterior.lower_bounds(beta, math.inf, None)
        theta_out = self.problem.space.index_of(self._theta_out)
        return self._posterior.lower_bounds(beta, self._u_out, theta_out)

    def _initial_u_out(self) -> float:
        """U_c(theta_0), but no less than c(theta_0): tuned half-widths may put it below."""
        upper_c = self._candidate(self.problem.theta_ref).upper_c(self._beta())
        return max(upper_c, self.problem.reference_cost_usd)

    def _calibrate(self) -> Steps:
        """Line alg:scope-main:init0."""
        rounds = calibrate(self._pool, self._query_order)
        requests = next(rounds)
        while True:
            observations = yield requests
            for observation in observations:
                self._record(observation)
            try:
                requests = rounds.send(observations)
            except StopIteration:
                return

    def _limit(self, i: int) -> float:
        """Largest L_g of a candidate of iteration i."""
        return -(i**-self.alpha)

    def _next_iteration(self, i: int, least_g: float) -> int:
        """First i' >= i with least_g <= -i'^-alpha; 0 if there is none."""
        if least_g >= 0:
            return 0
        if least_g > self._limit(i):
            log_i = -math.log(-least_g) / self.alpha
            if log_i > 600:  # zero up to rounding
                return 0
            i = max(i, math.floor(math.exp(log_i)) - 1)
            while least_g > self._limit(i):
                i += 1 + (i >> 40)
        return i

    @property
    def _gap(self) -> float | None:
        """Bound on c(theta_out) - c(theta_star) in USD; None before the first selection."""
        if self._least_c is None or self._u_out is None:
            return None
        return max(0.0, self._u_out - self._least_c)

    def _gap_is_closed(self) -> bool:
        assert self._gap is not None
        assert self._u_out is not None
        return self.gap_tolerance is not None and self._gap <= self.gap_tolerance * self._u_out

    def _select(self, i: int, lower: LowerBounds | BranchedBounds) -> tuple[int, ...]:
        """Line alg:scope-main:select."""
        index = lower.argmin_c(self._limit(i), self.problem.reference_cost_usd, self.seed)
        return self.problem.space.theta_at(index)

    def _evaluate(self, i: int, theta_cand: tuple[int, ...]) -> Steps:
        """Lines alg:scope-main:sort to alg:scope-main:break: the j-loop."""
        self._candidates += 1
        sequence, order = self._new_sequence()
        candidate = self._candidate(theta_cand, order)
        upper_g = candidate.upper_g(self._beta(candidate))
        num_queries = self.problem.num_queries
        batch_size = self.batch_size or num_queries
        for start in range(0, num_queries, batch_size):
            batch = candidate.next_queries(min(batch_size, num_queries - start))
            observations = yield [Request(theta_cand, q) for q in batch]
            active = True
            for j, observation in enumerate(observations, start=start + 1):
                self._record(observation)
                if not active:
                    continue
                candidate.update(observation, self.problem.s_0)
                beta = self._beta(candidate)
                previous_upper_g, upper_g = upper_g, candidate.upper_g(beta)
                upper_c, lower_c = candidate.upper_c(beta), candidate.lower_c(beta)
                assert self._u_out is not None
                certified = min(upper_g, previous_upper_g) <= 0
                if sequence is not None:
                    certified = sequence.update(observation.quality)
                if upper_c <= self._u_out and certified:
                    changed = (theta_cand, upper_c) != (self._theta_out, self._u_out)
                    if theta_cand != self._theta_out:
                        self._count_as_other(self._theta_out, beta)
                    self._theta_out, self._u_out, self._certified = theta_cand, upper_c, True
                    if changed:
                        self._trace("improved", i, theta_cand, j, interval(candidate, beta))
                if self.prune and (candidate.lower_g(beta) > 0 or lower_c > self._u_out):
                    active = False
                    self._pruned += 1
                    self._trace("pruned", i, theta_cand, j, interval(candidate, beta))
            if not active:
                return
        bounds = interval(candidate, self._beta(candidate))
        self._trace("completed", i, theta_cand, num_queries, bounds)

    def _count_as_other(self, theta_out: tuple[int, ...], beta: Beta) -> None:
        """Replaced as theta_out, it may be theta_star: the gap left it out until now."""
        if self.gap_tolerance is not None:
            assert self._least_c is not None
            lower_c = self._candidate(theta_out).lower_c(beta)
            self._least_c = min(self._least_c, lower_c)

    def _record(self, observation: Observation) -> None:
        super()._record(observation)
        if observation.cost_usd > 0:
            self._charged.add(observation.theta)
        self.surrogate.observe(
            observation.theta,
            observation.query,
            observation.cost_usd,
            self.problem.s_0 - observation.quality,
        )
        self._j[observation.query] += 1
        self._j_max = max(self._j_max, self._j[observation.query])

    def _trace(
        self,
        event: str,
        i: int | None = None,
        theta_cand: tuple[int, ...] | None = None,
        num_queries: int | None = None,
        bounds: tuple[float, float, float, float] | tuple[()] = (),
    ) -> None:
        self.trace.append(
            TraceRow(
                self.t,
                self.from_budget_usd,
                self.spend_usd,
                event,
                self._theta_out,
                self._u_out,
                self._gap,
                i,
                theta_cand,
                num_queries,
                *bounds,
            )
        )

    def _stop(self, reason: str) -> None:
        self.stop_reason = reason
        self._trace("stopped")

    def recommend(self) -> Recommendation:
        """theta_out: certified by U_g <= 0, or still theta_0."""
        basis = "certified" if self._certified else "reference"
        return Recommendation(self._theta_out, basis, self._u_out, self._gap)

    def settings(self) -> dict[str, Any]:
        """See `Optimizer`."""
        sequence = {"sequence_delta": self.sequence_delta, "sequence_flips": self.sequence_flips}
        return {
            "name": self.name,
            "seed": self.seed,
            "base": self.base,
            "initial_pool": self.initial_pool,
            "prune": self.prune,
            "alpha": self.alpha,
            "lam": self.surrogate.lam,
            "batch_size": self.batch_size,
            "gap_tolerance": self.gap_tolerance,
            "kernel": describe_kernel(self.kernel, self.problem.space.num_modules),
            "bounds": self.bounds.settings(),
            **self._posterior.settings(),
            **({} if self.sequence_delta is None else sequence),
        }

    def report(self) -> dict[str, Any]:
        """See `Optimizer`."""
        counts = {"candidates": self._candidates, "candidates_pruned": self._pruned}
        certificate: dict[str, Any] = {"certificate": "bounds"}
        if self.sequence_delta is not None:
            certificate = {"certificate": "sequence", "delta": self.sequence_delta}
        certificate["assumptions"] = certified_by(self.settings())
        selection = {"selection": self._posterior.report()}
        return {**self.bounds.report(), **counts, **selection, **certificate}
