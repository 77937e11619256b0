"""SCOPE-torch chooses which LLM runs each module of a compound AI system.

The public names are imported when they are first used, so `import scope_torch` is quick and does
not import torch.

Examples:
    >>> import scope_torch as st
    >>> problem = st.SelectionProblem(
    ...     name="answers",
    ...     modules=("retrieve", "answer"),
    ...     llms=(("mini", "pro"), ("mini", "pro")),
    ...     num_queries=50,
    ...     theta_ref=(1, 1),
    ...     reference_quality=0.9,
    ...     reference_cost_usd=0.02,
    ...     epsilon=0.1,
    ... )
    >>> problem.s_0  # the least average quality allowed
    0.81
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scope_torch import metrics as metrics

    __version__: str
    from scope_torch.constraints import Constraint, at_least, at_most
    from scope_torch.errors import InputError
    from scope_torch.evaluators.function import FunctionEvaluator
    from scope_torch.evaluators.table import RecordedTable, TableEvaluator
    from scope_torch.factors import LLM
    from scope_torch.llm.price_list import PriceList
    from scope_torch.llm.prices import load_llms
    from scope_torch.methods import make_scope, make_scope_joint
    from scope_torch.model.kernels import HammingKernel
    from scope_torch.observation import Observation, Request
    from scope_torch.problem import SelectionProblem
    from scope_torch.results.result import RunResult
    from scope_torch.results.saving import load_models
    from scope_torch.runs.callbacks import Callback
    from scope_torch.runs.runner import run
    from scope_torch.search.optimizer import Optimizer, SequentialOptimizer
    from scope_torch.search.rules import Rule
    from scope_torch.selection.check import check
    from scope_torch.selection.face import Selection, select
    from scope_torch.selection.recheck import recheck
    from scope_torch.serve.endpoint import Endpoint
    from scope_torch.traces.reference import load_reference

_MODULE_OF = {
    "Callback": "runs.callbacks",
    "Constraint": "constraints",
    "Endpoint": "serve.endpoint",
    "FunctionEvaluator": "evaluators.function",
    "HammingKernel": "model.kernels",
    "InputError": "errors",
    "LLM": "factors",
    "Observation": "observation",
    "Optimizer": "search.optimizer",
    "PriceList": "llm.price_list",
    "RecordedTable": "evaluators.table",
    "Request": "observation",
    "Rule": "search.rules",
    "RunResult": "results.result",
    "Selection": "selection.face",
    "SelectionProblem": "problem",
    "SequentialOptimizer": "search.optimizer",
    "TableEvaluator": "evaluators.table",
    "at_least": "constraints",
    "at_most": "constraints",
    "check": "selection.check",
    "load_llms": "llm.prices",
    "load_models": "results.saving",
    "load_reference": "traces.reference",
    "make_scope": "methods",
    "make_scope_joint": "methods",
    "recheck": "selection.recheck",
    "run": "runs.runner",
    "select": "selection.face",
}

__all__ = [  # noqa: RUF022 - in the order of use: the front door, problem, search, run, extensions
    "select",
    "Selection",
    "check",
    "recheck",
    "LLM",
    "Endpoint",
    "PriceList",
    "metrics",
    "SelectionProblem",
    "Constraint",
    "at_least",
    "at_most",
    "make_scope",
    "make_scope_joint",
    "FunctionEvaluator",
    "RecordedTable",
    "TableEvaluator",
    "load_llms",
    "run",
    "RunResult",
    "load_models",
    "load_reference",
    "Callback",
    "Observation",
    "Request",
    "Optimizer",
    "SequentialOptimizer",
    "Rule",
    "HammingKernel",
    "InputError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used (PEP 562)."""
    if name == "__version__":
        return _version()
    if name == "metrics":
        return import_module("scope_torch.metrics")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"scope_torch.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def _version() -> str:
    """Version of the installed distribution, or "unknown" if the folder was only copied."""
    from importlib import metadata

    try:
        return metadata.version("scope-torch")
    except metadata.PackageNotFoundError:
        return "unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
