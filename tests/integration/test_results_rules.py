"""Runs and tables about stopping, about wrong results, and about rules."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from benchmarks.results import check_tables, checks, coverage, letter, payoff, rule_tables
from benchmarks.results.choices import bounds_rules
from benchmarks.results.planned import read_rows
from benchmarks.results.write import RESULTS
from scope_torch.cli.compose import compose
from scope_torch.tasks.synthetic import synthetic_task

CURVE = [[0.0, 1.0, 2.0], [0.01, 0.004, 0.002], [0.9, 0.6, 0.85]]


def found(returns=()):
    """A search for 3 USD; at 1 USD theta_out is not feasible."""
    return {"c_0": 0.01, "s_0": 0.8, "spend": 3.0, "curve": CURVE, "returns": list(returns)}


def test_a_search_ends_where_its_return_falls_below_one():
    returns = [(0.5, 0.1), (1.5, 0.01), (2.5, 0.001)]  # USD spent, and the return for H = 1
    assert [payoff.end(found(returns), H) for H in (5, 50, 500, 5000)] == [0.5, 1.5, 2.5, 3.0]
    assert payoff.end(found(), 1e6) == 3.0


def test_a_total_is_the_search_and_h_queries_of_what_may_run():
    """In c(theta_0); where theta_out is not feasible, the reference runs."""
    assert payoff.total(found(), 100) == pytest.approx((3 + 100 * 0.002) / 0.01)
    assert payoff.total(found([(1.2, 1e-9)]), 100) == pytest.approx((1.2 + 100 * 0.01) / 0.01)


@pytest.mark.slow
def test_one_search_tells_the_end_for_every_h():
    """H decides nothing but the end: searches with their own H spend as much as the rows say."""
    overrides = ("task=synthetic", "budget_usd=0.3", "base=nano")
    (cell,) = payoff.cells("synthetic", overrides, [10], [101])
    row = cell.row()
    assert row == cell.row()
    spends = [float(row[f"spend_{H:.0e}"]) for H in payoff.DEPLOYMENTS]
    assert spends == sorted(spends)
    own = compose(
        [*overrides, "task.world_seed=101", "seed=10", "method=scope_joint", *payoff.EARLIER]
    )
    task = payoff.build(own.task)
    for H, spend in zip(payoff.DEPLOYMENTS, spends, strict=True):
        problem = replace(task.problem, deployment_queries=H)
        search = payoff.build(own.method, problem=problem, kernel=payoff.build(own.kernel), seed=10)
        result = payoff.run(problem, search, task.evaluator, own.budget_usd)
        assert result.history.spend_usd == pytest.approx(spend, rel=1e-5)


def test_totals_are_relative_to_the_default_rule():
    row = {"problem": "t", "method": payoff.NAME, "world": "", "seed": "10"}
    for H in payoff.DEPLOYMENTS:
        row |= {f"pays_{H:.0e}": "2", f"widened_{H:.0e}": "3", f"scope_{H:.0e}": "4"}
        row |= {f"spend_{H:.0e}": "0.5"}
    other = {**row, **{f"widened_{H:.0e}": "1" for H in payoff.DEPLOYMENTS}}
    table = rule_tables.payoff_table([row, other])
    assert table.endswith(
        f"| t (2 searches) | {'1.000, 2.000 | ' * len(payoff.DEPLOYMENTS)}2.000 |"
    )


@pytest.mark.parametrize("p", [0.01, 0.1, 0.3, 0.7])
def test_r_of_flips_is_the_smallest_valid_one(p):
    """E exp(s (y - E y)) <= exp(R^2 s^2 / 2) for all s, with equality somewhere but at 0."""
    R = coverage.flip_constant(p)
    s = np.linspace(-30, 30, 60_001)
    s = s[np.abs(s) > 0.5]  # there both sides are 1
    log_moment = np.log((1 - p) * np.exp(-p * s) + p * np.exp((1 - p) * s))
    slack = R**2 * s**2 / 2 - log_moment
    assert slack.min() > -1e-9
    assert slack.min() < 1e-4
    assert coverage.flip_constant(0.5) == 0.5
    assert coverage.flip_constant(0.0) == 0.0


def test_flips_are_as_frequent_as_said_and_known_to_theory():
    task = synthetic_task(num_queries=24)
    flipped = coverage.Flipped(task, 0.25, 3)
    requests = [
        coverage.Request(task.problem.space.theta_at(i), q) for i in range(36) for q in range(24)
    ]
    plain = list(task.evaluator.evaluate(requests))
    noisy = list(flipped.evaluate(requests))
    changed = [a.quality != b.quality for a, b in zip(plain, noisy, strict=True)]
    assert abs(np.mean(changed) - 0.25) < 4 * math.sqrt(0.25 * 0.75 / len(changed))
    assert [a.cost_usd for a in plain] == [b.cost_usd for b in noisy]


@pytest.mark.slow
def test_blocks_of_searches_add_up():
    """Two blocks of two searches are the four searches one by one."""
    (cell,) = [c for c in coverage.cells([1000]) if (c.method, c.flips) == ("scope, tuned", 0.1)]
    rows = [replace(cell, seed=seed, searches=2).row() for seed in (1000, 1002)]
    single = [coverage.one_run(seed, "scope, tuned", 0.1) for seed in range(1000, 1004)]
    assert sum(int(row["infeasible"]) for row in rows) == sum(o.infeasible for o in single)
    left = sum(o.basis != "reference" for o in single) / 4
    table = rule_tables.coverage_table(rows)
    assert f", {left:.1%}, " in table
    assert "(4 searches each)" in table


@pytest.mark.slow
def test_the_first_of_the_bounds_rules_is_the_default():
    rules = bounds_rules()
    assert len(rules) == 12
    default = compose(["task=data_imputation", "method=scope"]).method.bounds
    first = compose(["task=data_imputation", *next(iter(rules.values()))]).method.bounds
    assert first.reference_fraction == pytest.approx(default.reference_fraction)
    assert (first.b_g, first.b_c) == (default.b_g, default.b_c)
    names = {row["method"] for row in read_rows(RESULTS / "bounds.csv")}
    assert names == set(rules)


@pytest.mark.slow
def test_noise_is_what_makes_the_letter_wide():
    """In every world of the table, and by the run that makes a row."""
    rows = {(row["method"], row["world"]): row for row in read_rows(RESULTS / "letter.csv")}
    for (method, world), row in rows.items():
        if method == "scope_letter":
            without = rows["scope_letter, R = 0", world]
            assert float(row["noise_g"]) == float(row["b_g"]) > 10 * float(without["b_g"])
            assert float(without["noise_g"]) == 0 < float(without["b_g"]) < 1.5
    small = {"task": "synthetic", "worlds": [101], "seed": 10}
    cells = [replace(c, overrides=(*c.overrides, "base=nano")) for c in letter.cells(**small)]
    made = {cell.method: cell.row() for cell in cells}
    wide, narrow = (float(made[f"scope_letter{r}"]["b_g"]) for r in ("", ", R = 0"))
    Q, delta = 60, 1e-4  # the noise term of eq:beta-def without its information gain
    assert wide > math.sqrt(2 * math.log(2 * Q / delta)) > 3 * narrow
    assert made["scope"]["noise_g"] == ""
    floor = made["scope_letter, R = 0, floor"]
    assert float(floor["first_u_out"]) == pytest.approx(float(floor["c_0"]), rel=1e-6)
    assert float(made["scope_letter, R = 0"]["first_u_out"]) < float(floor["c_0"])
    assert letter.VARIANTS.keys() == made.keys()
    assert rule_tables.letter_table([*made.values()]).count("\n") == 1 + len(made)


def test_checks_are_counted():
    (cell,) = [c for c in checks.simulated_cells(3) if (c.flips, c.loss) == (0.05, 0.1)]
    row = replace(cell, checks=30).measured()
    assert row["passed"] + row["failed"] + row["undecided"] == row["checks"] == 30
    assert row["wrong_fail"] == 0  # the loss is too much
    assert row["wrong_pass"] == row["passed"]
    assert row["draws"] <= 1600
    # (z_0.95 + z_power)^2 var / mean^2 pairs, by 200,000 drawn ones
    rng, flips = np.random.default_rng(0), 0.05
    old_right = np.where(rng.random(200_000) < 0.85, 1 - flips, flips)
    mean_old = 0.85 * (1 - flips) + 0.15 * flips
    lost = rng.random(200_000) < 0.1 * mean_old / (1 - 2 * flips) / 0.85
    new_right = np.where(lost & (old_right > 0.5), flips, old_right)
    new, old = (rng.random(200_000) < p for p in (new_right, old_right))
    d = new - 0.95 * old
    z = NormalDist().inv_cdf
    power = min(row["failed"] / 30, 0.999)
    expected = ((z(0.95) + z(power)) / d.mean()) ** 2 * d.var()
    assert row["draws_fixed"] == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_checks_of_a_recorded_table():
    """Where all queries are asked, no verdict of `sequence` is wrong."""
    rows = {
        name: checks.RecordedChecks("synthetic", name, 10, None, ("task=synthetic",)).measured()
        for name in checks.CERTIFICATES
    }
    assert rows["sequence"]["undecided"] == 0
    for row in rows.values():
        assert row["checks"] == row["passed"] + row["failed"] + row["undecided"] > 3
        assert len(row["share_of_queries"].split()) == row["checks"]
    texts = [
        {"problem": "p", "method": name} | {key: str(value) for key, value in row.items()}
        for name, row in rows.items()
    ]
    table = check_tables.recorded_checks_table(texts)
    assert table.splitlines()[2].count("; ") == len(rows)
