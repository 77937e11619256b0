"""Tasks: a selection problem with an evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scope_torch.evaluators import Evaluator
from scope_torch.problem import SelectionProblem


class HeldOut(NamedTuple):
    """Queries that the search never sees, for the deployment of what it found (RQ2)."""

    evaluator: Evaluator
    num_queries: int


class Task(NamedTuple):
    """What is searched, where observations come from, and what it is deployed on, if anything."""

    problem: SelectionProblem
    evaluator: Evaluator
    held_out: Callable[[], HeldOut] | None = None
