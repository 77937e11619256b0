"""Every experiment of conf/experiment, run tiny; sweeps that resume; what the report says."""

import csv
import itertools
import json
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from benchmarks.results.experiments import experiments
from scope_torch.cli import report as report_script
from scope_torch.cli import run as run_script
from scope_torch.cli.build import build
from scope_torch.cli.compose import compose as compose_on_line
from scope_torch.cli.paper import paper_curves, paper_numbers
from scope_torch.cli.registry import config_dir

EXPERIMENTS = sorted(p.stem for p in (Path(config_dir(), "experiment")).glob("*.yaml"))
FOUR = "task.llms=[GPT-5.2,Gemini 2.5 Flash-Lite,Claude Haiku 4.5,Qwen3-235B-A22B]"
METHODS = "method=scope,random_search"
# Figures of two methods and of two settings of one; of the others only the content is made, because
# matplotlib takes longer to draw a figure than the runs do.
DRAWN = ("rq1_main", "ablation_parameters")


def report(directory: str, monkeypatch, capsys) -> str:
    monkeypatch.setattr(sys, "argv", ["report.py", directory])
    report_script.main()
    return capsys.readouterr().out


def composed(experiment: str):
    with initialize_config_dir(config_dir(), version_base="1.3"):
        return compose("config", [f"experiment={experiment}"], return_hydra_config=True)


def test_the_experiments_of_the_paper_are_there():
    expected = {"rq1_main", "rq2_deployment", "rq3_reference", "rq3_kernel", "ablation"}
    more = {"ablation_parameters", "ablation_delta", "scalability", "bounds"}
    assert expected | more <= set(EXPERIMENTS)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment_is_a_sweep_named_after_its_file(experiment):
    cfg = composed(experiment)
    assert cfg.experiment == experiment
    assert cfg.hydra.mode.name == "MULTIRUN"
    assert "seed" in cfg.hydra.sweeper.params


@pytest.mark.slow
def test_what_each_experiment_changes():
    assert composed("rq3_kernel").kernel._target_.endswith("HammingRBFKernel")
    assert composed("rq3_reference").task.reference == "Claude Haiku 4.5"
    assert composed("rq2_deployment").deploy is True
    assert composed("rq1_main").deploy is False
    assert composed("scalability").hydra.sweeper.params.task == "entity_resolution"


THREE = ("text_to_sql", "data_transformation", "data_imputation")
EIGHT = ["scope", "cei", "config_bo", "safeopt", "llambo", "llmselector", "abacus", "random_search"]


def jobs(experiment: str, *keys: str) -> set[tuple[str, ...]]:
    """The values of some keys in each job of a sweep, as Hydra's sweeper expands them."""
    params = composed(experiment).hydra.sweeper.params
    parsed = OverridesParser.create().parse_overrides([f"{k}={v}" for k, v in params.items()])
    split = [dict(o.split("=", 1) for o in job) for batch in expand(parsed) for job in batch]
    return {tuple(job[key] for key in keys) for job in split}


def expand(parsed) -> list[list[list[str]]]:
    return BasicSweeper.split_arguments(parsed, None)


@pytest.mark.slow
def test_the_papers_rows_are_its_eight_methods_and_scope_joint():
    """A list, not a glob: scope_front takes days on a task, and a new method is not the paper's."""
    methods = [*EIGHT, "scope_joint"]
    tasks = {"rq1_main": (*THREE, "entity_resolution"), "rq2_deployment": THREE}
    for experiment, of in {**tasks, "scalability": ("entity_resolution",)}.items():
        assert jobs(experiment, "task", "method") == {*itertools.product(of, methods)}
    assert jobs("rq1_main", "seed") == {("0",), ("1",), ("2",)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "kind"), [("ablation_parameters", "alpha"), ("ablation_delta", "theory, delta")]
)
def test_parameters_are_swept_where_they_act(experiment, kind):
    """The same settings as the rows of docs/results/parameters.csv."""
    key = "method.alpha" if kind == "alpha" else "method.bounds"
    swept = [settings("method=scope", f"{key}={value}") for (value,) in jobs(experiment, key)]
    cells = {c.method: c.overrides for c in experiments()["parameters"]}
    reported = [settings(*of[1:]) for name, of in cells.items() if name.startswith(f"{kind} = ")]
    assert sorted(map(repr, swept)) == sorted(map(repr, reported))
    assert len({repr(one) for one in swept}) == 3


def settings(*overrides: str) -> dict:
    """What the optimizer itself says decides its choices, but for its name."""
    cfg = compose_on_line(["task=synthetic", "base=nano", *overrides])
    problem = build(cfg.task).problem
    return build(cfg.method, problem=problem, kernel=build(cfg.kernel), seed=0).settings()


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.slow
def test_experiment_runs_tiny_and_reports(cli, experiment, monkeypatch, capsys):
    small = ["task=data_imputation", FOUR, METHODS, "seed=0", "budget_usd=0.05"]
    if experiment in ("bounds", "ablation_delta"):
        small = [*small, "method=scope", "method.bounds={b_g:loo_widening},{b_c:loo}"]
        small.remove(METHODS)
    if experiment == "bounds":
        small.append("task.world_seed=0,1")
    if experiment == "ablation_parameters":
        small = [*small, "method=scope", "method.alpha=0.2,0.4"]
        small.remove(METHODS)
    status, out, err = cli(f"experiment={experiment}", *small)
    assert status == 0, err
    results = list(Path("outputs", experiment).rglob("result.json"))
    assert len(results) == (4 if experiment == "bounds" else 2)
    assert out.count("data_imputation") >= len(results)
    if experiment not in DRAWN:
        monkeypatch.setattr(report_script, "save_figure", lambda _, path: path.touch())
    text = report(f"outputs/{experiment}", monkeypatch, capsys)
    assert "data_imputation" in text
    assert ("held-out" in text) == (experiment == "rq2_deployment")
    table = Path("outputs", experiment, "runs.csv").read_text()
    rows = list(csv.DictReader(table.splitlines()))
    assert len(rows) == len(results)
    assert all(float(row["of_optimum"]) >= 1 - 1e-12 for row in rows)
    assert list(Path("outputs", experiment).glob("*.png"))


@pytest.mark.slow
def test_a_sweep_resumes_where_it_ended(cli):
    arguments = ["-m", "task=synthetic", METHODS, "budget_usd=0.2"]
    assert cli(*arguments, "seed=0")[0] == 0
    before = {p: p.read_text() for p in Path("outputs").rglob("result.json")}
    assert cli(*arguments, "seed=0,1")[0] == 0
    assert {p: p.read_text() for p in before} == before  # timing included: not run again
    assert len(list(Path("outputs").rglob("result.json"))) == 4


@pytest.mark.slow
def test_a_changed_budget_is_not_taken_for_finished(cli):
    assert cli("task=synthetic", "budget_usd=0.1")[0] == 0
    assert cli("task=synthetic", "budget_usd=0.2")[0] == 0
    result = json.loads(next(Path("outputs").rglob("result.json")).read_text())
    assert result["budget_usd"] == 0.2
    assert result["timing"]["replayed_observations"] > 0


@pytest.mark.slow
def test_a_failed_job_leaves_its_traceback_and_the_others_run(cli, monkeypatch, capsys):
    real = run_script.run

    def broken(problem, optimizer, *rest, **options):
        if optimizer.name == "random_search":
            raise ZeroDivisionError("a bug")
        return real(problem, optimizer, *rest, **options)

    monkeypatch.setattr(run_script, "run", broken)
    arguments = ["-m", "task=synthetic", "method=random_search,scope", "budget_usd=0.1"]
    status, _, err = cli(*arguments)
    assert status == 2
    assert "ZeroDivisionError: a bug" in err
    log = next(Path("outputs").rglob("error.log"))
    assert log.parent.parent.name == "random_search"
    assert "Traceback" in log.read_text()
    assert [p.parent.parent.name for p in Path("outputs").rglob("result.json")] == ["scope"]
    assert f"failed: {log.parent}" in report("outputs", monkeypatch, capsys)
    monkeypatch.setattr(run_script, "run", real)
    assert cli(*arguments)[0] == 0
    assert not list(Path("outputs").rglob("error.log"))


@pytest.mark.slow
def test_deployment_without_held_out_queries_is_refused(cli):
    status, _, err = cli("task=synthetic", "deploy=true", "budget_usd=0.1")
    assert status == 2
    assert "held-out" in err


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("task.world=nowhere", "nowhere"),
        ("task.llms=[GPT-5.2,GPT-9]", "GPT-9"),
        ("task.reference=GPT-9", "GPT-9"),
        ("task.world_file=old.toml", "version"),
        ("task.world_file=absent.toml", "absent.toml"),
        ("experiment=rq9", "rq9"),
    ],
)
def test_bad_input_is_one_line_and_status_2(cli, argument, named):
    Path("old.toml").write_text("version = 0\n")
    status, _, err = cli("task=data_imputation", argument)
    assert status == 2
    assert named in err
    assert "Traceback" not in err


def test_the_papers_curves_are_found_by_task_reference_and_kernel():
    usual, haiku = {"a": "GPT-5.2"}, {"a": "Claude Haiku 4.5"}
    plain = paper_curves("data_imputation", usual, "HammingMatern52Kernel")
    assert {"scope", "scope_rand", "scope_coarse"} == set(plain)
    budgets, costs = plain["scope"]
    assert budgets[-1] == pytest.approx(2.0)
    assert costs[-1] == pytest.approx(0.000112)
    smooth = paper_curves("data_imputation", usual, "HammingRBFKernel")
    assert smooth["scope"][1][-1] == pytest.approx(3.4351603e-05)
    other = paper_curves("data_imputation", haiku, "HammingMatern52Kernel")
    assert other["cei"][1][-1] == pytest.approx(0.000629)
    assert "abacus" in paper_curves("entity_resolution", usual, "HammingMatern52Kernel")
    assert paper_curves("hotpotqa", usual, "HammingMatern52Kernel") == {}
    assert paper_curves("data_imputation", {"a": "GPT-4.1"}, "HammingMatern52Kernel") == {}


def test_the_papers_table_has_all_methods():
    for task in ("text_to_sql", "data_transformation", "data_imputation"):
        table = paper_numbers()["deployment"][task]
        assert set(table) == {
            "reference", "cei", "config_bo", "safeopt", "llambo", "llmselector", "abacus",
            "random_search", "scope",
        }  # fmt: skip
