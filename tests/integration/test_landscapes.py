"""How much simulated worlds look like what the paper's authors recorded."""

import statistics

import numpy as np
import pytest
from real_data import folder_or_skip

from benchmarks.results import __main__ as program
from benchmarks.results.experiments import experiments
from benchmarks.results.landscape_tables import draw_landscapes, landscapes_table, of_worlds
from benchmarks.results.landscapes import (
    COLUMNS,
    RECORDED,
    Sample,
    agreement,
    r2_of_a_sum,
    statistics_of,
)
from benchmarks.results.planned import KEY, read_rows, row_of
from benchmarks.results.write import RESULTS
from scope_torch.errors import InputError

ROWS = read_rows(RESULTS / "landscapes.csv")
PLANNED = {run.key: run for run in experiments()["landscapes"]}
TASKS = ("data_imputation", "data_transformation", "text_to_sql")
HARD = ("bottleneck", "additive")
# How far the median world may be from the recording; of costs, by which factor.
TOLERANCES = {
    "reference_quality": 0.01,
    "mean_quality": 0.1,
    "sd_quality": 0.02,
    "feasible": 0.08,
    "correlation": 0.2,
    "sd_log_cost": 0.2,
    "best_quality": 0.04,
    "r2_quality": 0.13,
    "r2_cost": 0.1,
    "r2_log_cost": 0.05,
    "agreement": 0.05,
    "median_tail": 0.25,
    "longest_tail": 0.25,
}
FACTORS = {"median_cost": 1.5, "cheapest_feasible": 1.8}
OFF = {
    ("data_imputation", "feasible"),  # 8 of 57 recorded random rows, and 37% of all rows
    ("data_transformation", "longest_tail"),
}


def median_and_recorded(task: str, family: str, column: str) -> tuple[float, float] | None:
    """A statistic of the median world and of the recording; None if that is not known."""
    recorded = of_worlds(ROWS, task, RECORDED, column)
    worlds = of_worlds(ROWS, task, family, column)
    assert len(worlds) == 10
    return (statistics.median(worlds), recorded[0]) if recorded else None


def is_near(task: str, family: str, column: str) -> bool | None:
    """Whether a statistic is within its tolerance; None if none was recorded."""
    if (found := median_and_recorded(task, family, column)) is None:
        return None
    simulated, recorded = found
    if column in FACTORS:
        return max(simulated / recorded, recorded / simulated) <= FACTORS[column]
    return abs(simulated - recorded) <= TOLERANCES[column]


def test_the_third_family_is_like_the_recordings():
    """But for what docs/simulated.md says."""
    assert {*TOLERANCES, *FACTORS} == {*COLUMNS[2:-2]}  # all but sizes and quantiles
    near = {(t, c): is_near(t, "recorded_like", c) for t in TASKS for c in (*TOLERANCES, *FACTORS)}
    assert {place for place, found in near.items() if found is False} == OFF
    assert sum(found is not None for found in near.values()) == 15 + 15 + 7
    (simulated, recorded) = median_and_recorded("data_imputation", "recorded_like", "feasible")
    assert recorded < simulated < 0.45


@pytest.mark.parametrize("family", HARD)
@pytest.mark.parametrize("task", TASKS)
def test_the_hard_cases_are_not(task, family):
    """Random configurations are worse there, and what is right for one is right for others."""
    for column in ("mean_quality", "agreement", "r2_quality"):
        assert is_near(task, family, column) is not True, column
    mean, recorded = median_and_recorded(task, family, "mean_quality")
    assert mean < recorded - 0.1
    if task != "data_imputation":
        assert is_near(task, family, "feasible") is False
    feasible, recorded = median_and_recorded(task, family, "feasible")
    assert feasible < 0.6 * recorded


@pytest.mark.parametrize("task", TASKS[:2])
def test_the_third_family_has_the_longest_tails(task):
    recorded, like, *hard = (
        statistics.median(of_worlds(ROWS, task, family, "longest_tail"))
        for family in (RECORDED, "recorded_like", *HARD)
    )
    assert max(hard) < like < recorded


@pytest.mark.parametrize(
    "family", ["recorded_like", *(pytest.param(family, marks=pytest.mark.slow) for family in HARD)]
)
def test_a_committed_row_is_made_again(family):
    run = PLANNED["data_imputation", family, "100", "10"]
    same_as_committed(row_of(run))


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS[:2])
def test_the_rows_of_the_recordings_are_made_again(task):
    folder_or_skip("recordings/scope_bing")
    same_as_committed(row_of(PLANNED[task, RECORDED, "", "10"]))


def same_as_committed(made: dict[str, str]) -> None:
    (row,) = [row for row in ROWS if all(row[name] == made[name] for name in KEY)]
    for column in COLUMNS:
        found, expected = (np.array(one[column].split(), float) for one in (made, row))
        np.testing.assert_allclose(found, expected, rtol=1e-5 if found.size == 1 else 0.01)


def test_the_file_has_every_world_and_no_row_of_others():
    assert [row for row in ROWS if row["method"] == RECORDED and row["world"]] == []
    assert {tuple(row[name] for name in KEY) for row in ROWS} == set(PLANNED)
    assert len(ROWS) == len(PLANNED) == 3 * (1 + 3 * 10)
    for row in ROWS:
        assert set(row) == {*KEY, *COLUMNS}
        assert max(len(row[column].split()) for column in COLUMNS) <= 11


def sample(codes, answers, cost) -> Sample:
    codes = np.array(codes)
    tails = np.linspace(0, 1, 21)
    return Sample(codes, np.array(answers, float), np.array(cost), np.arange(len(codes)), tails)


def test_statistics_of_a_few_configurations():
    """By hand; the first one costs the least, and is too bad."""
    answers = [[0, 0, 0, 1], [1, 1, 0, 1], [1, 1, 1, 1], [0, 1, 0, 1]]
    few = sample([[0, 0], [0, 1], [1, 0], [1, 1]], answers, [0.1, 1.0, 10.0, 1.0])
    found = statistics_of(few, 0.75, 0.74)
    assert found["mean_quality"] == pytest.approx(0.625)
    assert found["sd_quality"] == pytest.approx(statistics.stdev([0.25, 0.75, 1.0, 0.5]))
    assert (found["feasible"], found["best_quality"]) == (0.5, 1.0)
    assert (found["median_cost"], found["cheapest_feasible"]) == (1.0, 1.0)
    assert found["correlation"] == pytest.approx(0.75 / (0.3125 * 2) ** 0.5)
    assert found["sd_log_cost"] == pytest.approx(np.log(10) * (2 / 3) ** 0.5)
    assert found["agreement"] == pytest.approx((1 / 3 + 3**-0.5 * 2) / 3)
    assert (found["median_tail"], found["longest_tail"]) == pytest.approx((0.5, 0.95))
    # Of the first two alone, which are not all that was recorded.
    two = statistics_of(few._replace(random=np.array([0, 1])), 0.75, 0.74)
    assert (two["feasible"], two["best_quality"], two["random"]) == (0.5, 1.0, 2)
    assert statistics_of(few, 1.0, 1.01)["cheapest_feasible"] == 1.0  # theta_0 itself
    assert found["cost_quantiles"].split()[5] == "1"


def test_how_much_of_a_landscape_is_a_sum():
    rng = np.random.default_rng(0)
    codes = rng.integers(5, size=(400, 3))
    effects = rng.normal(size=(3, 5))
    total = effects[np.arange(3), codes].sum(1)
    assert r2_of_a_sum(codes, total) == pytest.approx(1.0)
    assert r2_of_a_sum(codes, rng.normal(size=400)) == pytest.approx(0.0, abs=0.05)
    half = total + total.std() * rng.normal(size=400)
    assert r2_of_a_sum(codes, half) == pytest.approx(0.5, abs=0.08)


def test_agreement_of_answers():
    same = np.array([[0, 1, 1, 0], [0, 1, 1, 0], [1, 1, 1, 1]], float)  # the last is left out
    assert agreement(same) == pytest.approx(1.0)
    assert agreement(np.array([[0, 1, 1, 0], [1, 0, 0, 1]], float)) == pytest.approx(-1.0)


def test_the_table_has_what_was_recorded_beside_each_family():
    lines = landscapes_table(ROWS).splitlines()
    assert [len(line.split(" | ")) for line in lines[2:]] == [10] * (len(lines) - 2)
    (mean,) = [line.split(" | ") for line in lines if line.startswith("| mean quality")]
    assert [float(cell) for cell in mean[1:3]] == pytest.approx([0.597, 0.68], abs=0.01)
    (shares,) = [line for line in lines if "share good enough" in line]
    assert shares.count(" to ") == 3
    assert lines[-1].endswith("|  |  |  |")  # of text_to_sql nobody recorded the answers


def test_the_figure_has_a_curve_for_each_family():
    figure = draw_landscapes(ROWS)
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == [RECORDED, "recorded_like", *HARD]
        assert all((np.diff(line.get_xdata()) >= 0).all() for line in axes.lines)
    assert len(figure.axes) == 4


def test_recorded_runs_are_left_out_where_there_are_no_data(monkeypatch, capsys):
    def absent(_overrides):
        raise InputError("no file")

    monkeypatch.setattr(program, "compose_task", absent)
    every = experiments()
    kept = program._with_data("landscapes", every["landscapes"])
    assert [run.problem for run in kept if run.method == RECORDED] == ["text_to_sql"]
    assert len(kept) == len(every["landscapes"]) - 2
    assert "runs left out" in capsys.readouterr().err
    for name, left in (("recorded", 0), ("tables", 0), ("main", len(every["main"]))):
        assert len(program._with_data(name, every[name])) == left, name
