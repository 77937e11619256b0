"""Evaluators: callables, recorded tables, live systems, simulated systems."""

from scope_torch.runs.evaluator import Evaluator, HasTruth

__all__ = ["Evaluator", "HasTruth"]
