"""SCOPE on the recorded runs, where the data is at hand."""

import pytest
from real_data import table_or_skip

from scope_torch.methods import make_scope
from scope_torch.results.metrics import optimal_cost
from scope_torch.runs.runner import run
from scope_torch.tasks.table import table_task

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
