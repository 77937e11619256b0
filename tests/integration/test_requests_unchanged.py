"""Every method asks for what it asked for in version 0.1.0, observation by observation.

A journal resumes only if the search asks again for all that is recorded. So a change that is not
meant to change a search must leave every request as it was. The hashes are of journals made with
version 0.1.0 (theta, query, replicate of every line). A method that is meant to search differently
gets new hashes, and its journals another setting.
"""

import hashlib
import json
import re
from itertools import groupby
from pathlib import Path

import pytest
from long_runs import IS_LONG
from real_data import table_or_skip

from scope_torch.cli.build import build
from scope_torch.cli.compose import compose
from scope_torch.evaluators.simulation import spec
from scope_torch.runs.runner import run

BEFORE: dict[str, str] = json.loads(
    Path(__file__).with_name("requests_of_0_1_0.json").read_text(encoding="utf-8")
)
SEARCHES = [
    (*key, [run.split()[2] for run in runs])
    for key, runs in groupby(BEFORE, key=lambda run: tuple(run.split()[:2]))
]
AMPLITUDES = ["method.gp.amp_c=1", "method.gp.amp_g=1"]  # the defaults of that version
OLD_DEFAULTS = dict.fromkeys(["config_bo", "safeopt"], AMPLITUDES)
OLD_DEFAULTS["scope_joint"] = [
    *("method.verify=0", "method.calibration_queries=null"),
    "method.cost_scale=least_squares",
]
OLD_NAMES = {"data_imputation": ["task.name=data_imputation_simulated"]}  # in LLAMBO's prompts
WORLDS = Path(spec.__file__).parents[2] / "data" / "worlds.toml"


def old_worlds(text: str) -> str:
    """The constants of data imputation then: s(theta_0) was met on the queries of the search."""
    text = text.replace('reference_split = "test"', 'reference_split = "search"')
    return re.sub(r"reference_deviation = \S+", "reference_deviation = 0.13", text)


def test_twelve_methods_on_four_tasks_with_two_seeds():
    assert len(SEARCHES) == 48
    assert len({method for _, method, _ in SEARCHES}) == 12
    assert all(seeds == ["seed=0", "seed=1"] for _, _, seeds in SEARCHES)
    assert len(set(BEFORE.values())) >= 80  # of 96: two seeds may ask for the same


@pytest.mark.slow
@pytest.mark.parametrize(("task", "method", "seeds"), SEARCHES)
def test_requests_are_those_of_before(task, method, seeds, tmp_path):
    if task == "hotpotqa":
        table_or_skip("agentopt/hotpotqa_compact.csv.gz")
    if method == "optuna_gp":
        pytest.importorskip("optuna")
    old = [*OLD_DEFAULTS.get(method, []), *OLD_NAMES.get(task, [])]
    if task == "data_imputation":
        worlds = tmp_path / "worlds.toml"
        worlds.write_text(old_worlds(WORLDS.read_text(encoding="utf-8")), encoding="utf-8")
        old.append(f"task.world_file={worlds}")
    for seed in seeds if IS_LONG else seeds[:1]:
        cfg = compose([f"task={task}", f"method={method}", seed, *old])
        made = build(cfg.task)
        kernel = build(cfg.kernel)
        optimizer = build(
            cfg.method, problem=made.problem, kernel=kernel, seed=cfg.seed, device="cpu"
        )
        history = run(made.problem, optimizer, made.evaluator, cfg.budget_usd).history
        text = "".join(f"{list(o.theta)} {o.query} {o.replicate}\n" for o in history)
        assert hashlib.sha256(text.encode()).hexdigest()[:16] == BEFORE[f"{task} {method} {seed}"]
