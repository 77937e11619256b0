"""Random search without replacement (sec:exp)."""

from __future__ import annotations

from scope_torch.baselines.dataset_level import DatasetLevelOptimizer
from scope_torch.problem import SelectionProblem
from scope_torch.search.optimizer import Steps


class RandomSearch(DatasetLevelOptimizer):
    """Evaluates every configuration but theta_0, in the seeded order that all methods share.

    Args:
        problem: What to search.
        seed: Decides the order.
        name: Name in results.

    Examples:
        >>> import scope_torch as st
        >>> from scope_torch.tasks.synthetic import synthetic_task
        >>> task = synthetic_task()
        >>> search = RandomSearch(task.problem, seed=0)
        >>> result = st.run(task.problem, search, task.evaluator, budget_usd=1.0)
    """

    def __init__(
        self, problem: SelectionProblem, *, seed: int, name: str = "random_search"
    ) -> None:
        super().__init__(problem, seed=seed, name=name)

    def _search(self) -> Steps:
        space = self.problem.space
        for index in self.tie_order().tolist():
            theta = space.theta_at(index)
            if theta == self.problem.theta_ref:
                continue
            if (yield from self._evaluate(theta)) is None:
                return
            yield
        self._stop("every configuration was evaluated")
