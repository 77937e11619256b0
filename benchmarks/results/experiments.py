"""All runs that are reported, by experiment.

Rules and defaults are chosen on world seeds 0 to 4, on HotpotQA (`bounds`, `development`,
`front_development`, `peers_tuning`) and on some recordings (`recorded_development`,
`bounds_recorded`, `development_recorded`, `amplitudes`, `peers_tuning_recorded`), the constants of
worlds on seeds 0 to 19 (`calibration`). All else is run on others: world seeds 100 to 109 with
seeds 10 to 12, MathQA, other recordings (`recorded`), and the problems of `problems.toml`.
docs/results-details.md says what of them had been seen before.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.results import (
    agentopt,
    checks,
    coverage,
    factors,
    front,
    landscapes,
    letter,
    payoff,
)
from benchmarks.results.cost_bounds import FITS, CostBoundsCell
from benchmarks.results.in_flight import PARALLEL, WIDTHS, InFlightCell
from benchmarks.results.planned import Planned
from benchmarks.results.runs import Cell, crossed

# Worlds, and competitors, that the constants of simulated tasks are fitted with.
FITTED_WORLDS = range(20)
FITTED_METHODS = ("random_search", "cei", "config_bo", "abacus")
WORLDS = range(100, 110)
SEEDS = (10, 11, 12)
SIMULATED = ("data_imputation", "text_to_sql", "entity_resolution", "data_transformation")
# Of docs/recorded.md: for choosing, and only for reporting. The others have few complete rows.
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
MAIN = {**OURS, **LETTER, **VARIANTS, **COMPETITORS, **STUB, **PEER}
# Settings chosen on HotpotQA and worlds 0 to 2 of data imputation, among those of `_tuning`.
CHOSEN = {
    "optuna_tpe": "optuna_tpe n_startup=10",
    "optuna_nsga2": "optuna_nsga2 population=20",
    "smac": "smac n_startup=10",
    "botorch": "botorch n_startup=10",
    "ax": "ax n_startup=10",
}
# On recordings fewer configurations are tried: chosen on three of those for choosing.
CHOSEN_ON_RECORDINGS = {
    "optuna_tpe": "optuna_tpe n_startup=2",
    "optuna_nsga2": "optuna_nsga2 population=2",
    "smac": "smac n_startup=5",
    "botorch": "botorch n_startup=5",
}
# Names of experiments whose first run is small as it is.
_SECONDS = ("bases", "checks", "rechecks", "cost_bounds", "in_flight", "factors")
_SECONDS += ("bounds_recorded", "development_recorded", "amplitudes")
_SMALL = ("data_imputation", "mathqa", "mathqa 1", "airport_city", "restaurant", "800 queries")
_SMALL += (
    "recorded/restaurant_test",
    "recorded/bfcl_2024",
    "data_imputation, additive",
    "hotpotqa",
    "hotpotqa, epsilon 0.05",
)
_STARTS = (5, 10, 20)  # trials before a library's model is used, or of a population
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


def _peers() -> list[Planned]:
    """The peers beside our searches: on the recorded problems and on two simulated tasks."""
    cells: list[Cell] = []
    for name, peer in CHOSEN.items():
        seeds = range(10, 15) if name != "ax" else SEEDS[:1]  # it takes minutes for each search
        cells += on_tables({name: ()}, seeds, peer)
        if name != "ax":  # and hours in a large space
            cells += simulated(
                ("data_imputation", "text_to_sql"), {name: ()}, seeds=[10], peer=peer
            )
    recorded = {name: (*of, agentopt.TIES) for name, of in recorded_problems().items()}
    return [*cells, *agentopt.cells(recorded, range(10, 15))]


def _peers_on_recordings() -> list[Planned]:
    """The peers on what others recorded; Ax once each, as it takes minutes for each search."""
    cells: list[Cell] = []
    for name, peer in CHOSEN_ON_RECORDINGS.items():
        cells += on_recordings(RECORDED, {name: ()}, range(10, 30), peer)
    cells += on_recordings(RECORDED, {"ax": ()}, SEEDS[:1], CHOSEN["ax"])
    small = {
        f"recorded/{t}": (f"task=recorded/{t}",) for t in ("restaurant_test", "swebench_bash_only")
    }
    small["recorded/agentopt_bfcl"] = ("task=recorded/agentopt_bfcl", agentopt.TIES)
    large = {"recorded/bing": ("task=recorded/bing",)}  # two minutes for its Bayesian selector
    of_agentopt = (*agentopt.cells(small, range(10, 30)), *agentopt.cells(large, range(10, 15)))
    return [*cells, *of_agentopt]


def _tuning_on_recordings() -> list[Cell]:
    """The same with few trials at the start, on recordings for choosing."""
    cells: list[Cell] = []
    for chosen, start in itertools.product(CHOSEN_ON_RECORDINGS.values(), (2, 5, 10)):
        peer = f"{chosen.partition('=')[0]}={start}"
        cells += on_recordings(RECORDED_DEVELOPMENT[:3], {peer: ()}, range(5), peer)
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


# Rules for the half-widths of `scope`: b_g, b_c, and the fraction of c(theta_0) that b_c is.
_RULES = [(b_g, "reference_fraction", 1 / 30) for b_g in ("loo_widening", "loo", "eligible")]
_RULES += [(str(b_g), "reference_fraction", 1 / 30) for b_g in (0.1, 0.2, 0.3, 0.5)]
_RULES += [("loo_widening", "loo", 1 / 30)]
_RULES += [("loo_widening", "reference_fraction", 1 / n) for n in (100, 50, 10, 1)]


def bounds_rules() -> dict[str, tuple[str, ...]]:
    """`scope` with other rules for the half-widths of its bounds."""
    variants: dict[str, tuple[str, ...]] = {}
    for b_g, b_c, fraction in _RULES:
        name = "loo" if b_c == "loo" else f"c(theta_0)/{1 / fraction:.0f}"
        rules = {"b_g": b_g, "b_c": b_c, "reference_fraction": fraction}
        overrides = (f"method.bounds.{key}={value}" for key, value in rules.items())
        variants[f"b_g = {b_g}, b_c = {name}"] = ("method=scope", *overrides)
    return variants


def _settings(of: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """`scope_joint` with other bounds and another certificate."""
    settings = {f"widenings = {n}": f"method.bounds.widenings={n}" for n in range(3)}
    settings |= {f"b = {b}": f"method.bounds.b={b}" for b in (2, 4)}  # decides what is tried
    settings["bounds"] = "method.certificate=bounds"
    return {f"scope_joint, {name}": (*of, setting) for name, setting in settings.items()}


def _development() -> list[Cell]:
    """What older defaults were chosen on: HotpotQA, and world seeds 0 to 4."""
    before = UNTRIED["scope_joint, as before"]
    joint = {"scope_joint": before, **_chosen("scope"), **_settings(before)}
    cells: list[Cell] = []
    for epsilon in (0.05, 0.1):
        given = ("task=hotpotqa", f"task.epsilon={epsilon}")
        cells += [
            Cell(f"hotpotqa, epsilon {epsilon}", name, seed, None, (*given, *of))
            for seed, (name, of) in itertools.product(range(10), joint.items())
        ]
    small = ("data_imputation",)
    cells += simulated(small, joint, seeds=range(3), worlds=range(5))
    more = {"scope_joint": before, **_chosen("scope", "cei")}
    return cells + simulated(SIMULATED[1:3], more, seeds=[0], worlds=range(5))


def _chosen_again(variants: Variants) -> list[Cell]:
    """Settings on recordings for choosing, and on worlds like these."""
    cells = on_recordings(RECORDED_DEVELOPMENT[:3], variants, range(10))
    worlds = simulated(SIMULATED[:1], variants, LIKE_RECORDED, seeds=[0], worlds=range(5))
    return cells + [replace(c, problem=f"{c.problem}, recorded_like") for c in worlds]


def _amplitudes() -> dict[str, tuple[str, ...]]:
    """Competitors with other prior standard deviations of cost and constraint."""
    both = [(0.2, 0.15), (0.5, 0.5), (1.0, 0.3), (1.0, 1.0), (2.0, 2.0)]
    given = {"config_bo": both, "cei": both, "safeopt": [(1.0, x) for x in (0.001, 0.003, 0.01)]}
    return {
        f"{name}, {c:g}, {g:g}": (f"method={name}", f"method.gp.amp_c={c}", f"method.gp.amp_g={g}")
        for name, amplitudes in given.items()
        for c, g in amplitudes
    }


def _payoffs() -> list[Planned]:
    """Where a search stops, and what it costs until then together with H queries."""
    worlds = {"data_imputation": range(100, 110), "entity_resolution": range(100, 105)}
    worlds |= {"text_to_sql": range(100, 103)}
    cells: list[Planned] = []
    for task, of in worlds.items():
        cells += payoff.cells(task, [f"task={task}"], SEEDS[:1], of)
    for epsilon in (0.05, 0.1):
        given = ["task=mathqa", f"task.epsilon={epsilon}"]
        cells += payoff.cells(f"mathqa, epsilon {epsilon}", given, range(10, 15), [None])
    return cells


def _pools() -> list[Cell]:
    """Certificates for tomorrow on large data sets, with all queries and with a pool of them."""
    certified = ("task=synthetic", "task.epsilon=0.1", "base=nano", "budget_usd=20")
    certified += ("method=scope_joint", "method.certificate=population", *EARLIER)
    pools = {"all queries": (), "query_pool=60": ("method.query_pool=60",)}
    return [
        Cell(f"{Q} queries", name, 10, world, (*certified, f"task.num_queries={Q}", *of))
        for Q, world, (name, of) in itertools.product(
            (800, 2000, 5000), range(100, 105), pools.items()
        )
    ]


def _bases(
    name: str, task: tuple[str, ...], bases: Sequence[str], epsilons: Sequence[float], seeds: range
) -> list[Cell]:
    """A recorded system from several bases, with several tolerances."""
    return [
        Cell(name, f"{base}, epsilon {epsilon}", seed, None, (*task, *more))
        for base, epsilon, seed in itertools.product(bases, epsilons, seeds)
        for more in [(*OURS["scope_joint"], f"base={base}", f"task.epsilon={epsilon}")]
    ]


_OTHER_MATHQA = ("task=mathqa", "task.reference=[Kimi K2.5,Claude Opus 4.6]")
_IMPUTATION = ("task=data_imputation",)
# Tasks whose bounds on costs are looked at: name, overrides, seeds, worlds.
_COSTS_DEVELOPMENT = [
    ("recorded/restaurant", ("task=recorded/restaurant",), range(5), [None]),
    ("hotpotqa", ("task=hotpotqa",), range(5), [None]),
    ("data_imputation, hard", _IMPUTATION, [0], range(5)),
    ("data_imputation, recorded_like", (*_IMPUTATION, LIKE_RECORDED), [0], range(5)),
]
_COSTS = [
    ("recorded/restaurant_test", ("task=recorded/restaurant_test",), range(10, 15), [None]),
    ("recorded/bing", ("task=recorded/bing",), range(10, 15), [None]),
    ("mathqa", (*_OTHER_MATHQA, "base=Qwen3 32B"), range(10, 15), [None]),
    ("data_imputation, hard", _IMPUTATION, SEEDS[:1], WORLDS[:5]),
    ("data_imputation, recorded_like", (*_IMPUTATION, LIKE_RECORDED), SEEDS[:1], WORLDS[:5]),
]
# Tasks on which many calls are in flight, likewise.
_IN_FLIGHT = [
    ("recorded/restaurant_test", ("task=recorded/restaurant_test",), range(10, 15), [None]),
    ("mathqa", (*_OTHER_MATHQA, "base=Qwen3 32B"), range(10, 15), [None]),
    ("data_imputation, hard", _IMPUTATION, SEEDS[:1], WORLDS[:3]),
    ("data_imputation, recorded_like", (*_IMPUTATION, LIKE_RECORDED), SEEDS[:1], WORLDS[:3]),
]


def experiments() -> dict[str, Sequence[Planned]]:
    """The runs of each experiment, in the order in which they are made."""
    sensitive = _chosen("scope_joint", "scope", "cei", "config_bo")
    with_llambo = {**sensitive, **STUB}
    haiku = "task.reference=Claude Haiku 4.5"
    theirs = {**COMPETITORS, **PEER}
    other = {**OURS, **theirs}
    tables = _chosen("scope_joint", "scope", *COMPETITORS, *STUB, *PEER)
    simple = _chosen(*FITTED_METHODS)
    fitted = simulated(SIMULATED, simple, seeds=[0], worlds=FITTED_WORLDS)
    second = simulated(SIMULATED, simple, "task.family=additive", seeds=[0], worlds=FITTED_WORLDS)
    rules = simulated(SIMULATED[:2], bounds_rules(), seeds=range(3), worlds=range(5))
    random, joint = "task.randomness=0.1", _chosen("scope_joint")
    return {
        "calibration": [*fitted, *(replace(c, problem=f"{c.problem}, additive") for c in second)],
        "bounds": rules,
        "bounds_recorded": _chosen_again(bounds_rules()),
        "development": _development(),
        "development_recorded": _chosen_again(joint | _settings(joint["scope_joint"])),
        "amplitudes": _chosen_again(_amplitudes()),
        "recorded_development": [
            *on_recordings(RECORDED_DEVELOPMENT[:3], OURS | UNTRIED, range(20)),
            *on_recordings(RECORDED_DEVELOPMENT[3:], OURS, range(10)),  # a minute each
        ],
        "recorded": [
            *on_recordings(RECORDED, OURS, range(10, 30)),
            *on_recordings(RECORDED, theirs, range(10, 30)),
            *_peers_on_recordings(),
        ],
        "bases_development": _bases(
            "recorded/restaurant",
            ("task=recorded/restaurant",),
            ("gemini-2.5-flash-lite", "gemini-2.0-flash-lite", "gemma-3-12b"),
            (0.01, 0.05),
            range(20),
        ),
        "bases": _bases(
            "mathqa",
            _OTHER_MATHQA,
            ("Qwen3 32B", "gpt-oss-20b", "Claude 3 Haiku"),
            (0.05, 0.1),
            range(10, 30),
        ),
        "cost_bounds_development": crossed(CostBoundsCell, FITS, _COSTS_DEVELOPMENT),
        "cost_bounds": crossed(CostBoundsCell, FITS, _COSTS),
        "in_flight": [
            *crossed(InFlightCell, WIDTHS, _IN_FLIGHT),
            *(
                replace(cell, peer=PARALLEL[cell.method])
                for cell in crossed(InFlightCell, dict.fromkeys(PARALLEL, ()), _IN_FLIGHT)
            ),
        ],
        "factors": factors.cells(WORLDS, SEEDS[:1], range(10, 30)),
        "landscapes": landscapes.cells(landscapes.SAMPLES, WORLDS, SEEDS[0]),
        "main": simulated(SIMULATED, MAIN),
        "tables": on_tables(tables, range(10, 15)),
        "systems": _systems(),
        "additive": simulated(SIMULATED, other, "task.family=additive"),
        "recorded_like": [
            *simulated(SIMULATED[:3], other, LIKE_RECORDED, seeds=SEEDS[:1]),
            # Half an hour each.
            *simulated(SIMULATED[3:], other, LIKE_RECORDED, seeds=SEEDS[:1], worlds=WORLDS[:3]),
        ],
        "kernel": simulated(["data_imputation"], sensitive, "kernel=rbf"),
        "reference": simulated(["data_imputation"], with_llambo, haiku),
        "parameters": simulated(["data_imputation"], _parameters()),
        "letter": letter.cells("data_imputation", WORLDS, SEEDS[0]),
        "randomness": simulated(["data_imputation"], sensitive, random),
        "payoff": _payoffs(),
        "pool": _pools(),
        "coverage": coverage.cells(range(1000, 2000, 100)),
        "checks": checks.recorded_cells(RECORDED, SEEDS[0]),
        "rechecks": checks.recheck_cells(SEEDS[0]),
        "checks_simulated": checks.simulated_cells(SEEDS[0]),
        "front_development": front.cells(["hotpotqa"], range(10, 15)),
        "front": front.cells(["mathqa"], range(10, 15)),
        "peers_tuning": _tuning(),
        "peers_tuning_recorded": _tuning_on_recordings(),
        "peers": _peers(),
    }


def quick() -> dict[str, list[Planned]]:
    """A few small runs of each experiment, to see that all of it works."""
    few = {name: [run for c in of if (run := _smaller(c))] for name, of in experiments().items()}
    few["payoff"] = few["payoff"][:1]
    few["landscapes"] = landscapes.cells(["data_imputation"], WORLDS[:1], SEEDS[0])
    few |= {name: [*of[:1]] for name, of in experiments().items() if name.startswith(_SECONDS)}
    few["front"] = front.cells(["synthetic"], SEEDS[:1])
    return few


def _smaller(run: Planned) -> Planned | None:
    """A run that takes seconds, instead of one on the first world with the first seed."""
    if isinstance(run, coverage.CoverageCell):
        return replace(run, searches=2) if (run.seed, run.flips) == (1000, 0.02) else None
    seeds, worlds = (0, SEEDS[0]), (None, 0, WORLDS[0])
    is_first = run.seed in seeds and run.world in worlds and run.problem in _SMALL
    slow = isinstance(run, Cell) and run.peer.split()[:1] in (["smac"], ["ax"], ["botorch"])
    if not is_first or run.method in (*LLAMBO, *UNTRIED) or slow:
        return None
    if isinstance(run, agentopt.SelectorCell):
        return run
    if not isinstance(run, (Cell, payoff.PayoffCell)):
        return None
    cheap = run.problem in ("airport_city", "restaurant", "800 queries")  # their budgets are small
    return replace(run, overrides=run.overrides if cheap else (*run.overrides, "budget_usd=0.4"))
