"""Keeps the import paths of version 0.1 working after their modules have moved."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "botorch_model": "model.botorch",
    "branch_and_bound": "space_search.branch_and_bound",
    "calibrate": "search.calibrate",
    "confidence_sequence": "bounds.betting",
    "cost_scale": "model.cost_scale",
    "deployment": "runs.deployment",
    "evaluators.simulated": "evaluators.simulation.evaluator",
    "evaluators.world": "evaluators.simulation.world",
    "evaluators.world_spec": "evaluators.simulation.spec",
    "finished_runs": "runs.finished",
    "grid_posterior": "space_search.grid",
    "hamming_grid": "model.hamming_sums",
    "information_gain": "bounds.information_gain",
    "joint_surrogate": "model.joint",
    "plotting": "results.plotting",
    "posteriors": "model.aggregate",
    "recorded_run": "runs.recorded",
    "scope": "search.scope",
    "surrogate": "model.per_query",
}


class MovedFinder(MetaPathFinder):
    """Finds a module of `MOVED` under its old name, with a DeprecationWarning."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the interface's
        target: ModuleType | None = None,  # noqa: ARG002 - the interface's
    ) -> ModuleSpec | None:
        """Redirects an old name; None for any other (see `importlib.abc.MetaPathFinder`)."""
        package, _, old = fullname.partition(".")
        if package != "scope_torch" or old not in MOVED:
            return None
        return ModuleSpec(fullname, _Redirect(f"scope_torch.{MOVED[old]}"))


class _Redirect(Loader):
    """Puts the new module into `sys.modules` under its old name, too."""

    def __init__(self, new: str) -> None:
        self._new = new

    def exec_module(self, module: ModuleType) -> None:
        """Warns, and replaces the empty `module` by the new one (see `importlib.abc.Loader`)."""
        old = module.__name__
        warnings.warn(f"{old} is now {self._new}", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(self._new)
