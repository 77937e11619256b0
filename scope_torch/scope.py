"""SCOPE: Algorithm 1 (alg:scope-main), with SCOPE-Rand and SCOPE-Coarse as settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from gpytorch.kernels import Kernel

from scope_torch.bounds import Beta, ConfidenceBounds
from scope_torch.calibrate import calibrate
from scope_torch.errors import InputError
from scope_torch.grid_posterior import GridPosterior, LowerBounds
from scope_torch.hamming_grid import make_grid
from scope_torch.history import Observation, Request
from scope_torch.kernels import HammingKernel, HammingMatern52Kernel
from scope_torch.optimizer import Recommendation, SequentialOptimizer, Steps, TraceRow
from scope_torch.problem import SelectionProblem
from scope_torch.surrogate import QuerySurrogate

InitialPool = Literal["base", "random", "none"]


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
        kernel: k; default Matern 5/2.
        device: Where the algebra over Theta runs; None for CUDA if present.
        name: Name in results.

    Raises:
        InputError: If a value is outside its range, or Theta is too large to enumerate.
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
        kernel: Kernel | None = None,
        device: torch.device | str | None = None,
        name: str = "scope",
    ) -> None:
        if not 0 < alpha < 0.5:
            raise InputError(f"alpha={alpha} must lie in (0, 1/2)")
        if batch_size is not None and (batch_size < 1 or batch_size != int(batch_size)):
            raise InputError(f"batch_size={batch_size} must be a whole number >= 1, or None")
        if not -(2**63) <= seed < 2**63:
            raise InputError(f"seed={seed} must fit into 64 bits")
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
        _check_bounds(bounds, self.kernel, lam, problem)
        self.surrogate = QuerySurrogate(
            problem.space, self.kernel, problem.num_queries, lam, device
        )
        grid = make_grid(problem.space, self.kernel, device)
        self._posterior = GridPosterior(self.surrogate, grid)
        generator = torch.Generator().manual_seed(seed)
        self._query_order = torch.randperm(problem.num_queries, generator=generator).tolist()
        self._pool = self._initial_pool(generator)
        self._j = [0] * problem.num_queries
        self._j_max = 0
        self._theta_out, self._certified = problem.theta_ref, False
        self._u_out: float | None = None
        self._least_c: float | None = None
        self._candidates = self._pruned = 0
        super().__init__()

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
        self.bounds.fit(self.surrogate, posterior.mean_g, posterior.variance.sqrt())
        self._u_out = self._initial_u_out()
        reference = _Candidate(self.surrogate, self.problem.theta_ref)
        self._trace("calibrated", bounds=reference.interval(self.bounds.beta(self._j_max)))
        i = 0
        while True:
            lower = self._lower_bounds()
            while lower.least_g >= 0 and self.bounds.widen():
                lower = self._lower_bounds()
                self._trace("widened")
            self._least_c = lower.least_c
            i = self._next_iteration(i + 1, lower.least_g)
            if i == 0:
                return self._stop("no other configuration can improve on theta_out in these bounds")
            theta_cand = self._select(i, lower)
            self._trace("selected", i, theta_cand, 0)
            if self._gap_is_closed():
                return self._stop("optimality gap within gap_tolerance")
            all_seen = self.surrogate.num_observed(theta_cand) == self.problem.num_queries
            spend_before = self.spend_usd
            yield from self._evaluate(i, theta_cand)
            if all_seen and self.spend_usd == spend_before:
                return self._stop("the best candidate is free and observed on every query")
            yield
            posterior.update()

    def _lower_bounds(self) -> LowerBounds:
        assert self._u_out is not None
        beta = self.bounds.beta(self._j_max)
        if self.gap_tolerance is None:  # the paper looks at all of Theta
            return self._posterior.lower_bounds(beta, math.inf, None)
        return self._posterior.lower_bounds(beta, self._u_out, self._index(self._theta_out))

    def _index(self, theta: tuple[int, ...]) -> int:
        return int(self.problem.space.rank(torch.tensor(theta)))

    def _initial_u_out(self) -> float:
        """U_c(theta_0), but no less than c(theta_0): tuned half-widths may put it below."""
        posterior, beta = self._posterior, self.bounds.beta(self._j_max)
        at = self._index(self.problem.theta_ref)
        upper_c = posterior.mean_c[at] + beta.c * posterior.variance[at].sqrt()
        return max(float(upper_c), self.problem.reference_cost_usd)

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

    def _next_iteration(self, i: int, least_g: float) -> int:
        """First i' >= i with least_g <= -i'^-alpha; 0 if there is none."""
        if least_g >= 0:
            return 0
        if least_g > -(i**-self.alpha):
            log_i = -math.log(-least_g) / self.alpha
            if log_i > 600:  # zero up to rounding
                return 0
            i = max(i, math.floor(math.exp(log_i)) - 1)
            while least_g > -(i**-self.alpha):
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

    def _select(self, i: int, lower: LowerBounds) -> tuple[int, ...]:
        """Line alg:scope-main:select."""
        index = lower.argmin_c(-(i**-self.alpha), self.problem.reference_cost_usd, self.seed)
        return tuple(self.problem.space.unrank(torch.tensor(index)).tolist())

    def _evaluate(self, i: int, theta_cand: tuple[int, ...]) -> Steps:
        """Lines alg:scope-main:sort to alg:scope-main:break: the j-loop."""
        candidate = _Candidate(self.surrogate, theta_cand)
        order = candidate.by_uncertainty(self._query_order)
        self._candidates += 1
        upper_g = candidate.upper_g(self.bounds.beta(self._j_max))
        for start in range(0, len(order), self.batch_size or len(order)):
            batch = order[start : start + (self.batch_size or len(order))]
            observations = yield [Request(theta_cand, q) for q in batch]
            active = True
            for j, observation in enumerate(observations, start=start + 1):
                self._record(observation)
                if not active:
                    continue
                candidate.update(observation, self.problem.s_0, self.surrogate.lam)
                beta = self.bounds.beta(self._j_max)
                previous_upper_g, upper_g = upper_g, candidate.upper_g(beta)
                upper_c, lower_c = candidate.upper_c(beta), candidate.lower_c(beta)
                assert self._u_out is not None
                if upper_c <= self._u_out and min(upper_g, previous_upper_g) <= 0:
                    changed = (theta_cand, upper_c) != (self._theta_out, self._u_out)
                    if theta_cand != self._theta_out:
                        self._count_as_other(self._theta_out, beta)
                    self._theta_out, self._u_out, self._certified = theta_cand, upper_c, True
                    if changed:
                        self._trace("improved", i, theta_cand, j, candidate.interval(beta))
                if self.prune and (candidate.lower_g(beta) > 0 or lower_c > self._u_out):
                    active = False
                    self._pruned += 1
                    self._trace("pruned", i, theta_cand, j, candidate.interval(beta))
            if not active:
                return
        interval = candidate.interval(self.bounds.beta(self._j_max))
        self._trace("completed", i, theta_cand, len(order), interval)

    def _count_as_other(self, theta_out: tuple[int, ...], beta: Beta) -> None:
        """Replaced as theta_out, it may be theta_star: the gap left it out until now."""
        if self.gap_tolerance is not None:
            assert self._least_c is not None
            lower_c = _Candidate(self.surrogate, theta_out).lower_c(beta)
            self._least_c = min(self._least_c, lower_c)

    def _record(self, observation: Observation) -> None:
        super()._record(observation)
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
            "kernel": describe_kernel(self.kernel, self.problem),
            "bounds": self.bounds.settings(),
        }

    def report(self) -> dict[str, Any]:
        """See `Optimizer`."""
        counts = {"candidates": self._candidates, "candidates_pruned": self._pruned}
        return {**self.bounds.report(), **counts}


def describe_kernel(kernel: Kernel, problem: SelectionProblem) -> dict[str, Any]:
    """Identifies a kernel: its class, and what it is at every Hamming distance."""
    described: dict[str, Any] = {"name": type(kernel).__name__}
    if isinstance(kernel, HammingKernel):
        profile = kernel.profile(problem.space.num_modules).tolist()
        # The last digits of exp depend on the machine, and a run may move.
        described["profile"] = [float(f"{value:.12g}") for value in profile]
    return described


def _check_bounds(
    bounds: ConfidenceBounds, kernel: Kernel, lam: float, problem: SelectionProblem
) -> None:
    gain = bounds.gain
    if gain is None:
        return
    same_kernel = describe_kernel(gain.kernel, problem) == describe_kernel(kernel, problem)
    if gain.lam != lam or not same_kernel:
        raise InputError(
            f"lam={lam}, {type(kernel).__name__} are not what the bounds were made for: "
            f"lam={gain.lam}, {type(gain.kernel).__name__}"
        )


class _Candidate:
    """Posterior of theta_cand during the j-loop, updated in closed form.

    With m and v the posterior mean and variance of query q before an observation y,
    m' = m + v / (v + lam) (y - m) and v' = lam v / (v + lam): nothing is solved.
    """

    def __init__(self, surrogate: QuerySurrogate, theta: tuple[int, ...]) -> None:
        mean_c, mean_g, variance = surrogate.at(theta)
        self._mean_c, self._mean_g = mean_c.tolist(), mean_g.tolist()
        self._variance = variance.tolist()
        self._sum_c, self._sum_g = math.fsum(self._mean_c), math.fsum(self._mean_g)
        self._sum_variance = math.fsum(self._variance)

    def by_uncertainty(self, query_order: Sequence[int]) -> list[int]:
        """Queries by decreasing phi (eq:uncertainty-score); ties in `query_order`.

        sigma^2 is rounded to 1e-9, since equal scores differ by rounding.
        """
        rounded = [round(v * 1e9) for v in self._variance]
        return sorted(query_order, key=lambda q: -rounded[q])

    def update(self, observation: Observation, s_0: float, lam: float) -> None:
        """Takes in one observation of the candidate."""
        q = observation.query
        v = self._variance[q]
        step_c = v / (v + lam) * (observation.cost_usd - self._mean_c[q])
        step_g = v / (v + lam) * (s_0 - observation.quality - self._mean_g[q])
        self._mean_c[q] += step_c
        self._mean_g[q] += step_g
        self._variance[q] = lam * v / (v + lam)
        self._sum_c += step_c
        self._sum_g += step_g
        self._sum_variance += self._variance[q] - v

    @property
    def _sigma(self) -> float:
        return math.sqrt(self._sum_variance) / len(self._variance)

    def interval(self, beta: Beta) -> tuple[float, float, float, float]:
        """L_c and U_c in USD, L_g and U_g in units of quality."""
        return self.lower_c(beta), self.upper_c(beta), self.lower_g(beta), self.upper_g(beta)

    def lower_c(self, beta: Beta) -> float:
        """L_c(theta_cand) in USD."""
        return self._sum_c / len(self._variance) - beta.c * self._sigma

    def upper_c(self, beta: Beta) -> float:
        """U_c(theta_cand) in USD."""
        return self._sum_c / len(self._variance) + beta.c * self._sigma

    def lower_g(self, beta: Beta) -> float:
        """L_g(theta_cand) in units of quality."""
        return self._sum_g / len(self._variance) - beta.g * self._sigma

    def upper_g(self, beta: Beta) -> float:
        """U_g(theta_cand) in units of quality."""
        return self._sum_g / len(self._variance) + beta.g * self._sigma
