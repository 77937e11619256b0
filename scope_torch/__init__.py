"""SCOPE-torch: which LLM should run each module of a compound AI system.

The names below are imported when they are first used, so that `import scope_torch` is quick and
does not import torch.

Example:
    >>> import scope_torch as st
    >>> st.InputError.__mro__[1]
    <class 'ValueError'>
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from scope_torch._moved import MovedFinder

if TYPE_CHECKING:
    __version__: str
    from scope_torch.errors import InputError
    from scope_torch.evaluators.function import FunctionEvaluator
    from scope_torch.evaluators.table import RecordedTable, TableEvaluator
    from scope_torch.llm.prices import load_llms
    from scope_torch.methods import make_scope, make_scope_joint
    from scope_torch.model.kernels import HammingKernel
    from scope_torch.observation import Observation, Request
    from scope_torch.problem import SelectionProblem
    from scope_torch.runs.callbacks import Callback
    from scope_torch.runs.result import RunResult
    from scope_torch.runs.runner import run
    from scope_torch.search.optimizer import Optimizer, SequentialOptimizer

_MODULE_OF = {
    "Callback": "runs.callbacks",
    "FunctionEvaluator": "evaluators.function",
    "HammingKernel": "model.kernels",
    "InputError": "errors",
    "Observation": "observation",
    "Optimizer": "search.optimizer",
    "RecordedTable": "evaluators.table",
    "Request": "observation",
    "RunResult": "runs.result",
    "SelectionProblem": "problem",
    "SequentialOptimizer": "search.optimizer",
    "TableEvaluator": "evaluators.table",
    "load_llms": "llm.prices",
    "make_scope": "methods",
    "make_scope_joint": "methods",
    "run": "runs.runner",
}

__all__ = [  # noqa: RUF022 - by what a reader looks for: problem, search, run, extensions
    "SelectionProblem",
    "make_scope",
    "make_scope_joint",
    "FunctionEvaluator",
    "RecordedTable",
    "TableEvaluator",
    "load_llms",
    "run",
    "RunResult",
    "Callback",
    "Observation",
    "Request",
    "Optimizer",
    "SequentialOptimizer",
    "HammingKernel",
    "InputError",
    "__version__",
]

if not any(isinstance(finder, MovedFinder) for finder in sys.meta_path):
    sys.meta_path.append(MovedFinder())


def __getattr__(name: str) -> Any:
    """PEP 562: imports a public name when it is first used."""
    if name == "__version__":
        return _version()
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"scope_torch.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def _version() -> str:
    """The version of the installed distribution; "unknown" in a folder that was only copied."""
    from importlib import metadata

    try:
        return metadata.version("scope-torch")
    except metadata.PackageNotFoundError:
        return "unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
