"""What `scripts/front.py` makes of searches."""

import math

import numpy as np
import pytest

from scope_torch.tasks.synthetic import synthetic_task
from scripts.front import Judge, at, first, kept, shares, table


def found(rows: list[list[float]], **more):
    one = {"task": "t", "configurations": 4, "queries": 3, "grid_usd": 2.0, "seed": 0}
    return {**one, "method": "random", "rows": rows, "end": 0.8, "stopped": None, **more}


ROWS = [
    [0.0, 0.0, 0.0, 0.0, 0.0],
    [0.1, 0.5, 0.6, 1.0, 0.0],
    [0.2, 0.7, 0.8, 0.0, 0.0],
    [0.4, 1.0, 1.0, 1.0, 1.0],
]


def test_shares_from_which_on_something_holds():
    assert first(found(ROWS), 3) == 0.1
    assert kept(found(ROWS), 3) == 0.4
    assert kept(found(ROWS), 4) == 0.4
    assert first(found(ROWS[:3]), 4) is None
    assert kept(found(ROWS[:3]), 3) is None
    assert kept(found(ROWS[:2]), 3) == 0.1
    assert kept(found(ROWS), 1, 0.6) == 0.2
    assert [at(found(ROWS), share, 1) for share in (0.05, 0.1, 0.39, 0.5)] == [0.0, 0.5, 0.7, 1.0]
    assert shares([0.1, None, 0.3]) == "30% (10% to never)"


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


def test_the_table_has_a_row_for_each_method():
    text = table([found(ROWS), found(ROWS[:3], seed=1)])
    assert "| random | 2 | 0.000 | 0.000 | 0.500 | 0.700 | 0.850 | 0.850 |" in text
    never = "never (40% to never)"
    assert f"| random | {never} | 10% (10% to 10%) | {never} | {never} |  |" in text
