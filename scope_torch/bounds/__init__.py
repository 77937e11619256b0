"""Confidence bounds on average cost and constraint, and certificates (eq:lcb-ours, eq:beta-def)."""

from scope_torch.bounds.base import Beta, ConfidenceBounds
from scope_torch.bounds.credible import CredibleBounds
from scope_torch.bounds.theory import TheoryBounds
from scope_torch.bounds.tuned import TunedBounds

__all__ = ["Beta", "ConfidenceBounds", "CredibleBounds", "TheoryBounds", "TunedBounds"]
