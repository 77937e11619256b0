"""All runs, by experiment: those by which things are chosen, and those that are reported.

Reported are world seeds 100 to 109 with seeds 10 to 12, MathQA, recordings on which nothing was
chosen (`recorded`), and the problems of `problems.toml`. docs/results-details.md says what of them
had been seen before.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

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
from benchmarks.results.cells import (
    CHOSEN,
    CHOSEN_ON_RECORDINGS,
    COMPETITORS,
    EARLIER,
    IMPUTATION,
    LIKE_RECORDED,
    LLAMBO,
    MAIN,
    OURS,
    PAPERS,
    PEER,
    RECORDED,
    SEEDS,
    SIMULATED,
    STUB,
    UNTRIED,
    WORLDS,
    bases,
    chosen,
    on_recordings,
    on_tables,
    recorded_problems,
    simulated,
)
from benchmarks.results.choices import choices
from benchmarks.results.cost_bounds import FITS, CostBoundsCell
from benchmarks.results.in_flight import PARALLEL, WIDTHS, InFlightCell
from benchmarks.results.planned import Planned
from benchmarks.results.runs import Cell, crossed

# Names of experiments whose first run is small as it is.
_SECONDS = ("bases", "checks", "rechecks", "cost_bounds", "in_flight")
_SECONDS += ("bounds_recorded", "development_recorded", "amplitudes", "recorded_development")
_SMALL = ("data_imputation", "mathqa", "mathqa 1", "airport_city", "restaurant", "800 queries")
_SMALL += (
    "recorded/restaurant_test",
    "recorded/bfcl_2024",
    "data_imputation, additive",
    "hotpotqa",
    "hotpotqa, epsilon 0.05",
)
_OTHER_MATHQA = ("task=mathqa", "task.reference=[Kimi K2.5,Claude Opus 4.6]")
# Tasks whose bounds on costs are looked at: name, overrides, seeds, worlds.
_COSTS = [
    ("recorded/restaurant_test", ("task=recorded/restaurant_test",), range(10, 15), [None]),
    ("recorded/bing", ("task=recorded/bing",), range(10, 15), [None]),
    ("mathqa", (*_OTHER_MATHQA, "base=Qwen3 32B"), range(10, 15), [None]),
    ("data_imputation, hard", IMPUTATION, SEEDS[:1], WORLDS[:5]),
    ("data_imputation, recorded_like", (*IMPUTATION, LIKE_RECORDED), SEEDS[:1], WORLDS[:5]),
]
# Tasks on which many calls are in flight, likewise.
_IN_FLIGHT = [
    ("recorded/restaurant_test", ("task=recorded/restaurant_test",), range(10, 30), [None]),
    ("mathqa", (*_OTHER_MATHQA, "base=Qwen3 32B"), range(10, 30), [None]),
    ("data_imputation, hard", IMPUTATION, SEEDS[:1], WORLDS),
    ("data_imputation, recorded_like", (*IMPUTATION, LIKE_RECORDED), SEEDS[:1], WORLDS),
]


def experiments() -> dict[str, Sequence[Planned]]:
    """The runs of each experiment, in the order in which they are made."""
    sensitive = chosen("scope_joint", "scope", "cei", "config_bo")
    with_llambo = {**sensitive, **STUB}
    haiku = "task.reference=Claude Haiku 4.5"
    theirs = {**COMPETITORS, **PEER}
    other = {**OURS, **theirs}
    tables = chosen("scope_joint", "scope", *COMPETITORS, *STUB, *PEER)
    random = "task.randomness=0.1"
    return {
        **choices(),
        "recorded": [
            *on_recordings(RECORDED, OURS, range(10, 30)),
            *on_recordings(RECORDED, theirs, range(10, 30)),
            *on_recordings(RECORDED, PAPERS, range(10, 30)),
            *_peers_on_recordings(),
        ],
        "bases": bases(
            "mathqa",
            _OTHER_MATHQA,
            ("Qwen3 32B", "gpt-oss-20b", "Claude 3 Haiku"),
            (0.05, 0.1),
            range(10, 30),
        ),
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
        "additive": [
            *simulated(SIMULATED, other, "task.family=additive"),
            *simulated(SIMULATED, PAPERS, "task.family=additive", seeds=SEEDS[:1]),
            *_peers_in_worlds(SIMULATED, "task.family=additive"),
        ],
        "recorded_like": [
            *simulated(SIMULATED, {**other, **PAPERS}, LIKE_RECORDED, seeds=SEEDS[:1]),
            *_peers_in_worlds(SIMULATED, LIKE_RECORDED),
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
        "front": front.cells(["mathqa"], range(10, 15)),
        "peers": _peers(),
    }


def quick() -> dict[str, list[Planned]]:
    """A few small runs of each experiment, to see that all of it works."""
    few = {name: [run for c in of if (run := _smaller(c))] for name, of in experiments().items()}
    few["payoff"] = few["payoff"][:1]
    few["landscapes"] = landscapes.cells(["data_imputation"], WORLDS[:1], SEEDS[0])
    few |= {name: [*of[:1]] for name, of in experiments().items() if name.startswith(_SECONDS)}
    few["factors"] = [run for run in experiments()["factors"] if run.world is None][:1]
    few["front"] = front.cells(["synthetic"], SEEDS[:1])
    return few


def _smaller(run: Planned) -> Planned | None:
    """A run that takes seconds, instead of one on the first world with the first seed."""
    if isinstance(run, coverage.CoverageCell):
        return replace(run, searches=2) if (run.seed, run.flips) == (1000, 0.02) else None
    seeds, worlds = (0, SEEDS[0]), (None, 0, WORLDS[0])
    is_first = run.seed in seeds and run.world in worlds and run.problem in _SMALL
    slow = isinstance(run, Cell) and run.peer.split()[:1] in (["smac"], ["ax"], ["botorch"])
    slow |= run.world is not None and run.method.startswith("scope_joint, ")  # HotpotQA has these
    again = isinstance(run, Cell) and any(of.startswith("task.family=") for of in run.overrides)
    if not is_first or run.method in (*LLAMBO, *UNTRIED, *(PAPERS if again else ())) or slow:
        return None
    if isinstance(run, agentopt.SelectorCell):
        return run if run.method == "AgentOpt arm_elimination" else None
    if not isinstance(run, (Cell, payoff.PayoffCell)):
        return None
    cheap = run.problem in ("airport_city", "restaurant", "800 queries")  # their budgets are small
    return replace(run, overrides=run.overrides if cheap else (*run.overrides, "budget_usd=0.4"))


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


def _peers() -> list[Planned]:
    """The peers beside our searches: on the recorded problems and on two simulated tasks."""
    cells: list[Cell] = []
    for name, peer in CHOSEN.items():
        cells += on_tables({name: ()}, range(10, 15), peer)
    cells += _peers_in_worlds(SIMULATED)
    recorded = {name: (*of, agentopt.TIES) for name, of in recorded_problems().items()}
    return [*cells, *agentopt.cells(recorded, range(10, 15))]


def _peers_in_worlds(tasks: Sequence[str], *more: str) -> list[Cell]:
    """On simulated tasks, with one seed; without Ax in the largest, where it takes the longest."""
    return [
        cell
        for name, peer in CHOSEN.items()
        for cell in simulated(tasks, {name: ()}, *more, seeds=SEEDS[:1], peer=peer)
        if (name, cell.problem) != ("ax", "data_transformation")
    ]


def _peers_on_recordings() -> list[Planned]:
    """The peers on what others recorded."""
    cells: list[Cell] = []
    for name, peer in CHOSEN_ON_RECORDINGS.items():
        cells += on_recordings(RECORDED, {name: ()}, range(10, 30), peer)
    small = {
        f"recorded/{t}": (f"task=recorded/{t}",) for t in ("restaurant_test", "swebench_bash_only")
    }
    small["recorded/agentopt_bfcl"] = ("task=recorded/agentopt_bfcl", agentopt.TIES)
    small["recorded/bing"] = ("task=recorded/bing",)
    return [*cells, *agentopt.cells(small, range(10, 30))]


def _systems() -> list[Cell]:
    """Systems of small LLMs that were recorded in full; LLAMBO with an LLM on one of them."""
    others = chosen("scope_joint", "scope", *COMPETITORS, *STUB, *PEER)
    planned = itertools.product(("airport_city", "restaurant"), SEEDS, others.items())
    cells = [(task, name, seed, of) for task, seed, (name, of) in planned]
    cells += [("airport_city", name, SEEDS[0], of) for name, of in LLAMBO.items()]
    return [Cell(task, name, seed, None, (f"task={task}", *of)) for task, name, seed, of in cells]


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
