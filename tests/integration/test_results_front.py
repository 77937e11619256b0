"""Searches for the front: what is made of their steps, and their table."""

import math

import numpy as np
import pytest

from benchmarks.results.front import SHARES, FrontCell, Judge, at, first, kept, search, speedup
from benchmarks.results.front_tables import front_table, shares
from benchmarks.results.in_flight import lognormal
from scope_torch.front_method import make_scope_front
from scope_torch.tasks.synthetic import synthetic_task

STEPS = [
    [0.0, 0.0, 0.0, 0.0, 0.0],
    [0.1, 0.5, 0.6, 1.0, 0.0],
    [0.2, 0.7, 0.8, 0.0, 0.0],
    [0.4, 1.0, 1.0, 1.0, 1.0],
]


def test_shares_from_which_on_something_holds():
    assert first(STEPS, 3) == 0.1
    assert kept(STEPS, 3) == 0.4
    assert kept(STEPS, 4) == 0.4
    assert first(STEPS[:3], 4) is None
    assert kept(STEPS[:3], 3) is None
    assert kept(STEPS[:2], 3) == 0.1
    assert kept(STEPS, 1, 0.6) == 0.2
    assert [at(STEPS, share, 1) for share in (0.05, 0.1, 0.39, 0.5)] == [0.0, 0.5, 0.7, 1.0]
    assert shares(["0.1", "", "0.3"]) == "30% (10% to never)"


def test_the_judge_measures_by_the_truth():
    task = synthetic_task(num_queries=20)
    judge = Judge(task)
    cost, quality = (values.flatten().numpy() for values in task.evaluator.truth())
    space, floor = task.problem.space, quality.min()
    assert judge.grid_usd == pytest.approx(cost.sum() * 20)
    true = [
        i
        for i in range(len(cost))
        if not any(
            (cost[j], quality[j]) != (cost[i], quality[i])
            and cost[j] <= cost[i]
            and quality[j] >= quality[i]
            for j in range(len(cost))
        )
    ]
    front = [space.theta_at(i) for i in sorted(true, key=lambda i: cost[i])]
    assert judge.row(judge.grid_usd, front) == pytest.approx([1.0, 1.0, 1.0, 1.0, 1.0])
    one = int(cost.argmin())
    share, of_log, of_usd, is_best, is_exact = judge.row(0.0, [space.theta_at(one)])
    order = sorted(true, key=lambda i: cost[i])
    ends = [*(cost[i] for i in order[1:]), cost.max()]
    for value, scale in ((of_log, np.log), (of_usd, lambda x: x)):
        whole = sum(
            (scale(end) - scale(cost[i])) * (quality[i] - floor)
            for i, end in zip(order, ends, strict=True)
        )
        part = (scale(cost.max()) - scale(cost[one])) * (quality[one] - floor)
        assert value == pytest.approx(part / whole)
    assert (share, is_exact) == (0.0, 0.0)
    assert math.isclose(is_best, float(one == order[-1]))


@pytest.mark.slow
def test_a_search_ends_at_the_front_that_its_row_describes():
    """Random search buys everything that the limit allows; the areas only grow with the truth."""
    row = FrontCell("synthetic", "random", 10, None, ("task=synthetic",)).row()
    areas = [float(row[f"area_log_{share:g}"]) for share in SHARES]
    assert areas == sorted(areas)
    assert 0 < areas[-1] <= 1
    assert float(row["end"]) >= 0.8
    assert row == FrontCell("synthetic", "random", 10, None, ("task=synthetic",)).row()


def test_the_table_has_a_row_for_each_method():
    row = {"problem": "t", "method": "random", "configurations": "4", "queries": "3"}
    row |= {"grid_usd": "2", "area_95_kept": "0.4", "best_first": "0.1", "best_kept": "0.4"}
    row |= {"exact_kept": "", "end": "0.8", "stopped": "0", "speedup_lognormal": ""}
    row |= {f"area_{axis}_{share:g}": f"{share}" for axis in ("log", "usd") for share in SHARES}
    other = {**row, "seed": "1", "area_log_0.5": "1", "exact_kept": "0.4"}
    ours = {**row, "method": "scope_front, 32 in flight", "speedup_lognormal": "21.04"}
    text = front_table([row, other, ours, {**ours, "speedup_lognormal": "17"}])
    assert "| random | 0.020 | 0.050 | 0.100 | 0.250 | 0.750 | 0.750 |" in text
    found = "40% (40% to 40%) | 40% (40% to 40%) | never (40% to never)"
    assert f"| random | {found} |  |  |" in text
    assert "|  | 19.0 |" in text


@pytest.mark.slow
def test_a_pipelined_search_is_driven_with_answers_missing():
    """Three calls in 32 places end with the slowest; one after another, nothing is saved."""
    task = synthetic_task(num_queries=20)
    one, many = (make_scope_front(task.problem, base="small", seed=0, in_flight=n) for n in (1, 32))
    (steps, alone), (steps_32, together) = (search(task, of, Judge(task)) for of in (one, many))
    for of, rows in ((one, steps), (many, steps_32)):
        assert rows[-1] == Judge(task).row(rows[-1][0] * Judge(task).grid_usd, of.front)
    assert sum(n for n in together if n > 0) >= many.t == -sum(n for n in together if n < 0)
    assert speedup(alone, 0) < speedup(together, 0) <= 32
    assert speedup([3, -1, -1, -1], 0) == pytest.approx(
        (of := lognormal(np.random.default_rng(0), 3)).sum() / of.max()
    )
    assert speedup([1, -1, 1, -1, 1, -1], 0) == pytest.approx(1.0)
    assert speedup([1, -1, 2], 0) == pytest.approx(1.0)  # two answers that nobody waited for
