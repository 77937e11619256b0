"""Abacus: a bandit on every module; costs of modules add up, qualities multiply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from scope_torch.allowed import Allowed
from scope_torch.baselines.abacus_module import ModuleFrontier, PairTotals
from scope_torch.baselines.pareto_plan import (
    Option,
    PhysicalPlan,
    cheapest_allowed_plan,
    cheapest_plan,
)
from scope_torch.errors import InputError, whole_number
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.optimizer import Recommendation, SequentialOptimizer, Steps
from scope_torch.space import check_seed, tie_rank


class Abacus(SequentialOptimizer):
    """Least cost at a quality threshold, assuming that the modules are independent.

    The quality of a module cannot be observed. So every iteration runs two configurations that
    differ in the LLM of one module on the same few queries (appendix, adaptation details). The
    other modules hold the base: in each module the LLM of highest estimated quality.

    With q_i(m) the ratio of qualities and c_i(m) the cost of LLM m in module i, the estimates are
    s(theta_0) prod_i q_i(theta_i) for the quality and sum_i c_i(theta_i) for the cost of a
    configuration. theta_out is the cheapest one estimated above s_0, from the LLMs measured so far
    and those of theta_0; no query verifies it. Where not all configurations are allowed, the other
    modules hold what is nearest to the base and allows both LLMs.

    Reference: Russo et al. 2025, arXiv 2505.14661.

    Args:
        problem: What to search.
        seed: Decides the order of queries and of LLMs, and ties.
        k: Largest number of LLMs of a module under measurement.
        j: Number of queries in the first measurement of an LLM.
        step: Number of queries in each later one.
        module_cost: `metered`: the cost of a module that the system logs, if it logs one;
            `difference`: always the difference of the costs of the two configurations.
        reuse_base: Whether to use earlier runs of the base on a query instead of repeating them.
        remeasure_base: Whether to measure the base LLM of a module further, against that of
            theta_0, as the original does. Else an LLM that is lucky on its first queries becomes
            the base, and no later query corrects it.
        name: Name in results.

    Raises:
        InputError: If a setting is outside its range.

    Examples:
        >>> import scope_torch as st
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> task = synthetic_task()
        >>> search = Abacus(task.problem, seed=0)
        >>> result = st.run(task.problem, search, task.evaluator, budget_usd=1.0)
    """

    def __init__(
        self,
        problem: SelectionProblem,
        *,
        seed: int,
        k: int = 6,
        j: int = 4,
        step: int = 1,
        module_cost: str = "metered",
        reuse_base: bool = False,
        remeasure_base: bool = True,
        name: str = "abacus",
    ) -> None:
        if module_cost not in ("metered", "difference"):
            raise InputError(f"module_cost={module_cost!r} must be 'metered' or 'difference'")
        problem.check_one_constraint(name)
        if problem.rule is not None and problem.allowed_mask() is None:
            raise InputError(f"allowed: {name} takes no rule where Theta is too large to enumerate")
        self.name, self.problem, self.seed = name, problem, check_seed(seed)
        counts = {"k": k, "j": j, "step": step}
        self._k, self._j, self._step = (whole_number(key, n, 1) for key, n in counts.items())
        self._module_cost, self._reuse_base = module_cost, reuse_base
        self._remeasure_base = remeasure_base
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(problem.num_queries, generator=generator)
        self._query_order: list[int] = order.tolist()
        self._modules = [self._frontier(i) for i in range(problem.space.num_modules)]
        self._meters: list[dict[int, list[float]]] = [{} for _ in self._modules]
        self._observed: dict[tuple[tuple[int, ...], int], Observation] = {}
        self._iteration = self._num_pruned = 0
        self._plan = PhysicalPlan(
            problem.theta_ref, problem.reference_cost_usd, problem.reference_quality
        )
        super().__init__()

    @property
    def base(self) -> tuple[int, ...]:
        """The LLM of highest estimated quality in each module."""
        return tuple(module.base for module in self._modules)

    def _frontier(self, i: int) -> ModuleFrontier:
        problem, theta = self.problem, self.problem.theta_ref

        def tie_key(llm: int) -> int:
            index = problem.space.rank(torch.tensor((*theta[:i], llm, *theta[i + 1 :])))
            return int(tie_rank(index, self.seed))

        others = [llm for llm in range(problem.space.sizes[i]) if llm != theta[i]]
        share_usd = problem.reference_cost_usd / problem.space.num_modules
        order = sorted(others, key=tie_key)
        return ModuleFrontier(
            theta[i],
            share_usd,
            order,
            self._k,
            problem.num_queries,
            remeasure_base=self._remeasure_base,
        )

    def _search(self) -> Steps:
        turn = 0
        while (choice := self._next_measurement(turn)) is not None:
            i, llm, other = choice
            turn, self._iteration = i + 1, self._iteration + 1
            module, theta = self._modules[i], self._context(i, llm, other)
            assert theta is not None
            base, swap = ((*theta[:i], m, *theta[i + 1 :]) for m in (other, llm))
            num_seen = module.num_seen(llm)
            num_more = self._step if num_seen else self._j
            queries = self._common(base, swap)[num_seen : num_seen + num_more]
            requests = self._requests(base, swap, queries)
            observations = yield requests
            self._add(observations)
            if len(observations) < len(requests):
                return
            module.add(llm, other, self._pair(base, swap, queries))
            for frontier, meters in zip(self._modules, self._meters, strict=True):
                frontier.estimate({m: total / n for m, (total, n) in meters.items()})
            module.update_base()
            pruned = module.update_frontier()
            self._num_pruned += len(pruned)
            self._replan("pruned" if pruned else None, swap, num_seen + len(queries))
            yield
        self._stop("every LLM is measured on every query, or dominated")

    def _next_measurement(self, turn: int) -> tuple[int, int, int] | None:
        """The next module, an LLM to measure in it, and one to measure it against; or None.

        Round-robin over the modules from `turn`.
        """
        num_modules = len(self._modules)
        for i in ((turn + offset) % num_modules for offset in range(num_modules)):
            while (pair := self._modules[i].next_pair()) is not None:
                if (allowed := self._allowed_pair(i, *pair)) is not None:
                    return i, *allowed
                self._modules[i].drop(pair[0])
        return None

    def _allowed_pair(self, i: int, llm: int, other: int) -> tuple[int, int] | None:
        """An LLM, and one that it can be measured against where not all of Theta is allowed."""
        module = self._modules[i]
        known = (m for m in [other, module.reference, *module.estimates] if m != llm)
        return next(((llm, m) for m in known if self._context(i, llm, m) is not None), None)

    def _context(self, i: int, llm: int, other: int) -> tuple[int, ...] | None:
        """The LLMs of the other modules: of the base, or of what is nearest and allows both."""
        base, rule, offered = self.base, self.problem.rule, self.problem.offered
        if rule is None and not offered:
            return base
        num_seen = self._modules[i].num_seen(llm)
        rule = rule or Allowed(self.problem.modules, self.problem.llms, None)

        def can_go_on(one: tuple[int, ...]) -> bool:
            swapped = (*one[:i], other, *one[i + 1 :])
            return rule(swapped) and len(self._common(one, swapped)) > num_seen

        return rule.nearest(base, can_go_on, {i: llm})

    def _common(self, one: tuple[int, ...], other: tuple[int, ...]) -> Sequence[int]:
        """The queries on which both can be observed, in order."""
        if not self.problem.offered:
            return self._query_order
        both = set(self.problem.queries_of(one)) & set(self.problem.queries_of(other))
        return [query for query in self._query_order if query in both]

    def _requests(
        self, base: tuple[int, ...], swap: tuple[int, ...], queries: Sequence[int]
    ) -> list[Request]:
        known = self._observed if self._reuse_base else {}
        repeat = [query for query in queries if (base, query) not in known]
        return [Request(base, q) for q in repeat] + [Request(swap, q) for q in queries]

    def _add(self, observations: Sequence[Observation]) -> None:
        """Keeps the observations, and the cost of each module where it is metered."""
        for observation in observations:
            self._record(observation)
            self._observed[observation.theta, observation.query] = observation
            costs = observation.module_cost_usd
            if self._module_cost == "metered" and costs is not None:
                for meter, llm, cost in zip(self._meters, observation.theta, costs, strict=True):
                    total, n = meter.get(llm, (0.0, 0))
                    meter[llm] = [total + cost, n + 1]

    def _pair(
        self, base: tuple[int, ...], swap: tuple[int, ...], queries: Sequence[int]
    ) -> PairTotals:
        of_base, of_swap = ([self._observed[t, q] for q in queries] for t in (base, swap))
        return PairTotals(
            len(queries),
            math.fsum(o.quality for o in of_swap),
            math.fsum(o.quality for o in of_base),
            math.fsum(o.cost_usd for o in of_swap),
            math.fsum(o.cost_usd for o in of_base),
        )

    def _replan(self, event: str | None, theta_cand: tuple[int, ...], num_queries: int) -> None:
        """Makes the cheapest plan above s_0 theta_out, and says so in the trace."""
        problem = self.problem
        options = [
            [Option(m, e.cost_usd, e.quality) for m in [module.reference, *module.order]
             if (e := module.estimates.get(m)) is not None]
            for module in self._modules
        ]  # fmt: skip
        reference = PhysicalPlan(
            problem.theta_ref, problem.reference_cost_usd, problem.reference_quality
        )
        # theta_0 is estimated at s(theta_0) > s_0, unless epsilon is lost in rounding
        quality, mask = problem.reference_quality, problem.allowed_mask()
        if mask is None:
            plan = cheapest_plan(options, quality, problem.s_0) or reference
        else:
            grid = mask.view(problem.space.sizes).numpy()
            plan = cheapest_allowed_plan(options, quality, problem.s_0, grid) or reference
        if plan.theta != self._plan.theta:
            event = "improved"
        self._plan = plan
        if event is not None:
            self._trace(event, theta_cand=theta_cand, num_queries=num_queries)

    def _trace(self, event: str, **values: Any) -> None:
        super()._trace(event, iteration=self._iteration, **values)

    def recommend(self) -> Recommendation:
        """The cheapest plan: `estimated`, or `reference` while it is theta_0."""
        theta = self._plan.theta
        return Recommendation(
            theta, "reference" if theta == self.problem.theta_ref else "estimated"
        )

    def settings(self) -> dict[str, Any]:
        """Everything that decides the requests, JSON-serialisable."""
        return {
            "name": self.name,
            "seed": self.seed,
            "k": self._k,
            "j": self._j,
            "step": self._step,
            "module_cost": self._module_cost,
            "reuse_base": self._reuse_base,
            "remeasure_base": self._remeasure_base,
        }

    def report(self) -> dict[str, Any]:
        """Iterations, LLMs pruned, the base, and the estimates of theta_out."""
        return {
            "iterations": self._iteration,
            "pruned": self._num_pruned,
            "base": self.problem.names(self.base),
            "estimated_cost_usd": self._plan.cost_usd,
            "estimated_quality": self._plan.quality,
        }
