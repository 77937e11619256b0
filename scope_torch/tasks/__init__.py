"""Tasks: a selection problem with an evaluator."""

from __future__ import annotations

from typing import NamedTuple

from scope_torch.evaluators import Evaluator
from scope_torch.problem import SelectionProblem


class Task(NamedTuple):
    """What is searched, and where observations come from."""

    problem: SelectionProblem
    evaluator: Evaluator
