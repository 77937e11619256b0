"""Simulations of the paper's tasks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scope_torch.errors import InputError
from scope_torch.evaluators.simulation.evaluator import SimulatedEvaluator
from scope_torch.evaluators.simulation.families import make_world
from scope_torch.evaluators.simulation.spec import FAMILIES, load_worlds
from scope_torch.evaluators.simulation.world import REFERENCE, World
from scope_torch.llm.prices import load_llms
from scope_torch.problem import SelectionProblem, codes_of
from scope_torch.tasks import HeldOutQueries, Task

_FILES = {
    "bottleneck": None,
    "additive": "additive_worlds.toml",
    "recorded_like": "recorded_like_worlds.toml",
}


def simulated_task(
    *,
    name: str,
    world: str,
    family: str = "bottleneck",
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
    outcomes: bool = False,
    device: str | None = None,
) -> Task:
    """A simulated compound system with its problem; calls no LLM and costs nothing.

    Args:
        name: Name of the task in paths, logs and plots; it should say that the task is simulated.
        world: A task of the world file: text_to_sql, data_transformation, data_imputation or
            entity_resolution.
        family: Which worlds: `bottleneck` (`World`), `additive` (`AdditiveWorld`) or
            `recorded_like` (`RecordedLikeWorld`).
        reference: The LLM that theta_0 uses in every module.
        epsilon: Tolerated relative loss of quality, in (0, 1).
        world_seed: Seed of everything random in the system and its queries.
        randomness: Scale of the randomness of answers; see `World`.
        cost_noise: Relative spread of observed costs; see `SimulatedEvaluator`.
        noise_seed: Seed of the observations; see `SimulatedEvaluator`.
        llms: Candidates of every module; None for all LLMs that have a price.
        world_file: TOML file of the tasks, see `load_worlds`; None for that of the family.
        price_file: TOML file of the prices; see `load_llms`.
        cache_dir: Folder for the true averages; see `SimulatedEvaluator`.
        outcomes: Whether observations carry `latency_s` and `output_tokens`.
        device: Where expectations are computed; None for the CPU.

    Raises:
        InputError: If the task or an LLM is unknown, or a value is outside its range.

    Examples:
        >>> task = simulated_task(name="er_simulated", world="entity_resolution")
        >>> task.problem.space.size, task.problem.num_queries
        (12167, 2293)
    """
    if family not in FAMILIES:
        raise InputError(f"family={family!r} must be one of {list(FAMILIES)}")
    worlds = load_worlds(world_file or _FILES[family])
    if world not in worlds:
        raise InputError(f"no simulated task {world!r}; there are {list(worlds)}")
    spec = worlds[world]
    price_list = load_llms(price_file)

    def evaluator(split: str) -> SimulatedEvaluator:
        drawn = make_world(
            spec,
            price_list,
            llms=llms,
            world_seed=world_seed,
            split=split,
            randomness=randomness,
            device=device,
        )
        return SimulatedEvaluator(
            drawn,
            cost_noise=cost_noise,
            noise_seed=noise_seed,
            cache_dir=cache_dir,
            outcomes=outcomes,
        )

    search = evaluator("search")
    problem = problem_of(name, search.world, reference, epsilon)
    return Task(problem, search, lambda: HeldOutQueries(evaluator("test"), spec.num_test_queries))


def problem_of(name: str, world: World, reference: str, epsilon: float) -> SelectionProblem:
    """The problem on a world, with the expected cost and quality of the reference.

    Its answers are expectations too: s(theta_0) is known here, and they must average to it.
    """
    modules = tuple(module.name for module in world.spec.modules)
    candidates = (tuple(llm.name for llm in world.llms),) * len(modules)
    theta_ref = codes_of([reference] * len(modules), modules, candidates, "reference")
    codes = [torch.tensor(code, device=world.device) for code in theta_ref]
    queries = torch.arange(world.num_queries, device=world.device)
    cost_usd = torch.stack(world.module_costs(codes, queries)).sum(0)
    quality = world.quality(codes, queries)
    return SelectionProblem(
        name=name,
        modules=modules,
        llms=candidates,
        num_queries=world.num_queries,
        theta_ref=theta_ref,
        reference_quality=float(quality.mean()),
        reference_cost_usd=float(cost_usd.mean()),
        epsilon=epsilon,
        reference_answers=tuple(zip(cost_usd.tolist(), quality.tolist(), strict=True)),
    )
