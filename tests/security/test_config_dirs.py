"""A config directory of somebody else, which attacks: with --config-dir, or on the search path."""

import os
from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf, open_dict

from scope_torch.cli.compose import compose
from scope_torch.cli.registry import config_dir
from scope_torch.cli.targets import ALLOW, check_target, read_allowed
from scope_torch.cli.trusted import check_hydra
from scope_torch.errors import InputError

SMALL = ["task.num_queries=5", "budget_usd=0.02", "experiment=evil"]
SECRET = "hunter2-canary"
OTHERS = """
from pathlib import Path
Path("imported").touch()
class Mine:
    def __init__(self, **_):
        Path("used").touch()
"""
LOGGING = """{
  version: 1,
  handlers: {file: {class: logging.FileHandler, filename: victim, mode: w}},
  root: {handlers: [file]},
}"""
COLLECTING = "hydra_plugins.scope_torch_sweeper.CollectingSweeper"
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


@pytest.fixture(name="attack")
def attacking_directory(tmp_path, monkeypatch, cli):
    """Writes `evil/experiment/evil.yaml` and others, and runs the search with the directory."""
    (tmp_path / "others.py").write_text(OTHERS)
    (tmp_path / "victim").write_text("precious")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(ALLOW, raising=False)
    monkeypatch.setenv("CANARY", SECRET)

    def run(
        experiment: str, *arguments: str, ways: tuple[int, ...] = (0, 1, 2), **files: str
    ) -> tuple[int, str, str]:
        for name, text in {"experiment/evil": experiment, **files}.items():
            path = tmp_path / "evil" / f"{name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"# @package _global_\n{text}" if name == "experiment/evil" else text)
        before = dict(os.environ)
        every = [
            ["--config-dir", str(tmp_path / "evil")],
            [f"hydra.searchpath=[file://{tmp_path / 'evil'}]"],
            ["-m", "--config-dir", str(tmp_path / "evil")],
        ]
        found = [cli(*every[way], *SMALL, *arguments) for way in ways]
        assert {key: os.environ.get(key) for key in before} == before
        assert not (tmp_path / "imported").exists()
        assert not (tmp_path / "used").exists()
        assert (tmp_path / "victim").read_text() == "precious"
        written = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert not [path for path in written if SECRET in str(path)]
        assert not [path for path in written if SECRET.encode() in path.read_bytes()]
        assert not [text for _, *texts in found for text in texts if SECRET in text]
        assert len({status for status, *_ in found}) == 1
        return found[0]

    return run


@pytest.mark.slow
def test_a_harmless_directory_is_used(attack):
    """So the refusals below are of the attacks."""
    assert attack("experiment: mine")[0] == 0
    assert list(Path("outputs/mine").rglob("result.json"))


ATTACKS = {
    "allows itself": (
        f"hydra: {{job: {{env_set: {{{ALLOW}: others}}}}}}\ntracking: {{_target_: others.Mine}}",
        "hydra.job.env_set is refused; set variables of the environment in the shell",
    ),
    "copies variables": ("hydra: {job: {env_copy: [CANARY]}}", "hydra.job.env_copy is refused"),
    "launcher": ("hydra: {launcher: {_target_: others.Mine}}", "hydra.launcher._target_='others"),
    "sweeper": ("hydra: {sweeper: {_target_: others.Mine}}", "hydra.sweeper._target_='others"),
    "os.system": (
        "hydra: {launcher: {_target_: os.system}}",
        "hydra.launcher._target_='os.system' is none of",
    ),
    "a target from elsewhere": (
        "experiment: os.system\nhydra: {launcher: {_target_: '${experiment}'}}",
        "hydra.launcher._target_='${experiment}' is none of",
    ),
    "callbacks": (
        "hydra: {callbacks: {x: {_target_: others.Mine}}}",
        "hydra.callbacks are not run",
    ),
    "commands of Slurm": (
        "defaults: [{override /hydra/launcher: slurm}]\nhydra: {launcher: {setup: [touch used]}}",
        "hydra.launcher.setup=['touch used'] may run code: if you trust it, give it on the command",
    ),
    "a forged command line": (
        "defaults: [{override /hydra/launcher: slurm}]\n"
        "hydra: {launcher: {setup: [a]}, overrides: {hydra: [hydra.launcher.setup=1]}}",
        "hydra.launcher.setup=['a'] may run code",
    ),
    "a second line for Slurm": (
        'defaults: [{override /hydra/launcher: slurm}]\nhydra: {launcher: {comment: "x\\ntouch"}}',
        "hydra.launcher.comment='x\\ntouch': leave line breaks",
    ),
    "a variable in a path": ("output_dir: out/${oc.env:CANARY}", "no key reads the environment"),
    "a variable in a name": ("task: {name: 'x${oc.env:CANARY}'}", "no key reads the environment"),
    "a variable for W&B": (
        "defaults: [{override /tracking: wandb}]\ntracking: {group: '${oc.env:CANARY}'}",
        "no key reads the environment",
    ),
    "a hidden variable": (
        r"experiment: ${oc.decode:'\${oc.env:CANARY}'}",
        "no key reads the environment",
    ),
    "a variable by another key": (
        "seed: 1\nexperiment: '${oc.${task.name}:CANARY}'\ntask: {name: env}",
        "no key reads the environment",
    ),
}


# One of each kind of check: a fixed key, a target, a resolver.
IN_EVERY_WAY = ("allows itself", "launcher", "a variable in a path")


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused(attack, name):
    experiment, told = ATTACKS[name]
    status, out, err = attack(experiment, ways=(0, 1, 2) if name in IN_EVERY_WAY else (0,))
    assert (status, out) == (2, "")
    assert told in err
    assert err.startswith("scope-torch: ")
    assert len(err.splitlines()) == 1
    assert not Path("X").exists()
    assert not Path("outputs").exists() or not list(Path("outputs").rglob("result.json"))


@pytest.mark.slow
@pytest.mark.parametrize("key", ["job_logging", "hydra_logging"])
def test_no_log_file_is_opened(attack, key):
    told = f"scope-torch: hydra.{key} is refused; it could write files: leave it out\n"
    assert attack(f"hydra: {{{key}: {LOGGING}}}", ways=(0, 2))[::2] == (2, told)
    chosen = attack(
        "experiment: x", f"hydra/{key}=evil", ways=(1,), **{f"hydra/{key}/evil": LOGGING}
    )
    assert chosen[::2] == (2, told)


@pytest.mark.slow
def test_a_target_within_a_launcher_is_not_made(attack, cli, tmp_path):
    launcher = f"_target_: {BASIC}\nx: {{_target_: others.Mine}}"
    folder = tmp_path / "own" / "hydra" / "launcher"
    folder.mkdir(parents=True)
    (folder / "evil.yaml").write_text(launcher)
    status, _, err = cli(
        "-m", "--config-dir", str(tmp_path / "own"), *SMALL[:2], "hydra/launcher=evil"
    )
    assert status == 2
    assert "unexpected keyword argument 'x'" in err
    assert not Path("imported").exists()


def test_parts_of_hydra_are_not_made_recursively():
    with hydra.initialize_config_dir(config_dir(), version_base="1.3"):
        composed = hydra.compose("config", [], return_hydra_config=True)
    assert composed.hydra.launcher._recursive_ is False
    assert composed.hydra.sweeper._recursive_ is False
    assert composed.hydra.sweeper._target_ == COLLECTING


@pytest.mark.parametrize("part", ["launcher", "sweeper"])
def test_other_plugins_are_allowed_by_a_variable(monkeypatch, part):
    with hydra.initialize_config_dir(config_dir(), version_base="1.3"):
        config = hydra.compose("config", [], return_hydra_config=True).hydra
    with open_dict(config):
        config[part]["_target_"] = "hydra_plugins.hydra_optuna_sweeper.Plugin"
    monkeypatch.delenv(ALLOW, raising=False)
    read_allowed()
    with pytest.raises(InputError, match=rf"hydra\.{part}\._target_='hydra_plugins.hydra_optuna"):
        check_hydra(config, [])
    monkeypatch.setenv(ALLOW, "mine,hydra_plugins")
    read_allowed()
    check_hydra(config, [])
    monkeypatch.delenv(ALLOW)
    read_allowed()


@pytest.mark.slow
def test_what_the_user_types_may_run(cli, tmp_path, monkeypatch):
    """The same setting as in an attack; only its place differs."""
    status, _, err = cli(*SMALL[:2], "hydra/launcher=slurm", "hydra.launcher.setup=[true]")
    assert status == 0, err


@pytest.mark.parametrize(
    "setting", ["run.dir=X", "sweep.dir=X", "sweep.subdir=X", "output_subdir=X", "job.chdir=True"]
)
@pytest.mark.parametrize("mode", [[], ["-m"]], ids=["run", "sweep"])
def test_a_folder_for_hydra_is_refused_with_the_right_key(cli, tmp_path, mode, setting):
    status, out, err = cli(*mode, *SMALL[:2], f"hydra.{setting}")
    mend = "runs go to output_dir: write output_dir=FOLDER"
    assert (status, out) == (2, "")
    assert err == f"scope-torch: hydra.{setting} is refused; {mend}\n"
    assert list(tmp_path.iterdir()) == []


def test_variables_count_as_they_were_at_the_start(monkeypatch):
    monkeypatch.delenv(ALLOW, raising=False)
    read_allowed()
    monkeypatch.setenv(ALLOW, "json")
    with pytest.raises(InputError, match="is not of this package"):
        check_target("json.JSONDecoder")
    read_allowed()
    check_target("json.JSONDecoder")
    monkeypatch.delenv(ALLOW)
    read_allowed()


@pytest.mark.slow
def test_commands_beside_the_search_are_as_strict(monkeypatch):
    monkeypatch.setenv("CANARY", SECRET)
    with pytest.raises(InputError, match=r"hydra\.run\.dir=X is refused"):
        compose(["hydra.run.dir=X"])
    config = compose(["output_dir='${oc.env:CANARY}'"])
    with pytest.raises(Exception, match="no key reads the environment") as caught:
        OmegaConf.to_container(config, resolve=True)
    assert SECRET not in str(caught.value)
