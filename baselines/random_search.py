"""Random search without replacement (sec:exp)."""

from __future__ import annotations

from baselines.dataset_level import DatasetLevelOptimizer
from scope_torch.problem import SelectionProblem
from scope_torch.search.optimizer import Steps


class RandomSearch(DatasetLevelOptimizer):
    """Evaluates the configurations in the seeded order shared by all methods, without theta_0.

    Args:
        problem: What to search.
        seed: Decides the order.
        name: Name in results.
    """

    def __init__(self, problem: SelectionProblem, *, seed: int, name: str = "random") -> None:
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
