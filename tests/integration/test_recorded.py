"""SCOPE on the recorded runs, where the data is at hand."""

from pathlib import Path
from statistics import fmean

import pytest
from real_data import folder_or_skip, table_or_skip

from scope_torch.cli.compose import compose_task
from scope_torch.methods import make_scope
from scope_torch.observation import Request
from scope_torch.results.metrics import optimal_cost
from scope_torch.runs.runner import run
from scope_torch.tasks.table import table_task

ROOT = Path(__file__).resolve().parents[2]
TASKS = {
    "hotpotqa": (["planner", "solver"], ["Ministral 3 8B", "Claude Opus 4.6"], 190, 12.0),
    "mathqa": (["answer", "critic"], ["Claude Opus 4.6", "Claude Opus 4.6"], 135, 22.0),
}


def recorded(name: str):
    modules, reference, num_queries, budget = TASKS[name]
    path = f"agentopt/{name}_compact.csv.gz"
    table_or_skip(path)
    task = table_task(
        name=name,
        path=path,
        module_columns=modules,
        reference=reference,
        epsilon=0.05,
        quality_column="score",
        on_missing="drop_queries",
    )
    assert task.problem.num_queries == num_queries
    assert task.problem.space.size == 81
    return task, budget


@pytest.mark.slow
def test_the_page_says_how_many_configurations_are_good_enough(monkeypatch):
    """Of those that were run on all queries, on what is for reporting."""
    monkeypatch.setenv("SCOPE_DATA_DIR", str(folder_or_skip("recordings").parent))
    names = ["restaurant_test", "agentopt_bfcl", "agentopt_gpqa_effort", "openhands_swt_bench"]
    page = " ".join((ROOT / "docs" / "recorded.md").read_text().split())
    for name in [*names, "swebench_bash_only"]:
        task = compose_task([f"task=recorded/{name}"])
        problem, every = task.problem, range(task.problem.num_queries)
        thetas = map(problem.space.theta_at, range(problem.space.size))
        offered = [theta for theta in thetas if problem.rule is None or problem.rule(theta)]
        whole = [theta for theta in offered if len(problem.queries_of(theta)) == len(every)]
        qualities = [
            fmean(o.quality for o in task.evaluator.evaluate(Request(theta, q) for q in every))
            for theta in whole
        ]
        good = sum(quality >= problem.s_0 - 1e-12 for quality in qualities)
        assert f"{good} of {len(whole)} (`{name}`)" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TASKS))
def test_scope_mostly_ends_near_the_optimum_and_never_violates(name):
    """docs/results-development.md has ten seeds; a narrow first b_g may miss HotpotQA's optimum."""
    task, budget = recorded(name)
    best = optimal_cost(task.problem, task.evaluator.truth())
    near = 0
    for seed in range(5):
        optimizer = make_scope(task.problem, base="gpt-oss-20b", seed=seed)
        result = run(task.problem, optimizer, task.evaluator, budget)
        near += result.summary()["true_cost_usd"] <= 1.15 * best
        assert result.curve.violation(budget) == 0
    assert near >= 4


@pytest.mark.parametrize("name", sorted(TASKS))
def test_the_config_files_agree_with_the_documented_tasks(name):
    from hydra import compose, initialize_config_dir

    from scope_torch.cli.registry import config_dir

    with initialize_config_dir(config_dir(), version_base="1.3"):
        cfg = compose("config", overrides=[f"task={name}"])
    modules, reference, _, _ = TASKS[name]
    assert cfg.task.module_columns == modules
    assert cfg.task.reference == reference
    assert cfg.method.base == "gpt-oss-20b"
    assert cfg.budget_usd == {"hotpotqa": 12.0, "mathqa": 22.0}[name]
