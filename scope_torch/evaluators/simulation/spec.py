"""Simulated tasks as data: module graphs and the constants fitted to the paper's numbers."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError
from scope_torch.llm.prices import read_toml

WORLD_VERSION = 1


@dataclass(frozen=True)
class ModuleSpec:
    """One module of a simulated system.

    Args:
        name: Name of the module.
        parents: Names of the modules whose output it reads.
        prompt_tokens: Mean tokens of its prompt without the output of its parents.
        output_tokens: Mean tokens that an LLM of average verbosity writes.
        skill: Weight of an LLM's general ability.
        burden: Weight of a query's difficulty.
        repair: Share of its own margin by which it can mend what it was given.
    """

    name: str
    parents: tuple[str, ...]
    prompt_tokens: float
    output_tokens: float
    skill: float
    burden: float
    repair: float


@dataclass(frozen=True)
class WorldSpec:
    """A simulated task, and the constants fitted to the paper's numbers.

    Args:
        name: Name of the task.
        system: The compound system imitated.
        num_queries: Q.
        num_test_queries: Held-out queries (RQ2).
        reference_cost_usd: c of GPT-5.2 everywhere, met exactly by scaling the tokens.
        reference_quality: s of GPT-5.2 everywhere, met to 1/Q by shifting all margins.
        modules: The modules in topological order.
        deviation: Spread of how well an LLM suits a module.
        mood: Spread of how well an LLM does at a module on a query.
        fit: Spread of the interaction of neighbouring LLMs.
        mismatch: Loss for every unit of ability by which the upstream LLM is stronger.
        chance: Spread of the chaotic effect of a whole configuration on a query.
        reference_deviation: What GPT-5.2 lacks at every module of this task, relative to its
            public scores; its system-level quality is far from the best in the paper.
        reference_verbosity: Tokens that GPT-5.2 writes relative to the mean LLM.
        verbosity: Spread of the logarithm of tokens written, among LLMs.
        module_verbosity: The same of an LLM at a module.
        query_verbosity: The same of an LLM at a module on a query.
        query_length: Spread of the logarithm of a query's prompt tokens.
        test_difficulty: By how much held-out queries are harder, in units of their spread.
        test_length: Factor of the held-out queries' prompt tokens.
    """

    name: str
    system: str
    num_queries: int
    num_test_queries: int
    reference_cost_usd: float
    reference_quality: float
    modules: tuple[ModuleSpec, ...]
    deviation: float
    mood: float
    fit: float
    mismatch: float
    chance: float
    reference_deviation: float
    reference_verbosity: float
    verbosity: float
    module_verbosity: float
    query_verbosity: float
    query_length: float
    test_difficulty: float
    test_length: float

    @property
    def parents(self) -> tuple[tuple[int, ...], ...]:
        """Positions of each module's parents."""
        position = {module.name: i for i, module in enumerate(self.modules)}
        return tuple(tuple(position[p] for p in module.parents) for module in self.modules)


def load_worlds(path: Path | str | None = None) -> dict[str, WorldSpec]:
    """Reads a world file.

    Args:
        path: A TOML file like `scope_torch/data/worlds.toml`; None for that one.

    Raises:
        InputError: If it cannot be read, is of another version, lacks a value, or names a parent
            that does not come before its child.
    """
    content = read_toml(path, "worlds.toml", WORLD_VERSION)
    common = content.get("common", {})
    worlds = {}
    for name, table in content.items():
        if name in ("version", "common"):
            continue
        where = f"{path or 'worlds.toml'}, [{name}]"
        if not isinstance(table, dict):
            raise InputError(f"{where}: {table!r} is not a table")
        values: dict[str, Any] = {**common, **table, "name": name}
        modules = [_spec(ModuleSpec, m, f"{where} modules") for m in values.get("modules", [])]
        world = _spec(WorldSpec, {**values, "modules": tuple(modules)}, where)
        for i, module in enumerate(world.modules):
            earlier = [m.name for m in world.modules[:i]]
            if not set(module.parents) <= set(earlier):
                raise InputError(
                    f"{where}: module {module.name!r} has parents {list(module.parents)}, but only "
                    f"{earlier} come before it"
                )
        worlds[name] = world
    return worlds


def _spec(cls: type, values: dict[str, Any], where: str) -> Any:
    names = {field.name for field in fields(cls)}
    if not isinstance(values, dict):
        raise InputError(f"{where}: {values!r} is not a table of {sorted(names)}")
    if names != set(values):
        missing, unknown = sorted(names - set(values)), sorted(set(values) - names)
        raise InputError(f"{where}: missing {missing}, unknown {unknown}")
    for field in fields(cls):
        value, numbers = values[field.name], {"int": int, "float": (int, float)}
        fits = isinstance(value, numbers.get(str(field.type), object))
        if isinstance(value, bool) or not fits or not _is_finite(value):
            raise InputError(f"{where}: {field.name}={value!r} must be of type {field.type}")
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def _is_finite(value: Any) -> bool:
    return not isinstance(value, int | float) or abs(value) <= sys.float_info.max
