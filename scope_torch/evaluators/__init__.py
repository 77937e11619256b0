"""Where observations come from: callables, recorded tables, live systems, simulated worlds."""

from scope_torch.runs.evaluator import Evaluator, HasTruth

__all__ = ["Evaluator", "HasTruth"]
