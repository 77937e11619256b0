"""scope_front: a search for the whole front of cost and quality.

| symbol | here | unit |
| --- | --- | --- |
| F, the front of the configurations observed on all queries | `_known` | |
| A, area that a configuration is expected to add to F | `expected_improvement` | axis x quality |
| P, the chance that it adds any | `expected_improvement` | |
| n = P left + 2 (1 - P), queries until it is known or given up | `_returns` | |
| A / (n E[c]) | `_returns` | area for each USD |

The search is Calibrate, and then in each iteration:

1. theta_cand is the configuration with the largest A / (n E[c]), under the joint surrogate.
2. It is observed query by query, in random order.
3. It is left once its own A / (n E[c]) falls below the second largest, or once its optimistic
   corner adds nothing to F. It may become theta_cand again. No pair is asked for twice.

With `rule=chance` P takes the place of A. Then a member of the front that adds little counts as
much as any other: the exact front is found sooner, most of its area later (docs/results-front.md).

The optimistic corner is b standard deviations from the means. If nothing is left that can improve
on F, b is multiplied by 1.5, as often as `widenings` says; then the search ends.

An LLM whose calls keep failing is dropped, see `failing.py`: no configuration with it is chosen, or
on the front, and the turn of one that is open ends.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from scope_torch.allowed import Allowed
from scope_torch.bounds.assumptions import MOST_WIDENINGS, WIDENING
from scope_torch.bounds.base import Beta, positive
from scope_torch.errors import InputError, whole_number
from scope_torch.model.joint import JointSurrogate
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.averages import AllAverages
from scope_torch.search.calibrate import InitialPool, calibrate
from scope_torch.search.failing import FailingLLMs
from scope_torch.search.front import Estimates, estimates_of
from scope_torch.search.hypervolume import (
    Costs,
    Front,
    Qualities,
    expected_improvement,
    non_dominated,
)
from scope_torch.search.joint_candidate import JointCandidate
from scope_torch.search.optimizer import Recommendation, SequentialOptimizer, Steps
from scope_torch.search.parts import interval
from scope_torch.space import check_seed, first_tied, position_of, tie_width
from scope_torch.space_search.grid import GridPosterior, forbidden

NOTHING_LEFT = "no other configuration can improve the front in these bounds"
_GIVEN_UP = 2.0  # queries after which a hopeless candidate is given up, as in `payoff.py`
_WORST = math.e  # costs of so many times the dearest mean add nothing
_LEAST = 1e-9  # costs below this part of c(theta_0) count as it: free LLMs have no logarithm
_ROUNDING = 1e-12  # of an average quality: one of exactly s_0 is good enough
_MEAN, _ONE_SD = Beta(0.0, 0.0), Beta(1.0, 1.0)


class ScopeFront(SequentialOptimizer):
    """Searches for the whole front of cost and quality.

    It does not use the averages of theta_0, but for the choice of theta_out: of the front, the
    cheapest configuration whose quality is estimated at s_0 or more, if it is cheaper than theta_0.

    Args:
        problem: What to search.
        surrogate: The joint surrogate.
        posterior: Its averages on all of Theta.
        pool: Theta_init of Calibrate.
        seed: Decides the query orders, the random pool and all ties.
        b: Half-width of the optimistic corner in standard deviations.
        widenings: How often b is multiplied by 1.5; at most 100 times.
        rule: `area`: A for each USD; `chance`: P for each USD.
        batch_size: Queries of a candidate that are asked for at a time; None for all.
        name: Name in results.

    Attributes:
        front: What is recommended now, by rising cost: of all configurations observed at least
            once, those that no other beats by its posterior mean.

    Raises:
        InputError: If a value is outside its range.
    """

    def __init__(
        self,
        problem: SelectionProblem,
        *,
        surrogate: JointSurrogate,
        posterior: GridPosterior,
        pool: InitialPool,
        seed: int,
        b: float = 3.0,
        widenings: int = 1,
        rule: str = "area",
        batch_size: int | None = 1,
        name: str = "scope_front",
    ) -> None:
        if batch_size is not None:
            batch_size = whole_number("batch_size", batch_size, 1, more=", or None")
        if rule not in ("area", "chance"):
            raise InputError(f"rule={rule!r} must be area or chance")
        problem.check_one_constraint(name)
        self.name, self.problem, self.seed = name, problem, check_seed(seed)
        self.surrogate, self.rule, self.batch_size = surrogate, rule, batch_size
        self.b = positive("b", b)
        self.widenings = whole_number("widenings", widenings, 0, MOST_WIDENINGS)
        self._posterior, self._initial_pool = posterior, pool
        self._generator = torch.Generator().manual_seed(self.seed)
        self._query_order = self._random_order()
        self._failing, self._allowed = FailingLLMs(problem), problem.rule
        self._pool = self._draw()
        self._answers = AllAverages(problem.num_queries)
        self._known = Front((), 0.0)
        self._candidates = self._widened = 0
        self._out = Recommendation(problem.theta_ref, "reference")
        self.front: list[tuple[int, ...]] = []
        super().__init__()

    def _search(self) -> Steps:
        yield from self._calibrate()
        self._look()
        self._trace("calibrated")
        while True:
            chosen = self._choose()
            if chosen is None:
                return self._stop(NOTHING_LEFT)
            theta, second = chosen
            self._candidates += 1
            self._trace("selected", iteration=self._candidates, theta_cand=theta, num_queries=0)
            yield from self._evaluate(theta, second)
            yield
            self._look()

    def _calibrate(self) -> Steps:
        """Algorithm 2."""
        pool, failing = self._pool, self._failing
        of = self.problem.queries_of if self.problem.offered else None
        while pool:
            yield from calibrate(
                pool,
                self._query_order,
                observe=self._observe,
                queries_of=of,
                is_dropped=failing.is_dropped,
            )
            is_useless = all(map(failing.is_dropped, pool))
            pool = self._draw() if is_useless else []
        yield

    def _draw(self) -> list[tuple[int, ...]]:
        """Theta_init, of what may be chosen."""
        return self._initial_pool.draw(self.problem.space, self._generator, self._allowed)

    def _look(self) -> None:
        """Brings the posterior up to date, and with it F and the recommended front."""
        self._posterior.update()
        self._costs, self._qualities = self._moments()
        self._place()

    def _place(self) -> None:
        """Makes F and the recommended front."""
        dearest = float(self._posterior.mean_c.max())
        worst = _WORST * max(dearest, self.problem.reference_cost_usd)
        known: list[tuple[float, float]] = []
        seen: list[tuple[float, float, tuple[int, ...]]] = []
        for theta, answers in self._answers:
            if self._failing.is_dropped(theta):
                continue
            if answers.num_left == 0:
                cost, quality = answers.cost_usd, answers.quality
                known.append((self._log(cost), quality))
            else:
                at = self._at(theta)
                cost = max(0.0, float(self._posterior.mean_c[at]))
                quality = min(float(self._qualities.mean[at]), answers.most_quality)
            seen.append((cost, quality, theta))
        self._known = Front(known, math.log(worst))
        kept = [seen[i] for i in non_dominated([s[0] for s in seen], [s[1] for s in seen])]
        self.front = [theta for _, _, theta in kept]
        self._recommend_from(kept)

    def _moments(self) -> tuple[Costs, Qualities]:
        """Of all configurations."""
        posterior = self._posterior
        _ = posterior.variance  # makes all variances exact
        c, g, lower_c, lower_g = (torch.empty_like(posterior.mean_g) for _ in range(4))
        posterior.fill_lower(slice(None), _MEAN, c, g)
        posterior.fill_lower(slice(None), _ONE_SD, lower_c, lower_g)
        cap = torch.ones_like(g)
        self._left = torch.full_like(g, self.problem.num_queries)
        for theta, queries in (self.problem.offered or {}).items():
            self._left[self._at(theta)] = len(queries)
        for theta, answers in self._answers:
            at = self._at(theta)
            cap[at], self._left[at] = answers.most_quality, self._num_left(theta)
        qualities = Qualities(self.problem.s_0 - g, g - lower_g, cap)
        return Costs(c.log(), c.log() - lower_c.log()), qualities

    def _recommend_from(self, front: list[tuple[float, float, tuple[int, ...]]]) -> None:
        """theta_out: the cheapest of the front that seems good enough; else theta_0."""
        good = (point for point in front if point[1] >= self.problem.s_0 - _ROUNDING)
        cost, _, theta = next(good, (math.inf, 0.0, self.problem.theta_ref))
        before, self._out = self._out, Recommendation(self.problem.theta_ref, "reference")
        if cost < self.problem.reference_cost_usd and theta != self.problem.theta_ref:
            is_known = self._answers[theta].num_left == 0
            self._out = Recommendation(theta, "observed" if is_known else "estimated")
        if self._out.theta != before.theta:
            self._trace("improved")

    def _choose(self) -> tuple[tuple[int, ...], float] | None:
        """theta_cand, and the second largest return; None if nothing can improve on F."""
        returns = self._allowed_returns()
        while returns.max() < 0:
            if not self._may_widen():
                return None
            self._widened += 1
            self._trace("widened")
            returns = self._allowed_returns()
        best = float(returns.max())
        tied = (returns >= best - tie_width(best, 0.0)).nonzero()[:, 0]
        listed = self._posterior.listed
        index = first_tied(tied if listed is None else listed[tied], self.seed)
        theta = self.problem.space.theta_at(index)
        returns[self._at(theta)] = -1.0
        return theta, float(returns.max())

    def _may_widen(self) -> bool:
        return self._widened < self.widenings

    def _allowed_returns(self) -> Tensor:
        """`_returns` on all of Theta; -1 where nothing may be chosen."""
        out = forbidden(self._allowed, self._left.device, self._posterior.listed)
        return self._returns(self._costs, self._qualities, self._left, out)

    def _at(self, theta: tuple[int, ...]) -> int:
        """Where the values of an allowed configuration are: its flat index, or its position."""
        at = position_of(self.problem.space.index_of(theta), self._posterior.listed)
        assert at is not None
        return at

    def _returns(
        self, costs: Costs, qualities: Qualities, left: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """Expected area for each USD; -1 where the optimistic corner adds nothing to F.

        Args:
            costs: Of some configurations.
            qualities: Of the same.
            left: How many of their queries were not observed.
            out: Which may not be chosen, where it is -1, too; None for none.
        """
        b = self.b * WIDENING**self._widened
        lower_c = costs.mean - b * costs.sd
        upper_q = torch.minimum(qualities.mean + b * qualities.sd, qualities.cap)
        open_ = ~self._known.beats(lower_c, upper_q) & (left > 0)
        if out is not None:
            open_ &= ~out
        # Of most configurations no area is needed.
        costs = Costs(*(values[open_] for values in costs))
        qualities, of_open = Qualities(*(values[open_] for values in qualities)), left[open_]
        area, chance = expected_improvement(self._known, costs, qualities)
        n = torch.minimum(chance * of_open + (1 - chance) * _GIVEN_UP, of_open)
        price = n * torch.exp(costs.mean + costs.sd**2 / 2)
        returns = torch.full_like(left, -1.0)
        returns[open_] = (area if self.rule == "area" else chance) / price
        return returns

    def _evaluate(self, theta: tuple[int, ...], second: float) -> Steps:
        """Observes theta_cand until another configuration returns more."""
        order, candidate = self._candidate(theta)
        while batch := candidate.next_queries(self.batch_size or len(order)):
            for observation in (yield [Request(theta, query) for query in batch]):
                self._record(observation)
                self._update(candidate, observation)
            if self._failing.is_dropped(theta) or not self._goes_on(candidate, theta, second):
                break
        self._trace_end(theta, len(order) - self._num_left(theta))

    def _candidate(self, theta: tuple[int, ...]) -> tuple[list[int], JointCandidate]:
        """Its queries that were not observed, in random order, and its bounds."""
        seen, offered = self._answers[theta], set(self.problem.queries_of(theta))
        order = [q for q in self._random_order() if q in offered and q not in seen]
        return order, JointCandidate(self.surrogate, theta, order, in_order=True)

    def _update(self, candidate: JointCandidate, answer: Observation) -> None:
        y_g = self.problem.constraint(answer.quality)
        candidate.update(answer.query, answer.cost_usd, y_g)

    def _goes_on(self, candidate: JointCandidate, theta: tuple[int, ...], second: float) -> bool:
        """Whether it returns at least as much as another; not if all of it is observed."""
        left, most = self._num_left(theta), self._answers[theta].most_quality
        return self._return_of(candidate, left, most) >= max(second, 0.0)

    def _trace_end(self, theta: tuple[int, ...], num_queries: int) -> None:
        event = "pruned" if self._num_left(theta) else "completed"
        self._trace(event, theta_cand=theta, num_queries=num_queries)

    def _num_left(self, theta: tuple[int, ...]) -> int:
        """How many of its queries were not observed yet."""
        holes = self.problem.num_queries - len(self.problem.queries_of(theta))
        return self._answers[theta].num_left - holes

    def _return_of(self, candidate: JointCandidate, left: int, cap: float) -> float:
        log_c, mean_q = math.log(candidate.lower_c(_MEAN)), self.problem.s_0 - candidate.mean_g
        sd_c = log_c - math.log(candidate.lower_c(_ONE_SD))
        sd_q = candidate.mean_g - candidate.lower_g(_ONE_SD)
        values = torch.tensor([log_c, sd_c, mean_q, sd_q, cap, left], dtype=torch.float64)
        mean_c, spread_c, quality, spread_q, most, open_ = values[:, None]
        of_quality = Qualities(quality, spread_q, most)
        return float(self._returns(Costs(mean_c, spread_c), of_quality, open_))

    def _log(self, cost_usd: float) -> float:
        return math.log(max(cost_usd, _LEAST * self.problem.reference_cost_usd))

    def _random_order(self) -> list[int]:
        order = torch.randperm(self.problem.num_queries, generator=self._generator)
        return order.tolist()

    def _record(self, observation: Observation) -> None:
        super()._record(observation)
        y_g = self.problem.constraint(observation.quality)
        theta, query = observation.theta, observation.query
        self.surrogate.observe(theta, query, observation.cost_usd, y_g)
        self._answers.add(observation)
        if self._failing.record(observation):
            self._drop()

    def _drop(self) -> None:
        """Leaves out what uses an LLM that is dropped; of a front from before, too."""
        problem = self.problem
        allowed = self._allowed or Allowed(problem.modules, problem.llms, None)
        self._allowed = allowed.without_llms(self._failing.dropped)
        if self.front:
            self._place()

    def recommend(self) -> Recommendation:
        """theta_out: `observed` on all queries, or `estimated` by the surrogate."""
        return self._out

    def estimates(self) -> Estimates:
        """The posterior of all averages, with bounds of two standard deviations; see `front_of`."""
        order = list(range(self.problem.num_queries))

        def bounds(theta: tuple[int, ...]) -> dict[str, float]:
            return interval(JointCandidate(self.surrogate, theta, order), Beta(2.0, 2.0))

        return estimates_of(self._posterior, bounds)

    def settings(self) -> dict[str, Any]:
        """Everything that decides what is asked; see `Optimizer`."""
        return {
            "name": self.name,
            "seed": self.seed,
            "b": self.b,
            "widenings": self.widenings,
            "rule": self.rule,
            "axis": "log",  # as in journals of the time when there was another
            "batch_size": self.batch_size,
            **self._initial_pool.settings(),
            **self.surrogate.settings(),
        }

    def report(self) -> dict[str, Any]:
        """Counts, bounds, the front as LLMs by module, and who is dropped; see `Optimizer`."""
        return {
            "candidates": self._candidates,
            "widened": self._widened,
            "front": [self.problem.names(theta) for theta in self.front],
            **self._failing.report(),
            **self.surrogate.report(),
        }
