"""Tasks: a selection problem with an evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scope_torch.problem import SelectionProblem
from scope_torch.runs.deployment import HeldOut
from scope_torch.runs.evaluator import Evaluator

__all__ = ["HeldOut", "Task"]


class Task(NamedTuple):
    """What is searched, where observations come from, and what it is deployed on, if anything."""

    problem: SelectionProblem
    evaluator: Evaluator
    held_out: Callable[[], HeldOut] | None = None
