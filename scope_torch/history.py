"""Old import path of observations and their journal."""

from scope_torch.errors import cannot_write
from scope_torch.observation import History, Observation, Request
from scope_torch.runs.journal import Journal

__all__ = ["History", "Journal", "Observation", "Request", "cannot_write"]
