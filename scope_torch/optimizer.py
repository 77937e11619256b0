"""The ask/tell interface of searches; this path is kept for programs that import it."""

from scope_torch.search.optimizer import (
    Basis,
    Described,
    Optimizer,
    Recommendation,
    SequentialOptimizer,
    Steps,
    TraceRow,
)

__all__ = [
    "Basis",
    "Described",
    "Optimizer",
    "Recommendation",
    "SequentialOptimizer",
    "Steps",
    "TraceRow",
]
