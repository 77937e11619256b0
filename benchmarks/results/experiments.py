"""All runs that are reported, by experiment.

Rules and defaults were chosen on world seeds 0 to 4 and on HotpotQA. All but the
calibration of the worlds is run on others: world seeds 100 to 109 with seeds 10 to 12, MathQA, and
the problems of `problems.toml`.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.results.runs import Cell

WORLDS = range(100, 110)
SEEDS = (10, 11, 12)
SIMULATED = ("data_imputation", "text_to_sql", "entity_resolution", "data_transformation")
PROBLEMS = Path(__file__).with_name("problems.toml")

_LETTER = ("method=scope", "method.gap_tolerance=null")
LETTER = {
    "scope, to the letter": (*_LETTER, "method.bounds.mode=theory", "method.bounds.B_g=eligible"),
    "scope, b_g=eligible": (*_LETTER, "method.bounds.b_g=eligible"),
}
OURS = {"scope_joint": ("method=scope_joint",), "scope": ("method=scope",)}
VARIANTS = {"scope_rand": ("method=scope_rand",), "scope_coarse": ("method=scope_coarse",)}
COMPETITORS = {
    name: (f"method={name}",)
    for name in ("cei", "config_bo", "safeopt", "llmselector", "abacus", "random_search")
}
STUB = {"LLAMBO[stub]": ("method=llambo",)}
# LLAMBO with an LLM that runs anywhere (`scripts/local_llms.py serve --slots 8`). Few replies a
# step, because each takes seconds to minutes.
ENDPOINT = "http://127.0.0.1:18130/v1"
_BACKEND = {
    "kind": "openai",
    "model": "qwen2.5-coder-1.5b",
    "base_url": ENDPOINT,
    "api_key_env": "null",
    "token_parameter": "max_tokens",
    "min_tokens": 400,
    "sampling": "true",
    "multiple": "false",
    "timeout_s": 900,
    "transcript": "build/results/llambo.jsonl",
}
_FEW = ("num_candidates=4", "min_candidates=2", "num_templates=1", "num_predictions=2")
LLAMBO = {
    "LLAMBO[Qwen2.5-Coder-1.5B]": (
        "method=llambo",
        *(f"method.backend.{key}={value}" for key, value in _BACKEND.items()),
        *(f"method.{setting}" for setting in _FEW),
    )
}
PEER = {"optuna_gp": ("method=optuna_gp",)}
MAIN = {**OURS, **LETTER, **VARIANTS, **COMPETITORS, **STUB, **PEER}
# Settings chosen on HotpotQA and worlds 0 to 2 of data imputation, among those of `_tuning`.
CHOSEN = {
    "optuna_tpe": "optuna_tpe n_startup=10",
    "optuna_nsga2": "optuna_nsga2 population=20",
    "smac": "smac n_startup=10",
    "botorch": "botorch n_startup=10",
    "ax": "ax n_startup=10",
}
_SMALL = ("data_imputation", "mathqa", "mathqa 1", "airport_city", "restaurant")
_STARTS = (5, 10, 20)  # trials before a library's model is used, or of a population
Variants = Mapping[str, Sequence[str]]


def simulated(
    tasks: Iterable[str],
    variants: Variants,
    *more: str,
    seeds: Iterable[int] = SEEDS,
    worlds: Iterable[int] = WORLDS,
) -> list[Cell]:
    """Runs on simulated worlds; the first seed of everything comes before the second."""
    return [
        Cell(task, method, seed, world, (f"task={task}", *of_method, *more))
        for seed, task, world, (method, of_method) in itertools.product(
            seeds, tasks, worlds, variants.items()
        )
    ]


def recorded_problems() -> dict[str, tuple[str, ...]]:
    """The problems of `problems.toml`, and MathQA as it ships."""
    with PROBLEMS.open("rb") as file:
        listed = tomllib.load(file)["problem"]
    problems = {"mathqa": ("task=mathqa",)}
    for given in listed:
        reference = ",".join(given["reference"])
        problems[given["name"]] = (
            f"task={given['task']}",
            f"task.reference=[{reference}]",
            f"task.epsilon={given['epsilon']}",
            f"base={given['base']}",
        )
    return problems


def on_tables(variants: Variants, seeds: Iterable[int]) -> list[Cell]:
    """Runs on recorded tables."""
    return [
        Cell(problem, method, seed, None, (*of_problem, *of_method))
        for seed, (problem, of_problem), (method, of_method) in itertools.product(
            seeds, recorded_problems().items(), variants.items()
        )
    ]


def _parameters() -> dict[str, tuple[str, ...]]:
    """SCOPE with other alpha, and with other delta where delta acts (appendix:ablation)."""
    alphas = {"1/5": 0.2, "1/3": 1 / 3, "1/2 - 1e-9": 0.5 - 1e-9}
    variants = {f"alpha = {n}": ("method=scope", f"method.alpha={a}") for n, a in alphas.items()}
    modes = {
        "theory, delta": ("method.bounds.mode=theory", "method.bounds.B_g=eligible"),
        "sequence, delta": ("method.certificate=sequence",),
    }
    for mode, overrides in modes.items():
        for delta in ("1e-5", "1e-4", "1e-3"):
            key = f"{mode} = {delta}"
            variants[key] = ("method=scope", *overrides, f"method.bounds.delta={delta}")
    return variants


def _tuning() -> list[Cell]:
    """Every peer with few, some and many trials at the start; Ax is too slow for a choice."""
    shipped = [("hotpotqa", seed, None) for seed in range(3)]
    worlds = [("data_imputation", 0, world) for world in range(3)]
    cells: list[Cell] = []
    for name, (problem, seed, world) in itertools.product(CHOSEN, [*shipped, *worlds]):
        key = CHOSEN[name].split()[1].partition("=")[0]
        for start in _STARTS if name != "ax" else ():
            peer = f"{name} {key}={start}"
            cells.append(Cell(problem, peer, seed, world, (f"task={problem}",), peer))
    return cells


def _peers() -> list[Cell]:
    """The peers beside our searches, on MathQA and two simulated tasks."""
    problems = [("mathqa", seed, None) for seed in SEEDS]
    problems += [("data_imputation", SEEDS[0], world) for world in WORLDS]
    problems += [("text_to_sql", SEEDS[0], world) for world in WORLDS]
    cells: list[Cell] = []
    for name, (problem, seed, world) in itertools.product(CHOSEN, problems):
        if name != "ax" or (problem == "mathqa" and seed == SEEDS[0]):  # hours for each of others
            cells.append(Cell(problem, name, seed, world, (f"task={problem}",), CHOSEN[name]))
    return cells


def _systems() -> list[Cell]:
    """Systems of small LLMs that were recorded in full; LLAMBO with an LLM on one of them."""
    others = _chosen("scope_joint", "scope", *COMPETITORS, *STUB, *PEER)
    planned = itertools.product(("airport_city", "restaurant"), SEEDS, others.items())
    cells = [(task, name, seed, of) for task, seed, (name, of) in planned]
    cells += [("airport_city", name, SEEDS[0], of) for name, of in LLAMBO.items()]
    return [Cell(task, name, seed, None, (f"task={task}", *of)) for task, name, seed, of in cells]


def _chosen(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: MAIN[name] for name in names}


def experiments() -> dict[str, list[Cell]]:
    """The runs of each experiment, in the order in which they are made."""
    sensitive = _chosen("scope_joint", "scope", "cei", "config_bo")
    with_llambo = {**sensitive, **STUB}
    haiku = "task.reference=Claude Haiku 4.5"
    other = _chosen("scope_joint", "scope", *COMPETITORS, *PEER)
    tables = _chosen("scope_joint", "scope", *COMPETITORS, *STUB, *PEER)
    simple = {name: COMPETITORS[name] for name in ("random_search", "cei", "config_bo", "abacus")}
    fitted = simulated(SIMULATED, simple, seeds=[0], worlds=range(5))
    second = simulated(SIMULATED, simple, "task.family=additive", seeds=[0], worlds=range(5))
    return {
        "calibration": [*fitted, *(replace(c, problem=f"{c.problem}, additive") for c in second)],
        "main": simulated(SIMULATED, MAIN),
        "tables": on_tables(tables, range(10, 15)),
        "systems": _systems(),
        "additive": simulated(SIMULATED, other, "task.family=additive"),
        "kernel": simulated(["data_imputation"], sensitive, "kernel=rbf"),
        "reference": simulated(["data_imputation"], with_llambo, haiku),
        "parameters": simulated(["data_imputation"], _parameters()),
        "peers_tuning": _tuning(),
        "peers": _peers(),
    }


def quick() -> dict[str, list[Cell]]:
    """A few small runs of each experiment, to see that all of it works."""
    few: dict[str, list[Cell]] = {}
    for name, cells in experiments().items():
        small = [c for c in cells if c.problem in _SMALL and c.method not in LLAMBO]
        first = [c for c in small if c.seed == SEEDS[0] and c.world in (None, WORLDS[0])]
        few[name] = [
            replace(c, overrides=(*c.overrides, "budget_usd=0.4"))
            for c in first
            if c.method in ("optuna_tpe", "optuna_nsga2") or not c.peer
        ]
    return few
