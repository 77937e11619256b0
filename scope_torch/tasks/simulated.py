"""The paper's tasks, simulated."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scope_torch.errors import InputError
from scope_torch.evaluators.simulation.evaluator import SimulatedEvaluator
from scope_torch.evaluators.simulation.spec import load_worlds
from scope_torch.evaluators.simulation.world import REFERENCE, World
from scope_torch.llm.prices import load_llms
from scope_torch.problem import SelectionProblem, codes_of
from scope_torch.tasks import HeldOut, Task


def simulated_task(
    *,
    name: str,
    world: str,
    reference: str = REFERENCE,
    epsilon: float = 0.01,
    world_seed: int = 0,
    randomness: float = 0.0,
    cost_noise: float = 0.03,
    noise_seed: int = 0,
    llms: Sequence[str] | None = None,
    world_file: str | None = None,
    price_file: str | None = None,
    cache_dir: str | None = None,
    device: str | None = None,
) -> Task:
    """A simulated compound system with its problem; nothing is called and nothing is paid.

    Args:
        name: Shown in paths, logs and plots; let it say that the task is simulated.
        world: A task of the world file: text_to_sql, data_transformation, data_imputation or
            entity_resolution.
        reference: theta_0 uses this LLM everywhere.
        epsilon: Tolerated relative loss of quality, in (0, 1).
        world_seed: Which draw of everything random.
        randomness: See `World`.
        cost_noise: See `SimulatedEvaluator`.
        noise_seed: See `SimulatedEvaluator`.
        llms: Candidates of every module; None for all that have a price.
        world_file: See `load_worlds`.
        price_file: See `load_llms`.
        cache_dir: See `SimulatedEvaluator`.
        device: Where expectations are evaluated; None for the CPU.

    Raises:
        InputError: If the task or an LLM is unknown, or a value is outside its range.
    """
    worlds = load_worlds(world_file)
    if world not in worlds:
        raise InputError(f"no simulated task {world!r}; there are {list(worlds)}")
    spec = worlds[world]
    price_list = load_llms(price_file)

    def draw(split: str) -> World:
        return World(
            spec,
            price_list,
            llms=llms,
            world_seed=world_seed,
            split=split,
            randomness=randomness,
            device=device,
        )

    def observe(drawn: World) -> SimulatedEvaluator:
        return SimulatedEvaluator(
            drawn, cost_noise=cost_noise, noise_seed=noise_seed, cache_dir=cache_dir
        )

    drawn = draw("search")
    modules = tuple(module.name for module in spec.modules)
    candidates = (tuple(llm.name for llm in drawn.llms),) * len(modules)
    theta_ref = codes_of([reference] * len(modules), modules, candidates, "reference")
    codes = [torch.tensor(code, device=drawn.device) for code in theta_ref]
    queries = torch.arange(drawn.num_queries, device=drawn.device)
    cost_usd = torch.stack(drawn.module_costs(codes, queries)).sum(0).mean()
    problem = SelectionProblem(
        name=name,
        modules=modules,
        llms=candidates,
        num_queries=drawn.num_queries,
        theta_ref=theta_ref,
        reference_quality=float(drawn.quality(codes, queries).mean()),
        reference_cost_usd=float(cost_usd),
        epsilon=epsilon,
    )
    return Task(
        problem, observe(drawn), lambda: HeldOut(observe(draw("test")), spec.num_test_queries)
    )
