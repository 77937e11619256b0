"""The families of simulated worlds."""

from __future__ import annotations

from typing import Any

from scope_torch.evaluators.simulation.additive import AdditiveWorld
from scope_torch.evaluators.simulation.recorded_like import RecordedLikeWorld
from scope_torch.evaluators.simulation.spec import WorldSpec
from scope_torch.evaluators.simulation.world import World
from scope_torch.llm.prices import LLMInfo

_FAMILIES = {
    "bottleneck": World,
    "additive": AdditiveWorld,
    "recorded_like": RecordedLikeWorld,
}


def make_world(spec: WorldSpec, price_list: dict[str, LLMInfo], **options: Any) -> World:
    """The world of a task, of the family that the task says; arguments as in `World`."""
    return _FAMILIES[spec.family](spec, price_list, **options)
