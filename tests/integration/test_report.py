"""`scope-torch report`: a table of one screen, all measures as CSV, LaTeX, figures."""

import csv
import json
import re
import shutil
import statistics
import sys
from pathlib import Path

import pytest

from scope_torch import make_scope, run
from scope_torch.baselines.random_search import RandomSearch
from scope_torch.cli.paper import paper_curves
from scope_torch.cli.report import _panels, main, report
from scope_torch.errors import InputError
from scope_torch.model.kernels import HammingRBFKernel
from scope_torch.results.hashes import with_hashes
from scope_torch.runs.finished import load_runs
from scope_torch.tasks.synthetic import synthetic_task

TASK = synthetic_task(num_queries=12)
MAKE = {
    "scope": lambda seed: make_scope(TASK.problem, base="nano", seed=seed),
    "random_search": lambda seed: RandomSearch(TASK.problem, seed=seed),
}
COLUMNS_OF_0_2 = {  # of the table in Markdown, which had all of them
    "task", "method", "runs", "cost_100_median", "cost_100_least", "cost_100_most",
    "cost_10_median", "cost_25_median", "cost_50_median", "paper_cost", "of_optimum_median",
    "of_optimum_most", "at_optimum_runs", "near_optimum_usd_median", "near_optimum_usd_runs",
    "area_median", "last_improvement_usd_median", "spend_usd_median", "violation_mean",
    "feasible_mean", "feasible_runs", "pruned_early_median", "b_g_median", "b_c_usd_median",
    "seconds_median",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Two methods, three seeds."""
    outputs = tmp_path_factory.mktemp("runs")
    for method, make in MAKE.items():
        for seed in range(3):
            run_dir = outputs / "synthetic" / method / f"seed={seed}"
            run(TASK.problem, make(seed), TASK.evaluator, 0.6, run_dir=run_dir)
    return outputs


@pytest.fixture
def outputs(finished, tmp_path) -> Path:
    shutil.copytree(finished, tmp_path / "outputs")
    return tmp_path / "outputs"


@pytest.fixture
def no_figures(monkeypatch) -> None:
    """A machine without matplotlib; here also because figures take their time."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "scope_torch.results.plotting", raising=False)


def copied(outputs: Path, of: str, to: Path, **changes) -> None:
    """The runs of a method under another name: other values in `result.json`."""
    shutil.copytree(outputs / "synthetic" / of, to)
    for path in to.rglob("result.json"):
        path.write_text(json.dumps(with_hashes(json.loads(path.read_text()) | changes)))


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


@pytest.mark.slow
def test_the_short_table_agrees_with_the_runs(outputs, no_figures):
    text = report(outputs)
    header, _, *rows = (cells(line) for line in text.split("\n\n")[0].splitlines())
    assert header[:3] == ["task", "method", "runs"]
    assert [row[1] for row in rows] == ["scope", "random_search"]  # the order of legends
    runs = rows_of(outputs / "runs.csv")
    for row in rows:
        mine = [one for one in runs if one["method"] == row[1]]
        share = statistics.median(float(one["cost_100"]) for one in mine)
        cost = 1000 * share * TASK.problem.reference_cost_usd
        assert float(row[3]) == pytest.approx(cost, rel=0.005)
        assert float(row[4].partition("%")[0]) == pytest.approx(100 * share, rel=0.06)
        near = [float(one["near_optimum_usd"] or "inf") for one in mine]
        spend, number = re.fullmatch(r"(\S+) \((\d)\)", row[5]).groups()
        assert int(number) == sum(value < 9 for value in near)
        if spend == "-":
            assert statistics.median(near) == float("inf")
        else:
            assert float(spend) == pytest.approx(statistics.median(near), rel=0.06)
        best = sum(one["optimal"] == "1.0" for one in mine)
        assert row[6] == f"{best} of 3"
        assert float(row[7]) == pytest.approx(
            statistics.mean(float(one["violation"]) for one in mine), rel=0.06
        )
        assert row[8] == f"{sum(one['feasible'] == '0.0' for one in mine)} of 3"
    assert text.split("\n\n")[0] in (outputs / "table.md").read_text()


def test_the_long_table_has_all_measures(outputs, no_figures):
    report(outputs)
    runs, methods = rows_of(outputs / "runs.csv"), rows_of(outputs / "methods.csv")
    assert set(methods[0]) >= COLUMNS_OF_0_2
    for row in methods:
        mine = [one for one in runs if one["method"] == row["method"]]
        for name in ("cost_25", "area", "spend_usd", "seconds", "violation", "of_optimum"):
            values = [float(one[name]) for one in mine]
            for suffix, of in (("median", statistics.median), ("least", min), ("most", max)):
                assert float(row[f"{name}_{suffix}"]) == pytest.approx(of(values))
    assert methods[1]["b_g_runs"] == "0"  # Random has no bounds
    assert methods[1]["b_g_median"] == ""
    assert methods[0]["b_g_runs"] == "3"


@pytest.mark.slow
def test_four_tasks_and_twelve_methods_fit_a_screen(outputs):
    for seed in (1, 2):
        shutil.rmtree(outputs / "synthetic" / "random_search" / f"seed={seed}")
    for task in range(4):
        for method in range(12):
            name, label = f"data_transformation_sim_{task}", f"method_no_{method:02}"
            copied(outputs, "random_search", outputs / name / label, task=name, method=label)
    shutil.rmtree(outputs / "synthetic")
    lines = report(outputs).splitlines()
    assert len(lines) <= 60
    assert sum("method_no_" in line for line in lines) == 48
    assert max(len(line) for line in lines if line.startswith("|")) <= 132
    figures = {path.name for path in outputs.glob("*.p*")}
    names = {f"data_transformation_sim_{task}_0.6usd" for task in range(4)} | {"all_tasks"}
    assert figures == {f"{name}.{suffix}" for name in names for suffix in ("png", "pdf")}


def test_columns_stand_below_each_other(outputs, no_figures):
    table = report(outputs).split("\n\n")[0].splitlines()
    places = [[match.start() for match in re.finditer(r"\|", line)] for line in table]
    assert places.count(places[0]) == len(table) == 4


@pytest.mark.slow
def test_latex_on_request(outputs, no_figures):
    copied(outputs, "scope", outputs / "synthetic" / "my_own", method="my_own")
    report(outputs)
    assert not (outputs / "table.tex").exists()
    assert "table.tex" in report(outputs, with_latex=True)
    text = (outputs / "table.tex").read_text()
    assert text.startswith(r"\begin{tabular}{llrrrrrr}")
    for command in (r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}"):
        assert text.count(command) == 1
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {7}
    assert not re.search(r"(?<!\\)[%#]", text)
    assert [row.split(" & ")[:2] for row in rows[1:]] == [
        ["synthetic", "SCOPE"], ["", "Random"], ["", r"my\_own"],
    ]  # fmt: skip
    costs = [re.search(r"(?:textbf\{)?([\d.]+)", row.split(" & ")[2])[1] for row in rows[1:]]
    bold = [r"\textbf" in row for row in rows[1:]]
    assert bold == [float(cost) == min(map(float, costs)) for cost in costs]


def test_the_option_of_the_command_line(outputs, no_figures, capsys):
    main([str(outputs), "--latex"])
    assert "table.tex" in capsys.readouterr().out
    assert (outputs / "table.tex").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["runs.csv", "methods.csv", "table.md", "table.tex"])
def test_a_file_of_the_user_stays(outputs, no_figures, capsys, name):
    """`runs.csv` is what the guide calls a recorded table."""
    report(outputs, with_latex=True)
    report(outputs, with_latex=True)  # its own files are written anew
    for path in outputs.glob("*.*"):
        path.unlink()
    (outputs / name).write_text("planner,solver,query,quality,cost_usd\nmini,pro,0,1,0.1\n")
    with pytest.raises(SystemExit) as exit_info:
        main([str(outputs), "--latex"])
    assert exit_info.value.code == 2
    assert f"{name} holds something else; rename it, or move" in capsys.readouterr().err
    assert [path.name for path in outputs.glob("*.*")] == [name]
    assert (outputs / name).read_text().endswith("mini,pro,0,1,0.1\n")


def test_tables_without_matplotlib(outputs, no_figures):
    text = report(outputs)
    assert "| synthetic | scope " in text
    assert text.count("matplotlib is missing") == 1
    assert (outputs / "methods.csv").exists()
    assert not list(outputs.glob("*.png"))


@pytest.mark.slow
def test_one_run(outputs):
    shutil.rmtree(outputs / "synthetic" / "random_search")
    for seed in (1, 2):
        shutil.rmtree(outputs / "synthetic" / "scope" / f"seed={seed}")
    (row,) = (cells(line) for line in report(outputs).splitlines()[2:3])
    assert row[:3] == ["synthetic", "scope", "1"]
    assert (outputs / "synthetic_0.6usd.pdf").exists()


def test_nothing_finished(tmp_path):
    with pytest.raises(InputError, match="no finished run below"):
        report(tmp_path)
    assert not list(tmp_path.iterdir())


def test_unfinished_runs_do_not_fill_the_screen(outputs, no_figures):
    for seed in range(3, 12):
        path = outputs / "synthetic" / "scope" / f"seed={seed}"
        path.mkdir()
        shutil.copy(path.with_name("seed=0") / "settings.json", path)
    text = report(outputs)
    assert text.count("unfinished: ") == 5
    assert "and 4 more: see table.md" in text
    assert (outputs / "table.md").read_text().count("unfinished: ") == 9


@pytest.mark.slow
def test_a_failed_job_is_not_unfinished_too(outputs, no_figures):
    path = outputs / "synthetic" / "scope" / "seed=3"
    path.mkdir()
    shutil.copy(path.with_name("seed=0") / "settings.json", path)
    (path / "error.log").write_text("a bug\n")
    text = report(outputs)
    assert f"failed: {path}" in text
    assert "unfinished: " not in text


def test_a_run_that_ends_at_nothing_feasible_is_not_optimal(outputs, no_figures):
    """Its best feasible cost may be that of the optimum: theta_0, where it began."""
    cost = TASK.problem.reference_cost_usd
    first = {"optimal_cost_usd": cost, "feasible": False, "true_cost_usd": 0.1 * cost}
    copied(outputs, "random_search", outputs / "first" / "random_search", task="first", **first)
    other = {"feasible": True, "true_cost_usd": 2 * cost}  # it went on to a dearer one
    copied(outputs, "scope", outputs / "first" / "scope", task="first", **first | other)
    quality = {"objective": "quality", "optimal_quality": 0.7, "true_quality": 0.8}
    quality["feasible"] = False  # too dear
    copied(outputs, "scope", outputs / "best" / "scope", task="best", **quality)
    text = report(outputs)
    rows = [cells(line) for line in text.splitlines() if line.startswith(("| best", "| first"))]
    assert [(row[0], row[4], row[6], row[8]) for row in rows if row[0] == "best"] == [
        ("best", "-", "0 of 3", "3 of 3")
    ]
    assert [(row[6], row[8]) for row in rows if row[0] == "first"] == [
        ("0 of 3", "0 of 3"), ("0 of 3", "3 of 3"),
    ]  # fmt: skip
    found = {(row["task"], row["method"]): row for row in rows_of(outputs / "methods.csv")}
    assert found["first", "random_search"]["at_optimum_runs"] == "0"
    assert found["best", "scope"]["quality_lost_runs"] == "0"


@pytest.mark.slow
def test_a_run_whose_truth_is_unknown_is_not_infeasible(outputs, no_figures):
    """As where it ends at a configuration that a table does not have on all queries."""
    known = {"objective": "quality", "optimal_quality": 0.8}
    copied(outputs, "scope", outputs / "best" / "scope", task="best", **known)
    for seed, (quality, is_feasible) in enumerate([(0.75, True), (None, None), (None, None)]):
        path = outputs / "best" / "scope" / f"seed={seed}" / "result.json"
        more = {"true_quality": quality, "feasible": is_feasible}
        path.write_text(json.dumps(with_hashes(json.loads(path.read_text()) | more)))
    (row,) = [cells(line) for line in report(outputs).splitlines() if line.startswith("| best")]
    assert (row[4], row[6], row[8]) == ("quality -0.050", "0 of 1", "0 of 1")


@pytest.mark.slow
def test_a_figure_says_how_many_runs_are_in_it(outputs):
    shutil.rmtree(outputs / "synthetic" / "random_search" / "seed=1")
    groups, _ = load_runs(outputs)
    (panel,) = _panels(groups).values()
    assert panel.title == "synthetic: median of 2 to 3 runs"


@pytest.mark.slow
def test_the_least_cost_is_that_of_one_threshold(tmp_path, no_figures):
    """A lower one admits cheaper configurations of every method."""
    for epsilon in (0.05, 0.5):
        task = synthetic_task(num_queries=12, epsilon=epsilon)
        scope = make_scope(task.problem, base="nano", seed=0)
        path = tmp_path / "synthetic" / "scope" / f"task.epsilon={epsilon}" / "seed=0"
        run(task.problem, scope, task.evaluator, 1.0, run_dir=path)
    text = report(tmp_path, with_latex=True)
    rows = (tmp_path / "table.tex").read_text().splitlines()
    assert text.count("| synthetic |") == 2
    assert sum(r"\textbf" in row for row in rows) == 2


def test_a_median_is_not_that_of_the_few_that_get_near(outputs, no_figures):
    for seed in range(3):  # one of three is near, from the start
        path = outputs / "synthetic" / "random_search" / f"seed={seed}" / "result.json"
        near = {"optimal_cost_usd": TASK.problem.reference_cost_usd if seed == 0 else 1e-9}
        path.write_text(json.dumps(with_hashes(json.loads(path.read_text()) | near)))
    text = report(outputs)
    (line,) = [line for line in text.splitlines() if line.startswith("| synthetic | random")]
    assert cells(line)[5] == "- (1)"
    row = rows_of(outputs / "methods.csv")[1]
    assert (row["near_optimum_usd_median"], row["near_optimum_usd_runs"]) == ("", "1")


@pytest.mark.slow
def test_two_budgets_of_a_task_are_told_apart(outputs):
    copied(outputs, "scope", outputs / "more" / "scope", budget_usd=1.5)
    text = report(outputs)
    assert "| synthetic, 0.6 USD | scope " in text
    assert "| synthetic, 1.5 USD | scope " in text
    names = [path.name for path in sorted(outputs.glob("*.pdf"))]
    assert names == ["synthetic_0.6usd.pdf", "synthetic_1.5usd.pdf"]


def test_a_truth_that_nobody_knows(outputs):
    """Costs and violations are unknown then, and there is no figure."""
    for path in outputs.rglob("trace.csv"):
        lines = path.read_bytes().decode().splitlines()
        blank = [",".join([*line.split(",")[:-2], "", ""]) for line in lines[1:]]
        path.write_bytes("".join(f"{line}\r\n" for line in [lines[0], *blank]).encode())
    rows = [cells(line) for line in report(outputs).splitlines()[2:4]]
    assert [row[3:] for row in rows] == [["-"] * 6] * 2
    assert not list(outputs.glob("*.png"))


def test_held_out_queries_have_a_table(outputs, no_figures):
    for path in outputs.rglob("result.json"):
        content = {"theta_out": {"cost_usd": 0.001, "quality": 0.8}}
        content["reference"] = {"cost_usd": 0.004, "quality": 0.64}
        path.with_name("deployment.json").write_text(json.dumps(content))
    text = report(outputs)
    assert "which the truth alone tells" not in text
    table = text.split("\n\n")[1].splitlines()
    assert cells(table[2])[1:] == ["scope", "3", "1", "25%", "0.800", "+25.0%", "-", "-"]
    row = rows_of(outputs / "methods.csv")[0]
    assert float(row["test_cost_usd_of_reference_median"]) == 0.25
    assert float(row["test_quality_of_reference_median"]) == 1.25


@pytest.mark.parametrize(
    "content",
    [
        {"reference": {"cost_usd": 0.004, "quality": 0.64}},
        {"theta_out": [1], "reference": {"cost_usd": 0.004, "quality": 0.64}},
        {"theta_out": {"cost_usd": "?", "quality": 1}, "reference": {"cost_usd": 1, "quality": 1}},
    ],
)
def test_an_edited_file_of_held_out_queries_is_named(outputs, content):
    """Early versions wrote no hash into it, so one without a hash is not refused for that."""
    path = min(outputs.rglob("result.json")).with_name("deployment.json")
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"deployment\.json is damaged .*; move it away"):
        report(outputs)


def test_held_out_queries_of_an_earlier_choice_are_not_told(outputs, no_figures):
    """The search has gone on with a larger budget since, and nothing was run again."""
    for path in outputs.rglob("result.json"):
        codes = json.loads(path.read_text())["theta_out_codes"]
        other = [code + 1 for code in codes]
        content = {
            "theta_out": {"cost_usd": 0.001, "quality": 0.8, "codes": other},
            "reference": {"cost_usd": 0.004, "quality": 0.64},
        }
        path.with_name("deployment.json").write_text(json.dumps(content))
    assert "+25.0%" not in report(outputs)


def test_a_search_that_ended_by_its_time_limit_is_told(outputs, no_figures):
    path = min(outputs.rglob("result.json"))
    content = json.loads(path.read_text()) | {"stop_reason": "time limit"}
    path.write_text(json.dumps(with_hashes(content)))
    _, remarks = load_runs(outputs)
    assert remarks == [f"ended by its time limit, before its budget was spent: {path.parent}"]


def test_the_paper_deploys_what_was_feasible(outputs, no_figures):
    """Where the truth is known, theta_out is not what the table shows (sec:rq2)."""
    for path in outputs.rglob("result.json"):
        content = {name: {"cost_usd": 0.001, "quality": 0.5} for name in ("theta_out", "reference")}
        content["best_feasible"] = {"cost_usd": 0.0005, "quality": 0.55}
        path.with_name("deployment.json").write_text(json.dumps(content))
    text = report(outputs)
    table = text.split("\n\n")[1].splitlines()
    assert cells(table[2])[3:7] == ["0.5", "50%", "0.550", "+10.0%"]
    assert "which the truth alone tells" in text


@pytest.mark.slow
def test_the_papers_numbers_stand_in_the_long_table(outputs, no_figures):
    name = "data_imputation"
    gpt = dict.fromkeys(TASK.problem.modules, "GPT-5.2")
    copied(outputs, "scope", outputs / name / "scope", task=name, reference=gpt)
    copied(outputs, "random_search", outputs / name / "cei", task=name, reference=gpt, method="cei")
    report(outputs)
    found = {row["method"]: row for row in rows_of(outputs / "methods.csv") if row["task"] == name}
    assert float(found["scope"]["paper_cost"]) == pytest.approx(0.026, rel=0.02)  # sec:rq1
    assert float(found["cei"]["paper_test_cost"]) == pytest.approx(0.00102 / 0.00428)
    assert float(found["cei"]["paper_test_quality"]) == pytest.approx(0.87 / 0.74)
    assert found["cei"]["paper_cost"] == ""
    haiku = dict.fromkeys(TASK.problem.modules, "Claude Haiku 4.5")
    for path in (outputs / name / "cei").rglob("result.json"):  # another reference
        path.write_text(
            json.dumps(with_hashes(json.loads(path.read_text()) | {"reference": haiku}))
        )
    report(outputs)
    found = {row["method"]: row for row in rows_of(outputs / "methods.csv") if row["task"] == name}
    assert found["cei"]["paper_test_cost"] == found["cei"]["paper_test_quality"] == ""


def test_the_paper_has_no_curves_of_another_reference_with_another_kernel():
    haiku = dict.fromkeys("abc", "Claude Haiku 4.5")
    assert paper_curves("data_imputation", haiku, "HammingMatern52Kernel") != {}
    assert paper_curves("data_imputation", haiku, "HammingRBFKernel") == {}


@pytest.mark.slow
def test_what_nobody_knows_of_a_choice_is_left_open(outputs, no_figures):
    """A table with holes: the choice was not recorded on every query."""
    unknown = dict.fromkeys(("feasible", "true_cost_usd", "true_quality"))
    copied(outputs, "scope", outputs / "holes" / "scope", task="holes", **unknown)
    best = {"optimal_quality": 0.9, "objective": "quality"}
    copied(outputs, "scope", outputs / "best" / "scope", task="best", **unknown, **best)
    report(outputs)
    found = {row["task"]: row for row in rows_of(outputs / "methods.csv")}
    assert found["holes"]["feasible_runs"] == found["best"]["quality_lost_runs"] == "0"


@pytest.mark.slow
def test_a_free_optimum_is_not_reached_by_all(outputs, no_figures):
    free = {"task": "free", "optimal_cost_usd": 0.0}
    copied(outputs, "scope", outputs / "free" / "scope", **free)
    report(outputs)
    (found,) = [row for row in rows_of(outputs / "methods.csv") if row["task"] == "free"]
    assert (found["at_optimum_runs"], found["near_optimum_usd_runs"]) == ("0", "0")


def searched(run_dir: Path, task=TASK, **settings) -> None:
    run(task.problem, make_scope(task.problem, base="nano", **settings), task.evaluator, 0.2,
        run_dir=run_dir)  # fmt: skip


def groups_of(outputs: Path) -> dict[tuple[str, str], int]:
    return {group[:2]: len(runs) for group, runs in load_runs(outputs)[0].items()}


def test_experiments_are_kept_apart(tmp_path):
    """Their folders have the same names: what an experiment changes stands in its file alone."""
    for experiment, kernel in (("rq1", None), ("rq3", HammingRBFKernel())):
        for seed in (0, 1):
            folder = tmp_path / experiment / "synthetic" / "scope" / f"seed={seed}"
            searched(folder, seed=seed, kernel=kernel)
    assert groups_of(tmp_path) == {("synthetic, rq1", "scope"): 2, ("synthetic, rq3", "scope"): 2}
    assert groups_of(tmp_path / "rq1") == {("synthetic", "scope"): 2}


def test_the_same_run_of_two_experiments_is_not_two(tmp_path):
    for experiment in ("rq1_main", "rq2_deployment"):
        for seed in (0, 1):
            searched(tmp_path / experiment / "synthetic" / "scope" / f"seed={seed}", seed=seed)
    expected = {(f"synthetic, {name}", "scope"): 2 for name in ("rq1_main", "rq2_deployment")}
    assert groups_of(tmp_path) == expected


def test_a_copy_of_a_run_is_no_second_one(outputs):
    folder = outputs / "synthetic" / "scope"
    before = groups_of(outputs)
    shutil.copytree(folder / "seed=0", folder / "seed=0.bak")
    assert groups_of(outputs) == before
    told = f"a copy of {folder / 'seed=0'}, not counted: {folder / 'seed=0.bak'}"
    assert load_runs(outputs)[1] == [told]


def test_runs_of_one_experiment_in_two_folders_are_one_group(tmp_path):
    for seed in (0, 1):
        searched(tmp_path / f"part{seed}" / "synthetic" / "scope" / f"seed={seed}", seed=seed)
    assert groups_of(tmp_path) == {("synthetic", "scope"): 2}


def test_the_folder_above_a_selection_is_no_setting_of_its_method(tmp_path):
    searched(tmp_path / "runs" / "june")
    assert groups_of(tmp_path) == {("synthetic", "scope"): 1}


def test_worlds_are_kept_apart(tmp_path):
    """Methods that were not run in the same world have no table together."""
    other = synthetic_task(num_queries=12, world_seed=4)
    searched(tmp_path / "synthetic" / "scope" / "seed=0")
    searched(tmp_path / "synthetic" / "scope" / "seed=1", other, seed=1)
    searched(tmp_path / "synthetic" / "mine" / "seed=0", other, name="mine")
    found = groups_of(tmp_path)
    assert len(found) == 3
    by_task: dict[str, set[str]] = {}
    for task, label in found:
        assert task.startswith("synthetic, ")
        by_task.setdefault(task, set()).add(label)
    assert sorted(map(len, by_task.values())) == [1, 2]
    assert {"scope", "mine"} in by_task.values()


@pytest.mark.slow
def test_a_sweep_of_the_task_says_itself_what_differs(tmp_path):
    for epsilon in (0.05, 0.2):
        task = synthetic_task(num_queries=12, epsilon=epsilon)
        searched(tmp_path / "synthetic" / "scope" / f"task.epsilon={epsilon}" / "seed=0", task)
    labels = ("scope task.epsilon=0.05", "scope task.epsilon=0.2")
    assert groups_of(tmp_path) == {("synthetic", label): 1 for label in labels}
