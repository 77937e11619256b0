"""LLMSelector: maximises quality module by module, without looking at cost."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch

from scope_torch.baselines.dataset_level import DatasetLevelOptimizer, Evaluation
from scope_torch.observation import Observation, Request
from scope_torch.problem import SelectionProblem
from scope_torch.search.optimizer import Steps
from scope_torch.space import tie_rank

UpdateSteps = Generator[Sequence[Request], Sequence[Observation], int | None]


class LLMSelector(DatasetLevelOptimizer):
    """Round-robin over the modules: tries every LLM in a module; the queries vote for the best.

    theta_out is the current allocation, feasible or not; the first one is random. The cheapest
    configuration that was observed to be feasible is in the report. As in the paper (appendix,
    adaptation details), there is no module-wise judge. LLMs that make a configuration that is not
    allowed are not tried.

    Reference: Chen et al. 2025, arXiv 2502.14815.

    Args:
        problem: What to search.
        seed: Decides the first allocation, the query order and ties.
        name: Name in results.

    Examples:
        >>> import scope_torch as st
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> task = synthetic_task()
        >>> search = LLMSelector(task.problem, seed=0)
        >>> result = st.run(task.problem, search, task.evaluator, budget_usd=1.0)
    """

    def __init__(self, problem: SelectionProblem, *, seed: int, name: str = "llmselector") -> None:
        problem.check_one_constraint(name)
        super().__init__(problem, seed=seed, name=name)
        drawn = tuple(
            int(torch.randint(size, (), generator=self._generator)) for size in problem.space.sizes
        )
        self._theta_out = self.allowed_near(drawn)
        self._basis = "estimated"
        self._known: dict[tuple[int, ...], Evaluation] = {}
        self.num_updates = 0

    def _search(self) -> Steps:
        num_modules, num_unchanged = self.problem.space.num_modules, 0
        while num_unchanged < num_modules:
            module = self.num_updates % num_modules
            llm = yield from self._best_llm(module)
            if llm is None:
                return
            num_unchanged = num_unchanged + 1 if llm == self._theta_out[module] else 0
            self._theta_out = self._with(module, llm)
            self.num_updates += 1
            self._trace("completed" if num_unchanged else "improved")
            yield
        self._stop("a full round of module updates changed nothing")

    def _best_llm(self, module: int) -> UpdateSteps:
        """The LLM with the most votes; None if the budget ends before all are evaluated.

        Ties go to the incumbent, then to the first LLM in the seeded order.
        """
        incumbent = self._theta_out[module]
        others = (m for m in range(self.problem.space.sizes[module]) if m != incumbent)
        others = (m for m in others if self.problem.is_allowed(self._with(module, m)))
        order = [incumbent, *sorted(others, key=lambda llm: self._tie_key(module, llm))]
        qualities = {}
        for llm in order:
            theta = self._with(module, llm)
            if theta not in self._known:
                evaluation = yield from self._evaluate(theta)
                if evaluation is None:
                    return None
                self._known[theta] = evaluation
            qualities[llm] = self._known[theta].qualities
        votes = count_votes(qualities)
        return max(order, key=lambda llm: votes[llm])  # of equal ones the first

    def _completed(self, evaluation: Evaluation) -> None:
        """Leaves theta_out as it is: only a complete module update changes it."""
        self._trace("completed", theta_cand=evaluation.theta, num_queries=self.problem.num_queries)

    def _with(self, module: int, llm: int) -> tuple[int, ...]:
        theta = self._theta_out
        return (*theta[:module], llm, *theta[module + 1 :])

    def _tie_key(self, module: int, llm: int) -> int:
        index = self.problem.space.rank(torch.tensor(self._with(module, llm)))
        return int(tie_rank(index, self.seed))

    def report(self) -> dict[str, Any]:
        """Module updates, and the best observed feasible configuration."""
        best, problem = self.best_observed_feasible(), self.problem
        return {
            **super().report(),
            "module_updates": self.num_updates,
            "best_observed_feasible": {
                "theta": problem.names(best.theta),
                "cost_usd": best.cost_usd,
                "quality": problem.s_0 - best.g,
            },
        }


def count_votes(qualities: Mapping[int, Sequence[float]]) -> dict[int, int]:
    """Votes for each LLM: every query votes for all LLMs that reach the best quality on it.

    An LLM whose configuration has no such query (NaN) gets no vote of it.

    Args:
        qualities: The `num_queries` qualities with each LLM in the module.

    Examples:
        >>> count_votes({0: [0.0, 1.0], 1: [1.0, 1.0]})
        {0: 1, 1: 2}
    """
    votes = dict.fromkeys(qualities, 0)
    for on_query in zip(*qualities.values(), strict=True):
        best = max((quality for quality in on_query if not math.isnan(quality)), default=0.0)
        for llm, quality in zip(qualities, on_query, strict=True):
            votes[llm] += quality == best
    return votes
