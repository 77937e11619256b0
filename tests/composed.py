"""SCOPE around confidence bounds of one's own, with theta_base as codes."""

from typing import Any

from scope_torch.bounds.base import ConfidenceBounds
from scope_torch.methods import make_scope
from scope_torch.problem import SelectionProblem
from scope_torch.search.scope import SCOPE


def compose_scope(
    problem: SelectionProblem, bounds: ConfidenceBounds, *, base: Any = None, **settings: Any
) -> SCOPE:
    names = None if base is None else list(problem.names(tuple(base)).values())
    return make_scope(problem, bounds=bounds, base=names, **settings)
