"""The rule `loo_widening`: bounds that widen where nothing can improve on theta_out any more."""

import itertools
import json
import math

import naive
import numpy as np
import pytest
from tables import Task, make_task
from test_bounds import LAM, SIZES, fitted, half_widths, problem, theory
from test_per_query import all_codes, random_history

from scope_torch.bounds import TunedBounds
from scope_torch.results.result import RunResult
from scope_torch.runs.runner import run


@pytest.fixture
def history():
    rows = random_history(SIZES, 8, 200, 0)
    return [(theta, q, 1e-3 * (3 + y_c), y_g / 4) for theta, q, y_c, y_g in rows]


def test_begins_at_loo_and_ends_at_eligible(history):
    bounds = fitted(history, b_g="loo_widening", b_c="loo")
    loo, eligible = (half_widths(fitted(history, b_g=rule))[1] for rule in ("loo", "eligible"))
    reference = naive.loo_scale(history, "g", LAM, naive.matern52)
    assert half_widths(bounds)[1] == loo == pytest.approx(reference, rel=1e-6)
    assert loo * 1.5**2 < eligible
    assert bounds.report()["b_rules"]["b_g"] == bounds.settings()["b_g"] == "loo_widening"
    assert bounds.report()["b_g_widened"] == []
    steps = math.ceil(math.log(eligible / loo) / math.log(1.5))
    for step in range(1, steps + 1):
        before = bounds.beta(3)
        assert bounds.widen() is True
        after = bounds.beta(3)
        assert after.c == before.c
        assert half_widths(bounds)[1] == pytest.approx(min(loo * 1.5**step, eligible))
        assert after.g > before.g
        assert len(bounds.report()["b_g_widened"]) == step
    assert half_widths(bounds)[1] == pytest.approx(eligible, rel=1e-12)
    assert bounds.report()["b_g"] == bounds.report()["b_g_widened"][-1]
    for _ in range(3):
        before = bounds.report()
        assert bounds.widen() is False
        assert bounds.report() == before
    widened = json.loads(json.dumps(bounds.report()))["b_g_widened"]
    assert len(widened) == steps
    assert widened == sorted(widened)


def test_reports_taken_earlier_do_not_change(history):
    bounds = fitted(history, b_g="loo_widening")
    before = bounds.report()
    bounds.widen()
    assert before["b_g_widened"] == []


def test_loo_beyond_eligible_stays_where_it_is():
    """Then `eligible` would narrow the bounds, and beta never falls."""
    rows = [
        (tuple(theta), q, 1e-3, 0.9 if sum(theta) % 2 else -0.9)
        for theta in all_codes(SIZES).tolist()
        for q in range(8)
    ]
    bounds = fitted(rows[: 8 * 20], b_g="loo_widening")
    loo, eligible = (half_widths(fitted(rows[:160], b_g=r))[1] for r in ("loo", "eligible"))
    assert loo > eligible
    assert half_widths(bounds)[1] == loo
    assert bounds.widen() is False
    assert half_widths(bounds)[1] == loo


@pytest.mark.parametrize("b_g", ["eligible", "loo", 0.3])
def test_other_rules_never_widen(history, b_g):
    bounds = fitted(history, b_g=b_g)
    before = bounds.beta(3)
    assert bounds.widen() is False
    assert bounds.beta(3) == before
    assert bounds.report()["b_g_widened"] == []


def test_without_anything_to_leave_out_it_is_eligible():
    rows = [(tuple(t), q, 1e-3, 0.1) for t in all_codes(SIZES)[:5].tolist() for q in range(5)]
    for few in ([], rows):
        bounds = fitted(few, b_g="loo_widening")
        assert bounds.beta(1) == fitted(few, b_g="eligible").beta(1)
        assert "eligible (loo_widening found no" in bounds.report()["b_rules"]["b_g"]
        assert bounds.widen() is False


def test_before_fit_there_is_nothing_to_widen():
    bounds = TunedBounds(problem(), b_g="loo_widening")
    assert bounds.widen() is False
    assert bounds.report()["b_g_widened"] == []


def test_theory_never_widens():
    bounds, _ = theory()
    before = bounds.beta(7)
    assert bounds.widen() is False
    assert bounds.beta(7) == before


def overconfident_task(seed: int) -> Task:
    """Answers right or wrong on few queries: `loo` of what Calibrate saw is too narrow."""
    return make_task(seed, (5, 6), 12, False)


def run_with(task: Task, b_g: str, evaluations: float = 30, **settings) -> RunResult:
    optimizer = task.scope(1, bounds=TunedBounds(task.problem, b_g=b_g, b_c="loo"), **settings)
    return run(task.problem, optimizer, task.evaluator(), task.budget(evaluations))


def cost_of(task: Task, result: RunResult) -> float:
    at = np.ravel_multi_index(result.recommendation.theta, task.sizes)
    assert task.mean_quality[at] >= task.problem.s_0
    return float(task.mean_cost[at])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 28, 29])
def test_finds_what_loo_throws_away(seed):
    task = overconfident_task(seed)
    loo, widening = (run_with(task, rule) for rule in ("loo", "loo_widening"))
    assert cost_of(task, loo) > 2 * task.best_cost
    assert loo.history.spend_usd < 0.5 * loo.budget_usd
    assert loo.report["b_g_widened"] == []
    assert all(row.event != "widened" for row in loo.trace)
    assert cost_of(task, widening) == pytest.approx(task.best_cost)
    assert widening.report["b_g_widened"]


def replay(task: Task, result: RunResult, to_the_letter: bool) -> tuple[list[float], list[float]]:
    """b_g at every selection and all its steps, by the rule retyped.

    Half as much again wherever no other configuration than theta_out has L_c <= u_out and L_g < 0;
    to the letter of the paper, wherever no configuration has L_g < 0. The posterior is made from
    scratch from the observations before each row of the trace.
    """
    q, s_0 = task.problem.num_queries, task.problem.s_0
    records = [(o.theta, o.query, o.cost_usd, s_0 - o.quality) for o in result.history]
    targets = all_codes(task.sizes)

    def posterior(t: int):
        mean_c, mean_g, variance = naive.aggregate(records[:t], targets, q, 1e-6, naive.matern52)
        return mean_c, mean_g, np.sqrt(q * variance)

    start = result.trace[0]
    assert start.event == "calibrated"
    b_c, b_g = (naive.loo_scale(records[: start.t], z, 1e-6, naive.matern52) for z in "cg")
    _, mean_g, sigma = posterior(start.t)
    eligible = float(((mean_g + 1) / sigma).min())
    used, steps = [], []
    for row, following in itertools.pairwise(result.trace):
        decides = following.event in ("selected", "widened", "stopped")
        if not decides or row.event in ("selected", "widened"):
            continue
        mean_c, mean_g, sigma = posterior(row.t)
        possible = mean_c - b_c * sigma <= row.u_out_usd
        possible &= (targets != row.theta_out).any(1)
        if to_the_letter:
            possible[:] = True
        while min((mean_g - b_g * sigma)[possible], default=math.inf) >= 0:
            if b_g >= eligible * (1 - 1e-7):
                break
            b_g = min(1.5 * b_g, eligible)
            steps.append(b_g)
        used.append(b_g)
    return used, steps


@pytest.mark.parametrize("to_the_letter", [False, True])
@pytest.mark.parametrize(
    ("task", "widens"),
    [(overconfident_task(0), True), (overconfident_task(23), True), (make_task(3), None)],
)
@pytest.mark.slow
def test_widens_where_and_only_where_nothing_can_improve(task, widens, to_the_letter):
    """Every step against the reference: nothing else can improve there, and nowhere else."""
    tolerance = None if to_the_letter else 0.0
    result = run_with(task, "loo_widening", 20, gap_tolerance=tolerance)
    used, steps = replay(task, result, to_the_letter)
    assert used == sorted(used)
    assert result.report["b_g_widened"] == pytest.approx(steps, rel=1e-6)
    if widens:
        assert len(steps) >= 1
    selections = [row for row in result.trace if row.event == "selected"]
    assert to_the_letter or all(row.theta_cand != row.theta_out for row in selections)
    gave_up = result.trace[-1].event == "stopped" and result.trace[-2].event != "selected"
    assert len(used) == len(selections) + gave_up > 3
    rows = [row for row in result.trace if row.event == "widened"]
    assert len(rows) == len(steps)
    assert all(row.theta_cand is None for row in rows)
    assert result.report["b_g"] == pytest.approx(used[-1], rel=1e-6)


@pytest.mark.slow
def test_beta_never_falls_and_every_step_is_traced():
    """Recorded by the bounds themselves at every use."""
    task = overconfident_task(23)

    class Watched(TunedBounds):
        def beta(self, j_max, information=()):
            seen.append(super().beta(j_max, information))
            return seen[-1]

    seen: list = []
    optimizer = task.scope(1, bounds=Watched(task.problem, b_g="loo_widening", b_c="loo"))
    result = run(task.problem, optimizer, task.evaluator(), task.budget(20))
    assert [beta.g for beta in seen] == sorted(beta.g for beta in seen)
    assert len({beta.c for beta in seen}) == 1
    distinct = sorted({beta.g for beta in seen})
    widened = result.report["b_g_widened"]
    assert distinct[1:] == pytest.approx([math.sqrt(12) * b for b in widened])
    assert sum(row.event == "widened" for row in result.trace) == len(widened)
    assert len(widened) >= 2
