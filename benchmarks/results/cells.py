"""Tasks, methods and settings of the runs that are reported, and how runs are made of them."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.results import payoff
from benchmarks.results.runs import Cell

WORLDS = range(100, 110)
SEEDS = (10, 11, 12)
SIMULATED = ("data_imputation", "text_to_sql", "entity_resolution", "data_transformation")
# Of docs/recorded.md: for choosing, and only for reporting; not alpaca_eval, whose costs are
# notional, so that neither an optimum nor USD of a search mean anything.
RECORDED_DEVELOPMENT = ("restaurant", "bfcl_2024", "openhands_swe_bench", "bfcl_fallback")
RECORDED = (
    *("restaurant_test", "agentopt_bfcl", "agentopt_gpqa_effort", "openhands_swt_bench"),
    *("openhands_gaia", "swebench_bash_only", "bing"),
)
LIKE_RECORDED = "task.family=recorded_like"
PROBLEMS = Path(__file__).with_name("problems.toml")

LETTER = {
    "scope, to the letter": ("method=scope_letter",),
    "scope, b_g=eligible": (
        *("method=scope", "method.gap_tolerance=null"),
        "method.bounds.b_g=eligible",
    ),
}
OURS = {"scope_joint": ("method=scope_joint",), "scope": ("method=scope",)}
# Without what was chosen on the recordings for development.
EARLIER = payoff.EARLIER
UNTRIED = {
    "scope_joint, as before": ("method=scope_joint", *EARLIER),
    "scope_joint, cost_scale = least_squares, verify = 3": (
        *("method=scope_joint", "method.verify=3"),
        "method.cost_scale=least_squares",
    ),
    "scope_joint, verify = 0": ("method=scope_joint", "method.verify=0"),
    "scope_joint, calibration_queries = null": ("method=scope_joint", EARLIER[0]),
}
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
# What the paper compares beside our rules: its letter, its ablation, and a stand-in for LLAMBO.
PAPERS = {**LETTER, **VARIANTS, **STUB}
MAIN = {**OURS, **LETTER, **VARIANTS, **COMPETITORS, **STUB, **PEER}
# Settings chosen on HotpotQA and worlds 0 to 2 of data imputation, among those of `_tuning`.
CHOSEN = {
    "optuna_tpe": "optuna_tpe n_startup=10",
    "optuna_nsga2": "optuna_nsga2 population=20",
    "smac": "smac n_startup=10",
    "botorch": "botorch n_startup=10",
    "ax": "ax n_startup=10",
}
# On recordings fewer configurations are tried: chosen on three of those for choosing, Ax on two.
CHOSEN_ON_RECORDINGS = {
    "optuna_tpe": "optuna_tpe n_startup=2",
    "optuna_nsga2": "optuna_nsga2 population=2",
    "smac": "smac n_startup=5",
    "botorch": "botorch n_startup=5",
    "ax": CHOSEN["ax"],
}
IMPUTATION = ("task=data_imputation",)
Variants = Mapping[str, Sequence[str]]


def simulated(
    tasks: Iterable[str],
    variants: Variants,
    *more: str,
    seeds: Iterable[int] = SEEDS,
    worlds: Iterable[int] = WORLDS,
    peer: str = "",
) -> list[Cell]:
    """Runs on simulated worlds; the first seed of everything comes before the second."""
    return [
        Cell(task, method, seed, world, (f"task={task}", *of_method, *more), peer)
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


def on_recordings(
    tasks: Iterable[str], variants: Variants, seeds: Iterable[int], peer: str = ""
) -> list[Cell]:
    """Runs on what others recorded."""
    return [
        Cell(f"recorded/{task}", method, seed, None, (f"task=recorded/{task}", *of), peer)
        for task, (method, of), seed in itertools.product(tasks, variants.items(), seeds)
    ]


def on_tables(variants: Variants, seeds: Iterable[int], peer: str = "") -> list[Cell]:
    """Runs on recorded tables."""
    return [
        Cell(problem, method, seed, None, (*of_problem, *of_method), peer)
        for seed, (problem, of_problem), (method, of_method) in itertools.product(
            seeds, recorded_problems().items(), variants.items()
        )
    ]


def chosen(*names: str) -> dict[str, tuple[str, ...]]:
    return {name: MAIN[name] for name in names}


def bases(
    name: str, task: tuple[str, ...], bases: Sequence[str], epsilons: Sequence[float], seeds: range
) -> list[Cell]:
    """A recorded system from several bases, with several tolerances."""
    return [
        Cell(name, f"{base}, epsilon {epsilon}", seed, None, (*task, *more))
        for base, epsilon, seed in itertools.product(bases, epsilons, seeds)
        for more in [(*OURS["scope_joint"], f"base={base}", f"task.epsilon={epsilon}")]
    ]
