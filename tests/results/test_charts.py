"""Charts against the spend: marks lie where the ticks say."""

import itertools
import math

import pytest

from scope_torch.results.page.chart import Chart, log_ticks, ticks
from scope_torch.results.page.charts import _intervals
from scope_torch.search.optimizer import TraceRow


def test_steps_are_drawn_where_the_values_are():
    chart = Chart("a", "x [USD]", "y", x_max=4.0, height=220)
    chart.steps([(1.0, 0.0), (2.0, 10.0)], 4.0, "a", "b")
    (mark,) = chart.marks
    points = [tuple(map(float, point.split())) for point in mark.path[1:].split("L")]
    at = {float(text): y for y, text in chart.y_ticks}
    x_ticks = {float(text): x for x, text in chart.x_ticks}
    corners = [(1, 0), (2, 0), (2, 10), (4, 10)]
    assert points == [(pytest.approx(x_ticks[x], abs=0.1), pytest.approx(at[y], abs=0.1))
                      for x, y in corners]  # fmt: skip


@pytest.mark.parametrize("high", [1e-6, 0.03, 1.0, 7.3, 190, 2293, 1e7])
def test_ticks_are_few_and_round(high):
    found = ticks(0.0, high)
    assert 4 <= len(found) <= 7
    assert found[0] == 0
    assert found[-1] <= high * (1 + 1e-9)
    steps = {round(b - a, 12) for a, b in itertools.pairwise(found)}
    assert max(steps) == pytest.approx(min(steps), rel=1e-6)
    for ratio in (1.3, 5, 200, 1e6):
        logs = log_ticks(high, high * ratio)
        assert len(logs) <= 8
        assert all(high <= y <= high * ratio for y in logs)
        assert len(logs) >= 2
        digits = {round(y / 10 ** math.floor(math.log10(y) + 1e-9), 9) for y in logs}
        assert ratio == 1.3 or digits <= {1, 2, 3, 5}


def test_bounds_are_those_of_what_is_theta_out_also_after_a_withdrawal():
    """theta_0, then 1, then 2; both are withdrawn, one after the other, and 3 comes."""
    rows = [
        TraceRow(t, t / 10, t / 10, event, theta_out=(out,), upper_c_usd=bound)
        for t, (event, out, bound) in enumerate(
            [
                ("calibrated", 0, 9.0),
                ("selected", 0, 5.0),
                ("improved", 1, 5.0),
                ("improved", 2, 4.0),
                ("withdrawn", 1, 70.0),
                ("withdrawn", 0, 80.0),
                ("improved", 3, 6.0),
            ]
        )
    ]
    found = [
        (start, end, row.theta_out, row.upper_c_usd) for start, end, row in _intervals(rows, 1)
    ]
    assert found == [
        (0.0, 0.2, (0,), 9.0),
        (0.2, 0.3, (1,), 5.0),
        (0.3, 0.4, (2,), 4.0),
        (0.4, 0.5, (1,), 5.0),
        (0.5, 0.6, (0,), 9.0),
        (0.6, 1, (3,), 6.0),
    ]
    assert _intervals(rows[4:6], 1) == []  # nobody knows their bounds
