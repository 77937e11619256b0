"""The tables of docs/performance.md are made from docs/results/speed.csv by scripts/speed.py."""

import naive
import numpy as np
import pytest
import torch
from long_runs import only_long

from scope_torch.evaluators.simulation.spec import load_worlds
from scripts import speed
from scripts.speed import (
    CONTENDERS,
    FAST,
    FILE,
    OURS,
    PAGE,
    PARTS,
    contender,
    exponent,
    jobs,
    main,
)
from scripts.speed_searches import (
    CHAINS,
    LISTS,
    METHODS,
    WORLDS,
    Searches,
    Steps,
    prepared,
    searched,
)
from scripts.speed_tables import BEGIN, END, FIELDS, between, read, tables, write_page


def test_the_page_is_made_of_the_csv():
    page = PAGE.read_text()
    for name, made in tables(read(FILE)).items():
        assert between(page, name) == made, f"{name}: run `python scripts/speed.py write`"


def test_all_parts_are_measured_with_one_thread():
    rows = read(FILE)
    assert {row["section"] for row in rows} == {*PARTS}
    for row in rows:
        assert row["threads"] == "1"
        assert all(row[key] for key in ("date", "versions", "machine", "value", "how"))


def test_all_ways_agree_wherever_they_were_measured():
    measured = [row for row in read(FILE) if row["section"] == "posterior" and row["difference"]]
    assert {row["who"] for row in measured} == {*CONTENDERS}
    assert {int(row["Theta"]) for row in measured} == {8**3, 15**3, 23**3, 23**4, 23**5}
    assert max(float(row["difference"]) for row in measured) < 1e-9


def test_what_is_extrapolated_says_so_with_its_exponent():
    rows = [r for r in read(FILE) if (r["section"], r["what"]) == ("posterior", "on Theta")]
    slow = [row for row in rows if row["who"] not in FAST]
    assert {r["who"] for r in slow if r["Theta"] == str(23**5)} == {*CONTENDERS} - {*FAST}
    fitted = {row["who"]: float(row["value"]) for row in rows if row["unit"] == "exponent"}
    for row in slow:
        if row["Theta"] == str(23**5):
            assert row["how"] == f"extrapolated from 12,167 with exponent {fitted[row['who']]:.2f}"
    assert not any("extrapolated" in row["how"] for row in rows if row["who"] in FAST)


def test_the_sums_over_theta_are_faster_from_thousands_of_configurations_on():
    """In the committed measurements; ten times as fast as the direct form on the largest spaces."""
    rows = [r for r in read(FILE) if (r["section"], r["what"]) == ("posterior", "on Theta")]
    others = [r for r in rows if r["ratio"] and r["who"] != OURS and int(r["Theta"]) > 1000]
    assert min(float(row["ratio"]) for row in others) > 1
    large = [r for r in others if r["who"] == "direct" and int(r["Theta"]) >= 23**4]
    assert len(large) == 2
    assert min(float(row["ratio"]) for row in large) > 10


def test_growth_of_the_committed_measurements():
    """At most the square in |D|, none in Q, and about proportional to Theta at most."""
    rows = [r for r in read(FILE) if (r["section"], r["unit"]) == ("growth", "exponent")]
    on_theta = {row["task"]: float(row["value"]) for row in rows if row["what"] == "on Theta"}
    assert on_theta["D"] < 2
    assert abs(on_theta["Q"]) < 0.3
    assert on_theta["N"] < 1.2


def test_searches_of_the_spaces_too_large_to_enumerate():
    """In the committed measurements: `scope_joint` proves all, the rest is off by little."""
    rows = [row for row in read(FILE) if row["section"] == "large"]
    searches = {(row["task"], row["who"]): {} for row in rows}
    for row in rows:
        searches[row["task"], row["who"]][row["what"]] = float(row["value"])
    assert {*searches} == {(chain, method) for chain in CHAINS for method in METHODS}
    assert {int(row["Theta"]) for row in rows} == {23**7, 23**8}
    for (task, method), found in searches.items():
        most_nodes = 20_000 if method == "scope_joint" else 100_000
        assert found["median nodes"] <= found["most nodes"] <= most_nodes
        assert found["choices not proven"] <= min(found["steps"], found["searches not proven"])
        assert found["searches not proven"] == 0 or found["most nodes"] == most_nodes
        assert found["largest gap"] == 0 or found["choices not proven"] > 0
        assert found["largest gap"] < 0.01 * load_worlds(WORLDS)[task].reference_cost_usd
        assert found["peak memory"] < 1  # a number for each configuration would take 25 GiB
        if method == "scope_joint":
            assert found["searches not proven"] == 0


@pytest.mark.parametrize("max_nodes", [2, 1000])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_searches_are_noted_as_the_result_counts_them(method, max_nodes, tmp_path):
    world = ["task=data_transformation", "task.world=chain_of_3", f"task.world_file='{WORLDS}'"]
    settings = ["method.space_search=branch_and_bound", f"method.max_nodes={max_nodes}"]
    cache = f"task.cache_dir='{tmp_path}'"
    search = prepared([*world, f"method={method}", *settings, cache])
    steps, searches = Steps(search[1], 3), Searches(search[1])
    result, _ = searched(*search)
    selection = result.report["selection"]
    assert len(steps.seconds) == sum(row.event == "selected" for row in result.trace) == 3
    assert len(searches.num_nodes) == selection["searches"] >= 3 * 3
    assert max(searches.num_nodes) == selection["most_nodes"] <= max_nodes
    assert (searches.choices_not_proven == 0) == selection["exact"] == (max_nodes > 2)
    assert searches.choices_not_proven <= min(3, selection["incomplete_searches"])


def test_a_task_is_measured_alone():
    assert [*jobs(None, "chain_of_8", False)] == [
        {"part": "large", "method": method, "task": "chain_of_8"} for method in METHODS
    ]
    every = [*jobs(None, None, False)]
    assert {job["part"] for job in every} == {*PARTS}
    assert len(every) == len(METHODS) * (2 * 4 + len(LISTS) + len(CHAINS)) + 2


def test_what_the_file_has_is_measured_again_only_if_asked_for(tmp_path, monkeypatch):
    path, done = tmp_path / "speed.csv", []

    def rows_of(job):
        done.append(job)
        names = {"task": job.get("task", ""), "who": job.get("method", "")}
        return [{**names, "what": "run", "value": len(done)}]

    monkeypatch.setattr(speed, "in_own_process", rows_of)
    main(["measure", "--only", "large", "--task", "chain_of_7", "--to", str(path)])
    main(["measure", "--only", "large", "--to", str(path)])
    main(["measure", "--only", "large", "--to", str(path)])
    assert [(job["method"], job["task"]) for job in done] == [
        (method, chain) for chain in CHAINS for method in METHODS
    ]
    main(["measure", "--only", "large", "--task", "chain_of_7", "--again", "--to", str(path)])
    main(["measure", "--only", "posterior", "--to", str(path)])
    values = {(row["section"], row["task"], row["who"]): row["value"] for row in read(path)}
    assert [*values.values()] == ["5", "6", "3", "4", "7"]
    assert len(read(path)) == len(values)


def test_an_exponent_is_the_slope_of_logarithms():
    row = exponent([10, 100, 1000], [3.0, 300.0, 3000.0], "Theta")
    assert row["value"] == pytest.approx(1.5)
    assert row["how"] == "fitted, Theta = 10 to 1,000; between neighbours 1.00 to 2.00"


@pytest.mark.parametrize("name", CONTENDERS)
def test_each_way_is_the_definition(name):
    contenders = pytest.importorskip("contenders", exc_type=ImportError)  # they need scikit-learn
    case = contenders.Case(3, 8, 9, 4, 4)
    targets = case.space.unrank(torch.arange(case.space.size)).numpy()
    expected = naive.aggregate(case.history, targets, 9, contenders.LAM, naive.matern52)
    error = np.abs(contender(name, case)()().numpy() - np.stack(expected)).max(1)
    assert (error[:2] < 1e-9).all()
    assert error[2] < 1e-10


@only_long
@pytest.mark.slow
def test_a_quick_measurement_of_all_parts(tmp_path):
    pytest.importorskip("sklearn")
    path, page = tmp_path / "results" / "speed.csv", tmp_path / "page.md"
    main(["measure", "--quick", "--to", str(path)])
    rows = read(path)
    assert {row["section"] for row in rows} == {*PARTS}
    assert tuple(rows[0]) == FIELDS
    compared = [row for row in rows if row["section"] == "posterior" and row["difference"]]
    assert {row["who"] for row in compared} == {*CONTENDERS}
    assert max(float(row["difference"]) for row in compared) < 1e-9
    shares = [float(row["value"]) for row in rows if row["unit"] == "share"]
    assert sum(shares) == pytest.approx(1)
    large = [row for row in rows if row["section"] == "large"]
    assert {(row["task"], row["who"]) for row in large} == {("chain_of_3", m) for m in METHODS}
    kept = {row["what"] for row in read(FILE) if row["section"] == "large"}
    assert {row["what"] for row in large} == kept
    main(["measure", "--quick", "--only", "growth", "--again", "--to", str(path)])
    again = read(path)
    assert [row for row in again if row["section"] != "growth"] == [
        row for row in rows if row["section"] != "growth"
    ]
    page.write_text("".join(f"{BEGIN.format(name)}\n{END}\n" for name in tables(again)))
    write_page(page, again)
    assert all(between(page.read_text(), name) == made for name, made in tables(again).items())


def test_a_page_without_a_marker_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match=r"page\.md has no marker"):
        write_page(page, [])


def test_a_list_costs_in_proportion_to_itself_not_to_the_grid():
    """Of the committed rows: a step on the grid, on the list taken from it, on a quarter."""
    steps = [row for row in read(FILE) if row["section"] == "steps"]
    rows = {(r["task"], r["who"], r["what"]): float(r["value"]) for r in steps}
    whole, quarter, grid = LISTS
    for method in METHODS:
        step = {task: rows[task, method, "median step"] for task in LISTS}
        assert step[quarter] < step[whole] < step[grid] / 10
        peak = {task: rows[task, method, "peak memory"] for task in LISTS}
        assert peak[quarter] < peak[whole] < 0.9e9 / 2**30  # of the whole process
        assert peak[whole] < 0.7 * peak[grid]
