"""SCOPE against the naive reference, observation by observation (alg:scope-main)."""

import functools
import itertools
import math
from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import Any

import naive
import numpy as np
import pytest
import torch
from tables import Task, make_task, task_of

from scope_torch.bounds import TheoryBounds, TunedBounds
from scope_torch.bounds.information_gain import InformationGain
from scope_torch.model.kernels import HammingMatern52Kernel, HammingRBFKernel
from scope_torch.results.result import RunResult
from scope_torch.runs.runner import run

KERNELS = {
    "matern": (HammingMatern52Kernel, naive.matern52),
    "rbf": (HammingRBFKernel, naive.rbf),
}
POOLS = {"scope": "base", "rand": "random", "coarse": "none"}
# Small enough that something is certified and pruned.
THEORY = {"R_c": 2e-5, "R_g": 2e-5, "B_c": 0.1, "B_g": 0.4, "delta": 1e-3}
STOPS = {
    "budget": "budget",
    "optimality gap within gap_tolerance": "gap",
    "no other configuration can improve on theta_out in these bounds": "nothing can improve",
}


@dataclass(frozen=True)
class Case:
    """One run; `b` holds b_g and b_c, None for the theory's bounds.

    `gap_tolerance` is None for alg:scope-main to the letter; a number skips what cannot improve.
    """

    seed: int = 0
    sizes: tuple[int, ...] = (4, 4, 4)
    num_queries: int = 16
    graded: bool = True
    variant: str = "scope"
    batch_size: int | None = 1
    b: tuple[float | str, float | str] | None = ("eligible", "loo")
    kernel: str = "matern"
    lam: float = 1e-6
    evaluations: float = 10.0
    infeasible: bool = False
    gap_tolerance: float | None = 0.0
    floor: bool = True

    @property
    def task(self) -> Task:
        if self.infeasible:
            return hopeless_task()
        return make_task(self.seed, self.sizes, self.num_queries, self.graded)


DEFAULT = ("loo_widening", "reference_fraction")
WIDENING = (("scope", 1), ("rand", 3), ("coarse", None))
FIRST = int(torch.randperm(4, generator=torch.Generator().manual_seed(0))[0])


def hopeless_task() -> Task:
    """All that Calibrate observes is bad, theta_0 too on the first query: min L_g >= 0."""
    quality = np.full((3, 4), 0.5)
    quality[2] = 0.9
    quality[:, FIRST] = 0.2
    return task_of(np.tile([[1.0], [2.0], [4.0]], (1, 4)) * 1e-3, quality, (2,))


PAPER = [
    *(Case(seed=1, variant=v, batch_size=b) for v in POOLS for b in (1, 3, None)),
    *(Case(seed=2, graded=False, variant=v, b=(0.3, "reference_fraction")) for v in POOLS),
    *(Case(seed=3, batch_size=b, b=("loo", "loo"), kernel="rbf") for b in (1, 3, None)),
    *(Case(seed=4, variant=v, b=None, batch_size=b) for v in POOLS for b in (1, 3)),
    Case(seed=4, b=None, kernel="rbf", graded=False),
    Case(seed=5, sizes=(7,), num_queries=9),
    Case(seed=5, sizes=(7,), num_queries=9, variant="rand", b=("loo", "loo"), batch_size=None),
    Case(seed=6, sizes=(5, 6), num_queries=12, b=(0.25, 2e-4)),
    Case(seed=6, sizes=(5, 6), num_queries=12, graded=False, b=("eligible", "reference_fraction")),
    Case(seed=7, sizes=(2, 5, 3), num_queries=7, variant="rand", batch_size=3),
    Case(seed=8, sizes=(2, 3, 2, 3), num_queries=5, kernel="rbf"),
    Case(seed=9, num_queries=1, evaluations=40, b=(0.2, "loo")),
    Case(seed=9, sizes=(6,), num_queries=1, variant="coarse", evaluations=20),
    Case(seed=10, sizes=(3, 4), num_queries=2, evaluations=15, lam=1e-3),
    Case(seed=10, sizes=(3, 4), num_queries=3, b=None, lam=1e-2, graded=False),
    Case(seed=11, sizes=(1, 4), num_queries=6),
    Case(seed=11, sizes=(1,), num_queries=3, evaluations=10.5),
    Case(seed=12, evaluations=0.5),
    # U_g <= 0 at t - 1 but not at t decides: the minimum of the two is what counts.
    Case(900241, (4, 1, 5), 5, False, "coarse", 1, None, "rbf", 1e-2, 11.08),
    # In a batch, what comes after the prune would have certified the candidate.
    Case(427752, (5, 1, 2), 8, False, "scope", None, (0.14105, 1e-5), "rbf", 1e-4, 11.6),
    Case(50954, (1, 2, 5), 13, True, "rand", None, (0.0445, 1e-6), "matern", 1.0, 6.5),
    # The least L_c with L_g <= 0 belongs to a configuration with L_g just below 0.
    Case(56998, (1, 5, 2, 4), 2, True, "coarse", 1, ("eligible", "loo"), "rbf", 1e-2, 10.98),
    Case(infeasible=True, sizes=(3,), num_queries=4, b=(1e-4, 1e-4)),
    Case(infeasible=True, sizes=(3,), num_queries=4, b=(1e-4, 1e-4), batch_size=3),
    *(Case(seed=13, graded=False, variant=v, b=DEFAULT, batch_size=b) for v, b in WIDENING),
    Case(seed=0, sizes=(5, 6), num_queries=12, graded=False, b=DEFAULT, evaluations=20),
    Case(seed=23, sizes=(5, 6), num_queries=12, graded=False, b=("loo_widening", "loo")),
    Case(seed=9, sizes=(6,), num_queries=5, b=DEFAULT),  # too few queries to leave out
]
LETTER = [
    Case(seed=seed, b=b, gap_tolerance=None, floor=False)
    for seed, b in itertools.product((1, 2, 4), (None, DEFAULT))
]
MORE_TO_THE_LETTER = [
    replace(case, gap_tolerance=None) for case in PAPER if case.batch_size == 1 or case.seed > 4
]
CASES = [
    *PAPER,
    *LETTER,
    *(case for i, case in enumerate(MORE_TO_THE_LETTER) if i % 3 == 0 or case.infeasible),
    Case(seed=3, gap_tolerance=0.5),
    Case(seed=4, b=None, gap_tolerance=0.9),
    Case(seed=23, sizes=(5, 6), num_queries=12, graded=False, b=DEFAULT, gap_tolerance=0.1),
    # A theta_out that is replaced may be theta_star: the gap counts it at once.
    *(Case(seed=s, sizes=(2, 2), num_queries=1, b=(1.0, 2e-3), lam=1e-4) for s in (3, 5)),
]


def label(case: Case) -> str:
    """The fields that are not the default."""
    values = ((field.name, getattr(case, field.name), field.default) for field in fields(Case))
    return "-".join(f"{name}={value}" for name, value, default in values if value != default)


def run_library(case: Case) -> RunResult:
    task, kernel = case.task, KERNELS[case.kernel][0]()
    make = {"scope": task.scope, "rand": task.rand, "coarse": task.coarse}[case.variant]
    if case.b is None:
        gain = InformationGain(task.problem.space, kernel, case.lam)
        bounds = TheoryBounds(task.problem, gain, **THEORY)
    else:
        bounds = TunedBounds(task.problem, b_g=case.b[0], b_c=case.b[1])
    settings = {"batch_size": case.batch_size, "kernel": kernel, "lam": case.lam}
    settings |= {"gap_tolerance": case.gap_tolerance, "u_out_floor": case.floor}
    optimizer = make(case.seed, bounds=bounds, **settings)
    return run(task.problem, optimizer, task.evaluator(), task.budget(case.evaluations))


def run_naive(case: Case) -> naive.NaiveRun:
    task, kernel, settings = case.task, KERNELS[case.kernel], {}
    if case.b is None:
        gain = InformationGain(task.problem.space, kernel[0](), case.lam)
        theory = {**THEORY, "cost_unit": task.problem.reference_cost_usd, "gamma": gain.gamma}
        settings["theory"] = theory
    else:
        settings["b_g"], settings["b_c"] = case.b
    return naive.naive_scope(
        task.sizes,
        task.table.cost_usd,
        task.table.quality,
        task.problem.theta_ref,
        task.base,
        task.problem.s_0,
        task.budget(case.evaluations),
        case.seed,
        lam=case.lam,
        kernel=kernel[1],
        calibrate=POOLS[case.variant],
        prune=case.variant != "coarse",
        batch_size=case.batch_size or task.problem.num_queries,
        gap_tolerance=case.gap_tolerance,
        floor=case.floor,
        **settings,
    )


@functools.cache
def both(case: Case) -> tuple[RunResult, naive.NaiveRun]:
    return run_library(case), run_naive(case)


def state_after(result: RunResult, t: int) -> Any:
    """The last row of the trace that belongs to the first t observations."""
    return [row for row in result.trace if row.t <= t][-1]


def close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-10, abs_tol=0)


def close_gap(case: Case, a: float, b: float) -> bool:
    return abs(a - b) <= 1e-10 * case.task.problem.reference_cost_usd


@pytest.mark.parametrize(
    "case",
    [
        *CASES,
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for i, case in enumerate(MORE_TO_THE_LETTER)
            if i % 3 and not case.infeasible
        ),
    ],
    ids=label,
)
def test_equals_the_naive_reference(case):
    result, reference = both(case)
    observed_the_same(case, result, reference)
    chose_and_told_the_same(case, result, reference)
    widened_the_same(case, result, reference)


def observed_the_same(case: Case, result: RunResult, reference: naive.NaiveRun) -> None:
    assert [(o.theta, o.query) for o in result.history] == reference.observations
    assert result.recommendation.theta == reference.theta_out[-1]
    assert STOPS[result.stop_reason] == reference.stop_reason
    if math.isnan(reference.b_c):
        assert result.recommendation.basis == "reference"
        assert result.trace == []
        return
    assert close(result.report["b_c"], reference.b_c)
    assert close(result.report["b_g"], reference.b_g)
    t_0 = result.trace[0].t
    assert result.trace[0].event == "calibrated"
    assert all(math.isnan(u) for u in reference.u_out[:t_0])
    for t in range(t_0 + 1, len(result.history) + 1):
        row = state_after(result, t)
        assert row.theta_out == reference.theta_out[t - 1]
        assert close(row.u_out_usd, reference.u_out[t - 1]), t
    for row in result.trace:
        if row.event in ("improved", "pruned", "completed"):
            assert close_gap(case, row.gap_usd, reference.gap[row.t - 1]), row


def chose_and_told_the_same(case: Case, result: RunResult, reference: naive.NaiveRun) -> None:
    selected = [row for row in result.trace if row.event == "selected"]
    steps = reference.iterations
    assert [row.theta_cand for row in selected] == [step["theta_cand"] for step in steps]
    for row, step in zip(selected, steps, strict=True):
        # i is |least L_g|^(-1/alpha): the larger, the more of it is rounding.
        assert math.isclose(row.iteration, step["i"], rel_tol=1e-7 if step["i"] > 1e6 else 0)
    decisions = selected + [row for row in result.trace if row.event == "stopped"]
    decisions = decisions[: len(reference.gaps)]
    for row, gap in zip(decisions, reference.gaps, strict=True):
        assert close_gap(case, row.gap_usd, gap)
    pruned = [row.iteration for row in result.trace if row.event == "pruned"]
    assert len(pruned) == len(set(pruned)) == result.report["candidates_pruned"]
    assert len(selected) - (reference.stop_reason == "gap") == result.report["candidates"]
    observed = np.diff([*(row.t for row in selected), len(result.history)])
    assert observed.tolist() == [step["num_observed"] for step in steps]


def widened_the_same(case: Case, result: RunResult, reference: naive.NaiveRun) -> None:
    if case.b is not None:
        assert result.report["b_g_widened"] == pytest.approx(reference.b_g_widened, rel=1e-10)
    widened = [row.t for row in result.trace if row.event == "widened"]
    assert widened == reference.widened_at
    assert not widened or case.b[0] == "loo_widening"


@pytest.mark.slow
def test_the_first_u_out_is_the_papers_without_the_floor():
    """U_{c,t_0}(theta_0), which half-widths as narrow as these put below c(theta_0)."""
    for case in LETTER:
        c_0 = case.task.problem.reference_cost_usd
        with_floor = both(replace(case, floor=True))[0].trace[0].u_out_usd
        without = both(case)[0].trace[0].u_out_usd
        assert with_floor == c_0 > without


@pytest.mark.parametrize("to_the_letter", [False, True])
def test_the_cases_are_not_vacuous(to_the_letter):
    cases = [case for case in CASES if (case.gap_tolerance is None) == to_the_letter]
    events: Counter[str] = Counter()
    stops: Counter[str] = Counter()
    for case in cases:
        result, reference = both(case)
        events.update(row.event for row in result.trace)
        stops[reference.stop_reason] += 1
        stops_early = case.infeasible or case.evaluations < 1
        assert stops_early or not to_the_letter or len(reference.iterations) >= 3, case
    assert events["improved"] >= 50
    assert events["pruned"] >= (200 if to_the_letter else 70)
    assert events["completed"] >= 50
    assert events["widened"] >= (0 if to_the_letter else 10)
    assert stops["budget"] >= 8
    assert stops["nothing can improve"] >= (1 if to_the_letter else 15)
    assert to_the_letter or stops["gap"] >= 3
    improved = [case for case in cases if both(case)[0].recommendation.basis != "reference"]
    assert len(improved) >= len(cases) // 2
    theory = [both(case)[0] for case in cases if case.b is None]
    assert any(row.event == "improved" for result in theory for row in result.trace)
    assert any(row.event == "pruned" for result in theory for row in result.trace)


@pytest.mark.parametrize("case", [case for case in CASES if case.infeasible], ids=label)
def test_the_search_ends_when_nothing_can_be_feasible(case):
    result, _ = both(case)
    assert STOPS[result.stop_reason] == "nothing can improve"
    assert result.trace[-1].event == "stopped"
    assert result.recommendation.theta == (2,)
    assert result.recommendation.basis == "reference"
    assert result.recommendation.gap_usd == 0
    assert result.history.spend_usd < result.budget_usd


def test_a_budget_below_calibrate_recommends_the_reference():
    result, _ = both(Case(seed=12, evaluations=0.5))
    assert result.stop_reason == "budget"
    assert result.recommendation.theta == result.problem.theta_ref
    assert result.recommendation.u_out_usd is None
    assert result.report["b_c"] is None
