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
    """The world of a task, of the family that the task says; arguments as in `World`.

    Examples:
        >>> from scope_torch.evaluators.simulation.spec import load_worlds
        >>> from scope_torch.llm.prices import load_llms
        >>> spec = load_worlds("recorded_like_worlds.toml")["data_imputation"]
        >>> world = make_world(spec, load_llms(), llms=["GPT-5.2"])
        >>> round(float(world.mean_cost()), 5)  # c(theta_0)
        0.00434
    """
    return _FAMILIES[spec.family](spec, price_list, **options)
