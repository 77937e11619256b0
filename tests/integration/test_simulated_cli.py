"""The simulated tasks as a user meets them: config files and the command line."""

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from scope_torch.cli import run as run_script
from scope_torch.cli.registry import config_dir
from scope_torch.evaluators.simulation.spec import load_worlds

FOUR = "[GPT-5.2,Gemini 2.5 Flash-Lite,GPT-5-mini,gemma-3-27b]"
BUDGET = {
    "text_to_sql": 30,
    "data_transformation": 5,
    "data_imputation": 2,
    "entity_resolution": 10,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUDGET)
def test_the_config_of_a_task(name):
    with initialize_config_dir(config_dir(), version_base="1.3"):
        cfg = compose("config", [f"task={name}"])
    problem, _, held_out = run_script.build(cfg.task)
    spec = load_worlds()[name]
    assert problem.name == cfg.task.name == name
    assert cfg.budget_usd == BUDGET[name]
    assert cfg.base == cfg.method.base == "Gemini 2.5 Flash-Lite"
    assert problem.epsilon == 0.01
    assert problem.modules == tuple(module.name for module in spec.modules)
    assert [len(llms) for llms in problem.llms] == [23] * len(problem.modules)
    assert problem.num_queries == spec.num_queries
    assert set(problem.names(problem.theta_ref).values()) == {"GPT-5.2"}
    assert all(cfg.base in llms for llms in problem.llms)
    assert held_out().num_queries == spec.num_test_queries


@pytest.mark.slow
def test_a_run_on_a_simulated_task(cli):
    arguments = ["task=data_imputation", f"task.llms={FOUR}", "budget_usd=0.3", "method=scope"]
    status, out, err = cli(*arguments)
    assert (status, err) == (0, "")
    (run,) = Path("outputs/data_imputation/scope").rglob("seed=0")
    assert "data_imputation scope seed 0" in out
    result = json.loads((run / "result.json").read_text())
    assert 0.3 < result["spend_usd"] < 0.32
    assert result["num_queries"] == 156
    assert result["reference_cost_usd"] == pytest.approx(0.00434, rel=1e-12)
    assert set(result["theta_out"]) == {"parse", "cloze", "answer"}
    assert result["true_cost_usd"] <= result["reference_cost_usd"] * (1 + 1e-12)
    assert result["optimal_cost_usd"] <= result["true_cost_usd"] * (1 + 1e-12)
    first = json.loads((run / "journal.jsonl").read_text().splitlines()[0])
    assert len(first["module_cost_usd"]) == 3
    assert sum(first["module_cost_usd"]) == pytest.approx(first["cost_usd"])
    assert [path.suffix for path in Path("cache").iterdir()] == [".npy"]
    best = result["best_feasible_codes"]
    assert len(best) == 3
    # The cache is no part of the run, the noise is.
    assert cli(*arguments, "task.cache_dir=elsewhere", f"output_dir={run.parents[3]}/b")[0] == 0
    again = json.loads(next(Path("outputs/b").rglob("result.json")).read_text())
    assert again["theta_out"] == result["theta_out"]
    assert again["spend_usd"] == result["spend_usd"]


@pytest.mark.slow
def test_a_search_that_cannot_deploy_does_not_begin(cli):
    status, _, err = cli("task=airport_city", "deploy=true", "budget_usd=0.001")
    assert status == 2
    assert "'airport_city' has no held-out queries; say deploy=false" in err
    assert not list(Path("outputs").rglob("journal.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("task.world=sql", "no simulated task 'sql'"),
        ("task.llms=[GPT-5.2,GPT-6]", "no price is known for LLM 'GPT-6'"),
        ("task.cost_noise=0.3", "cost_noise=0.3"),
        ("task.worldseed=3", "worldseed"),
        ("task.world_seed=9223372036854775808", "world_seed=9223372036854775808"),
        ("base=GPT-6", "'GPT-6' is not a candidate"),
    ],
)
def test_bad_settings_are_one_line_and_status_2(cli, argument, named):
    status, out, err = cli("task=data_imputation", argument)
    assert status == 2
    assert named in err
    assert err.startswith("scope-torch: ")
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in out + err
