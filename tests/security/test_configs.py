"""Configs and data of others: which classes they name, and where they would have files put."""

import json
import sys
from pathlib import Path

import pytest
import wandb
from omegaconf import OmegaConf

from scope_torch.cli import report as report_script
from scope_torch.cli.run import run_dir
from scope_torch.cli.targets import ALLOW, check_target
from scope_torch.errors import InputError
from scope_torch.evaluators.simulation.evaluator import SimulatedEvaluator
from scope_torch.evaluators.simulation.spec import load_worlds
from scope_torch.evaluators.simulation.world import World
from scope_torch.llm.prices import load_llms
from scope_torch.results.hashes import with_hashes

MODULE = """
from pathlib import Path
from scope_torch.runs.runner import Callback
Path("imported").touch()
class Mine(Callback):
    def close(self, error):
        Path("used").touch()
def mine():
    return Mine()
"""


@pytest.fixture(name="others")
def module_of_somebody_else(tmp_path, monkeypatch, cli):
    """A module `others` that can be imported; `cli` is run beside it."""
    (tmp_path / "others.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(ALLOW, raising=False)
    yield cli
    sys.modules.pop("others", None)


SMALL = ["task=synthetic", "task.num_queries=5", "budget_usd=0.02"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "target"),
    [("tracking", "others.Mine"), ("kernel", "others"), ("task", "others.mine"),
     ("method", "scope_torchy.Mine")],
)  # fmt: skip
def test_a_target_of_another_package_is_refused_before_it_is_imported(others, group, target):
    more = {"task": ",name:x", "method": ",name:x"}.get(group, "")
    status, out, err = others(*SMALL, f"{group}={{_target_:{target}{more}}}")
    assert (status, out) == (2, "")
    assert err.startswith(f"scope-torch: _target_='{target}' is not of this package; if you trust")
    assert f"{ALLOW}={target.partition('.')[0]}" in err
    assert len(err.splitlines()) == 1
    assert not Path("imported").exists()
    assert "others" not in sys.modules


@pytest.mark.slow
def test_a_config_cannot_allow_itself(others):
    for argument in (f"+{ALLOW}=others", "+allow_targets=[others]"):
        status, _, _ = others(*SMALL, "tracking={_target_:others.Mine}", argument)
        assert status == 2
    assert not Path("imported").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "allowed"), [("others.Mine", "others"), ("others.mine", "else, others")]
)
def test_a_target_that_the_user_allows_is_used(others, monkeypatch, target, allowed):
    monkeypatch.setenv(ALLOW, allowed)
    assert others(*SMALL, f"tracking={{_target_:{target}}}")[0] == 0
    assert Path("used").exists()


@pytest.mark.parametrize(
    "target",
    [
        "scope_torch.runs.directory.os.system",
        "scope_torch.runs.runner.subprocess.run",
        "scope_torch.runs.directory.write_atomically",
        "scope_torch.runs.journal.open",
        "scope_torch.model.kernels.gpytorch.kernels.RBFKernel",
        "scope_torch.model.kernels.Nothing",
        "scope_torch.nothing.Nothing",
        "scope_torch",
        "scope_torch..runner",
        "scope_torch.baselines.llm_backends.Path",
        "",
    ],
)
def test_what_is_only_reached_through_this_package_is_refused(target):
    with pytest.raises(InputError, match=f"^_target_={target!r} (is not of|does not)"):
        check_target(target)


@pytest.mark.slow
def test_callbacks_of_hydra_are_not_run(others):
    callback = "+hydra.callbacks.x={_target_:others.Mine}"
    for mode in ([], ["-m"]):
        status, _, err = others(*mode, *SMALL, callback)
        assert status == 2
        assert "hydra.callbacks are not run" in err
        assert len(err.splitlines()) == 1
    assert not Path("imported").exists()


def everything(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


NAMES = ["../x", "..", ".", "/abs", "a/../../x", "a\\\\b", "a/b"]


@pytest.mark.parametrize("name", NAMES)
def test_no_experiment_leads_out_of_the_output_directory(name):
    names = {"task": {"name": "t"}, "method": {"name": "m"}, "output_dir": "out", "seed": 0}
    names["swept"] = []
    assert run_dir(OmegaConf.create({**names, "experiment": "e"}), []) == Path("out/e/t/m/seed=0")
    with pytest.raises(InputError, match="cannot name a folder"):
        run_dir(OmegaConf.create({**names, "experiment": name}), [])


@pytest.mark.slow
@pytest.mark.parametrize(("key", "name"), [("task.name", "../x"), ("method.name", "/abs")])
def test_names_do_not_lead_out_of_the_output_directory(cli, tmp_path, key, name):
    before = everything(tmp_path.parent)
    name = name.replace("/abs", str(tmp_path.parent / "abs"))
    status, out, err = cli(*SMALL, f"{key}='{name}'")
    assert (status, out) == (2, "")
    assert err.startswith("scope-torch: ")
    assert "cannot name a folder" in err
    assert len(err.splitlines()) == 1
    assert everything(tmp_path.parent) == before


@pytest.mark.parametrize("column", ["../plan", pytest.param("/plan", marks=pytest.mark.slow)])
def test_modules_and_llms_of_a_table_may_have_any_name(cli, tmp_path, column, monkeypatch):
    wandb.teardown()  # a session of another test would not see the environment
    monkeypatch.setenv("WANDB_SILENT", "true")
    llms = ["../../small", "/large"]
    rows = [f"{a},{q},{q % 2 if a == llms[0] else 1},{0.1 * (a == llms[1]) + 0.01}"
            for a in llms for q in range(6)]  # fmt: skip
    (tmp_path / "runs.csv").write_text("\n".join([f"{column},query,quality,cost_usd", *rows]))
    before = everything(tmp_path.parent)
    arguments = ["task=table", "task.path=runs.csv", f"task.module_columns=['{column}']"]
    arguments += ["task.reference=['/large']", "task.epsilon=0.3", "budget_usd=1", "seed=1"]
    status, _, err = cli(*arguments, "base='../../small'", "tracking=wandb")
    assert (status, err) == (0, "")
    (result,) = tmp_path.rglob("result.json")
    assert list(json.loads(result.read_text())["theta_out"]) == [column]
    made = everything(tmp_path.parent) - before
    assert all(path.is_relative_to(tmp_path / "outputs") for path in made)


@pytest.mark.slow
def test_a_result_that_was_tampered_with_writes_no_report_elsewhere(
    cli, tmp_path, monkeypatch, capsys
):
    assert cli(*SMALL)[0] == 0
    (path,) = tmp_path.rglob("result.json")
    forged = json.loads(path.read_text()) | {"task": "../../evil"}
    path.write_text(json.dumps(with_hashes(forged)))  # hashes find damage, not forgery
    before = everything(tmp_path.parent)
    monkeypatch.setattr(sys, "argv", ["report.py", "outputs"])
    report_script.main()
    made = everything(tmp_path.parent) - before
    assert made
    assert all(path.parent == tmp_path / "outputs" for path in made)


def test_the_cache_of_a_world_stays_in_its_folder(tmp_path):
    text = (Path(report_script.__file__).parents[1] / "data/worlds.toml").read_text()
    (tmp_path / "worlds.toml").write_text(text.replace("data_imputation", '"../../evil"'))
    spec = load_worlds(tmp_path / "worlds.toml")["../../evil"]
    evaluator = SimulatedEvaluator(World(spec, load_llms()), cache_dir=tmp_path / "cache")
    assert evaluator._cache_path().parent == tmp_path / "cache"


def test_jobs_of_a_sweep_whose_names_are_cut_off_have_folders_of_their_own():
    base = "base=[" + ",".join(f"a-rather-long-name-of-an-llm-{i:012}" for i in range(4)) + "]"
    config = {
        **{"task": {"name": "t"}, "method": {"name": "m"}, "experiment": "", "output_dir": "o"},
        **{"seed": 0, "swept": ["task.epsilon"]},
    }
    folders = {
        run_dir(OmegaConf.create(config), [base, f"task.epsilon={epsilon}"])
        for epsilon in (0.05, 0.5)
    }
    assert len(folders) == 2
