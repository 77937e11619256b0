"""Times of searches with simulated latencies (benchmarks/results/in_flight.py)."""

import numpy as np
import pytest

from benchmarks.results.in_flight import InFlightCell, makespan, searched
from scope_torch.methods import make_scope_joint
from scope_torch.runs.runner import run
from scope_torch.tasks.synthetic import synthetic_task


def test_a_makespan_by_hand():
    four = np.array([1.0, 4.0, 1.0, 1.0])
    told = [-1] * 4
    assert makespan([4, *told], four, 1) == 7  # one after the other
    assert makespan([4, *told], four, 2) == 4  # 4 beside 1, 1, 1
    assert makespan([1, -1, 1, -1, 1, -1, 1, -1], four, 9) == 7  # each waits for the one before
    # The third is asked when the first is told, and the fourth when the second is: after 4.
    assert makespan([2, -1, 1, -1, 1, -1, -1], four, 9) == 5


@pytest.mark.parametrize(
    "how",
    [
        {"in_flight": 4},
        *(pytest.param(how, marks=pytest.mark.slow) for how in ({}, {"batch_size": 5})),
    ],
)
@pytest.mark.slow
def test_a_search_without_a_clock_is_that_of_a_run(how):
    def make():
        return make_scope_joint(task.problem, base="small", seed=1, device="cpu", **how)

    task = synthetic_task()
    for budget_usd in (0.2, 3.0):
        result = run(task.problem, make(), task.evaluator, budget_usd)
        events, spend_usd = searched(make(), task, budget_usd)
        assert events.count(-1) == len(result.history)
        assert spend_usd == pytest.approx(result.history.spend_usd, rel=1e-12)
        assert sum(number for number in events if number > 0) >= len(result.history)


@pytest.mark.slow
def test_rows():
    rows = {}
    for width, how in {"1": 1, "8": 8}.items():
        overrides = ("task=synthetic", "base=small", "budget_usd=2", "method=scope_joint")
        cell = InFlightCell("synthetic", width, 1, None, (*overrides, f"method.in_flight={how}"))
        rows[width] = cell.measured()
    for name in ("equal", "lognormal", "heavy"):
        assert rows["1"][f"speedup_{name}"] == pytest.approx(1)
    assert 8 >= rows["8"]["speedup_equal"] > rows["8"]["speedup_lognormal"] > 1
    assert all(row["certified"] and row["ratio"] >= 1 for row in rows.values())
