"""Simulated tasks as data: module graphs and the constants fitted to the paper's numbers."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from scope_torch.errors import InputError
from scope_torch.llm.prices import read_toml

WORLD_VERSION = 2
FAMILIES = ("bottleneck", "additive", "recorded_like")


@dataclass(frozen=True)
class ModuleSpec:
    """One module of a simulated system.

    Args:
        name: Name of the module.
        parents: Names of the modules whose output it reads.
        prompt_tokens: Mean number of tokens of its prompt, without the output of its parents.
        output_tokens: Mean number of tokens that an LLM of average verbosity writes.
        skill: Weight of an LLM's general ability.
        burden: Weight of a query's difficulty.
        repair: Share of its own margin by which it can repair the output of its parents.
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
    """A simulated task, with the constants fitted to the paper's numbers.

    What a constant does in the other families is said in `AdditiveWorld` and `RecordedLikeWorld`.

    A spread is the standard deviation of a random effect, in the unit of margins where it is not
    said otherwise.

    Args:
        name: Name of the task.
        family: `bottleneck` (`World`), `additive` (`AdditiveWorld`) or `recorded_like`
            (`RecordedLikeWorld`).
        system: Name of the compound system that is imitated.
        num_queries: Q.
        num_test_queries: Number of held-out queries (RQ2).
        reference_cost_usd: c in USD of GPT-5.2 everywhere; tokens are scaled to meet it exactly.
        reference_quality: s of GPT-5.2 everywhere; margins are shifted to meet it up to 1/Q.
        reference_split: On which queries it has this quality: `search`, or `test` (held out).
        modules: The modules; each comes after its parents.
        deviation: Spread of the effect of an LLM at a module.
        mood: Spread of the effect of an LLM at a module on a query.
        fit: Spread of the effect of a pair of LLMs at neighbouring modules.
        mismatch: Loss for every unit of ability by which the upstream LLM is stronger.
        chance: Spread of the effect of a whole configuration on a query.
        reference_deviation: Effect of GPT-5.2 at every module of this task, in place of a random
            one: in the paper its quality in a system is far from the best, despite its scores.
        reference_verbosity: Tokens that GPT-5.2 writes, relative to the mean LLM.
        verbosity: Spread of the logarithm of the tokens written, among LLMs.
        module_verbosity: Spread of this logarithm for an LLM at a module.
        query_verbosity: Spread of this logarithm for an LLM at a module on a query.
        query_length: Spread of the logarithm of a query's prompt tokens.
        test_difficulty: Extra difficulty of held-out queries, in units of the queries' spread.
        test_length: Factor on the prompt tokens of held-out queries.
        taste: Spread of the effect of a query's kind on an LLM; not in `bottleneck`.
        pace: Spread of the logarithm of the effect of a pair of LLMs on the tokens written; not in
            `bottleneck`.
    """

    name: str
    family: str
    system: str
    num_queries: int
    num_test_queries: int
    reference_cost_usd: float
    reference_quality: float
    reference_split: str
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
    taste: float
    pace: float

    @property
    def parents(self) -> tuple[tuple[int, ...], ...]:
        """For each module, the positions of its parents."""
        position = {module.name: i for i, module in enumerate(self.modules)}
        return tuple(tuple(position[p] for p in module.parents) for module in self.modules)


@dataclass(frozen=True)
class RecordedLikeSpec(WorldSpec):
    """A simulated task of the family `recorded_like`.

    Args:
        failure: Loss of margin where an LLM, or a pair of LLMs, fails.
        failing: Share of the LLMs that fail at a module.
        failing_pairs: Share of the pairs of LLMs at neighbouring modules that fail.
        longest_tail: The largest spread of the logarithm of the tokens written on a query; that of
            an LLM is drawn between it and `query_verbosity`.
        effort: By how much the logarithm of the tokens written grows with an LLM's ability.
    """

    failure: float
    failing: float
    failing_pairs: float
    longest_tail: float
    effort: float


def load_worlds(path: Path | str | None = None) -> dict[str, WorldSpec]:
    """Reads simulated tasks from a file.

    Args:
        path: A TOML file like `scope_torch/data/worlds.toml`; None for that file.

    Returns:
        The tasks by name.

    Raises:
        InputError: If the file cannot be read, is of another version, lacks a value, or names a
            parent that does not come before its child.

    Examples:
        >>> world = load_worlds()["text_to_sql"]
        >>> [module.name for module in world.modules], world.num_queries
        (['schema_linking', 'decomposition', 'generation', 'correction'], 500)
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
        spec = RecordedLikeSpec if values.get("family") == "recorded_like" else WorldSpec
        world = _spec(spec, {**values, "modules": tuple(modules)}, where)
        _check_names(world, where)
        _check_order(world, where)
        worlds[name] = world
    return worlds


def _check_names(world: WorldSpec, where: str) -> None:
    for name, known in {"family": FAMILIES, "reference_split": ("search", "test")}.items():
        if (value := getattr(world, name)) not in known:
            raise InputError(f"{where}: {name}={value!r} must be one of {list(known)}")


def _check_order(world: WorldSpec, where: str) -> None:
    for i, module in enumerate(world.modules):
        earlier = [m.name for m in world.modules[:i]]
        if not set(module.parents) <= set(earlier):
            raise InputError(
                f"{where}: module {module.name!r} has parents {list(module.parents)}, but only "
                f"{earlier} come before it; list each module after its parents"
            )


def _spec(cls: type, values: dict[str, Any], where: str) -> Any:
    """Makes a spec of `cls` from the values of a TOML table; checks names and types."""
    names = {field.name for field in fields(cls)}
    if not isinstance(values, dict):
        raise InputError(f"{where}: {values!r} is not a table of {sorted(names)}")
    if names != set(values):
        missing, unknown = sorted(names - set(values)), sorted(set(values) - names)
        raise InputError(
            f"{where}: missing {missing}, unknown {unknown}; give each of {sorted(names)} once"
        )
    for field in fields(cls):
        _check_type(field.name, values[field.name], str(field.type), where)
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def _check_type(name: str, value: Any, expected: str, where: str) -> None:
    numbers = {"int": int, "float": (int, float)}
    fits = isinstance(value, numbers.get(expected, object))
    if isinstance(value, bool) or not fits or not _is_finite(value):
        raise InputError(f"{where}: {name}={value!r} must be of type {expected}")


def _is_finite(value: Any) -> bool:
    return not isinstance(value, int | float) or abs(value) <= sys.float_info.max
