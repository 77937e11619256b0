"""Import path of `run` and of its callbacks and results."""

from scope_torch.results.result import RunResult
from scope_torch.runs.callbacks import Callback, Outcome
from scope_torch.runs.runner import run, run_settings

__all__ = ["Callback", "Outcome", "RunResult", "run", "run_settings"]
