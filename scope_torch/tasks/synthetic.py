"""A small made-up table, to try things out without data."""

from __future__ import annotations

import numpy as np

from scope_torch.errors import InputError
from scope_torch.evaluators.table import RecordedTable, TableEvaluator
from scope_torch.tasks import Task

PRICES = {  # made-up LLMs: name -> (USD per million tokens, ability)
    "nano": (0.05, -0.8),
    "mini": (0.15, 0.1),
    "small": (0.4, 0.5),
    "medium": (1.2, 0.8),
    "large": (4.0, 1.0),
    "frontier": (12.0, 1.1),
}


def synthetic_task(
    *,
    name: str = "synthetic",
    num_modules: int = 2,
    num_queries: int = 60,
    world_seed: int = 3,
    epsilon: float = 0.05,
) -> Task:
    """A made-up table of six LLMs in a chain of modules; theta_0 is `frontier` everywhere.

    A query succeeds (quality 1, else 0) if the abilities of the LLMs outweigh its difficulty. Each
    (LLM, module) and each (configuration, query) adds a random effect. Cost is tokens times price.
    No number describes a real LLM.

    Args:
        name: Name of the task.
        num_modules: N, from 1 to 5.
        num_queries: Q, from 1 to 10000.
        world_seed: Seed of the table; independent of the seed of a search.
        epsilon: Tolerated relative loss of quality, in (0, 1).

    Raises:
        InputError: If a value is outside its range.

    Examples:
        >>> task = synthetic_task(num_queries=20)
        >>> task.problem.space.size, task.problem.names(task.problem.theta_ref)
        (36, {'module_1': 'frontier', 'module_2': 'frontier'})
    """
    if not 1 <= num_modules <= 5:
        raise InputError(f"num_modules={num_modules} must be 1 to 5: the table is held in memory")
    if not 1 <= num_queries <= 10_000:
        raise InputError(f"num_queries={num_queries} must be 1 to 10000: the table is in memory")
    if world_seed < 0:
        raise InputError(f"world_seed={world_seed} must be at least 0")
    table = _table(num_modules, num_queries, np.random.default_rng(world_seed))
    problem = table.problem(name, ("frontier",) * num_modules, epsilon)
    return Task(problem, TableEvaluator(table))


def _table(num_modules: int, num_queries: int, rng: np.random.Generator) -> RecordedTable:
    llms = tuple(sorted(PRICES))
    price = np.array([PRICES[llm][0] for llm in llms]) * 1e-6
    ability = np.array([PRICES[llm][1] for llm in llms])
    shape = (len(llms),) * num_modules
    strength = np.zeros((*shape, 1))
    cost = np.zeros((*shape, num_queries))
    for i in range(num_modules):
        axis = [1] * (num_modules + 1)
        axis[i] = len(llms)
        effect = ability * rng.uniform(0, 2) + rng.normal(0, 0.3, len(llms))
        strength = strength + effect.reshape(axis) / num_modules
        tokens = rng.lognormal(np.log(1500), 0.4, num_queries)
        verbosity = rng.lognormal(0, 0.3, len(llms))
        cost = cost + (price * verbosity).reshape(axis) * tokens
    difficulty = rng.normal(0.0, 1.0, num_queries)
    luck = rng.normal(0, 0.3, (*shape, num_queries))
    quality = (strength + luck > difficulty).astype(np.float64)
    modules = tuple(f"module_{i + 1}" for i in range(num_modules))
    queries = tuple(str(q) for q in range(num_queries))
    return RecordedTable(modules, (llms,) * num_modules, queries, cost, quality)
