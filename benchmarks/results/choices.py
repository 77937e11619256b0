"""The runs by which rules, defaults and the constants of simulated worlds are chosen.

World seeds 0 to 4 with seeds below 10, HotpotQA, and the recordings for choosing
(RECORDED_DEVELOPMENT); world seeds 0 to 19 for the constants of worlds (`calibration`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.results import front
from benchmarks.results.cells import (
    CHOSEN,
    CHOSEN_ON_RECORDINGS,
    COMPETITORS,
    IMPUTATION,
    LIKE_RECORDED,
    OURS,
    PEER,
    RECORDED_DEVELOPMENT,
    SIMULATED,
    STUB,
    UNTRIED,
    VARIANTS,
    Variants,
    bases,
    chosen,
    on_recordings,
    simulated,
)
from benchmarks.results.cost_bounds import FITS, CostBoundsCell
from benchmarks.results.planned import Planned
from benchmarks.results.runs import Cell, crossed

# Worlds, and competitors, that the constants of simulated tasks are fitted with.
FITTED_WORLDS = range(20)
FITTED_METHODS = ("random_search", "cei", "config_bo", "abacus")
_STARTS = (5, 10, 20)  # trials before a library's model is used, or of a population
# Tasks whose bounds on costs are looked at: name, overrides, seeds, worlds.
_COSTS_DEVELOPMENT = [
    ("recorded/restaurant", ("task=recorded/restaurant",), range(5), [None]),
    ("hotpotqa", ("task=hotpotqa",), range(5), [None]),
    ("data_imputation, hard", IMPUTATION, [0], range(5)),
    ("data_imputation, recorded_like", (*IMPUTATION, LIKE_RECORDED), [0], range(5)),
]


def choices() -> dict[str, Sequence[Planned]]:
    """The runs of each experiment, in the order in which they are made."""
    simple, joint = chosen(*FITTED_METHODS), chosen("scope_joint")
    others = chosen("scope, to the letter", *VARIANTS, *STUB, *COMPETITORS, *PEER)
    fitted = simulated(SIMULATED, simple, seeds=[0], worlds=FITTED_WORLDS)
    second = simulated(SIMULATED, simple, "task.family=additive", seeds=[0], worlds=FITTED_WORLDS)
    return {
        "calibration": [*fitted, *(replace(c, problem=f"{c.problem}, additive") for c in second)],
        "bounds": simulated(SIMULATED[:2], bounds_rules(), seeds=range(3), worlds=range(5)),
        "bounds_recorded": _chosen_again(bounds_rules()),
        "development": _development(),
        "development_recorded": _chosen_again(
            joint | _settings(joint["scope_joint"]), SIMULATED[:2]
        ),
        "amplitudes": _chosen_again(_amplitudes()),
        "recorded_development": [
            *on_recordings(RECORDED_DEVELOPMENT[:3], OURS | UNTRIED, range(20)),
            *on_recordings(RECORDED_DEVELOPMENT[3:], OURS, range(20)),  # a minute each
            *on_recordings(RECORDED_DEVELOPMENT[:1], others, range(20)),
            *_peers_on_restaurant(),
        ],
        "bases_development": bases(
            "recorded/restaurant",
            ("task=recorded/restaurant",),
            ("gemini-2.5-flash-lite", "gemini-2.0-flash-lite", "gemma-3-12b"),
            (0.01, 0.05),
            range(20),
        ),
        "cost_bounds_development": crossed(CostBoundsCell, FITS, _COSTS_DEVELOPMENT),
        "front_development": front.cells(["hotpotqa"], range(10, 15)),
        "peers_tuning": _tuning(),
        "peers_tuning_recorded": _tuning_on_recordings(),
    }


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


def _tuning_on_recordings() -> list[Cell]:
    """The same with few trials at the start, on recordings for choosing; Ax on the short ones."""
    cells: list[Cell] = []
    for (name, given), start in itertools.product(CHOSEN_ON_RECORDINGS.items(), (2, 5, 10)):
        peer = f"{given.partition('=')[0]}={start}"
        recordings = RECORDED_DEVELOPMENT[1 if name == "ax" else 0 : 3]
        cells += on_recordings(recordings, {peer: ()}, range(5), peer)
    return cells


def _peers_on_restaurant() -> list[Cell]:
    """The peers as on the recordings for reporting; without Ax, which takes minutes a run."""
    return [
        cell
        for name, given in CHOSEN_ON_RECORDINGS.items()
        if name != "ax"
        for cell in on_recordings(RECORDED_DEVELOPMENT[:1], {name: ()}, range(20), given)
    ]


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
    joint = {"scope_joint": before, **chosen("scope"), **_settings(before)}
    cells: list[Cell] = []
    for epsilon in (0.05, 0.1):
        given = ("task=hotpotqa", f"task.epsilon={epsilon}")
        cells += [
            Cell(f"hotpotqa, epsilon {epsilon}", name, seed, None, (*given, *of))
            for seed, (name, of) in itertools.product(range(10), joint.items())
        ]
    small = ("data_imputation",)
    cells += simulated(small, joint, seeds=range(3), worlds=range(5))
    more = {"scope_joint": before, **chosen("scope", "cei")}
    return cells + simulated(SIMULATED[1:3], more, seeds=[0], worlds=range(5))


def _chosen_again(variants: Variants, tasks: Sequence[str] = SIMULATED[:1]) -> list[Cell]:
    """Settings on recordings for choosing, and on worlds like these."""
    cells = on_recordings(RECORDED_DEVELOPMENT[:3], variants, range(10))
    worlds = simulated(tasks, variants, LIKE_RECORDED, seeds=[0], worlds=range(5))
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
