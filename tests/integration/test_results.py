"""The evidence of docs/results: runs, files, tables and figures."""

import itertools
import json
import math
import statistics
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forked import forking
from matplotlib.text import Text

from benchmarks.results import __main__ as program
from benchmarks.results import live, other_tables, summary, tables, write
from benchmarks.results.cells import (
    LETTER,
    LLAMBO,
    PROBLEMS,
    RECORDED_DEVELOPMENT,
    SIMULATED,
    recorded_problems,
)
from benchmarks.results.choices import FITTED_WORLDS
from benchmarks.results.experiments import experiments, quick
from benchmarks.results.figures import FIGURES, draw_shares, oracle, panels_of
from benchmarks.results.origin import MADE, when_and_with
from benchmarks.results.planned import KEY, Rows, read_rows, row_of
from benchmarks.results.runs import COLUMNS, SHARES, STEPS, Cell
from scope_torch import run
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.runs.measured import measure_results, measurement
from scope_torch.runs.recorded import read_run

DEVELOPMENT = ("calibration", "bounds", "development", "front_development", "peers_tuning")
DEVELOPMENT += ("peers_tuning_recorded", "bounds_recorded", "development_recorded", "amplitudes")
DEVELOPMENT += ("recorded_development", "bases_development", "cost_bounds_development")
SMALL = ("task=synthetic", "budget_usd=0.1", "base=nano")


def cell(method="scope_joint", seed=10, *more) -> Cell:
    return Cell("synthetic", method, seed, 100, (*SMALL, f"method={method}", *more))


@pytest.mark.slow
def test_every_table_of_the_pages_comes_from_the_files():
    """Nothing in a block is typed by hand: it is made again and compared."""
    made = write.blocks(write.RESULTS)
    for page in write.PAGES:
        text = page.read_text()
        assert write.with_blocks(text, made) == text, f"{page}: python -m benchmarks.results write"
    pages = "".join(page.read_text() for page in write.PAGES)
    for name in [*write.TABLES, "versions"]:
        assert f"<!-- begin: results {name} -->" in pages


@pytest.mark.slow
def test_reported_runs_are_on_worlds_and_problems_that_nothing_was_chosen_on():
    recorded = [f"recorded/{task}" for task in RECORDED_DEVELOPMENT]
    for name, cells in experiments().items():
        assert len({c.key for c in cells}) == len(cells), name
        for c in cells:
            if name in DEVELOPMENT:
                assert c.world in (None, *(FITTED_WORLDS if name == "calibration" else range(5)))
                assert c.problem.partition(",")[0] in ("hotpotqa", *SIMULATED, *recorded)
            else:
                assert c.problem not in recorded, name
                assert c.world is None or c.world in range(100, 110), name
                assert c.seed >= 10
    shipped = {}
    for task in ("hotpotqa", "mathqa"):
        cfg = compose([f"task={task}"])
        shipped[task] = (list(cfg.task.reference), cfg.task.epsilon, cfg.base)
    listed = tomllib.loads(PROBLEMS.read_text())["problem"]
    assert len(listed) == 8
    for given in listed:
        reference, epsilon, base = shipped[given["task"]]
        assert (given["reference"], given["epsilon"]) != (reference, epsilon)
        assert given["base"] != base or given["reference"] != reference
    assert set(recorded_problems()) == {"mathqa", *(given["name"] for given in listed)}


@pytest.mark.slow
def test_quick_runs_are_few_and_of_every_experiment():
    few = quick()
    assert set(few) == set(experiments())
    assert 20 < sum(map(len, few.values())) < 225
    assert [name for name in few if not few[name]] == ["front_development"]
    assert not [c for cells in few.values() for c in cells if c.method in LLAMBO]


def test_llambo_is_left_out_where_no_LLM_answers(monkeypatch, capsys, tmp_path):
    cells = experiments()["systems"]
    asking = [c for c in cells if c.method in LLAMBO]
    assert len(asking) == 1
    monkeypatch.setattr(program, "ENDPOINT", tmp_path.as_uri())  # instead of a server
    assert program._answered("systems", cells) == [c for c in cells if c not in asking]
    assert "local_llms.py serve" in capsys.readouterr().err
    (tmp_path / "models").write_text("{}")
    assert program._answered("systems", cells) == cells


@pytest.fixture
def planned(monkeypatch, tmp_path) -> Path:
    """Two small runs in the place of all."""
    cells = {"main": [cell(), cell("random_search")]}
    monkeypatch.setattr(program, "experiments", lambda: cells)
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    return tmp_path / "main.csv"


def command(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["results", *arguments])
    program.main()


@pytest.mark.slow
def test_one_row_is_made_again_beside_that_of_the_file(planned, monkeypatch, capsys):
    row = ["run", "--only", "main", "--row", "synthetic scope_joint 100 10"]
    command(monkeypatch, *row)
    assert "V                     not there" in capsys.readouterr().out
    assert not planned.exists()
    Rows(planned).add(row_of(cell()) | {"c_bf_50": "1.5"})
    before = planned.read_bytes()
    command(monkeypatch, *row)
    header, *lines, last = capsys.readouterr().out.splitlines()
    assert header.split() == ["main.csv", "made", "now"]
    assert len(lines) == len(COLUMNS)
    (other,) = [line for line in lines if line.endswith("differs")]
    name, committed, fresh, _ = other.split()
    assert (name, committed, fresh) == ("c_bf_50", "1.5", row_of(cell())["c_bf_50"])
    assert last == f"{len(COLUMNS) - 1} of {len(COLUMNS)} columns are the same"
    assert planned.read_bytes() == before


@pytest.mark.slow
def test_a_row_that_is_not_planned_is_refused_with_those_that_are(planned, monkeypatch, capsys):
    for wrong, said in (
        (["--only", "main", "--row", "synthetic scope 100 10"], "synthetic scope_joint 100 10"),
        (["--only", "main", "--row", "x", "--quick"], "main has no run 'x'"),
    ):
        with pytest.raises(SystemExit) as stop:
            command(monkeypatch, "run", *wrong)
        assert stop.value.code == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command(monkeypatch, "write", "--row", "synthetic scope_joint 100 10")
    assert "--row goes with run" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_below_a_table_says_that_it_is_complete(planned, monkeypatch, capsys):
    for one in program.experiments()["main"]:
        Rows(planned).add(row_of(one))
    command(monkeypatch, "run", "--only", "main")
    said = capsys.readouterr().out
    assert "main.csv has all 2 runs" in said
    assert '--only main --row "synthetic scope_joint 100 10"' in said


@pytest.mark.slow
def test_quick_runs_are_compared_with_the_rows_that_are_committed(planned, monkeypatch, capsys):
    """Equal up to the rounding of another processor; runs that are not reported do not count."""
    forking()
    smaller = replace(cell("random_search", 11), overrides=(*SMALL, "budget_usd=0.05"))
    cells = [cell(), cell("random_search"), smaller]
    monkeypatch.setattr(program, "quick", lambda: {"main": cells})
    monkeypatch.setattr(program, "QUICK", planned.parent / "quick")
    monkeypatch.setattr(program, "write_all", id)  # nothing is written
    rows = [row_of(one) for one in cells]
    for row in (rows[0], rows[1] | {"c_0": f"{float(rows[1]['c_0']) * (1 + 1e-6):.9g}"}):
        Rows(planned).add(row)
    Rows(planned).add(rows[2] | {"spent_usd": "7"})
    command(monkeypatch, "all", "--quick", "--jobs", "1")
    assert "2 of these runs are in docs/results too, with the same figures" in (
        capsys.readouterr().out
    )
    text = planned.read_text()
    spent = rows[1]["spent_usd"]
    planned.write_text(text.replace(f",{spent},", f",{float(spent) * 1.001:.7g},"))
    with pytest.raises(SystemExit) as stop:
        command(monkeypatch, "all", "--quick", "--jobs", "1")
    first, line = stop.value.code.splitlines()
    assert first == "2 of these runs are in docs/results too, with other figures in 1:"
    assert line.startswith(f"main synthetic random_search 100 10: spent_usd is {spent}, not ")


@pytest.mark.slow
def test_most_experiments_have_a_quick_run_that_is_reported():
    """So that a change of what a method asks is seen at once."""
    few, every = quick(), experiments()
    seen = [name for name in few if set(few[name]) & set(every[name])]
    assert len(seen) >= 15
    assert {"recorded", "systems", "recorded_development", "in_flight"} <= set(seen), seen


def test_every_planned_run_has_words_of_its_own():
    for name, cells in experiments().items():
        assert len({program.words_of(one) for one in cells}) == len(cells), name


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scope_joint", "random_search"])
def test_a_row_has_the_figures_of_its_run(method):
    """c_bf and V at shares of the budget, by the definitions of sec:exp."""
    row = row_of(cell(method))
    assert list(row) == list(COLUMNS)
    cfg = compose([*SMALL, f"method={method}", "task.world_seed=100", "seed=10"])
    task = build(cfg.task)
    optimizer = build(cfg.method, problem=task.problem, kernel=build(cfg.kernel), seed=10)
    result = run(task.problem, optimizer, task.evaluator, 0.1)
    cost, quality = (table.flatten() for table in task.evaluator.truth())
    index = task.problem.space.index_of

    def theta_out(budget):
        past = [r.theta_out for r in result.trace if r.from_budget_usd <= budget]
        return index(past[-1] if past else task.problem.theta_ref)

    changes = sorted({0.0, *(r.from_budget_usd for r in result.trace)})
    for share in SHARES:
        budget = share * 0.1
        outs = [theta_out(b) for b in changes if b <= budget]
        best = min(float(cost[i]) for i in outs if quality[i] >= task.problem.s_0)
        assert float(row[f"c_bf_{round(100 * share)}"]) == pytest.approx(best, rel=1e-6)
    ends = [*[b for b in changes if b <= 0.1], 0.1]
    s_0 = task.problem.s_0
    lost = [max(s_0 - float(quality[theta_out(b)]), 0) / s_0 for b in ends[:-1]]
    V = sum(x * (after - b) for x, b, after in zip(lost, ends, ends[1:], strict=False)) / 0.1
    assert float(row["V"]) == pytest.approx(V, abs=1e-6)
    feasible = cost[quality >= s_0]
    assert float(row["c_star"]) == pytest.approx(float(feasible.min()), rel=1e-6)
    near = [
        b
        for b in changes
        if quality[theta_out(b)] >= s_0 and cost[theta_out(b)] <= 1.1 * feasible.min()
    ]
    assert row["usd_within_10"] == (f"{near[0]:.7g}" if near else "")
    assert float(row["spent_usd"]) == pytest.approx(result.history.spend_usd, rel=1e-6)


@pytest.mark.slow
def test_theta_out_as_the_configuration_evaluated_last():
    row = row_of(cell("random_search", 10, "budget_usd=1"))
    assert float(row["V"]) == 0
    assert float(row["V_last_queried"]) > 0
    assert float(row["c_bf_last_queried"]) >= float(row["c_bf_100"]) * (1 - 1e-6)
    assert row_of(cell())["V_last_queried"] == ""


@pytest.mark.slow
def test_a_file_is_gone_on_with(tmp_path, monkeypatch):
    cells = [cell("random_search"), cell("random_search", 11)]
    forking()  # one server of this process for all tests
    program.make("one", cells[:1], tmp_path, 1)
    rows = read_rows(tmp_path / "one.csv")
    assert [row["seed"] for row in rows] == ["10"]
    assert rows[0] == row_of(cells[0])
    assert program.missing("one", cells, tmp_path) == cells[1:]
    Rows(tmp_path / "one.csv").add(row_of(cells[1]))
    assert program.missing("one", cells, tmp_path) == []
    monkeypatch.setattr(program, "get_context", None)  # no process is started
    program.make("one", cells, tmp_path, 1)
    assert "torch" in (tmp_path / MADE).read_text()


@pytest.mark.slow
def test_the_letter_is_the_papers():
    for overrides in LETTER.values():
        method = compose(["task=data_imputation", *overrides]).method
        assert method.gap_tolerance is None
        assert method.certificate == "bounds"
        rules = (method.bounds.mode, method.bounds.B_g, method.bounds.b_g)
        assert rules in {("theory", "eligible", "loo_widening"), ("tuned", 1.0, "eligible")}
        assert (method.bounds.R_c, method.bounds.R_g) == (1e-3, 1e-3)
        assert (method.bounds.delta, method.alpha) == (1e-4, 1 / 3)


def made_up(problem, method, costs, seed=10, **values):
    """A row with given c_bf / c(theta_0) at the end of the budget and constant before."""
    row = dict.fromkeys(COLUMNS, "")
    row |= {"problem": problem, "method": method, "world": "100", "seed": str(seed)}
    row |= {"budget_usd": "2", "c_0": "0.01", "s_0": "0.5", "c_star": "0.001", "V": "0"}
    row |= {"infeasible": "0", "spent_usd": "2", "usd_within_10": ""}
    row |= {f"c_bf_{round(100 * s)}": f"{0.01 * costs}" for s in SHARES}
    row["c_bf_curve"] = " ".join([f"{0.01 * costs:.3g}"] * len(STEPS))
    row["V_curve"] = " ".join(["0"] * len(STEPS))
    return row | values


def test_where_scope_is_cheaper_it_says_by_how_much():
    """A million queries of 0.01 USD and of 30% of that; where it is dearer on average, nothing."""
    rows = [made_up("recorded/p", "scope", 0.3), made_up("recorded/p", "scope_joint", 1.0)]
    rows += [made_up("recorded/p", "scope", 0.5, 11), made_up("recorded/p", "scope_joint", 0.4, 11)]
    rows += [made_up("q", "scope", 0.3), made_up("q", "scope_joint", 0.2), made_up("r", "scope", 1)]
    table = other_tables.dearer_table([{**row, "file": "main"} for row in rows])
    head, _, line = table.splitlines()
    assert head.startswith("| of 2 places |")
    assert line == "| `p` | 4,000 | 7,000 | 3,000 | 3,000 | 1, 1 of 2 |"
    table = other_tables.dearer_table([{**row, "file": "additive"} for row in rows])
    assert "| `p`, additive | 4,000 |" in table


def test_the_searches_beside_agentopt_are_places_too(tmp_path, monkeypatch):
    """Of one task; an infeasible end is none."""
    head = "task,selector,seed,true_quality,s_0,true_cost_usd\n"
    ends = "p,scope,0,0.9,0.8,0.3\np,scope_joint,0,0.9,0.8,0.5\n"
    bad = "p,scope,1,0.7,0.8,0.1\np,scope_joint,1,0.9,0.8,0.5\n"
    (tmp_path / "cost.csv").write_text(head + ends + bad)
    monkeypatch.setitem(other_tables.FILES, "cost", tmp_path / "cost.csv")
    head, _, line = other_tables.dearer_everywhere_table([]).splitlines()
    assert head.startswith("| of 1 places |")
    assert line.startswith("| p, as it ships | 300,000 | 500,000 | 200,000 |")
    assert line.endswith("| 1, 0 of 1 |")


def test_headlines_are_computed():
    rows = [made_up("data_imputation", "cei", 0.4), made_up("data_imputation", "abacus", 0.2)]
    rows += [
        made_up("data_imputation", "scope", 0.05),
        made_up("data_imputation", "scope_joint", 0.1),
    ]
    line = tables.headline_table(rows).splitlines()[2]
    ours = "|  | -75.0%; -75.0% | -50.0%; -50.0% | -21.1%; -93.6% |"
    assert line == f"| data_imputation | 20% (`abacus`) {ours}"
    dear = [*rows[:2], made_up("data_imputation", "scope", 0.5)]
    assert "| 2.5 times; 2.5 times |" in tables.headline_table(dear)


def test_medians_and_counts():
    rows = [made_up("p", "scope", c, seed=i) for i, c in enumerate([0.1, 0.2, 0.9])]
    assert summary.share(rows, "c_bf_100") == pytest.approx(0.2)
    assert summary.geometric_mean(rows) == pytest.approx(
        math.exp(statistics.fmean(map(math.log, [0.1, 0.2, 0.9])))
    )
    assert summary.at_optimum(rows) == 1
    assert summary.worst(rows) == pytest.approx(9)
    assert summary.near(rows) == "- (0)"
    spent = [
        row | {"usd_within_10": usd} for row, usd in zip(rows, ["0.5", "0.25", ""], strict=True)
    ]
    assert summary.near(spent) == "0.5 (2)"
    assert other_tables.near_and_until(spent) == ("67%", "25%")


@pytest.mark.slow
def test_what_llmselector_has_found_is_what_it_has_evaluated():
    """Its c_bf is the least cost of a feasible configuration that it has evaluated (sec:exp)."""
    row = row_of(replace(cell("llmselector", 10, "budget_usd=3"), world=101))
    cfg = compose([*SMALL, "budget_usd=3", "method=llmselector", "task.world_seed=101", "seed=10"])
    task = build(cfg.task)
    search = build(cfg.method, problem=task.problem, kernel=build(cfg.kernel), seed=10)
    run(task.problem, search, task.evaluator, 3.0)
    cost, quality = (values.flatten() for values in task.evaluator.truth())
    index = [task.problem.space.index_of(e.theta) for e in search.evaluations]
    good = [float(cost[i]) for i in index if quality[i] >= task.problem.s_0 - 1e-12]
    assert float(row["c_bf_100"]) == pytest.approx(min(good), rel=1e-6)
    assert float(row["V"]) > 0  # of its allocation, which is not that configuration


def test_problems_whose_reference_is_near_the_optimum_do_not_count():
    rows = [made_up("p", "scope", 0.1), made_up("easy", "scope", 1, c_star="0.0095")]
    assert other_tables.not_trivial(rows) == rows[:1]


def test_held_out_costs_are_means():
    """Of two runs, one of which deploys theta_0."""
    ref = {"deployed_cost_ref": "0.01", "deployed_quality_ref": "0.5"}
    costs = {"0.001": "0.4", "0.01": "0.5"}
    rows = [
        made_up("text_to_sql", "scope", 1, seed=i, deployed_cost=c, deployed_quality=q, **ref)
        for i, (c, q) in enumerate(costs.items())
    ]
    assert "| `scope` | 55%, -10%, 1 (19.2%) |" in tables.deployment_table(rows)


def test_a_table_says_which_runs_are_still_to_be_made():
    cells = [cell(seed=seed) for seed in (10, 11)]
    cells.append(replace(cells[0], problem="harder"))
    rows = [dict(zip(KEY, one.key, strict=True)) for one in cells]
    assert write.how_many(rows, cells) == "3 runs"
    text = "1 runs, 2 to be made (none of harder)"
    assert write.how_many(rows[:1], cells) == text


@pytest.mark.slow
def test_days_and_versions_of_the_runs_are_named():
    notes = [
        {"first": "2026-01-02", "last": "2026-01-03", "versions": {"torch": "2.1", "smac": "2"}},
        {"first": "2026-01-01", "last": "2026-01-01", "versions": {"torch": "2.2"}},
    ]
    assert when_and_with(notes) == "2026-01-01 to 2026-01-03; smac 2, torch 2.1 and 2.2"
    assert when_and_with(notes[1:]) == "2026-01-01; torch 2.2"
    assert when_and_with([{}]) == "no date is known"
    versions = write.blocks(write.RESULTS)["versions"]
    assert "2026-" in versions
    assert ", torch 2" in versions
    assert "docs/results/made.json" in versions
    noted = json.loads((write.RESULTS / MADE).read_text())
    assert {name for of, _ in write.TABLES.values() for name in of.split()} <= {*noted, "live"}


def test_a_curve_has_the_c_bf_and_the_V_of_its_row():
    costs = np.linspace(0.9, 0.1, len(STEPS)).round(3)
    V = np.minimum(0.3, np.arange(len(STEPS)) / 100).round(3)
    row = made_up("p", "abacus", 0.1, c_bf_curve=" ".join(map(str, 0.01 * costs)))
    row["V_curve"] = " ".join(map(str, V))
    curve = oracle(row)
    budgets = 2 * np.array(STEPS)
    np.testing.assert_allclose(curve.best_feasible_cost(budgets), 0.01 * costs)
    np.testing.assert_allclose(curve.violation(budgets), V, atol=2e-3)


@pytest.mark.slow
def test_figures_show_every_problem_with_runs():
    for source, problems, methods in FIGURES.values():
        rows = read_rows(write.RESULTS / f"{source}.csv")
        panels = panels_of(rows, problems, methods)
        assert len(panels) == len({row["problem"] for row in rows} & set(problems))


def test_a_curve_needs_a_third_of_the_runs():
    rows = [made_up("data_imputation", "scope", 0.1, seed=str(seed)) for seed in range(9)]
    few = [made_up("data_imputation", "cei", 0.1, seed=str(seed)) for seed in range(4)]
    (panel,) = panels_of([*rows, *few[:3]], ["data_imputation"])
    assert (len(panel.curves), panel.title) == (1, "data_imputation: median of 9 runs")
    (panel,) = panels_of([*rows, *few], ["data_imputation"])
    assert (len(panel.curves), panel.title) == (2, "data_imputation: median of 4 to 9 runs")
    few = [{**row, "world": ""} for row in few[:3]]  # recorded: the same problem in every run
    (panel,) = panels_of([*rows, *few], ["data_imputation"])
    assert panel.title == "data_imputation: median of 3 to 9 runs"


@pytest.mark.slow
def test_no_text_of_the_figure_of_shares_lies_on_another():
    rows = [
        row
        for name in ("main", "tables", "peers")
        for row in read_rows(write.RESULTS / f"{name}.csv")
    ]
    figure = draw_shares(rows)
    figure.canvas.draw()
    found = [text for axes in figure.axes for text in axes.findobj(Text)]
    words = [text for text in found if text.get_text() and text.get_visible()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in words]
    assert [
        (one, other)
        for (one, box), (other, its) in itertools.combinations(boxes, 2)
        if box.overlaps(its)
    ] == []


@pytest.mark.slow
def test_a_live_run_becomes_a_row(tmp_path):
    """Its figures are those of its files; the table puts the paper's costs beside them."""
    task = build(compose(list(SMALL)).task)
    cfg = compose([*SMALL, "method=scope_joint"])
    optimizer = build(cfg.method, problem=task.problem, kernel=build(cfg.kernel), seed=10)
    result = run(task.problem, optimizer, task.evaluator, 0.1, run_dir=tmp_path)
    recorded = read_run(tmp_path)
    found = measure_results(recorded, task.evaluator)
    (tmp_path / "measured.json").write_text(json.dumps(measurement(recorded, found)))
    row = {name: str(value) for name, value in live.row_of_run(tmp_path).items()}
    assert set(row) == set(live.COLUMNS)
    summary = result.summary()
    assert float(row["cost"]) == pytest.approx(summary["true_cost_usd"], rel=1e-5)
    assert float(row["quality"]) == pytest.approx(summary["true_quality"], rel=1e-5)
    best = float(result.curve.best_feasible_cost(0.1))
    assert float(row["c_bf_100"]) == pytest.approx(best, rel=1e-5)
    assert float(row["V"]) == pytest.approx(float(result.curve.violation(0.1)), abs=1e-6)
    assert row["observations"] == str(len(result.history))
    assert row["theta_out"] == " + ".join(result.choice.values())
    row["run"] = "restaurant_test_local"
    found, nothing = live.live_table(
        [row | {"basis": basis} for basis in ("certified", "reference")]
    ).splitlines()[2:]
    assert "| 4.28, 0.1 |" in found
    assert row["theta_out"] in found
    assert "| theta_0 |" in nothing
