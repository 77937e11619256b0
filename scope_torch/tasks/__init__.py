"""Tasks: a selection problem with an evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scope_torch.problem import SelectionProblem
from scope_torch.runs.deployment import HeldOutQueries
from scope_torch.runs.evaluator import Evaluator

__all__ = ["HeldOutQueries", "Task"]


class Task(NamedTuple):
    """A selection problem, its evaluator, and held-out queries if there are any.

    Attributes:
        problem: The problem to search.
        evaluator: Makes the observations.
        held_out: Makes the held-out queries, on which theta_out is measured after the search; None
            if there are none.
    """

    problem: SelectionProblem
    evaluator: Evaluator
    held_out: Callable[[], HeldOutQueries] | None = None
